"""Arrow IPC messages of record batches, written without Arrow's own writer.

That one makes arrays of everything first, and packs all of it: numbers that grow from row to row, which LZ4
cannot make smaller, and values that repeat, where there is nothing to look for. It packs a column when all of
it is there, while payloads are cheaper to pack when they come. Arrow reads it all the same.

The head of a message is a flatbuffer. Arrow writes one for each kind of batch, and only the numbers in it are
replaced: where they are is found by following its tables.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from polybus.store.streams import lz4
from polybus.store.streams.lz4 import Bytes

Compression: TypeAlias = Literal["none", "lz4", "zstd"]

CONTINUATION: Final = b"\xff\xff\xff\xff"
_ALIGNMENT: Final = 8
_LENGTH: Final = struct.Struct("<q")
_AS_IT_IS: Final = _LENGTH.pack(-1)
"""In a message with compression, before a buffer without."""
_WORTH_PACKING: Final = 64
"""Bytes; fewer would take more room than before."""


class Repeated(NamedTuple):
    """Values of one width, each so often one behind the other."""

    values: Sequence[bytes]
    counts: Sequence[int]

    def all(self) -> bytes:
        if len(self.values) == 1:
            return self.values[0] * self.counts[0]
        return b"".join([value * count for value, count in zip(self.values, self.counts, strict=True)])


class Numbers(NamedTuple):
    """A buffer of numbers that grow from row to row: only zstd makes it smaller."""

    data: Bytes


class Blocks(NamedTuple):
    """Data that is packed already, for batches that are packed in this way."""

    blocks: Sequence[lz4.Block]


Buffer: TypeAlias = Bytes | Repeated | Numbers | Blocks | None
"""None: there is nothing in it."""


class Body:
    """The buffers of a message, one behind the other."""

    __slots__ = ("entries", "parts", "size")

    def __init__(self, buffers: Sequence[Buffer], compression: Compression) -> None:
        self.parts: list[Bytes] = []
        self.entries: list[int] = []
        """Where each begins, and how long it is."""
        size = 0
        for buffer in buffers:
            begin = size
            if buffer is not None:
                packed = _packed(buffer, compression)
                for part in packed:
                    size += len(part)
                self.parts += packed
            self.entries += (begin, size - begin)
            if gap := -size % _ALIGNMENT:
                self.parts.append(_GAPS[gap])
                size += gap
        self.size = size


_GAPS: Final = tuple(bytes(gap) for gap in range(_ALIGNMENT))


def _packed(buffer: Bytes | Repeated | Numbers | Blocks, compression: Compression) -> Sequence[Bytes]:
    if isinstance(buffer, Blocks):
        assert compression == "lz4", "it is packed already"
        return _LENGTH.pack(sum(block.size for block in buffer.blocks)), *lz4.frame(buffer.blocks)
    if isinstance(buffer, Repeated):
        if compression == "lz4" and (block := lz4.repeated(*buffer)):
            return _LENGTH.pack(block.size), *lz4.frame((block,))
        data: Bytes = buffer.all()
    elif isinstance(buffer, Numbers):
        data = buffer.data
        if compression == "lz4":
            return _AS_IT_IS, data
    else:
        data = buffer
    if compression == "none":
        return (data,)
    if len(data) < _WORTH_PACKING:
        return _AS_IT_IS, data
    return _LENGTH.pack(len(data)), memoryview(_CODECS[compression].compress(data)).cast("B")


_CODECS: Final[Mapping[str, pa.Codec]] = {name: pa.Codec(name) for name in ("lz4", "zstd")}


class Head:
    """Of messages that differ in nothing but numbers."""

    def __init__(self, sample: pa.RecordBatch, compression: Compression, said: Mapping[str, bytes]) -> None:
        """`said` is the metadata, which other messages repeat or replace."""
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, sample.schema, options=options) as writer:
            writer.write_batch(sample, custom_metadata=dict(said))
        data = sink.getvalue().to_pybytes()
        start = len(sample.schema.serialize())
        size = 8 + int.from_bytes(data[start + 4 : start + 8], "little")
        self._head = data[start : start + size]
        message = _Table(self._head, 8 + _unsigned(self._head, 8))
        batch = message.table(_MESSAGE_HEADER)
        self._places = (
            batch.place(_BATCH_ROWS),
            batch.vector(_BATCH_NODES),
            batch.vector(_BATCH_BUFFERS),
            message.place(_MESSAGE_BODY_LENGTH),
        )

    def filled(self, nodes: Sequence[int], body: Body) -> bytearray:
        """`nodes` are the lengths of the arrays, the first of which is the number of rows."""
        head = bytearray(self._head)
        rows_at, nodes_at, buffers_at, length_at = self._places
        _LENGTH.pack_into(head, rows_at, nodes[0])
        pairs = [number for node in nodes for number in (node, 0)]  # none of them is null
        struct.pack_into(f"<{len(pairs)}q", head, nodes_at, *pairs)
        struct.pack_into(f"<{len(body.entries)}q", head, buffers_at, *body.entries)
        _LENGTH.pack_into(head, length_at, body.size)
        return head


# Fields of the tables in Arrow's Message.fbs, by number.
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_LENGTH: Final = 3
_BATCH_ROWS: Final = 0
_BATCH_NODES: Final = 1
_BATCH_BUFFERS: Final = 2


class _Table:
    """Of a flatbuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - int.from_bytes(data[at : at + 4], "little", signed=True) + 4

    def place(self, field: int) -> int:
        at = self._fields + 2 * field
        return self._at + int.from_bytes(self._data[at : at + 2], "little")

    def table(self, field: int) -> "_Table":
        at = self.place(field)
        return _Table(self._data, at + _unsigned(self._data, at))

    def vector(self, field: int) -> int:
        """Where its first element is."""
        at = self.place(field)
        return at + _unsigned(self._data, at) + 4


def _unsigned(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
