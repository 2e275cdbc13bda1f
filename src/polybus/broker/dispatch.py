"""From a message to the outboxes: who gets it now, who later, and who never.

The hot loops are here. A run goes to each plain subscriber as one piece of bytes. A tracked
delivery (QoS 1 and 2) is encoded once per cohort and encoding; only the packet id differs from
subscriber to subscriber, written as 16 bits, big endian, by every protocol on this bus.

Nothing here waits. A link that is blocked gets QoS 0 into its outbox up to a limit and loses the
rest, counted; QoS 1 and 2 wait in the session's queue, up to its limits and the memory budget.
"""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from polybus.broker.limits import Limits
from polybus.broker.links import Encoding, Link
from polybus.broker.message import Delivery, DeliveryRun, Message, Run
from polybus.broker.sessions import MAX_PACKET_ID, Queue, Session
from polybus.broker.shared import SharedGroup
from polybus.broker.stats import Stats
from polybus.broker.subscriptions import Cohort, Plan

log = logging.getLogger("polybus.broker")

REPLAY_STEPS: Final = 500
"""Retained messages looked at in one tick, for all sessions together."""
SESSIONS_A_STEP: Final = 40
STEP_BYTES: Final = 256 * 1024
"""What a session is sent in one go, so that its transport can say when it is full."""

PIECE_COST: Final = 56
"""What a piece in an outbox costs beside its bytes: an acknowledgement has four, and 40 around them."""


