"""Frames of each protocol, from bytes; and streams cut into frames in spite of gaps."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import UsageError
from polybus.pipeline.transforms.frames_amqp import HEADER, AmqpDecoder
from polybus.pipeline.transforms.frames_cutting import NO_BEGINNING, OF_BROKEN, Cutting, cut_stream
from polybus.pipeline.transforms.frames_mqtt import MqttDecoder
from polybus.pipeline.transforms.frames_mqttsn import MqttSnDecoder
from polybus.pipeline.transforms.frames_protocols import DECODERS, by_beginning, by_datagrams, check_ports
from polybus.pipeline.transforms.frames_tbus import TBusDecoder
from polybus.pipeline.transforms.frames_textudp import TextUdpDecoder
from polybus.pipeline.transforms.frames_tls import TlsDecoder
from polybus.pipeline.transforms.frames_types import Frame, Unreadable
from polybus.wire.mqtt import codec as mqtt
from polybus.wire.mqtt import packets as m
from polybus.wire.tbus import codec as tbus
from polybus.wire.tbus import packets as t

UP, DOWN = True, False


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    return amqp(1, struct.pack(">HH", class_id, method_id) + arguments, channel)


def amqp(kind: int, body: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


PUBLISH = method(60, 40, b"\0\0" + short("amq.topic") + short("scania.truck") + b"\0")
CONTENT = amqp(2, struct.pack(">HHQH", 60, 0, 3, 0x9000) + short("text/plain") + b"\x02")


def test_mqtt() -> None:
    decoder = MqttDecoder()

    def read(packet: m.Packet, to_server: bool) -> Frame:
        (frame,) = decoder.read(mqtt.encode(packet, m.V5), to_server)
        return frame

    assert read(m.Connect("me", m.V5), UP) == Frame("CONNECT", len(mqtt.encode(m.Connect("me", m.V5), m.V5)))
    alias = m.Properties(topic_alias=3)
    first = read(m.Publish("a/b", b"xyz", qos=1, packet_id=7, properties=alias), UP)
    assert (first.type, first.topic, first.packet_id, first.payload_bytes) == ("PUBLISH", "a/b", 7, 3)
    assert not first.is_repeat
    again = read(m.Publish("", b"xyz", qos=1, packet_id=7, dup=True, properties=alias), UP)
    assert (again.topic, again.is_repeat) == ("a/b", True)
    ack = read(m.PubAck(7), DOWN)
    assert (ack.type, ack.topic, ack.packet_id, ack.size) == ("PUBACK", "a/b", 7, 4)
    late = read(m.Publish("a/b", b"xyz", qos=1, packet_id=7, dup=True), UP)
    assert not late.is_repeat  # it says so, but what came before is acknowledged
    read(m.Publish("q", b"", qos=2, packet_id=9), DOWN)
    assert [
        read(p, UP if i % 2 == 0 else DOWN).topic
        for i, p in enumerate([m.PubRec(9), m.PubRel(9), m.PubComp(9)])
    ] == ["q"] * 3
    read(m.Subscribe(4, (m.SubscriptionRequest("f/#"),)), UP)
    assert read(m.SubAck(4, (0,)), DOWN).topic == "f/#"
    assert read(m.PingReq(), UP) == Frame("PINGREQ", 2)


@pytest.mark.parametrize("version", [m.V311, m.V5])
def test_mqtt_without_its_connect_finds_out_which_version_it_is(version: int) -> None:
    frames = [(mqtt.encode(m.Publish("a", b"payload", qos=1, packet_id=i), version), UP) for i in range(1, 5)]
    decoder = MqttDecoder()
    decoder.prepare(frames)
    assert [decoder.read(data, UP)[0].payload_bytes for data, _ in frames] == [7] * 4


def test_mqtt_that_is_malformed_is_named() -> None:
    with pytest.raises(Unreadable, match="SUBSCRIBE"):
        MqttDecoder().read(b"\x80\x05\x00\x01\x00\x01a", UP)


def test_tbus() -> None:
    decoder = TBusDecoder()
    (request,) = decoder.read(tbus.encode(t.Publish("svc", b"1234", is_request=True, packet_id=5)), UP)
    assert (request.type, request.topic, request.packet_id, request.payload_bytes) == ("REQUEST", "svc", 5, 4)
    answer = t.Publish(None, b"ok", is_response=True, packet_id=5, response_destination="me")
    (response,) = decoder.read(tbus.encode(answer), DOWN)
    assert (response.type, response.topic, response.payload_bytes) == ("RESPONSE", "svc", 2)
    inside = [tbus.encode(t.Publish(f"t{i}", b"x" * i)) for i in range(1, 4)]
    bulk = tbus.encode(t.Bulk(b"".join(inside)))
    frames = decoder.read(bulk, UP)
    assert [frame.type for frame in frames] == ["BULK", "PUBLISH", "PUBLISH", "PUBLISH"]
    assert [frame.size for frame in frames] == [2, *map(len, inside)]
    assert [frame.payload_bytes for frame in frames] == [0, 1, 2, 3]
    assert sum(frame.size for frame in frames) == len(bulk)
    (subscribe,) = decoder.read(tbus.encode(t.Subscribe(3, "f/#")), UP)
    (suback,) = decoder.read(tbus.encode(t.SubAck(3)), DOWN)
    assert (subscribe.topic, suback.topic) == ("f/#", "f/#")


def test_amqp() -> None:
    decoder = AmqpDecoder()
    stream = HEADER + PUBLISH + CONTENT + amqp(3, b"abc") + amqp(8, b"", 0)
    sizes = []
    at = 0
    while at < len(stream):
        size = decoder.measure(stream, at, UP)
        assert size is not None
        sizes.append((at, size))
        at += size
    frames = [decoder.read(stream[at : at + size], UP)[0] for at, size in sizes]
    assert [frame.type for frame in frames] == [
        "ProtocolHeader",
        "Basic.Publish",
        "ContentHeader",
        "ContentBody",
        "Heartbeat",
    ]
    assert [frame.topic for frame in frames] == [None, "scania.truck", "scania.truck", "scania.truck", None]
    assert [frame.payload_bytes for frame in frames] == [0, 0, 0, 3, 0]
    assert sum(frame.size for frame in frames) == len(stream)
    (ack,) = decoder.read(method(60, 80, struct.pack(">QB", 41, 0)), DOWN)
    assert (ack.type, ack.packet_id) == ("Basic.Ack", 41)
    deliver = method(60, 60, short("ctag") + struct.pack(">QB", 9, 0) + short("") + short("key"))
    (delivered,) = decoder.read(deliver, DOWN)
    assert (delivered.type, delivered.packet_id, delivered.topic) == ("Basic.Deliver", 9, "key")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x07\x00\x01\x00\x00\x00\x00\xce", "frame type 7"),
        (amqp(1, b"abcd")[:-1] + b"\x00", "ends with 0x00, not with 0xCE"),
        (b"\x01\x00\x01\xff\xff\xff\xff", "longer than any"),
    ],
)
def test_amqp_that_is_none(data: bytes, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        AmqpDecoder().measure(data, 0, UP)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (method(60, 41), "no method 60.41"),
        (method(60, 40, b"\0\0\x09a"), "cannot be read"),
        (amqp(1, b""), "without a method"),
    ],
)
def test_amqp_methods_that_are_none(data: bytes, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        AmqpDecoder().read(data, UP)


def sn(kind: int, body: bytes, *, is_long: bool = False) -> bytes:
    if is_long:
        return struct.pack(">BHB", 1, len(body) + 4, kind) + body
    return bytes([len(body) + 2, kind]) + body


def test_mqtt_sn() -> None:
    decoder = MqttSnDecoder()

    def read(data: bytes, to_server: bool) -> tuple[str, str | None, int | None, int, int, bool]:
        (f,) = decoder.read(data, to_server)
        return f.type, f.topic, f.packet_id, f.size, f.payload_bytes, f.is_repeat

    assert read(sn(4, b"\x04\x01\x00\x3cme"), UP)[0] == "CONNECT"
    assert read(sn(0x0A, b"\0\0\0\x01a/b"), UP)[:3] == ("REGISTER", "a/b", 1)
    assert read(sn(0x0B, b"\0\x05\0\x01\0"), DOWN)[:3] == ("REGACK", "a/b", 1)
    assert read(sn(0x0C, b"\x20\0\x05\0\x02hello"), UP) == ("PUBLISH", "a/b", 2, 12, 5, False)
    assert read(sn(0x0C, b"\xa0\0\x05\0\x02hello"), UP) == ("PUBLISH", "a/b", 2, 12, 5, True)
    assert read(sn(0x0D, b"\0\x05\0\x02\0"), DOWN) == ("PUBACK", "a/b", 2, 7, 0, False)
    assert read(sn(0x0C, b"\x21\0\x09\0\x03" + b"x" * 1000, is_long=True), UP) == (
        "PUBLISH",
        "#9",
        3,
        1009,
        1000,
        False,
    )
    assert read(sn(0x0C, b"\x62AB\0\0y"), UP)[:5] == ("PUBLISH", "AB", None, 8, 1)
    assert read(sn(0x12, b"\0\0\x07x/y"), UP)[:3] == ("SUBSCRIBE", "x/y", 7)
    assert read(sn(0x13, b"\0\0\x0b\0\x07\0"), DOWN)[:3] == ("SUBACK", "x/y", 7)
    assert read(sn(0x0C, b"\0\0\x0b\0\0z"), DOWN)[1] == "x/y"
    forwarded = decoder.read(sn(0xFE, b"\x01node") + sn(0x16, b""), UP)
    assert [(f.type, f.size) for f in forwarded] == [("ENCAPSULATED", 7), ("PINGREQ", 2)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "at least two bytes"),
        (b"\x05\x03\0\0\0", "no message type 0x03"),
        (b"\x09\x16", "says it has 9 bytes, the datagram 2"),
        (b"\x03\x0c\0", "PUBLISH says it has only 3 bytes"),
        (b"\x02\x16\0", "PINGREQ has 2 bytes in a datagram of 3"),
        (b"\x01\x00\x04", "at least four bytes"),
        (b"\x01\x00\x02\x16", "says it has only 2 bytes"),
    ],
)
def test_mqtt_sn_that_is_none(data: bytes, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        MqttSnDecoder().read(data, UP)


def test_text_over_udp() -> None:
    decoder = TextUdpDecoder()
    (publish,) = decoder.read(b"010MQTT|Estate|apartments in dublin", UP)
    assert publish == Frame("PUBLISH", 35, 20, "Estate")
    (puback,) = decoder.read(b"011MQTT|", DOWN)
    assert puback == Frame("PUBACK", 8, 0, "Estate")
    assert decoder.read(b"010MQTT|t|a|b", UP)[0].payload_bytes == 3
    for bad in (b"012MQTT|", b"010MQTT", b"010MQTT|topic"):
        with pytest.raises(Unreadable):
            decoder.read(bad, UP)


def test_tls_records() -> None:
    data = b"\x16\x03\x01\x00\x05hello\x17\x03\x03\x00\x02xy"
    decoder = TlsDecoder()
    assert decoder.measure(data, 0, UP) == 10
    assert decoder.read(data[10:], UP) == [Frame("ApplicationData", 7)]
    for bad in (b"\x17\x04\x03\x00\x02", b"\x99"):
        with pytest.raises(Unreadable):
            decoder.measure(bad, 0, UP)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (mqtt.encode(m.Connect("x", m.V311), m.V311), "mqtt"),
        (mqtt.encode(m.Connect("x" * 500, m.V5), m.V5), "mqtt"),
        (mqtt.encode(m.Connect("x", m.V31), m.V31), "mqtt"),
        (tbus.encode(t.Connect("me", 30)), "tbus"),
        (HEADER, "amqp"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "tls"),
        (b"GET / HTTP/1.1\r\n", None),
        (b"", None),
        (b"\x10", None),
    ],
)
def test_what_begins_how(data: bytes, expected: str | None) -> None:
    assert by_beginning(data) == expected


def test_what_datagrams_are() -> None:
    assert by_datagrams([sn(0x16, b""), sn(0x17, b"")]) == "mqtt-sn"
    assert by_datagrams([b"000MQTT|", b"001MQTT|"]) == "text-udp"
    assert by_datagrams([b"\x12\x34\x01\x00\x00\x01"]) is None
    assert by_datagrams([]) is None


def test_a_protocol_that_nobody_reads_is_refused() -> None:
    with pytest.raises(UsageError, match="port 99: nothing reads 'smtp'; there are mqtt, tbus, amqp"):
        check_ports({1883: "mqtt", 99: "smtp"})


@given(data=st.binary(max_size=60), protocol=st.sampled_from(sorted(DECODERS)), to_server=st.booleans())
def test_any_bytes_give_frames_or_a_reason(data: bytes, protocol: str, to_server: bool) -> None:
    decoder = DECODERS[protocol]()
    try:
        size = decoder.measure(data, 0, to_server) if data else None
        if size is None or size > len(data):
            return
        assert size > 0
        decoder.prepare([(data[:size], to_server)])
        frames = decoder.read(data[:size], to_server)
    except Unreadable:
        return
    assert sum(frame.size for frame in frames) == size
    assert all(0 <= frame.payload_bytes <= frame.size for frame in frames)


# --- cutting ---


def message(number: int, size: int = 20) -> bytes:
    return mqtt.encode(
        m.Publish("topic", b"%05d" % number + b"z" * (size - 5), qos=1, packet_id=number), m.V311
    )


def cut(parts: list[tuple[int, bytes]], starts: list[int], is_whole: bool = True) -> Cutting:
    return cut_stream(parts, MqttDecoder(), UP, starts, is_whole)


MESSAGES = [message(number) for number in range(1, 11)]
SIZE = len(MESSAGES[0])
STREAM = b"".join(MESSAGES)
STARTS = [i * SIZE for i in range(10)]


def test_a_whole_stream() -> None:
    result = cut([(0, STREAM)], STARTS)
    assert [span.data for span in result.frames] == MESSAGES
    assert result.rejected == []


def test_a_gap_inside_a_frame_costs_that_frame_only() -> None:
    hole = 3 * SIZE + 10
    result = cut([(0, STREAM[:hole]), (hole + 4, STREAM[hole + 4 :])], [0, hole + 4])
    assert [span.data for span in result.frames] == MESSAGES[:3] + MESSAGES[4:]
    assert [(s.start, len(s.data), s.reason) for s in result.rejected] == [
        (3 * SIZE, 10, f"the frame is not whole: 10 of {SIZE} bytes"),
        (hole + 4, SIZE - 14, OF_BROKEN),
    ]


def test_a_gap_that_hides_where_frames_begin_ends_at_the_next_packet_with_one() -> None:
    a, b = 3 * SIZE + 10, 5 * SIZE + 3
    result = cut([(0, STREAM[:a]), (b, STREAM[b:])], [0, b, *STARTS[6:]])
    assert [span.data for span in result.frames] == MESSAGES[:3] + MESSAGES[6:]
    assert result.rejected[-1].reason == NO_BEGINNING
    assert result.rejected_bytes == 10 + SIZE - 3


def test_a_capture_that_begins_in_the_middle() -> None:
    result = cut([(0, STREAM[7:])], [0, *(start - 7 for start in STARTS[1:])], is_whole=False)
    assert [span.data for span in result.frames] == MESSAGES[1:]
    assert [(s.start, len(s.data)) for s in result.rejected] == [(0, SIZE - 7)]


def test_a_gap_larger_than_a_broken_frame_covers() -> None:
    large = message(11, 500)
    stream = MESSAGES[0] + large + MESSAGES[1] + MESSAGES[2]
    pieces = [(0, stream[:60]), (100, stream[100:200]), (300, stream[300:])]
    result = cut(pieces, [0, 100, 300])
    assert [span.data for span in result.frames] == [MESSAGES[0], MESSAGES[1], MESSAGES[2]]
    assert result.rejected_bytes == (60 - SIZE) + 100 + (SIZE + len(large) - 300)


def test_garbage_in_a_stream_is_skipped() -> None:
    stream = MESSAGES[0] + b"\x30\xff\xff\xff\xff\x01garbage" + MESSAGES[1] + MESSAGES[2]
    at = stream.index(MESSAGES[1])
    result = cut([(0, stream)], [0, SIZE, at])
    assert [span.data for span in result.frames] == MESSAGES[:3]
    assert len(result.rejected) == 1
    assert result.rejected_bytes == 13


@given(
    holes=st.lists(st.tuples(st.integers(0, len(STREAM)), st.integers(1, 40)), max_size=4),
    cuts=st.lists(st.integers(0, len(STREAM)), max_size=10),
    is_whole=st.booleans(),
)
def test_every_byte_is_in_a_frame_or_rejected(
    holes: list[tuple[int, int]], cuts: list[int], is_whole: bool
) -> None:
    there = set(range(len(STREAM))) - {at for start, size in holes for at in range(start, start + size)}
    parts: list[tuple[int, bytearray]] = []
    for at in sorted(there):
        if not parts or parts[-1][0] + len(parts[-1][1]) != at:
            parts.append((at, bytearray()))
        parts[-1][1].append(STREAM[at])
    starts = sorted({start for start, _ in parts} | {c for c in cuts if c in there})
    result = cut([(start, bytes(data)) for start, data in parts], starts, is_whole)
    covered = [at for span in result.frames + result.rejected for at in range(span.start, span.stop)]
    assert sorted(covered) == sorted(there)
    assert all(STREAM[s.start : s.stop] == s.data for s in result.frames + result.rejected)
