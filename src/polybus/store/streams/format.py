"""The segment file, as functions on bytes: what is written, and what is found again.

A segment is an Arrow IPC stream: a schema message, then record batches, so that
`pyarrow.ipc.open_stream(file)` reads it. Every batch carries a seal in its custom metadata: a text of
fixed width with the offsets and times of its records, the length of the message, a checksum of its head and
one of all of it (each but the checksums themselves). So a batch can be found, placed and checked without
decoding it, wherever its bytes have gone. A segment that is full ends with Arrow's end-of-stream mark,
behind which Arrow reads no further, and an index of its batches.
"""

import functools
import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from polybus.store.streams.ipc import CONTINUATION, Blocks, Body, Buffer, Compression, Head

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("client_id", pa.string(), nullable=False),
        pa.field(
            "user_properties",
            pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])),
            nullable=False,
        ),
        pa.field("priority", pa.bool_(), nullable=False),
    ],
    metadata={"polybus.stream": "1"},
)
SCHEMA_BYTES: Final[bytes] = SCHEMA.serialize().to_pybytes()
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

_MARK: Final = b"polybus-batch-1:"
_SEAL_DIGITS: Final = 88
"""Checksum and checksum of the head, 8 each; then length 16, first offset 16, rows 8, times 16 each."""
_BLANK_SEAL: Final = _MARK + b"0" * _SEAL_DIGITS
_COMMIT: Final = b"polybus-commit-1:"
_COMMIT_DIGITS: Final = 16
_MAX_METADATA: Final = 64 * 1024
HEAD_BYTES: Final = 4096
"""More than the head of any batch of ours has."""
_INDEX_MAGIC: Final = b"polybus-index-1\n"
_ENTRY: Final = struct.Struct("<QQQIQQ")
_TRAILER: Final = struct.Struct("<II16s")


class Batch(NamedTuple):
    """Where a batch is in its file, and what is in it."""

    first: int
    """Offset of its first record."""
    at: int
    size: int
    rows: int
    min_time: int
    max_time: int
    """Microseconds since 1970, of its records."""

    @property
    def next(self) -> int:
        return self.first + self.rows

    @property
    def end(self) -> int:
        return self.at + self.size


class Damage(NamedTuple):
    """Bytes that are no batch, or not the one they were."""

    at: int
    end: int
    reason: str


class Scan(NamedTuple):
    batches: tuple[Batch, ...]
    damages: tuple[Damage, ...]
    end: int
    """Where the last whole batch ends."""
    is_cut: bool
    """Behind that is the beginning of a batch and no more: the writer ended in the middle of it."""
    is_sealed: bool


class NotASegment(ValueError):
    """These bytes are not a segment of ours; the text says why."""


_WORTH_COMPRESSING: Final = 16
"""Records; fewer would take more room than without. But what is packed already has to be said so."""
_SAMPLE: Final = pa.RecordBatch.from_pylist(
    [
        {
            "offset": 0,
            "time": 0,
            "topic": "",
            "payload": b"",
            "qos": 0,
            "retain": False,
            "client_id": "",
            "user_properties": [],
            "priority": False,
        }
    ],
    SCHEMA,
)


class Records(NamedTuple):
    """The columns of a batch, before they are packed."""

    first: int
    rows: int
    properties: int
    """Of all rows together."""
    min_time: int
    max_time: int
    buffers: Sequence[Buffer]
    """As Arrow counts them: column by column, each with its validity first."""


Encoded: TypeAlias = tuple[Batch, Sequence[memoryview | bytes]]
"""What a batch is, and its message, in pieces to be written one behind the other."""


@functools.cache
def _head_of(compression: Compression, has_commit: bool) -> Head:
    said = {"polybus": _BLANK_SEAL}
    if has_commit:
        said["polybus-commit"] = _COMMIT + b"0" * _COMMIT_DIGITS
    return Head(_SAMPLE, compression, said)


