"""MQTT 3.1, 3.1.1 and 5.0 frames, read with the broker's own codec."""

from collections.abc import Sequence
from typing import Final

from polybus.errors import PeerError
from polybus.pipeline.transforms.frames_types import Frame, Unreadable
from polybus.wire.mqtt import codec
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Connect,
    Packet,
    PacketType,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from polybus.wire.varint import MAX_VARINT

_ANY_SIZE: Final = MAX_VARINT + 5
_NAMES: Final = {int(kind): kind.name for kind in PacketType}


class MqttDecoder:
    protocol = "mqtt"

    def __init__(self) -> None:
        self._version: int | None = None
        # By side: packet id -> topic of what is not acknowledged; topic alias -> topic.
        self._in_flight: dict[bool, dict[int, str | None]] = {True: {}, False: {}}
        self._asked: dict[int, str | None] = {}
        self._aliases: dict[bool, dict[int, str]] = {True: {}, False: {}}

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        try:
            frame = codec.next_frame(data, pos, _ANY_SIZE)
        except PeerError as error:
            raise Unreadable(error.text) from error
        if frame is not None:
            return frame[2] - pos
        return _announced(data, pos)

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        frame = codec.next_frame(data, pos, _ANY_SIZE)
        if frame is None:
            # Only its beginning is there: a type that exists, with flags that it may have.
            return data[pos] >> 4 == PacketType.PUBLISH or data[pos] & 0x0F in (0, 2)
        first_byte, start, end = frame
        return any(_decode(first_byte, data[start:end], version) is not None for version in self._versions())

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """Finds out which version it is where the capture has no CONNECT."""
        if any(data[0] >> 4 == PacketType.CONNECT for data, _ in frames):
            return
        wrong = {V5: 0, V311: 0}
        has_publish = False
        for data, _ in frames:
            frame = codec.next_frame(data, 0, _ANY_SIZE)
            if frame is None:
                continue
            has_publish |= frame[0] >> 4 == PacketType.PUBLISH
            for version in wrong:
                wrong[version] += _decode(frame[0], data[frame[1] : frame[2]], version) is None
        # What reads without an error as 5.0 hardly is 3.1.1: its payloads would have to begin with properties.
        is_v5 = wrong[V5] < wrong[V311] or (wrong[V5] == wrong[V311] and has_publish)
        self._version = V5 if is_v5 else V311

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        frame = codec.next_frame(data, 0, _ANY_SIZE)
        if frame is None:
            raise Unreadable("the packet is not whole")
        first_byte, start, end = frame
        try:
            packet = codec.decode(first_byte, data[start:end], self._version or V311)
        except PeerError as error:
            raise Unreadable(f"{_NAMES.get(first_byte >> 4, 'packet')}: {error}") from error
        return [self._frame(packet, _NAMES[first_byte >> 4], len(data), to_server)]

    def _versions(self) -> tuple[int, ...]:
        return (V5, V311) if self._version is None else (self._version,)

    def _frame(self, packet: Packet, name: str, size: int, to_server: bool) -> Frame:
        match packet:
            case Connect():
                self._version = packet.version
                return Frame(name, size)
            case Publish():
                topic = self._topic(packet, to_server)
                waiting = self._in_flight[to_server]
                is_repeat = packet.dup and packet.packet_id in waiting
                if packet.qos:
                    waiting[packet.packet_id] = topic
                packet_id = packet.packet_id if packet.qos else None
                return Frame(name, size, len(packet.payload), topic, packet_id, is_repeat)
            case PubRec():
                # The exchange goes on: what it is about is still needed.
                return Frame(
                    name, size, 0, self._in_flight[not to_server].get(packet.packet_id), packet.packet_id
                )
            case PubAck() | PubComp():
                topic = self._in_flight[not to_server].pop(packet.packet_id, None)
                return Frame(name, size, 0, topic, packet.packet_id)
            case PubRel():
                return Frame(name, size, 0, self._in_flight[to_server].get(packet.packet_id), packet.packet_id)
            case Subscribe():
                topic = packet.requests[0].topic_filter
                self._asked[packet.packet_id] = topic
                return Frame(name, size, 0, topic, packet.packet_id)
            case Unsubscribe():
                self._asked[packet.packet_id] = packet.topic_filters[0]
                return Frame(name, size, 0, packet.topic_filters[0], packet.packet_id)
            case SubAck() | UnsubAck():
                return Frame(name, size, 0, self._asked.pop(packet.packet_id, None), packet.packet_id)
            case _:
                return Frame(name, size)

    def _topic(self, packet: Publish, to_server: bool) -> str | None:
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        if packet.topic:
            self._aliases[to_server][alias] = packet.topic
            return packet.topic
        return self._aliases[to_server].get(alias)


def _announced(data: bytes, pos: int) -> int | None:
    """The size that the header of a frame says which is not all there."""
    size = 0
    for index, byte in enumerate(data[pos + 1 : pos + 5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size + index + 2
    return None


def _decode(first_byte: int, body: bytes, version: int) -> Packet | None:
    try:
        return codec.decode(first_byte, body, version)
    except PeerError:
        return None
