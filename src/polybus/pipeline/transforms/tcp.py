"""What each side of a TCP connection said, from the packets that carried it.

Pure functions over arrays in capture order. A byte counts once, as it was first seen: what comes again is
a retransmission, what differs when it comes again is a conflict, and what never came is a gap with a
reason. Positions count from the first byte after the SYN, or from the first byte seen where the capture
began later. Sequence numbers wrap at 2^32; they are unwound by the distance from one packet to the next,
which is right as long as no two packets that follow each other are 2 GiB apart.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

_FARTHEST: Final = 1 << 30
"""The largest window TCP can have (RFC 7323). What is farther away belongs to another time."""

LOST: Final = "not in the capture"
SNAPPED: Final = "cut off by the snap length"
OUTSIDE: Final = "outside the window of the connection"
IN_RESET: Final = "data in a reset"


class Kind(IntEnum):
    """What a segment is to its stream."""

    EMPTY = 0
    NEW = 1
    OUT_OF_ORDER = 2
    """New, but later bytes were seen before it: reordered, or sent again where the first was lost before us."""
    PARTLY_AGAIN = 3
    RETRANSMISSION = 4
    KEEP_ALIVE = 5
    IGNORED = 6


@dataclass(frozen=True)
class Segments:
    """One side's packets in capture order. `payload` may be shorter than `length` says, by the snap length."""

    seq: Ints
    flags: Ints
    length: Ints
    payload: Sequence[bytes]


class Piece(NamedTuple):
    """Bytes `start` to `stop` of a stream, as `packet` was the first to bring them."""

    start: int
    stop: int
    packet: int
    skip: int
    """How many bytes of the packet's payload come before."""


@dataclass(frozen=True)
class Gap:
    start: int
    stop: int
    reason: str


@dataclass
class Stream:
    """What one side sent."""

    pieces: list[Piece] = field(default_factory=list)
    """In the order of the stream, none overlapping."""
    gaps: list[Gap] = field(default_factory=list)
    kinds: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    has_start: bool = False
    has_end: bool = False
    was_reset: bool = False
    sent_bytes: int = 0
    """Captured payload of all segments."""
    duplicate_bytes: int = 0
    conflict_bytes: int = 0
    """Bytes that were sent again, and were not the same."""
    ignored: list[tuple[int, str]] = field(default_factory=list)
    """Segments whose bytes are not part of the stream, and why."""


class Coverage:
    """Which positions were seen: intervals that neither touch nor overlap, in rising order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    @property
    def end(self) -> int | None:
        return self._stops[-1] if self._stops else None

    def intervals(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._stops, strict=True))

    def add(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Marks start to stop, and gives the parts of it that are new."""
        starts, stops = self._starts, self._stops
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return [(start, stop)]
        if start == stops[-1]:
            stops[-1] = stop
            return [(start, stop)]
        first = bisect_left(stops, start)  # the first interval that reaches start
        last = bisect_right(starts, stop)  # the first that begins behind stop
        fresh: list[tuple[int, int]] = []
        at = start
        for index in range(first, last):
            if at < starts[index]:
                fresh.append((at, starts[index]))
            at = max(at, stops[index])
        if at < stop:
            fresh.append((at, stop))
        if first < last:
            start, stop = min(start, starts[first]), max(stop, stops[last - 1])
        starts[first:last] = [start]
        stops[first:last] = [stop]
        return fresh


def split_connections(seq: Ints, flags: Ints, is_forward: npt.NDArray[np.bool_]) -> Ints:
    """Which connection each packet between two ports belongs to: 0, 1, ... as ports are used again.

    Another connection begins with a SYN whose sequence number is not the one its side began with.
    """
    result = np.zeros(seq.size, np.int64)
    opened: dict[bool, int] = {}
    current = 0
    previous = 0
    for index in np.flatnonzero(flags & SYN):
        side = bool(is_forward[index])
        number = int(seq[index])
        is_reply = bool(flags[index] & ACK)
        known = opened.get(side)
        result[previous:index] = current
        previous = int(index)
        if known == number:
            continue  # sent again
        # A capture that began in the middle has packets before the first SYN; a reply has its SYN before it.
        begun_unseen = not opened and index > 0 and not is_reply
        other_side_waits = known is None and len(opened) == 1
        if known is not None or (begun_unseen and not other_side_waits):
            current += 1
            opened = {}
        opened[side] = number
    result[previous:] = current
    return result


def reassemble(segments: Segments) -> Stream:
    """The stream that one side's segments of one connection make."""
    stream = Stream()
    if not segments.seq.size:
        return stream
    is_syn = (segments.flags & SYN) != 0
    stream.has_start = bool(is_syn.any())
    stream.has_end = bool((segments.flags & FIN).any())
    stream.was_reset = bool((segments.flags & RST).any())
    positions = _unwind(segments)
    origin = int(positions[is_syn][0]) + 1 if stream.has_start else None
    # A SYN takes the number before the first byte; with data it carries the bytes behind it.
    starts, flags, lengths = (positions + is_syn).tolist(), segments.flags.tolist(), segments.length.tolist()
    sweep = _Sweep(stream, origin)
    kinds = [
        sweep.take(index, start, flag, length, segments.payload[index])
        for index, (start, flag, length) in enumerate(zip(starts, flags, lengths, strict=True))
    ]
    stream.kinds = np.array(kinds, np.uint8)
    sweep.finish(segments.payload)
    return stream


