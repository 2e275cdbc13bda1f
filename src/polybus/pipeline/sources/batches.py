"""Record batches and ranges of rows, on their way to Spark."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

ROWS: Final = 10_000
"""So many rows in a batch carry the cost of handing it to Spark."""
BYTES: Final = 16 << 20


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `ROWS`, or fewer that make `BYTES`; large ones pass as they are."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not len(batch):
            continue
        waiting.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield _one(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _one(waiting)


def split_range(start: int, end: int, rows_per_task: int) -> list[tuple[int, int]]:
    """Even pieces of at most `rows_per_task` rows; none for an empty range."""
    count = -(-(end - start) // rows_per_task) if end > start else 0
    return [
        (start + (end - start) * i // count, start + (end - start) * (i + 1) // count) for i in range(count)
    ]


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
