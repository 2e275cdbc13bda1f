"""What the vectors do not show: large messages, refusals by `encode`, and what is kept out of logs."""

from collections.abc import Iterator

import pytest
from rich.pretty import pretty_repr

from polybus.errors import PeerError, UsageError
from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.layouts import LAYOUTS, PROPERTIES, Properties
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    MessageType,
    MsgAck,
    Packet,
    PingReq,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.wire.tbus.stream import read


def test_next_frame_finds_positions() -> None:
    data = b"??" + encode(Publish("t", b"x" * 200)) + b"\xc0\x00\xd0"
    assert next_frame(data, 2, 1000) == (0x30, 5, 208)
    assert next_frame(data, 208, 1000) == (0xC0, 210, 210)
    assert next_frame(data, 210, 1000) is None
    assert next_frame(data, 211, 1000) is None


@pytest.mark.parametrize("size", [50, 200, 20_000])
def test_max_size_counts_the_whole_message(size: int) -> None:
    data = encode(Publish("t", bytes(size)))
    assert next_frame(data, 0, len(data)) is not None
    for available in (len(data), 5):
        with pytest.raises(PeerError, match=f"of {len(data)} bytes is larger than {len(data) - 1}") as raised:
            next_frame(data[:available], 0, len(data) - 1)
        assert (raised.value.reason_code, raised.value.rule) == (DisconnectReason.UNSPECIFIED, "TB-01")


def test_a_header_that_is_wrong_is_answered_by_its_type() -> None:
    for header in ("1f 80 00", "1f 80 80 80 80", "1f ff 7f"):
        with pytest.raises(PeerError) as raised:
            next_frame(bytes.fromhex(header), 0, 1000)
        assert raised.value.reason_code == ConnectReason.MALFORMED


@pytest.mark.parametrize("size", [65_535, 65_536, 3_000_000])
def test_strings_are_not_limited_to_65535_bytes(size: int) -> None:
    long = "x" * size
    for packet in (
        Publish(long, b""),
        Subscribe(1, long),
        Connect("c", token=long),
        Disconnect(DisconnectReason.UNSPECIFIED, long),
        ReqAck(1, RequestState.CANCELED, response_destination=long, topic=long),
    ):
        assert read([encode(packet)], 1 << 24) == [packet]


def test_client_ids_are() -> None:
    assert read([encode(Connect("c" * 65_535))], 1 << 20) == [Connect("c" * 65_535)]
    with pytest.raises(UsageError, match="clientId has 65536 bytes and may have at most 65535"):
        encode(Connect("c" * 65_536))
    with pytest.raises(PeerError, match="clientId has 65536 bytes") as raised:
        decode(0x10, b"\0\0\x80\x80\x04" + b"c" * 65_536)
    assert raised.value.reason_code == ConnectReason.MALFORMED


@pytest.mark.parametrize("kind", MessageType)
def test_unused_flags(kind: MessageType) -> None:
    used = {MessageType.CONNECT: 0b0011, MessageType.PUBLISH: 0b0111}.get(kind, 0)
    for flags in range(16):
        if flags & ~used:
            with pytest.raises(PeerError, match=f"{kind.name}: the flags are {flags:04b}"):
                decode(kind << 4 | flags, b"")


def test_reading_a_bulk_stops_where_it_is_wrong() -> None:
    """`frames` is lazy: whoever handles each message before asking for the next has done all it may."""
    inside = frames(bytes.fromhex("c000 c000 60"))
    assert isinstance(inside, Iterator)
    assert next(inside) == (0xC0, 2, 2)
    assert next(inside) == (0xC0, 4, 4)
    with pytest.raises(PeerError, match="BULK: BULK is not allowed inside"):
        next(inside)
    with pytest.raises(PeerError, match="BULK: there are no messages"):
        next(frames(b""))


