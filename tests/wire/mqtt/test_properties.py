"""Each property in each packet type: allowed or not, once or often, in its range or not."""

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, PacketType, Properties
from polybus.wire.mqtt.primitives import encode_binary, encode_string
from polybus.wire.mqtt.properties import (
    BINARY,
    MAX_PROPERTIES_BYTES,
    PAIR,
    PROPERTIES,
    STRING,
    TOPIC,
    VARINT,
    WILL,
    PropertySpec,
    decode_properties,
    encode_properties,
)
from polybus.wire.varint import encode_varint

PLACES = (WILL, *PacketType)
PAIRS = [(identifier, where) for identifier in PROPERTIES for where in PLACES]
ALLOWED = [(identifier, where) for identifier, where in PAIRS if where in PROPERTIES[identifier].allowed_in]
NUMBERS = [identifier for identifier, spec in PROPERTIES.items() if spec.codec.highest]


def sample(spec: PropertySpec) -> tuple[object, bytes]:
    """A lawful value and its bytes, made without the code under test."""
    if spec.codec is PAIR:
        return ("k", "v"), encode_string("k") + encode_string("v")
    if spec.codec in (STRING, TOPIC):
        return "text", encode_string("text")
    if spec.codec is BINARY:
        return b"\x00\xff", encode_binary(b"\x00\xff")
    return 1, b"\x01" if spec.codec is VARINT else (1).to_bytes(spec.codec.size, "big")


def block(*properties: tuple[int, bytes]) -> bytes:
    body = b"".join(bytes((identifier,)) + raw for identifier, raw in properties)
    return encode_varint(len(body)) + body


def holding(spec: PropertySpec, *values: object) -> Properties:
    held = values if spec.repeatable_in else values[0]
    return Properties(**{spec.name: held})  # type: ignore[arg-type]


def refusal(data: bytes, where: int) -> tuple[int, str]:
    with pytest.raises(PeerError) as raised:
        decode_properties(data, 0, len(data), where)
    return raised.value.reason_code, raised.value.rule


def test_the_table_names_every_field_in_its_order() -> None:
    assert tuple(spec.name for spec in PROPERTIES.values()) == Properties.__struct_fields__
    assert list(PROPERTIES) == sorted(PROPERTIES)


def test_the_table_agrees_with_an_independent_one() -> None:
    paho = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    theirs = {
        identifier: {WILL if where == PacketTypes.WILLMESSAGE else where for where in places}
        for identifier, (_, places) in paho.properties.items()
    }
    assert {identifier: set(spec.allowed_in) for identifier, spec in PROPERTIES.items()} == theirs


@pytest.mark.parametrize(("identifier", "where"), PAIRS)
def test_where_a_property_is_allowed(identifier: int, where: int) -> None:
    spec = PROPERTIES[identifier]
    value, raw = sample(spec)
    data = block((identifier, raw))
    held = holding(spec, value)
    if where in spec.allowed_in:
        assert decode_properties(data, 0, len(data), where) == (held, len(data))
        assert encode_properties(held, where) == data
    else:
        assert refusal(data, where) == (0x81, "MQTT-2.2.2.2")
        with pytest.raises(UsageError, match=spec.name):
            encode_properties(held, where)


@pytest.mark.parametrize(("identifier", "where"), ALLOWED)
def test_a_property_twice(identifier: int, where: int) -> None:
    spec = PROPERTIES[identifier]
    value, raw = sample(spec)
    data = block((identifier, raw), (identifier, raw))
    if where in spec.repeatable_in:
        held = holding(spec, value, value)
        assert decode_properties(data, 0, len(data), where) == (held, len(data))
        assert encode_properties(held, where) == data
    else:
        assert refusal(data, where) == (0x82, spec.section)


