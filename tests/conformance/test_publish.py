"""PUBLISH (section 3.3): flags, topic, properties, and what subscribers see of them."""

import pytest

from polybus.broker.access import Access
from polybus.wire.mqtt.packets import (
    V5,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
)

from . import raw
from .harness import Bus
from .rules import Row, rules, table
from .stand_ins import Fenced

PUBACK_CODES = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}


@rules(
    v311="MQTT-3.3.4-1 MQTT-2.3.1-6 MQTT-4.3.2-2 MQTT-4.3.3-2",
    v5="MQTT-3.3.4-1 MQTT-2.2.1-5 MQTT-4.3.2-4 MQTT-4.3.3-8 MQTT-4.3.3-11",
    wire=True,
)
def test_the_answer_follows_the_qos(bus: Bus) -> None:
    client = bus.connect("c")
    client.send(Publish("t", b"0"))
    client.expect_nothing()
    client.send(Publish("t", b"1", 1, packet_id=513))
    assert client.expect(PubAck, packet_id=513).reason_code in (0x00, 0x10)
    client.send(Publish("t", b"2", 2, packet_id=65_535))
    assert client.expect(PubRec, packet_id=65_535).reason_code in (0x00, 0x10)
    client.send(PubRel(65_535))
    client.expect(PubComp(65_535))
    client.expect_nothing()


@rules(v311="MQTT-3.3.1-3 MQTT-3.3.1-2", v5="MQTT-3.3.1-3 MQTT-3.3.1-2")
def test_dup_is_not_passed_on(bus: Bus) -> None:
    subscribers = [bus.connect(f"s{qos}") for qos in range(3)]
    for qos, subscriber in enumerate(subscribers):
        subscriber.subscribe("t", qos=qos)
    publisher = bus.connect("p")
    publisher.send(Publish("t", b"1", 1, dup=True, packet_id=1))
    publisher.send(Publish("t", b"2", 2, dup=True, packet_id=2))
    for granted, subscriber in enumerate(subscribers):
        for qos, payload in ((1, b"1"), (2, b"2")):
            subscriber.expect(Publish, payload=payload, dup=False, qos=min(qos, granted))


@rules(
    v311="MQTT-4.3.1-1 MQTT-3.3.1-2 MQTT-2.3.1-5",
    v5="MQTT-4.3.1-1 MQTT-3.3.1-2 MQTT-2.2.1-2",
    wire=True,
)
def test_qos_0_leaves_with_dup_0_and_without_a_packet_id(bus: Bus) -> None:
    subscriber = bus.connect("s")
    subscriber.subscribe("a/b")
    publisher = bus.connect("p")
    publisher.send_raw(raw.publish(bus.version, "a/b", b"xyz"))
    subscriber.expect(Publish("a/b", b"xyz"))
    assert subscriber.last_frame == raw.publish(bus.version, "a/b", b"xyz")
    publisher.publish("a/b", b"1", qos=1)
    subscriber.expect(Publish("a/b", b"1"))
    assert subscriber.last_frame == raw.publish(bus.version, "a/b", b"1")


@rules(v311="MQTT-2.3.1-5", v5="MQTT-2.2.1-2")
def test_the_two_bytes_after_a_qos_0_topic_are_not_a_packet_id(bus: Bus) -> None:
    subscriber = bus.connect("s")
    subscriber.subscribe("t")
    bus.connect("p").send_raw(raw.publish(bus.version, "t", b"\x00\x01payload"))
    subscriber.expect(Publish("t", b"\x00\x01payload"))


@rules(v5="MQTT-2.2.2-1", wire=True)
def test_no_properties_are_written_as_length_0(bus: Bus) -> None:
    subscriber = bus.connect("s")
    subscriber.subscribe("t")
    bus.connect("p").publish("t", b"x")
    subscriber.expect(Publish("t", b"x"))
    assert subscriber.last_frame.hex() == "3005" + "000174" + "00" + "78"


@rules(v5="MQTT-2.2.2-1")
def test_a_packet_without_a_property_length_is_malformed(bus: Bus) -> None:
    client = bus.connect("c")
    client.send_raw(raw.frame(0x30, raw.text("t")))
    client.expect_closed(ReasonCode.MALFORMED_PACKET)


