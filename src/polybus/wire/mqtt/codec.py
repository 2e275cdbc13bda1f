"""MQTT 3.1, 3.1.1 and 5.0: bytes to packets and back.

A stream is cut with `next_frame`, each frame becomes a packet with `decode`; `encode` goes the other
way. Nothing here keeps state: the caller holds the buffer, the position and the version.
"""

from collections.abc import Callable, Mapping
from typing import Final

from polybus.errors import UsageError
from polybus.wire.mqtt import rules
from polybus.wire.mqtt.checks import broken_by_publish, broken_rule
from polybus.wire.mqtt.decoding import DECODERS, connect_version, decode_publish
from polybus.wire.mqtt.encoding import encode_packet
from polybus.wire.mqtt.packets import V5, V31, Connect, Packet, PacketType, PubAck, PubComp, PubRec, PubRel
from polybus.wire.mqtt.primitives import encode_string
from polybus.wire.mqtt.rules import Rule
from polybus.wire.varint import MAX_VARINT, Fault, encode_varint, frame_finder

__all__ = ["connect_version", "decode", "encode", "encode_publish_head", "encode_short_ack", "next_frame"]

_PUBLISH: Final = PacketType.PUBLISH

_FLAGS: Final[Mapping[int, tuple[int, Rule]]] = {
    PacketType.PUBREL: (0b0010, rules.PUBREL_FLAGS),
    PacketType.SUBSCRIBE: (0b0010, rules.SUBSCRIBE_FLAGS),
    PacketType.UNSUBSCRIBE: (0b0010, rules.UNSUBSCRIBE_FLAGS),
    PacketType.DISCONNECT: (0b0000, rules.DISCONNECT_FLAGS),
    PacketType.AUTH: (0b0000, rules.AUTH_FLAGS),
}
"""The flags of the fixed header that are not PUBLISH's and not simply zero, or have a rule of their own."""


_SHORT_ACKS: Final[Mapping[int, Callable[[int], PubAck | PubRec | PubRel | PubComp]]] = {
    0x40: PubAck,
    0x50: PubRec,
    0x62: PubRel,
    0x70: PubComp,
}
"""First byte -> what an acknowledgement is that holds nothing but its packet identifier."""


_FAULTS: Final[Mapping[Fault, Rule]] = {
    Fault.TOO_LONG: rules.VARINT_TOO_LONG,
    Fault.NOT_MINIMAL: rules.VARINT_NOT_MINIMAL,
    Fault.TOO_LARGE: rules.PACKET_TOO_LARGE,
}

next_frame: Final = frame_finder(lambda fault, *_: _FAULTS[fault].broken_by_peer(V5))
"""(first byte, start of the body, end) of the packet at a position, or None if it is not complete.

The arguments are the bytes, the position and `max_size`, which counts the whole packet, as Maximum
Packet Size does. Raises PeerError as soon as the header shows that the packet is too large, or has a
remaining length that is no such number."""


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """The packet that a frame holds, from either side. A CONNECT brings its own version.

    Raises PeerError for everything the standard forbids in a packet by itself.
    """
    kind = first_byte >> 4
    if kind == _PUBLISH:
        publish = decode_publish(first_byte, body, version)
        if (broken := broken_by_publish(publish, version)) is not None:
            raise broken.broken_by_peer(version)
        return publish
    if len(body) == 2 and first_byte in _SHORT_ACKS and (packet_id := body[0] << 8 | body[1]):
        return _SHORT_ACKS[first_byte](packet_id)
    decoder = DECODERS.get(kind)
    if decoder is None:
        raise rules.TYPE_RESERVED.broken_by_peer(version)
    _check_flags(kind, first_byte & 0x0F, version)
    packet = decoder(first_byte, body, version)
    if isinstance(packet, Connect):
        version = packet.version
    if (broken := broken_rule(packet, version)) is not None:
        raise broken.broken_by_peer(version)
    return packet


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of a packet. A `Connect` is written in its own version.

    Raises UsageError for what cannot be written and for what `decode` would refuse.
    """
    if isinstance(packet, Connect):
        version = packet.version
    if (broken := broken_rule(packet, version)) is not None:
        raise broken.broken_by_caller(version)
    first_byte, body = encode_packet(packet, version)
    if len(body) > MAX_VARINT:
        raise UsageError(f"packet of {len(body)} bytes is longer than {MAX_VARINT}")
    return bytes((first_byte,)) + encode_varint(len(body)) + body


def encode_publish_head(topic: str, first_byte: int, rest_size: int) -> bytes:
    """Fixed header and topic of a PUBLISH that goes on with `rest_size` more bytes.

    Those are the packet identifier, the properties and the payload, as far as there are any. For
    callers that write one message many times; nothing but the topic's representation is checked.
    """
    field = encode_string(topic)
    size = len(field) + rest_size
    if size < 0x80:
        return bytes((first_byte, size)) + field
    return bytes((first_byte,)) + encode_varint(size) + field


def encode_short_ack(first_byte: int, packet_id: int) -> bytes:
    """An acknowledgement that says success, the same in every version.

    The first byte is 0x40 (PUBACK), 0x50 (PUBREC), 0x62 (PUBREL) or 0x70 (PUBCOMP); nothing is checked.
    """
    return bytes((first_byte, 2, packet_id >> 8, packet_id & 0xFF))


def _check_flags(kind: int, flags: int, version: int) -> None:
    expected, rule = _FLAGS.get(kind, (0b0000, rules.FLAGS_RESERVED))
    if flags == expected:
        return
    # MQTT 3.1, section 2.1: there DUP also marks a repeated PUBREL, SUBSCRIBE or UNSUBSCRIBE
    if version == V31 and expected == 0b0010 and flags == 0b1010:
        return
    raise rule.broken_by_peer(version)
