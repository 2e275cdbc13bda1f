"""Varints and frames as every protocol has them; the errors are the protocols' own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import UsageError
from polybus.wire.varint import MAX_VARINT, Fault, encode_varint, frame_finder, varint_decoder
from tests.wire.mqtt.strategies import so_many

# MQTT 5.0, table 1-1: the ends of each size
VARINTS = [
    (0, "00"),
    (127, "7f"),
    (128, "80 01"),
    (16_383, "ff 7f"),
    (16_384, "80 80 01"),
    (2_097_151, "ff ff 7f"),
    (2_097_152, "80 80 80 01"),
    (MAX_VARINT, "ff ff ff 7f"),
]

BAD_VARINTS = [
    ("80 80 80 80 01", Fault.TOO_LONG),
    ("ff ff ff ff", Fault.TOO_LONG),
    ("80 00", Fault.NOT_MINIMAL),
    ("ff 80 80 00", Fault.NOT_MINIMAL),
]

UNFINISHED = ["", "80", "80 80", "ff ff ff"]


class Faulty(Exception):
    pass


decode_varint = varint_decoder(Faulty)
next_frame = frame_finder(Faulty)


@pytest.mark.parametrize(("value", "written"), VARINTS)
def test_varint(value: int, written: str) -> None:
    data = bytes.fromhex(written)
    assert encode_varint(value) == data
    assert decode_varint(data, 0) == (value, len(data))
    assert decode_varint(b"\xff" + data + b"\xff", 1) == (value, 1 + len(data))


@so_many(100)
@given(st.integers(0, MAX_VARINT))
def test_varint_round_trip(value: int) -> None:
    assert decode_varint(encode_varint(value), 0) == (value, len(encode_varint(value)))


@pytest.mark.parametrize("value", [-1, MAX_VARINT + 1])
def test_varint_that_does_not_exist(value: int) -> None:
    with pytest.raises(UsageError, match="variable byte integer"):
        encode_varint(value)


@pytest.mark.parametrize(("written", "fault"), BAD_VARINTS + [(data, Fault.CUT_SHORT) for data in UNFINISHED])
def test_varint_refused(written: str, fault: Fault) -> None:
    with pytest.raises(Faulty) as raised:
        decode_varint(bytes.fromhex(written), 0)
    assert raised.value.args == (fault,)


@pytest.mark.parametrize(("written", "fault"), BAD_VARINTS)
def test_frame_refused(written: str, fault: Fault) -> None:
    with pytest.raises(Faulty) as raised:
        next_frame(b"?\x30" + bytes.fromhex(written), 1, 1000)
    assert raised.value.args == (fault, 0x30, 0, 1000)


@pytest.mark.parametrize("written", UNFINISHED)
def test_header_is_not_complete(written: str) -> None:
    assert next_frame(b"\x30" + bytes.fromhex(written), 0, 1000) is None


@pytest.mark.parametrize(("value", "written"), VARINTS)
def test_frame_too_large(value: int, written: str) -> None:
    """As soon as its header is there, and counted with its header."""
    header = b"\x30" + bytes.fromhex(written)
    size = len(header) + value
    with pytest.raises(Faulty) as raised:
        next_frame(b"??" + header, 2, size - 1)
    assert raised.value.args == (Fault.TOO_LARGE, 0x30, size, size - 1)
    assert next_frame(b"??" + header, 2, size) == ((0x30, 4, 4) if value == 0 else None)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_frame(size: int) -> None:
    header = b"\xe7" + encode_varint(size)
    data = b"??" + header + bytes(size) + b"?"
    end = 2 + len(header) + size
    assert next_frame(data, 2, len(header) + size) == (0xE7, 2 + len(header), end)
    assert next_frame(data[:end], 2, len(header) + size) == (0xE7, 2 + len(header), end)
    assert next_frame(data[: end - 1], 2, len(header) + size) is None
