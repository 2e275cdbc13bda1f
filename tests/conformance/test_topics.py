"""Topic names and filters (section 4.7) and shared subscriptions (section 4.8)."""

import pytest

from polybus.broker.access import Access
from polybus.wire.mqtt.packets import (
    V5,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
)

from . import raw
from .harness import Bus, Client
from .rules import Row, rules, table
from .stand_ins import Fenced

MATCHES: list[tuple[str, str, bool]] = [
    ("a/b", "a/b", True),
    ("a/b", "a/b/", False),
    ("a/b", "/a/b", False),
    ("a/b", "A/b", False),
    ("a b", "a b", True),
    ("/", "/", True),
    ("+/+", "/", True),
    ("/+", "/", True),
    ("+", "/", False),
    ("#", "/", True),
    ("a/#", "a", True),
    ("a/#", "a/", True),
    ("a/#", "a/b/c", True),
    ("a/#", "ab", False),
    ("+/b/#", "a/b", True),
    ("a/+", "a/b", True),
    ("a/+", "a", False),
    ("a/+", "a/", True),
    ("a/+", "a/b/c", False),
    ("+", "a", True),
    ("+/+", "a", False),
    ("+/b", "a/b", True),
    ("a/+/c", "a//c", True),
    ("//", "//", True),
    ("+/+/+", "//", True),
]


@table(
    "case",
    [
        Row(
            f"{topic_filter}-{topic}",
            (topic_filter, topic, expected),
            v311="MQTT-3.3.2-3 MQTT-4.7.1-2 MQTT-4.7.1-3",
            v5="MQTT-3.3.2-3 MQTT-4.7.1-1 MQTT-4.7.1-2",
        )
        for topic_filter, topic, expected in MATCHES
    ],
)
def test_matching(bus: Bus, case: tuple[str, str, bool]) -> None:
    topic_filter, topic, expected = case
    live = bus.connect("live")
    live.subscribe(topic_filter)
    bus.connect("p").publish(topic, b"x", retain=True)
    late = bus.connect("late")
    late.subscribe(topic_filter)
    if expected:
        live.expect(Publish(topic, b"x"))
        late.expect(Publish(topic, b"x", retain=True))
    else:
        live.expect_nothing()
        late.expect_nothing()


BAD_FILTERS = {
    "#-not-last": ("a/#/b", "MQTT-4.7.1-2", "MQTT-4.7.1-1"),
    "#-first-of-two": ("#/a", "MQTT-4.7.1-2", "MQTT-4.7.1-1"),
    "#-after-text": ("a/b#", "MQTT-4.7.1-2", "MQTT-4.7.1-1"),
    "#-before-text": ("a/#b", "MQTT-4.7.1-2", "MQTT-4.7.1-1"),
    "##": ("##", "MQTT-4.7.1-2", "MQTT-4.7.1-1"),
    "+-after-text": ("a+", "MQTT-4.7.1-3", "MQTT-4.7.1-2"),
    "+-before-text": ("a/+b/c", "MQTT-4.7.1-3", "MQTT-4.7.1-2"),
    "++": ("a/++", "MQTT-4.7.1-3", "MQTT-4.7.1-2"),
    "+#": ("a/+#", "MQTT-4.7.1-3", "MQTT-4.7.1-2"),
    "empty": ("", "MQTT-4.7.3-1", "MQTT-4.7.3-1"),
}


@table("topic_filter", [Row(n, f, v311=v311, v5=v5) for n, (f, v311, v5) in BAD_FILTERS.items()])
def test_a_filter_that_breaks_the_rules_is_refused(bus: Bus, topic_filter: str) -> None:
    """5.0 has a reason code for it, in SUBACK or DISCONNECT; in 3.1.1 the connection ends."""
    client = bus.connect("c")
    client.send_raw(raw.subscribe(bus.version, (topic_filter, 0)))
    codes = (ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)
    if bus.version >= V5 and client.peek() is SubAck:
        client.expect(SubAck, reason_codes=(ReasonCode.TOPIC_FILTER_INVALID,))
        client.expect_nothing()
    else:
        client.expect_closed(*codes)


