"""The headers of records as columns: where a packet lies in the file, how long it is, and when it came."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from polybus.pipeline.sources.pcap.fields import Wrong
from polybus.pipeline.sources.pcap.formats import OBSOLETE_PACKET, RECORD_HEADER_BYTES, SIMPLE_PACKET, Interface
from polybus.pipeline.sources.pcap.walk import Run

Ints = npt.NDArray[np.int64]
_NS: Final = 1_000_000_000
_LAST_SECOND: Final = (1 << 63) // _NS - 1
"""Later than this, in the year 2262, nanoseconds do not fit into 64 bits."""
UNKNOWN_LINK: Final = -1


class Bytes:
    """A file in memory; numbers are gathered from any positions of it, aligned or not.

    A strided view that begins anew at every byte makes that one indexing operation a field.
    """

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data = data
        self._views: dict[str, npt.NDArray[np.generic]] = {}

    def at(self, dtype: str, pos: Ints) -> Ints:
        """The numbers of that dtype that begin at `pos`. Every position must lie within the file."""
        if dtype == "u1":
            return self.data[pos].astype(np.int64)
        return self._view(dtype)[pos].astype(np.int64)

    def raw(self, size: int, pos: Ints) -> npt.NDArray[np.generic]:
        """`size` bytes at each position, as opaque values one behind the other."""
        return self._view(f"V{size}")[pos]

    def _view(self, dtype: str) -> npt.NDArray[np.generic]:
        view = self._views.get(dtype)
        if view is None:
            kind = np.dtype(dtype)
            count = max(self.data.size - kind.itemsize + 1, 0)
            view = self._views[dtype] = np.ndarray((count,), kind, self.data, strides=(1,))
        return view


@dataclass(frozen=True)
class Records:
    """One value a record. `start` and `end` are where the captured bytes lie in the file."""

    number: Ints
    file_offset: Ints
    start: Ints
    end: Ints
    original_length: Ints
    time_ns: Ints
    has_time: npt.NDArray[np.bool_]
    interface: Ints
    link_type: Ints
    wrong: npt.NDArray[np.uint8]


def read_records(data: Bytes, run: Run, begin: int, end: int) -> Records:
    """The columns of the records `begin` to `end` of a run."""
    offsets = run.offsets[begin:end]
    number = np.arange(run.number + begin, run.number + begin + offsets.size, dtype=np.int64)
    if run.kinds is None:
        return _classic(data, run, offsets, number)
    return _blocks(data, run, offsets, run.kinds[begin:end], number)


def _classic(data: Bytes, run: Run, offsets: Ints, number: Ints) -> Records:
    u32 = f"{run.state.order}u4"
    interface = run.state.interfaces[0]
    seconds, fraction = data.at(u32, offsets), data.at(u32, offsets + 4)
    captured, original = data.at(u32, offsets + 8), data.at(u32, offsets + 12)
    start = offsets + RECORD_HEADER_BYTES
    count = offsets.size
    return Records(
        number=number,
        file_offset=offsets,
        start=start,
        end=start + captured,
        original_length=original,
        time_ns=seconds * _NS + fraction * 10 ** (9 - interface.exponent),
        has_time=np.ones(count, np.bool_),
        interface=np.zeros(count, np.int64),
        link_type=np.full(count, interface.link_type, np.int64),
        wrong=np.zeros(count, np.uint8),
    )


def _blocks(data: Bytes, run: Run, offsets: Ints, kinds: npt.NDArray[np.uint8], number: Ints) -> Records:
    order, interfaces = run.state.order, run.state.interfaces
    u32, u16 = f"{order}u4", f"{order}u2"
    length = data.at(u32, offsets + 4)
    is_simple = kinds == SIMPLE_PACKET
    # A simple packet block is shorter than the others: read those fields where it has some, and drop them.
    fields = np.where(is_simple, offsets - 12, offsets)
    fields = np.where(fields < 0, offsets, fields)
    interface = np.where(kinds == OBSOLETE_PACKET, data.at(u16, fields + 8), data.at(u32, fields + 8))
    interface[is_simple] = 0
    high, low = data.at(u32, fields + 12), data.at(u32, fields + 16)
    captured, original = data.at(u32, fields + 20), data.at(u32, fields + 24)
    start = offsets + 28
    room = length - 32
    wrong = np.zeros(offsets.size, np.uint8)
    if is_simple.any():
        # It has no captured length: that is the original one up to the snap length of interface 0.
        original = np.where(is_simple, data.at(u32, offsets + 8), original)
        limit = interfaces[0].snap_length if interfaces else 0
        start = np.where(is_simple, offsets + 12, start)
        room = np.where(is_simple, length - 16, room)
        captured = np.where(is_simple, np.minimum(np.minimum(original, limit or original), room), captured)
    wrong[captured > room] = Wrong.RECORD_LENGTH
    captured = np.minimum(captured, room)

    time_ns = np.zeros(offsets.size, np.int64)
    has_time = ~is_simple
    link_type = np.full(offsets.size, UNKNOWN_LINK, np.int64)
    ticks = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    for index, described in enumerate(interfaces):
        chosen = interface == index
        if not chosen.any():
            continue
        link_type[chosen] = described.link_type
        nanoseconds, in_range = _nanoseconds(ticks[chosen], described)
        time_ns[chosen] = nanoseconds
        has_time[chosen] &= in_range
    wrong[~has_time & ~is_simple & (wrong == 0)] = Wrong.TIME
    missing = link_type == UNKNOWN_LINK
    wrong[missing] = Wrong.INTERFACE
    has_time &= ~missing
    end = start + captured
    return Records(number, offsets, start, end, original, time_ns, has_time, interface, link_type, wrong)


def _nanoseconds(ticks: npt.NDArray[np.uint64], interface: Interface) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Ticks as nanoseconds of the epoch, and which of them fit."""
    exponent = interface.exponent
    seconds: npt.NDArray[np.uint64]
    rest: npt.NDArray[np.uint64]
    if interface.is_binary:
        if exponent > 33:  # beyond a tenth of a nanosecond, and the product below would overflow
            ticks, exponent = ticks >> np.uint64(min(exponent - 33, 63)), 33
        seconds = ticks >> np.uint64(exponent)
        rest = (ticks & np.uint64((1 << exponent) - 1)) * np.uint64(_NS) >> np.uint64(exponent)
    else:
        if exponent > 9:
            ticks, exponent = ticks // np.uint64(10 ** min(exponent - 9, 19)), 9
        seconds, rest = np.divmod(ticks, np.uint64(10**exponent))
        rest = rest * np.uint64(10 ** (9 - exponent))
    whole = np.minimum(seconds, np.uint64(_LAST_SECOND)).astype(np.int64) + interface.offset_s
    in_range = (
        (seconds < _LAST_SECOND) & (np.abs(whole) < _LAST_SECOND) & (abs(interface.offset_s) < _LAST_SECOND)
    )
    return np.where(in_range, whole, 0) * _NS + rest.astype(np.int64), in_range
