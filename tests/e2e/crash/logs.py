"""What a stream holds, read from its files with Arrow alone: the broker's own readers are not asked."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.crash.books import Audience, Books
from tests.e2e.crash.roles import parse

NAME = "crash"
AUDIENCE = "the stream"
KIND = "records of a stream"
PARTITIONS = 3

# Small segments, so that a run fills many.
CONFIG = f"""
[[stream]]
name = "{NAME}"
filters = ["crash/#"]
partitions = {PARTITIONS}
segment_bytes = 100000

[http]
enabled = false
"""


class Record(NamedTuple):
    partition: int
    offset: int
    topic: str
    payload: bytes


def expect(books: Books) -> None:
    """Everything acknowledged is to be in the log, from the first message on.

    At QoS 1 at best: a log is appended to before the acknowledgement, so that a crash in between makes the
    publisher send it again, and the log has it twice.
    """
    audience = books.admit(Audience(AUDIENCE, 1, kind=KIND))
    for stream in books.streams.values():
        if stream.name.startswith("crash/"):
            audience.due_after[stream.name] = 0


def read_records(data: Path) -> Iterator[Record]:
    """Of a broker that has ended; segments in the order of their names, which are their first offsets."""
    import pyarrow as pa  # only those who look at streams need it

    for partition in range(PARTITIONS):
        for path in sorted((data / "streams" / NAME / str(partition)).glob("*.arrow")):
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    columns = (batch.column(name).to_pylist() for name in ("offset", "topic", "payload"))
                    yield from (Record(partition, *values) for values in zip(*columns, strict=True))


def note(books: Books, records: Iterable[Record]) -> None:
    """Into the books: what is there, and whether offsets and partitions are as promised."""
    next_offset: dict[int, int] = {}
    home: dict[str, int] = {}
    for record in records:
        expected = next_offset.setdefault(record.partition, 0)
        if record.offset != expected:
            books.strange.append(f"partition {record.partition}: offset {record.offset} instead of {expected}")
        next_offset[record.partition] = record.offset + 1
        if home.setdefault(record.topic, record.partition) != record.partition:
            books.strange.append(f"{record.topic} is in partitions {home[record.topic]} and {record.partition}")
        stream, number = parse(record.payload)
        if stream != record.topic:
            books.strange.append(f"{record.topic} has a message of {stream}")
        books.arrive(AUDIENCE, stream, number)
