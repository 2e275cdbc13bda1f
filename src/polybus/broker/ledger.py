"""What changed of durable state since the last commit.

The core notes each change here, and the store takes all of them as one `Batch`. What is added and removed
between two commits cancels out and is never written: a message that its subscriber acknowledges at once
costs the disk nothing. Things with a state that changes often (sessions, requests) are just noted as
changed, and written down when the batch is taken.

A delivery to a kept session is a row: session, piece (what is delivered; shared by all sessions) and how
far it has come. A run has one row for all its messages, but a number for each: its parts get the numbers
behind its own when it is divided, so that the order of numbers is the order of the queue.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from polybus.broker import records
from polybus.broker.message import Delivery, DeliveryRun, Message, Piece, Run

if TYPE_CHECKING:
    from polybus.broker.request import Request
    from polybus.broker.sessions import Session, Subscription

Row: TypeAlias = list[Any]
"""As in the store: row, session, piece, first, count, qos, packet_id, sent, extra. A piece of 0: the client
has received it, and only its release is outstanding. `sent` counts what went out, 0 is what waits."""

PIECE, PACKET_ID, SENT = 2, 6, 7


class Extra(msgspec.Struct, array_like=True, frozen=True):
    """What few deliveries have."""

    retain: bool
    identifiers: tuple[int, ...] = ()
    group: tuple[str, str] | None = None
    """Name and path of the shared subscription."""
    shares: tuple[str, ...] = ()
    """To a neighbour: see `Delivery`."""


class Batch(msgspec.Struct):
    """One commit. What is gone goes first: a row may be replaced by its parts, under its own number."""

    gone_rows: list[int] = []
    rows: list[Row] = []
    sent: list[tuple[int, int, int]] = []
    """Row, packet id, `sent`."""
    released: list[int] = []
    gone_pieces: list[int] = []
    pieces: list[tuple[int, bytes]] = []
    sessions: list[tuple[int, bytes]] = []
    gone_sessions: list[int] = []
    received: list[tuple[int, bytes]] = []
    """Session, and the ids as they are now; empty: none."""
    subscriptions: list[tuple[int, str, bytes | None]] = []
    retained: list[tuple[str, bytes | None]] = []
    stored: list[tuple[int, bytes]] = []
    gone_stored: list[int] = []
    requests: list[tuple[int, bytes]] = []
    gone_requests: list[int] = []
    alive_at: float | None = None
    """On the wall clock: connections of now were there until then."""
    logged: int = 0
    """The number of this commit, if something in a log waits for it."""

    def is_empty(self) -> bool:
        return not self.logged and self.changes_nothing()

    def changes_nothing(self) -> bool:
        return self.alive_at is None and not any(getattr(self, name) for name in _LISTS)


_LISTS = tuple(name for name in Batch.__struct_fields__ if name not in ("alive_at", "logged"))


class Ledger:
    """`is_durable`: there is a store. Without one nothing is ever noted."""

    def __init__(self, *, is_durable: bool = False) -> None:
        self.is_durable = is_durable
        self.offset = 0.0
        """From the broker's clock to the wall clock; the edge keeps it right."""
        self.is_dirty = False
        """Something was noted since the last `take`."""
        self.trouble = ""
        """Why the store takes nothing just now, for people. Meanwhile nothing new is promised."""
        self.next_row = self.next_piece = self.next_sent = self.next_session = self.next_stored = 1
        self.next_commit = 1
        """Counts only commits that logs wait for."""
        self._rows: dict[int, Row] = {}
        self._gone_rows: list[int] = []
        self._sent: dict[int, tuple[int, int]] = {}
        self._released: dict[int, None] = {}
        self._pieces: dict[int, Message | Run] = {}
        self._gone_pieces: list[int] = []
        self._sessions: dict[Session, None] = {}
        self._gone_sessions: list[int] = []
        self._known_sessions: set[int] = set()
        self._received: dict[Session, None] = {}
        self._subscriptions: dict[tuple[int, str], Subscription | None] = {}
        self._retained: dict[str, Message | None] = {}
        self._stored: dict[int, Message] = {}
        self._gone_stored: list[int] = []
        self._requests: dict[Request, None] = {}
        self._known_requests: set[int] = set()
        self._alive_at: float | None = None
        self._is_logged = False

    # -- deliveries -------------------------------------------------------------------------------

    def add(self, session: int, delivery: Delivery, packet_id: int = 0) -> Delivery:
        """A delivery to this session alone, with its row; with a packet id it is under way already."""
        message = delivery.message
        piece = delivery.piece
        if piece is None:
            piece = message.piece
            if piece is None or not piece.holders:
                piece = message.piece = self._new_piece(message)
        piece.holders += 1
        row = self.next_row
        self.next_row = row + 1
        self._rows[row] = [
            row, session, piece.number, delivery.first, 1, delivery.qos, packet_id,
            self._count_sent(packet_id), extra_of(delivery),
        ]  # fmt: skip
        return Delivery(
            message, delivery.qos, delivery.retain, delivery.identifiers, delivery.group, row, piece,
            shares=delivery.shares,
        )  # fmt: skip

    def hold_piece(self, run: Run) -> Piece:
        """The piece of a run has one more holder, until it is let go."""
        piece = run.piece
        if piece is None or not piece.holders:
            piece = run.piece = self._new_piece(run)
        piece.holders += 1
        return piece

    def add_run(self, session: int, run: Run, packet_id: int = 0) -> int:
        """The first of the rows of a run to this session. It is whole: what was cut has its rows."""
        piece = self.hold_piece(run)
        row = self.next_row
        self.next_row = row + run.count
        self._rows[row] = [
            row, session, piece.number, 0, run.count, run.qos, packet_id, self._count_sent(packet_id),
            None,
        ]  # fmt: skip
        return row

    def _new_piece(self, body: Message | Run) -> Piece:
        number = self.next_piece
        self.next_piece = number + 1
        self._pieces[number] = body
        return Piece(number)

    def _count_sent(self, packet_id: int) -> int:
        self.is_dirty = True
        if not packet_id:
            return 0
        self.next_sent += 1
        return self.next_sent

    def sent(self, row: int, packet_id: int) -> None:
        """What waited has gone out under this packet id, or the first of these ids."""
        order = self._count_sent(packet_id)
        new = self._rows.get(row)
        if new is not None:
            new[PACKET_ID] = packet_id
            new[SENT] = order
        else:
            self._sent[row] = packet_id, order

    def released(self, row: int, piece: Piece | None) -> None:
        """The client has received a QoS 2 message: of this only the packet id is needed."""
        self.is_dirty = True
        new = self._rows.get(row)
        if new is not None:
            new[PIECE] = 0
        else:
            self._released[row] = None
        self.let_go(piece)

    def gone(self, row: int, piece: Piece | None) -> None:
        """Acknowledged, given up, or ended with its session. No piece: it was received before."""
        self.is_dirty = True
        if row in self._rows:
            del self._rows[row]
        else:
            self._gone_rows.append(row)
            self._sent.pop(row, None)
            self._released.pop(row, None)
        self.let_go(piece)

    def gone_item(self, item: Delivery | Run | DeliveryRun) -> None:
        self.gone(item.row, item.run.piece if isinstance(item, DeliveryRun) else item.piece)

    def is_written(self, piece: Piece) -> bool:
        """What is said of its message from now on does not get into the state file."""
        return piece.number not in self._pieces

    def let_go(self, piece: Piece | None) -> None:
        """One holder less; without any it is gone."""
        if piece is None:
            return
        piece.holders -= 1
        if not piece.holders:
            if piece.number in self._pieces:
                del self._pieces[piece.number]
            else:
                self._gone_pieces.append(piece.number)
                self.is_dirty = True

    def divide(self, session: int, run: Run, *counts: int) -> None:
        """A run that waits is cut into parts of so many messages, some of which are sent or gone next."""
        piece = run.piece
        assert piece is not None
        if self._rows.pop(run.row, None) is None:
            self._gone_rows.append(run.row)
        row, first = run.row, run.first
        for count in counts:
            self._rows[row] = [row, session, piece.number, first, count, run.qos, 0, 0, None]
            row += count
            first += count
        piece.holders += len(counts) - 1

    # -- sessions and subscriptions -----------------------------------------------------------------

    def new_session(self) -> int:
        number = self.next_session
        self.next_session = number + 1
        return number

    def know_session(self, number: int) -> None:
        """It is in the store."""
        self.next_session = max(self.next_session, number + 1)
        self._known_sessions.add(number)

    def session_changed(self, session: "Session") -> None:
        self._sessions[session] = None
        self.is_dirty = True

    def received_changed(self, session: "Session") -> None:
        self._received[session] = None
        self.is_dirty = True

    def session_ended(self, session: "Session") -> None:
        self._sessions.pop(session, None)
        self._received.pop(session, None)
        if session.kept in self._known_sessions:
            self._known_sessions.discard(session.kept)
            self._gone_sessions.append(session.kept)
            self.is_dirty = True

    def subscription_changed(self, session: int, topic_filter: str, now: "Subscription | None") -> None:
        """None: it is gone."""
        self._subscriptions[session, topic_filter] = now
        self.is_dirty = True

    # -- messages that stay ---------------------------------------------------------------------------

    def retained_changed(self, topic: str, now: Message | None) -> None:
        self._retained[topic] = now
        self.is_dirty = True

    def add_stored(self, message: Message) -> int:
        """The number under which a message waits for a subscriber."""
        number = self.next_stored
        self.next_stored = number + 1
        self._stored[number] = message
        self.is_dirty = True
        return number

    def stored_gone(self, number: int) -> None:
        if self._stored.pop(number, None) is None:
            self._gone_stored.append(number)
        self.is_dirty = True

    # -- requests -----------------------------------------------------------------------------------------

    def request_changed(self, request: "Request") -> None:
        """Or over: whoever takes the batch sees which."""
        if not request.is_under_way and request.serial not in self._known_requests:
            self._requests.pop(request, None)
            return
        self._requests[request] = None
        self.is_dirty = True

    def know_request(self, serial: int) -> None:
        """It is in the store."""
        self._known_requests.add(serial)

    # -- commits --------------------------------------------------------------------------------------------

    def stamp(self, now: float) -> None:
        """Whoever is connected is so at this time of the broker's clock."""
        self._alive_at = now + self.offset
        self.is_dirty = True

    def logged(self) -> int:
        """A message that is acknowledged goes to a log: the commit that it belongs to, without which it does
        not count. 0: there is no store, so the log stands alone."""
        if not self.is_durable:
            return 0
        self._is_logged = self.is_dirty = True
        return self.next_commit

    def take(self) -> Batch:
        """Everything since the last one. From here on it counts as written."""
        offset = self.offset
        batch = Batch(
            gone_rows=self._gone_rows,
            rows=list(self._rows.values()),
            sent=[(row, *how) for row, how in self._sent.items()],
            released=list(self._released),
            gone_pieces=self._gone_pieces,
            pieces=[(n, records.piece_record(body, offset)) for n, body in self._pieces.items()],
            sessions=[(s.kept, records.session_record(s, offset)) for s in self._sessions],
            gone_sessions=self._gone_sessions,
            received=[(s.kept, _packed(_received(s))) for s in self._received],
            subscriptions=[
                (session, path, None if now is None else records.pack(now))
                for (session, path), now in self._subscriptions.items()
            ],
            retained=[
                (topic, None if now is None else records.pack(records.message_record(now, offset)))
                for topic, now in self._retained.items()
            ],
            stored=[(n, records.pack(records.message_record(m, offset))) for n, m in self._stored.items()],
            gone_stored=self._gone_stored,
            alive_at=self._alive_at,
            logged=self.next_commit if self._is_logged else 0,
        )
        self.next_commit += self._is_logged
        self._known_sessions.update(number for number, _ in batch.sessions)
        if self._requests:
            self._take_requests(batch)
        self.forget()
        return batch

    def _take_requests(self, batch: Batch) -> None:
        known = self._known_requests
        for request in self._requests:
            if request.is_under_way:
                kept_until = request.stored.until if request.stored is not None else None
                batch.requests.append(
                    (request.serial, records.request_record(request, self.offset, kept_until))
                )
                known.add(request.serial)
            elif request.serial in known:
                known.discard(request.serial)
                batch.gone_requests.append(request.serial)

    def forget(self) -> None:
        """Nothing of it will be written."""
        self._rows, self._gone_rows, self._sent, self._released = {}, [], {}, {}
        self._pieces, self._gone_pieces = {}, []
        self._sessions, self._gone_sessions, self._received = {}, [], {}
        self._subscriptions, self._retained = {}, {}
        self._stored, self._gone_stored = {}, []
        self._requests = {}
        self._alive_at = None
        self.is_dirty = self._is_logged = False


def _received(session: "Session") -> Iterable[int] | None:
    return session.received if session.taken is None else session.taken.numbers()


def _packed(ids: Iterable[int] | None) -> bytes:
    numbers = list(ids or ())
    return records.pack(numbers) if numbers else b""


def extra_of(delivery: Delivery) -> Extra | None:
    group = delivery.group
    if not delivery.retain and not delivery.identifiers and group is None and not delivery.shares:
        return None
    named = None if group is None else (group.name, group.path)
    return Extra(delivery.retain, delivery.identifiers, named, delivery.shares)