def test_only_these_may_be_repeated() -> None:
    repeatable = {spec.name: spec.repeatable_in for spec in PROPERTIES.values() if spec.repeatable_in}
    assert repeatable == {
        "subscription_identifiers": {PacketType.PUBLISH},
        "user_properties": PROPERTIES[0x26].allowed_in,
    }
    twice = Properties(subscription_identifiers=(1, 2))
    with pytest.raises(UsageError, match="more than once"):
        encode_properties(twice, PacketType.SUBSCRIBE)


@pytest.mark.parametrize("identifier", NUMBERS)
def test_range_of_numbers(identifier: int) -> None:
    spec = PROPERTIES[identifier]
    where = max(spec.allowed_in)
    expected = (0x94, "MQTT-3.3.2-8") if spec.name == "topic_alias" else (0x82, spec.section)
    for value in (spec.lowest, spec.codec.highest):
        data = encode_properties(holding(spec, value), where)
        assert decode_properties(data, 0, len(data), where) == (holding(spec, value), len(data))
    for value in (spec.lowest - 1, spec.codec.highest + 1):
        with pytest.raises(UsageError):
            encode_properties(holding(spec, value), where)
    if spec.lowest:
        raw = b"\0" * (spec.codec.size or 1)
        assert refusal(block((identifier, raw)), where) == expected
    if spec.codec.highest == 1:
        assert refusal(block((identifier, b"\x02")), where) == expected


@pytest.mark.parametrize(("identifier", "where"), ALLOWED)
def test_a_value_may_not_be_cut_short(identifier: int, where: int) -> None:
    _, raw = sample(PROPERTIES[identifier])
    for size in range(len(raw)):
        reason_code, _ = refusal(block((identifier, raw[:size])), where)
        assert reason_code == 0x81
        # the bytes go on, but the properties do not
        data = block((identifier, raw[:size])) + raw[size:] + bytes(300)
        with pytest.raises(PeerError):
            decode_properties(data, 0, len(data), where)


@pytest.mark.parametrize("identifier", sorted(set(range(256)) - set(PROPERTIES)))
def test_unknown_properties(identifier: int) -> None:
    assert refusal(block((identifier, b"\0\0\0\0")), PacketType.CONNACK) == (0x81, "MQTT-2.2.2.2")


def test_no_properties_are_shared() -> None:
    held, pos = decode_properties(b"xx\0yy", 2, 5, PacketType.PUBLISH)
    assert held is NO_PROPERTIES
    assert pos == 3
    assert encode_properties(NO_PROPERTIES, PacketType.PUBLISH) == b"\0"
    assert encode_properties(Properties(), PacketType.PUBLISH) == b"\0"


def test_length_is_missing_or_too_large() -> None:
    assert refusal(b"", PacketType.PUBLISH) == (0x81, "MQTT-4.13.1-1")
    assert refusal(b"\x03\x01\x00", PacketType.PUBLISH) == (0x81, "MQTT-4.13.1-1")
    with pytest.raises(PeerError):  # the length is there, but not within the packet
        decode_properties(b"\0", 0, 0, PacketType.PUBLISH)


def test_many_user_properties_take_linear_time() -> None:
    """As many of the smallest property there is as are taken; quadratic work would run into the timeout."""
    count = MAX_PROPERTIES_BYTES // 5
    data = block(*[(0x26, b"\0\0\0\0")] * count)
    held, _ = decode_properties(data, 0, len(data), PacketType.PUBLISH)
    assert held.user_properties == (("", ""),) * count
    more = block(*[(0x26, b"\0\0\0\0")] * (count + 1))
    assert refusal(more, PacketType.PUBLISH)[0] == 0x95


@pytest.mark.parametrize(
    ("topic", "rule"), [("", "MQTT-4.7.3-1"), ("a/+", "MQTT-3.3.2-14"), ("#", "MQTT-3.3.2-14")]
)
def test_response_topic_is_a_topic_name(topic: str, rule: str) -> None:
    assert refusal(block((0x08, encode_string(topic))), PacketType.PUBLISH) == (0x82, rule)
    with pytest.raises(UsageError, match="response topic"):
        encode_properties(Properties(response_topic=topic), WILL)
