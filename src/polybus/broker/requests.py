"""Requests: the broker owns each from publish to answer (TB-07 … TB-10).

A request is given to one instance of a service that is not busy. If all are busy it waits its turn; if
there is none it waits for one, if it may. An instance that goes away, or lets its time pass, loses the
request to another one. Whatever the end, the requester is told once: by the answer, or by the state
that the request ended in. A requester that is away, or whose link is full, is told when it is back.

The states are in `lifecycle`; everything that waits is in `storage`.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from polybus.broker import events
from polybus.broker.events import Event, emit
from polybus.broker.lifecycle import ENDS, RequestEvent, RequestState, advance
from polybus.broker.limits import Limits
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Delivery, Message, MessageProperties
from polybus.broker.services import Desk, Instance
from polybus.broker.sessions import MAX_PACKET_ID, Session
from polybus.broker.storage import Kind, Storage, Stored
from polybus.errors import PolybusError

if TYPE_CHECKING:
    from polybus.broker.dispatch import Dispatcher
    from polybus.broker.registry import Registry
    from polybus.broker.stats import Stats
    from polybus.broker.subscriptions import Subscriptions
    from polybus.broker.timers import Timers

log = logging.getLogger("polybus.broker")

MIN_ATTEMPT_S: Final = 0.1
_ANY_NUMBER: Final = 1 << 30
NO_SERVICE: Final = "no service is subscribed to this topic"
NO_ROOM: Final = "there is no room to store it"

END_EVENTS: Final[dict[RequestState, Event]] = {
    RequestState.ANSWER_DELIVERED: events.ANSWER_DELIVERED,
    RequestState.ANSWER_NOT_DELIVERED: events.ANSWER_NOT_DELIVERED,
    RequestState.NOT_DELIVERED: events.REQUEST_NOT_DELIVERED,
    RequestState.CANCELED: events.REQUEST_CANCELED,
    RequestState.TIMED_OUT: events.REQUEST_TIMED_OUT,
    RequestState.ERROR: events.REQUEST_FAILED,
    RequestState.DELETED: events.REQUEST_DISCARDED,
}


class PacketIdInUse(PolybusError):
    """A different request of the same client is under way with this packet id."""


class Request:
    __slots__ = (
        "answer",
        "answer_properties",
        "attempt",
        "created_at",
        "deadline",
        "desk",
        "given_at",
        "handle",
        "instance",
        "late",
        "may_wait",
        "message",
        "on_expiry",
        "packet_id",
        "reason",
        "serial",
        "state",
        "stored",
        "unable",
    )

    def __init__(self, message: Message, packet_id: int, serial: int, *, may_wait: bool, now: float) -> None:
        self.message = message
        """Its origin is the requester's client id."""
        self.packet_id = packet_id
        self.serial = serial
        self.may_wait = may_wait
        self.created_at = now
        self.deadline = now
        self.state = RequestState.NEW
        self.desk: Desk | None = None
        """Who was there when it came; used at once or never."""
        self.instance: Instance | None = None
        self.given_at = now
        self.late: set[Instance] | None = None
        """Instances that let their time pass: asked again only if nobody else is left."""
        self.unable: set[Instance] | None = None
        """Instances for which it is too large."""
        self.answer: bytes | None = None
        self.answer_properties: MessageProperties = NO_MESSAGE_PROPERTIES
        self.reason = ""
        """Why it ended without an answer, for people."""
        self.stored: Stored | None = None
        self.handle = 0
        self.attempt: Attempt | None = None
        self.on_expiry: Callable[[Request, float], None] | None = None

    @property
    def client_id(self) -> str:
        return self.message.origin

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def is_answered(self) -> bool:
        """The requester is to get the answer rather than the news of another end."""
        return self.state in (RequestState.ANSWERED, RequestState.ANSWER_STORED)

    def answer_bytes(self) -> int:
        return 0 if self.answer is None else len(self.answer) + self.answer_properties.size_bytes()

    def on_timer(self, now: float) -> None:
        self.handle = 0
        if self.on_expiry is not None:
            self.on_expiry(self, now)


class Attempt:
    """The time an instance has for a request."""

    __slots__ = ("_request", "_requests", "handle")

    def __init__(self, requests: "Requests", request: Request) -> None:
        self._requests = requests
        self._request = request
        self.handle = 0

    def on_timer(self, now: float) -> None:
        self.handle = 0
        self._requests.instance_is_late(self._request, now)


