"""Giving requests to services: to one instance that is not busy, or to wait.

If all instances are busy a request waits its turn in `line`; if there is none it waits in the storage that
it shares with messages and answers, if it may. An instance that goes away, or lets its time pass, loses
its requests to others.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from polybus.broker import events
from polybus.broker.lifecycle import ENDS, RequestEvent, RequestState, advance
from polybus.broker.limits import Limits
from polybus.broker.outcomes import Outcomes
from polybus.broker.request import Attempt, Request
from polybus.broker.services import Desk, Instance, ServiceRule
from polybus.broker.sessions import Session
from polybus.broker.storage import Kind, Storage, Stored

if TYPE_CHECKING:
    from polybus.broker.dispatch import Dispatcher
    from polybus.broker.registry import Registry
    from polybus.broker.stats import Stats
    from polybus.broker.subscriptions import Subscriptions
    from polybus.broker.timers import Timers

MIN_ATTEMPT_S: Final = 0.1
MAX_LOSSES: Final = 10
"""Instances that may go away with a request in hand before it is suspected to be the cause."""
SPARE_TURNS: Final = 64
AFTER_PRIORITY: Final = 1 << 62
NO_SERVICE: Final = "no service is subscribed to this topic"
NO_ROOM: Final = "there is no room to store it"


class Turns:
    """Who waits for an instance under one topic filter and rule: priority first, and in the order they came.

    Requests leave the line without being looked for here: those that are gone are passed over.
    """

    __slots__ = ("_heap", "_requests", "_waits")

    def __init__(self, waits: Callable[[Request], bool]) -> None:
        self._heap: list[int] = []
        self._requests: dict[int, Request] = {}
        self._waits = waits

    def put(self, request: Request, in_line: int) -> None:
        """`in_line`: how many wait in all, to know when there are too many here that are gone."""
        if len(self._heap) > 2 * in_line + SPARE_TURNS:
            self._requests = {key: each for key, each in self._requests.items() if self._waits(each)}
            self._heap = sorted(self._requests)
        key = turn_of(request)
        if key not in self._requests:
            self._requests[key] = request
            heappush(self._heap, key)

    def first(self, accepts: Callable[[Request], bool]) -> Request | None:
        """The first of those that wait and are accepted. It stays."""
        heap = self._heap
        passed: list[int] = []
        found: Request | None = None
        while heap and found is None:
            request = self._requests[heap[0]]
            if not self._waits(request):
                del self._requests[heappop(heap)]
            elif accepts(request):
                found = request
            else:
                passed.append(heappop(heap))
        for key in passed:
            heappush(heap, key)
        return found


def turn_of(request: Request) -> int:
    """Who has less is first."""
    return request.serial if request.message.priority else request.serial + AFTER_PRIORITY


class Giving(Outcomes):
    def __init__(
        self,
        limits: Limits,
        stats: "Stats",
        timers: "Timers",
        dispatcher: "Dispatcher",
        registry: "Registry",
        storage: Storage,
        subscriptions: "Subscriptions",
    ) -> None:
        super().__init__(limits, stats, timers, dispatcher, registry, storage)
        self.line = Storage(limits.requests, limits.memory_bytes, self.victim)
        """Requests that wait their turn at instances that are busy."""
        self._turns: dict[str, dict[ServiceRule, Turns]] = {}
        """The same requests by the filters of the instances they wait for; made when first asked for."""
        self._choosy: dict[Request, None] = {}
        """Those of them that some instances cannot have, or no more."""
        self._subscriptions = subscriptions
        self.awaited: set[str] = set()
        """Filters of services that a neighbour found busy (TB-15)."""
        self.on_awaited: Callable[[str], None] = lambda path: None
        """Told when an instance under one of them is free."""
        self._given = 0
        subscriptions.on_unserved = self._forget_turns

    def set_limits(self, limits: Limits) -> None:
        super().set_limits(limits)
        self.line.set_limits(limits.requests, limits.memory_bytes)

    def rules_changed(self) -> None:
        self._turns.clear()

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
            self._store(request, desk, self.line)
            return
        is_too_large = desk.has_hope(None)  # someone is there, but cannot take it
        if is_too_large and request.state is not RequestState.STORED:
            self._end(request, RequestEvent.GIVE_UP, "too large for every service")
        elif request.may_wait:
            self._store(request, desk, self._storage)
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
        attempt = request.attempt = Attempt(request, self.instance_is_late)
        attempt.handle = self._timers.schedule(until, attempt)

    def _store(self, request: Request, desk: Desk, storage: Storage) -> None:
        stored = request.stored
        if stored is None:
            size, now = request.message.size_bytes(), self._dispatcher.now
            stored = Stored(Kind.REQUEST, request.message, request, size, now)
        elif stored.home is storage:
            return
        else:
            self._unstore(request, stored)
        if not storage.put(stored):
            self._end(request, RequestEvent.DELETE, NO_ROOM)
            return
        request.stored = stored
        if request.state is not RequestState.STORED:  # else it only went from one place to the other
            request.state = advance(request.state, RequestEvent.STORE)
            if events.are_wanted(events.REQUEST_STORED):
                self._emit(events.REQUEST_STORED, request, request.client_id)
        if storage is self.line:
            self._line_up(request, desk)

    def _unstore(self, request: Request, stored: Stored) -> None:
        super()._unstore(request, stored)
        self._choosy.pop(request, None)
        if not self.line.count:  # nothing of those that waited is kept
            self._turns.clear()

    # -- waiting for a turn -----------------------------------------------------------------------------

    def _line_up(self, request: Request, desk: Desk) -> None:
        in_line = self.line.count
        if request.late or request.unable or request.is_foreign:
            self._choosy[request] = None
        for path in {instance.path for instance in desk.instances}:
            turns = self._turns.get(path)
            if turns is not None:
                self._turns_by(desk.rule, turns).put(request, in_line)

    def _turns_by(self, rule: ServiceRule, turns: dict[ServiceRule, Turns]) -> Turns:
        found = turns.get(rule)
        if found is None:
            found = turns[rule] = Turns(self._waits)
        return found

    def _turns_at(self, path: str) -> dict[ServiceRule, Turns]:
        turns = self._turns.get(path)
        if turns is None:
            turns = self._turns[path] = {}
            for stored in self.line.matching(Kind.REQUEST, path):
                assert stored.request is not None
                rule = self._desk_of(stored.request).rule
                self._turns_by(rule, turns).put(stored.request, self.line.count)
        return turns

    def _forget_turns(self, path: str) -> None:
        """There is no instance under this filter any more."""
        self._turns.pop(path, None)

    def _waits(self, request: Request) -> bool:
        return request.stored is not None and request.stored.home is self.line

    def serve_next(self, instance: Instance) -> None:
        """Give an instance what waits its turn, as long as it is free."""
        while self.line.count:
            request = self._next_for(instance)
            if request is None:
                break
            if not self._deliver(request, instance, self._desk_of(request)):
                request.unable = (request.unable or set()) | {instance}
                self._choosy[request] = None
                self._check_hope(request)
        if self.awaited and instance.path in self.awaited and instance.is_free(1):
            self.on_awaited(instance.path)

    def _next_for(self, instance: Instance) -> Request | None:
        link = instance.session.link
        if link is None or link.blocked or not self._subscriptions.has_instance(instance):
            return None  # it may have unsubscribed with requests in hand
        now = self._dispatcher.now

        def is_for_it(request: Request) -> bool:
            if request.deadline <= now:
                return False  # its own timer is due, just not yet run
            if request.is_foreign and instance.session.is_neighbor:
                return False  # what came from a neighbour goes to no other (TB-15)
            passed_over = self._passed_over(request, self._desk_of(request))
            return passed_over is None or instance not in passed_over

        turns = self._turns_at(instance.path)
        firsts = [t.first(is_for_it) for rule, t in turns.items() if instance.is_free(rule.concurrency)]
        return min((request for request in firsts if request is not None), key=turn_of, default=None)

    def _desk_of(self, request: Request) -> Desk:
        subscriptions = self._subscriptions
        desk = subscriptions.desk(subscriptions.route_of(request.topic))
        return desk.local() if request.is_foreign else desk

    def _check_hope(self, request: Request) -> None:
        """Someone is gone for whom it may have waited: it goes to one that was late before, waits until
        someone comes, or ends."""
        desk = self._desk_of(request)
        if request.late is not None or not desk.has_hope(request.unable):
            self._give_out(request, desk)

    # -- instances come and go ----------------------------------------------------------------------

    def session_is_ready(self, session: Session) -> None:
        """It connected, or its link has room again: it may serve, and be told."""
        if session.instances and (self.line.count or self._storage.counts[Kind.REQUEST]):
            instances = list(session.instances.values())
            for instance in instances:
                self._give_hope(instance)
            for instance in instances:
                self.serve_next(instance)
        self.tell_waiting(session)

    def instance_came(self, instance: Instance) -> None:
        self._give_hope(instance)
        self.serve_next(instance)

    def _give_hope(self, instance: Instance) -> None:
        """Who waited for an instance like this now waits its turn."""
        for stored in list(self._storage.matching(Kind.REQUEST, instance.path)):
            request = stored.request
            if request is not None and request.state is RequestState.STORED:
                self._wait_or_end(request, self._desk_of(request))

    def session_left(self, session: Session) -> None:
        """Its connection is gone: others get what it had in hand, and what waits for it waits elsewhere."""
        lost = [r for r in (session.in_hand or {}).values() if r.state is RequestState.DELIVERED]
        for request in lost:
            self._leave_instance(request)
            request.losses += 1
            self._note(request)
        for request in sorted(lost, key=turn_of):
            if request.losses < MAX_LOSSES:
                self._give_out(request, self._desk_of(request))
            else:
                self._end(request, RequestEvent.FAIL, f"{MAX_LOSSES} services went away with it")
        self._requester_left(session)

    def _requester_left(self, session: Session) -> None:
        """What may wait goes on without it, and waits for it; the rest is over."""
        mine = [r for owner in self._owners(session) for r in (self.under_way.get(owner) or {}).values()]
        for request in sorted(mine, key=in_hand_last):
            stored = request.stored
            if request.state in ENDS or request.state is RequestState.ANSWER_STORED:
                if stored is not None and (stored.home is self.unread or not request.may_wait):
                    self._unstore(request, stored)
                    self._wait_for_requester(request)
            elif not request.may_wait and request.state is not RequestState.ANSWERED:
                self._end(request, RequestEvent.CANCEL, "its requester is gone", tell=False)

    def _wait_for_requester(self, request: Request) -> None:
        """An outcome that was to be told when the link had room, but the link is gone."""
        if request.state in ENDS:
            if not (request.may_wait and self._keep_end(request, self.ends)):
                self._let_go(request)
        elif not request.may_wait:
            self._end(request, RequestEvent.GIVE_UP, "its requester is away, and it may not wait")
        elif not self._keep(request, self._storage):
            self._end(request, RequestEvent.DELETE, NO_ROOM)

    def instance_left(self, instance: Instance) -> None:
        """It is not connected, or no longer subscribed. What it has in hand it may still answer."""
        if self._subscriptions.is_served(instance.path):
            # Others like it are there: only those are concerned that cannot go to just anyone.
            waiting = list(self._choosy)
        else:
            entries = list(self.line.matching(Kind.REQUEST, instance.path))
            waiting = [stored.request for stored in entries if stored.request is not None]
        for request in waiting:
            if self._waits(request):
                self._check_hope(request)

    def _take_back(self, request: Request) -> None:
        self._leave_instance(request)
        self._give_out(request, self._desk_of(request))

    def instance_is_late(self, request: Request, now: float) -> None:
        """It has not answered in its time. If there is someone else, the request goes there."""
        self._dispatcher.now = now
        instance = request.instance
        if request.state is not RequestState.DELIVERED or instance is None:
            return
        desk = self._desk_of(request)
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

    def victim(self, stored: Stored) -> None:
        """Storage gave up an entry that belongs to a request."""
        request = stored.request
        assert request is not None
        request.stored = None
        self._choosy.pop(request, None)
        self._end(request, RequestEvent.DELETE, "the storage is full, and this was deleted to make room")

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
        self._ended(request, instance.session.client_id if instance is not None else None)
        if not tell or not self._tell_end(request):
            self._let_go(request)
        if instance is not None:
            self.serve_next(instance)

    def _tell_service(self, request: Request, instance: Instance) -> None:
        """It need not answer any more."""
        link = instance.session.link
        frame = link.cancel_frame(request) if link is not None else None
        if link is not None and frame is not None:
            self._dispatcher.push(link, frame)


def in_hand_last(request: Request) -> bool:
    """Whoever waits first, so that nobody gets what is over the next moment."""
    return request.instance is not None
