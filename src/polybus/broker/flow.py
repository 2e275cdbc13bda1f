"""What is on its way to sessions: queues, windows, acknowledgements, and the memory all that takes.

A session has a window of deliveries that may be unacknowledged, in messages and in bytes; what does not
fit waits in its queue and is pumped when the window, the link or the budget has room. Nothing here
waits: whatever may send is sent, the rest goes on when something happens.
"""

import logging
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from polybus.broker.holdings import Holdings
from polybus.broker.ledger import Ledger
from polybus.broker.limits import Limits
from polybus.broker.links import Link
from polybus.broker.message import OVERHEAD_BYTES, Delivery, DeliveryRun, Message, Run
from polybus.broker.sessions import MAX_PACKET_ID, NEIGHBOR_MARK, Queue, Session
from polybus.broker.stamps import Stamps
from polybus.broker.stats import Stats

log = logging.getLogger("polybus.broker")

STEP_BYTES: Final = 256 * 1024
"""What a session is sent in one go, so that its transport can say when it is full."""
PIECE_COST: Final = 56
"""What a piece in an outbox costs beside its bytes: an acknowledgement has four, and 40 around them."""


class Flow:
    """The single owner of queues, in-flight windows and the list of dirty links."""

    def __init__(
        self,
        limits: Limits,
        stats: Stats,
        ledger: Ledger | None = None,
        stamps: Stamps | None = None,
        *,
        drop_oldest: bool,
        queue_qos0: bool,
    ) -> None:
        self.limits = limits
        self.stats = stats
        self.ledger = ledger or Ledger()
        self.stamps = stamps or Stamps()
        self.drop_oldest = drop_oldest
        self.queue_qos0 = queue_qos0
        self.now = 0.0
        self.dirty: list[Link] = []
        self.awaiting: list[Link] = []
        """Links with something that waits for the commit."""
        self.unnoted: dict[Session, int] = {}
        """Neighbours, and how much they acknowledged since a commit was last asked for."""
        self.queued_sessions: set[Session] = set()
        self.unfinished: dict[Session, None] = {}
        """Sessions that have more to send, in the order in which they get their turn."""
        self.holdings = Holdings()
        """What is queued and in flight."""
        self.backlog_bytes = 0
        """Bytes in the outboxes of blocked links."""
        self.over_budget = False
        self.blocked_links: set[Link] = set()
        self.on_ready: Callable[[Session], None] = lambda session: None
        """Told when a session's link takes bytes again."""
        self.inflight_cap = 0
        """What a session may have unacknowledged before it has to wait."""
        self.set_budget_spent(False)

    # -- waiting ----------------------------------------------------------------------------

    def _enqueue(self, session: Session, item: Delivery | Run) -> None:
        if session.link is None and not session.expiry_s:
            return
        queue = session.queue
        if queue is None:
            queue = session.queue = Queue()
            self.queued_sessions.add(session)
        while not self._fits(queue, item):
            makes_room = self.drop_oldest or session.is_neighbor or (item.is_priority and queue.regular)
            if not makes_room or not queue.messages:
                self._count_queue_drop(session, item.count)
                if item.row:
                    self.ledger.gone_item(item)
                if not queue.messages:
                    self._forget_queue(session)
                return
            self._drop_oldest(session, queue)
            self._count_queue_drop(session, 1)
        if session.kept and item.qos and not item.row:
            item = self._kept(session, item)
        queue.push(item)
        self.holdings.take(item.body)
        if session.link is not None and queue.messages == item.count:
            self.pump(session)  # the first to wait: it may just not go in one piece

    def _kept(self, session: Session, item: Delivery | Run) -> Delivery | Run:
        """The same for this session alone, as the durable store has it."""
        if isinstance(item, Delivery):
            return self.ledger.add(session.kept, item)
        return item.in_row(self.ledger.add_run(session.kept, item))

    def _fits(self, queue: Queue | None, item: Delivery | Run) -> bool:
        messages, size_bytes = (queue.messages, queue.size_bytes) if queue is not None else (0, 0)
        return (
            messages + item.count <= self.limits.queued_messages_per_session
            and size_bytes + item.size_bytes() <= self.limits.queued_bytes_per_session
        )

    def _drop_oldest(self, session: Session, queue: Queue) -> None:
        """Give up one message."""
        oldest = queue.oldest()
        if isinstance(oldest, Run):
            self._break_up(session, queue, oldest)
        item = queue.drop_oldest()
        if item.row:
            self.ledger.gone_item(item)
        self.holdings.give(item.body)

    def _count_queue_drop(self, session: Session, count: int) -> None:
        if not session.dropped:
            fields = {"client_id": session.client_id.removeprefix(NEIGHBOR_MARK)}
            log.warning("queue is full, messages are dropped", extra={"fields": fields})
        session.dropped += count
        self.stats.dropped_queue_full += count

    def pump(self, session: Session) -> None:
        """Send what waits, as far as the link and the window allow."""
        link = session.link
        if link is None:
            return
        if session.resend is not None:
            self._pump_resend(session, link, session.resend)
        stop_at = session.inflight_bytes + STEP_BYTES
        while session.queue is not None and self._may_send(session, link):
            if session.inflight_bytes > stop_at:
                self.unfinished[session] = None  # the transport first
                return
            queue = session.queue
            item = queue.first()
            if isinstance(item, Run):
                self._pump_run(session, link, queue, item)
                continue
            self._pop_queue(session, queue)
            if not self._has_expired(item):
                self._transmit(session, link, item)
            elif item.row:
                self.ledger.gone_item(item)

    def _may_send(self, session: Session, link: Link) -> bool:
        return (
            not link.blocked
            and session.outstanding < session.window
            and session.inflight_bytes < self.inflight_cap
        )

    def _pump_run(self, session: Session, link: Link, queue: Queue, run: Run) -> None:
        """Send the run in front, or divide it into what there is room for."""
        if self._send_run(session, run):
            self._pop_queue(session, queue)
            return
        room = session.window - session.outstanding
        parts = None
        if link.encoding is run.encoding and room < run.count:
            parts = queue.cut_front(run, room)
        if parts is None:
            self._break_up(session, queue, run)
            return
        for part in parts:
            self.holdings.take(part)
        self.holdings.give(run.body)
        if run.row:
            self.ledger.divide(session.kept, run, room, run.count - room)

    def _break_up(self, session: Session, queue: Queue, run: Run) -> None:
        """The run in front goes on as single messages."""
        if run.row:
            self.ledger.divide(session.kept, run, *(1 for _ in range(run.count)))
        for message in queue.break_up(run):
            self.holdings.take(message)
        self.holdings.give(run.body)

    def _pop_queue(self, session: Session, queue: Queue) -> None:
        self.holdings.give(queue.pop().body)
        if not queue.messages:
            self._forget_queue(session)

    def _transmit(self, session: Session, link: Link, delivery: Delivery) -> None:
        parts = link.encoding.frame(delivery, self.now)
        if parts is None:
            self.stats.dropped_too_large += 1
            if delivery.row:
                self.ledger.gone_item(delivery)
            return
        if delivery.qos == 0:
            self.push(link, parts[0] + parts[1])
        else:
            packet_id = session.allocate_id()
            if session.kept:
                if delivery.row:
                    self.ledger.sent(delivery.row, packet_id)
                else:
                    delivery = self.ledger.add(session.kept, delivery, packet_id)
            session.inflight[packet_id] = delivery
            session.outstanding += 1
            session.inflight_bytes += delivery.size_bytes()
            self.holdings.take(delivery.message)
            self._push_tracked(session, link, delivery, parts[0] + packet_id.to_bytes(2) + parts[1])
        link.messages_out += 1

    def _push_tracked(self, session: Session, link: Link, delivery: Delivery | None, frame: bytes) -> None:
        """Exactly once: a QoS 2 packet whose fate a crash would make us forget must not be on its way. To a
        neighbour it is QoS 1 (TB-15), but its publisher would send it again, and it would get another stamp."""
        if session.kept and (
            delivery is None or delivery.qos == 2 or (session.is_neighbor and delivery.message.qos == 2)
        ):
            self.hold(link, frame)
        else:
            self.push(link, frame)

    def hold(self, link: Link, frame: bytes) -> None:
        """Send this when everything that came before it is safe."""
        if not link.held:
            self.awaiting.append(link)
        link.held.append(frame)
        link.held_count += 1

    def _pump_resend(self, session: Session, link: Link, resend: deque[int]) -> None:
        while resend and not link.blocked and session.outstanding < session.window:
            packet_id = resend.popleft()
            if packet_id not in session.inflight:
                continue
            sent = session.inflight[packet_id]
            delivery = sent.one(packet_id) if sent is not None else None
            frame = link.encode_again(packet_id, delivery, self.now)
            if frame is None:  # the client takes only smaller packets now
                if sent is not None:
                    self.free(session, sent)
                del session.inflight[packet_id]
                if session.kept:
                    self.note_settled(session, packet_id, sent)
                self.stats.dropped_too_large += 1
                continue
            session.outstanding += 1
            self._push_tracked(session, link, delivery, frame)
        if not resend:
            session.resend = None

    def push(self, link: Link, frame: bytes) -> None:
        """Put bytes into an outbox outside the hot loops."""
        if link.blocked:
            self.push_all(link, [frame])
            return
        outbox = link.outbox
        if not outbox:
            self.dirty.append(link)
        outbox.append(frame)

    def push_all(self, link: Link, frames: list[bytes]) -> None:
        if link.blocked:
            size = sum(map(len, frames)) + PIECE_COST * len(frames)
            link.backlog_bytes += size
            self.backlog_bytes += size
        elif not link.outbox:
            self.dirty.append(link)
        link.outbox += frames

    def _send_run(self, session: Session, run: Run) -> bool:
        """Send a run under consecutive packet ids, written into a copy of its bytes all at once.

        False: not now, or not in one piece.
        """
        link = session.link
        count = run.count
        if (
            link is None
            or link.encoding is not run.encoding
            or link.blocked
            or session.outstanding + count > session.window
            or session.inflight_bytes >= self.inflight_cap
            or session.resend is not None
        ):
            return False
        first_id = session.next_id
        if first_id + count > MAX_PACKET_ID:
            first_id = 1
        inflight = session.inflight
        sent = DeliveryRun(run, first_id, run.qos, left=count)
        if count == 1:
            if first_id in inflight:
                return False
            inflight[first_id] = sent
        else:
            ids = range(first_id, first_id + count)
            if not inflight.keys().isdisjoint(ids):
                return False
            inflight.update(dict.fromkeys(ids, sent))
        if session.kept:
            if run.row:
                sent.row = run.row
                self.ledger.sent(run.row, first_id)
            else:
                sent.row = self.ledger.add_run(session.kept, run, first_id)
        session.inflight_bytes += sent.size_bytes() * count
        self.holdings.take(run.body, count)
        session.next_id = first_id + count
        session.outstanding += count
        if not link.outbox:
            self.dirty.append(link)
        link.outbox.append(_with_ids(run, first_id))
        link.messages_out += count
        return True

    def _has_expired(self, delivery: Delivery) -> bool:
        expires_at = delivery.message.expires_at
        if expires_at is None or expires_at > self.now:
            return False
        self.stats.dropped_expired += 1
        return True

    # -- messages that wait here, and may be wanted at a neighbour (TB-15) ---------------------------

    def has_room(self, session: Session) -> bool:
        """It can be offered something now."""
        link = session.link
        return link is not None and session.resend is None and self._may_send(session, link)

    def offer(self, session: Session, delivery: Delivery) -> int:
        """Send it to be given to clients there now, or not at all; its packet id, or 0: it is too large.

        It is sent once: what becomes of it is with whoever keeps it."""
        link = session.link
        assert link is not None
        parts = link.offer_frame(delivery, self.now)
        if parts is None:
            return 0
        packet_id = session.allocate_id()
        session.inflight[packet_id] = delivery
        session.outstanding += 1
        session.inflight_bytes += delivery.size_bytes()
        self.holdings.take(delivery.message)
        self.push(link, parts[0] + packet_id.to_bytes(2) + parts[1])
        link.messages_out += 1
        self.stats.crossed_out += 1
        return packet_id

    def withdraw(self, session: Session, packet_id: int) -> None:
        """The link is gone over which it was offered."""
        delivery = session.inflight.pop(packet_id)
        if delivery is not None:
            self.free(session, delivery)

    # -- acknowledgements ---------------------------------------------------------------------

    def acknowledge(self, session: Session, packet_id: int) -> bool:
        """PUBACK: the client has a QoS 1 message. False: it was not sent one under this id."""
        delivery = session.inflight.get(packet_id)
        if delivery is None or delivery.qos != 1:
            return False
        self._settle(session, packet_id)
        return True

    def acknowledge_all(self, session: Session, packet_ids: tuple[int, ...]) -> None:
        """Many PUBACKs at once; those for nothing are passed over."""
        if session.resend is not None:
            for packet_id in packet_ids:
                self.acknowledge(session, packet_id)
            return
        inflight = session.inflight
        before = len(inflight)
        last: DeliveryRun | None = None
        count = freed = freed_alone = 0
        for packet_id in packet_ids:
            sent = inflight.get(packet_id)
            if sent is None or sent.qos != 1:
                continue
            del inflight[packet_id]
            if sent is last:
                count += 1
            elif isinstance(sent, DeliveryRun):
                if last is not None:
                    self._free_run(session, last, count)
                last = sent
                count = 1
            else:  # as `free` does, in one go for all of them
                message = sent.message
                size = message.size_bytes()
                message.holders -= 1
                freed += size
                freed_alone += OVERHEAD_BYTES if message.holders else size
                if sent.row:
                    self.ledger.gone(sent.row, sent.piece)
        if last is not None:
            self._free_run(session, last, count)
        session.inflight_bytes -= freed
        self.holdings.size_bytes -= freed_alone
        self._settled(session, before - len(inflight))

    def _free_run(self, session: Session, sent: DeliveryRun, count: int) -> None:
        self.free(session, sent, count)
        if session.kept:
            self.note_settled(session, 0, sent)

    def note_settled(self, session: Session, packet_id: int, sent: Delivery | DeliveryRun | None) -> None:
        """This exchange with a kept session is over, and freed: with the last of its messages a row is gone."""
        if isinstance(sent, DeliveryRun):
            if not sent.left:
                self.ledger.gone(sent.row, sent.run.piece)
        elif sent is not None:
            if sent.row:  # else it was an offer
                self.ledger.gone(sent.row, sent.piece)
        elif session.releases is not None:
            self.ledger.gone(session.releases.pop(packet_id), None)

    def _note_received(self, session: Session, packet_id: int, sent: Delivery | DeliveryRun) -> None:
        assert isinstance(sent, Delivery), "runs to kept sessions are of QoS 1"
        if session.releases is None:
            session.releases = {}
        session.releases[packet_id] = sent.row
        self.ledger.released(sent.row, sent.piece)

    def receive_all(self, session: Session, packet_ids: tuple[int, ...]) -> bool:
        """Many PUBRECs at once; False: not each of them is for a message, nothing was done."""
        inflight = session.inflight
        for packet_id in packet_ids:
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.qos != 2:
                return False
        for packet_id in packet_ids:
            delivery = inflight[packet_id]
            if delivery is not None:  # an id may be there twice
                self.free(session, delivery)
                inflight[packet_id] = None
                if session.kept:
                    self._note_received(session, packet_id, delivery)
        return True

    def complete_all(self, session: Session, packet_ids: tuple[int, ...]) -> None:
        """Many PUBCOMPs at once; those for nothing are passed over."""
        if session.resend is not None:
            for packet_id in packet_ids:
                self.complete(session, packet_id)
            return
        inflight = session.inflight
        before = len(inflight)
        for packet_id in packet_ids:
            if inflight.get(packet_id, _MISSING) is None:
                del inflight[packet_id]
                if session.kept:
                    self.note_settled(session, packet_id, None)
        self._settled(session, before - len(inflight))

    def _settled(self, session: Session, count: int) -> None:
        session.outstanding -= count
        if session.queue is not None:
            self.pump(session)
        if session.replays is not None:
            self.unfinished[session] = None

    def receive(self, session: Session, packet_id: int) -> bool:
        """PUBREC: the client has received a QoS 2 message; its release is what is left."""
        if packet_id not in session.inflight:
            return False
        delivery = session.inflight[packet_id]
        if delivery is not None:
            if delivery.qos != 2:
                return False
            self.free(session, delivery)
            session.inflight[packet_id] = None
            if session.kept:
                self._note_received(session, packet_id, delivery)
        return True

    def complete(self, session: Session, packet_id: int) -> bool:
        """PUBCOMP: the client has released a QoS 2 message."""
        if session.inflight.get(packet_id, _MISSING) is not None:
            return False
        self._settle(session, packet_id)
        return True

    def refuse(self, session: Session, packet_id: int) -> bool:
        """PUBREC with an error: the client will not have it, and the exchange is over."""
        delivery = session.inflight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return False
        self._settle(session, packet_id)
        return True

    def free(self, session: Session, sent: Delivery | DeliveryRun, count: int = 1) -> None:
        """So many messages of this are in flight no more."""
        session.inflight_bytes -= count * sent.size_bytes()
        if isinstance(sent, DeliveryRun):
            sent.left -= count
            if sent.left:
                self.holdings.shrink(count)
                return
        self.holdings.give(sent.body, count)

    def _settle(self, session: Session, packet_id: int) -> None:
        delivery = session.inflight.pop(packet_id)
        if delivery is not None:
            self.free(session, delivery)
        if session.kept:
            self.note_settled(session, packet_id, delivery)
        if session.resend is not None and packet_id in session.resend:
            session.resend.remove(packet_id)  # acknowledged from the connection before
        else:
            session.outstanding -= 1
        if session.is_neighbor and delivery is not None and delivery.row:
            self._await_note(session)
        if session.queue is not None or session.resend is not None:
            self.pump(session)
        if session.replays is not None:
            self.unfinished[session] = None

    def _await_note(self, session: Session) -> None:
        """Until the commit, a crash would make us send this again: it stays in the window, so that the
        neighbour need not remember more than that (`taken`)."""
        session.unnoted += 1
        session.outstanding += 1
        self.unnoted[session] = self.unnoted.get(session, 0) + 1

    def noted(self, unnoted: dict[Session, int]) -> None:
        """The commit is done after which these neighbours are not sent so many acknowledged messages again."""
        for session, count in unnoted.items():
            session.unnoted -= count
            session.outstanding -= count
            if session.link is not None:
                self.unfinished[session] = None

    # -- the memory budget ------------------------------------------------------------------------

    def relieve(self, excess_bytes: int) -> None:
        """Free this much. Victims: what waits unsent at QoS 0 for the slowest links, then the oldest
        regular messages of the longest queues, then priority ones in the same order (TB-13)."""
        slowest_first = sorted(self.blocked_links, key=lambda link: link.backlog_bytes, reverse=True)
        for spare_priority in (True, False):
            for link in slowest_first:
                if excess_bytes <= 0:
                    return
                excess_bytes -= self._drop_unsent(link) if spare_priority else self._drop_urgent(link)
            excess_bytes -= self._relieve_queues(excess_bytes, spare_priority=spare_priority)

    def _relieve_queues(self, excess_bytes: int, *, spare_priority: bool) -> int:
        """Always from the queue that is the longest by then. What many wait for is free when all have given it
        up: were one queue emptied after the other, most sessions would lose everything for nothing."""
        before = self.holdings.size_bytes
        longest_first = [
            (-session.queue.size_bytes, number, session)
            for number, session in enumerate(self.queued_sessions)
            if session.queue is not None
        ]
        heapify(longest_first)
        while longest_first and before - self.holdings.size_bytes < excess_bytes:
            _, number, session = heappop(longest_first)
            queue = session.queue
            assert queue is not None
            if queue.regular or not spare_priority:
                self._give_up(session, queue)
                if queue.messages:
                    heappush(longest_first, (-queue.size_bytes, number, session))
        return before - self.holdings.size_bytes

    def set_budget_spent(self, is_spent: bool) -> None:
        """While it is, whoever has much under way gets no more; whoever has little is not to blame."""
        self.over_budget = is_spent
        share = min(self.limits.inflight_bytes_per_session, self.limits.memory_bytes // 8)
        self.inflight_cap = min(share, STEP_BYTES) if is_spent else share

    def recover(self) -> None:
        """The budget is no longer spent: whoever waited only for that goes on."""
        self.set_budget_spent(False)
        self.unfinished.update(dict.fromkeys(self.queued_sessions))

    def _drop_unsent(self, link: Link, excess_bytes: float = float("inf")) -> int:
        """Give up regular messages, the oldest first, until so much is free; returns how much is."""
        unsent = link.unsent
        if unsent is None:
            return 0
        size = dropped = 0
        for frame, _ in unsent:
            if size >= excess_bytes:
                break
            size += len(frame) + PIECE_COST
            dropped += 1
        self._count_dropped(link, unsent[:dropped], size)
        link.unsent = unsent[dropped:] or None
        return size

    def _drop_urgent(self, link: Link) -> int:
        urgent, link.urgent = link.urgent or [], None
        size = sum(len(frame) + PIECE_COST for frame, _ in urgent)
        self._count_dropped(link, urgent, size)
        return size

    def _count_dropped(self, link: Link, pieces: list[tuple[bytes, int]], size: int) -> None:
        for _, count in pieces:
            link.messages_dropped += count
            self.stats.dropped_memory += count
        link.backlog_bytes -= size
        self.backlog_bytes -= size

    def _give_up(self, session: Session, queue: Queue) -> None:
        item = queue.drop_oldest()
        if item.row:
            self.ledger.gone_item(item)
        self.holdings.give(item.body)
        if not queue.messages:
            self._forget_queue(session)
        session.dropped += item.count
        self.stats.dropped_memory += item.count

    def _forget_queue(self, session: Session) -> None:
        session.queue = None
        self.queued_sessions.discard(session)


_HIGH_BYTES: Final = bytes(n >> 8 for n in range(MAX_PACKET_ID + 1))
_LOW_BYTES: Final = bytes(n & 0xFF for n in range(MAX_PACKET_ID + 1))
_MISSING: Final = Delivery(Message("", b""), 0, False)


def _with_ids(run: Run, first_id: int) -> bytes:
    """The bytes of a run with consecutive packet ids."""
    if run.count == 1:
        at = run.ids_at[0]
        return run.wire[:at] + first_id.to_bytes(2) + run.wire[at + 2 :]
    wire = bytearray(run.wire)
    high = _HIGH_BYTES[first_id : first_id + run.count]
    low = _LOW_BYTES[first_id : first_id + run.count]
    ids_at = run.ids_at
    if isinstance(ids_at, range):
        wire[ids_at.start :: ids_at.step] = high
        wire[ids_at.start + 1 :: ids_at.step] = low
    else:
        for at, high_byte, low_byte in zip(ids_at, high, low, strict=True):
            wire[at] = high_byte
            wire[at + 1] = low_byte
    return bytes(wire)
