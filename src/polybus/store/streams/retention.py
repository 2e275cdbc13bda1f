"""Which segments go, and when a new one begins: decisions on facts, without files or clocks."""

from collections.abc import Sequence
from typing import NamedTuple


class Retention(NamedTuple):
    """0: without limit."""

    max_age_s: float = 0.0
    max_bytes: int = 0
    """Of the whole stream."""


class SegmentFacts(NamedTuple):
    partition: int
    first: int
    size_bytes: int
    max_time: int
    """Microseconds since 1970; 0: it holds nothing."""


def expired(segments: Sequence[SegmentFacts], retention: Retention, now_us: int) -> list[SegmentFacts]:
    """Those to drop, oldest first. `segments` are the full ones; the one being written always stays."""
    kept = _by_age(segments)
    gone = 0
    if retention.max_age_s:
        limit = now_us - int(retention.max_age_s * 1_000_000)
        while gone < len(kept) and kept[gone][0] < limit:
            gone += 1
    if retention.max_bytes:
        size = sum(each.size_bytes for _, each in kept[gone:])
        while size > retention.max_bytes:
            size -= kept[gone][1].size_bytes
            gone += 1
    return [each for _, each in kept[:gone]]


def _by_age(segments: Sequence[SegmentFacts]) -> list[tuple[int, SegmentFacts]]:
    """With the time up to which each counts as used, never later than that of a segment behind it: a clock that
    was set back must neither leave a hole in a partition nor keep old records for ever."""
    aged: list[tuple[int, SegmentFacts]] = []
    latest: dict[int, int] = {}
    for each in sorted(segments, key=lambda each: each.first, reverse=True):
        time = min(each.max_time, latest.get(each.partition, each.max_time))
        latest[each.partition] = time
        aged.append((time, each))
    return sorted(aged, key=lambda entry: (entry[0], entry[1].partition, entry[1].first))


def must_roll(
    size_bytes: int, batches: int, age_s: float, *, segment_bytes: int, segment_age_s: float, max_batches: int
) -> bool:
    """The segment being written is full, or so old that what is in it should be able to go."""
    if not batches:
        return False
    is_old = segment_age_s > 0 and age_s >= segment_age_s
    return is_old or size_bytes >= segment_bytes or batches >= max_batches
