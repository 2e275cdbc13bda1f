"""Streams into frames, in spite of gaps.

Where a frame's end lies is known from its beginning. A gap inside a frame costs that frame and no other,
for its header tells where the next begins. A gap that hides where frames begin, and a capture that starts
in the middle, need a place to begin again: one from which several frames follow one another, and more of
them where no packet begins. Bytes that are in no frame are rejected with a reason, so that every byte has
one fate (PL-04).
"""

import itertools
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from polybus.pipeline.transforms.frames_types import Decoder, Unreadable

_CONFIRMATIONS: Final = 3
"""Frames that must follow one another from where a packet begins: senders like to begin both together."""
_CONFIRMATIONS_INSIDE: Final = 6
_MOST_SEARCHED: Final = 1 << 20
"""Bytes looked at one by one; farther on only the places where packets begin."""

NO_BEGINNING: Final = "no frame is known to begin here"
BEFORE_GAP: Final = "the frame is not whole"
OF_BROKEN: Final = "the rest of a frame that is not whole"


@dataclass(frozen=True)
class Span:
    """Bytes of a stream."""

    start: int
    data: bytes
    reason: str = ""

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


@dataclass
class Cutting:
    frames: list[Span] = field(default_factory=list)
    rejected: list[Span] = field(default_factory=list)

    @property
    def rejected_bytes(self) -> int:
        return sum(len(span.data) for span in self.rejected)


def cut_stream(
    runs: list[tuple[int, bytes]], decoder: Decoder, to_server: bool, packet_starts: list[int], is_whole: bool
) -> Cutting:
    """Cuts runs of bytes (position, bytes) into frames.

    `packet_starts` are the positions at which packets began, in rising order; `is_whole` says that the
    first byte of the stream, at position 0, is known.
    """
    cutter = _Cutter(decoder, to_server, packet_starts)
    known: int | None = 0 if is_whole else None
    for start, data in runs:
        known = cutter.run(start, data, known)
    return cutter.result


class _Cutter:
    def __init__(self, decoder: Decoder, to_server: bool, packet_starts: list[int]) -> None:
        self._decoder = decoder
        self._to_server = to_server
        self._packet_starts = packet_starts
        self.result = Cutting()

    def run(self, start: int, data: bytes, known: int | None) -> int | None:
        """Cuts one run; `known` and the result are where a frame begins, if that is known."""
        pos: int
        if known is None or known < start:
            pos = self._find_beginning(start, data, 0, NO_BEGINNING)
        elif known >= start + len(data):
            self._reject(start, data, OF_BROKEN)
            return known
        else:
            pos = known - start
            self._reject(start, data[:pos], OF_BROKEN)
        while pos < len(data):
            try:
                size = self._decoder.measure(data, pos, self._to_server)
            except Unreadable as error:
                pos = self._find_beginning(start, data, pos, str(error))
                continue
            if size is None or pos + size > len(data):
                wanted = "at least that many more" if size is None else str(size)
                self._reject(start + pos, data[pos:], f"{BEFORE_GAP}: {len(data) - pos} of {wanted} bytes")
                return None if size is None else start + pos + size
            self.result.frames.append(Span(start + pos, data[pos : pos + size]))
            pos += size
        return start + len(data)

    def _find_beginning(self, start: int, data: bytes, pos: int, reason: str) -> int:
        """The next place in the run where frames seem to begin; what lies before it is rejected."""
        # A place that was just found to be wrong is not tried again.
        first = pos if reason == NO_BEGINNING else pos + 1
        index = bisect_left(self._packet_starts, start + first)
        packets = [at - start for at in self._packet_starts[index:] if at - start < len(data)]
        inside = range(first, min(len(data), first + _MOST_SEARCHED))
        is_packet = set(packets)
        for at in itertools.chain(inside, (at for at in packets if at >= inside.stop)):
            if self._is_beginning(data, at, _CONFIRMATIONS if at in is_packet else _CONFIRMATIONS_INSIDE):
                self._reject(start + pos, data[pos:at], reason)
                return at
        self._reject(start + pos, data[pos:], reason)
        return len(data)

    def _is_beginning(self, data: bytes, pos: int, confirmations: int) -> bool:
        for step in range(confirmations):
            try:
                size = self._decoder.measure(data, pos, self._to_server)
            except Unreadable:
                return False
            if size is None:
                return step > 0
            if not self._decoder.is_plausible(data, pos, size, self._to_server):
                return False
            pos += size
            if pos == len(data):
                return True
            if pos > len(data):
                # A header alone proves little: it counts where a packet begins, or behind whole frames.
                return step > 0 or confirmations == _CONFIRMATIONS
        return True

    def _reject(self, start: int, data: bytes, reason: str) -> None:
        if data:
            self.result.rejected.append(Span(start, data, reason))