def encode_batch(records: Records, compression: Compression = "none", commit: int = 0) -> Encoded:
    """`commit` is the one of the state that they belong to; 0: none."""
    rows = records.rows
    is_packed = any(isinstance(buffer, Blocks) for buffer in records.buffers)
    compression = compression if is_packed or rows >= _WORTH_COMPRESSING else "none"
    body = Body(records.buffers, compression)
    inner = records.properties
    nodes = (rows, rows, rows, rows, rows, rows, rows, rows, inner, inner, inner, rows)
    head = bytes(_head_of(compression, bool(commit)).filled(nodes, body))
    if commit:
        head = head.replace(_COMMIT + b"0" * _COMMIT_DIGITS, b"%s%0*x" % (_COMMIT, _COMMIT_DIGITS, commit))
    noted = Batch(records.first, 0, len(head) + body.size, rows, records.min_time, records.max_time)
    facts = f"{noted.size:016x}{noted.first:016x}{rows:08x}{noted.min_time:016x}{noted.max_time:016x}".encode()
    seal = head.index(_MARK) + len(_MARK)
    before, after = head[:seal], facts + head[seal + 16 + len(facts) :]
    after = b"%08x" % zlib.crc32(after, zlib.crc32(before)) + after
    data = b"".join(body.parts)
    checksum = zlib.crc32(data, zlib.crc32(after, zlib.crc32(before)))
    return noted, [before, b"%08x" % checksum, after, data]


def decode_header(data: bytes | memoryview, at: int) -> Batch | None:
    """What the message at `at` is; None: there is only a beginning of its head.

    Raises NotASegment if it is no batch of ours.
    """
    size = _metadata_size(data, at)
    if size < 0:
        return None
    head = bytes(data[at : at + 8 + size])
    found = head.find(_MARK) + len(_MARK)
    digits = head[found : found + _SEAL_DIGITS]
    is_sealed = found >= len(_MARK) and len(digits) == _SEAL_DIGITS
    if len(head) < 8 + size and not is_sealed and len(head) < HEAD_BYTES:
        return None
    if not is_sealed:
        raise NotASegment("a message without the seal of a batch")
    try:
        length, first, rows, min_time, max_time = (
            int(digits[a:b], 16) for a, b in ((16, 32), (32, 48), (48, 56), (56, 72), (72, 88))
        )
    except ValueError:
        raise NotASegment("a seal that is no number") from None
    if len(head) < 8 + size:
        if length <= len(head):
            raise NotASegment("a seal that contradicts its message")
        return None
    checksum = zlib.crc32(head[found + 16 :], zlib.crc32(head[:found]))
    if digits[8:16] != b"%08x" % checksum or length < 8 + size or not rows:
        raise NotASegment("a head with a checksum that does not match")
    return Batch(first, at, length, rows, min_time, max_time)


def commit_of(head: bytes) -> int:
    """The commit that a good batch belongs to, by the beginning of its bytes; 0: none."""
    head = head[: 8 + _metadata_size(head, 0)]
    found = head.find(_COMMIT)
    return 0 if found < 0 else int(head[found + len(_COMMIT) :][:_COMMIT_DIGITS], 16)


def is_intact(data: bytes | memoryview, batch: Batch) -> bool:
    """The bytes of this batch are there and have the checksum they were written with."""
    message = memoryview(data)[batch.at : batch.end]
    if len(message) < batch.size:
        return False
    head = bytes(message[:HEAD_BYTES])
    at = head.find(_MARK) + len(_MARK)
    checksum = zlib.crc32(message[at + 8 :], zlib.crc32(head[:at]))
    return head[at : at + 8] == b"%08x" % checksum


def check_schema(data: bytes | memoryview) -> int:
    """Where the batches of a segment begin. Raises NotASegment."""
    size = _metadata_size(data, 0) if len(data) >= 8 else -1
    if size < 0 or len(data) < 8 + size:
        raise NotASegment("it does not begin as an Arrow stream does")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(bytes(data[: 8 + size])))
    except (pa.ArrowException, OSError) as error:
        raise NotASegment(f"its schema cannot be read: {error}") from error
    if not schema.equals(SCHEMA, check_metadata=True):
        raise NotASegment("its schema is not that of a stream of this version")
    return 8 + size


