"""The properties of MQTT 5.0: which there are, what each may hold and where it may stand."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import astuple, force_setattr

from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import NO_PROPERTIES, V5, PacketType, Properties, ReasonCode
from polybus.wire.mqtt.primitives import (
    decode_binary,
    decode_string,
    decode_varint,
    encode_binary,
    encode_string,
)
from polybus.wire.mqtt.rules import Rule
from polybus.wire.varint import MAX_VARINT, encode_varint

WILL: Final = 0
"""Stands beside the packet types for the will properties, which are in a CONNECT's payload."""

Value: TypeAlias = int | str | bytes | tuple[str, str]


class Codec(msgspec.Struct, frozen=True):
    """How a value is read from (data, position, end), and for a number its size and its highest value."""

    decode: Callable[[bytes, int, int], tuple[Value, int]]
    size: int = 0
    highest: int = 0


class PropertySpec(msgspec.Struct, frozen=True):
    """One property. `section` is where the standard defines it, for errors that have no id there."""

    name: str
    codec: Codec
    allowed_in: frozenset[int]
    section: str
    lowest: int = 0
    repeatable_in: frozenset[int] = frozenset()

    def repeated(self) -> Rule:
        return Rule(f"{self.name} more than once", ReasonCode.PROTOCOL_ERROR, self.section)

    def out_of_range(self) -> Rule:
        if self.name == "topic_alias":
            return rules.TOPIC_ALIAS_ZERO
        text = f"{self.name} is not in {self.lowest}..{self.codec.highest}"
        return Rule(text, ReasonCode.PROTOCOL_ERROR, self.section)


def _decode_number(size: int) -> Callable[[bytes, int, int], tuple[int, int]]:
    def decode(data: bytes, pos: int, end: int) -> tuple[int, int]:
        stop = pos + size
        if stop > end:
            raise rules.PACKET_CUT_SHORT.broken_by_peer(V5)
        return int.from_bytes(data[pos:stop], "big"), stop

    return decode


def _decode_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    value, stop = decode_varint(data, pos)
    if stop > end:
        raise rules.PACKET_CUT_SHORT.broken_by_peer(V5)
    return value, stop


def _decode_pair(data: bytes, pos: int, end: int) -> tuple[tuple[str, str], int]:
    key, pos = decode_string(data, pos, end)
    text, pos = decode_string(data, pos, end)
    return (key, text), pos


BIT: Final = Codec(_decode_number(1), 1, 1)
"""Every property of one byte is 0 or 1."""
U16: Final = Codec(_decode_number(2), 2, 0xFFFF)
U32: Final = Codec(_decode_number(4), 4, 0xFFFF_FFFF)
VARINT: Final = Codec(_decode_varint, 0, MAX_VARINT)
STRING: Final = Codec(decode_string)
TOPIC: Final = Codec(decode_string)
BINARY: Final = Codec(decode_binary)
PAIR: Final = Codec(_decode_pair)

_CONNECT: Final = frozenset({PacketType.CONNECT})
_CONNACK: Final = frozenset({PacketType.CONNACK})
_BOTH: Final = _CONNECT | _CONNACK
_PUBLISH: Final = frozenset({PacketType.PUBLISH})
_SUBSCRIBE: Final = frozenset({PacketType.SUBSCRIBE})
_DISCONNECT: Final = frozenset({PacketType.DISCONNECT})
_AUTH: Final = frozenset({PacketType.AUTH})
_WILL: Final = frozenset({WILL})
_MESSAGE: Final = _PUBLISH | _WILL
_EVERYWHERE: Final = frozenset({WILL, *PacketType}) - {PacketType.PINGREQ, PacketType.PINGRESP}
_ANSWERS: Final = _EVERYWHERE - _CONNECT - _MESSAGE - _SUBSCRIBE - {PacketType.UNSUBSCRIBE}

# in the order of the fields of `Properties`, which is also that of the identifiers
PROPERTIES: Final[Mapping[int, PropertySpec]] = {
    0x01: PropertySpec("payload_format_indicator", BIT, _MESSAGE, "MQTT-3.3.2.3.2"),
    0x02: PropertySpec("message_expiry_s", U32, _MESSAGE, "MQTT-3.3.2.3.3"),
    0x03: PropertySpec("content_type", STRING, _MESSAGE, "MQTT-3.3.2.3.9"),
    0x08: PropertySpec("response_topic", TOPIC, _MESSAGE, "MQTT-3.3.2.3.5"),
    0x09: PropertySpec("correlation_data", BINARY, _MESSAGE, "MQTT-3.3.2.3.6"),
    0x0B: PropertySpec(
        "subscription_identifiers",
        VARINT,
        _PUBLISH | _SUBSCRIBE,
        "MQTT-3.8.2.1.2",
        lowest=1,
        repeatable_in=_PUBLISH,
    ),
    0x11: PropertySpec("session_expiry_s", U32, _BOTH | _DISCONNECT, "MQTT-3.1.2.11.2"),
    0x12: PropertySpec("assigned_client_id", STRING, _CONNACK, "MQTT-3.2.2.3.7"),
    0x13: PropertySpec("server_keep_alive_s", U16, _CONNACK, "MQTT-3.2.2.3.14"),
    0x15: PropertySpec("authentication_method", STRING, _BOTH | _AUTH, "MQTT-3.1.2.11.9"),
    0x16: PropertySpec("authentication_data", BINARY, _BOTH | _AUTH, "MQTT-3.1.2.11.10"),
    0x17: PropertySpec("request_problem_information", BIT, _CONNECT, "MQTT-3.1.2.11.7"),
    0x18: PropertySpec("will_delay_s", U32, _WILL, "MQTT-3.1.3.2.2"),
    0x19: PropertySpec("request_response_information", BIT, _CONNECT, "MQTT-3.1.2.11.6"),
    0x1A: PropertySpec("response_information", STRING, _CONNACK, "MQTT-3.2.2.3.15"),
    0x1C: PropertySpec("server_reference", STRING, _CONNACK | _DISCONNECT, "MQTT-3.2.2.3.16"),
    0x1F: PropertySpec("reason_string", STRING, _ANSWERS, "MQTT-3.2.2.3.9"),
    0x21: PropertySpec("receive_maximum", U16, _BOTH, "MQTT-3.1.2.11.3", lowest=1),
    0x22: PropertySpec("topic_alias_maximum", U16, _BOTH, "MQTT-3.1.2.11.5"),
    0x23: PropertySpec("topic_alias", U16, _PUBLISH, "MQTT-3.3.2.3.4", lowest=1),
    0x24: PropertySpec("maximum_qos", BIT, _CONNACK, "MQTT-3.2.2.3.4"),
    0x25: PropertySpec("retain_available", BIT, _CONNACK, "MQTT-3.2.2.3.5"),
    0x26: PropertySpec("user_properties", PAIR, _EVERYWHERE, "MQTT-3.3.2.3.7", repeatable_in=_EVERYWHERE),
    0x27: PropertySpec("maximum_packet_size", U32, _BOTH, "MQTT-3.1.2.11.4", lowest=1),
    0x28: PropertySpec("wildcard_subscription_available", BIT, _CONNACK, "MQTT-3.2.2.3.11"),
    0x29: PropertySpec("subscription_identifiers_available", BIT, _CONNACK, "MQTT-3.2.2.3.12"),
    0x2A: PropertySpec("shared_subscription_available", BIT, _CONNACK, "MQTT-3.2.2.3.13"),
}


