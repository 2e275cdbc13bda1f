"""The properties of MQTT 5.0: which there are, what each may hold and where it may stand."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeAlias, assert_never

import msgspec

from polybus.errors import UsageError
from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import NO_PROPERTIES, V5, PacketType, Properties, ReasonCode
from polybus.wire.mqtt.primitives import (
    MAX_VARINT,
    decode_binary,
    decode_string,
    decode_varint,
    encode_binary,
    encode_string,
    encode_varint,
)
from polybus.wire.mqtt.rules import Rule

WILL: Final = 0
"""Stands beside the packet types for the will properties, which are in a CONNECT's payload."""


class Codec(IntEnum):
    """How a value is written. The first three are also its size in bytes."""

    BYTE = 1
    U16 = 2
    U32 = 4
    VARINT = 5
    STRING = 6
    BINARY = 7
    PAIR = 8


HIGHEST: Final[Mapping[Codec, int]] = {
    Codec.BYTE: 1,  # every property of one byte is 0 or 1
    Codec.U16: 0xFFFF,
    Codec.U32: 0xFFFF_FFFF,
    Codec.VARINT: MAX_VARINT,
}

Value: TypeAlias = int | str | bytes | tuple[str, str]


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
        text = f"{self.name} is not in {self.lowest}..{HIGHEST[self.codec]}"
        return Rule(text, ReasonCode.PROTOCOL_ERROR, self.section)


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

PROPERTIES: Final[Mapping[int, PropertySpec]] = {
    0x01: PropertySpec("payload_format_indicator", Codec.BYTE, _MESSAGE, "MQTT-3.3.2.3.2"),
    0x02: PropertySpec("message_expiry_s", Codec.U32, _MESSAGE, "MQTT-3.3.2.3.3"),
    0x03: PropertySpec("content_type", Codec.STRING, _MESSAGE, "MQTT-3.3.2.3.9"),
    0x08: PropertySpec("response_topic", Codec.STRING, _MESSAGE, "MQTT-3.3.2.3.5"),
    0x09: PropertySpec("correlation_data", Codec.BINARY, _MESSAGE, "MQTT-3.3.2.3.6"),
    0x0B: PropertySpec(
        "subscription_identifiers",
        Codec.VARINT,
        _PUBLISH | _SUBSCRIBE,
        "MQTT-3.8.2.1.2",
        lowest=1,
        repeatable_in=_PUBLISH,
    ),
    0x11: PropertySpec("session_expiry_s", Codec.U32, _BOTH | _DISCONNECT, "MQTT-3.1.2.11.2"),
    0x12: PropertySpec("assigned_client_id", Codec.STRING, _CONNACK, "MQTT-3.2.2.3.7"),
    0x13: PropertySpec("server_keep_alive_s", Codec.U16, _CONNACK, "MQTT-3.2.2.3.14"),
    0x15: PropertySpec("authentication_method", Codec.STRING, _BOTH | _AUTH, "MQTT-3.1.2.11.9"),
    0x16: PropertySpec("authentication_data", Codec.BINARY, _BOTH | _AUTH, "MQTT-3.1.2.11.10"),
    0x17: PropertySpec("request_problem_information", Codec.BYTE, _CONNECT, "MQTT-3.1.2.11.7"),
    0x18: PropertySpec("will_delay_s", Codec.U32, _WILL, "MQTT-3.1.3.2.2"),
    0x19: PropertySpec("request_response_information", Codec.BYTE, _CONNECT, "MQTT-3.1.2.11.6"),
    0x1A: PropertySpec("response_information", Codec.STRING, _CONNACK, "MQTT-3.2.2.3.15"),
    0x1C: PropertySpec("server_reference", Codec.STRING, _CONNACK | _DISCONNECT, "MQTT-3.2.2.3.16"),
    0x1F: PropertySpec("reason_string", Codec.STRING, _ANSWERS, "MQTT-3.2.2.3.9"),
    0x21: PropertySpec("receive_maximum", Codec.U16, _BOTH, "MQTT-3.1.2.11.3", lowest=1),
    0x22: PropertySpec("topic_alias_maximum", Codec.U16, _BOTH, "MQTT-3.1.2.11.5"),
    0x23: PropertySpec("topic_alias", Codec.U16, _PUBLISH, "MQTT-3.3.2.3.4", lowest=1),
    0x24: PropertySpec("maximum_qos", Codec.BYTE, _CONNACK, "MQTT-3.2.2.3.4"),
    0x25: PropertySpec("retain_available", Codec.BYTE, _CONNACK, "MQTT-3.2.2.3.5"),
    0x26: PropertySpec("user_properties", Codec.PAIR, _EVERYWHERE, "MQTT-3.3.2.3.7", repeatable_in=_EVERYWHERE),
    0x27: PropertySpec("maximum_packet_size", Codec.U32, _BOTH, "MQTT-3.1.2.11.4", lowest=1),
    0x28: PropertySpec("wildcard_subscription_available", Codec.BYTE, _CONNACK, "MQTT-3.2.2.3.11"),
    0x29: PropertySpec("subscription_identifiers_available", Codec.BYTE, _CONNACK, "MQTT-3.2.2.3.12"),
    0x2A: PropertySpec("shared_subscription_available", Codec.BYTE, _CONNACK, "MQTT-3.2.2.3.13"),
}


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
    properties = Properties()
    seen: set[int] = set()
    while pos < stop:
        identifier = data[pos]
        spec = PROPERTIES.get(identifier)
        if spec is None:
            raise rules.PROPERTY_UNKNOWN.broken_by_peer(V5)
        if where not in spec.allowed_in:
            raise rules.PROPERTY_NOT_ALLOWED.broken_by_peer(V5)
        if identifier in seen and where not in spec.repeatable_in:
            raise spec.repeated().broken_by_peer(V5)
        seen.add(identifier)
        value, pos = _decode_value(spec, data, pos + 1, stop)
        if (broken := _broken_rule(spec, value)) is not None:
            raise broken.broken_by_peer(V5)
        if spec.repeatable_in:
            value = (*getattr(properties, spec.name), value)
        msgspec.structs.force_setattr(properties, spec.name, value)
    return properties, pos


