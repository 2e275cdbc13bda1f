import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.packets import V5, V31, V311
from polybus.wire.mqtt.primitives import (
    decode_binary,
    decode_string,
    decode_u16,
    decode_varint,
    encode_binary,
    encode_string,
    encode_u16,
)
from tests.wire.mqtt.strategies import so_many


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("80 80 80 80 01", "MQTT-1.5.5"),
        ("ff ff ff ff", "MQTT-1.5.5"),
        ("80 00", "MQTT-1.5.5-1"),
        ("ff 80 80 00", "MQTT-1.5.5-1"),
        ("", "MQTT-4.13.1-1"),
        ("80 80", "MQTT-4.13.1-1"),
    ],
)
def test_varint_refused(written: str, rule: str) -> None:
    with pytest.raises(PeerError) as raised:
        decode_varint(bytes.fromhex(written), 0)
    assert (raised.value.reason_code, raised.value.rule) == (0x81, rule)


@pytest.mark.parametrize(
    "text", ["", "a", "größe", "𝄞", "\ufeff", "a\ufeffb", "\uffff", "\x01\x7f", "x" * 65_535]
)
def test_string(text: str) -> None:
    data = encode_string(text)
    assert int.from_bytes(data[:2], "big") == len(data) - 2
    assert decode_string(data, 0, len(data)) == (text, len(data))
    assert decode_string(b"??" + data + b"??", 2, len(data) + 2) == (text, len(data) + 2)


@pytest.mark.parametrize("text", ["x" * 65_536, "ä" * 32_768, "a\0b", "\ud800"])
def test_string_that_cannot_be_written(text: str) -> None:
    with pytest.raises(UsageError, match="string"):
        encode_string(text)


@pytest.mark.parametrize(
    ("written", "rule_v5", "rule_v311"),
    [
        ("0001 00", "MQTT-1.5.4-2", "MQTT-1.5.3-2"),
        ("0003 610062", "MQTT-1.5.4-2", "MQTT-1.5.3-2"),
        ("0001 80", "MQTT-1.5.4-1", "MQTT-1.5.3-1"),
        ("0003 eda080", "MQTT-1.5.4-1", "MQTT-1.5.3-1"),
        ("0003 edbfbf", "MQTT-1.5.4-1", "MQTT-1.5.3-1"),
        ("0002 c080", "MQTT-1.5.4-1", "MQTT-1.5.3-1"),
        ("0004 f4908080", "MQTT-1.5.4-1", "MQTT-1.5.3-1"),
        ("", "MQTT-4.13.1-1", "MQTT-4.8.0-1"),
        ("00", "MQTT-4.13.1-1", "MQTT-4.8.0-1"),
        ("0002 61", "MQTT-4.13.1-1", "MQTT-4.8.0-1"),
    ],
)
def test_string_refused(written: str, rule_v5: str, rule_v311: str) -> None:
    data = bytes.fromhex(written)
    for version, rule in ((V31, rule_v311), (V311, rule_v311), (V5, rule_v5)):
        with pytest.raises(PeerError) as raised:
            decode_string(data, 0, len(data), version)
        assert (raised.value.reason_code, raised.value.rule) == (0x81, rule)


@so_many(100)
@given(st.binary(max_size=100))
def test_binary(raw: bytes) -> None:
    data = encode_binary(raw)
    assert decode_binary(data, 0, len(data)) == (raw, len(data))


def test_binary_limits() -> None:
    assert len(encode_binary(bytes(65_535))) == 65_537
    with pytest.raises(UsageError, match="65536 bytes"):
        encode_binary(bytes(65_536))


@pytest.mark.parametrize("end", [0, 1, 2, 4])
def test_nothing_is_read_past_the_end(end: int) -> None:
    data = bytes.fromhex("0003 616263")
    for decode_field in (decode_binary, decode_string):
        with pytest.raises(PeerError):
            decode_field(data, 0, end)


def test_u16() -> None:
    assert encode_u16(0x1234, "packet_id") == b"\x12\x34"
    assert decode_u16(b"\x12\x34", 0, 2) == (0x1234, 2)
    with pytest.raises(PeerError):
        decode_u16(b"\x12\x34", 0, 1)
    for value in (-1, 0x1_0000):
        with pytest.raises(UsageError, match="packet_id"):
            encode_u16(value, "packet_id")