BAD_PUBLISHES = [
    Row(
        "qos-3",
        lambda v: raw.publish(v, "t", flags=0x06, packet_id=1),
        v311="MQTT-3.3.1-4 MQTT-4.8.0-1",
        v5="MQTT-3.3.1-4 MQTT-4.13.1-1",
    ),
    Row("dup-with-qos-0", lambda v: raw.publish(v, "t", flags=0x08), v311="MQTT-3.3.1-2", v5="MQTT-3.3.1-2"),
    Row(
        "packet-id-0-qos-1",
        lambda v: raw.publish(v, "t", flags=0x02, packet_id=0),
        v311="MQTT-2.3.1-1",
        v5="MQTT-2.2.1-3",
    ),
    Row(
        "packet-id-0-qos-2",
        lambda v: raw.publish(v, "t", flags=0x04, packet_id=0),
        v311="MQTT-2.3.1-1",
        v5="MQTT-2.2.1-3",
    ),
    Row("no-topic", lambda v: raw.frame(0x30), v311="MQTT-3.3.2-1", v5="MQTT-3.3.2-1"),
    Row("topic-cut-short", lambda v: raw.frame(0x30, b"\x00\x09abc"), v311="MQTT-3.3.2-1", v5="MQTT-3.3.2-1"),
    Row(
        "topic-not-utf8",
        lambda v: raw.publish(v, b"a\xff"),
        v311="MQTT-3.3.2-1 MQTT-1.5.3-1",
        v5="MQTT-3.3.2-1 MQTT-1.5.4-1",
    ),
    Row(
        "topic-with-surrogate",
        lambda v: raw.publish(v, b"a\xed\xbf\xbf"),
        v311="MQTT-1.5.3-1",
        v5="MQTT-1.5.4-1",
    ),
    Row(
        "topic-overlong-utf8",
        lambda v: raw.publish(v, b"a\xc0\xaf"),
        v311="MQTT-1.5.3-1",
        v5="MQTT-1.5.4-1",
    ),
    Row(
        "topic-with-null",
        lambda v: raw.publish(v, b"a\x00"),
        v311="MQTT-1.5.3-2 MQTT-4.7.3-2",
        v5="MQTT-1.5.4-2 MQTT-4.7.3-2",
    ),
    Row("topic-empty", lambda v: raw.publish(v, ""), v311="MQTT-4.7.3-1", v5="MQTT-4.7.3-1"),
    *(
        Row(
            f"topic-with-wildcard-{index}",
            lambda v, topic=topic: raw.publish(v, topic),
            v311="MQTT-3.3.2-2 MQTT-4.7.1-1",
            v5="MQTT-3.3.2-2 MQTT-4.7.0-1",
        )
        for index, topic in enumerate(["#", "+", "a/#", "a/+/b", "a#", "a+b"])
    ),
]
BAD_PROPERTIES = {
    "response-topic-not-utf8": ("080002c328", "MQTT-3.3.2-13 MQTT-1.5.4-1"),
    "response-topic-with-#": ("080003612f23", "MQTT-3.3.2-14"),
    "response-topic-with-+": ("0800012b", "MQTT-3.3.2-14"),
    "content-type-not-utf8": ("030002c328", "MQTT-3.3.2-19 MQTT-1.5.4-1"),
    "content-type-with-null": ("03000100", "MQTT-3.3.2-19 MQTT-1.5.4-2"),
    "user-property-name-not-utf8": ("260002c328000161", "MQTT-1.5.7-1"),
    "user-property-value-not-utf8": ("260001610002c328", "MQTT-1.5.7-1"),
    "user-property-value-with-null": ("26000161000100", "MQTT-1.5.7-1"),
    "subscription-identifier": ("0b01", "MQTT-3.3.4-6"),
    "topic-alias-0": ("230000", "MQTT-3.3.2-8"),
    "identifier-not-minimal": ("0b8100", "MQTT-1.5.5-1"),
    "payload-format-2": ("0102", "MQTT-4.13.1-1"),
    "payload-format-twice": ("01000100", "MQTT-4.13.1-1"),
    "of-another-packet": ("210001", "MQTT-4.13.1-1"),
}
CODES = (
    ReasonCode.MALFORMED_PACKET,
    ReasonCode.PROTOCOL_ERROR,
    ReasonCode.TOPIC_NAME_INVALID,
    ReasonCode.TOPIC_ALIAS_INVALID,
)


@table(
    "make",
    [
        *BAD_PUBLISHES,
        *(
            Row(name, lambda v, p=p: raw.publish(v, "t", props=raw.properties(v, bytes.fromhex(p))), v5=ids)
            for name, (p, ids) in BAD_PROPERTIES.items()
        ),
    ],
    transports=["memory"],
)
def test_a_publish_that_is_not_well_formed_ends_the_connection(bus: Bus, make: object) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("#", "t")
    client = bus.connect("c")
    client.send_raw(make(bus.version))  # type: ignore[operator]
    client.expect_closed(*CODES)
    watcher.expect_nothing()


