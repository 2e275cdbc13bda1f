"""Which folders of an appended table count, and which are worth making one. Pure.

A batch writes `batch=12`. When batches 0 to 15 have become one it is `batch=015`: the number is that of the
last one, and the zeros before it say how often it was made from others, so it has a name of its own beside
`batch=15` and is the same number to whoever reads the folder's name as a column. From the moment it is there
it stands for all it was made from, whether those are still there or not: that moment is one rename.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

BATCH: Final = "batch"
FAN_IN: Final = 16
"""So many neighbours of a size become one: each row is written again once for every factor of so many."""
MOST_BYTES: Final = 128 << 20
"""Folders are not made larger than this: readers share work by files."""

_NAME: Final = re.compile(rf"{BATCH}=(0*)(0|[1-9]\d*)")


class Folder(NamedTuple):
    """Batches `first` to `last`."""

    name: str
    first: int
    last: int
    level: int = 0
    """0: as its batch wrote it."""

    @property
    def batches(self) -> int:
        return self.last - self.first + 1


def folder_name(last: int, level: int) -> str:
    return f"{BATCH}={'0' * level}{last}"


def parse_name(name: str) -> tuple[int, int] | None:
    """Number and level; None for what is no batch."""
    found = _NAME.fullmatch(name)
    return (int(found[2]), len(found[1])) if found else None


def in_force(folders: Iterable[Folder]) -> tuple[list[Folder], list[Folder]]:
    """Those that count, in order, and those that others stand for."""
    live: list[Folder] = []
    dead: list[Folder] = []
    for folder in sorted(folders, key=lambda each: (-each.level, each.first)):
        is_within = any(each.first <= folder.first and folder.last <= each.last for each in live)
        (dead if is_within else live).append(folder)
    return sorted(live, key=lambda each: each.first), dead


def plan_merges(
    folders: Sequence[Folder],
    size_bytes: Callable[[Folder], int],
    *,
    fan_in: int | None = FAN_IN,
    most_bytes: int = MOST_BYTES,
) -> list[list[Folder]]:
    """Neighbours that become one: `fan_in` of those that have about as many batches, in order; without a
    `fan_in`, all."""
    merges: list[list[Folder]] = []
    for alike in _alike(folders, fan_in):
        if not fan_in or len(alike) == fan_in:
            merges += _fitting(alike, size_bytes, most_bytes)
    return merges


def _alike(folders: Sequence[Folder], fan_in: int | None) -> list[list[Folder]]:
    """Neighbours without a gap, and of a tier."""
    rows: list[list[Folder]] = []
    for folder in folders:
        last = rows[-1][-1] if rows else None
        is_next = last is not None and folder.first == last.last + 1
        if fan_in and last is not None:
            is_next &= _tier(last, fan_in) == _tier(folder, fan_in) and len(rows[-1]) < fan_in
        if is_next:
            rows[-1].append(folder)
        else:
            rows.append([folder])
    return rows


def _tier(folder: Folder, fan_in: int) -> int:
    tier, batches = 0, folder.batches
    while batches >= fan_in:
        tier, batches = tier + 1, batches // fan_in
    return tier


def _fitting(
    folders: Sequence[Folder], size_bytes: Callable[[Folder], int], most_bytes: int
) -> list[list[Folder]]:
    """In pieces of at most `most_bytes`, of two or more."""
    pieces: list[list[Folder]] = [[]]
    total = 0
    for folder in folders:
        size = size_bytes(folder)
        if total + size > most_bytes and pieces[-1]:
            pieces.append([])
            total = 0
        pieces[-1].append(folder)
        total += size
    return [piece for piece in pieces if len(piece) > 1]
