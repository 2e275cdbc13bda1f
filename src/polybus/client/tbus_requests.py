"""Our requests from `add` to their last sign of life (TB-07). They outlive connections.

A PacketId is free again when nothing can come for it any more. A request that was canceled keeps its id
until REQACK 6 (it took effect) or 14 (there was nothing left to cancel, an answer was on its way) says so;
both also come after a cancel that is repeated on a new connection.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from polybus.client.deadlines import Deadlines
from polybus.client.errors import (
    NotDelivered,
    RequestCanceled,
    RequestDeleted,
    RequestFailed,
    RequestTimeout,
    ServiceError,
)
from polybus.client.events import Completed, Failed, Unclaimed
from polybus.client.message import Message
from polybus.client.packet_ids import PacketIds
from polybus.wire.tbus.packets import ReqAck, RequestState

GRACE_S: Final = 0.5
"""So much longer than its timeout we wait for the broker to say that it timed out."""

ENDS: Final[dict[RequestState, tuple[type[RequestFailed], str]]] = {
    RequestState.CANCELED: (RequestCanceled, "it was canceled"),
    RequestState.DELETED: (RequestDeleted, "deleted from the broker's storage, which was full"),
    RequestState.TIMED_OUT: (RequestTimeout, "no answer in time"),
    RequestState.NOT_DELIVERED: (NotDelivered, "no service took it"),
    RequestState.ERROR: (ServiceError, "the service failed"),
}
"""How each end is told, and what is said if the broker gives no reason."""


class Pending(msgspec.Struct):
    """`strikes` counts connections that ended when the broker may have been reading this request."""

    token: int
    packet_id: int
    message: Message
    timeout_s: float
    deadline: float
    may_wait: bool
    was_sent: bool = False
    is_canceled: bool = False
    strikes: int = 0


class Requests:
    def __init__(self, last_id: int) -> None:
        self._packet_ids = PacketIds(last_id)
        self._by_token: dict[int, Pending] = {}
        self._by_id: dict[int, Pending] = {}
        self._deadlines = Deadlines()
        self.next_deadline = self._deadlines.next

    @property
    def is_full(self) -> bool:
        return self._packet_ids.is_exhausted

    def __iter__(self) -> Iterator[Pending]:
        """In the order in which they were made."""
        return iter(list(self._by_token.values()))

    def get(self, token: int) -> Pending | None:
        return self._by_token.get(token)

    def add(self, token: int, message: Message, timeout_s: float, may_wait: bool, now: float) -> Pending:
        packet_id = self._packet_ids.take()
        deadline = now + timeout_s + GRACE_S
        pending = Pending(token, packet_id, message, timeout_s, deadline, may_wait)
        self._by_token[token] = self._by_id[packet_id] = pending
        self._deadlines.set(token, deadline)
        return pending

    def cancel(self, pending: Pending) -> bool:
        """Nobody waits for it any more. True if the broker has to be told."""
        self._deadlines.settle(pending.token)
        pending.is_canceled = True
        if not pending.was_sent:
            self.remove(pending)
        return pending.was_sent

    def due(self, now: float) -> list[Pending]:
        """Those whose time is over although the broker said nothing."""
        return [self._by_token[token] for token in self._deadlines.due(now)]

    def remove(self, pending: Pending) -> None:
        del self._by_token[pending.token]
        del self._by_id[pending.packet_id]
        self._packet_ids.release(pending.packet_id)
        self._deadlines.settle(pending.token)

    def answered(self, packet_id: int, payload: bytes, priority: bool) -> Completed | Unclaimed | None:
        pending = self._by_id.get(packet_id)
        if pending is None:
            return Unclaimed(packet_id, Message("", payload, priority=priority))
        if pending.is_canceled:
            return None  # REQACK 14 follows
        self.remove(pending)
        asked = pending.message
        return Completed(pending.token, Message(asked.topic, payload, priority=priority))

    def ended(self, packet: ReqAck) -> Failed | Unclaimed | None:
        state = packet.state
        pending = self._by_id.get(packet.packet_id)
        if pending is not None and pending.is_canceled:
            if state in (RequestState.CANCELED, RequestState.UNKNOWN):
                self.remove(pending)
            return None
        if state not in ENDS:
            return None
        kind, text = ENDS[state]
        reason = packet.reason_string or text
        if pending is None:
            return Unclaimed(packet.packet_id, kind("", reason))
        self.remove(pending)
        return Failed(pending.token, kind(pending.message.topic, reason))
