"""Tracked messages that were taken from a neighbour (TB-15): what it sends again is recognised by its stamp.

A broker sends no more than a window ahead of what its state file knows to be acknowledged (`Flow.noted`), and
regular and priority messages each in their order. So what it may ever send again, also after it was killed, is
among the last of each that came: those are remembered, and no more.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

WINDOW: Final = 1_000
"""Tracked messages that a broker may have under way to a neighbour: not acknowledged, or acknowledged and not
yet noted where it would be found after a crash."""
MAX_TAKEN: Final = WINDOW + 100
"""Stamps that are remembered of each neighbour, of regular and of priority messages."""

Lane: TypeAlias = dict[int, tuple[str, ...]]


class Taken:
    __slots__ = ("_lanes",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """`numbers` as the state file has them."""
        self._lanes: tuple[Lane, Lane] = ({}, {})
        for number in numbers:
            self._lanes[number < 0][abs(number)] = ()

    def add(self, stamp: int, *, is_priority: bool) -> bool:
        """False: it was taken before."""
        lane = self._lanes[is_priority]
        if stamp in lane:
            return False
        lane[stamp] = ()
        if len(lane) > MAX_TAKEN:
            del lane[next(iter(lane))]
        return True

    def missed(self, stamp: int, *, is_priority: bool) -> tuple[str, ...]:
        """For which shared subscriptions it was not taken, if that is still known."""
        return self._lanes[is_priority].get(stamp, ())

    def miss(self, stamp: int, shares: tuple[str, ...], *, is_priority: bool) -> None:
        """It was taken, but not for these."""
        self._lanes[is_priority][stamp] = shares

    def forget(self, stamp: int, *, is_priority: bool) -> None:
        """It was not taken after all."""
        self._lanes[is_priority].pop(stamp, None)

    def numbers(self) -> Iterator[int]:
        """For the state file, in the order in which they came: those of priority messages are negative."""
        regular, priority = self._lanes
        yield from regular
        yield from (-stamp for stamp in priority)
