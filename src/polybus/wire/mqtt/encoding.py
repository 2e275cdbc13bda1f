"""Packets to bodies: the flags of the fixed header and everything after the remaining length.

Raises UsageError for what a field cannot hold; what the packet may not say at all is asked of `checks`
by `codec.encode`. Fields that a version does not have are not written.
"""

from typing import Final, assert_never

from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from polybus.wire.mqtt.primitives import encode_binary, encode_string, encode_u16
from polybus.wire.mqtt.properties import WILL, encode_properties

_PUBLISH: Final = PacketType.PUBLISH << 4
_RESERVED_FLAGS: Final = 0x02
"""Of PUBREL, SUBSCRIBE and UNSUBSCRIBE; those of the other types are zero."""


def encode_packet(packet: Packet, version: int) -> tuple[int, bytes]:
    """The first byte and the body."""
    match packet:
        case Publish():
            return _encode_publish(packet, version)
        case PubAck():
            return _encode_ack(packet, version, PacketType.PUBACK)
        case PubRec():
            return _encode_ack(packet, version, PacketType.PUBREC)
        case PubRel():
            first_byte, body = _encode_ack(packet, version, PacketType.PUBREL)
            return first_byte | _RESERVED_FLAGS, body
        case PubComp():
            return _encode_ack(packet, version, PacketType.PUBCOMP)
        case Connect():
            return PacketType.CONNECT << 4, _encode_connect(packet)
        case ConnAck():
            return PacketType.CONNACK << 4, _encode_connack(packet, version)
        case Subscribe():
            return PacketType.SUBSCRIBE << 4 | _RESERVED_FLAGS, _encode_subscribe(packet, version)
        case SubAck():
            head = _encode_id_and_properties(packet, version, PacketType.SUBACK)
            return PacketType.SUBACK << 4, head + bytes(packet.reason_codes)
        case Unsubscribe():
            head = _encode_id_and_properties(packet, version, PacketType.UNSUBSCRIBE)
            filters = b"".join(map(encode_string, packet.topic_filters))
            return PacketType.UNSUBSCRIBE << 4 | _RESERVED_FLAGS, head + filters
        case UnsubAck():
            head = _encode_id_and_properties(packet, version, PacketType.UNSUBACK)
            return PacketType.UNSUBACK << 4, head + bytes(packet.reason_codes if version >= V5 else ())
        case PingReq():
            return PacketType.PINGREQ << 4, b""
        case PingResp():
            return PacketType.PINGRESP << 4, b""
        case Disconnect():
            return PacketType.DISCONNECT << 4, _encode_outcome(packet, version, PacketType.DISCONNECT)
        case Auth():
            return PacketType.AUTH << 4, _encode_auth(packet)
        case _:
            assert_never(packet)


def _encode_connect(packet: Connect) -> bytes:
    version, will = packet.version, packet.will
    flags = 0x02 if packet.clean_start else 0
    payload = [encode_string(packet.client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += (
            _encode_properties(will.properties, version, WILL),
            encode_string(will.topic),
            encode_binary(will.payload),
        )
    if packet.user_name is not None:
        flags |= 0x80
        payload.append(encode_string(packet.user_name))
    if packet.password is not None:
        flags |= 0x40
        payload.append(encode_binary(packet.password))
    return b"".join(
        (
            encode_string("MQIsdp" if version == V31 else "MQTT"),
            bytes((version, flags)),
            encode_u16(packet.keep_alive_s, "keep_alive_s"),
            _encode_properties(packet.properties, version, PacketType.CONNECT),
            *payload,
        )
    )


def _encode_connack(packet: ConnAck, version: int) -> bytes:
    # MQTT 3.1 has no session present flag
    session_present = packet.session_present and version != V31
    properties = _encode_properties(packet.properties, version, PacketType.CONNACK)
    return bytes((session_present, packet.reason_code)) + properties


def _encode_publish(packet: Publish, version: int) -> tuple[int, bytes]:
    first_byte = _PUBLISH | (8 if packet.dup else 0) | packet.qos << 1 | (1 if packet.retain else 0)
    packet_id = encode_u16(packet.packet_id, "packet_id") if packet.qos else b""
    properties = _encode_properties(packet.properties, version, PacketType.PUBLISH)
    return first_byte, b"".join((encode_string(packet.topic), packet_id, properties, packet.payload))


def _encode_ack(
    packet: PubAck | PubRec | PubRel | PubComp, version: int, kind: PacketType
) -> tuple[int, bytes]:
    return kind << 4, encode_u16(packet.packet_id, "packet_id") + _encode_outcome(packet, version, kind)


def _encode_subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [_encode_id_and_properties(packet, version, PacketType.SUBSCRIBE)]
    for request in packet.requests:
        parts += (encode_string(request.topic_filter), bytes((_encode_options(request, version),)))
    return b"".join(parts)


def _encode_options(request: SubscriptionRequest, version: int) -> int:
    if version < V5:
        return request.qos
    no_local = 0x04 if request.no_local else 0
    retain_as_published = 0x08 if request.retain_as_published else 0
    return request.qos | no_local | retain_as_published | request.retain_handling << 4


def _encode_auth(packet: Auth) -> bytes:
    if packet == Auth():
        return b""
    return bytes((packet.reason_code,)) + encode_properties(packet.properties, PacketType.AUTH)


def _encode_outcome(
    packet: PubAck | PubRec | PubRel | PubComp | Disconnect, version: int, kind: PacketType
) -> bytes:
    """The reason code and properties that end a packet, without what may be left out."""
    if version < V5:
        return b""
    if packet.properties == NO_PROPERTIES:
        return bytes((packet.reason_code,)) if packet.reason_code else b""
    return bytes((packet.reason_code,)) + encode_properties(packet.properties, kind)


def _encode_id_and_properties(
    packet: Subscribe | SubAck | Unsubscribe | UnsubAck, version: int, kind: PacketType
) -> bytes:
    return encode_u16(packet.packet_id, "packet_id") + _encode_properties(packet.properties, version, kind)


def _encode_properties(properties: Properties, version: int, where: int) -> bytes:
    return encode_properties(properties, where) if version >= V5 else b""