class _Sweep:
    """Goes through the segments in capture order, and knows what was seen before each."""

    def __init__(self, stream: Stream, origin: int | None) -> None:
        self._stream = stream
        self._origin = origin
        self._seen = Coverage()
        """By what the headers say."""
        self._have = Coverage()
        """By what was captured."""
        self._pieces: list[Piece] = []
        self._again: list[tuple[int, int, int]] = []
        self._controls: set[tuple[int, int]] = set()
        """SYN and FIN take a sequence number like a byte, and are sent again like one."""

    def take(self, index: int, start: int, flags: int, length: int, payload: bytes) -> Kind:
        if not length:
            return self._take_empty(start, flags)
        stream, end = self._stream, self._seen.end
        stream.sent_bytes += len(payload)
        anchor = self._origin if end is None else end
        if flags & RST or (anchor is not None and abs(start - anchor) > _FARTHEST):
            if payload:
                stream.ignored.append((index, IN_RESET if flags & RST else OUTSIDE))
            return Kind.IGNORED
        kind = _kind(start, length, end, self._seen.add(start, start + length))
        if payload:
            stop = start + len(payload)
            fresh = self._have.add(start, stop)
            self._pieces += [Piece(a, b, index, a - start) for a, b in fresh]
            if fresh != [(start, stop)]:
                stream.duplicate_bytes += len(payload) - sum(b - a for a, b in fresh)
                self._again.append((start, stop, index))
        return kind

    def _take_empty(self, start: int, flags: int) -> Kind:
        control = (flags & (SYN | FIN), start)
        if control[0]:
            if control in self._controls:
                return Kind.RETRANSMISSION
            self._controls.add(control)
        elif not flags & RST and self._seen.end is not None and start == self._seen.end - 1:
            return Kind.KEEP_ALIVE
        return Kind.EMPTY

    def finish(self, payload: Sequence[bytes]) -> None:
        """Puts the pieces in order, and says what is missing between them."""
        stream, pieces = self._stream, sorted(self._pieces)
        stream.conflict_bytes = _conflicts(pieces, self._again, payload)
        seen = self._seen.intervals()
        base = self._origin
        if base is None or (seen and seen[0][0] < base):
            base = seen[0][0] if seen else 0
        stream.pieces = [Piece(p.start - base, p.stop - base, p.packet, p.skip) for p in pieces]
        stream.gaps = _gaps(self._have.intervals(), seen, base)


def contiguous(stream: Stream, payload: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """The stream's bytes: where each run without a gap begins, and the run."""
    runs: list[tuple[int, list[bytes]]] = []
    end = None
    for piece in stream.pieces:
        part = payload[piece.packet][piece.skip : piece.skip + piece.stop - piece.start]
        if piece.start == end:
            runs[-1][1].append(part)
        else:
            runs.append((piece.start, [part]))
        end = piece.stop
    return [(start, b"".join(parts)) for start, parts in runs]


def _unwind(segments: Segments) -> Ints:
    """Sequence numbers without the wrap. A reset may carry any number: it stays where its side was."""
    seq = segments.seq.copy()
    resets = np.flatnonzero(segments.flags & RST)
    for index in resets:
        if index:
            seq[index] = seq[index - 1]
    steps = np.diff(seq).astype(np.uint32).view(np.int32).astype(np.int64)
    return np.concatenate((seq[:1], seq[0] + np.cumsum(steps)))


def _kind(start: int, length: int, end: int | None, fresh: list[tuple[int, int]]) -> Kind:
    if not fresh:
        # A probe that keeps the connection alive repeats the last byte (RFC 9293, section 3.8.4).
        return Kind.KEEP_ALIVE if length == 1 and end is not None and start == end - 1 else Kind.RETRANSMISSION
    if sum(b - a for a, b in fresh) < length:
        return Kind.PARTLY_AGAIN
    return Kind.OUT_OF_ORDER if end is not None and start < end else Kind.NEW


def _conflicts(pieces: list[Piece], again: list[tuple[int, int, int]], payload: Sequence[bytes]) -> int:
    """How many bytes that were sent again differ from what was sent first."""
    count = 0
    starts = [piece.start for piece in pieces]
    for start, stop, index in again:
        for at in range(max(bisect_right(starts, start) - 1, 0), len(pieces)):
            piece = pieces[at]
            if piece.start >= stop:
                break
            a, b = max(start, piece.start), min(stop, piece.stop)
            if piece.packet == index or a >= b:
                continue
            first = payload[piece.packet][piece.skip + a - piece.start : piece.skip + b - piece.start]
            second = payload[index][a - start : b - start]
            if first != second:
                count += sum(x != y for x, y in zip(first, second, strict=True))
    return count


def _gaps(have: list[tuple[int, int]], seen: list[tuple[int, int]], base: int) -> list[Gap]:
    """What lies before, between and behind the bytes that there are, up to the last one known of."""
    gaps: list[Gap] = []
    at = base
    end = max((stop for _, stop in seen), default=base)
    for start, stop in [*have, (end, end)]:
        if start > at:
            gaps += _named(at, start, seen, base)
        at = max(at, stop)
    return gaps


def _named(start: int, stop: int, seen: list[tuple[int, int]], base: int) -> list[Gap]:
    """A gap in parts: what packets carried and the snap length cut off, and what no packet carried."""
    parts: list[Gap] = []
    first = bisect_right(seen, start, key=lambda interval: interval[1])
    while start < stop:
        a, b = seen[first] if first < len(seen) else (stop, stop)
        first += 1
        if a > start:
            parts.append(Gap(start - base, min(a, stop) - base, LOST))
        if min(b, stop) > max(a, start):
            parts.append(Gap(max(a, start) - base, min(b, stop) - base, SNAPPED))
        start = max(start, min(b, stop))
    return parts