def encode_properties(properties: Properties, where: int) -> bytes:
    """The properties with their length before them, in the order of their identifiers.

    Raises UsageError for what `decode_properties` would refuse.
    """
    if properties is NO_PROPERTIES:
        return b"\0"
    parts: list[bytes] = []
    for identifier, spec in PROPERTIES.items():
        values = _values(properties, spec)
        if values and where not in spec.allowed_in:
            raise UsageError(f"{spec.name} is not allowed in this packet")
        if len(values) > 1 and where not in spec.repeatable_in:
            raise spec.repeated().broken_by_caller(V5)
        for value in values:
            parts += (bytes((identifier,)), _encode_value(spec, value))
    return encode_varint(sum(map(len, parts))) + b"".join(parts)


def _values(properties: Properties, spec: PropertySpec) -> tuple[Value, ...]:
    if spec.repeatable_in:
        many: tuple[Value, ...] = getattr(properties, spec.name)
        return many
    one: Value | None = getattr(properties, spec.name)
    return () if one is None else (one,)


def _decode_value(spec: PropertySpec, data: bytes, pos: int, end: int) -> tuple[Value, int]:
    match spec.codec:
        case Codec.BYTE | Codec.U16 | Codec.U32:
            stop = pos + spec.codec
            if stop > end:
                raise rules.PACKET_CUT_SHORT.broken_by_peer(V5)
            return int.from_bytes(data[pos:stop], "big"), stop
        case Codec.VARINT:
            number, stop = decode_varint(data, pos)
            if stop > end:
                raise rules.PACKET_CUT_SHORT.broken_by_peer(V5)
            return number, stop
        case Codec.STRING:
            return decode_string(data, pos, end)
        case Codec.BINARY:
            return decode_binary(data, pos, end)
        case Codec.PAIR:
            key, pos = decode_string(data, pos, end)
            text, pos = decode_string(data, pos, end)
            return (key, text), pos
        case _:
            assert_never(spec.codec)


def _encode_value(spec: PropertySpec, value: Value) -> bytes:
    if (broken := _broken_rule(spec, value)) is not None:
        raise broken.broken_by_caller(V5)
    match value:
        case int():
            return encode_varint(value) if spec.codec is Codec.VARINT else value.to_bytes(spec.codec, "big")
        case str():
            return encode_string(value)
        case bytes():
            return encode_binary(value)
        case (key, text):
            return encode_string(key) + encode_string(text)


def _broken_rule(spec: PropertySpec, value: Value) -> Rule | None:
    """What the value breaks that its representation alone would allow."""
    if isinstance(value, int):
        return None if spec.lowest <= value <= HIGHEST[spec.codec] else spec.out_of_range()
    if spec.name == "response_topic" and isinstance(value, str):
        if not value:
            return rules.TOPIC_EMPTY
        if "+" in value or "#" in value:
            return rules.RESPONSE_TOPIC_WILDCARD
    return None
