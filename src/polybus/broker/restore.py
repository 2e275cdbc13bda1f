"""From records back to a broker: sessions, queues, what was under way, retained and stored messages, requests.

Done once, before anyone connects. Clocks ran on meanwhile: what expired is dropped and counted here, or by
the timers that are set here as soon as they run. While it lasts nothing is noted in the ledger, except what
is not needed any more.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from polybus.broker import records
from polybus.broker.broker import Broker
from polybus.broker.ledger import Extra, Row
from polybus.broker.message import Delivery, DeliveryRun, Message, Piece, Run
from polybus.broker.records import Encodings, MessageRecord
from polybus.broker.sessions import Queue, Session, Subscription
from polybus.broker.taken import Taken

PROGRESS_STEP: Final = 100_000
"""Deliveries after which `progress` is told again."""
REQUEST_SERIALS: Final = 1 << 32
"""Serial numbers a broker may use between two starts: answers to requests of before must not find others."""

_unpack_subscription: Final = msgspec.msgpack.Decoder(Subscription).decode
_unpack_extra: Final = msgspec.json.Decoder(Extra | None).decode
_PLAIN: Final = Extra(False)


class Image(msgspec.Struct):
    """What a store holds, as it was written. Each part is read once, in this order."""

    starts: int
    """How often a broker was started with it, this time included."""
    alive_at: float
    """When it last knew whom it was connected to, on the wall clock."""
    sessions: Iterable[tuple[int, bytes]]
    received: Iterable[tuple[int, bytes]]
    subscriptions: Iterable[tuple[int, str, bytes]]
    pieces: Iterable[tuple[int, bytes]]
    queued: Iterable[Row]
    """In the order of their rows."""
    sent: Iterable[Row]
    """In the order in which they were sent."""
    retained: Iterable[bytes]
    stored: Iterable[tuple[int, bytes]]
    requests: Iterable[tuple[int, bytes]]


class Restored(msgspec.Struct):
    """How much there was."""

    sessions: int = 0
    subscriptions: int = 0
    messages: int = 0
    """Queued or in flight."""
    retained: int = 0
    stored: int = 0
    requests: int = 0
    expired: int = 0


def restore(
    broker: Broker,
    image: Image,
    encodings: Encodings,
    *,
    now: float,
    progress: Callable[[int], None] = lambda messages: None,
) -> Restored:
    """Fill a broker that is new. `broker.ledger.offset` has to be right."""
    broker.now = broker.dispatcher.now = now
    ledger = broker.ledger
    ledger.is_durable = False
    restored = _Restorer(broker, encodings, now, progress).run(image)
    ledger.is_durable = True
    broker.stats.dropped_expired += restored.expired
    broker.requests.begin_serials(image.starts * REQUEST_SERIALS)
    return restored


class _Body:
    """A piece, and what is in it."""

    __slots__ = ("content", "piece")

    def __init__(self, piece: Piece, content: Message | Run) -> None:
        self.piece = piece
        self.content = content


class _Restorer:
    def __init__(
        self, broker: Broker, encodings: Encodings, now: float, progress: Callable[[int], None]
    ) -> None:
        self.broker = broker
        self.ledger = broker.ledger
        self.offset = broker.ledger.offset
        self.encodings = encodings
        self.now = now
        self.progress = progress
        self.restored = Restored()
        self.sessions: dict[int, Session] = {}
        self.bodies: dict[int, _Body] = {}

    def run(self, image: Image) -> Restored:
        self._sessions(image)
        for number, record in image.pieces:
            self.bodies[number] = self._body(number, record)
        for row in image.queued:
            self._queued(row)
        for row in image.sent:
            self._sent(row)
        self.ledger.next_piece = max(self.bodies, default=0) + 1
        for body in self.bodies.values():
            self.ledger.let_go(body.piece)
        for number, session in self.sessions.items():
            session.kept = number
        self._messages(image)
        for serial, packed in image.requests:
            self._request(serial, packed)
        return self.restored

    # -- sessions -----------------------------------------------------------------------------------

    def _sessions(self, image: Image) -> None:
        ledger, registry = self.ledger, self.broker.registry
        for number, packed in image.sessions:
            record = records.unpack_session(packed)
            session = records.session_of(record, self.offset, image.alive_at)
            self.sessions[number] = session
            ledger.know_session(number)
            registry.restore(session)
            if record.is_connected:
                ledger.session_changed(session)  # from now on it is known when it left
        for number, packed in image.received:
            session, ids = self.sessions[number], records.unpack_ids(packed)
            if session.is_neighbor:
                session.taken = Taken(ids)
            else:
                session.received = set(ids)
        for number, topic_filter, packed in image.subscriptions:
            subscription = _unpack_subscription(packed)
            self.broker.subscriptions.add(self.sessions[number], topic_filter, subscription)
            self.restored.subscriptions += 1
        self.restored.sessions = len(self.sessions)

    # -- deliveries -----------------------------------------------------------------------------------

    def _body(self, number: int, packed: bytes) -> _Body:
        record = records.unpack_piece(packed)
        # We hold it too: else it would be gone with the first row that is not needed, and others may follow.
        piece = Piece(number, holders=1)
        content: Message | Run
        if isinstance(record, MessageRecord):
            content = records.message_of(record, self.offset)
        else:
            content = records.run_of(record, self.encodings)
        content.piece = piece
        return _Body(piece, content)

    def _item(self, row: Row) -> Delivery | Run:
        """What a row is about."""
        number, _, piece_number, first, count, qos, _, _, extra = row
        body = self.bodies[piece_number]
        piece, content = body.piece, body.content
        piece.holders += 1
        if isinstance(content, Message):
            said = _PLAIN if extra is None else _unpack_extra(extra) or _PLAIN
            group = None
            if said.group is not None:
                group = self.broker.subscriptions.group(*said.group)
            return Delivery(
                content, qos, said.retain, said.identifiers, group, number, piece, shares=said.shares
            )
        if qos == 1 and count == content.count:
            return content.in_row(number)
        if count > 1:
            part = _part(content, first, count)
            part.row = number
            return part
        return Delivery(content.messages()[first], qos, False, (), None, number, piece)

    def _queued(self, row: Row) -> None:
        self._count(row)
        session = self.sessions[row[1]]
        flow = self.broker.dispatcher
        item = self._item(row)
        if isinstance(item, Delivery) and self._has_expired(item):
            return
        queue = session.queue
        if queue is None:
            queue = session.queue = Queue()
            flow.queued_sessions.add(session)
        queue.push(item)
        flow.holdings.take(item.body)

    def _has_expired(self, delivery: Delivery) -> bool:
        expires_at = delivery.message.expires_at
        if expires_at is None or expires_at > self.now:
            return False
        self.restored.expired += 1
        self.ledger.gone_item(delivery)
        return True

    def _sent(self, row: Row) -> None:
        self._count(row)
        session = self.sessions[row[1]]
        packet_id = row[6]
        self.ledger.next_sent = max(self.ledger.next_sent, row[7] + 1)
        if not row[2]:  # received by the client: only the release is left
            self._take_id(session, packet_id)
            session.inflight[packet_id] = None
            if session.releases is None:
                session.releases = {}
            session.releases[packet_id] = row[0]
            return
        item = self._item(row)
        sent: Delivery | DeliveryRun
        if isinstance(item, Run):
            sent = DeliveryRun(item, packet_id, item.qos, None, item.row, item.count)
        else:
            sent = item
        for each in range(packet_id, packet_id + item.count):
            self._take_id(session, each)
            session.inflight[each] = sent
        session.inflight_bytes += sent.size_bytes() * item.count
        self.broker.dispatcher.holdings.take(sent.body, item.count)

    def _take_id(self, session: Session, packet_id: int) -> None:
        """An id that was used again: the run it belonged to was acknowledged so far."""
        if packet_id not in session.inflight:
            return
        earlier = session.inflight.pop(packet_id)
        if earlier is None:
            return
        self.broker.dispatcher.free(session, earlier)
        self.broker.dispatcher.note_settled(session, packet_id, earlier)

    def _count(self, row: Row) -> None:
        before = self.restored.messages
        self.restored.messages += row[4]
        self.ledger.next_row = max(self.ledger.next_row, row[0] + row[4])
        if before // PROGRESS_STEP != self.restored.messages // PROGRESS_STEP:
            self.progress(self.restored.messages)

    # -- messages and requests -------------------------------------------------------------------------

    def _messages(self, image: Image) -> None:
        for packed in image.retained:
            message = records.message_of(records.unpack_message(packed), self.offset)
            if message.expires_at is not None and message.expires_at <= self.now:
                self.restored.expired += 1
                self.ledger.retained_changed(message.topic, None)
            elif self.broker.retained.store(message, self.now):
                self.restored.retained += 1
        for number, packed in image.stored:
            message = records.message_of(records.unpack_message(packed), self.offset)
            self.ledger.next_stored = max(self.ledger.next_stored, number + 1)
            self.broker.waiting.put_back(message, number)
            self.restored.stored += 1

    def _request(self, serial: int, packed: bytes) -> None:
        record = records.unpack_request(packed)
        request = records.request_of(serial, record, self.offset)
        self.ledger.know_request(serial)
        kept_until = None if record.kept_until is None else record.kept_until - self.offset
        self.broker.requests.put_back(request, kept_until)
        self.restored.requests += 1


def _part(run: Run, first: int, count: int) -> Run:
    """These messages of a run that was cut before, so it can be cut again."""
    if first:
        parts = run.cut(first)
        assert parts is not None
        run = parts[1]
    if count < run.count:
        parts = run.cut(count)
        assert parts is not None
        run = parts[0]
    return run