class Dispatcher:
    """The single owner of queues, in-flight windows and the list of dirty links."""

    def __init__(self, limits: Limits, stats: Stats, *, drop_oldest: bool, queue_qos0: bool) -> None:
        self.limits = limits
        self.stats = stats
        self.drop_oldest = drop_oldest
        self.queue_qos0 = queue_qos0
        self.now = 0.0
        self.dirty: list[Link] = []
        self.queued_sessions: set[Session] = set()
        self.unfinished: dict[Session, None] = {}
        """Sessions that have more to send, in the order in which they get their turn."""
        self.queued_bytes = 0
        self.backlog_bytes = 0
        """Bytes in the outboxes of blocked links."""
        self.inflight_bytes = 0
        self.over_budget = False
        self.blocked_links: set[Link] = set()
        self.inflight_cap = 0
        """What a session may have unacknowledged before it has to wait."""
        self.set_budget_spent(False)

    # -- publishing -------------------------------------------------------------------------

    def deliver_run(self, plan: Plan, run: Run) -> None:
        wire = run.wire
        encoding = run.encoding
        dirty = self.dirty
        other_frames: dict[Encoding, tuple[bytes, int]] = {}
        for session in plan.plain:
            link = session.link
            if link is None:
                if self.queue_qos0 and session.expiry_s:
                    for message in run.messages():
                        self._enqueue(session, Delivery(message, 0, False))
                continue
            if link.encoding is encoding:
                frame = wire
                count = run.count
            else:
                frame, count = other_frames.get(link.encoding) or self._encode_run(link, run, other_frames)
                if not count:
                    continue
            if link.blocked:
                self._push_blocked(link, frame, count)
                continue
            outbox = link.outbox
            if not outbox:
                dirty.append(link)
            outbox.append(frame)
            link.messages_out += count
        if not plan.is_plain:
            for message in run.messages():
                for cohort in plan.rest:
                    self._deliver_to(cohort, message)
                self._deliver_choosy(plan, message)

    def deliver_tracked_run(self, plan: Plan, run: Run) -> None:
        """A run of QoS 1 or QoS 2 messages."""
        for cohort in plan.cohorts:
            if cohort.qos < run.qos or cohort.identifiers:
                for message in run.messages():
                    self._deliver_to(cohort, message)
                continue
            for session in cohort.sessions:
                if session.queue is None and self._send_run(session, run):
                    continue
                link = session.link
                if self._fits(session.queue, run) and (link is None or link.encoding is run.encoding):
                    self._enqueue(session, run)
                    continue
                for message in run.messages():
                    self._send_tracked([session], Delivery(message, run.qos, False))
        if not plan.is_plain:
            for message in run.messages():
                self._deliver_choosy(plan, message)

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
        sent = DeliveryRun(run, first_id, run.qos)
        if count == 1:
            if first_id in inflight:
                return False
            inflight[first_id] = sent
        else:
            ids = range(first_id, first_id + count)
            if not inflight.keys().isdisjoint(ids):
                return False
            inflight.update(dict.fromkeys(ids, sent))
        size = sent.size_bytes() * count
        session.inflight_bytes += size
        self.inflight_bytes += size
        session.next_id = first_id + count
        session.outstanding += count
        if not link.outbox:
            self.dirty.append(link)
        link.outbox.append(_with_ids(run, first_id))
        link.messages_out += count
        return True

    def deliver(self, plan: Plan, message: Message) -> None:
        for cohort in plan.cohorts:
            self._deliver_to(cohort, message)
        if not plan.is_plain:
            self._deliver_choosy(plan, message)

    def _deliver_choosy(self, plan: Plan, message: Message) -> None:
        for selective in plan.selective:
            own = selective.client_id == message.origin
            cohort = selective.of_its_own if own else selective.of_others
            if cohort is not None:
                self._deliver_to(cohort, message)
        for group in plan.groups:
            self.deliver_shared(group, message)

    def deliver_shared(
        self,
        group: SharedGroup,
        message: Message,
        *,
        besides: Session | None = None,
        only_connected: bool = False,
    ) -> bool:
        """To one member of the group; False if there is none."""
        session = group.pick(besides=besides)
        if session is None or (only_connected and session.link is None):
            return False
        subscription = group.members[session]
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        retain = message.retain and subscription.retain_as_published
        delivery = Delivery(message, min(message.qos, subscription.qos), retain, identifiers, group)
        if delivery.qos == 0:
            self._send_untracked([session], delivery)
        else:
            self._send_tracked([session], delivery)
        return True

    def _deliver_to(self, cohort: Cohort, message: Message) -> None:
        qos = message.qos if message.qos < cohort.qos else cohort.qos
        retain = message.retain and cohort.retain_as_published
        delivery = Delivery(message, qos, retain, cohort.identifiers)
        if qos == 0:
            self._send_untracked(cohort.sessions, delivery)
        else:
            self._send_tracked(cohort.sessions, delivery)

    def _send_untracked(self, sessions: list[Session], delivery: Delivery) -> None:
        frames: dict[Encoding, bytes] = {}
        dirty = self.dirty
        for session in sessions:
            link = session.link
            if link is None:
                # A QoS 0 copy of a message that was sent with more may wait if the operator says so.
                if self.queue_qos0 and session.expiry_s:
                    self._enqueue(session, delivery)
                continue
            encoding = link.encoding
            frame = frames.get(encoding)
            if frame is None:
                parts = encoding.frame(delivery, self.now)
                if parts is None:
                    self.stats.dropped_too_large += 1
                    continue
                frame = parts[0] + parts[1]
                if encoding.shared:
                    frames[encoding] = frame
            if link.blocked:
                self._push_blocked(link, frame, 1)
                continue
            outbox = link.outbox
            if not outbox:
                dirty.append(link)
            outbox.append(frame)
            link.messages_out += 1

    def _send_tracked(self, sessions: list[Session], delivery: Delivery) -> None:
        frames: dict[Encoding, tuple[bytes, bytes]] = {}
        dirty = self.dirty
        size = delivery.size_bytes()
        max_bytes = self.inflight_cap
        for session in sessions:
            link = session.link
            if (
                link is None
                or link.blocked
                or session.outstanding >= session.window
                or session.inflight_bytes >= max_bytes
                or session.queue is not None
                or session.resend is not None
            ):
                self._enqueue(session, delivery)
                continue
            encoding = link.encoding
            parts = frames.get(encoding)
            if parts is None:
                parts = encoding.frame(delivery, self.now)
                if parts is None:
                    self.stats.dropped_too_large += 1
                    continue
                if encoding.shared:
                    frames[encoding] = parts
            packet_id = session.next_id
            inflight = session.inflight
            if packet_id in inflight:
                packet_id = session.allocate_id()
            else:
                session.next_id = packet_id + 1 if packet_id < 65_535 else 1
            inflight[packet_id] = delivery
            session.outstanding += 1
            session.inflight_bytes += size
            self.inflight_bytes += size
            outbox = link.outbox
            if not outbox:
                dirty.append(link)
            outbox += (parts[0], packet_id.to_bytes(2), parts[1])
            link.messages_out += 1

    def _encode_run(self, link: Link, run: Run, frames: dict[Encoding, tuple[bytes, int]]) -> tuple[bytes, int]:
        """A QoS 0 run in another encoding, and how many of its messages that can take."""
        pieces: list[bytes] = []
        for message in run.messages():
            parts = link.encoding.frame(Delivery(message, 0, False), self.now)
            if parts is None:
                self.stats.dropped_too_large += 1
            else:
                pieces += parts
        encoded = b"".join(pieces), len(pieces) >> 1
        if link.encoding.shared:
            frames[link.encoding] = encoded
        return encoded

    def _push_blocked(self, link: Link, frame: bytes, count: int) -> None:
        size = len(frame) + PIECE_COST
        if self.over_budget or link.backlog_bytes + size > self.limits.outbox_bytes_per_connection:
            if not link.messages_dropped:
                client_id = link.session.client_id if link.session else "?"
                fields = {"client_id": client_id}
                log.warning("client reads too slowly, QoS 0 is dropped", extra={"fields": fields})
            link.messages_dropped += count
            self.stats.dropped_slow += count
            return
        if link.unsent is None:
            link.unsent = []
        link.unsent.append((frame, count))
        link.backlog_bytes += size
        self.backlog_bytes += size

    # -- waiting ----------------------------------------------------------------------------

    def _enqueue(self, session: Session, item: Delivery | Run) -> None:
        if session.link is None and not session.expiry_s:
            return
        queue = session.queue
        if queue is None:
            queue = session.queue = Queue()
            self.queued_sessions.add(session)
        while not self._fits(queue, item):
            if not self.drop_oldest or not queue.messages:
                self._count_queue_drop(session, item.count)
                if not queue.messages:
                    self._forget_queue(session)
                return
            self._drop_oldest(queue)
            self._count_queue_drop(session, 1)
        queue.push(item)
        self.queued_bytes += item.size_bytes()
        if session.link is not None and queue.messages == item.count:
            self.pump(session)  # the first to wait: it may just not go in one piece

    def _fits(self, queue: Queue | None, item: Delivery | Run) -> bool:
        messages, size_bytes = (queue.messages, queue.size_bytes) if queue is not None else (0, 0)
        return (
            messages + item.count <= self.limits.queued_messages_per_session
            and size_bytes + item.size_bytes() <= self.limits.queued_bytes_per_session
        )

    def _drop_oldest(self, queue: Queue) -> int:
        """Give up one message; returns its size."""
        before = queue.size_bytes
        size = queue.drop_oldest().size_bytes()
        self.queued_bytes += queue.size_bytes - before
        return size

    def _count_queue_drop(self, session: Session, count: int) -> None:
        if not session.dropped:
            fields = {"client_id": session.client_id}
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
        before = queue.size_bytes
        room = session.window - session.outstanding
        if link.encoding is not run.encoding or room >= run.count or not queue.cut_front(run, room):
            queue.break_up(run)
        self.queued_bytes += queue.size_bytes - before

    def _pop_queue(self, session: Session, queue: Queue) -> None:
        self.queued_bytes -= queue.pop().size_bytes()
        if not queue.messages:
            self._forget_queue(session)

    def _transmit(self, session: Session, link: Link, delivery: Delivery) -> None:
        parts = link.encoding.frame(delivery, self.now)
        if parts is None:
            self.stats.dropped_too_large += 1
            return
        if delivery.qos == 0:
            self.push(link, parts[0] + parts[1])
        else:
            packet_id = session.allocate_id()
            session.inflight[packet_id] = delivery
            session.outstanding += 1
            session.inflight_bytes += delivery.size_bytes()
            self.inflight_bytes += delivery.size_bytes()
            self.push(link, parts[0] + packet_id.to_bytes(2) + parts[1])
        link.messages_out += 1

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
                    self._free_inflight(session, sent.size_bytes())
                del session.inflight[packet_id]
                self.stats.dropped_too_large += 1
                continue
            session.outstanding += 1
            self.push(link, frame)
        if not resend:
            session.resend = None

    def push(self, link: Link, frame: bytes) -> None:
        """Put bytes into an outbox outside the hot loops."""
        self.push_all(link, [frame])

    def push_all(self, link: Link, frames: list[bytes]) -> None:
        if link.blocked:
            size = sum(map(len, frames)) + PIECE_COST * len(frames)
            link.backlog_bytes += size
            self.backlog_bytes += size
        elif not link.outbox:
            self.dirty.append(link)
        link.outbox += frames

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
        last: Delivery | DeliveryRun | None = None
        freed = size = 0
        for packet_id in packet_ids:
            delivery = inflight.get(packet_id)
            if delivery is not None and delivery.qos == 1:
                del inflight[packet_id]
                if delivery is not last:
                    last = delivery
                    size = delivery.size_bytes()
                freed += size
        self._free_inflight(session, freed)
        self._settled(session, before - len(inflight))

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
                self._free_inflight(session, delivery.size_bytes())
                inflight[packet_id] = None
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
            self._free_inflight(session, delivery.size_bytes())
            session.inflight[packet_id] = None
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

    def _free_inflight(self, session: Session, size_bytes: int) -> None:
        session.inflight_bytes -= size_bytes
        self.inflight_bytes -= size_bytes

    def _settle(self, session: Session, packet_id: int) -> None:
        delivery = session.inflight.pop(packet_id)
        if delivery is not None:
            self._free_inflight(session, delivery.size_bytes())
        if session.resend is not None and packet_id in session.resend:
            session.resend.remove(packet_id)  # acknowledged from the connection before
        else:
            session.outstanding -= 1
        if session.queue is not None or session.resend is not None:
            self.pump(session)
        if session.replays is not None:
            self.unfinished[session] = None

    # -- links come, stall and go ---------------------------------------------------------------

    def attach(self, session: Session, link: Link, window: int) -> None:
        """A connection for this session: `pump` will send what was under way again, in its order."""
        session.link = link
        link.session = session
        session.outstanding = 0
        session.window = min(window, self.limits.inflight_per_session)
        session.resend = deque(session.inflight) if session.inflight else None
        if session.replays is not None:
            self.unfinished[session] = None

    def detach(self, session: Session) -> None:
        link = session.link
        if link is None:
            return
        self.stats.messages_sent += link.messages_out
        self.stats.bytes_sent += link.bytes_out
        session.link = None
        session.resend = None
        session.outstanding = 0
        self.unfinished.pop(session, None)
        self.forget(link)
        self._hand_over(session, ended=False)

    def forget(self, link: Link) -> None:
        """Let go of what a link that ends did not send."""
        self.blocked_links.discard(link)
        self.backlog_bytes -= link.backlog_bytes
        link.backlog_bytes = 0
        link.unsent = None
        link.outbox.clear()
        link.held.clear()

    def discard(self, session: Session) -> None:
        """The session has ended: shared messages go to other members, the rest is gone."""
        self._hand_over(session, ended=True)
        lost = sum(d is not None for d in session.inflight.values()) + session.queued()
        self.stats.dropped_no_session += lost
        session.inflight.clear()
        self._free_inflight(session, session.inflight_bytes)
        session.replays = None
        if session.queue is not None:
            self.queued_bytes -= session.queue.size_bytes
            self._forget_queue(session)

    def _hand_over(self, session: Session, *, ended: bool) -> None:
        """MQTT 5.0 section 4.8.2: another member gets what this one did not acknowledge.

        [MQTT-4.8.2-5] a QoS 2 message that may have been received stays with its session.
        """
        for packet_id, delivery in list(session.inflight.items()):
            if delivery is None or delivery.group is None or delivery.qos == 2:
                continue
            if self._redispatch(delivery.one(packet_id), session, ended=ended):
                self._free_inflight(session, delivery.size_bytes())
                del session.inflight[packet_id]
        old = session.queue
        if old is None or not any(isinstance(i, Delivery) and i.group for i in old.items()):
            return
        self.queued_bytes -= old.size_bytes
        self._forget_queue(session)
        for item in old.items():
            if isinstance(item, Delivery) and item.group and self._redispatch(item, session, ended=ended):
                continue
            if not ended:
                self._enqueue(session, item)

    def _redispatch(self, delivery: Delivery, session: Session, *, ended: bool) -> bool:
        group = delivery.group
        assert group is not None
        return self.deliver_shared(group, delivery.message, besides=session, only_connected=not ended)

    def blocked(self, link: Link) -> None:
        link.blocked = True
        self.blocked_links.add(link)
        pieces, link.outbox = link.outbox, []
        self.push_all(link, pieces)  # counted from now on

    def unblocked(self, link: Link) -> None:
        link.blocked = False
        self.blocked_links.discard(link)
        self.backlog_bytes -= link.backlog_bytes
        link.backlog_bytes = 0
        for frame, count in link.unsent or ():
            link.outbox.append(frame)
            link.messages_out += count
        link.unsent = None
        if link.outbox:
            self.dirty.append(link)
        session = link.session
        if session is not None and session.link is link:
            self.pump(session)
            if session.replays is not None:
                self.unfinished[session] = None

    # -- retained messages to new subscriptions --------------------------------------------------

    def start_replay(self, session: Session, topic_filter: str, replay: Iterator[Delivery | None]) -> None:
        """Begin, or begin anew if the same filter is still being served."""
        if session.replays is None:
            session.replays = {}
        session.replays[topic_filter] = replay
        self.unfinished[session] = None

    def stop_replay(self, session: Session, topic_filter: str) -> None:
        if session.replays is not None:
            session.replays.pop(topic_filter, None)

    def go_on(self) -> None:
        """A step for sessions that have more to send: what waits, then retained messages."""
        sessions = list(self.unfinished)[:SESSIONS_A_STEP]
        steps = max(REPLAY_STEPS // SESSIONS_A_STEP, REPLAY_STEPS // len(sessions))
        for session in sessions:
            del self.unfinished[session]  # to the end of the line, if it goes on
            self.pump(session)
            link = session.link
            if link is None or session.queue is not None or session.replays is None:
                continue
            if not session.replays:
                session.replays = None
            elif self._replay_step(session, link, session.replays, steps):
                self.unfinished[session] = None

    def _replay_step(
        self, session: Session, link: Link, replays: dict[str, Iterator[Delivery | None]], steps: int
    ) -> bool:
        """True: there is more to do at the next turn. Else it goes on when the link or the window is
        free again."""
        topic_filter, replay = next(iter(replays.items()))
        sent_bytes = 0
        for _ in range(steps):
            if session.queue is not None or not self._may_send(session, link):
                return False
            delivery = next(replay, _EXHAUSTED)
            if delivery is _EXHAUSTED:
                del replays[topic_filter]
                return True
            if isinstance(delivery, Delivery) and not self._has_expired(delivery):
                self._transmit(session, link, delivery)
                sent_bytes += delivery.size_bytes()
                if sent_bytes > STEP_BYTES:
                    return True
        return True

    def _has_expired(self, delivery: Delivery) -> bool:
        expires_at = delivery.message.expires_at
        if expires_at is None or expires_at > self.now:
            return False
        self.stats.dropped_expired += 1
        return True

    # -- the memory budget ------------------------------------------------------------------------

    def relieve(self, excess_bytes: int) -> None:
        """Free this much. Victims: what waits unsent at QoS 0 for the slowest links, then the oldest
        regular messages of the longest queues, then priority ones (TB-13)."""
        for link in sorted(self.blocked_links, key=lambda link: link.backlog_bytes, reverse=True):
            if excess_bytes <= 0:
                return
            excess_bytes -= self._drop_unsent(link)
        longest_first = sorted(self.queued_sessions, key=_queue_size, reverse=True)
        for spare_priority in (True, False):
            for session in longest_first:
                queue = session.queue
                while (
                    queue is not None
                    and queue.messages
                    and excess_bytes > 0
                    and (queue.regular or not spare_priority)
                ):
                    excess_bytes -= self._give_up(session, queue)
                if excess_bytes <= 0:
                    return

    def set_budget_spent(self, is_spent: bool) -> None:
        """While it is, whoever has much under way gets no more; whoever has little is not to blame."""
        self.over_budget = is_spent
        share = min(self.limits.inflight_bytes_per_session, self.limits.memory_bytes // 8)
        self.inflight_cap = min(share, STEP_BYTES) if is_spent else share

    def recover(self) -> None:
        """The budget is no longer spent: whoever waited only for that goes on."""
        self.set_budget_spent(False)
        self.unfinished.update(dict.fromkeys(self.queued_sessions))

    def _drop_unsent(self, link: Link) -> int:
        unsent, link.unsent = link.unsent, None
        size = 0
        for frame, count in unsent or ():
            size += len(frame) + PIECE_COST
            link.messages_dropped += count
            self.stats.dropped_memory += count
        link.backlog_bytes -= size
        self.backlog_bytes -= size
        return size

    def _give_up(self, session: Session, queue: Queue) -> int:
        item = queue.drop_item()
        size = item.size_bytes()
        self.queued_bytes -= size
        if not queue.messages:
            self._forget_queue(session)
        session.dropped += item.count
        self.stats.dropped_memory += item.count
        return size

    def _forget_queue(self, session: Session) -> None:
        session.queue = None
        self.queued_sessions.discard(session)


_HIGH_BYTES: Final = bytes(n >> 8 for n in range(MAX_PACKET_ID + 1))
_LOW_BYTES: Final = bytes(n & 0xFF for n in range(MAX_PACKET_ID + 1))
_EXHAUSTED: Final = object()
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


def _queue_size(session: Session) -> int:
    return session.queue.size_bytes if session.queue is not None else 0