@rules(v311="MQTT-1.5.3-3 MQTT-4.7.3-4", v5="MQTT-1.5.4-3 MQTT-4.7.3-4")
def test_a_byte_order_mark_stays_where_it_is(bus: Bus) -> None:
    subscriber = bus.connect("s")
    subscriber.subscribe("\ufeffa", "a")
    publisher = bus.connect("p")
    publisher.publish("\ufeffa", b"with")
    subscriber.expect(Publish("\ufeffa", b"with"))
    assert b"\xef\xbb\xbfa" in subscriber.last_frame
    publisher.publish("a", b"without")
    subscriber.expect(Publish("a", b"without"))
    subscriber.expect_nothing()


@rules(v311="MQTT-3.3.2-3", v5="MQTT-3.3.2-3")
def test_what_arrives_matches_a_filter(bus: Bus) -> None:
    subscriber = bus.connect("s")
    subscriber.subscribe("a/+/c", "b/#")
    publisher = bus.connect("p")
    for topic in ("a/b/c", "a/b", "a/b/c/d", "a//c", "b", "b/x/y", "bb", "A/b/c", "/b"):
        publisher.publish(topic, b"x")
    assert [p.topic for p in subscriber.received() if isinstance(p, Publish)] == ["a/b/c", "a//c", "b", "b/x/y"]


# -- properties ------------------------------------------------------------------------------------

PROPERTIES = Properties(
    payload_format_indicator=1,
    content_type="text/plain; charset=utf-8",
    response_topic="answers/ümlaut",
    correlation_data=bytes(range(256)),
    user_properties=(("z", "1"), ("a", "2"), ("z", ""), ("", "3"), ("a", "2")),
)


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(
    v5="MQTT-3.3.2-4 MQTT-3.3.2-15 MQTT-3.3.2-16 MQTT-3.3.2-17 MQTT-3.3.2-18 MQTT-3.3.2-20",
    wire=True,
)
def test_properties_reach_every_subscriber_unaltered(bus: Bus, qos: int) -> None:
    subscribers = [bus.connect(f"s{granted}") for granted in range(3)]
    for granted, subscriber in enumerate(subscribers):
        subscriber.subscribe("t", qos=granted)
    bus.connect("p").publish("t", "é".encode(), qos=qos, properties=PROPERTIES)
    for granted, subscriber in enumerate(subscribers):
        got = subscriber.expect(Publish, topic="t", payload="é".encode(), qos=min(qos, granted))
        assert got.properties == PROPERTIES


@pytest.mark.parametrize("indicator", [0, 1, None])
@rules(v5="MQTT-3.3.2-4")
def test_the_payload_format_indicator_is_passed_on_as_it_came(bus: Bus, indicator: int | None) -> None:
    subscriber = bus.connect("s")
    subscriber.subscribe("t")
    for content_type in (None, "text/plain"):
        properties = Properties(payload_format_indicator=indicator, content_type=content_type)
        bus.connect("p").publish("t", b"x", properties=properties)
        assert subscriber.expect(Publish, payload=b"x").properties == properties


@rules(v5="MQTT-3.3.2-4 MQTT-3.3.2-15 MQTT-3.3.2-16 MQTT-3.3.2-17 MQTT-3.3.2-18 MQTT-3.3.2-20")
def test_properties_stay_with_retained_and_stored_messages(bus: Bus) -> None:
    away = bus.connect("away", keeps=True)
    away.subscribe("t", qos=1)
    away.drop()
    bus.connect("p").publish("t", b"x", qos=1, retain=True, properties=PROPERTIES)
    assert bus.connect("away", keeps=True).expect(Publish, payload=b"x").properties == PROPERTIES
    late = bus.connect("late")
    late.subscribe("t")
    assert late.expect(Publish, payload=b"x", retain=True).properties == PROPERTIES


# -- expiry ----------------------------------------------------------------------------------------


@rules(v5="MQTT-3.3.2-6")
def test_the_expiry_passed_on_is_what_is_left_of_it(bus: Bus) -> None:
    here = bus.connect("here")
    here.subscribe("t", qos=1)
    away = bus.connect("away", keeps=True)
    away.subscribe("t", qos=1)
    away.drop()
    properties = Properties(message_expiry_s=100)
    bus.connect("p").publish("t", b"x", qos=1, retain=True, properties=properties)
    assert here.expect(Publish, payload=b"x").properties.message_expiry_s == 100
    bus.advance(40)
    assert bus.connect("away", keeps=True).expect(Publish).properties.message_expiry_s == 60
    late = bus.connect("late")
    late.subscribe("t")
    assert late.expect(Publish, retain=True).properties.message_expiry_s == 60