@table(
    "topic_filter",
    [
        Row(name, f, v5=rule)
        for name, f, rule in (
            ("no-name", "$share//t", "MQTT-4.8.2-1"),
            ("nothing-after-share", "$share/", "MQTT-4.8.2-1"),
            ("no-filter", "$share/g", "MQTT-4.8.2-2"),
            ("empty-filter", "$share/g/", "MQTT-4.8.2-2"),
            ("name-with-+", "$share/g+/t", "MQTT-4.8.2-2"),
            ("name-is-+", "$share/+/t", "MQTT-4.8.2-2"),
            ("name-is-#", "$share/#", "MQTT-4.8.2-2"),
            ("name-with-#", "$share/g#/t", "MQTT-4.8.2-2"),
            ("bad-filter", "$share/g/a#", "MQTT-4.8.2-2"),
        )
    ],
)
def test_a_shared_filter_that_breaks_the_rules_is_refused(bus: Bus, topic_filter: str) -> None:
    client = bus.connect("c")
    client.send_raw(raw.subscribe(bus.version, (topic_filter, 0)))
    if client.peek() is SubAck:
        client.expect(SubAck, reason_codes=(ReasonCode.TOPIC_FILTER_INVALID,))
        client.expect_nothing()
    else:
        client.expect_closed(
            ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
        )


@pytest.mark.parametrize("topic_filter", ["$share/g/t", "$share/g/+", "$share/g/#", "$share/a b/t"])
@rules(v5="MQTT-4.8.2-1 MQTT-4.8.2-2")
def test_a_shared_filter_is_accepted_and_works(bus: Bus, topic_filter: str) -> None:
    client = bus.connect("c")
    assert client.subscribe(topic_filter, qos=1) == (1,)
    bus.connect("p").publish("t", b"x", qos=1)
    client.expect(Publish, topic="t", payload=b"x", qos=1)


@rules(v311="MQTT-4.7.2-1", v5="MQTT-4.7.2-1", wire=True)
def test_wildcards_at_the_start_do_not_reach_dollar_topics(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("#", "+/x", "+/#", "+")
    publisher = bus.connect("p")
    for topic in ("$T/x", "$T", "$x"):
        publisher.publish(topic, b"x", retain=True)
    client.expect_nothing()
    late = bus.connect("late")
    late.subscribe("#", "+/x", "+/#", "+")
    late.expect_nothing()
    late.subscribe("$T/#")
    assert sorted(p.topic for p in late.received() if isinstance(p, Publish)) == ["$T", "$T/x"]
    late.subscribe("$T/+")
    late.expect(Publish("$T/x", b"x", retain=True))


@rules(v311="MQTT-4.7.3-1 MQTT-4.7.1-1", v5="MQTT-4.7.3-1 MQTT-4.7.0-1")
def test_one_character_is_enough(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a", "/")
    publisher = bus.connect("p")
    for topic in ("a", "/"):
        publisher.publish(topic, b"x")
        client.expect(Publish(topic, b"x"))


@rules(v311="MQTT-4.7.3-3", v5="MQTT-4.7.3-3")
def test_65535_bytes_are_not_too_many(bus: Bus) -> None:
    """More cannot be written: a string's length has two bytes."""
    longest = "ü" * 32_767 + "x"
    client = bus.connect("s")
    assert client.subscribe(longest, qos=1) == (1,)
    publisher = bus.connect("p")
    publisher.publish(longest, b"x", qos=1)
    client.expect(Publish, topic=longest, payload=b"x")
    publisher.publish(longest[:-1] + "y", b"x", qos=1)
    client.expect_nothing()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\u00e9", "e\u0301"),
        ("A", "a"),
        ("\u212b", "\u00c5"),
        ("a\u200b", "a"),
        ("\ufffd", "?"),
        ("a/./b", "a/b"),
    ],
)
@rules(v311="MQTT-4.7.3-4", v5="MQTT-4.7.3-4")
def test_nothing_is_normalized(bus: Bus, one: str, other: str) -> None:
    client = bus.connect("s")
    client.subscribe(one)
    publisher = bus.connect("p")
    publisher.publish(other, b"other")
    publisher.publish(one, b"one")
    client.expect(Publish(one, b"one"))
    client.expect_nothing()


@rules(v311="MQTT-1.5.3-1 MQTT-4.7.3-4", v5="MQTT-1.5.4-1 MQTT-4.7.3-4")
def test_every_plane_of_unicode_passes(bus: Bus) -> None:
    topic = "\u0001/\u0080/\ud7ff/\ue000/\uffff/\U00010000/\U0010ffff"
    client = bus.connect("s")
    client.subscribe(topic)
    bus.connect("p").publish(topic, b"x")
    client.expect(Publish(topic, b"x"))


