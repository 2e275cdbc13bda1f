"""Which requests are under way, and what their requesters are told.

A requester that is away, or whose link is full, is told when it is back: answers wait in the storage they
share with messages and requests, other ends in a place of their own.
"""

from typing import TYPE_CHECKING, Final

from polybus.broker import events
from polybus.broker.events import Event, emit
from polybus.broker.lifecycle import ENDS, RequestEvent, RequestState, advance
from polybus.broker.limits import Limits
from polybus.broker.links import Link
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Delivery
from polybus.broker.request import Request
from polybus.broker.sessions import Session
from polybus.broker.storage import Kind, Storage, Stored

if TYPE_CHECKING:
    from polybus.broker.dispatch import Dispatcher
    from polybus.broker.registry import Registry
    from polybus.broker.stats import Stats
    from polybus.broker.timers import Timers

END_EVENTS: Final[dict[RequestState, Event]] = {
    RequestState.ANSWER_DELIVERED: events.ANSWER_DELIVERED,
    RequestState.ANSWER_NOT_DELIVERED: events.ANSWER_NOT_DELIVERED,
    RequestState.NOT_DELIVERED: events.REQUEST_NOT_DELIVERED,
    RequestState.CANCELED: events.REQUEST_CANCELED,
    RequestState.TIMED_OUT: events.REQUEST_TIMED_OUT,
    RequestState.ERROR: events.REQUEST_FAILED,
    RequestState.DELETED: events.REQUEST_DISCARDED,
}


class Outcomes:
    """The single owner of the requests under way, and of the ends that wait."""

    def __init__(
        self,
        limits: Limits,
        stats: "Stats",
        timers: "Timers",
        dispatcher: "Dispatcher",
        registry: "Registry",
        storage: Storage,
    ) -> None:
        self.limits = limits
        self.under_way: dict[str, dict[int, Request]] = {}
        """By `Session.owner` and packet id. A request leaves when its requester was told, or cannot be."""
        self.count = 0
        self.size_bytes = 0
        self.ends = Storage(limits.stored_messages, limits.stored_bytes, self._end_is_lost)
        """Ends other than answers that wait for their requesters. They have room of their own: the news
        that a request was deleted to make room must not cost another request."""
        self.unread = Storage(limits.requests, limits.memory_bytes, self._unread_is_lost)
        """What waits only until the link of a requester who is there has room again."""
        self._correlated: dict[tuple[str, str, bytes | None], Request] = {}
        """The latest request of an owner, to a topic, with these Correlation Data."""
        self._stats = stats
        self._timers = timers
        self._dispatcher = dispatcher
        self._ledger = dispatcher.ledger
        self._registry = registry
        self._storage = storage

    def set_limits(self, limits: Limits) -> None:
        self.limits = limits
        self.ends.set_limits(limits.stored_messages, limits.stored_bytes)
        self.unread.set_limits(limits.requests, limits.memory_bytes)

    def _note(self, request: Request) -> None:
        """What may wait outlives the broker, too."""
        if request.may_wait and self._ledger.is_durable:
            self._ledger.request_changed(request)

    def _ended(self, request: Request, service: str | None = None) -> None:
        """It has its end, in the hands of `service`; the requester may still have to hear of it."""
        if request.handle:
            self._timers.cancel(request.handle)
            request.handle = 0
        self._stats.count_end(request.state)
        event = END_EVENTS[request.state]
        if events.are_wanted(event):
            self._emit(event, request, request.client_id, service)

    def _tell_end(self, request: Request) -> bool:
        """False: the requester was told, or will not be."""
        if self._send_outcome(request):
            return False
        self._drop_answer(request)
        link = self._requester_link(request)
        if link is None and not request.may_wait:
            return False
        return self._keep_end(request, self.unread if link is not None and link.blocked else self.ends)

    def _requester_link(self, request: Request) -> Link | None:
        session = self._registry.sessions.get(request.client_id)
        if session is None or not (session.owner == request.owner or session.is_neighbor):
            return None
        return session.link

    def _owners(self, session: Session) -> list[str]:
        """Whose requests come from this session: its own, or those of all the clients behind a neighbour."""
        if not session.is_neighbor:
            return [session.owner]
        return [owner for owner in self.under_way if owner.startswith(session.owner)]

    def _send_outcome(self, request: Request) -> bool:
        link = self._requester_link(request)
        outcome = link.outcome(request, self._dispatcher.now) if link is not None and not link.blocked else None
        if link is None or outcome is None:
            return False
        if isinstance(outcome, Delivery):
            assert link.session is not None
            self._dispatcher.send(link.session, outcome)
        else:
            self._dispatcher.push(link, outcome)
            link.messages_out += 1
        return True

    def _keep_end(self, request: Request, place: Storage, until: float | None = None) -> bool:
        if not self._keep(request, place):
            return False
        stored = request.stored
        assert stored is not None
        stored.on_expiry = self._forget_end
        stored.until = self._dispatcher.now + self.limits.request_ends_kept_s if until is None else until
        stored.handle = self._timers.schedule(stored.until, stored)
        self._note(request)
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

    def _end_is_lost(self, stored: Stored) -> None:
        """So many requesters are away that the oldest end is given up."""
        request = stored.request
        assert request is not None
        self._stats.stored_discarded += 1
        self._emit(events.END_LOST, request, request.client_id)
        self._cancel_timer(stored)
        request.stored = None
        self._let_go(request)

    def _unread_is_lost(self, stored: Stored) -> None:
        """A requester that does not read has more answers than the memory budget allows."""
        assert stored.request is not None
        if stored.request.state in ENDS:
            self._end_is_lost(stored)
        else:
            self.victim(stored)

    def victim(self, stored: Stored) -> None:
        """A request, or its answer, was deleted to make room."""
        raise NotImplementedError

    def tell_waiting(self, session: Session) -> None:
        """What waits for this requester, as far as it can be told now."""
        owners = self._owners(session)
        places = (self.unread, self._storage, self.ends)
        waiting = [s for place in places if place.count for owner in owners for s in place.outcomes_of(owner)]
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
        request.is_under_way = False
        self._note(request)
        mine = self.under_way[request.owner]
        del mine[request.packet_id]
        if not mine:
            del self.under_way[request.owner]
        if request.message.properties is not NO_MESSAGE_PROPERTIES:
            key = correlation_of(request)
            if self._correlated.get(key) is request:
                del self._correlated[key]
        self.count -= 1
        self.size_bytes -= request.message.size_bytes()
        self._drop_answer(request)

    def _drop_answer(self, request: Request) -> None:
        """It was delivered, or will not be."""
        self.size_bytes -= request.answer_bytes()
        request.answer = None
        request.answer_properties = NO_MESSAGE_PROPERTIES

    def _emit(self, event: Event, request: Request, client_id: str, service: str | None = None) -> None:
        emit(
            event,
            client_id=client_id,
            topic=request.topic,
            request=request.serial,
            requester=request.client_id,
            packet_id=request.packet_id,
            service=service,
            duration_s=round(self._dispatcher.now - request.created_at, 6),
            # What a service says of its failure is for the requester alone.
            reason=None if request.state is RequestState.ERROR else request.reason or None,
        )


def _urgency(stored: Stored) -> int:
    return not stored.message.priority


def correlation_of(request: Request) -> tuple[str, str, bytes | None]:
    return request.owner, request.topic, request.message.properties.correlation_data