@rules(v5="MQTT-3.3.2-5")
def test_an_expired_message_is_not_delivered(bus: Bus) -> None:
    away = bus.connect("away", keeps=True)
    away.subscribe("t", qos=2)
    away.drop()
    publisher = bus.connect("p")
    short, long = Properties(message_expiry_s=10), Properties(message_expiry_s=100)
    publisher.publish("t", b"short 1", qos=1, properties=short)
    publisher.publish("t", b"short 2", qos=2, properties=short)
    publisher.publish("t", b"long", qos=1, properties=long)
    publisher.publish("t", b"for ever", qos=1)
    publisher.publish("t", b"retained", qos=1, retain=True, properties=short)
    bus.advance(11)
    again = bus.connect("away", keeps=True)
    again.expect(Publish, payload=b"long")
    again.expect(Publish, payload=b"for ever")
    again.expect_nothing()
    late = bus.connect("late")
    late.subscribe("t")
    late.expect_nothing()


@rules(v5="MQTT-3.3.2-5")
def test_a_message_that_waits_for_a_quota_expires_too(bus: Bus) -> None:
    slow = bus.connect("slow", receive_maximum=1)
    slow.subscribe("t", qos=1)
    publisher = bus.connect("p")
    publisher.publish("t", b"first", qos=1)
    publisher.publish("t", b"expires", qos=1, properties=Properties(message_expiry_s=10))
    publisher.publish("t", b"stays", qos=1)
    first = slow.expect(Publish, payload=b"first")
    bus.advance(11)
    slow.send(PubAck(first.packet_id))
    slow.expect(Publish, payload=b"stays")


# -- permission ------------------------------------------------------------------------------------


@rules(v311="MQTT-3.3.5-2", v5="MQTT-3.4.2-1 MQTT-3.5.2-1")
def test_a_forbidden_publish_is_answered_and_goes_nowhere(bus: Bus) -> None:
    bus.configure(access=Access(authorizer=Fenced()))
    watcher = bus.connect("w")
    watcher.subscribe("#", qos=2)
    client = bus.connect("c")
    client.send(Publish("secret/t", b"x", retain=True))
    client.send(Publish("secret/t", b"x", 1, retain=True, packet_id=1))
    ack = client.expect(PubAck, packet_id=1)
    client.send(Publish("secret/t", b"x", 2, retain=True, packet_id=2))
    rec = client.expect(PubRec, packet_id=2)
    if bus.version >= V5:
        assert (ack.reason_code, rec.reason_code) == (ReasonCode.NOT_AUTHORIZED, ReasonCode.NOT_AUTHORIZED)
    else:
        client.send(PubRel(2))
        client.expect(PubComp(2))
    client.expect_nothing()
    watcher.expect_nothing()
    late = bus.connect("late")
    late.subscribe("#")
    late.expect_nothing()


@rules(v5="MQTT-3.4.2-1 MQTT-3.5.2-1")
def test_acknowledgements_use_their_reason_codes(bus: Bus) -> None:
    """With and without a subscriber, allowed and forbidden, and once more with an id in use."""
    bus.configure(access=Access(authorizer=Fenced()))
    bus.connect("s").subscribe("heard")
    client = bus.connect("c")
    packet_id = 0
    for topic in ("heard", "unheard", "secret/t"):
        for qos, answer in ((1, PubAck), (2, PubRec)):
            packet_id += 1
            client.send(Publish(topic, b"x", qos, packet_id=packet_id))
            client.expect(answer, packet_id=packet_id)
            assert len(client.last_frame) == 4 or client.last_frame[4] in PUBACK_CODES


@rules(v5="MQTT-3.7.2-1")
def test_pubcomp_uses_its_reason_codes(bus: Bus) -> None:
    client = bus.connect("c")
    client.publish("t", b"x", qos=2)
    client.send(PubRel(999))
    client.expect(PubComp(999, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))


@rules(v5="MQTT-3.6.2-1")
def test_pubrel_uses_its_reason_codes(bus: Bus) -> None:
    client = bus.connect("c")
    client.subscribe("t", qos=2)
    bus.connect("p").publish("t", b"x", qos=2)
    client.send(PubRec(client.expect(Publish).packet_id))
    client.expect(PubRel, reason_code=0)
    client.send(PubRec(999))
    client.expect(PubRel(999, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
