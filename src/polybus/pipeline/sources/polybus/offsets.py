"""Offsets, ranges and what is missing, as decisions on facts. Pure.

An offset of the source is `{"0": 120, "1": 77}`: for each partition, everything before. Where records were
skipped (`failOnDataLoss` false), `"skipped"` counts their offsets since the query began: it is in the
checkpoint and in every progress report, so the count outlives restarts. `"id"` is the stream's: one that was
deleted and begun anew has another, whatever its offsets are. Checkpoints of before have none, and go on.
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from polybus.errors import PolybusError
from polybus.pipeline.sources.options import OptionError

SKIPPED: Final = "skipped"
ID: Final = "id"
BEGAN: Final = "began"
"""In checkpoints of before: how each partition began. Not looked at."""
MAX_OFFSET: Final = 2**63 - 1

Offset: TypeAlias = dict[str, int | str]


class Held(NamedTuple):
    """What a partition holds: `first` until before `next`."""

    first: int
    next: int


class Facts(NamedTuple):
    """What there is of a stream."""

    held: Mapping[int, Held]
    """By partition."""
    id: str = ""
    """Empty: an earlier broker wrote it, which gave none."""


class DataLoss(PolybusError):
    """Records that this query has not read are gone."""


class Planned(NamedTuple):
    offset: Offset
    lost: tuple[str, ...]
    """What is missing, in words."""


class Piece(NamedTuple):
    """Records of one partition: offsets `start` until before `end`."""

    partition: int
    start: int
    end: int


def as_offset(positions: Mapping[int, int], skipped: int = 0, id: str = "") -> Offset:
    """In one order, for Spark compares the text."""
    offset: Offset = {str(partition): positions[partition] for partition in sorted(positions)}
    if skipped:
        offset[SKIPPED] = skipped
    if id:
        offset[ID] = id
    return offset


def positions_of(offset: Mapping[str, int | str]) -> dict[int, int]:
    return {int(name): int(position) for name, position in offset.items() if name not in (SKIPPED, ID, BEGAN)}


def begun_anew(offset: Mapping[str, int | str], now: str) -> bool:
    """The offset is of another stream than the one with the id `now`."""
    before = offset.get(ID)
    return bool(before and now and before != now)


def plan(start: Offset, facts: Facts, *, max_rows: int | None = None, until: Offset | None = None) -> Planned:
    """Where the next batch ends. `until`: not further than there."""
    positions = positions_of(start)
    limits = positions_of(until) if until is not None else {}
    lost: list[str] = []
    skipped = int(start.get(SKIPPED, 0))
    held = facts.held
    is_anew = begun_anew(start, facts.id)
    begin: dict[int, int] = {}
    available: dict[int, int] = {}
    for partition in sorted(positions.keys() | held.keys()):
        there = held.get(partition)
        at = positions.get(partition, 0)
        if there is None:
            lost.append(f"partition {partition} is not there any more; this query has read it to offset {at}")
            continue
        if is_anew:
            lost.append(
                f"partition {partition}, which this query has read to offset {at}, was deleted:"
                " the stream was begun anew"
            )
            at = there.first
        elif at > there.next:
            lost.append(
                f"partition {partition} ends at offset {there.next}, before {at} where this query is:"
                " the stream was begun anew"
            )
            at = there.first
        elif at < there.first:
            lost.append(f"offsets {at} to {there.first - 1} of partition {partition} were dropped by retention")
            skipped += there.first - at
            at = there.first
        begin[partition] = at
        end = min(there.next, limits.get(partition, at)) if until is not None else there.next
        available[partition] = max(end - at, 0)
    taken = share(available, max_rows)
    ends = {p: begin[p] + taken[p] for p in begin}
    if ends == positions and not lost:
        return Planned(start, ())  # retention alone is no reason for a batch
    return Planned(as_offset(ends, skipped, facts.id), tuple(lost))


def share(available: Mapping[int, int], max_rows: int | None) -> dict[int, int]:
    """How many of each, at most `max_rows` in all, in proportion to what there is."""
    total = sum(available.values())
    if max_rows is None or total <= max_rows:
        return dict(available)
    taken = {partition: count * max_rows // total for partition, count in available.items()}
    left = max_rows - sum(taken.values())
    for partition in sorted(available, key=lambda each: taken[each] - available[each]):
        more = min(left, available[partition] - taken[partition], 1)
        taken[partition] += more
        left -= more
    return taken


def pieces(start: Offset, end: Offset, facts: Facts) -> tuple[list[Piece], tuple[str, ...]]:
    """What to read for a batch, and what of it is not there any more, in words."""
    begin, found, lost = positions_of(start), [], []
    # One that was begun anew since the batch was planned has none of its records, and may have their offsets.
    held = {} if begun_anew(end, facts.id) else facts.held
    is_anew = begun_anew(start, str(end.get(ID, "")))
    for partition, stop in positions_of(end).items():
        at = begin.get(partition, 0)
        if at > stop or is_anew:  # `plan` has said that the stream was begun anew
            at = 0
        first = held[partition].first if partition in held else stop
        if at < min(first, stop):
            lost.append(
                f"offsets {at} to {min(first, stop) - 1} of partition {partition} are not there any more"
            )
            at = min(first, stop)
        if partition in held and held[partition].next < stop:
            reached = max(held[partition].next, at)
            lost.append(
                f"offsets {reached} to {stop - 1} of partition {partition} are not there: it was begun anew"
            )
            stop = reached
        if at < stop:
            found.append(Piece(partition, at, stop))
    return found, tuple(lost)


def parse_positions(name: str, text: str, held: Mapping[int, Held]) -> dict[int, int]:
    """`{"0": 120, "1": "latest"}`: for every partition an offset, earliest or latest. Raises OptionError."""
    example = json.dumps({str(partition): 0 for partition in sorted(held)})
    try:
        given = json.loads(text)
        assert isinstance(given, dict)
    except (ValueError, AssertionError):
        raise OptionError(
            f"polybus: the option {name} is {text!r}; it must be earliest, latest,"
            f" timestamp:2030-01-31T12:00:00Z or offsets such as {example}"
        ) from None
    if given.keys() != {str(partition) for partition in held}:
        raise OptionError(
            f"polybus: the option {name} must name every partition and no other, such as {example}, not {text}"
        )
    return {int(key): _position(name, key, value, held[int(key)]) for key, value in given.items()}


def _position(name: str, key: str, value: object, there: Held) -> int:
    if value == "earliest":
        return there.first
    if value == "latest":
        return there.next
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_OFFSET:
        raise OptionError(
            f"polybus: the option {name} gives {value!r} for partition {key};"
            " it must be an offset, earliest or latest"
        )
    return value
