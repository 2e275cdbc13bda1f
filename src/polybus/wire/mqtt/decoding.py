"""Packet bodies to packets: one function a packet type, and the table that finds it.

Each takes (first byte, body, version) and raises PeerError for what only the bytes can show; what the
finished packet may not hold is asked of `checks` by `codec.decode`.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
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
    Will,
)
from polybus.wire.mqtt.primitives import decode_binary, decode_string, decode_u16
from polybus.wire.mqtt.properties import WILL, decode_properties
from polybus.wire.mqtt.rules import Rule

Decoder: TypeAlias = Callable[[int, bytes, int], Packet]

PROTOCOL_VERSIONS: Final[Mapping[bytes, frozenset[int]]] = {
    b"MQTT": frozenset({V311, V5}),
    b"MQIsdp": frozenset({V31}),
}


def decode_connect(first_byte: int, body: bytes, version: int) -> Connect:
    """The version in the packet decides, not `version`."""
    version, pos = connect_version(body)
    end = len(body)
    flags, pos = _decode_byte(body, pos, end, version)
    _check_connect_flags(flags, version)
    keep_alive_s, pos = decode_u16(body, pos, end, version)
    properties, pos = _decode_properties(body, pos, version, PacketType.CONNECT)
    _expect(pos < end, rules.CLIENT_ID_MISSING, version)
    client_id, pos = decode_string(body, pos, end, version)
    will = None
    if flags & 0x04:
        will, pos = _decode_will(flags, body, pos, version)
    user_name = password = None
    # MQTT 3.1, section 3.1: a flag may be set and its field absent; the remaining length prevails
    lenient = version == V31
    if flags & 0x80 and not (lenient and pos == end):
        _expect(pos < end, rules.USER_NAME_MISSING, version)
        user_name, pos = decode_string(body, pos, end, version)
    if flags & 0x40 and not (lenient and pos == end):
        _expect(pos < end, rules.PASSWORD_MISSING, version)
        password, pos = decode_binary(body, pos, end, version)
    _expect(pos == end, rules.CONNECT_FORMAT, version)
    return Connect(client_id, version, bool(flags & 0x02), keep_alive_s, will, user_name, password, properties)


def connect_version(body: bytes) -> tuple[int, int]:
    """The protocol version a CONNECT asks for and the position after it.

    Raises PeerError if it is none of ours. A session uses it to answer a CONNECT that is otherwise bad
    in the words of its own version.
    """
    end = len(body)
    name, pos = decode_binary(body, 0, end)
    _expect(name in PROTOCOL_VERSIONS, rules.PROTOCOL_NAME, V5)
    version, pos = _decode_byte(body, pos, end, V5)
    _expect(version in PROTOCOL_VERSIONS[name], rules.PROTOCOL_LEVEL, V5)
    return version, pos


def decode_publish(first_byte: int, body: bytes, version: int) -> Publish:
    end = len(body)
    topic, pos = decode_string(body, 0, end, version)
    qos = first_byte >> 1 & 3
    packet_id = 0
    if qos:
        # [MQTT-3.3.1-4] asked here, for with QoS 3 the fields that follow have no meaning
        _expect(qos < 3, rules.PUBLISH_QOS_INVALID, version)
        packet_id, pos = decode_u16(body, pos, end, version)
    properties = NO_PROPERTIES
    if version >= V5:
        properties, pos = decode_properties(body, pos, end, PacketType.PUBLISH)
    return Publish(topic, body[pos:], qos, bool(first_byte & 1), bool(first_byte & 8), packet_id, properties)


def decode_connack(first_byte: int, body: bytes, version: int) -> ConnAck:
    end = len(body)
    flags, pos = _decode_byte(body, 0, end, version)
    reason_code, pos = _decode_byte(body, pos, end, version)
    if version == V31:
        flags = 0  # the byte is "not used" there, so it cannot be wrong
    _expect(flags < 2, rules.CONNACK_FLAGS, version)
    properties, pos = _decode_properties(body, pos, version, PacketType.CONNACK)
    _expect(pos == end, rules.PACKET_HAS_MORE, version)
    return ConnAck(reason_code, bool(flags), properties)


def decode_subscribe(first_byte: int, body: bytes, version: int) -> Subscribe:
    end = len(body)
    packet_id, pos = decode_u16(body, 0, end, version)
    properties, pos = _decode_properties(body, pos, version, PacketType.SUBSCRIBE)
    requests: list[SubscriptionRequest] = []
    reserved = 0xC0 if version >= V5 else 0xFC
    while pos < end:
        topic_filter, pos = decode_string(body, pos, end, version)
        options, pos = _decode_byte(body, pos, end, version)
        _expect(not options & reserved, rules.OPTIONS_RESERVED, version)
        requests.append(
            SubscriptionRequest(
                topic_filter, options & 3, bool(options & 0x04), bool(options & 0x08), options >> 4
            )
        )
    return Subscribe(packet_id, tuple(requests), properties)


def decode_suback(first_byte: int, body: bytes, version: int) -> SubAck:
    packet_id, pos = decode_u16(body, 0, len(body), version)
    properties, pos = _decode_properties(body, pos, version, PacketType.SUBACK)
    return SubAck(packet_id, tuple(body[pos:]), properties)


def decode_unsubscribe(first_byte: int, body: bytes, version: int) -> Unsubscribe:
    end = len(body)
    packet_id, pos = decode_u16(body, 0, end, version)
    properties, pos = _decode_properties(body, pos, version, PacketType.UNSUBSCRIBE)
    topic_filters: list[str] = []
    while pos < end:
        topic_filter, pos = decode_string(body, pos, end, version)
        topic_filters.append(topic_filter)
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def decode_unsuback(first_byte: int, body: bytes, version: int) -> UnsubAck:
    packet_id, pos = decode_u16(body, 0, len(body), version)
    properties, pos = _decode_properties(body, pos, version, PacketType.UNSUBACK)
    _expect(version >= V5 or pos == len(body), rules.PACKET_HAS_MORE, version)
    return UnsubAck(packet_id, tuple(body[pos:]), properties)


def decode_pingreq(first_byte: int, body: bytes, version: int) -> PingReq:
    _expect(not body, rules.PACKET_HAS_MORE, version)
    return PingReq()


def decode_pingresp(first_byte: int, body: bytes, version: int) -> PingResp:
    _expect(not body, rules.PACKET_HAS_MORE, version)
    return PingResp()


def decode_disconnect(first_byte: int, body: bytes, version: int) -> Disconnect:
    return Disconnect(*_decode_outcome(body, 0, version, PacketType.DISCONNECT))


def decode_auth(first_byte: int, body: bytes, version: int) -> Auth:
    _expect(version >= V5, rules.TYPE_RESERVED, version)
    # unlike the others, an AUTH with a reason code always has properties (section 3.15.2.1)
    _expect(len(body) != 1, rules.PACKET_CUT_SHORT, version)
    return Auth(*_decode_outcome(body, 0, version, PacketType.AUTH))


def _decode_ack(kind: PacketType, build: Callable[[int, int, Properties], Packet]) -> Decoder:
    """PUBACK, PUBREC, PUBREL and PUBCOMP have one layout."""

    def decode_ack(first_byte: int, body: bytes, version: int) -> Packet:
        packet_id, pos = decode_u16(body, 0, len(body), version)
        return build(packet_id, *_decode_outcome(body, pos, version, kind))

    return decode_ack


DECODERS: Final[Mapping[int, Decoder]] = {
    PacketType.CONNECT: decode_connect,
    PacketType.CONNACK: decode_connack,
    PacketType.PUBLISH: decode_publish,
    PacketType.PUBACK: _decode_ack(PacketType.PUBACK, PubAck),
    PacketType.PUBREC: _decode_ack(PacketType.PUBREC, PubRec),
    PacketType.PUBREL: _decode_ack(PacketType.PUBREL, PubRel),
    PacketType.PUBCOMP: _decode_ack(PacketType.PUBCOMP, PubComp),
    PacketType.SUBSCRIBE: decode_subscribe,
    PacketType.SUBACK: decode_suback,
    PacketType.UNSUBSCRIBE: decode_unsubscribe,
    PacketType.UNSUBACK: decode_unsuback,
    PacketType.PINGREQ: decode_pingreq,
    PacketType.PINGRESP: decode_pingresp,
    PacketType.DISCONNECT: decode_disconnect,
    PacketType.AUTH: decode_auth,
}


def _decode_outcome(body: bytes, pos: int, version: int, kind: PacketType) -> tuple[int, Properties]:
    """The reason code and properties that end a packet; either may be left out, and is before 5.0."""
    end = len(body)
    reason_code, properties = 0, NO_PROPERTIES
    if version >= V5 and pos < end:
        reason_code, pos = body[pos], pos + 1
        if pos < end:
            properties, pos = decode_properties(body, pos, end, kind)
    _expect(pos == end, rules.PACKET_HAS_MORE, version)
    return reason_code, properties


def _decode_will(flags: int, body: bytes, pos: int, version: int) -> tuple[Will, int]:
    end = len(body)
    _expect(pos < end, rules.WILL_MISSING, version)
    properties, pos = _decode_properties(body, pos, version, WILL)
    _expect(pos < end, rules.WILL_MISSING, version)
    topic, pos = decode_string(body, pos, end, version)
    _expect(pos < end, rules.WILL_MISSING, version)
    payload, pos = decode_binary(body, pos, end, version)
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), properties), pos


def _check_connect_flags(flags: int, version: int) -> None:
    _expect(not flags & 0x01, rules.CONNECT_FLAG_RESERVED, version)
    if flags & 0x04:
        _expect(flags & 0x18 != 0x18, rules.WILL_QOS_INVALID, version)
    else:
        _expect(not flags & 0x18, rules.WILL_QOS_WITHOUT_WILL, version)
        _expect(not flags & 0x20, rules.WILL_RETAIN_WITHOUT_WILL, version)
    if version < V5:
        _expect(flags & 0xC0 != 0x40, rules.PASSWORD_WITHOUT_USER_NAME, version)


def _decode_properties(body: bytes, pos: int, version: int, where: int) -> tuple[Properties, int]:
    if version < V5:
        return NO_PROPERTIES, pos
    return decode_properties(body, pos, len(body), where)


def _decode_byte(body: bytes, pos: int, end: int, version: int) -> tuple[int, int]:
    _expect(pos < end, rules.PACKET_CUT_SHORT, version)
    return body[pos], pos + 1


def _expect(holds: bool, rule: Rule, version: int) -> None:
    if not holds:
        raise rule.broken_by_peer(version)
