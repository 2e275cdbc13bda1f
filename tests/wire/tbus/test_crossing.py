"""What only brokers say: whatever is written is read again, and none of it is a client's (TB-15)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import PeerError, UsageError
from polybus.wire.tbus.codec import decode, encode
from polybus.wire.tbus.crossing import (
    BETWEEN,
    BrokerConnAck,
    BrokerConnect,
    BrokerReqAck,
    Crossing,
    Interest,
    Verdict,
    decode_between,
    encode_between,
    encode_interest,
    encode_msgack,
    encode_tracked,
    packet_id_at,
)
from polybus.wire.tbus.packets import MsgAck, Packet, Publish, RequestState
from tests.wire.mqtt.strategies import so_many
from tests.wire.tbus.strategies import ids, maybe, names, payloads, publishes, texts, u16, u32
from tests.wire.tbus.stream import parts

u8 = st.integers(0, 255)
u64 = st.integers(0, 2**64 - 1)
many = st.lists(texts, max_size=4).map(tuple)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(
    lambda found: tuple(t for pair in found for t in pair)
)

crossings = st.builds(
    Crossing,
    names,
    payloads,
    is_priority=st.booleans(),
    timeout_s=maybe(u32),
    packet_id=maybe(ids),
    payload_is_text=maybe(u8),
    content_type=maybe(texts),
    correlation_data=maybe(payloads),
    user_properties=maybe(pairs),
    qos=maybe(u8),
    retain=maybe(u8),
    stamp=maybe(u64),
    expiry_s=maybe(u32),
    response_topic=maybe(names),
    shares=maybe(many),
)
others = (
    st.builds(Interest, ids, names, maybe(u16), qos=maybe(u8))
    | st.builds(Verdict, ids, names, is_undelivered=maybe(u8))
    | st.builds(BrokerReqAck, ids, st.sampled_from(RequestState), maybe(names), is_busy=maybe(u8))
    | st.builds(BrokerConnAck, server_reference=maybe(texts), broker_id=maybe(names), packet_limit=maybe(ids))
    | st.builds(BrokerConnect, names, u16, is_broker=st.just(True), token=maybe(texts), packet_limit=maybe(ids))
)


def plain(packet: Packet) -> Publish:
    """A PUBLISH that has nothing of a broker's is read as a client's."""
    assert isinstance(packet, Publish)
    return Publish(*(getattr(packet, name) for name in Publish.__struct_fields__))


@given(packet=crossings | others)
@so_many(400)
def test_whatever_is_written_is_read_again(packet: Packet) -> None:
    read = decode_between(*parts(encode_between(packet)))
    if type(read) is Publish:
        assert read == plain(packet)
    else:
        assert read == packet


@given(packet=crossings.filter(lambda packet: packet.packet_id is not None))
@so_many(200)
def test_the_packet_id_is_found(packet: Crossing) -> None:
    frame = encode_between(packet)
    at = packet_id_at(packet, frame)
    changed = frame[:at] + b"\x12\x34" + frame[at + 2 :]
    read = decode_between(*parts(changed))
    assert isinstance(read, Publish)
    assert read.packet_id == 0x1234
    assert plain(read) == plain(
        Crossing(
            *(0x1234 if name == "packet_id" else getattr(packet, name) for name in Publish.__struct_fields__)
        )
    )


@given(topic=names, payload=payloads, priority=st.booleans(), qos=u8, stamp=u64, packet_id=ids)
@so_many(200)
def test_the_short_way_is_the_long_way(
    topic: str, payload: bytes, priority: bool, qos: int, stamp: int, packet_id: int
) -> None:
    head, tail = encode_tracked(topic, payload, priority, qos, stamp)
    frame = head + packet_id.to_bytes(2) + tail
    packet = Crossing(topic, payload, is_priority=priority, packet_id=packet_id, qos=qos, stamp=stamp)
    assert frame == encode_between(packet)
    assert decode_between(*parts(frame)) == packet


@given(topic_filter=names, packet_id=ids, concurrency=u16, qos=u8)
@so_many(100)
def test_the_short_way_of_interest_is_the_long_way(
    topic_filter: str, packet_id: int, concurrency: int, qos: int
) -> None:
    written = encode_interest(packet_id, topic_filter, concurrency, qos)
    assert written == encode_between(Interest(packet_id, topic_filter, concurrency, qos=qos))


@given(topic=names, message_id=ids)
@so_many(100)
def test_the_short_way_of_msgack_is_the_long_way(topic: str, message_id: int) -> None:
    frame = encode_msgack(message_id, topic)
    assert frame == encode(MsgAck(message_id, topic))
    read = decode_between(*parts(frame))
    assert isinstance(read, MsgAck)
    assert (read.message_id, read.topic) == (message_id, topic)


@given(body=st.binary(min_size=6, max_size=20), size=st.integers(0, 12))
@so_many(200)
def test_any_msgack_is_read_as_the_tables_say(body: bytes, size: int) -> None:
    """Close to what the short way reads, and still its verdict is that of the tables."""
    spoilt = bytes((len(body) + 2, 0x42, size)) + body
    try:
        expected: Packet | None = decode(0x40, spoilt, BETWEEN)
    except PeerError:
        expected = None
    try:
        read: Packet | None = decode_between(0x40, spoilt)
    except PeerError:
        read = None
    assert (read is None) == (expected is None)
    if isinstance(read, MsgAck) and isinstance(expected, MsgAck):
        assert (read.message_id, read.topic) == (expected.message_id, expected.topic)


@given(data=st.data(), packet=publishes | crossings)
@so_many(300)
def test_whatever_is_spoilt_is_a_message_or_the_neighbours_fault(data: st.DataObject, packet: Publish) -> None:
    first_byte, body = parts(encode_between(packet) if isinstance(packet, Crossing) else encode(packet))
    spoilt = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(spoilt[: data.draw(st.integers(0, len(spoilt)) | st.just(len(spoilt)))])
    try:
        read = decode_between(first_byte, changed)
    except PeerError:
        return
    assert isinstance(read, Publish)


@pytest.mark.parametrize("identifier", BETWEEN.properties.keys() - {0x02, 0x08, 0x40})
def test_none_of_it_is_a_clients(identifier: int) -> None:
    with pytest.raises(PeerError, match="property"):
        decode(0x30, b"\x01t\x02" + bytes((identifier, 1)))


def test_user_properties_come_in_pairs() -> None:
    with pytest.raises(UsageError, match="multiple of 2"):
        encode_between(Crossing("t", b"", user_properties=("one",)))
    with pytest.raises(PeerError, match="multiple of 2"):
        decode_between(0x30, b"\x01t\x04\x26\x02\x01a")
