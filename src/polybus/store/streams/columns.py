"""From pieces and blocks of records to Arrow columns, without a step per record where they are alike."""

import functools
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from polybus.store.streams import lz4
from polybus.store.streams.blocks import Block
from polybus.store.streams.format import SCHEMA, Records
from polybus.store.streams.ipc import Blocks, Buffer, Numbers, Repeated
from polybus.store.streams.lz4 import Bytes
from polybus.store.streams.pieces import Piece


def build(pieces: Sequence[Piece | Block], first_offset: int) -> Records:
    """The records of these pieces, in their order."""
    counts = [piece.count for piece in pieces]
    rows = sum(counts)
    times = [piece.time for piece in pieces]
    properties, lists = _properties(pieces, rows)
    buffers: list[Buffer] = [
        None, Numbers(_numbers(first_offset, rows)),
        None, _times(times, counts),
        None, *_topics(pieces, counts, rows),
        None, *_payloads(pieces, counts, rows),
        None, _small([piece.qos for piece in pieces], counts),
        None, _flags([piece.retain for piece in pieces], counts, rows),
        None, *_texts([piece.client_id for piece in pieces], counts, rows),
        *lists,
        None, _flags([piece.priority for piece in pieces], counts, rows),
    ]  # fmt: skip
    return Records(first_offset, rows, properties, min(times), max(times), buffers)


_PROPERTIES: Final = SCHEMA.field("user_properties").type
_READY: Final = 1 << 16
"""Rows up to which columns that are mostly alike are cut from one that is ready."""
_READY_WIDTH: Final = 1 << 14
"""Bytes of a value up to which `_READY` of them have offsets that Arrow can count."""
_ZERO: Final = bytes(4)


def _numbers(first: int, rows: int) -> memoryview:
    return _bytes(np.arange(first, first + rows, dtype=np.int64))


def _bytes(array: npt.NDArray[np.generic]) -> memoryview:
    return array.view(np.uint8).data


def _times(times: Sequence[int], counts: Sequence[int]) -> Buffer:
    return Repeated([_TIME.pack(time) for time in times], counts)


_TIME: Final = struct.Struct("<q")


def _is_one(values: Sequence[object]) -> bool:
    return values.count(values[0]) == len(values)


def _small(values: Sequence[int], counts: Sequence[int]) -> Buffer:
    if _is_one(values):
        return Repeated([bytes([values[0]])], [sum(counts)])
    return Repeated([bytes([value]) for value in values], counts)


def _flags(values: Sequence[bool], counts: Sequence[int], rows: int) -> Buffer:
    if _is_one(values):
        return Repeated([b"\xff" if values[0] else b"\0"], [(rows + 7) // 8])
    return _bytes(np.packbits(np.repeat(np.array(values), counts), bitorder="little"))


def _offsets(widths: Sequence[int], counts: Sequence[int], rows: int) -> Numbers:
    """Where each value of a column begins and the last one ends."""
    if _is_one(widths):
        width = widths[0]
        if rows <= _READY and width <= _READY_WIDTH:
            return Numbers(_even_offsets(width)[: 4 * (rows + 1)])
        return Numbers(_bytes(np.arange(rows + 1, dtype=np.int32) * np.int32(width)))
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.repeat(np.array(widths, np.int32), counts), out=offsets[1:])
    return Numbers(_bytes(offsets))


@functools.lru_cache(maxsize=64)
def _even_offsets(width: int) -> memoryview:
    """Of `_READY` values of the same width."""
    return _bytes(np.arange(_READY + 1, dtype=np.int32) * np.int32(width))


def _texts(texts: Sequence[bytes], counts: Sequence[int], rows: int) -> tuple[Buffer, Buffer]:
    offsets = _offsets([len(text) for text in texts], counts, rows)
    if _is_one(texts):
        return offsets, Repeated(texts[:1], [rows]) if texts[0] else None
    return offsets, b"".join([text * count for text, count in zip(texts, counts, strict=True)]) or None


def _topics(pieces: Sequence[Piece | Block], counts: Sequence[int], rows: int) -> tuple[Buffer, Buffer]:
    plain = [piece for piece in pieces if isinstance(piece, Piece)]
    if len(plain) == len(pieces):
        return _texts([piece.topic for piece in plain], counts, rows)
    data = [piece.topics_data() if isinstance(piece, Block) else piece.topic * piece.count for piece in pieces]
    lengths = [
        piece.topic_lengths() if isinstance(piece, Block) else _even(len(piece.topic), piece.count)
        for piece in pieces
    ]
    return _uneven_offsets(lengths), b"".join(data)


def _payloads(pieces: Sequence[Piece | Block], counts: Sequence[int], rows: int) -> tuple[Buffer, Buffer]:
    plain = [piece for piece in pieces if isinstance(piece, Piece)]
    if len(plain) == len(pieces):
        offsets = _offsets([piece.width for piece in plain], counts, rows)
    else:
        offsets = _uneven_offsets([
            piece.payload_lengths() if isinstance(piece, Block) else _even(piece.width, piece.count)
            for piece in pieces
        ])  # fmt: skip
    data = [*_payload_data(pieces)]
    loose = [each for each in data if not isinstance(each, lz4.Block)]
    if len(loose) == len(data):
        return offsets, (loose[0] if len(loose) == 1 else b"".join(loose)) or None
    packed = [(each,) if isinstance(each, lz4.Block) else lz4.pack_all(each) for each in data]
    return offsets, Blocks([block for blocks in packed for block in blocks])


def _payload_data(pieces: Sequence[Piece | Block]) -> Iterator[Bytes | lz4.Block]:
    """In their order; what is still where it came is taken out."""
    loose: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Piece) and piece.block is None:
            loose.append(piece)
            continue
        if loose:
            yield _gather(loose)
            loose = []
        if isinstance(piece, Block):
            yield piece.payload_data()
        elif piece.block is not None:
            yield piece.block
    if loose:
        yield _gather(loose)


def _even(width: int, count: int) -> npt.NDArray[np.int32]:
    return np.full(count, width, np.int32)


def _uneven_offsets(lengths: Sequence[npt.NDArray[np.int32]]) -> Numbers:
    offsets = np.zeros(sum(map(len, lengths)) + 1, np.int32)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return Numbers(_bytes(offsets))


def _gather(pieces: Sequence[Piece]) -> Bytes:
    """Payloads, one behind the other."""
    if all(piece.count == 1 for piece in pieces):
        return b"".join([p.wire[p.start : p.start + p.width] for p in pieces])
    data = np.empty(sum(piece.width * piece.count for piece in pieces), np.uint8)
    at = 0
    for piece in pieces:
        piece.copy_to(data, at)
        at += piece.width * piece.count
    return data.data


def _properties(pieces: Sequence[Piece | Block], rows: int) -> tuple[int, Sequence[Buffer]]:
    """How many there are, and the buffers of the lists and of what is in them."""
    if not any(piece.properties for piece in pieces):
        return 0, (None, Repeated([_ZERO], [rows + 1]), None, None, _ZERO, None, None, _ZERO, None)
    pairs = [
        [{"name": name, "value": value} for name, value in piece.properties]
        for piece in pieces
        for _ in range(piece.count)
    ]
    lists = pa.array(pairs, _PROPERTIES)
    return len(lists.values), [buffer and memoryview(buffer).cast("B") for buffer in lists.buffers()]