REFUSED: list[tuple[Packet, str]] = [
    (Connect(""), "CONNECT: clientId is empty [TB-03]"),
    (Connect("a\0b"), "CONNECT: clientId contains U+0000 [TB-01]"),
    (Connect("\ud800"), "CONNECT: clientId contains a surrogate"),
    (Connect("c", 65_536), "CONNECT: keepAlive is 65536, which is not in 0..65535"),
    (Connect("c", bulk_limit=1 << 32), "CONNECT: BulkLimit is 4294967296"),
    (ConnAck(1), "CONNACK: reason is 1, which is not one of 0, 128, 129, 131, 132, 135"),  # type: ignore[arg-type]
    (Publish(""), "PUBLISH: topicName is empty [TB-04]"),
    (Publish("a\0b"), "PUBLISH: topicName contains U+0000"),
    (Publish(None), "PUBLISH: topicName is missing"),
    (Publish("t", timeout_s=-1), "PUBLISH: Timeout is -1"),
    (Publish("t", timeout_s=1 << 32), "PUBLISH: Timeout is 4294967296"),
    (Publish("t", packet_id=0), "PUBLISH: PacketId is 0, which is not in 1..65535"),
    (Publish("t", packet_id=65_536), "PUBLISH: PacketId is 65536"),
    (Publish("t", is_request=True), "PUBLISH: a request needs a PacketId"),
    (Publish(None, is_response=True, response_destination="c"), "PUBLISH: an answer needs a PacketId"),
    (Publish(None, is_response=True, packet_id=1), "PUBLISH: an answer needs a ResponseDestination"),
    (
        Publish("t", is_response=True, response_destination="c", packet_id=1),
        "PUBLISH: topicName has no place beside the flags 0100",
    ),
    (
        Publish("t", is_request=True, is_response=True, response_destination="c", packet_id=1),
        "PUBLISH: the flags Request and Response are set together",
    ),
    (MsgAck(0, "t"), "MSGACK: MessageId is 0"),
    (MsgAck(1, ""), "MSGACK: TopicName is empty"),
    (ReqAck(0, RequestState.CANCELED), "REQACK: PacketId is 0"),
    (ReqAck(1, 3), "REQACK: RequestState is 3, which is not one of 2, 6, 10, 11, 12, 13, 14"),  # type: ignore[arg-type]
    (Bulk(b""), "BULK: there are no messages"),
    (Bulk(b"\xc0"), "BULK: what begins at byte 0 of 1 is not a whole message"),
    (Bulk(encode(Connect("c"))), "BULK: CONNECT is not allowed inside"),
    (Bulk(encode(Bulk(encode(PingReq())))), "BULK: BULK is not allowed inside"),
    (Subscribe(0, "a"), "SUBSCRIBE: packetId is 0"),
    (Subscribe(1, "a\0"), "SUBSCRIBE: topicFilter contains U+0000"),
    (Subscribe(1, "a", 65_536), "SUBSCRIBE: Concurrency is 65536"),
    (SubAck(0), "SUBACK: packetId is 0"),
    (SubAck(1, 17), "SUBACK: reason is 17"),  # type: ignore[arg-type]
    (Unsubscribe(0, "a"), "UNSUBSCRIBE: packetId is 0"),
    (UnsubAck(65_536), "UNSUBACK: packetId is 65536"),
    (UnsubAck(1, 151), "UNSUBACK: reason is 151"),  # type: ignore[arg-type]
    (Disconnect(1), "DISCONNECT: reason is 1, which is not one of 0, 17, 128, 141"),  # type: ignore[arg-type]
    (Disconnect(reason_string="\ud800"), "DISCONNECT: ReasonString contains a surrogate"),
    (Disconnect(reason_string=b"x"), "DISCONNECT: ReasonString cannot be bytes"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("packet", "text"), REFUSED)
def test_encode_refuses(packet: Packet, text: str) -> None:
    with pytest.raises(UsageError) as raised:
        encode(packet)
    assert text in str(raised.value)


def test_numbers_are_read_as_what_they_mean() -> None:
    (packet,) = read([bytes.fromhex("50 06 05 40 00 07 41 0d")])
    assert isinstance(packet, ReqAck)
    assert packet.state is RequestState.ERROR
    (packet,) = read([bytes.fromhex("e0 02 00 8d")])
    assert isinstance(packet, Disconnect)
    assert packet.reason is DisconnectReason.KEEP_ALIVE_TIMEOUT


def test_a_token_is_not_shown() -> None:
    packet = Connect("c", 60, token="s3cret", user_name="john")
    assert read([encode(packet)]) == [packet]
    for shown in (repr(packet), str(packet), f"{[packet]}", pretty_repr(packet)):
        assert "s3cret" not in shown
        assert "john" in shown
    assert "token=None" in repr(Connect("c"))
    for wrong in (Connect("c", token="s3cret\ud800"), Connect("c", token=b"s3cret")):  # type: ignore[arg-type]
        with pytest.raises(UsageError) as raised:
            encode(wrong)
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("kind", MessageType)
def test_each_property_in_each_message(kind: MessageType) -> None:
    """Allowed where the table says so, refused everywhere else, never taken twice."""
    layout = LAYOUTS[kind]
    if layout.properties is Properties.NEVER:
        assert all(kind not in spec.allowed_in for spec in PROPERTIES.values())
        return
    first_byte, head, tail, held = SAMPLES[kind]
    for identifier, value in VALUES.items():
        spec = PROPERTIES[identifier]
        before = b"".join(bytes((other,)) + VALUES[other] for other in held if other != identifier)
        once = before + bytes((identifier,)) + value
        twice = once + bytes((identifier,)) + value
        if kind in spec.allowed_in:
            packet = decode(first_byte, head + bytes((len(once),)) + once + tail)
            assert getattr(packet, spec.field) is not None
            assert read([encode(packet)]) == [packet]
            with pytest.raises(PeerError, match=f"property {spec.name} stands there twice"):
                decode(first_byte, head + bytes((len(twice),)) + twice + tail)
            for size in range(len(value)):
                cut = before + bytes((identifier,)) + value[:size]
                with pytest.raises(PeerError, match=spec.name):
                    decode(first_byte, head + bytes((len(cut),)) + cut + tail)
        else:
            with pytest.raises(PeerError, match=f"property {spec.name} is not allowed here"):
                decode(first_byte, head + bytes((len(once),)) + once + tail)


VALUES = {
    0x02: b"\0\0\0\x01",
    0x08: b"\x01c",
    0x16: b"\x01k",
    0x1C: b"\x03a:1",
    0x1F: b"\x03why",
    0x40: b"\0\x01",
    0x41: b"\x06",
    0x42: b"\x01t",
    0x43: b"\0\x01",
    0x44: b"\0\x01",
    0x45: b"\0\0\0\0",
    0x46: b"\x01u",
}

SAMPLES: dict[MessageType, tuple[int, bytes, bytes, tuple[int, ...]]] = {
    MessageType.CONNECT: (0x10, b"\0\0\x01c", b"", ()),
    MessageType.CONNACK: (0x20, b"\0", b"", ()),
    MessageType.PUBLISH: (0x30, b"\x01t", b"x", ()),
    MessageType.MSGACK: (0x40, b"", b"", (0x42, 0x43)),
    MessageType.REQACK: (0x50, b"", b"", (0x40, 0x41)),
    MessageType.SUBSCRIBE: (0x80, b"\0\x01\x01a", b"", ()),
    MessageType.SUBACK: (0x90, b"\0\x01", b"\0\0", ()),
    MessageType.UNSUBACK: (0xB0, b"\0\x01", b"\0\0", ()),
    MessageType.DISCONNECT: (0xE0, b"\0\0", b"", ()),
}


def test_the_values_are_those_of_every_property() -> None:
    assert VALUES.keys() == PROPERTIES.keys()


@pytest.mark.parametrize("identifier", sorted(set(range(256)) - set(PROPERTIES)))
def test_unknown_properties(identifier: int) -> None:
    with pytest.raises(PeerError, match=f"property 0x{identifier:02X} is unknown; allowed are Token, "):
        decode(0x10, b"\0\0\x01c\x03" + bytes((identifier,)) + b"\x01a")
