"""What is written is read back, and no bytes at all bring down the decoder."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import V5, V31, V311, Connect, PacketType, Publish, Subscribe, Will
from tests.wire.arrivals import byte_by_byte
from tests.wire.mqtt.strategies import VERSIONS, kinds, packets, packets_of, so_many
from tests.wire.mqtt.stream import read

MAX_SIZE = 1 << 20
BY_KIND = [(version, kind) for version in (V31, V311, V5) for kind in kinds(version)]


@pytest.mark.parametrize(("version", "kind"), BY_KIND)
@given(data=st.data())
@so_many(25)
def test_decode_reads_what_encode_wrote(data: st.DataObject, version: int, kind: PacketType) -> None:
    packet = data.draw(packets_of(kind, version))
    written = encode(packet, version)
    assert written[0] >> 4 == kind
    assert read([written], version, MAX_SIZE) == [packet]


@given(data=st.data(), version=VERSIONS)
@so_many(50)
def test_streams_do_not_depend_on_how_they_arrive(data: st.DataObject, version: int) -> None:
    sent = data.draw(st.lists(packets(version), max_size=5))
    stream = b"".join(encode(packet, version) for packet in sent)
    assert read([stream], version, MAX_SIZE) == sent
    assert read(byte_by_byte(stream), version, MAX_SIZE) == sent


@given(stream=st.binary(max_size=100), version=VERSIONS)
@so_many(300)
def test_any_bytes_are_packets_or_the_peers_fault(stream: bytes, version: int) -> None:
    _read_or_refuse(stream, version)


@given(data=st.data(), version=VERSIONS)
@so_many(150)
def test_damaged_packets_are_packets_or_the_peers_fault(data: st.DataObject, version: int) -> None:
    written = bytearray(encode(data.draw(packets(version)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(written) - 1))
        written[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(written)))
    _read_or_refuse(bytes(written), version)
    _read_or_refuse(bytes(written[:cut]), version)


@given(body=st.binary(max_size=60), first_byte=st.integers(0, 255), version=VERSIONS)
@so_many(500)
def test_what_is_read_can_be_written_and_read_again(body: bytes, first_byte: int, version: int) -> None:
    try:
        packet = decode(first_byte, body, version)
    except PeerError:
        return
    again = encode(packet, version)
    assert read([again], version, MAX_SIZE) == [packet]


numbers = st.integers(-3, 0x1_0001)
texts = st.text(max_size=8)


@given(
    packet=st.one_of(
        st.builds(Publish, texts, st.binary(max_size=8), numbers, st.booleans(), st.booleans(), numbers),
        st.builds(
            Connect,
            texts,
            st.integers(2, 6),
            st.booleans(),
            numbers,
            st.builds(Will, texts, st.binary(), numbers),
        ),
        st.builds(Subscribe, numbers, st.just(())),
    ),
    version=VERSIONS,
)
@so_many(200)
def test_encode_refuses_what_decode_would_refuse(packet: Publish | Connect | Subscribe, version: int) -> None:
    try:
        written = encode(packet, version)
    except UsageError:
        return
    assert len(read([written], version, MAX_SIZE)) == 1


def _read_or_refuse(stream: bytes, version: int) -> None:
    """Anything but a PeerError fails the test that asked."""
    pos = 0
    with suppress(PeerError):
        while (frame := next_frame(stream, pos, MAX_SIZE)) is not None:
            first_byte, start, end = frame
            assert pos < start <= end <= len(stream)
            decode(first_byte, stream[start:end], version)
            pos = end
