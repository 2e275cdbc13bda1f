"""How far packets of one size begin alike.

To look at each packet is what reading a run costs most. So beyond the first few they are compared by columns:
all first bytes at once, all second bytes, and so on. A column is one slice and one comparison, however many
packets there are, which is some eight times as fast. With a long prefix there are many columns, and in few
packets each has little in it: a topic of some kilobytes would cost a thousand times as much as one by one.
"""

from typing import Final

FEW: Final = 8
"""Packets looked at one by one before columns are worth it; and packets for each column that make them so."""
MOST_COLUMNS: Final = 64


def alike_until(data: bytes, prefix: bytes, at: int, size: int, end: int, zero_at: int = 0) -> int:
    """Where the last whole packet ends of those that stand from `at` on, `size` bytes each, and begin with
    `prefix`; with `zero_at` they also have a zero there."""
    is_narrow = len(prefix) <= MOST_COLUMNS and end - at >= FEW * size * len(prefix)
    few = at + FEW * size if is_narrow else end
    while at + size <= few and data.startswith(prefix, at) and not (zero_at and data[at + zero_at]):
        at += size
    if at < few or few == end:
        return at
    columns = [(offset, prefix[offset : offset + 1]) for offset in range(len(prefix))]
    if zero_at:
        columns.append((zero_at, b"\0"))
    count = FEW
    is_done = False
    while not is_done and (count := min(2 * count, (end - at) // size)):
        for offset, byte in columns:
            column = data[at + offset : at + count * size : size]
            if column != byte * count:
                count -= len(column.lstrip(byte))
                is_done = True
        at += count * size
    return at
