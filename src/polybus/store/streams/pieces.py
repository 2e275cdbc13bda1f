"""Records as they come from the bus.

A piece is neighbouring records that are alike: same topic, same size, same everything but the payload. Who read
a run from the wire mostly knows that its packets are alike (`Run.size`), and then it is one piece; otherwise
they are compared as readers do. A long run of packets that differ is a block (`blocks`). Everything else is
pieces of one record each.

Payloads of a long run are taken out and packed at once, while they are in the processor's cache (`Packer`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from polybus.broker.links import Encoding
from polybus.broker.message import PAIR_BYTES, Message, Run
from polybus.session.alike import alike_until
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.session.tbus.encoding import TBUS
from polybus.store.streams import lz4
from polybus.store.streams.blocks import WORTH_A_BLOCK, Block, block_of

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

    def copy_to(self, there: npt.NDArray[np.uint8], at: int) -> None:
        """Its payloads, one behind the other. Items of `width` bytes are copied each in one go."""
        if self.width:
            item = f"V{self.width}"
            row = np.ndarray((self.count,), item, self.wire, self.start, (self.stride,))
            np.ndarray((self.count,), item, there, at)[:] = row


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
        piece.copy_to(self._room, 0)
        block = lz4.pack(self._room[:size].data)
        # What could not be packed is still in the room.
        piece.block = block if block.is_packed else block._replace(data=bytes(block.data))
        piece.wire = b""
        return piece


WORTH_PACKING: Final = 16 * 1024
MOST_PACKED: Final = 1024 * 1024
"""Bytes of a run."""
