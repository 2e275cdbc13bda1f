"""How the connection of a stream protocol is read: in any pieces, not faster than it may, with pauses.

Whole packets are handed to `handle_packets`; the beginning of one waits until the rest is there. All
protocols here share one fixed header, a byte of type and flags and a varint with the length of the rest,
which is all this module knows of packets.

A connection is read unless there is a reason not to (`Pause`); what was read before waits.
"""

from collections.abc import Container, Mapping
from enum import Enum, IntEnum, IntFlag, auto
from typing import ClassVar, Final

from polybus.broker.broker import Broker
from polybus.broker.links import Encoding, Link, Port
from polybus.errors import PeerError

SMALL_READ_BYTES: Final = 32 * 1024
"""Up to this much is rather copied than handled apart from what came before."""
WORK_A_TURN: Final = 4096
"""What a connection may do before others get their turn, in units of about a microsecond or two."""
GROUP_WORK: Final = 1
"""Of a run: for each group of packets that are alike, however many these are."""
MAX_GROUPS: Final = 4096
"""In a run, so that it is no longer than a turn."""


class State(IntEnum):
    NEW = 0
    AUTHENTICATING = 1
    CONNECTED = 2
    CLOSED = 3


class Pause(IntFlag):
    """Why a connection is not read for the moment."""

    AUTHENTICATION = auto()
    RATE = auto()
    BACKLOG = auto()
    TURN = auto()
    STORE = auto()
    COMMIT = auto()


class Refusal(Enum):
    """Why this end will not go on, whatever the protocol. Each protocol has its code for it."""

    LONG_CLIENT_ID = auto()
    FULL = auto()
    NOT_AUTHORIZED = auto()
    BAD_CREDENTIALS = auto()
    BUSY = auto()
    NO_MEMORY = auto()
    NO_STORE = auto()
    INTERNAL = auto()


