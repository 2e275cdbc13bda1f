"""From what travels on the bus to Arrow columns.

A piece is neighbouring records that are alike: same topic, same size, same everything but the payload. A run
of alike packets is one piece and becomes columns without a step per message. Who read it from the wire mostly
knows that they are alike (`Run.size`); otherwise one comparison of a matrix of its bytes tells. A long run of
packets that differ is a block (`blocks`). Everything else is pieces of one record each.

All this happens in a thread beside the event loop's. What counts is how often it gives up the interpreter's
lock and asks for it again, for each time the loop may have to stop: so few large steps, not many small ones.
"""

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from polybus.broker.links import Encoding
from polybus.broker.message import Message, Run
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.session.tbus.encoding import TBUS
from polybus.store.streams.blocks import WORTH_A_BLOCK, Block, block_of
from polybus.store.streams.format import SCHEMA

Pairs: TypeAlias = tuple[tuple[str, str], ...]

_WORD: Final = 8
MANY: Final = 8
"""Records from which on a matrix is cheaper than a loop."""


class Piece(msgspec.Struct, gc=False):
    topic: bytes
    count: int
    wire: bytes
    """Where the payloads are: the first at `start`, each `width` bytes long, `stride` bytes apart."""
    start: int
    width: int
    stride: int
    time: int
    client_id: bytes
    qos: int = 0
    retain: bool = False
    priority: bool = False
    properties: Pairs = ()


class Layout(NamedTuple):
    """Where things are in a publish packet that has no properties, by protocol."""

    topic_length_bytes: int
    """TBus has a varint, but in runs topics are shorter than 128 bytes."""
    gap: int
    """Bytes between topic (and packet id) and payload."""


LAYOUTS: Final[Mapping[Encoding, Layout]] = {
    MQTT_311: Layout(2, 0),
    MQTT_5: Layout(2, 1),
    TBUS: Layout(1, 1),
}


def partition_of(topic: bytes, partitions: int) -> int:
    """The same for the same topic on every machine, for ever."""
    return crc32(topic) % partitions


def pieces_of(item: Message | Run, time: int) -> Sequence[Piece | Block]:
    if not isinstance(item, Run):
        return [_message_piece(item, time)]
    layout = LAYOUTS.get(item.encoding)
    if layout is None:
        return [_message_piece(message, time) for message in item.messages()]
    if item.count >= WORTH_A_BLOCK and not item.size and not isinstance(item.ids_at, range):
        wire = item.wire
        gap = layout.gap + 2 if item.qos else layout.gap
        head = _head(wire, layout)
        if not wire.startswith(wire[: head[1]], head[0]):
            return [
                block_of(
                    wire,
                    layout.topic_length_bytes,
                    gap,
                    time=time,
                    client_id=item.origin.encode(),
                    qos=item.qos,
                )
            ]
    return _run_pieces(item, layout, time)


def _head(wire: bytes, layout: Layout) -> tuple[int, int]:
    """Where the first packet ends, and where its topic does."""
    start, length = _long_length(wire, 0)
    topic = wire[start] if layout.topic_length_bytes == 1 else wire[start] << 8 | wire[start + 1]
    return start + length, start + layout.topic_length_bytes + topic


def _message_piece(message: Message, time: int) -> Piece:
    payload = message.payload
    return Piece(
        message.topic.encode(), 1, payload, 0, len(payload), 0, time, message.origin.encode(),
        message.qos, message.retain, message.priority, message.properties.user_properties,
    )  # fmt: skip


