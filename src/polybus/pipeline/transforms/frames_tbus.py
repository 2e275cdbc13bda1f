"""TBus frames, read with the broker's own codec. A BULK is its header; what is inside counts by itself."""

from collections.abc import Sequence
from typing import Final

from polybus.errors import PeerError
from polybus.pipeline.transforms.frames_types import Frame, Unreadable
from polybus.wire.tbus import codec
from polybus.wire.tbus.packets import (
    Bulk,
    MessageType,
    MsgAck,
    Packet,
    Publish,
    ReqAck,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from polybus.wire.varint import MAX_VARINT

_ANY_SIZE: Final = MAX_VARINT + 5
_NAMES: Final = {int(kind): kind.name for kind in MessageType}


class TBusDecoder:
    protocol = "tbus"

    def __init__(self) -> None:
        self._asked: dict[int, str] = {}
        # By the side that asks: (packet id, response destination) -> topic. A requester's own requests have
        # no destination yet; what a service gets has one.
        self._requests: dict[tuple[bool, int, str | None], str | None] = {}

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        try:
            frame = codec.next_frame(data, pos, _ANY_SIZE)
        except PeerError as error:
            raise Unreadable(error.text) from error
        if frame is not None:
            return frame[2] - pos
        size = 0
        for index, byte in enumerate(data[pos + 1 : pos + 5]):
            size |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return size + index + 2
        return None

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        frame = codec.next_frame(data, pos, _ANY_SIZE)
        if frame is None:
            return data[pos] >> 4 in _NAMES
        first_byte, start, end = frame
        try:
            packet = codec.decode(first_byte, data[start:end])
            if isinstance(packet, Bulk):
                list(codec.frames(packet.body))
        except PeerError:
            return False
        return True

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """A TBus message says by itself how to read it."""

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        frame = codec.next_frame(data, 0, _ANY_SIZE)
        if frame is None:
            raise Unreadable("the message is not whole")
        first_byte, start, end = frame
        try:
            packet = codec.decode(first_byte, data[start:end])
            if not isinstance(packet, Bulk):
                return [self._frame(packet, _NAMES[first_byte >> 4], len(data), to_server)]
            found = [Frame("BULK", start)]
            for inner_byte, inner_start, inner_end in codec.frames(packet.body):
                inner = codec.decode(inner_byte, packet.body[inner_start:inner_end])
                size = inner_end - sum(f.size for f in found[1:])
                found.append(self._frame(inner, _NAMES[inner_byte >> 4], size, to_server))
        except PeerError as error:
            raise Unreadable(str(error)) from error
        return found

    def _frame(self, packet: Packet, name: str, size: int, to_server: bool) -> Frame:
        match packet:
            case Publish():
                topic = packet.topic
                if packet.is_request and packet.packet_id is not None:
                    destination = None if to_server else packet.response_destination
                    self._requests[to_server, packet.packet_id, destination] = topic
                elif packet.is_response and packet.packet_id is not None:
                    destination = packet.response_destination if to_server else None
                    topic = self._requests.pop((not to_server, packet.packet_id, destination), None)
                kind = "REQUEST" if packet.is_request else "RESPONSE" if packet.is_response else name
                return Frame(kind, size, len(packet.payload), topic, packet.packet_id)
            case ReqAck():
                return Frame(name, size, 0, packet.topic, packet.packet_id)
            case MsgAck():
                return Frame(name, size, 0, packet.topic, packet.message_id)
            case Subscribe() | Unsubscribe():
                self._asked[packet.packet_id] = packet.topic_filter
                return Frame(name, size, 0, packet.topic_filter, packet.packet_id)
            case SubAck() | UnsubAck():
                return Frame(name, size, 0, self._asked.pop(packet.packet_id, None), packet.packet_id)
            case _:
                return Frame(name, size)
