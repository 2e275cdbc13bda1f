"""What a stream holds, read from its files with Arrow alone: the broker's own readers are not asked."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.crash.books import Audience, Books, Stream
from tests.e2e.crash.roles import parse

NAME = "crash"
KIND = "records, QoS {}"
BY_PAHO = "records, QoS 2 by paho"
"""It sends some messages anew (`paho_pair`)."""
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
    """Everything acknowledged is to be in the log, from the first message on; at QoS 2 once.

    At QoS 1 a crash between the commit and the acknowledgement makes the publisher send it again, as a new
    message for every broker [MQTT-4.3.2-5]: these are counted.
    """
    for stream in books.streams.values():
        if stream.name.startswith("crash/"):
            name = kind_of(stream)
            audience = books.audiences.get(name) or books.admit(Audience(name, stream.qos, kind=name))
            audience.due_after[stream.name] = 0


def kind_of(stream: Stream) -> str:
    return BY_PAHO if stream.is_doubtful else KIND.format(stream.qos)


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
    """Into the books: what is there, and whether offsets and partitions are as promised.

    Offsets of what was cut off at a start stay unused, so they may leave gaps.
    """
    next_offset: dict[int, int] = {}
    home: dict[str, int] = {}
    for record in records:
        expected = next_offset.setdefault(record.partition, 0)
        if record.offset < expected:
            books.strange.append(f"partition {record.partition}: offset {record.offset} behind {expected - 1}")
        next_offset[record.partition] = record.offset + 1
        if home.setdefault(record.topic, record.partition) != record.partition:
            books.strange.append(f"{record.topic} is in partitions {home[record.topic]} and {record.partition}")
        stream, number = parse(record.payload)
        if stream != record.topic:
            books.strange.append(f"{record.topic} has a message of {stream}")
        books.arrive(kind_of(books.streams[stream]), stream, number)