def _run_pieces(run: Run, layout: Layout, time: int) -> list[Piece]:
    """A step per message, but for those alike: so it does as little as it can."""
    wire, count, qos = run.wire, run.count, run.qos
    client_id = run.origin.encode()
    is_mqtt = layout.topic_length_bytes == 2
    gap = layout.gap + 2 if qos else layout.gap
    end = len(wire)
    pieces: list[Piece] = []
    pos = 0
    known = run.size or (run.ids_at.step if isinstance(run.ids_at, range) else 0)
    while pos < end:
        length = wire[pos + 1]
        start = pos + 2
        if length >= 0x80:
            start, length = _long_length(wire, pos)
        stop = start + length
        if is_mqtt:
            topic_start = start + 2
            topic_end = topic_start + (wire[start] << 8 | wire[start + 1])
        else:
            topic_start = start + 1
            topic_end = topic_start + wire[start]
        size = stop - pos
        alike = 1
        if known:
            alike = count
        elif stop < end and wire[stop + 1] == wire[pos + 1]:
            if not pos and count >= MANY and size * count == end and _are_alike(wire, count, size, topic_end):
                alike = count
            else:
                prefix = wire[pos:topic_end]
                at = stop
                while wire.startswith(prefix, at):
                    at += size
                alike = (at - pos) // size
        payload = topic_end + gap
        topic = wire[topic_start:topic_end]
        pieces.append(Piece(topic, alike, wire, payload, stop - payload, size, time, client_id, qos))
        pos += alike * size
    return pieces


def _long_length(wire: bytes, pos: int) -> tuple[int, int]:
    """Where the body of a packet begins, and how long it is, if that takes more than a byte to say."""
    length = shift = 0
    at = pos + 1
    while True:
        byte = wire[at]
        length |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return at, length


def _are_alike(wire: bytes, count: int, size: int, head: int) -> bool:
    """Eight bytes at a time, the last of which may overlap: three times as fast as heads of odd sizes."""
    if head < _WORD:
        first = np.frombuffer(wire, f"V{head}", 1)
        return bool((np.ndarray((count,), f"V{head}", wire, 0, (size,)) == first).all())
    for at in (*range(0, head - _WORD, _WORD), head - _WORD):
        words = np.ndarray((count,), np.uint64, wire, at, (size,))
        if not (words == words[0]).all():
            return False
    return True


def build(pieces: Sequence[Piece | Block], first_offset: int) -> pa.RecordBatch:
    """The records of these pieces, in their order."""
    batches: list[pa.RecordBatch] = []
    offset = first_offset
    for kind, group in itertools.groupby(pieces, type):
        if kind is Block:
            batches += _build_blocks(group, offset)  # type: ignore[arg-type]
        else:
            batches.append(_build_pieces(list(group), offset))  # type: ignore[arg-type]
        offset = batches[-1].column(0)[-1].as_py() + 1
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _build_blocks(blocks: Iterable[Block], offset: int) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        rows, counts = block.count, [block.count]
        arrays = [
            pa.array(_numbers(offset, rows)),
            pa.array(np.full(rows, block.time, np.int64)).view(_TIME),
            block.topics,
            block.payloads,
            _small([block.qos], counts, rows, _ALL_QOS, np.int8),
            _small([False], counts, rows, _ALL_FLAGS, np.bool_),
            _texts([block.client_id], counts, rows),
            _no_properties(rows),
            _small([False], counts, rows, _ALL_FLAGS, np.bool_),
        ]
        offset += rows
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _build_pieces(pieces: Sequence[Piece], first_offset: int) -> pa.RecordBatch:
    counts = [piece.count for piece in pieces]
    rows = sum(counts)
    times = _repeat([piece.time for piece in pieces], counts, np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(_numbers(first_offset, rows))]),
            pa.Array.from_buffers(_TIME, rows, [None, pa.py_buffer(times)]),
            _texts([piece.topic for piece in pieces], counts, rows),
            _payloads(pieces, counts, rows),
            _small([piece.qos for piece in pieces], counts, rows, _ALL_QOS, np.int8),
            _small([piece.retain for piece in pieces], counts, rows, _ALL_FLAGS, np.bool_),
            _texts([piece.client_id for piece in pieces], counts, rows),
            _properties(pieces, rows),
            _small([piece.priority for piece in pieces], counts, rows, _ALL_FLAGS, np.bool_),
        ],
        schema=SCHEMA,
    )


