"""MQTT-SN 1.2 messages: header, type, and what is published (SN-01). One datagram holds one message."""

import struct
from collections.abc import Sequence
from typing import Final

from polybus.pipeline.transforms.frames_types import Frame, Unreadable

TYPES: Final = {
    0x00: "ADVERTISE", 0x01: "SEARCHGW", 0x02: "GWINFO", 0x04: "CONNECT", 0x05: "CONNACK",
    0x06: "WILLTOPICREQ", 0x07: "WILLTOPIC", 0x08: "WILLMSGREQ", 0x09: "WILLMSG", 0x0A: "REGISTER",
    0x0B: "REGACK", 0x0C: "PUBLISH", 0x0D: "PUBACK", 0x0E: "PUBCOMP", 0x0F: "PUBREC", 0x10: "PUBREL",
    0x12: "SUBSCRIBE", 0x13: "SUBACK", 0x14: "UNSUBSCRIBE", 0x15: "UNSUBACK", 0x16: "PINGREQ",
    0x17: "PINGRESP", 0x18: "DISCONNECT", 0x1A: "WILLTOPICUPD", 0x1B: "WILLTOPICRESP",
    0x1C: "WILLMSGUPD", 0x1D: "WILLMSGRESP", 0xFE: "ENCAPSULATED",
}  # fmt: skip
_LEAST: Final = {
    "ADVERTISE": 3, "SEARCHGW": 1, "GWINFO": 1, "CONNECT": 4, "CONNACK": 1, "REGISTER": 4, "REGACK": 5,
    "PUBLISH": 5, "PUBACK": 5, "PUBCOMP": 2, "PUBREC": 2, "PUBREL": 2, "SUBSCRIBE": 4, "SUBACK": 6,
    "UNSUBSCRIBE": 4, "UNSUBACK": 2, "WILLTOPICRESP": 1, "WILLMSGRESP": 1, "ENCAPSULATED": 1,
}  # fmt: skip
"""Type -> the fewest bytes behind the header; 0 for the others."""

_DUP: Final = 0x80
_NAMED, _PREDEFINED, _SHORT = 0, 1, 2  # kinds of topic id; 0 is a name in SUBSCRIBE, a registered id elsewhere


def header(data: bytes) -> tuple[int, str, int]:
    """Bytes of length and type, the type's name, and the length of the message. Raises Unreadable."""
    if len(data) < 2:
        raise Unreadable("a message has at least two bytes")
    size, at = data[0], 1
    if size == 1:
        if len(data) < 4:
            raise Unreadable("a message with a long length has at least four bytes")
        (size,) = struct.unpack_from(">H", data, 1)
        at = 3
    name = TYPES.get(data[at])
    if name is None:
        raise Unreadable(f"there is no message type 0x{data[at]:02X}")
    at += 1
    if size > len(data):
        raise Unreadable(f"the message says it has {size} bytes, the datagram {len(data)}")
    if size < at + _LEAST.get(name, 0):
        raise Unreadable(f"{name} says it has only {size} bytes")
    return at, name, size


class MqttSnDecoder:
    protocol = "mqtt-sn"

    def __init__(self) -> None:
        self._topics: dict[int, str] = {}
        self._asked: dict[int, str] = {}
        self._in_flight: dict[bool, dict[int, str | None]] = {True: {}, False: {}}

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        _, name, size = header(data[pos:])
        return len(data) - pos if name == "ENCAPSULATED" else size

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        return True

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """A message says by itself how to read it."""

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        at, name, size = header(data)
        if name == "ENCAPSULATED":
            # A forwarder's header, then the message of the node behind it.
            return [Frame(name, size), *self.read(data[size:], to_server)]
        if size != len(data):
            raise Unreadable(f"{name} has {size} bytes in a datagram of {len(data)}")
        return [self._frame(name, data[at:], size, to_server)]

    def _frame(self, name: str, body: bytes, size: int, to_server: bool) -> Frame:
        waiting = self._in_flight[not to_server]
        match name:
            case "PUBLISH":
                flags, topic_id, message_id = struct.unpack_from(">BHH", body)
                topic = self._topic(flags & 3, topic_id, body[1:3])
                own = self._in_flight[to_server]
                is_repeat = bool(flags & _DUP) and message_id in own
                if flags >> 5 & 3 in (1, 2):
                    own[message_id] = topic
                return Frame(name, size, len(body) - 5, topic, message_id or None, is_repeat)
            case "PUBACK":
                _, message_id = struct.unpack_from(">HH", body)
                return Frame(name, size, 0, waiting.pop(message_id, None), message_id)
            case "PUBREC" | "PUBREL" | "PUBCOMP":
                (message_id,) = struct.unpack_from(">H", body)
                if name == "PUBCOMP":
                    return Frame(name, size, 0, waiting.pop(message_id, None), message_id)
                side = to_server if name == "PUBREL" else not to_server
                return Frame(name, size, 0, self._in_flight[side].get(message_id), message_id)
            case "REGISTER":
                topic_id, message_id = struct.unpack_from(">HH", body)
                topic = body[4:].decode(errors="replace")
                if topic_id:
                    self._topics[topic_id] = topic
                self._asked[message_id] = topic
                return Frame(name, size, 0, topic, message_id)
            case "REGACK":
                topic_id, message_id = struct.unpack_from(">HH", body)
                return Frame(name, size, 0, self._granted(message_id, topic_id), message_id)
            case "SUBSCRIBE" | "UNSUBSCRIBE":
                flags, message_id = struct.unpack_from(">BH", body)
                if flags & 3 == _NAMED:
                    topic = body[3:].decode(errors="replace")
                else:
                    topic = self._topic(flags & 3, int.from_bytes(body[3:5], "big"), body[3:5])
                self._asked[message_id] = topic
                return Frame(name, size, 0, topic, message_id)
            case "SUBACK":
                _, topic_id, message_id = struct.unpack_from(">BHH", body)
                return Frame(name, size, 0, self._granted(message_id, topic_id), message_id)
            case "UNSUBACK":
                (message_id,) = struct.unpack_from(">H", body)
                return Frame(name, size, 0, self._asked.pop(message_id, None), message_id)
            case _:
                return Frame(name, size)

    def _topic(self, kind: int, topic_id: int, raw: bytes) -> str:
        """The name, or the id where no registration in the capture tells it."""
        if kind == _SHORT:
            return raw.decode(errors="replace")
        if kind == _PREDEFINED:
            return f"#{topic_id}"
        return self._topics.get(topic_id, f"#{topic_id}")

    def _granted(self, message_id: int, topic_id: int) -> str | None:
        topic = self._asked.pop(message_id, None)
        if topic is not None and topic_id and not any(c in topic for c in "+#"):
            self._topics[topic_id] = topic
        return topic
