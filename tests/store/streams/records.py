"""Records to write, and ways to look at what was written."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

from polybus.store.streams.columns import build
from polybus.store.streams.format import SCHEMA_BYTES, Records, encode_batch
from polybus.store.streams.ipc import Compression
from polybus.store.streams.pieces import Piece


def piece(payload: bytes, topic: str = "a/b", time: int = 1_000_000, **values: object) -> Piece:
    return Piece(topic.encode(), 1, payload, 0, len(payload), 0, time, b"tester", **values)  # type: ignore[arg-type]


def batch(first: int, payloads: Iterable[bytes], time: int = 1_000_000) -> Records:
    return build([piece(payload, time=time) for payload in payloads], first)


def message(first: int, payloads: Iterable[bytes], time: int = 1_000_000) -> bytes:
    return b"".join(encode_batch(batch(first, payloads, time))[1])


def read_back(records: Records, compression: Compression = "none", commit: int = 0) -> pa.RecordBatch:
    """As Arrow finds them, checked."""
    data = SCHEMA_BYTES + b"".join(encode_batch(records, compression, commit)[1])
    found = pa.ipc.open_stream(data).read_next_batch()
    found.validate(full=True)
    return found


def segment(*sizes: int, first: int = 0) -> bytes:
    """A segment file with batches of so many records."""
    parts = [SCHEMA_BYTES]
    for size in sizes:
        parts.append(message(first, [b"%d" % (first + n) for n in range(size)], time=1_000_000 + first))
        first += size
    return b"".join(parts)


def read_files(folder: Path) -> list[dict[str, object]]:
    """Every record below a folder, with pyarrow alone."""
    found: list[dict[str, object]] = []
    for path in sorted(folder.rglob("*.arrow")):
        with pa.OSFile(str(path)) as file, pyarrow.ipc.open_stream(file) as reader:
            for each in reader:
                found += each.to_pylist()
    return found


def payloads(records: Sequence[dict[str, object]]) -> list[object]:
    return [record["payload"] for record in records]
