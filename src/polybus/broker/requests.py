"""Requests: the broker owns each from publish to answer (TB-07 … TB-10).

A request is given to one instance of a service that is not busy. If all are busy it waits its turn; if
there is none it waits for one, if it may. An instance that goes away, or lets its time pass, loses the
request to another one. Whatever the end, the requester is told once: by the answer, or by the state
that the request ended in. A requester that is away, or whose link is full, is told when it is back.

The states are in `lifecycle`, who gets a request in `giving`, what requesters are told in `outcomes`.
"""

from typing import TYPE_CHECKING, Final

from polybus.broker import events
from polybus.broker.events import emit
from polybus.broker.giving import MAX_LOSSES, NO_ROOM, Giving, in_hand_last
from polybus.broker.lifecycle import ENDS, RequestEvent, RequestState, advance
from polybus.broker.limits import Limits
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Message, MessageProperties
from polybus.broker.outcomes import correlation_of
from polybus.broker.request import Request
from polybus.broker.services import Desk
from polybus.broker.sessions import MAX_PACKET_ID, Session
from polybus.broker.storage import Storage
from polybus.errors import PolybusError

if TYPE_CHECKING:
    from polybus.broker.dispatch import Dispatcher
    from polybus.broker.registry import Registry
    from polybus.broker.stats import Stats
    from polybus.broker.subscriptions import Subscriptions
    from polybus.broker.timers import Timers


NOT_STORED: Final = "the broker cannot store anything just now"


class PacketIdInUse(PolybusError):
    """A different request of the same client is under way with this packet id."""


