"""Frames, and what `encode` does that the vectors do not show."""

import pytest

from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.codec import (
    connect_version,
    decode,
    encode,
    encode_publish_head,
    encode_short_ack,
    next_frame,
)
from polybus.wire.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.wire.mqtt.stream import read

VERSIONS = (V31, V311, V5)


def framed(size: int) -> bytes:
    """A PUBLISH whose whole packet has this many bytes."""
    for header in range(2, 6):
        packet = encode(Publish("t", bytes(size - header - 3)), V311)
        if len(packet) == size:
            return packet
    raise AssertionError(size)


def test_next_frame_finds_positions() -> None:
    data = b"??" + encode(Publish("t", b"x" * 200), V311) + b"\xc0\x00\xd0"
    assert next_frame(data, 2, 1000) == (0x30, 5, 208)
    assert next_frame(data, 208, 1000) == (0xC0, 210, 210)
    assert next_frame(data, 210, 1000) is None
    assert next_frame(data, 211, 1000) is None


@pytest.mark.parametrize("size", [129, 131, 16_386, 16_388, 2_097_155, 2_097_157])
def test_next_frame_at_the_ends_of_each_length(size: int) -> None:
    data = framed(size)
    frame = next_frame(data, 0, size)
    assert frame is not None
    assert frame[2] == size
    assert next_frame(data[:-1], 0, size) is None


@pytest.mark.parametrize("size", [50, 200, 20_000])
def test_max_size_counts_the_whole_packet(size: int) -> None:
    data = framed(size)
    assert next_frame(data, 0, size) is not None
    for available in (len(data), 5):
        with pytest.raises(PeerError) as raised:
            next_frame(data[:available], 0, size - 1)
        assert (raised.value.reason_code, raised.value.rule) == (0x95, "MQTT-3.2.2-15")


@pytest.mark.parametrize("kind", [kind for kind in PacketType if kind is not PacketType.PUBLISH])
@pytest.mark.parametrize("version", VERSIONS)
def test_reserved_flags(kind: PacketType, version: int) -> None:
    lawful = {0b0010} if kind in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else {0}
    if version == V31 and lawful == {0b0010}:
        lawful.add(0b1010)
    for flags in set(range(16)) - lawful:
        with pytest.raises(PeerError) as raised:
            decode(kind << 4 | flags, b"", version)
        assert raised.value.reason_code == 0x81
        assert raised.value.text.endswith(("flags are not 0010", "flags are not 0000", "not as listed"))


def test_connect_version_of_a_connect_that_is_otherwise_bad() -> None:
    assert connect_version(b"\0\4MQTT\4") == (V311, 7)
    assert connect_version(b"\0\4MQTT\5\xff") == (V5, 7)
    assert connect_version(b"\0\6MQIsdp\3") == (V31, 9)
    with pytest.raises(PeerError) as raised:
        connect_version(b"\0\4MQTT\7")
    assert raised.value.reason_code == 0x84


