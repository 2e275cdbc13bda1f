"""When a broker took a message, as a number that orders messages of all brokers (TB-15).

A stamp is the wall clock in microseconds, but never less than one more than every stamp given or seen before:
a value that was published in knowledge of another is newer, whatever the clocks say. Of two values that nobody
compared, the clocks decide. A broker gives no stamp twice.
"""

from typing import Final

MICROSECONDS: Final = 1_000_000
MAX_AHEAD: Final = 24 * 3600 * MICROSECONDS
"""A stamp further in the future than this is the fault of a clock: it does not move ours."""
MAX_STAMP: Final = (1 << 63) - 1
"""Nobody may give a later one: it has to fit where it is stored and sent, and so does the next."""


class Stamps:
    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def give(self, wall_s: float) -> int:
        """The next one, at this time of the wall clock."""
        self._last = min(max(self._last + 1, int(wall_s * MICROSECONDS)), MAX_STAMP)
        return self._last

    def see(self, stamp: int, wall_s: float) -> None:
        """One that another broker gave, or this one before it was started."""
        if self._last < stamp <= int(wall_s * MICROSECONDS) + MAX_AHEAD:
            self._last = stamp
