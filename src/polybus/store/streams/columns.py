"""From what travels on the bus to Arrow columns.

A piece is neighbouring records that are alike: same topic, same size, same everything but the payload. A run of
alike packets is one piece, found by one comparison of a matrix of its bytes, and becomes columns without
a step per message. Everything else is pieces of one record each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from polybus.store.streams.format import SCHEMA

Pairs: TypeAlias = tuple[tuple[str, str], ...]

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

    topic_at: Callable[[bytes, int], tuple[int, int]]
    """Where the topic begins and ends, if the packet's body begins there."""
    gap: int
    """Bytes between topic (and packet id) and payload."""


def _mqtt_topic(wire: bytes, start: int) -> tuple[int, int]:
    return start + 2, start + 2 + (wire[start] << 8 | wire[start + 1])


def _tbus_topic(wire: bytes, start: int) -> tuple[int, int]:
    return start + 1, start + 1 + wire[start]  # in runs, topics are shorter than 128 bytes


LAYOUTS: Final[Mapping[Encoding, Layout]] = {
    MQTT_311: Layout(_mqtt_topic, 0),
    MQTT_5: Layout(_mqtt_topic, 1),
    TBUS: Layout(_tbus_topic, 1),
}


def partition_of(topic: bytes, partitions: int) -> int:
    """The same for the same topic on every machine, for ever."""
    return crc32(topic) % partitions


def pieces_of(item: Message | Run, time: int) -> Iterator[Piece]:
    if isinstance(item, Run):
        layout = LAYOUTS.get(item.encoding)
        if layout is not None:
            yield from _run_pieces(item, layout, time)
            return
        for message in item.messages():
            yield _message_piece(message, time)
    else:
        yield _message_piece(item, time)


def _message_piece(message: Message, time: int) -> Piece:
    payload = message.payload
    return Piece(
        message.topic.encode(), 1, payload, 0, len(payload), 0, time, message.origin.encode(),
        message.qos, message.retain, message.priority, message.properties.user_properties,
    )  # fmt: skip


def _run_pieces(run: Run, layout: Layout, time: int) -> Iterator[Piece]:
    wire, count, qos = run.wire, run.count, run.qos
    client_id = run.origin.encode()
    gap = layout.gap + 2 if qos else layout.gap
    end = len(wire)
    pos = 0
    while pos < end:
        length = wire[pos + 1]
        start = pos + 2
        if length >= 0x80:
            length &= 0x7F
            shift = 7
            while True:
                byte = wire[start]
                length |= (byte & 0x7F) << shift
                start += 1
                shift += 7
                if byte < 0x80:
                    break
        stop = start + length
        size = stop - pos
        topic_start, topic_end = layout.topic_at(wire, start)
        alike = 1
        if stop < end:
            if not pos and count >= MANY and size * count == end and _are_alike(wire, count, size, topic_end):
                alike = count
            else:
                prefix = wire[pos:topic_end]
                at = stop
                while wire.startswith(prefix, at):
                    at += size
                alike = (at - pos) // size
        payload = topic_end + gap
        yield Piece(
            wire[topic_start:topic_end], alike, wire, payload, stop - payload, size, time, client_id, qos
        )
        pos += alike * size


def _are_alike(wire: bytes, count: int, size: int, head: int) -> bool:
    first = np.frombuffer(wire, f"V{head}", 1)
    heads = np.ndarray((count,), f"V{head}", wire, 0, (size,))
    return bool((heads == first).all())


def build(pieces: Sequence[Piece], first_offset: int) -> pa.RecordBatch:
    """The records of these pieces, in their order."""
    counts = np.array([piece.count for piece in pieces], np.int64)
    rows = int(counts.sum())
    payload = _payloads(pieces, counts)
    topics = _repeated([piece.topic for piece in pieces], counts, pa.string())
    clients = _repeated([piece.client_id for piece in pieces], counts, pa.string())
    times = np.repeat(np.array([piece.time for piece in pieces], np.int64), counts)
    qos = np.repeat(np.array([piece.qos for piece in pieces], np.int8), counts)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first_offset, first_offset + rows, dtype=np.int64)),
            pa.Array.from_buffers(SCHEMA.field(1).type, rows, [None, pa.py_buffer(times)]),
            topics,
            payload,
            pa.array(qos),
            _flags([piece.retain for piece in pieces], counts, rows),
            clients,
            _properties(pieces, rows),
            _flags([piece.priority for piece in pieces], counts, rows),
        ],
        schema=SCHEMA,
    )


def _offsets(lengths: npt.NDArray[np.int64]) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def _payloads(pieces: Sequence[Piece], counts: npt.NDArray[np.int64]) -> pa.Array:
    widths = np.array([piece.width for piece in pieces], np.int64)
    data = np.empty(int((widths * counts).sum()), np.uint8)
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
    lengths = np.repeat(widths, counts)
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, _offsets(lengths), pa.py_buffer(data)])


def _repeated(texts: Sequence[bytes], counts: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    data = b"".join([text * count for text, count in zip(texts, counts.tolist(), strict=True)])
    lengths = np.repeat(np.array([len(text) for text in texts], np.int64), counts)
    return pa.Array.from_buffers(kind, len(lengths), [None, _offsets(lengths), pa.py_buffer(data)])


def _flags(values: Sequence[bool], counts: npt.NDArray[np.int64], rows: int) -> pa.Array:
    if True not in values:
        return pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(-(-rows // 8)))])
    return pa.array(np.repeat(np.array(values, np.bool_), counts))


def _properties(pieces: Sequence[Piece], rows: int) -> pa.Array:
    kind = SCHEMA.field(7).type
    if not any(piece.properties for piece in pieces):
        nothing = pa.array([], kind.value_type)
        offsets = pa.py_buffer(bytes(4 * (rows + 1)))
        return pa.Array.from_buffers(kind, rows, [None, offsets], children=[nothing])
    pairs = [
        [{"name": name, "value": value} for name, value in piece.properties]
        for piece in pieces
        for _ in range(piece.count)
    ]
    return pa.array(pairs, kind)