LONG = "x" * 65_536
REFUSED: list[tuple[Packet, str]] = [
    (Publish(LONG), "string of 65536 bytes"),
    (Publish("a\0b"), "U\\+0000"),
    (Publish("\ud800"), "surrogate"),
    (Publish(""), "topic name is empty"),
    (Publish("a/+"), "topic name contains a wildcard"),
    (Publish("a/#"), "topic name contains a wildcard"),
    (Publish("a", qos=3, packet_id=1), "QoS is not"),
    (Publish("a", qos=-1, packet_id=1), "QoS is not"),
    (Publish("a", qos=1), "packet identifier is zero"),
    (Publish("a", qos=1, packet_id=65_536), "packet_id 65536"),
    (Publish("a", dup=True), "DUP"),
    (PubAck(0), "identifier is zero"),
    (PubRec(-1), "packet_id -1"),
    (PubRel(65_536), "packet_id 65536"),
    (PubComp(0), "identifier is zero"),
    (Connect("c", version=2), "version is not supported"),
    (Connect("c", keep_alive_s=65_536), "keep_alive_s"),
    (Connect(LONG), "string of 65536 bytes"),
    (Connect("c", password=b"p"), "password without a user name"),
    (Connect("c", user_name="u", password=bytes(65_536)), "binary data of 65536 bytes"),
    (Connect("c", will=Will("w/#", b"")), "will topic contains a wildcard"),
    (Connect("c", will=Will("", b"")), "will topic is empty"),
    (Connect("c", will=Will("w", b"", qos=3)), "will QoS"),
    (Connect("c", version=V5, properties=Properties(authentication_data=b"x")), "authentication method"),
    (Connect("c", version=V5, will=Will("w", b"", properties=Properties(topic_alias=1))), "topic_alias"),
    (ConnAck(5, session_present=True), "session present"),
    (ConnAck(0x70), "reason code"),
    (Subscribe(0, (SubscriptionRequest("a"),)), "identifier is zero"),
    (Subscribe(1, ()), "no topic filter"),
    (Subscribe(1, (SubscriptionRequest(""),)), "topic filter is empty"),
    (Subscribe(1, (SubscriptionRequest("a", 3),)), "requested QoS"),
    (SubAck(0, (0,)), "identifier is zero"),
    (SubAck(1, ()), "no reason code"),
    (SubAck(1, (0, 256)), "reason code"),
    (Unsubscribe(0, ("a",)), "identifier is zero"),
    (Unsubscribe(1, ()), "no topic filter"),
    (Unsubscribe(1, ("a", "")), "topic filter is empty"),
    (UnsubAck(0), "identifier is zero"),
    (Auth(), "packet type is reserved"),
]
REFUSED_V5: list[tuple[Packet, str]] = [
    (Subscribe(1, (SubscriptionRequest("a", retain_handling=3),)), "retain handling"),
    (Subscribe(1, (SubscriptionRequest("$share/g/a", no_local=True),)), "no local"),
    (PubAck(1, 0x92), "PUBACK"),
    (PubRec(1, 256), "PUBREC"),
    (PubRel(1, 0x10), "PUBREL"),
    (PubComp(1, 0x10), "PUBCOMP"),
    (UnsubAck(1), "no reason code"),
    (UnsubAck(1, (1,)), "UNSUBACK"),
    (Disconnect(0x01), "DISCONNECT"),
    (Auth(0x01), "AUTH"),
    (Auth(0x18), "authentication method"),
    (Publish("a", properties=Properties(message_expiry_s=1 << 32)), "message_expiry_s"),
    (Publish("a", properties=Properties(content_type=LONG)), "string of 65536 bytes"),
]


@pytest.mark.parametrize(("packet", "text"), REFUSED)
def test_encode_refuses(packet: Packet, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        encode(packet, V311)


@pytest.mark.parametrize(("packet", "text"), REFUSED_V5)
def test_encode_refuses_in_5_0(packet: Packet, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        encode(packet, V5)


NEWER = Properties(reason_string="why", user_properties=(("a", "b"),))


@pytest.mark.parametrize(
    ("packet", "written"),
    [
        (Publish("a", b"x", properties=Properties(message_expiry_s=1)), "30 04 00 01 61 78"),
        (PubAck(1, 0x87, NEWER), "40 02 00 01"),
        (Subscribe(1, (SubscriptionRequest("a", 1, True, True, 2),), NEWER), "82 06 00 01 00 01 61 01"),
        (SubAck(1, (1,), NEWER), "90 03 00 01 01"),
        (Unsubscribe(1, ("a",), NEWER), "a2 05 00 01 00 01 61"),
        (UnsubAck(1, (0,), NEWER), "b0 02 00 01"),
        (Disconnect(0x8E, NEWER), "e0 00"),
        (ConnAck(0, False, NEWER), "20 02 00 00"),
    ],
)
@pytest.mark.parametrize("version", [V31, V311])
def test_what_a_version_does_not_have_is_not_written(packet: Packet, written: str, version: int) -> None:
    assert encode(packet, version).hex(" ") == written


def test_session_present_is_not_written_in_3_1() -> None:
    assert encode(ConnAck(session_present=True), V31) == b"\x20\x02\x00\x00"


def test_packet_identifier_is_not_written_with_qos_0() -> None:
    assert encode(Publish("a", packet_id=7), V311) == b"\x30\x03\x00\x01a"


@pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 16_379, 16_380, 16_381, 3_000_000])
@pytest.mark.parametrize("version", VERSIONS)
def test_publish_head(size: int, version: int) -> None:
    packet = Publish("a", bytes(size), qos=1, packet_id=258, retain=True)
    rest = b"\x01\x02" + (b"\0" if version == V5 else b"") + packet.payload
    assert encode_publish_head("a", 0x33, len(rest)) + rest == encode(packet, version)


def test_publish_head_of_a_packet_that_is_too_large() -> None:
    with pytest.raises(UsageError, match="variable byte integer"):
        encode_publish_head("a", 0x30, 268_435_455)
    with pytest.raises(UsageError, match="string of 65536 bytes"):
        encode_publish_head(LONG, 0x30, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_short_ack(version: int) -> None:
    for first_byte, packet in (
        (0x40, PubAck(258)),
        (0x50, PubRec(258)),
        (0x62, PubRel(258)),
        (0x70, PubComp(258)),
    ):
        assert encode_short_ack(first_byte, 258) == encode(packet, version)
        assert read([encode_short_ack(first_byte, 258)], version) == [packet]
