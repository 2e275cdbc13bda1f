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

from polybus.broker.flow import PIECE_COST, STEP_BYTES, Flow
from polybus.broker.links import Encoding, Link
from polybus.broker.message import Delivery, Message, Run
from polybus.broker.sessions import NEIGHBOR_MARK, Session
from polybus.broker.shared import SharedGroup
from polybus.broker.subscriptions import Cohort, Plan

log = logging.getLogger("polybus.broker")

REPLAY_STEPS: Final = 500
"""Retained messages looked at in one tick, for all sessions together."""
SESSIONS_A_STEP: Final = 40
PARKED: Final = Delivery(Message("", b""), 0, False)
"""From a replay that has nothing now: it puts its session among the unfinished when it has."""
_EXHAUSTED: Final = object()


class Dispatcher(Flow):
    """Decides who gets a message now, later or never."""

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
            self._deliver_run_apart(plan, run)

    def _deliver_run_apart(self, plan: Plan, run: Run) -> None:
        """To everyone who does not just get the same bytes."""
        if plan.rest or plan.selective:
            for message in run.messages():
                for cohort in plan.rest:
                    self._deliver_to(cohort, message)
                self._deliver_selective(plan, message)
        if run.origin.startswith(NEIGHBOR_MARK):
            return
        if plan.groups:
            for message in run.messages():
                self._deliver_shares(plan, message)
        elif plan.neighbors:
            self._cross_run(plan, run)

    def _cross_run(self, plan: Plan, run: Run) -> None:
        frames: dict[Encoding, tuple[bytes, int]] = {}
        for session, _ in plan.neighbors:
            link = session.link
            if link is None:
                continue
            frame, count = frames.get(link.encoding) or self._encode_run(link, run, frames)
            if not count:
                continue
            self.stats.crossed_out += count
            if link.blocked:
                self._push_blocked(link, frame, count)
            else:
                self.push(link, frame)
                link.messages_out += count

    def deliver_tracked_run(self, plan: Plan, run: Run) -> None:
        """A run of QoS 1 or QoS 2 messages."""
        for cohort in plan.cohorts:
            if cohort.qos < run.qos or cohort.identifiers:
                for message in run.messages():
                    self._deliver_to(cohort, message)
                continue
            for session in cohort.sessions:
                if session.kept and run.qos == 2:
                    self._send_each(session, run)
                    continue
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

    def _send_each(self, session: Session, run: Run) -> None:
        """QoS 2 to a kept session: each message needs a row of its own for how far it has come, but its bytes
        are stored once."""
        piece = self.ledger.hold_piece(run)
        try:
            for first, message in enumerate(run.messages()):
                self._send_tracked([session], Delivery(message, 2, False, piece=piece, first=first))
        finally:
            self.ledger.let_go(piece)

    def deliver(self, plan: Plan, message: Message) -> None:
        for cohort in plan.cohorts:
            self._deliver_to(cohort, message)
        if not plan.is_plain:
            self._deliver_choosy(plan, message)

    def _deliver_choosy(self, plan: Plan, message: Message) -> None:
        self._deliver_selective(plan, message)
        # What came from a neighbour goes to no other, and to the shared groups that it names (TB-15).
        if (plan.groups or plan.neighbors) and not message.origin.startswith(NEIGHBOR_MARK):
            self._deliver_shares(plan, message)

    def _deliver_selective(self, plan: Plan, message: Message) -> None:
        for selective in plan.selective:
            own = selective.client_id == message.origin
            cohort = selective.of_its_own if own else selective.of_others
            if cohort is not None:
                self._deliver_to(cohort, message)

    def _deliver_shares(self, plan: Plan, message: Message) -> None:
        if not plan.groups:
            for session, qos in plan.neighbors:
                self.cross(session, message, qos)
            return
        for session, (qos, shares) in self.crossings(plan, message).items():
            self.cross(session, message, qos, shares)

    def crossings(self, plan: Plan, message: Message) -> dict[Session, tuple[int, tuple[str, ...]]]:
        """Which neighbours are to get it, at which QoS, and for whom (`Delivery.shares`). One member of each
        shared group is chosen: those that are clients here get it."""
        crossings: dict[Session, tuple[int, tuple[str, ...]]] = {s: (qos, ()) for s, qos in plan.neighbors}
        for group in plan.groups:
            session = group.pick()
            if session is None:
                continue
            subscription = group.members[session]
            if not session.is_neighbor:
                self._send_member(group, session, message)
                continue
            earlier = crossings.get(session)
            qos, shares = (0, ()) if earlier is None else (earlier[0], earlier[1] or ("",))
            crossings[session] = max(qos, subscription.qos), (*shares, group.filter)
        return crossings

    def cross(self, session: Session, message: Message, qos: int, shares: tuple[str, ...] = ()) -> None:
        """To a neighbour: one copy, however many of its clients want it; tracked if one of them wants that."""
        is_tracked = message.qos and qos
        if is_tracked and not message.stamp:
            message.stamp = self.stamps.give(self.now + self.ledger.offset)
            if message.piece is not None and self.ledger.is_written(message.piece):
                message.piece = None  # the state file has it without its stamp
        self.stats.crossed_out += bool(is_tracked or session.link is not None)
        self.send(session, Delivery(message, 1 if is_tracked else 0, False, shares=shares))

    def deliver_shared(
        self,
        group: SharedGroup,
        message: Message,
        *,
        besides: Session | None = None,
        only_connected: bool = False,
        only_local: bool = False,
    ) -> bool:
        """To one member of the group; False if there is none."""
        session = group.pick(besides=besides, only_local=only_local)
        if session is None or (only_connected and session.link is None):
            return False
        self._send_member(group, session, message)
        return True

    def _send_member(self, group: SharedGroup, session: Session, message: Message) -> None:
        subscription = group.members[session]
        if session.is_neighbor:
            self.cross(session, message, subscription.qos, (group.filter,))
            return
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        retain = message.retain and subscription.retain_as_published
        self.send(session, Delivery(message, min(message.qos, subscription.qos), retain, identifiers, group))

    def send(self, session: Session, delivery: Delivery) -> None:
        """To this session alone."""
        if delivery.qos == 0:
            self._send_untracked([session], delivery)
        else:
            self._send_tracked([session], delivery)

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
                self._push_blocked(link, frame, 1, is_priority=delivery.message.priority)
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
        sent = 0
        try:
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
                session.outstanding += 1
                session.inflight_bytes += size
                sent += 1
                link.messages_out += 1
                if session.kept:
                    inflight[packet_id] = self.ledger.add(session.kept, delivery, packet_id)
                    frame = parts[0] + packet_id.to_bytes(2) + parts[1]
                    self._push_tracked(session, link, delivery, frame)
                    continue
                inflight[packet_id] = delivery
                outbox = link.outbox
                if not outbox:
                    dirty.append(link)
                outbox += (parts[0], packet_id.to_bytes(2), parts[1])
        finally:  # an error of ours with one encoding must not make the books wrong
            if sent:
                self.holdings.take_all(delivery.message, sent, size)

    def _encode_run(self, link: Link, run: Run, frames: dict[Encoding, tuple[bytes, int]]) -> tuple[bytes, int]:
        """A QoS 0 run in another encoding, and how many of its messages that can take."""
        if link.encoding.shared and (restacked := self._restack(link.encoding, run)) is not None:
            frames[link.encoding] = restacked, run.count
            return restacked, run.count
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

    def _restack(self, encoding: Encoding, run: Run) -> bytes | None:
        """The same payloads behind another head, if all have the same. None: they have to be taken apart."""
        first = run.alike()
        parts = encoding.frame(Delivery(first, 0, False), self.now) if first is not None else None
        if first is None or parts is None:
            return None
        frame = b"".join(parts)
        payload_size = len(first.payload)
        wire, size = run.wire, len(run.wire) // run.count
        ends = range(size, len(wire) + 1, size)
        payloads = [wire[end - payload_size : end] for end in ends]
        return frame[: len(frame) - payload_size].join([b"", *payloads])

    def _push_blocked(self, link: Link, frame: bytes, count: int, *, is_priority: bool = False) -> None:
        size = len(frame) + PIECE_COST
        limit = self.limits.outbox_bytes_per_connection
        if is_priority and link.backlog_bytes + size > limit:
            self._drop_unsent(link, excess_bytes=link.backlog_bytes + size - limit + limit // 16)
        if self.over_budget or link.backlog_bytes + size > limit:
            if not link.messages_dropped:
                client_id = link.session.client_id if link.session else "?"
                fields = {"client_id": client_id.removeprefix(NEIGHBOR_MARK)}
                log.warning("client reads too slowly, QoS 0 is dropped", extra={"fields": fields})
            link.messages_dropped += count
            self.stats.dropped_slow += count
            return
        if is_priority:
            if link.urgent is None:
                link.urgent = []
            link.urgent.append((frame, count))
        else:
            if link.unsent is None:
                link.unsent = []
            link.unsent.append((frame, count))
        link.backlog_bytes += size
        self.backlog_bytes += size

    # -- links come, stall and go ---------------------------------------------------------------

    def attach(self, session: Session, link: Link, window: int) -> None:
        """A connection for this session: `pump` will send what was under way again, in its order."""
        session.link = link
        link.session = session
        session.outstanding = session.unnoted
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
        session.outstanding = session.unnoted
        self.unfinished.pop(session, None)
        self.forget(link)
        self._hand_over(session, ended=False)

    def forget(self, link: Link) -> None:
        """Let go of what a link that ends did not send. Acknowledgements that it holds stay with their commit:
        if that fails, they say what is to be taken back."""
        self.blocked_links.discard(link)
        self.backlog_bytes -= link.backlog_bytes
        link.backlog_bytes = 0
        link.unsent = link.urgent = None
        link.outbox.clear()

    def discard(self, session: Session) -> None:
        """The session has ended: shared messages go to other members, the rest is gone."""
        self._hand_over(session, ended=True)
        lost = sum(d is not None for d in session.inflight.values()) + session.queued()
        self.stats.dropped_no_session += lost
        for packet_id, sent in session.inflight.items():
            if sent is not None:
                self.free(session, sent)
            if session.kept:
                self.note_settled(session, packet_id, sent)
        session.inflight.clear()
        session.replays = None
        if session.queue is not None:
            for item in session.queue.items():
                self.holdings.give(item.body)
                if item.row:
                    self.ledger.gone_item(item)
            self._forget_queue(session)

    def _hand_over(self, session: Session, *, ended: bool) -> None:
        """MQTT 5.0 section 4.8.2: another member gets what this one did not acknowledge.

        [MQTT-4.8.2-5] a QoS 2 message that may have been received stays with its session.
        """
        for packet_id, delivery in list(session.inflight.items()):
            if delivery is None or delivery.group is None or delivery.qos == 2:
                continue
            if self._redispatch(delivery.one(packet_id), session, ended=ended):
                self.free(session, delivery)
                del session.inflight[packet_id]
                if session.kept:
                    self.note_settled(session, packet_id, delivery)
        old = session.queue
        if old is None or not any(isinstance(i, Delivery) and i.group for i in old.items()):
            return
        self._forget_queue(session)
        for item in old.items():
            self.holdings.give(item.body)
            is_taken = (
                isinstance(item, Delivery) and item.group and self._redispatch(item, session, ended=ended)
            )
            if not is_taken and not ended:
                self._enqueue(session, item)
            elif item.row:
                self.ledger.gone_item(item)

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
        for frame, count in (*(link.urgent or ()), *(link.unsent or ())):
            link.outbox.append(frame)
            link.messages_out += count
        link.unsent = link.urgent = None
        if link.outbox:
            self.dirty.append(link)
        session = link.session
        if session is not None and session.link is link:
            self.pump(session)
            if session.replays is not None:
                self.unfinished[session] = None
            self.on_ready(session)

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
        found = next((item for item in replays.items() if not getattr(item[1], "is_parked", False)), None)
        if found is None:
            return False
        topic_filter, replay = found
        sent_bytes = 0
        for _ in range(steps):
            if session.queue is not None or not self._may_send(session, link):
                return False
            delivery = next(replay, _EXHAUSTED)
            if delivery is _EXHAUSTED:
                del replays[topic_filter]
                return True
            if delivery is PARKED:
                replays[topic_filter] = replays.pop(topic_filter)  # others first
                return True
            if isinstance(delivery, Delivery) and not self._has_expired(delivery):
                self._transmit(session, link, delivery)
                sent_bytes += delivery.size_bytes()
                if sent_bytes > STEP_BYTES:
                    return True
        return True
