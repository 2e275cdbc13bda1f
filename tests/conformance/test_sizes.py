"""Maximum packet size, both ways, and what is left out to keep to it (sections 3.1.2.11.4 and 3.2.2.3.6)."""

from collections.abc import Callable

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)

from . import raw
from .harness import Bus
from .rules import Row, rules, table
from .stand_ins import Fenced, OnlyAlice, Riddle

# -- what the client takes -------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v5="MQTT-3.1.2-24 MQTT-3.1.2-25", wire=True)
def test_a_message_too_large_is_dropped_and_counts_as_delivered(bus: Bus, qos: int) -> None:
    client = bus.connect("s", keeps=True, maximum_packet_size=100, receive_maximum=1)
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    for number in range(3):
        publisher.publish("t", b"x" * 200, qos=qos)
        publisher.publish("t", b"%d" % number, qos=qos)
        client.acknowledge(client.expect(Publish, topic="t", payload=b"%d" % number, qos=qos))
    client.expect_nothing()
    client.drop()
    bus.connect("s", keeps=True).expect_nothing()  # a client that takes more does not get it either


@rules(v5="MQTT-3.1.2-24 MQTT-3.1.2-25")
def test_the_limit_is_on_the_whole_packet(bus: Bus) -> None:
    client = bus.connect("s", maximum_packet_size=50)
    client.subscribe("t", qos=1)
    publisher = bus.connect("p")
    overhead = {0: 2 + 3 + 1, 1: 2 + 3 + 2 + 1}
    for qos in (0, 1):
        publisher.publish("t", b"x" * (50 - overhead[qos] + 1), qos=qos)
        client.expect_nothing()
        publisher.publish("t", b"x" * (50 - overhead[qos]), qos=qos)
        client.acknowledge(client.expect(Publish, qos=qos))
        assert len(client.last_frame) == 50


@rules(v5="MQTT-3.1.2-24 MQTT-3.1.2-25")
def test_the_limit_holds_for_queued_retained_and_resent_messages(bus: Bus) -> None:
    publisher = bus.connect("p")
    publisher.publish("kept/large", b"x" * 200, retain=True)
    publisher.publish("kept/small", b"x", retain=True)
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=2)
    publisher.publish("t", b"sent" * 50, qos=1)
    client.expect(Publish, payload=b"sent" * 50)
    client.drop()
    publisher.publish("t", b"queued" * 50, qos=1)
    publisher.publish("t", b"small", qos=1)
    again = bus.connect("s", keeps=True, maximum_packet_size=100)
    again.acknowledge(again.expect(Publish, payload=b"small"))
    again.subscribe("kept/+")
    again.expect(Publish("kept/small", b"x", retain=True))
    again.expect_nothing()


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("published", [0, 1])
@rules(v5="MQTT-3.1.2-24 MQTT-3.1.2-25")
def test_the_limit_holds_in_one_piece_with_smaller_messages(bus: Bus, published: int, granted: int) -> None:
    client = bus.connect("s", maximum_packet_size=60)
    client.subscribe("t", qos=granted)
    sizes = [10, 100, 20, 100, 100, 30]
    ids = [n + 1 if published else 0 for n, _ in enumerate(sizes)]
    packets = [Publish("t", b"x" * size, published, packet_id=i) for size, i in zip(sizes, ids, strict=True)]
    bus.connect("p").send(*packets)
    assert [len(p.payload) for p in client.received() if isinstance(p, Publish)] == [10, 20, 30]


@rules(v5="MQTT-3.1.2-24")
def test_other_packets_keep_to_the_limit_too(bus: Bus) -> None:
    """A SUBACK cannot be shortened: where it does not fit, it must not be sent."""
    client = bus.connect("s", maximum_packet_size=40)
    requests = tuple(SubscriptionRequest(f"t/{number}") for number in range(60))
    client.send(Subscribe(1, requests))
    assert client.largest_frame() <= 40


@rules(v5="MQTT-3.1.2-24")
def test_a_connack_that_does_not_fit_is_not_sent(bus: Bus) -> None:
    client = bus.open()
    client.send(bus.connect_packet("c", maximum_packet_size=4))
    assert client.largest_frame() <= 4


# -- reasons are left out before a packet gets too large -------------------------------------------

Provoke = tuple[type[Packet], Packet | bytes, int]

PROVOCATIONS = [
    Row("puback", (PubAck, Publish("secret/t", b"", 1, packet_id=1), 0x87), v5="MQTT-3.4.2-2 MQTT-3.4.2-3"),
    Row("pubrec", (PubRec, Publish("secret/t", b"", 2, packet_id=1), 0x87), v5="MQTT-3.5.2-2 MQTT-3.5.2-3"),
    Row("pubrel", (PubRel, PubRec(9), 0x92), v5="MQTT-3.6.2-2 MQTT-3.6.2-3"),
    Row("pubcomp", (PubComp, PubRel(9), 0x92), v5="MQTT-3.7.2-2 MQTT-3.7.2-3"),
    Row(
        "suback",
        (SubAck, Subscribe(1, (SubscriptionRequest("secret/t"),)), 0x87),
        v5="MQTT-3.9.2-1 MQTT-3.9.2-2",
    ),
    Row("unsuback", (UnsubAck, Unsubscribe(1, ("none",)), 0x11), v5="MQTT-3.11.2-1 MQTT-3.11.2-2"),
    Row("disconnect", (Disconnect, raw.publish(V5, ""), 0x82), v5="MQTT-3.14.2-3 MQTT-3.14.2-4"),
]