class Requests:
    """The single owner of requests."""

    def __init__(
        self,
        limits: Limits,
        stats: "Stats",
        timers: "Timers",
        dispatcher: "Dispatcher",
        subscriptions: "Subscriptions",
        registry: "Registry",
        storage: Storage,
        *,
        timeout_s: float,
    ) -> None:
        self.limits = limits
        self.timeout_s = timeout_s
        """Of a request that names none."""
        self.under_way: dict[str, dict[int, Request]] = {}
        """By client id and packet id. A request leaves when its requester was told, or cannot be."""
        self.count = 0
        self.size_bytes = 0
        self.ends = Storage(limits.stored_messages, limits.stored_bytes, self._end_is_lost)
        """Ends other than answers that wait for their requesters. They have room of their own: the news
        that a request was deleted to make room must not cost another request."""
        self.line = Storage(limits.requests, limits.memory_bytes, self.victim)
        """Requests that wait their turn at instances that are busy. Those for which there is no instance
        are in the storage that they share with messages and answers."""
        self._stats = stats
        self._timers = timers
        self._dispatcher = dispatcher
        self._subscriptions = subscriptions
        self._registry = registry
        self._storage = storage
        self._serial = 0
        self._given = 0
        self._next_ids: dict[str, int] = {}

    def set_limits(self, limits: Limits) -> None:
        self.limits = limits
        self.ends.set_limits(limits.stored_messages, limits.stored_bytes)
        self.line.set_limits(limits.requests, limits.memory_bytes)

    # -- from requesters --------------------------------------------------------------------------

    def accept(
        self, desk: Desk, message: Message, packet_id: int, timeout_s: float | None, *, may_wait: bool
    ) -> Request | None:
        """A new request for `process`; None: it is under way already, or ended right here.

        Without a timeout it has the broker's. Raises `PacketIdInUse`.
        """
        client_id = message.origin
        mine = self.under_way.get(client_id)
        if mine is None:
            mine = self.under_way[client_id] = {}
        earlier = mine.get(packet_id)
        if earlier is not None:
            if earlier.topic == message.topic and earlier.message.payload == message.payload:
                return None  # sent again, as after a reconnect
            raise PacketIdInUse(f"packet id {packet_id} belongs to a request that is not finished")
        now = self._dispatcher.now
        self._serial += 1
        request = Request(message, packet_id, self._serial, may_wait=may_wait, now=now)
        mine[packet_id] = request
        self.count += 1
        self.size_bytes += message.size_bytes()
        self._stats.requests_received += 1
        request.desk = desk
        if events.are_wanted(events.REQUEST_RECEIVED):
            self._emit(events.REQUEST_RECEIVED, request, client_id)
        if self.count > self.limits.requests or len(mine) > self.limits.requests_per_client:
            self._end(request, RequestEvent.GIVE_UP, "too many requests are under way")
            return None
        if self._dispatcher.over_budget:
            self._end(request, RequestEvent.GIVE_UP, "the broker is short of memory")
            return None
        request.deadline = now + (self.timeout_s if timeout_s is None else timeout_s)
        request.on_expiry = self._expire
        request.handle = self._timers.schedule(request.deadline, request)
        return request

    def new_packet_id(self, client_id: str) -> int:
        """For requesters whose protocol has none. 0: all are in use."""
        mine = self.under_way.get(client_id) or {}
        if len(mine) >= MAX_PACKET_ID:
            return 0
        packet_id = self._next_ids.get(client_id, 0) % MAX_PACKET_ID + 1
        while packet_id in mine:
            packet_id = packet_id % MAX_PACKET_ID + 1
        if len(self._next_ids) > self.limits.requests:
            self._next_ids.clear()  # only a hint where to look first
        self._next_ids[client_id] = packet_id
        return packet_id

    def cancel(self, client_id: str, packet_id: int) -> bool:
        """By its requester. False: there is nothing to cancel."""
        request = (self.under_way.get(client_id) or {}).get(packet_id)
        if request is None or request.state in ENDS:
            return False
        self._end(request, RequestEvent.CANCEL, "canceled by its requester")
        return True

    def find(self, client_id: str, topic: str, correlation_data: bytes | None) -> Request | None:
        """The latest unfinished request of a client that looks like this."""
        for request in reversed((self.under_way.get(client_id) or {}).values()):
            said = request.message.properties.correlation_data
            if request.topic == topic and said == correlation_data and request.state not in ENDS:
                return request
        return None

    def forget_client(self, client_id: str) -> None:
        """The client starts clean: what it asked is canceled, what waits for it is thrown away."""
        for request in list((self.under_way.get(client_id) or {}).values()):
            if request.state in ENDS:
                self._let_go(request)
            else:
                self._end(request, RequestEvent.CANCEL, "its requester started anew", tell=False)

    # -- from services ------------------------------------------------------------------------------

    def answer(
        self,
        session: Session,
        client_id: str,
        packet_id: int,
        payload: bytes,
        properties: MessageProperties,
    ) -> Request | None:
        """A request for `process` that has its answer; None: this session has no such request."""
        request = self._in_hand_of(session, client_id, packet_id)
        if request is None:
            return None
        request.state = advance(request.state, RequestEvent.ANSWER)
        request.answer = payload
        request.answer_properties = properties
        self.size_bytes += len(payload) + properties.size_bytes()
        if events.are_wanted(events.ANSWER_RECEIVED):
            self._emit(events.ANSWER_RECEIVED, request, session.client_id)
        return request

    def fail(self, session: Session, client_id: str, packet_id: int, text: str) -> bool:
        """The service could not do it. False: it has no such request."""
        request = self._in_hand_of(session, client_id, packet_id)
        if request is None:
            return False
        self._end(request, RequestEvent.FAIL, text, tell_service=False)
        return True

    def answer_itself(self, request: Request, payload: bytes) -> None:
        """The broker is the service."""
        request.state = advance(advance(request.state, RequestEvent.DELIVER), RequestEvent.ANSWER)
        request.answer = payload
        self.size_bytes += len(payload)

    def refuse(self, request: Request, text: str) -> None:
        """The broker is the service, and will not."""
        self._end(request, RequestEvent.FAIL, text)

    def _in_hand_of(self, session: Session, client_id: str, packet_id: int) -> Request | None:
        request = (self.under_way.get(client_id) or {}).get(packet_id)
        if (
            request is not None
            and request.state is RequestState.DELIVERED
            and request.instance is not None
            and request.instance.session is session
        ):
            return request
        reason = "no such request" if request is None else f"the request is {request.state.words}"
        if request is not None and request.state is RequestState.DELIVERED:
            reason = "the request was given to someone else"
        self.reject(session, reason, requester=client_id, packet_id=packet_id)
        return None

    def reject(
        self,
        session: Session,
        reason: str,
        *,
        requester: str | None = None,
        packet_id: int | None = None,
        topic: str | None = None,
    ) -> None:
        """An answer that has no request."""
        self._stats.answers_rejected += 1
        emit(
            events.ANSWER_REJECTED,
            client_id=session.client_id,
            topic=topic,
            requester=requester,
            packet_id=packet_id,
            reason=reason,
        )

    # -- giving out -----------------------------------------------------------------------------------

    def process(self, request: Request) -> None:
        """The next step of a request that is new or has just been answered."""
        if request.state is RequestState.NEW:
            desk, request.desk = request.desk, None
            assert desk is not None
            self._give_out(request, desk)
        elif request.state is RequestState.ANSWERED:
            instance = request.instance
            if instance is not None:
                self._leave_instance(request)
            self._deliver_answer(request)
            if instance is not None:
                self.serve_next(instance)

    def _give_out(self, request: Request, desk: Desk) -> None:
        """To a free instance, or to wait, or to its end."""
        if not self._hand_out(request, desk):
            self._wait_or_end(request, desk)

    def _hand_out(self, request: Request, desk: Desk) -> bool:
        """False: nobody is free for it."""
        while (instance := desk.pick(self._passed_over(request, desk))) is not None:
            if self._deliver(request, instance, desk):
                return True
            request.unable = (request.unable or set()) | {instance}
        return False

    def _wait_or_end(self, request: Request, desk: Desk) -> None:
        if desk.has_hope(self._passed_over(request, desk)):
            self._store(request, self.line)
            return
        is_too_large = desk.has_hope(None)  # someone is there, but cannot take it
        if is_too_large and request.state is not RequestState.STORED:
            self._end(request, RequestEvent.GIVE_UP, "too large for every service")
        elif request.may_wait:
            self._store(request, self._storage)
        else:
            self._end(request, RequestEvent.GIVE_UP, NO_SERVICE)

    def _passed_over(self, request: Request, desk: Desk) -> set[Instance] | None:
        """Instances that do not get it: it is too large for them, or they were late and others are there."""
        late, unable = request.late, request.unable
        if late is None:
            return unable
        both = late | (unable or set())
        if desk.has_hope(both):
            return both
        request.late = None  # nobody else is left
        return unable

    def _deliver(self, request: Request, instance: Instance, desk: Desk) -> bool:
        link = instance.session.link
        assert link is not None
        now = self._dispatcher.now
        frame = link.request_frame(request, now)
        if frame is None:
            return False
        stored = request.stored
        if stored is not None:
            self._unstore(request, stored)
        request.state = advance(request.state, RequestEvent.DELIVER)
        request.instance = instance
        session = instance.session
        if session.in_hand is None:
            session.in_hand = {}
        session.in_hand[request.serial] = request
        request.given_at = now
        instance.busy += 1
        self._given += 1
        instance.given = self._given
        self._dispatcher.push(link, frame)
        link.messages_out += 1
        if desk.rule.answer_within_s:
            self._start_attempt(request, now + desk.rule.answer_within_s)
        if events.are_wanted(events.REQUEST_DELIVERED):
            event = events.REQUEST_DELIVERED if stored is None else events.REQUEST_RESTORED
            self._emit(event, request, instance.session.client_id)
        return True

    def _start_attempt(self, request: Request, until: float) -> None:
        attempt = request.attempt = Attempt(self, request)
        attempt.handle = self._timers.schedule(until, attempt)

    def _store(self, request: Request, storage: Storage) -> None:
        stored = request.stored
        if stored is None:
            size, now = request.message.size_bytes(), self._dispatcher.now
            # Who came first is first in line, also after it lost its instance.
            stored = Stored(Kind.REQUEST, request.message, request, size, now, request.serial)
        elif stored.home is storage:
            return
        else:
            self._unstore(request, stored)
        if not storage.put(stored):
            self._end(request, RequestEvent.DELETE, NO_ROOM)
            return
        request.stored = stored
        if request.state is RequestState.STORED:  # it only went from one place to the other
            return
        request.state = advance(request.state, RequestEvent.STORE)
        if events.are_wanted(events.REQUEST_STORED):
            self._emit(events.REQUEST_STORED, request, request.client_id)

    def serve_next(self, instance: Instance) -> None:
        """Give an instance what waits its turn, as long as it is free."""
        while self.line.count:
            waiting = self._next_for(instance)
            if waiting is None:
                return
            request, desk = waiting
            if not self._deliver(request, instance, desk):
                request.unable = (request.unable or set()) | {instance}
                self._check_hope(request)

    def _next_for(self, instance: Instance) -> tuple[Request, Desk] | None:
        if not instance.is_free(_ANY_NUMBER):
            return None

        def is_served(topic: str) -> bool:
            # Rules differ from topic to topic, and it may have unsubscribed with requests in hand.
            desk = self._desk(topic)
            return instance.is_free(desk.rule.concurrency) and instance in desk.instances

        for stored in self.line.matching(Kind.REQUEST, instance.path, is_served):
            request = stored.request
            assert request is not None
            if request.deadline <= self._dispatcher.now:
                continue  # its own timer is due, just not yet run
            desk = self._desk(request.topic)
            passed_over = self._passed_over(request, desk)
            if passed_over is None or instance not in passed_over:
                return request, desk
        return None

    def _desk(self, topic: str) -> Desk:
        subscriptions = self._subscriptions
        return subscriptions.desk(subscriptions.route_of(topic))

    def _check_hope(self, request: Request) -> None:
        """Someone is gone for whom it may have waited: it goes to one that was late before, waits until
        someone comes, or ends."""
        desk = self._desk(request.topic)
        if request.late is not None or not desk.has_hope(request.unable):
            self._give_out(request, desk)

    # -- instances come and go ----------------------------------------------------------------------

    def session_is_ready(self, session: Session) -> None:
        """It connected, or its link has room again: it may serve, and be told."""
        if session.instances:
            instances = list(session.instances.values())
            for instance in instances:
                for stored in list(self._storage.matching(Kind.REQUEST, instance.path)):
                    request = stored.request
                    if request is not None and request.state is RequestState.STORED:
                        self._wait_or_end(request, self._desk(request.topic))
            for instance in instances:
                self.serve_next(instance)
        self.tell_waiting(session)

    def session_left(self, session: Session) -> None:
        """Its connection is gone: others get what it had in hand."""
        lost = [r for r in (session.in_hand or {}).values() if r.state is RequestState.DELIVERED]
        for request in lost:
            self._leave_instance(request)
        for request in sorted(lost, key=_turn):
            self._give_out(request, self._desk(request.topic))

    def instance_left(self, instance: Instance) -> None:
        """It is not connected, or no longer subscribed. What it has in hand it may still answer."""
        for stored in list(self.line.matching(Kind.REQUEST, instance.path)):
            assert stored.request is not None
            if stored.request.state is RequestState.STORED:
                self._check_hope(stored.request)

    def _take_back(self, request: Request) -> None:
        self._leave_instance(request)
        self._give_out(request, self._desk(request.topic))

    def instance_is_late(self, request: Request, now: float) -> None:
        """It has not answered in its time. If there is someone else, the request goes there."""
        self._dispatcher.now = now
        instance = request.instance
        if request.state is not RequestState.DELIVERED or instance is None:
            return
        desk = self._desk(request.topic)
        late = (request.late or set()) | {instance}
        if not desk.has_hope(late | (request.unable or set())):  # better late than never
            self._start_attempt(request, now + max(desk.rule.answer_within_s, MIN_ATTEMPT_S))
            return
        request.late = late
        self._tell_service(request, instance)
        self._take_back(request)
        self.serve_next(instance)

    def _leave_instance(self, request: Request) -> None:
        instance, request.instance = request.instance, None
        if instance is not None:
            in_hand = instance.session.in_hand
            assert in_hand is not None
            del in_hand[request.serial]
            instance.give_back(self._dispatcher.now - request.given_at)
        attempt, request.attempt = request.attempt, None
        if attempt is not None and attempt.handle:
            self._timers.cancel(attempt.handle)

    # -- ends -------------------------------------------------------------------------------------

    def _expire(self, request: Request, now: float) -> None:
        self._dispatcher.now = now
        if request.state in ENDS:
            return
        reason = "no answer in time"
        if request.state in (RequestState.NEW, RequestState.STORED):
            reason = "no service took it in time"
        elif request.is_answered:
            reason = "the answer came, but its requester was away"
        self._end(request, RequestEvent.EXPIRE, reason)

    def victim(self, stored: Stored) -> None:
        """Storage gave up an entry that belongs to a request."""
        request = stored.request
        assert request is not None
        request.stored = None
        self._end(request, RequestEvent.DELETE, "the storage is full, and this was deleted to make room")

    def _end_is_lost(self, stored: Stored) -> None:
        """So many requesters are away that the oldest end is given up."""
        request = stored.request
        assert request is not None
        self._cancel_timer(stored)
        request.stored = None
        self._let_go(request)

    def _end(
        self,
        request: Request,
        event: RequestEvent,
        reason: str,
        *,
        tell: bool = True,
        tell_service: bool = True,
    ) -> None:
        """Any end but the answer's delivery."""
        instance = request.instance
        if instance is not None:
            if tell_service and request.state is RequestState.DELIVERED:
                self._tell_service(request, instance)
            self._leave_instance(request)
        if request.stored is not None:
            self._unstore(request, request.stored)
        request.state = advance(request.state, event)
        request.reason = reason
        self._ended(request)
        if not tell or not self._tell_end(request):
            self._let_go(request)
        if instance is not None:
            self.serve_next(instance)

    def _ended(self, request: Request) -> None:
        """It has its end; the requester may still have to hear of it."""
        if request.handle:
            self._timers.cancel(request.handle)
            request.handle = 0
        self._stats.count_end(request.state)
        event = END_EVENTS[request.state]
        if events.are_wanted(event):
            self._emit(event, request, request.client_id)

    def _tell_service(self, request: Request, instance: Instance) -> None:
        """It need not answer any more."""
        link = instance.session.link
        frame = link.cancel_frame(request) if link is not None else None
        if link is not None and frame is not None:
            self._dispatcher.push(link, frame)

    def _tell_end(self, request: Request) -> bool:
        """False: the requester will not be told."""
        if self._send_outcome(request):
            return False  # there is no more to tell
        session = self._registry.sessions.get(request.client_id)
        if not request.may_wait and (session is None or session.link is None):
            return False
        return self._keep_end(request)

    def _deliver_answer(self, request: Request) -> None:
        if self._send_outcome(request):
            request.state = advance(request.state, RequestEvent.DELIVER)
            self._ended(request)
            self._let_go(request)
            return
        session = self._registry.sessions.get(request.client_id)
        if not request.may_wait and (session is None or session.link is None):
            self._end(request, RequestEvent.GIVE_UP, "its requester is away, and it may not wait")
        elif self._keep(request, self._storage):
            request.state = advance(request.state, RequestEvent.STORE)
            if events.are_wanted(events.ANSWER_STORED):
                self._emit(events.ANSWER_STORED, request, request.client_id)
        else:
            self._end(request, RequestEvent.DELETE, NO_ROOM)

    def _send_outcome(self, request: Request) -> bool:
        session = self._registry.sessions.get(request.client_id)
        link = session.link if session is not None else None
        if session is None or link is None or link.blocked:
            return False
        outcome = link.outcome(request, self._dispatcher.now)
        if outcome is None:
            return False
        if isinstance(outcome, Delivery):
            self._dispatcher.send(session, outcome)
        else:
            self._dispatcher.push(link, outcome)
            link.messages_out += 1
        return True

    def _keep_end(self, request: Request) -> bool:
        self._drop_answer(request)
        if not self._keep(request, self.ends):
            return False
        stored = request.stored
        assert stored is not None
        stored.on_expiry = self._forget_end
        stored.handle = self._timers.schedule(self._dispatcher.now + self.limits.request_ends_kept_s, stored)
        return True

    def _keep(self, request: Request, storage: Storage) -> bool:
        """What its requester is to be told."""
        size = request.message.size_bytes() + request.answer_bytes()
        stored = Stored(Kind.OUTCOME, request.message, request, size, self._dispatcher.now)
        if not storage.put(stored):
            return False
        request.stored = stored
        return True

    def _forget_end(self, stored: Stored, now: float) -> None:
        assert stored.request is not None
        self._let_go(stored.request)

    def tell_waiting(self, session: Session) -> None:
        """What waits for this requester, as far as it can be told now."""
        client_id = session.client_id
        waiting = self._storage.outcomes_of(client_id) + self.ends.outcomes_of(client_id)
        waiting.sort(key=_urgency)
        for stored in waiting:
            request = stored.request
            assert request is not None
            if not self._send_outcome(request):
                continue
            self._unstore(request, stored)
            if request.state is RequestState.ANSWER_STORED:
                request.state = advance(request.state, RequestEvent.DELIVER)
                if events.are_wanted(events.ANSWER_RESTORED):
                    self._emit(events.ANSWER_RESTORED, request, request.client_id)
                self._ended(request)
            self._let_go(request)

    def _unstore(self, request: Request, stored: Stored) -> None:
        assert stored.home is not None
        stored.home.take(stored)
        self._cancel_timer(stored)
        request.stored = None

    def _cancel_timer(self, stored: Stored) -> None:
        if stored.handle:
            self._timers.cancel(stored.handle)
            stored.handle = 0

    def _let_go(self, request: Request) -> None:
        """Nothing more will happen to it."""
        if request.stored is not None:
            self._unstore(request, request.stored)
        request.on_expiry = None
        mine = self.under_way[request.client_id]
        del mine[request.packet_id]
        if not mine:
            del self.under_way[request.client_id]
        self.count -= 1
        self.size_bytes -= request.message.size_bytes()
        self._drop_answer(request)

    def _drop_answer(self, request: Request) -> None:
        """It was delivered, or will not be."""
        self.size_bytes -= request.answer_bytes()
        request.answer = None
        request.answer_properties = NO_MESSAGE_PROPERTIES

    def _emit(self, event: Event, request: Request, client_id: str) -> None:
        emit(
            event,
            client_id=client_id,
            topic=request.topic,
            request=request.serial,
            requester=request.client_id,
            packet_id=request.packet_id,
            duration_s=round(self._dispatcher.now - request.created_at, 6),
            reason=request.reason or None,
        )


def _turn(request: Request) -> tuple[bool, int]:
    return not request.message.priority, request.serial


def _urgency(stored: Stored) -> int:
    return not stored.message.priority