class Requests(Giving):
    """What requesters and services ask for."""

    def __init__(
        self,
        limits: Limits,
        stats: "Stats",
        timers: "Timers",
        dispatcher: "Dispatcher",
        registry: "Registry",
        storage: Storage,
        subscriptions: "Subscriptions",
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(limits, stats, timers, dispatcher, registry, storage, subscriptions)
        self.timeout_s = timeout_s
        """Of a request that names none."""
        self._serial = 0

    # -- from requesters --------------------------------------------------------------------------

    def accept(
        self,
        desk: Desk,
        message: Message,
        owner: str,
        packet_id: int,
        timeout_s: float | None,
        *,
        may_wait: bool,
    ) -> Request | None:
        """A new request for `process`; None: it is under way already, or ended right here.

        Without a timeout it has the broker's. Raises `PacketIdInUse`.
        """
        mine = self.under_way.get(owner)
        if mine is None:
            mine = self.under_way[owner] = {}
        earlier = mine.get(packet_id)
        if earlier is not None:
            if earlier.topic == message.topic and earlier.message.payload == message.payload:
                return None  # sent again, as after a reconnect
            raise PacketIdInUse(f"packet id {packet_id} belongs to a request that is not finished")
        now = self._dispatcher.now
        self._serial += 1
        request = Request(message, owner, packet_id, self._serial, may_wait=may_wait, now=now)
        mine[packet_id] = request
        if message.properties is not NO_MESSAGE_PROPERTIES:
            self._correlated[correlation_of(request)] = request
        self.count += 1
        self.size_bytes += message.size_bytes()
        self._stats.requests_received += 1
        request.desk = desk
        if events.are_wanted(events.REQUEST_RECEIVED):
            self._emit(events.REQUEST_RECEIVED, request, message.origin)
        if timeout_s is None:
            timeout_s = self.timeout_s
        if self.count > self.limits.requests or len(mine) > self.limits.requests_per_client:
            self._end(request, RequestEvent.GIVE_UP, "too many requests are under way")
        elif self._dispatcher.over_budget:
            self._end(request, RequestEvent.GIVE_UP, "the broker is short of memory")
        elif may_wait and self._ledger.trouble:
            self._end(request, RequestEvent.GIVE_UP, NOT_STORED)
        elif timeout_s <= 0:
            self._end(request, RequestEvent.EXPIRE, "it has no time")
        else:
            request.deadline = now + min(timeout_s, self.limits.request_timeout_s)
            request.on_expiry = self._expire
            request.handle = self._timers.schedule(request.deadline, request)
            self._note(request)
            return request
        return None

    def begin_serials(self, serial: int) -> None:
        """Numbers up to this one may have been given before the broker was started."""
        self._serial = max(self._serial, serial)

    def put_back(self, request: Request, kept_until: float | None) -> None:
        """One of before the broker was started. Everyone is away: it waits for a service, or its requester.

        `kept_until`: how long its end waits, if it has one.
        """
        message = request.message
        self.under_way.setdefault(request.owner, {})[request.packet_id] = request
        if message.properties is not NO_MESSAGE_PROPERTIES:
            self._correlated[correlation_of(request)] = request
        self.count += 1
        self.size_bytes += message.size_bytes() + request.answer_bytes()
        request.on_expiry = self._expire
        if request.state in ENDS:
            if not self._keep_end(request, self.ends, kept_until):
                self._let_go(request)
        else:
            request.handle = self._timers.schedule(request.deadline, request)
            if request.is_answered:
                request.state = RequestState.ANSWERED
                self._deliver_answer(request)
            else:
                request.state = RequestState.NEW
                self._give_out(request, self._desk_of(request))
        self._ledger.request_changed(request)

    def new_packet_id(self, owner: str) -> int:
        """For requesters whose protocol has none. 0: all are in use."""
        mine = self.under_way.get(owner) or {}
        if len(mine) >= MAX_PACKET_ID:
            return 0
        packet_id = self._serial % MAX_PACKET_ID + 1
        while packet_id in mine:
            packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def cancel(self, owner: str, packet_id: int) -> bool:
        """By its requester. False: there is nothing to cancel."""
        request = (self.under_way.get(owner) or {}).get(packet_id)
        if request is None or request.state in ENDS:
            return False
        self._end(request, RequestEvent.CANCEL, "canceled by its requester")
        return True

    def find(self, owner: str, topic: str, correlation_data: bytes | None) -> Request | None:
        """The latest request of an owner that looks like this, if it is not finished."""
        request = self._correlated.get((owner, topic, correlation_data))
        return None if request is None or request.state in ENDS else request

    def forget_client(self, owner: str) -> None:
        """The client starts clean: what it asked is canceled, what waits for it is thrown away."""
        mine = list((self.under_way.get(owner) or {}).values())
        for request in sorted(mine, key=in_hand_last):
            if request.state in ENDS:
                self._let_go(request)
            else:
                self._end(request, RequestEvent.CANCEL, "its requester started anew", tell=False)

    # -- from services ------------------------------------------------------------------------------

    def answer(
        self,
        session: Session,
        owner: str,
        packet_id: int,
        payload: bytes,
        properties: MessageProperties,
    ) -> Request | None:
        """A request for `process` that has its answer; None: this session has no such request."""
        request = self._in_hand_of(session, owner, packet_id)
        if request is None:
            return None
        request.state = advance(request.state, RequestEvent.ANSWER)
        request.answer = payload
        request.answer_properties = properties
        self.size_bytes += len(payload) + properties.size_bytes()
        self._note(request)
        if events.are_wanted(events.ANSWER_RECEIVED):
            self._emit(events.ANSWER_RECEIVED, request, session.client_id)
        return request

    def fail(self, session: Session, owner: str, packet_id: int, text: str) -> bool:
        """The service could not do it. False: it has no such request."""
        request = self._in_hand_of(session, owner, packet_id)
        if request is None:
            return False
        self._end(request, RequestEvent.FAIL, text, tell_service=False)
        return True

    def give_back(
        self, session: Session, owner: str, packet_id: int, reason: str, *, is_busy: bool = False
    ) -> bool:
        """A neighbour has nobody for it, or nobody who is free: it is asked no more until it says so, and the
        request goes elsewhere, or waits. False: it has no such request."""
        request = (self.under_way.get(owner) or {}).get(packet_id)
        instance = request.instance if request is not None else None
        if request is None or instance is None or instance.session is not session:
            return False
        if request.state is not RequestState.DELIVERED:
            return False
        instance.is_shut = True
        self._leave_instance(request)
        request.losses += not is_busy
        self._note(request)
        if request.losses < MAX_LOSSES:
            self._give_out(request, self._desk_of(request))
        else:
            self._end(request, RequestEvent.FAIL, f"{MAX_LOSSES} services went away with it: {reason}")
        return True

    def expire(self, session: Session, owner: str, packet_id: int) -> bool:
        """A neighbour says that its time is over. False: it has no such request."""
        request = (self.under_way.get(owner) or {}).get(packet_id)
        if request is None or request.instance is None or request.instance.session is not session:
            return False
        self._end(request, RequestEvent.EXPIRE, "no answer in time", tell_service=False)
        return True

    def answer_itself(self, request: Request, payload: bytes) -> None:
        """The broker is the service."""
        request.state = advance(advance(request.state, RequestEvent.DELIVER), RequestEvent.ANSWER)
        request.answer = payload
        self.size_bytes += len(payload)

    def refuse(self, request: Request, text: str) -> None:
        """The broker is the service, and will not."""
        self._end(request, RequestEvent.FAIL, text)

    def _in_hand_of(self, session: Session, owner: str, packet_id: int) -> Request | None:
        request = (self.under_way.get(owner) or {}).get(packet_id)
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
        self.reject(session, reason, requester=owner, packet_id=packet_id)
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

    # -- ends -------------------------------------------------------------------------------------

    def _deliver_answer(self, request: Request) -> None:
        if self._send_outcome(request):
            request.state = advance(request.state, RequestEvent.DELIVER)
            self._ended(request)
            self._let_go(request)
            return
        link = self._requester_link(request)
        if link is None and not request.may_wait:
            self._end(request, RequestEvent.GIVE_UP, "its requester is away, and it may not wait")
        elif self._keep(request, self.unread if link is not None and link.blocked else self._storage):
            request.state = advance(request.state, RequestEvent.STORE)
            if events.are_wanted(events.ANSWER_STORED):
                self._emit(events.ANSWER_STORED, request, request.client_id)
        else:
            self._end(request, RequestEvent.DELETE, NO_ROOM)

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


def _is_with_an_instance(request: Request) -> bool:
    return request.instance is not None