MAX_PROPERTIES_BYTES: Final = 192 * 1024
"""Room for the longest that a message may say of itself and a thousand user properties; a packet of
nothing but tiny ones would keep everybody waiting while it is taken apart."""


def decode_properties(data: bytes, pos: int, end: int, where: int) -> tuple[Properties, int]:
    """The properties at `pos`, with their length before them, and the position after them.

    `where` is the packet type, or `WILL`. Raises PeerError for a property that is unknown, not allowed
    there, repeated or out of its range. `NO_PROPERTIES` is shared when there are none.
    """
    if pos >= end:
        raise rules.PACKET_CUT_SHORT.broken_by_peer(V5)
    if data[pos] == 0:
        return NO_PROPERTIES, pos + 1
    length, pos = decode_varint(data, pos)
    stop = pos + length
    if stop > end:
        raise rules.PACKET_CUT_SHORT.broken_by_peer(V5)
    if length > MAX_PROPERTIES_BYTES:
        raise PeerError(ReasonCode.PACKET_TOO_LARGE, f"more than {MAX_PROPERTIES_BYTES} bytes of properties")
    properties = Properties()
    repeated: dict[str, list[Value]] = {}
    seen = 0
    while pos < stop:
        identifier = data[pos]
        spec = PROPERTIES.get(identifier)
        if spec is None:
            raise rules.PROPERTY_UNKNOWN.broken_by_peer(V5)
        if where not in spec.allowed_in:
            raise rules.PROPERTY_NOT_ALLOWED.broken_by_peer(V5)
        value, pos = spec.codec.decode(data, pos + 1, stop)
        if (broken := _broken_rule(spec, value)) is not None:
            raise broken.broken_by_peer(V5)
        if seen & 1 << identifier and where not in spec.repeatable_in:
            raise spec.repeated().broken_by_peer(V5)
        seen |= 1 << identifier
        if spec.repeatable_in:
            repeated.setdefault(spec.name, []).append(value)
        else:
            force_setattr(properties, spec.name, value)
    for name, values in repeated.items():
        force_setattr(properties, name, tuple(values))
    return properties, pos


def encode_properties(properties: Properties, where: int) -> bytes:
    """The properties with their length before them, in the order of their identifiers.

    Raises UsageError for what `decode_properties` would refuse.
    """
    if properties is NO_PROPERTIES:
        return b"\0"
    parts: list[bytes] = []
    for (identifier, spec), found in zip(PROPERTIES.items(), astuple(properties), strict=True):
        if found is None or found == ():
            continue
        if where not in spec.allowed_in:
            raise UsageError(f"{spec.name} is not allowed in this packet")
        values: tuple[Value, ...] = found if spec.repeatable_in else (found,)
        if len(values) > 1 and where not in spec.repeatable_in:
            raise spec.repeated().broken_by_caller(V5)
        for value in values:
            parts += (bytes((identifier,)), _encode_value(spec, value))
    return encode_varint(sum(map(len, parts))) + b"".join(parts)


def _encode_value(spec: PropertySpec, value: Value) -> bytes:
    if (broken := _broken_rule(spec, value)) is not None:
        raise broken.broken_by_caller(V5)
    match value:
        case int():
            return encode_varint(value) if spec.codec is VARINT else value.to_bytes(spec.codec.size, "big")
        case str():
            return encode_string(value)
        case bytes():
            return encode_binary(value)
        case (key, text):
            return encode_string(key) + encode_string(text)


def _broken_rule(spec: PropertySpec, value: Value) -> Rule | None:
    """What the value breaks that its representation alone would allow."""
    if isinstance(value, int):
        return None if spec.lowest <= value <= spec.codec.highest else spec.out_of_range()
    if spec.codec is TOPIC and isinstance(value, str):
        if not value:
            return rules.RESPONSE_TOPIC_EMPTY
        if "+" in value or "#" in value:
            return rules.RESPONSE_TOPIC_WILDCARD
    return None
