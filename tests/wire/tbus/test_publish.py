"""The quick ways of PUBLISH beside the one that follows the tables: they may not differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import UsageError
from polybus.wire.tbus.codec import encode, encode_answer, encode_bulk_header, encode_publish, encode_request
from polybus.wire.tbus.fields import Number, Wrong
from polybus.wire.tbus.layouts import PROPERTIES
from polybus.wire.tbus.messages import decode_message
from polybus.wire.tbus.packets import Bulk, MessageType, Packet, PingReq, Publish
from polybus.wire.tbus.publish import decode_publish
from tests.wire.mqtt.strategies import so_many
from tests.wire.tbus.strategies import answers, destinations, ids, maybe, names, payloads, publishes, u32
from tests.wire.tbus.stream import parts
from tests.wire.tbus.vectors import Case, case_id, load

NO_BODY = {"message remaining length not minimal", "message remaining length too long", "message too large"}
PUBLISH_CASES = [
    case for case in load().cases if case.data[0] >> 4 == MessageType.PUBLISH and case.name not in NO_BODY
]


def by_the_tables(flags: int, body: bytes) -> Packet | None:
    try:
        return decode_message(MessageType.PUBLISH, flags, body)
    except Wrong:
        return None


@pytest.mark.parametrize("case", PUBLISH_CASES, ids=case_id)
def test_vectors(case: Case) -> None:
    """The quick way reads every lawful message, too: it is no use if it hands them on."""
    first_byte, body = parts(case.data)
    expected = None if case.error is not None else case.expected()
    assert decode_publish(first_byte & 0x0F, body) == expected
    assert by_the_tables(first_byte & 0x0F, body) == expected


@given(packet=publishes)
@so_many(300)
def test_whatever_is_written(packet: Publish) -> None:
    first_byte, body = parts(encode(packet))
    assert decode_publish(first_byte & 0x0F, body) == packet
    assert by_the_tables(first_byte & 0x0F, body) == packet


@given(data=st.data(), packet=publishes)
@so_many(500)
def test_whatever_is_spoilt(data: st.DataObject, packet: Publish) -> None:
    first_byte, body = parts(encode(packet))
    spoilt = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(body) - 1, 40)))
        spoilt[at] = data.draw(
            st.sampled_from([0x00, 0x01, 0x02, 0x08, 0x40, 0x80, 0xFF]) | st.integers(0, 255)
        )
    flags = data.draw(st.sampled_from([first_byte & 0x0F, data.draw(st.integers(0, 15))]))
    changed = bytes(spoilt[: data.draw(st.integers(0, len(spoilt)) | st.just(len(spoilt)))])
    assert decode_publish(flags, changed) == by_the_tables(flags, changed)


_PROPERTY = st.builds(
    lambda identifier, value: bytes((identifier,)) + value,
    st.sampled_from([0x02, 0x08, 0x40]) | st.integers(0, 255),
    st.sampled_from(["0001", "0000", "00000001", "0163", "00", "8100"]).map(bytes.fromhex)
    | st.binary(max_size=5),
)


@given(
    flags=st.integers(0, 15),
    topic=st.sampled_from([b"", b"\x01t", b"\x00", b"\x81\x00t"]),
    held=st.lists(_PROPERTY, max_size=4).map(b"".join),
    off=st.sampled_from([0, 0, 0, 1, -1]),
    rest=st.binary(max_size=6),
)
@so_many(1000)
def test_whatever_looks_like_properties(flags: int, topic: bytes, held: bytes, off: int, rest: bytes) -> None:
    body = topic + bytes((max(len(held) + off, 0),)) + held + rest
    assert decode_publish(flags, body) == by_the_tables(flags, body)


@pytest.mark.parametrize("identifier", range(256))
def test_properties_are_those_of_the_table(identifier: int) -> None:
    spec = PROPERTIES.get(identifier)
    value = (
        b"\x01c" if spec is None or not isinstance(spec.codec, Number) else (1).to_bytes(spec.codec.size, "big")
    )
    body = b"\x01t" + bytes((1 + len(value), identifier)) + value
    packet = decode_publish(0, body)
    if spec is None or MessageType.PUBLISH not in spec.allowed_in:
        assert packet is None
    else:
        assert packet is not None
        assert getattr(packet, spec.field) == (1 if isinstance(spec.codec, Number) else "c")
    assert packet == by_the_tables(0, body)


LENGTHS = [1, 2, 120, 123, 124, 125, 126, 127, 128, 129, 16_379, 16_383, 16_384, 2_097_160]


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("priority", [False, True])
def test_lengths(size: int, priority: bool) -> None:
    """Every length around the ends of its varint: of the payload, the topic and the destination."""
    long = "t" * size
    for topic, payload in (("t", bytes(size)), (long, b"x"), (long, bytes(size))):
        head, rest = encode_publish(topic, payload, priority)
        assert rest is payload
        assert head + rest == encode(Publish(topic, payload, is_priority=priority))
    for destination, payload in (("c", bytes(size)), (long, b"x"), (long, bytes(size))):
        head, rest = encode_answer(payload, priority, destination, 258)
        assert rest is payload
        assert head + rest == encode(
            Publish(
                None,
                payload,
                is_response=True,
                is_priority=priority,
                response_destination=destination,
                packet_id=258,
            )
        )


@given(topic=names, payload=payloads, priority=st.booleans())
@so_many(100)
def test_encode_publish(topic: str, payload: bytes, priority: bool) -> None:
    assert b"".join(encode_publish(topic, payload, priority)) == encode(
        Publish(topic, payload, is_priority=priority)
    )


@given(
    topic=names,
    payload=payloads,
    priority=st.booleans(),
    timeout_s=maybe(u32),
    destination=maybe(destinations),
    packet_id=ids,
)
@so_many(200)
def test_encode_request(
    topic: str, payload: bytes, priority: bool, timeout_s: int | None, destination: str | None, packet_id: int
) -> None:
    packet = Publish(topic, payload, True, False, priority, timeout_s, destination, packet_id)
    head, rest = encode_request(topic, payload, priority, timeout_s, destination, packet_id)
    assert rest is payload
    assert head + rest == encode(packet)


@given(packet=answers.filter(lambda answer: answer.timeout_s is None))
@so_many(100)
def test_encode_answer(packet: Publish) -> None:
    assert packet.response_destination is not None
    assert packet.packet_id is not None
    written = encode_answer(packet.payload, packet.is_priority, packet.response_destination, packet.packet_id)
    assert b"".join(written) == encode(packet)


@pytest.mark.parametrize("count", [1, 63, 64, 8_191, 8_192])
def test_encode_bulk_header(count: int) -> None:
    body = encode(PingReq()) * count
    assert encode_bulk_header(len(body)) + body == encode(Bulk(body))


def test_what_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="surrogate"):
        encode_publish("\ud800", b"", False)
    with pytest.raises(UsageError, match="surrogate"):
        encode_request("t", b"", False, None, "\ud800", 1)
    with pytest.raises(UsageError, match="surrogate"):
        encode_answer(b"", False, "\ud800", 1)
    with pytest.raises(UsageError, match="268435456"):
        encode_bulk_header(268_435_456)
