"""From what travels on the bus to Arrow columns.

A piece is neighbouring records that are alike: same topic, same size, same everything but the payload. A run
of alike packets is one piece and becomes columns without a step per message. Who read it from the wire mostly
knows that they are alike (`Run.size`); otherwise they are compared as readers do. A long run of
packets that differ is a block (`blocks`). Everything else is pieces of one record each.

Payloads of a long run are taken out and packed at once, while they are in the processor's cache (`Packer`).
"""

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from polybus.broker.links import Encoding
from polybus.broker.message import PAIR_BYTES, Message, Run
from polybus.session.alike import alike_until
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.session.tbus.encoding import TBUS
from polybus.store.streams import lz4
from polybus.store.streams.blocks import WORTH_A_BLOCK, Block, block_of
from polybus.store.streams.format import SCHEMA, Records
from polybus.store.streams.ipc import Blocks, Buffer, Numbers, Repeated
from polybus.store.streams.lz4 import Bytes

Pairs: TypeAlias = tuple[tuple[str, str], ...]


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
    block: lz4.Block | None = None
    """Its payloads, if they are packed: then they are not in `wire` any more."""

    @property
    def size_bytes(self) -> int:
        """As columns."""
        return self.count * (self.width + len(self.topic) + len(self.client_id) + self._said)

    @property
    def held_bytes(self) -> int:
        """In memory."""
        return len(self.block.data) if self.block else self.count * max(self.width, self.stride) + self._said

    @property
    def _said(self) -> int:
        """Bytes of its properties, and of what holds them: they may be most of it."""
        if not self.properties:
            return 0
        return sum(len(name) + len(value) + PAIR_BYTES for name, value in self.properties)

    def part(self, first: int, stop: int) -> "Piece":
        """Of one whose payloads are not packed."""
        start = self.start + first * self.stride
        return msgspec.structs.replace(self, count=stop - first, start=start)


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
    if item.count >= WORTH_A_BLOCK and not known_size(item):
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


def cut(pieces: Iterable[Piece | Block], rows: int) -> Iterator[Piece | Block]:
    """The same records, in pieces of at most so many."""
    for piece in pieces:
        for first in range(0, piece.count, rows):
            stop = min(first + rows, piece.count)
            yield piece.part(first, stop)


def known_size(run: Run) -> int:
    """Of each packet, if they are known to be alike; else 0."""
    return run.size or (run.ids_at.step if isinstance(run.ids_at, range) else 0)


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
    known = known_size(run)
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
            alike = (alike_until(wire, wire[pos:topic_end], stop, size, end) - pos) // size
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


class Packer:
    """Takes payloads out of runs, and packs them."""

    def __init__(self) -> None:
        self._room = np.empty(MOST_PACKED, np.uint8)

    def pack(self, run: Run, time: int) -> Piece | None:
        """None: its packets are not known to be alike, or it is not worth it."""
        if not WORTH_PACKING <= len(run.wire) <= MOST_PACKED:
            return None
        if not known_size(run) or run.encoding not in LAYOUTS:
            return None
        (piece,) = pieces_of(run, time)
        assert isinstance(piece, Piece)
        size = piece.width * piece.count
        if not size:
            return None
        _copy(piece, self._room, 0)
        block = lz4.pack(self._room[:size].data)
        # What could not be packed is still in the room.
        piece.block = block if block.is_packed else block._replace(data=bytes(block.data))
        piece.wire = b""
        return piece


WORTH_PACKING: Final = 16 * 1024
MOST_PACKED: Final = 1024 * 1024
"""Bytes of a run."""


def _gather(pieces: Sequence[Piece]) -> Bytes:
    """Payloads, one behind the other."""
    if all(piece.count == 1 for piece in pieces):
        return b"".join([p.wire[p.start : p.start + p.width] for p in pieces])
    data = np.empty(sum(piece.width * piece.count for piece in pieces), np.uint8)
    at = 0
    for piece in pieces:
        _copy(piece, data, at)
        at += piece.width * piece.count
    return data.data


def _copy(piece: Piece, there: npt.NDArray[np.uint8], at: int) -> None:
    """Items of `width` bytes are copied each in one go."""
    if piece.width:
        item = f"V{piece.width}"
        row = np.ndarray((piece.count,), item, piece.wire, piece.start, (piece.stride,))
        np.ndarray((piece.count,), item, there, at)[:] = row


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
