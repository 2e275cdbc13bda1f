"""Runs of packets that differ, as Arrow arrays: one short step of Python for each to find where it ends, and
everything else in steps for all of them.

A run is one row of bytes. Where topics and payloads begin and end divides all of it into values, so that it is
an Arrow array as it stands; topics and payloads are every fourth of these, taken out by Arrow without the
interpreter's lock.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

WORTH_A_BLOCK: Final = 32
"""Records from which on it is cheaper than one by one."""
_PARTS: Final = 4
"""Of each packet: what is before the topic, the topic, what is before the payload, the payload."""

Place = TypeVar("Place")


class Block(msgspec.Struct, frozen=True):
    """Records of one run: what has properties, or is retained, travels by itself."""

    retain: ClassVar = False
    priority: ClassVar = False
    properties: ClassVar[tuple[()]] = ()

    topics: pa.StringArray
    payloads: pa.BinaryArray
    time: int
    client_id: bytes
    qos: int

    @property
    def count(self) -> int:
        return len(self.topics)

    @property
    def size_bytes(self) -> int:
        """As columns."""
        return len(self.topics_data()) + len(self.payload_data()) + self.count * len(self.client_id)

    @property
    def held_bytes(self) -> int:
        """In memory."""
        return self.size_bytes

    def part(self, first: int, stop: int) -> "Block":
        return self.chosen(pa.array(np.arange(first, stop)))

    def chosen(self, rows: pa.Array) -> "Block":
        topics, payloads = self.topics.take(rows), self.payloads.take(rows)
        return Block(topics, payloads, self.time, self.client_id, self.qos)

    def topic_lengths(self) -> npt.NDArray[np.int32]:
        return np.diff(_ends(self.topics))

    def topics_data(self) -> memoryview:
        return _data(self.topics)

    def payload_lengths(self) -> npt.NDArray[np.int32]:
        return np.diff(_ends(self.payloads))

    def payload_data(self) -> memoryview:
        return _data(self.payloads)


def _ends(column: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)


def _data(column: pa.Array) -> memoryview:
    """Of its values, one behind the other; it begins where its buffers do."""
    data = column.buffers()[2]
    return memoryview(data).cast("B")[: int(_ends(column)[-1])] if data else memoryview(b"")


def block_of(wire: bytes, topic_length_bytes: int, gap: int, *, time: int, client_id: bytes, qos: int) -> Block:
    octets = np.frombuffer(wire, np.uint8)
    stops = _stops(wire)
    bodies = _bodies(octets, stops)
    lengths = octets[bodies].astype(np.int64)
    if topic_length_bytes == 2:
        lengths = lengths << 8 | octets[bodies + 1]
    edges = np.zeros(_PARTS * len(bodies) + 1, np.int32)
    edges[1::_PARTS] = bodies + topic_length_bytes
    edges[2::_PARTS] = edges[1::_PARTS] + lengths
    edges[3::_PARTS] = edges[2::_PARTS] + gap
    edges[4::_PARTS] = stops
    parts = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(wire)])
    each = np.arange(0, len(edges) - 1, _PARTS)
    topics = parts.take(pa.array(each + 1)).view(pa.string())
    return Block(topics, parts.take(pa.array(each + 3)), time, client_id, qos)


def divided(block: Block, place_of: Callable[[bytes], Place]) -> Iterator[tuple[Place, Block]]:
    """The records of each place, in their order."""
    encoded = block.topics.dictionary_encode()
    places = [place_of(topic.encode()) for topic in encoded.dictionary.to_pylist()]
    chosen = list(dict.fromkeys(places))
    if len(chosen) == 1:
        yield chosen[0], block
        return
    numbers = np.array([chosen.index(place) for place in places])[np.asarray(encoded.indices)]
    for number, place in enumerate(chosen):
        rows = pa.array(np.flatnonzero(numbers == number))
        yield place, block.chosen(rows)


def _stops(wire: bytes) -> npt.NDArray[np.int64]:
    """Where each packet ends. The only step of Python for each: so it does as little as it can."""
    stops: list[int] = []
    note = stops.append
    pos, end = 0, len(wire)
    while pos < end:
        length = wire[pos + 1]
        pos += 2
        shift = 7
        while length >> shift:  # it takes more bytes to say
            length = (length & ((1 << shift) - 1)) | wire[pos] << shift
            pos += 1
            shift += 7
        pos += length
        note(pos)
    return np.array(stops, np.int64)


def _bodies(octets: npt.NDArray[np.uint8], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where what follows the fixed header of each packet begins."""
    bodies = np.empty_like(stops)
    bodies[0] = 2
    bodies[1:] = stops[:-1] + 2
    longer = np.flatnonzero(octets[bodies - 1] >= 0x80)
    while len(longer):
        bodies[longer] += 1
        longer = longer[octets[bodies[longer] - 1] >= 0x80]
    return bodies