# -- shared subscriptions --------------------------------------------------------------------------


def _members(bus: Bus) -> list[Client]:
    members = [bus.connect(f"m{number}", keeps=True) for number in range(2)]
    for member in members:
        member.subscribe("$share/g/t", qos=2)
    return members


def _holder(members: list[Client]) -> tuple[Client, Client]:
    """The member that got something, and the other."""
    busy = [m for m in members if m.peek() is not None]
    assert len(busy) == 1
    return busy[0], next(m for m in members if m is not busy[0])


@rules(v5="MQTT-4.8.2-3")
def test_each_member_gets_at_most_its_granted_qos(bus: Bus) -> None:
    members = [bus.connect(f"m{qos}") for qos in range(3)]
    for qos, member in enumerate(members):
        assert member.subscribe("$share/g/t", qos=qos) == (qos,)
    publisher = bus.connect("p")
    total = 0
    for _ in range(12):
        publisher.publish("t", b"x", qos=2)
    for qos, member in enumerate(members):
        packets = member.received()
        total += len(packets)
        assert {p.qos for p in packets if isinstance(p, Publish)} == {qos}
    assert total == 12


@rules(v5="MQTT-4.8.2-3")
def test_a_member_gets_no_more_than_the_published_qos(bus: Bus) -> None:
    client = bus.connect("m")
    client.subscribe("$share/g/t", qos=2)
    publisher = bus.connect("p")
    for qos in range(3):
        publisher.publish("t", b"x", qos=qos)
        client.acknowledge(client.expect(Publish, qos=qos))


@rules(v5="MQTT-4.8.2-4")
def test_a_qos_2_delivery_is_completed_to_the_same_member(bus: Bus) -> None:
    members = _members(bus)
    bus.connect("p").publish("t", b"x", qos=2)
    holder, other = _holder(members)
    client_id = f"m{members.index(holder)}"
    got = holder.expect(Publish, payload=b"x", qos=2)
    holder.drop()
    other.expect_nothing()
    again = bus.connect(client_id, keeps=True)
    again.expect(Publish("t", b"x", 2, dup=True, packet_id=got.packet_id))
    again.send(PubRec(got.packet_id))
    again.expect(PubRel(got.packet_id))
    again.drop()
    other.expect_nothing()
    again = bus.connect(client_id, keeps=True)
    again.expect(PubRel(got.packet_id))
    again.send(PubComp(got.packet_id))
    other.expect_nothing()


@pytest.mark.parametrize("received", [False, True])
@rules(v5="MQTT-4.8.2-5")
def test_a_qos_2_delivery_ends_with_its_members_session(bus: Bus, received: bool) -> None:
    members = _members(bus)
    bus.connect("p").publish("t", b"x", qos=2)
    holder, other = _holder(members)
    got = holder.expect(Publish, payload=b"x", qos=2)
    if received:
        holder.send(PubRec(got.packet_id))
        holder.expect(PubRel)
    client_id = f"m{members.index(holder)}"
    holder.drop()
    other.expect_nothing()
    bus.connect(client_id, clean=True).expect_nothing()
    other.expect_nothing()
    bus.advance(2 * 3600)
    other.expect_nothing()


@rules(v5="MQTT-4.8.2-6")
def test_a_members_refusal_ends_the_message(bus: Bus) -> None:
    members = _members(bus)
    publisher = bus.connect("p")
    publisher.publish("t", b"one", qos=1)
    holder, other = _holder(members)
    holder.send(PubAck(holder.expect(Publish).packet_id, ReasonCode.NOT_AUTHORIZED))
    holder.expect_nothing()
    other.expect_nothing()
    publisher.publish("t", b"two", qos=2)
    holder, other = _holder(members)
    holder.send(PubRec(holder.expect(Publish).packet_id, ReasonCode.UNSPECIFIED_ERROR))
    holder.expect_nothing()
    other.expect_nothing()
    holder.drop()
    other.expect_nothing()


@rules(v5="MQTT-3.9.3-2 MQTT-3.8.4-7")
def test_a_shared_filter_needs_the_permission_of_its_filter(bus: Bus) -> None:
    bus.configure(access=Access(authorizer=Fenced()))
    client = bus.connect("c")
    assert client.subscribe("$share/g/secret/t") == (ReasonCode.NOT_AUTHORIZED,)