def _code(packet: Packet) -> int:
    if isinstance(packet, SubAck | UnsubAck):
        return packet.reason_codes[0]
    return int(getattr(packet, "reason_code", -1))


@table("case", PROVOCATIONS)
def test_reasons_are_left_out_where_they_do_not_fit(bus: Bus, case: Provoke) -> None:
    """The limit is the size of a bare CONNACK, shorter than any sentence."""
    kind, cause, code = case
    bus.configure(access=Access(authorizer=Fenced()))
    limit = len(bus.connect("c").last_frame)
    client = bus.connect("c", maximum_packet_size=limit)
    if isinstance(cause, bytes):
        client.send_raw(cause)
    else:
        client.send(cause)
    packet = client.expect(kind)
    assert _code(packet) == code
    assert len(client.last_frame) <= limit


@table(
    "case",
    [Row(row.name, row.value, v5="MQTT-3.1.2-29") for row in PROVOCATIONS if row.name != "disconnect"],
)
def test_reasons_are_left_out_where_the_client_wants_none(bus: Bus, case: Provoke) -> None:
    kind, cause, code = case
    bus.configure(access=Access(authorizer=Fenced()))
    client = bus.connect("c", request_problem_information=0)
    assert not isinstance(cause, bytes)
    client.send(cause)
    packet = client.expect(kind)
    assert _code(packet) == code
    properties: Properties = packet.properties  # type: ignore[union-attr]  # all of these have them
    assert properties.reason_string is None
    assert properties.user_properties == ()


@rules(v5="MQTT-3.1.2-29")
def test_declining_problem_information_does_not_touch_publishes(bus: Bus) -> None:
    client = bus.connect("c", request_problem_information=0)
    client.subscribe("t")
    bus.connect("p").publish("t", b"x", properties=Properties(user_properties=(("a", "b"),)))
    assert client.expect(Publish).properties.user_properties == (("a", "b"),)


REFUSED: list[tuple[str, Callable[[], Connect]]] = [
    ("password", lambda: Connect("c", V5, user_name="alice", password=b"wrong")),
    ("user", lambda: Connect("c", V5, user_name="bob")),
]


@table("make", [Row(name, make, v5="MQTT-3.2.2-19 MQTT-3.2.2-20") for name, make in REFUSED])
def test_a_refusal_says_why_unless_that_makes_it_too_large(bus: Bus, make: Callable[[], Connect]) -> None:
    bus.configure(access=Access(authenticator=OnlyAlice()))
    client = bus.open()
    client.send(make())
    said = client.expect(ConnAck)
    assert said.properties.reason_string  # there is something to leave out
    brief = bus.open()
    packet = make()
    fields = {name: getattr(packet, name) for name in ("version", "user_name", "password")}
    brief.send(Connect("c", properties=Properties(maximum_packet_size=20), **fields))
    assert brief.expect(ConnAck).reason_code == said.reason_code
    assert len(brief.last_frame) <= 20
    brief.expect_closed_silently()


@rules(v5="MQTT-3.15.2-2 MQTT-3.15.2-3 MQTT-3.1.2-24")
def test_auth_keeps_to_the_limit(bus: Bus) -> None:
    bus.configure(access=Access(methods={"riddle": Riddle()}))
    bare = 2 + 1 + 1 + (3 + len("riddle")) + (3 + len("six times seven?"))
    client = bus.open()
    client.send(bus.connect_packet("c", authentication_method="riddle", maximum_packet_size=bare))
    assert client.largest_frame() == bare
    client = bus.open()
    client.send(bus.connect_packet("c", authentication_method="riddle", maximum_packet_size=bare - 1))
    assert client.largest_frame() < bare


# -- what the server takes -------------------------------------------------------------------------


@rules(v5="MQTT-3.2.2-15", wire=True)
def test_a_packet_above_the_servers_maximum_is_answered_with_0x95(bus: Bus) -> None:
    bus.configure(limits=Limits(packet_size_bytes=500))
    client = bus.connect("c")
    assert client.connack.properties.maximum_packet_size == 500
    client.subscribe("t")
    exact = raw.publish(V5, "t", b"x" * (500 - 3 - 3 - 1))
    assert len(exact) == 500
    client.send_raw(exact)
    client.expect(Publish, topic="t")
    client.send_raw(raw.publish(V5, "t", b"x" * (501 - 3 - 3 - 1)))
    client.expect_closed(ReasonCode.PACKET_TOO_LARGE)


@rules(v5="MQTT-3.2.2-15")
def test_too_large_is_known_from_the_header(bus: Bus) -> None:
    """Nobody waits for 200 MB to say that they are too many."""
    client = bus.connect("c")
    client.send_raw("30ffffff7f")
    client.expect_closed(ReasonCode.PACKET_TOO_LARGE)