_TIME: Final = SCHEMA.field("time").type
_PROPERTIES: Final = SCHEMA.field("user_properties").type
_READY: Final = 1 << 16
"""Rows up to which columns that are mostly alike are cut from one that is ready."""
_READY_WIDTH: Final = 1 << 14
"""Bytes of a value up to which `_READY` of them have offsets that Arrow can count."""
_ALL_QOS: Final[Mapping[int, pa.Array]] = {qos: pa.array(np.full(_READY, qos, np.int8)) for qos in range(3)}
_ALL_FLAGS: Final[Mapping[int, pa.Array]] = {value: pa.array(np.full(_READY, value)) for value in (False, True)}
_NO_PROPERTIES: Final = pa.Array.from_buffers(
    _PROPERTIES,
    _READY,
    [None, pa.py_buffer(bytes(4 * (_READY + 1)))],
    children=[pa.array([], _PROPERTIES.value_type)],
)


def _numbers(first: int, rows: int) -> npt.NDArray[np.int64]:
    return np.arange(first, first + rows, dtype=np.int64)


def _repeat(values: Sequence[int], counts: Sequence[int], kind: type[np.generic]) -> npt.NDArray[np.generic]:
    if len(values) == 1:
        return np.full(counts[0], values[0], kind)
    if sum(counts) == len(counts):
        return np.array(values, kind)
    return np.repeat(np.array(values, kind), counts)


def _small(
    values: Sequence[int],
    counts: Sequence[int],
    rows: int,
    ready: Mapping[int, pa.Array],
    kind: type[np.generic],
) -> pa.Array:
    if rows <= _READY and values.count(values[0]) == len(values):
        return ready[values[0]].slice(0, rows)
    return pa.array(_repeat(values, counts, kind))


def _offsets(widths: Sequence[int], counts: Sequence[int], rows: int) -> pa.Buffer:
    """Where each value of a column begins and the last one ends."""
    if widths.count(widths[0]) == len(widths):
        width = widths[0]
        if rows <= _READY and width <= _READY_WIDTH:
            return _even_offsets(width).slice(0, 4 * (rows + 1))
        return pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * width)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(_repeat(widths, counts, np.int32), out=offsets[1:])
    return pa.py_buffer(offsets)


@functools.lru_cache(maxsize=64)
def _even_offsets(width: int) -> pa.Buffer:
    """Of `_READY` values of the same width."""
    return pa.py_buffer(np.arange(_READY + 1, dtype=np.int32) * np.int32(width))


def _texts(texts: Sequence[bytes], counts: Sequence[int], rows: int) -> pa.Array:
    if len(texts) == 1 or texts.count(texts[0]) == len(texts):
        data = texts[0] * rows
    else:
        data = b"".join([text * count for text, count in zip(texts, counts, strict=True)])
    offsets = _offsets([len(text) for text in texts], counts, rows)
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(data)])


def _payloads(pieces: Sequence[Piece], counts: Sequence[int], rows: int) -> pa.Array:
    widths = [piece.width for piece in pieces]
    if rows == len(pieces):
        data = pa.py_buffer(b"".join([p.wire[p.start : p.start + p.width] for p in pieces]))
    else:
        data = pa.py_buffer(_gather(pieces, sum(map(operator.mul, widths, counts))))
    return pa.Array.from_buffers(pa.binary(), rows, [None, _offsets(widths, counts, rows), data])


def _gather(pieces: Sequence[Piece], size: int) -> npt.NDArray[np.uint8]:
    data = np.empty(size, np.uint8)
    view = data.data
    at = 0
    for piece in pieces:
        width, count = piece.width, piece.count
        if count >= MANY and width:
            # Items of `width` bytes are copied each in one go.
            there = np.ndarray((count,), f"V{width}", data, at)
            there[:] = np.ndarray((count,), f"V{width}", piece.wire, piece.start, (piece.stride,))
            at += count * width
        elif width:
            start = piece.start
            for _ in range(count):
                view[at : at + width] = piece.wire[start : start + width]
                at += width
                start += piece.stride
    return data


def _no_properties(rows: int) -> pa.Array:
    return _NO_PROPERTIES.slice(0, rows) if rows <= _READY else pa.array([[]] * rows, _PROPERTIES)


def _properties(pieces: Sequence[Piece], rows: int) -> pa.Array:
    if not any(piece.properties for piece in pieces):
        return _no_properties(rows)
    pairs = [
        [{"name": name, "value": value} for name, value in piece.properties]
        for piece in pieces
        for _ in range(piece.count)
    ]
    return pa.array(pairs, _PROPERTIES)
