"""Where the records of a capture begin, and what of it cannot be read.

A record is found only through the one before it, so this is a loop over record headers: the one place
with Python per packet. The driver walks a file to cut it at record boundaries and executors walk their
range again; both use this code, from the same states to the same stops, so they find the same records.

Where a header cannot be true the walk looks for the next place from which several records follow one
another, and says what it left out: a `Damage` is a range of bytes with a reason (PL-04).
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from polybus.pipeline.sources.pcap.formats import (
    CLASSIC,
    ENHANCED_PACKET,
    INTERFACE_DESCRIPTION,
    KNOWN_BLOCKS,
    LARGEST_BLOCK,
    OBSOLETE_PACKET,
    RECORD_HEADER_BYTES,
    SECTION_HEADER,
    SIMPLE_PACKET,
    Buffer,
    NotACapture,
    State,
    interface_description,
    opening,
    section_order,
)

_CONFIRMATIONS: Final = 3
"""How many records must follow a place for it to be taken as one where records begin again."""
_SEARCH_BYTES: Final = 1 << 16
_LARGEST_ORIGINAL: Final = 1 << 24
_MOST_OPTIONS: Final = 1 << 16
_IMPOSSIBLE: Final = 0
_CUT_SHORT: Final = -1
_SECTION: Final = -2
"""A section says its own byte order: that is proof enough, and what follows is read in that order."""
_PACKET_BYTES: Final = {ENHANCED_PACKET: 32, OBSOLETE_PACKET: 32, SIMPLE_PACKET: 16}
"""Block type -> bytes of a block with an empty packet and no options."""


@dataclass(frozen=True)
class Cut:
    """A place where a record begins, and all one needs to know to read on from there."""

    offset: int
    state: State
    number: int = 1
    """Of the first packet at or after `offset`; they count from 1, as Wireshark does."""


@dataclass(frozen=True)
class Run:
    """Records in the order of the file, all readable with the same state."""

    state: State
    number: int
    offsets: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8] | None
    """The block types of pcapng; None in a classic file."""


@dataclass(frozen=True)
class Damage:
    """Bytes from `start` to `stop` that are no whole records, and why."""

    start: int
    stop: int
    reason: str


def first_cut(data: Buffer, size: int) -> Cut:
    """Where the records begin. Raises NotACapture."""
    state, offset = opening(data, size)
    return Cut(offset, state)


def cuts(data: Buffer, size: int, range_bytes: int) -> list[tuple[Cut, int]]:
    """Ranges of about `range_bytes`: where each begins, and the offset at which to stop.

    Raises NotACapture.
    """
    walker = Walker(data, size, first_cut(data, size))
    ranges: list[tuple[Cut, int]] = []
    while True:
        cut = walker.cut
        stop = cut.offset + range_bytes
        for _ in walker.walk(stop):
            pass
        ranges.append((cut, stop))
        if walker.cut.offset >= size:
            return ranges


class Walker:
    """Goes from record to record. `cut` is where it stands."""

    def __init__(self, data: Buffer, size: int, cut: Cut) -> None:
        self._data = data
        self._size = size
        self.cut = cut

    def walk(self, stop: int) -> Iterator[Run | Damage]:
        """Every record that begins before `stop`, and what is no record."""
        stop = min(stop, self._size)
        while self.cut.offset < stop:
            if self.cut.state.format == CLASSIC:
                yield from self._classic(stop)
            else:
                yield from self._blocks(stop)

    def _classic(self, stop: int) -> Iterator[Run | Damage]:
        data, size, state = self._data, self._size, self.cut.state
        pos, limit = self.cut.offset, state.largest_packet
        unpack = struct.Struct(f"{state.order}II").unpack_from
        last_header = min(stop, size - RECORD_HEADER_BYTES + 1)
        offsets: list[int] = []
        append = offsets.append
        captured = original = 1
        while pos < last_header:
            captured, original = unpack(data, pos + 8)
            if not 0 < captured <= original or captured > limit:
                if _is_no_record(captured, original, limit):
                    break
                # More than there was cannot be captured: if no record follows, this one leads astray.
                behind = pos + RECORD_HEADER_BYTES + captured
                if captured > original and behind + RECORD_HEADER_BYTES <= size:
                    following = unpack(data, behind + 8)
                    if _is_no_record(following[0], following[1], limit):
                        break
            append(pos)
            pos += RECORD_HEADER_BYTES + captured
        reason = ""
        if pos > size:
            pos = offsets.pop()
            captured, _ = unpack(data, pos + 8)
            there = size - pos - RECORD_HEADER_BYTES
            reason = f"the file ends inside a packet: {there} of {captured} bytes are there"
        elif pos < stop and pos >= last_header:
            reason = f"the file ends inside a record header: {size - pos} of {RECORD_HEADER_BYTES} bytes"
        elif pos < stop:
            reason = f"a record header says that {captured} of {original} bytes were captured"
        yield from self._found(offsets, None, pos)
        if reason:
            yield self._leave_out(pos, reason, _record_size(data, size, pos, state))

    def _blocks(self, stop: int) -> Iterator[Run | Damage]:
        """Blocks up to the next one that changes the state, or is damaged."""
        data, size, state = self._data, self._size, self.cut.state
        pos = self.cut.offset
        unpack = struct.Struct(f"{state.order}II").unpack_from
        unpack_length = struct.Struct(f"{state.order}I").unpack_from
        offsets: list[int] = []
        kinds: list[int] = []
        reason = ""
        while pos < stop:
            if pos + 12 > size:
                reason = f"the file ends inside a block: {size - pos} bytes are left"
                break
            kind, length = unpack(data, pos)
            if kind == SECTION_HEADER:
                try:
                    order = section_order(data, pos, size)
                except NotACapture as error:
                    reason = str(error)
                    break
                yield from self._found(offsets, kinds, pos)
                offsets, kinds = [], []
                if order != state.order:
                    unpack = struct.Struct(f"{order}II").unpack_from
                    unpack_length = struct.Struct(f"{order}I").unpack_from
                    _, length = unpack(data, pos)
                state = State(state.format, order)
                self.cut = replace(self.cut, state=state)
            if length < 12 or length % 4 or length > LARGEST_BLOCK:
                reason = f"a block of type {kind} says it has {length} bytes"
                break
            end = pos + length
            if end > size:
                reason = f"the file ends inside a block: {size - pos} of {length} bytes are there"
                break
            if unpack_length(data, end - 4) != (length,):
                (other,) = unpack_length(data, end - 4)
                reason = f"a block of type {kind} has {length} bytes by its beginning and {other} by its end"
                break
            if kind in _PACKET_BYTES:
                if length < _PACKET_BYTES[kind]:
                    reason = f"a packet block of type {kind} has only {length} bytes"
                    break
                offsets.append(pos)
                kinds.append(kind)
            elif kind == INTERFACE_DESCRIPTION:
                try:
                    interface = interface_description(data, state.order, pos, length)
                except NotACapture as error:
                    reason = str(error)
                    break
                yield from self._found(offsets, kinds, pos)
                offsets, kinds = [], []
                state = state.with_interface(interface)
                self.cut = replace(self.cut, state=state)
            pos = end
        yield from self._found(offsets, kinds, pos)
        if reason:
            yield self._leave_out(pos, reason, _block_size(data, size, pos, state))

    def _found(self, offsets: list[int], kinds: list[int] | None, pos: int) -> Iterator[Run]:
        number = self.cut.number
        self.cut = Cut(pos, self.cut.state, number + len(offsets))
        if offsets:
            types = None if kinds is None else np.array(kinds, np.uint8)
            yield Run(self.cut.state, number, np.array(offsets, np.int64), types)

    def _leave_out(self, pos: int, reason: str, length: int) -> Damage:
        """What is only cut short is the end of the file: a record inside it would be part of its payload."""
        resumes = self._size
        if length != _CUT_SHORT:
            resumes = next_record(self._data, self._size, pos + 1, self.cut.state)
        self.cut = replace(self.cut, offset=resumes)
        return Damage(pos, resumes, reason)


def _is_no_record(captured: int, original: int, limit: int) -> bool:
    """By what its header says, however strange it may be."""
    return captured > limit or not (captured or original)


def next_record(data: Buffer, size: int, start: int, state: State) -> int:
    """The first place from `start` on from which records follow one another; `size` if there is none.

    It depends on nothing but the file, so a range that begins elsewhere comes to the same place.
    """
    is_classic = state.format == CLASSIC
    find = _classic_candidates if is_classic else _block_candidates
    size_at = _record_size if is_classic else _block_size
    for base in range(start, size, _SEARCH_BYTES):
        # Headers reach past the window; where a window ends must not decide what is found.
        window = np.frombuffer(data, np.uint8, min(_SEARCH_BYTES + RECORD_HEADER_BYTES, size - base), base)
        for candidate in find(window, state):
            if candidate < _SEARCH_BYTES and _is_confirmed(data, size, base + candidate, state, size_at):
                return base + candidate
    return size


def _classic_candidates(window: npt.NDArray[np.uint8], state: State) -> list[int]:
    count = window.size - RECORD_HEADER_BYTES + 1
    if count <= 0:
        return []
    words = np.ndarray((window.size - 3,), f"{state.order}u4", window, strides=(1,))
    fraction, captured, original = (words[at : at + count] for at in (4, 8, 12))
    fits = (captured <= original) & (captured > 0) & (original < _LARGEST_ORIGINAL)
    fits &= (captured <= state.largest_packet) & (fraction < 10 ** state.interfaces[0].exponent)
    return [int(at) for at in np.flatnonzero(fits)]


def _block_candidates(window: npt.NDArray[np.uint8], state: State) -> list[int]:
    count = window.size - 11
    if count <= 0:
        return []
    words = np.ndarray((window.size - 3,), f"{state.order}u4", window, strides=(1,))
    kinds, lengths = words[:count], words[4 : 4 + count]
    fits = np.isin(kinds, list(KNOWN_BLOCKS)) & (lengths >= 12) & (lengths % 4 == 0)
    fits |= kinds == SECTION_HEADER  # its length may be of the other byte order
    return [int(at) for at in np.flatnonzero(fits)]


def _is_confirmed(
    data: Buffer, size: int, pos: int, state: State, size_at: Callable[[Buffer, int, int, State], int]
) -> bool:
    """Whether a few records follow one another from `pos`, or whole ones to the end of the file."""
    for step in range(_CONFIRMATIONS):
        length = size_at(data, size, pos, state)
        if length == _SECTION:
            return True
        if length == _CUT_SHORT:
            return step > 0
        if length == _IMPOSSIBLE:
            return False
        pos += length
        if pos == size:
            return True
    return True


def _record_size(data: Buffer, size: int, pos: int, state: State) -> int:
    if pos + RECORD_HEADER_BYTES > size:
        return _CUT_SHORT
    _, fraction, captured, original = struct.unpack_from(f"{state.order}IIII", data, pos)
    if not 0 < captured <= min(original, state.largest_packet) or original >= _LARGEST_ORIGINAL:
        return _IMPOSSIBLE
    if fraction >= 10 ** state.interfaces[0].exponent:
        return _IMPOSSIBLE
    whole = RECORD_HEADER_BYTES + captured
    return whole if pos + whole <= size else _CUT_SHORT


def _block_size(data: Buffer, size: int, pos: int, state: State) -> int:
    if pos + 12 > size:
        return _CUT_SHORT
    kind, length = struct.unpack_from(f"{state.order}II", data, pos)
    if kind == SECTION_HEADER:
        try:
            section_order(data, pos, size)
        except NotACapture:
            return _IMPOSSIBLE
        return _SECTION
    if kind not in KNOWN_BLOCKS or length < 12 or length % 4 or length > LARGEST_BLOCK:
        return _IMPOSSIBLE
    if kind == ENHANCED_PACKET and pos + 24 <= size:
        (captured,) = struct.unpack_from(f"{state.order}I", data, pos + 20)
        if not captured + 32 <= length <= captured + _MOST_OPTIONS:
            return _IMPOSSIBLE
    if pos + length > size:
        return _CUT_SHORT
    (other,) = struct.unpack_from(f"{state.order}I", data, pos + length - 4)
    return int(length) if other == length else _IMPOSSIBLE