def scan(data: bytes | memoryview, *, verify: bool = True) -> Scan:
    """Every whole batch of a segment, and what is wrong with the rest. Raises NotASegment."""
    data = memoryview(data)
    at = check_schema(data)
    batches: list[Batch] = []
    damages: list[Damage] = []
    while at < len(data):
        if bytes(data[at : at + 8]) == END_OF_STREAM:
            return Scan(tuple(batches), tuple(damages), at, False, True)
        reason = "a checksum that does not match"
        try:
            batch = decode_header(data, at)
            if batch is None or batch.end > len(data):
                # A writer that was ended leaves a beginning; whatever else is here has been damaged.
                following = _next_intact(data, at + 8)
                if following is None:
                    return Scan(tuple(batches), tuple(damages), at, True, False)
                reason = "a length that is wrong"
            elif batches and batch.first < batches[-1].next:
                reason = "offsets that were there before"
                following = _next_intact(data, at + 8)
            elif not verify or is_intact(data, batch):
                batches.append(batch)
                at = batch.end
                continue
            else:
                following = _next_intact(data, at + 8)
        except NotASegment as error:
            reason = str(error)
            following = _next_intact(data, at + 8)
        end = len(data) if following is None else following
        damages.append(Damage(at, end, reason))
        at = end
    return Scan(tuple(batches), tuple(damages), at, False, False)


def encode_index(batches: Sequence[Batch]) -> bytes:
    """What follows the last batch of a segment that is full: the end of the stream, and the index."""
    entries = b"".join(_ENTRY.pack(*batch) for batch in batches)
    return END_OF_STREAM + entries + _TRAILER.pack(len(batches), zlib.crc32(entries), _INDEX_MAGIC)


def index_size(trailer: bytes) -> int | None:
    """How long the index that ends with these bytes is, with its trailer; None: that is no index."""
    if len(trailer) < _TRAILER.size:
        return None
    count, _, magic = _TRAILER.unpack(trailer[-_TRAILER.size :])
    return count * _ENTRY.size + _TRAILER.size if magic == _INDEX_MAGIC else None


def decode_index(tail: bytes) -> tuple[Batch, ...] | None:
    """The index at the end of a segment; None: there is none, or it is damaged."""
    size = index_size(tail)
    if size is None or len(tail) < size:
        return None
    entries = tail[len(tail) - size : len(tail) - _TRAILER.size]
    _, checksum, _ = _TRAILER.unpack(tail[-_TRAILER.size :])
    if zlib.crc32(entries) != checksum:
        return None
    return tuple(Batch(*entry) for entry in _ENTRY.iter_unpack(entries))


TRAILER_BYTES: Final = _TRAILER.size


def find(batches: Sequence[Batch], offset: int) -> int:
    """Which batch has this offset or, if none has, the first one behind it; their number: none."""
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        if batches[middle].next <= offset:
            low = middle + 1
        else:
            high = middle
    return low


def _metadata_size(data: bytes | memoryview, at: int) -> int:
    """Of the message at `at`; -1: there is not enough of it. Raises NotASegment."""
    head = bytes(data[at : at + 8])
    if not CONTINUATION.startswith(head[:4]):
        raise NotASegment("bytes that are no Arrow message")
    if len(head) < 8:
        return -1
    size = int.from_bytes(head[4:], "little")
    if not 0 < size <= _MAX_METADATA or size % 8:
        raise NotASegment("an Arrow message of impossible length")
    return size


def _next_intact(data: memoryview, at: int) -> int | None:
    """Where the next batch begins that is whole and good."""
    raw = bytes(data[at:])
    position = 0
    while (position := raw.find(CONTINUATION, position)) >= 0:
        try:
            batch = decode_header(raw, position)
            if batch is not None and batch.end <= len(raw) and is_intact(raw, batch):
                return at + position
        except NotASegment:
            pass
        position += 1
    return None
