"""Messages that go out together as one BULK (TB-12). Nothing here reads a clock: callers pass `now`.

A piece is one or more whole messages, as bytes. `pass_on` takes pieces that are ready and gives what is to
be written, in BULKs of up to the size the peer takes; a message by itself goes as it is.

`AdaptiveBulker` never waits: what is ready together goes together, and more gathers by itself while the
link takes no bytes. `FixedBulker` follows the document: when messages come fast it gathers them for a
while. Only it has a `deadline`, at which `pass_on([], now)` gives what was gathered.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from polybus.session.tbus.options import BulkMode
from polybus.wire.tbus.codec import encode_bulk_header, next_frame

MAX_BULK_BYTES: Final = 256 * 1024
"""However much the peer takes: it may have to wait for the end of a BULK before it looks at the beginning."""
FAST_MESSAGES: Final = 10
FAST_S: Final = 0.010
"""Messages come fast when the last ten did so at an average distance under this."""
WINDOW_S: Final = 0.050

_PUBLISH_WITH_PRIORITY: Final = 0b0011_0010
_TYPE_AND_PRIORITY: Final = 0b1111_0010
_ANY_SIZE: Final = 1 << 30


class AdaptiveBulker:
    __slots__ = ("_limit",)

    deadline: float | None = None

    def __init__(self, limit: int) -> None:
        self._limit = min(limit, MAX_BULK_BYTES)

    def pass_on(self, pieces: list[bytes], now: float) -> list[bytes]:
        return pack(pieces, self._limit)

    def take_back(self) -> list[bytes]:
        """What was gathered and not passed on, as it came."""
        return []


class FixedBulker:
    __slots__ = ("_gathered", "_limit", "_size", "_times", "deadline")

    def __init__(self, limit: int) -> None:
        self.deadline: float | None = None
        """When the window that is open closes."""
        self._limit = min(limit, MAX_BULK_BYTES)
        self._gathered: list[bytes] = []
        self._size = 0
        self._times: deque[float] = deque(maxlen=FAST_MESSAGES)

    def pass_on(self, pieces: list[bytes], now: float) -> list[bytes]:
        urgent: list[bytes] = []
        for piece in pieces:
            self._times.extend([now] * _count(piece, FAST_MESSAGES))
            if piece[0] & _TYPE_AND_PRIORITY == _PUBLISH_WITH_PRIORITY:
                urgent.append(piece)
            else:
                self._gathered.append(piece)
                self._size += len(piece)
        if self.deadline is None:
            if not self._is_fast():
                return urgent + self.take_back()
            self.deadline = now + WINDOW_S
        if now >= self.deadline or self._size >= self._limit:
            return pack(urgent + self.take_back(), self._limit)
        return pack(urgent, self._limit)

    def take_back(self) -> list[bytes]:
        gathered, self._gathered = self._gathered, []
        self._size = 0
        self.deadline = None
        return gathered

    def _is_fast(self) -> bool:
        times = self._times
        return len(times) == FAST_MESSAGES and times[-1] - times[0] < FAST_S * (FAST_MESSAGES - 1)


Bulker: TypeAlias = AdaptiveBulker | FixedBulker


def bulker(mode: BulkMode, limit: int | None) -> Bulker | None:
    """For a peer that takes BULKs of `limit` bytes (their remaining length); None: there will be none."""
    if not limit or mode == "off":
        return None
    return AdaptiveBulker(limit) if mode == "adaptive" else FixedBulker(limit)


def pack(pieces: list[bytes], limit: int) -> list[bytes]:
    """The same messages in the same order, as BULKs wherever several fit into one."""
    packed: list[bytes] = []
    group: list[bytes] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > limit:
            _close(packed, group, size)
            group, size = [], 0
            if len(piece) > limit:
                packed += _divided(piece, limit)
                continue
        group.append(piece)
        size += len(piece)
    _close(packed, group, size)
    return packed


def _close(packed: list[bytes], group: list[bytes], size: int) -> None:
    if len(group) > 1 or (group and _count(group[0], 2) > 1):
        packed.append(encode_bulk_header(size))
    packed += group


def _divided(piece: bytes, limit: int) -> Iterator[bytes]:
    """A piece that is too large for one BULK; a message that is, goes by itself."""
    begin = stop = 0
    while (frame := next_frame(piece, stop, _ANY_SIZE)) is not None:
        start, stop = stop, frame[2]
        if stop - begin > limit:
            yield from _bulk(piece[begin:start])
            begin = start
    yield from _bulk(piece[begin:])


def _bulk(messages: bytes) -> Iterator[bytes]:
    if _count(messages, 2) > 1:
        yield encode_bulk_header(len(messages))
    if messages:
        yield messages


def _count(piece: bytes, enough: int) -> int:
    """How many messages there are; `enough` if there are more."""
    count = pos = 0
    while count < enough and (frame := next_frame(piece, pos, _ANY_SIZE)) is not None:
        pos = frame[2]
        count += 1
    return count
