"""What a packet may not hold, whichever way it travels.

`broken_rule` looks at a packet as a value. `decode` and `encode` both ask it; what only the bytes can
show (reserved bits, missing fields) is the decoder's own business, and what depends on the direction
or on earlier packets is the session's.

The syntax of topic filters is not checked beyond "not empty": the answer to a bad filter is one reason
code in the SUBACK, not the end of the connection.
"""

from collections.abc import Iterable, Mapping
from typing import Final, assert_never

from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import (
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
from polybus.wire.mqtt.rules import Rule

_RECEIVED: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED: Final = frozenset({0x00, 0x92})

REASON_CODES: Final[Mapping[PacketType, frozenset[int]]] = {
    PacketType.CONNACK: frozenset({0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}),
    PacketType.PUBACK: _RECEIVED,
    PacketType.PUBREC: _RECEIVED,
    PacketType.PUBREL: _RELEASED,
    PacketType.PUBCOMP: _RELEASED,
    PacketType.SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    # 0x8C is listed for DISCONNECT in section 2.4 and left out in 3.14.2.1; we take both at their word
    PacketType.DISCONNECT: frozenset(
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)}
    ),
    PacketType.AUTH: frozenset({0x00, 0x18, 0x19}),
}
"""The reason codes of MQTT 5.0 by the packet that may carry them."""

RETURN_CODES: Final[Mapping[PacketType, frozenset[int]]] = {
    PacketType.CONNACK: frozenset(range(6)),
    PacketType.SUBACK: frozenset({0, 1, 2, 0x80}),
}
"""The same before MQTT 5.0."""


def broken_rule(packet: Packet, version: int) -> Rule | None:
    """The first rule that this packet breaks in this version, or None."""
    match packet:
        case Publish():
            return broken_by_publish(packet, version)
        case PubAck():
            return _ack(packet, version, PacketType.PUBACK, rules.PUBACK_REASON)
        case PubRec():
            return _ack(packet, version, PacketType.PUBREC, rules.PUBREC_REASON)
        case PubRel():
            return _ack(packet, version, PacketType.PUBREL, rules.PUBREL_REASON)
        case PubComp():
            return _ack(packet, version, PacketType.PUBCOMP, rules.PUBCOMP_REASON)
        case Connect():
            return _connect(packet)
        case ConnAck():
            return _connack(packet, version)
        case Subscribe():
            return _subscribe(packet, version)
        case SubAck():
            return _suback(packet, version)
        case Unsubscribe():
            return _unsubscribe(packet)
        case UnsubAck():
            return _unsuback(packet, version)
        case PingReq() | PingResp():
            return None
        case Disconnect():
            allowed = version < V5 or packet.reason_code in REASON_CODES[PacketType.DISCONNECT]
            return None if allowed else rules.DISCONNECT_REASON
        case Auth():
            return _auth(packet, version)
        case _:
            assert_never(packet)


def broken_by_publish(packet: Publish, version: int) -> Rule | None:
    """`broken_rule` for the packet type that comes by the million."""
    topic = packet.topic
    if not topic and (version < V5 or packet.properties.topic_alias is None):
        return rules.TOPIC_EMPTY
    if "+" in topic or "#" in topic:
        return rules.TOPIC_WILDCARD
    if packet.qos == 0:
        return rules.PUBLISH_DUP_QOS_0 if packet.dup else None
    if not 0 < packet.qos < 3:
        return rules.PUBLISH_QOS_INVALID
    return None if packet.packet_id else rules.PACKET_ID_ZERO


def _connect(packet: Connect) -> Rule | None:
    if packet.version not in (V31, V311, V5):
        return rules.PROTOCOL_LEVEL
    if packet.version < V5 and packet.password is not None and packet.user_name is None:
        return rules.PASSWORD_WITHOUT_USER_NAME
    if packet.properties.authentication_data is not None and packet.properties.authentication_method is None:
        return rules.AUTHENTICATION_DATA_ALONE
    return None if packet.will is None else _will(packet.will)


def _will(will: Will) -> Rule | None:
    if not 0 <= will.qos < 3:
        return rules.WILL_QOS_INVALID
    if not will.topic:
        return rules.WILL_TOPIC_EMPTY
    return rules.WILL_TOPIC_WILDCARD if "+" in will.topic or "#" in will.topic else None


def _connack(packet: ConnAck, version: int) -> Rule | None:
    codes = REASON_CODES if version >= V5 else RETURN_CODES
    if packet.reason_code not in codes[PacketType.CONNACK]:
        return rules.CONNACK_REASON
    return rules.CONNACK_SESSION_PRESENT if packet.session_present and packet.reason_code else None


def _ack(
    packet: PubAck | PubRec | PubRel | PubComp, version: int, kind: PacketType, reason: Rule
) -> Rule | None:
    if packet.packet_id == 0:
        return rules.PUBLISH_ACK_ID_ZERO
    return reason if version >= V5 and packet.reason_code not in REASON_CODES[kind] else None


def _subscribe(packet: Subscribe, version: int) -> Rule | None:
    if packet.packet_id == 0:
        return rules.PACKET_ID_ZERO
    if not packet.requests:
        return rules.SUBSCRIBE_EMPTY
    return _first(_request(request, version) for request in packet.requests)


def _request(request: SubscriptionRequest, version: int) -> Rule | None:
    if not request.topic_filter:
        return rules.TOPIC_FILTER_EMPTY
    if not 0 <= request.qos < 3:
        return rules.OPTIONS_QOS
    if version < V5:
        return None
    if not 0 <= request.retain_handling < 3:
        return rules.OPTIONS_RETAIN_HANDLING
    shared = request.topic_filter.startswith("$share/")
    return rules.OPTIONS_NO_LOCAL_SHARED if shared and request.no_local else None


def _suback(packet: SubAck, version: int) -> Rule | None:
    if packet.packet_id == 0:
        return rules.SUBSCRIBE_ACK_ID_ZERO
    if not packet.reason_codes:
        return rules.SUBACK_EMPTY
    codes = REASON_CODES if version >= V5 else RETURN_CODES
    return None if codes[PacketType.SUBACK].issuperset(packet.reason_codes) else rules.SUBACK_REASON


def _unsubscribe(packet: Unsubscribe) -> Rule | None:
    if packet.packet_id == 0:
        return rules.PACKET_ID_ZERO
    if not packet.topic_filters:
        return rules.UNSUBSCRIBE_EMPTY
    return None if all(packet.topic_filters) else rules.TOPIC_FILTER_EMPTY


def _unsuback(packet: UnsubAck, version: int) -> Rule | None:
    if packet.packet_id == 0:
        return rules.SUBSCRIBE_ACK_ID_ZERO
    if version < V5:
        return None
    if not packet.reason_codes:
        return rules.UNSUBACK_EMPTY
    allowed = REASON_CODES[PacketType.UNSUBACK].issuperset(packet.reason_codes)
    return None if allowed else rules.UNSUBACK_REASON


def _auth(packet: Auth, version: int) -> Rule | None:
    if version < V5:
        return rules.TYPE_RESERVED
    if packet.reason_code not in REASON_CODES[PacketType.AUTH]:
        return rules.AUTH_REASON
    # the short form, a success without any property, is allowed by section 3.15.2.1
    if packet == Auth() or packet.properties.authentication_method is not None:
        return None
    return rules.AUTH_METHOD_MISSING


def _first(found: Iterable[Rule | None]) -> Rule | None:
    return next((rule for rule in found if rule is not None), None)