class Intake(Link):
    __slots__ = (
        "_parts",
        "_parts_needed",
        "_pauses",
        "_rate_timer",
        "_tokens",
        "_tokens_at",
        "broker",
        "groups",
        "is_reading",
        "last_seen",
        "state",
    )

    opening: ClassVar[Container[int]]
    """What the first byte of a connection may be."""
    reason_codes: ClassVar[Mapping[Refusal, int]]

    def __init__(self, broker: Broker, port: Port, encoding: Encoding, *, now: float) -> None:
        super().__init__(port, encoding)
        self.broker = broker
        self.state = State.NEW
        self.last_seen = now
        self.is_reading = True
        self.groups = 0
        """Of the last run: how many times it went from packets that are alike to others."""
        self._pauses = Pause(0)
        self._parts: bytearray | None = None
        self._parts_needed = 0
        self._tokens = float("inf")  # the first publish cuts it down to what a burst may be
        self._tokens_at = now
        self._rate_timer = 0

    def handle_packets(self, data: bytes, pos: int) -> int:
        """Handle every whole packet from `pos` on, while `is_reading`; where the rest begins.

        Raises PeerError.
        """
        raise NotImplementedError

    def not_opened(self) -> PeerError:
        """The error of a peer that begins with something else than `opening`."""
        raise NotImplementedError

    def fail(self, error: PeerError) -> None:
        """Answer a violation as the protocol says, and close."""
        raise NotImplementedError

    def fail_on(self, error: Exception) -> None:
        """Whatever went wrong costs this connection, and must not cost any other."""
        raise NotImplementedError

    def refusal(self, cause: Refusal, text: str) -> PeerError:
        return PeerError(self.reason_codes[cause], text)

    # -- bytes in ---------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes as they come: any number of packets, whole or in pieces."""
        if self.state == State.CLOSED:
            return
        broker = self.broker
        broker.now = now
        self.last_seen = now
        self.bytes_in += len(data)
        broker.stats.bytes_received += len(data)
        if self._parts is None and self.is_paused():
            self._keep(data)
        elif self._parts is None:
            if self.state == State.NEW and data and data[0] not in self.opening:
                self.fail(self.not_opened())  # whatever it is, it is not this protocol
                return
            self._consume(data, 0)
        else:
            self._complete(self._parts, data)
        broker.settle(now)

    def _complete(self, parts: bytearray, data: bytes) -> None:
        """Put the packet together that began in earlier reads, and go on behind it."""
        missing = self._parts_needed - len(parts)
        if len(data) < missing or self.is_paused():
            parts += data
            self.broker.partial_bytes += len(data)
            if len(parts) > SMALL_READ_BYTES and not self.broker.has_room_for_parts():
                self.fail(self.refusal(Refusal.NO_MEMORY, "no memory for so large a packet now"))
            return
        self._let_go_of_parts()
        if missing <= 0 or len(data) - missing < SMALL_READ_BYTES:
            self._consume(b"".join((parts, data)), 0)
            return
        # Only the packet that was cut is copied, not everything behind it.
        self._consume(b"".join((parts, data[:missing])), 0)
        if not self.is_paused():
            self._consume(data, missing)
        elif not self.is_closed():
            self._keep(bytes(self._let_go_of_parts() or b"") + data[missing:])

    def _consume(self, data: bytes, pos: int) -> None:
        """Handle every whole packet in `data` from `pos` on and keep the rest."""
        try:
            pos = self.handle_packets(data, pos)
        except Exception as error:
            self.fail_on(error)
        if self.state != State.CLOSED and pos < len(data):
            self._keep(data[pos:])

    def _keep(self, rest: bytes) -> None:
        """Bytes for later: the beginning of a packet, or whatever came before a pause."""
        self._parts = bytearray(rest)
        self._parts_needed = whole_size(rest, 0)
        self.broker.partial_bytes += len(rest)

    def _let_go_of_parts(self) -> bytearray | None:
        parts, self._parts = self._parts, None
        if parts is not None:
            self.broker.partial_bytes -= len(parts)
        return parts

    # -- pauses -----------------------------------------------------------------------------------

    def pause(self, why: Pause) -> None:
        """Read nothing more; what has been read waits."""
        self._pauses |= why
        if self.is_reading:
            self.is_reading = False
            self.port.pause_reading()

    def resume(self, why: Pause, now: float) -> None:
        """This reason is gone; if it was the last, go on, first with what was read before."""
        if not self._pauses & why:
            return
        self._pauses &= ~why
        if self._pauses or self.is_closed():
            return
        self.is_reading = True
        self.last_seen = now
        parts = self._let_go_of_parts()
        if parts is not None:
            self._consume(bytes(parts), 0)
        if not self.is_paused() and not self.is_closed():
            self.port.resume_reading()
        self.broker.stir()

    def stop_reading(self) -> None:
        """For good: the connection is closed, and nothing that came behind is looked at."""
        self.is_reading = False
        self._let_go_of_parts()
        self.broker.timers.cancel(self._rate_timer)

    def is_paused(self) -> bool:
        return not self.is_reading

    def is_closed(self) -> bool:
        return self.state == State.CLOSED

    # -- reasons to pause ---------------------------------------------------------------------------

    def spend(self, count: int) -> None:
        """Take from the publish allowance; a client that is over it is read later."""
        rate = self.broker.limits.publish_rate_per_client
        if not rate:
            return
        now = self.last_seen
        self._tokens = min(2 * rate, self._tokens + (now - self._tokens_at) * rate) - count
        self._tokens_at = now
        if self._tokens < 0 and not self._pauses & Pause.RATE:
            self.pause(Pause.RATE)
            self._rate_timer = self.broker.timers.schedule(now - self._tokens / rate, _RateResume(self))

    def wait_turn(self) -> None:
        if not self.is_closed():
            self.pause(Pause.TURN)
            self.broker.wait_turn(self)

    def take_turn(self, now: float) -> None:
        self.resume(Pause.TURN, now)

    def stall(self) -> None:
        if not self.is_closed():
            self.pause(Pause.STORE)

    def go_on(self, now: float) -> None:
        self.resume(Pause.STORE, now)

    def withhold(self, acknowledgements: list[bytes], why: str) -> None:
        self.fail(self.refusal(Refusal.NO_STORE, why))

    def reply(self, frame: bytes) -> None:
        self.broker.reply(self, frame)
        self.check_backlog()

    def wait_for_commit(self) -> None:
        self.pause(Pause.COMMIT)

    def released(self, acknowledgements: list[bytes]) -> None:
        self.check_backlog()
        if self._pauses & Pause.COMMIT:
            self.resume(Pause.COMMIT, self.broker.now)

    def check_backlog(self) -> None:
        """A peer that sends and never reads its replies is read again when they are gone."""
        if self.backlog_bytes > self.broker.limits.outbox_bytes_per_connection:
            self.pause(Pause.BACKLOG)

    def on_blocked(self) -> None:
        self.broker.dispatcher.blocked(self)

    def on_unblocked(self, now: float) -> None:
        self.broker.dispatcher.unblocked(self)
        self.resume(Pause.BACKLOG, now)
        self.broker.stir()


def whole_size(data: bytes, pos: int) -> int:
    """How many bytes the packet that begins at `pos` has, there or not; 0 if that cannot be told yet."""
    shift = size = 0
    for header, byte in enumerate(data[pos + 1 : pos + 5], start=2):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return header + size
    return 0


class _RateResume:
    __slots__ = ("_intake",)

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def on_timer(self, now: float) -> None:
        self._intake.resume(Pause.RATE, now)
