"""What is written is read back, and no bytes at all bring down the decoder."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import PeerError, UsageError
from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    Disconnect,
    MessageType,
    MsgAck,
    Packet,
    Publish,
    ReqAck,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.wire.arrivals import byte_by_byte
from tests.wire.mqtt.strategies import so_many
from tests.wire.tbus.strategies import PACKETS, bulkable, maybe, packets
from tests.wire.tbus.stream import read

MAX_SIZE = 1 << 20


@pytest.mark.parametrize("kind", MessageType)
@given(data=st.data())
@so_many(40)
def test_decode_reads_what_encode_wrote(data: st.DataObject, kind: MessageType) -> None:
    packet = data.draw(PACKETS[kind])
    written = encode(packet)
    assert written[0] >> 4 == kind
    assert read([written], MAX_SIZE) == [packet]


@given(sent=st.lists(packets, max_size=5))
@so_many(100)
def test_streams_do_not_depend_on_how_they_arrive(sent: list[Packet]) -> None:
    stream = b"".join(map(encode, sent))
    assert read([stream], MAX_SIZE) == sent
    assert read(byte_by_byte(stream), MAX_SIZE) == sent


@given(sent=st.lists(bulkable, min_size=1, max_size=8))
@so_many(100)
def test_a_bulk_is_its_messages(sent: list[Packet]) -> None:
    (bulk,) = read([encode(Bulk(b"".join(map(encode, sent))))], MAX_SIZE)
    assert isinstance(bulk, Bulk)
    assert [decode(first_byte, bulk.body[start:end]) for first_byte, start, end in frames(bulk.body)] == sent


@given(stream=st.binary(max_size=100))
@so_many(500)
def test_any_bytes_are_messages_or_the_peers_fault(stream: bytes) -> None:
    _read_or_refuse(stream)


@given(data=st.data())
@so_many(300)
def test_damaged_messages_are_messages_or_the_peers_fault(data: st.DataObject) -> None:
    written = bytearray(encode(data.draw(packets)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(written) - 1))
        written[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(written)))
    _read_or_refuse(bytes(written))
    _read_or_refuse(bytes(written[:cut]))


@pytest.mark.parametrize("kind", range(16))
@given(body=st.binary(max_size=60), flags=st.sampled_from([0, 0, 1, 2, 4, 8]) | st.integers(0, 15))
@so_many(150)
def test_any_body_is_a_message_or_the_peers_fault(kind: int, body: bytes, flags: int) -> None:
    found = _packet_or_error(kind << 4 | flags, body)
    if isinstance(found, PeerError):
        assert found.reason_code == (129 if kind == MessageType.CONNECT else 128)
        assert found.text
        assert found.rule.startswith("TB-")
    elif not isinstance(found, Bulk):  # what is in it has not been looked at
        assert read([encode(found)], MAX_SIZE) == [found]


numbers = st.integers(-3, 0x1_0001) | st.sampled_from([0xFFFF_FFFF, 1 << 32])
any_texts = st.text(max_size=8) | st.just("\ud800")


@given(
    packet=st.one_of(
        st.builds(
            Publish,
            maybe(any_texts),
            st.binary(max_size=8),
            st.booleans(),
            st.booleans(),
            st.booleans(),
            maybe(numbers),
            maybe(any_texts),
            maybe(numbers),
        ),
        st.builds(
            Connect, any_texts, numbers, st.booleans(), st.booleans(), maybe(any_texts), any_texts, numbers
        ),
        st.builds(ConnAck, numbers, maybe(any_texts), maybe(any_texts)),
        st.builds(MsgAck, numbers, any_texts),
        st.builds(ReqAck, numbers, numbers, maybe(any_texts), maybe(any_texts), maybe(any_texts)),
        st.builds(Bulk, st.binary(max_size=20)),
        st.builds(Subscribe, numbers, any_texts, maybe(numbers)),
        st.builds(SubAck, numbers, numbers, maybe(any_texts)),
        st.builds(Unsubscribe, numbers, any_texts),
        st.builds(UnsubAck, numbers, numbers, maybe(any_texts)),
        st.builds(Disconnect, numbers, maybe(any_texts)),
    )
)
@so_many(500)
def test_encode_refuses_what_decode_would_refuse(packet: Packet) -> None:
    try:
        written = encode(packet)
    except UsageError:
        return
    assert read([written], MAX_SIZE) == [packet]


def _packet_or_error(first_byte: int, body: bytes) -> Packet | PeerError:
    try:
        return decode(first_byte, body)
    except PeerError as error:
        return error


def _read_or_refuse(stream: bytes) -> None:
    """Anything but a PeerError fails the test that asked."""
    pos = 0
    with suppress(PeerError):
        while (frame := next_frame(stream, pos, MAX_SIZE)) is not None:
            first_byte, start, end = frame
            assert pos < start <= end <= len(stream)
            packet = decode(first_byte, stream[start:end])
            if isinstance(packet, Bulk):
                _take_apart(packet.body)
            pos = end


def _take_apart(body: bytes) -> None:
    pos = 0
    for first_byte, start, end in frames(body):
        assert pos < start <= end <= len(body)
        decode(first_byte, body[start:end])
        pos = end
    assert pos == len(body)
