"""SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (sections 3.8 to 3.11)."""

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
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
from .harness import Bus, Client
from .rules import Row, rules, table
from .stand_ins import Fenced

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)
SUBACK_CODES = {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
UNSUBACK_CODES = {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}


@rules(
    v311="MQTT-3.8.4-1 MQTT-3.8.4-2 MQTT-2.3.1-7 MQTT-3.8.4-4 MQTT-3.8.4-5 MQTT-3.9.3-1",
    v5="MQTT-3.8.4-1 MQTT-3.8.4-2 MQTT-2.2.1-6 MQTT-3.8.4-5 MQTT-3.8.4-6 MQTT-3.8.4-7 MQTT-3.9.3-1",
    wire=True,
)
def test_one_suback_with_a_code_for_each_filter_in_order(bus: Bus) -> None:
    client = bus.connect("s")
    requests = [SubscriptionRequest(name, qos) for name, qos in (("a", 2), ("b", 0), ("c", 1), ("d", 2))]
    client.send(Subscribe(40_000, tuple(requests)))
    client.expect(SubAck(40_000, (2, 0, 1, 2)))
    publisher = bus.connect("p")
    for name, qos in (("a", 2), ("b", 0), ("c", 1), ("d", 2)):
        publisher.publish(name, b"x", qos=2)
        client.acknowledge(client.expect(Publish, topic=name, qos=qos))
    client.expect_nothing()


@rules(
    v311="MQTT-3.8.4-5 MQTT-3.9.3-1 MQTT-3.9.3-2",
    v5="MQTT-3.8.4-7 MQTT-3.9.3-1 MQTT-3.9.3-2",
)
def test_a_refused_filter_fails_by_itself(bus: Bus) -> None:
    bus.configure(access=Access(authorizer=Fenced()))
    client = bus.connect("s")
    client.send(
        Subscribe(
            7, (SubscriptionRequest("a", 1), SubscriptionRequest("secret/b", 1), SubscriptionRequest("c", 2))
        )
    )
    refused = ReasonCode.NOT_AUTHORIZED if bus.version >= V5 else 0x80
    client.expect(SubAck(7, (1, refused, 2)))
    publisher = bus.connect("p")
    publisher.publish("c", b"x", qos=1)
    client.expect(Publish, topic="c")


@rules(v311="MQTT-3.9.3-2", v5="MQTT-3.9.3-2 MQTT-3.8.4-7")
def test_past_the_limit_of_subscriptions_the_code_is_a_failure(bus: Bus) -> None:
    bus.configure(limits=Limits(subscriptions_per_session=2))
    client = bus.connect("s")
    codes = client.subscribe("a", "b", "c", qos=1)
    assert codes == (1, 1, ReasonCode.QUOTA_EXCEEDED if bus.version >= V5 else 0x80)
    assert set(codes) <= (SUBACK_CODES if bus.version >= V5 else {0, 1, 2, 0x80})
    assert client.subscribe("a", qos=2) == (2,)


@rules(v311="MQTT-3.8.4-4", v5="MQTT-3.8.4-5")
def test_many_filters_count_like_many_subscribes(bus: Bus) -> None:
    """The last of two equal filters in one packet is the one that holds."""
    client = bus.connect("s")
    client.send(Subscribe(1, (SubscriptionRequest("t", 0), SubscriptionRequest("t", 2))))
    client.expect(SubAck(1, (0, 2)))
    bus.connect("p").publish("t", b"x", qos=2)
    client.expect(Publish, topic="t", qos=2)
    client.expect_nothing()


@rules(v311="MQTT-3.8.4-3", v5="MQTT-3.8.4-3", wire=True)
def test_the_same_filter_again_replaces_the_subscription(bus: Bus) -> None:
    client = bus.connect("s")
    publisher = bus.connect("p")
    for qos in (2, 0, 1):
        client.subscribe("t", qos=qos)
        publisher.publish("t", b"x", qos=2)
        client.acknowledge(client.expect(Publish, topic="t", qos=qos))
        client.expect_nothing()
    client.unsubscribe("t")
    publisher.publish("t", b"x", qos=2)
    client.expect_nothing()


@rules(v5="MQTT-3.8.4-3")
def test_a_new_subscription_replaces_every_option(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("t", qos=1, identifier=9, no_local=True, retain_as_published=True)
    client.subscribe("t", qos=1)
    client.publish("t", b"own", qos=1, retain=True)
    got = client.take(Publish)
    assert got.properties.subscription_identifiers == ()
    assert not got.retain


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
@rules(v311="MQTT-3.8.4-6", v5="MQTT-3.8.4-8")
def test_delivery_is_at_the_lower_qos(bus: Bus, published: int, granted: int) -> None:
    client = bus.connect("s")
    assert client.subscribe("t", qos=granted) == (granted,)
    bus.connect("p").publish("t", b"x", qos=published)
    client.expect(Publish, payload=b"x", qos=min(published, granted))


# -- overlapping filters ---------------------------------------------------------------------------


@rules(v311="MQTT-3.3.5-1", v5="MQTT-3.3.4-2", wire=True)
def test_overlapping_filters_deliver_at_the_highest_qos(bus: Bus) -> None:
    """One copy is what Polybus sends; the standard would allow more."""
    client = bus.connect("s")
    client.subscribe("a/#", qos=0)
    client.subscribe("a/+", qos=2)
    client.subscribe("a/b", qos=1)
    publisher = bus.connect("p")
    for qos in range(3):
        publisher.publish("a/b", b"x", qos=qos)
        client.acknowledge(client.expect(Publish, topic="a/b", qos=qos))
        client.expect_nothing()
    publisher.publish("a", b"x", qos=2)
    client.expect(Publish, topic="a", qos=0)


@rules(v5="MQTT-3.3.4-3 MQTT-3.3.4-4")
def test_one_copy_carries_every_matching_identifier(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a/#", qos=0, identifier=1)
    client.subscribe("a/+", qos=1, identifier=268_435_455)
    client.subscribe("a/b", qos=2)
    client.subscribe("other", qos=2, identifier=3)
    publisher = bus.connect("p")
    for qos in range(3):
        publisher.publish("a/b", b"x", qos=qos)
        got = client.expect(Publish, topic="a/b", qos=qos)
        assert sorted(got.properties.subscription_identifiers) == [1, 268_435_455]
        client.acknowledge(got)
        client.expect_nothing()
    publisher.publish("a/b/c", b"x")
    assert client.expect(Publish, topic="a/b/c").properties.subscription_identifiers == (1,)


@rules(v5="MQTT-3.3.4-3")
def test_identifiers_stay_with_messages_that_wait_and_retained_ones(bus: Bus) -> None:
    bus.connect("p").publish("t", b"kept", qos=1, retain=True)
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=1, identifier=5)
    got = client.expect(Publish, payload=b"kept", retain=True)
    assert got.properties.subscription_identifiers == (5,)
    client.drop()
    bus.connect("p").publish("t", b"queued", qos=1)
    again = bus.connect("s", keeps=True)
    for payload in (b"kept", b"queued"):
        assert again.expect(Publish, payload=payload).properties.subscription_identifiers == (5,)


@rules(v5="MQTT-3.3.4-5 MQTT-3.3.4-3")
def test_of_several_copies_each_carries_its_own_identifier(bus: Bus) -> None:
    """A shared and a plain subscription of one client: two subscriptions, two deliveries."""
    client = bus.connect("s")
    client.subscribe("t", qos=1, identifier=1)
    client.subscribe("$share/g/t", qos=1, identifier=2)
    bus.connect("p").publish("t", b"x", qos=1)
    got = [client.expect(Publish, topic="t") for _ in range(2)]
    assert sorted(p.properties.subscription_identifiers for p in got) == [(1,), (2,)]
    client.expect_nothing()


@rules(v5="MQTT-3.8.3-3")
def test_no_local_keeps_a_clients_own_messages_away(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("t", qos=2, no_local=True)
    for qos in range(3):
        client.publish("t", b"own", qos=qos)
    client.expect_nothing()
    other = bus.connect("p")
    for qos in range(3):
        other.publish("t", b"other's", qos=qos)
        client.acknowledge(client.expect(Publish, payload=b"other's", qos=qos))


@rules(v5="MQTT-3.8.3-3 MQTT-3.3.4-2 MQTT-3.3.4-3")
def test_no_local_on_one_of_two_filters_leaves_the_other(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a/+", qos=2, no_local=True, identifier=1)
    client.subscribe("a/b", qos=1, identifier=2)
    client.publish("a/b", b"own", qos=2)
    got = client.expect(Publish, payload=b"own", qos=1)
    assert got.properties.subscription_identifiers == (2,)
    client.acknowledge(got)
    bus.connect("p").publish("a/b", b"other's", qos=2)
    got = client.expect(Publish, payload=b"other's", qos=2)
    assert sorted(got.properties.subscription_identifiers) == [1, 2]


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v5="MQTT-3.8.3-3 MQTT-3.3.4-3 MQTT-3.3.1-12")
def test_the_options_hold_for_messages_in_one_piece(bus: Bus, qos: int) -> None:
    """Neighbours on the wire may be handled together; nobody must be able to tell."""
    local = bus.connect("local")
    local.subscribe("t", qos=2, no_local=True)
    marked = bus.connect("marked")
    marked.subscribe("t", qos=2, identifier=7)
    lower = bus.connect("lower")
    lower.subscribe("t", qos=0)
    members = [bus.connect("m0"), bus.connect("m1")]
    for member in members:
        member.subscribe("$share/g/t", qos=1)
    ids = [number + 1 if qos else 0 for number in range(20)]
    packets = [Publish("t", b"%d" % n, qos, packet_id=i) for n, i in enumerate(ids)]
    local.send(*packets)
    assert not [p for p in local.received() if isinstance(p, Publish)]
    payloads = [packet.payload for packet in packets]
    got = [p for p in marked.received() if isinstance(p, Publish)]
    assert [(p.payload, p.qos, p.properties.subscription_identifiers) for p in got] == [
        (payload, qos, (7,)) for payload in payloads
    ]
    assert [p.payload for p in lower.received() if isinstance(p, Publish) and p.qos == 0] == payloads
    shared = [p.payload for m in members for p in m.received() if isinstance(p, Publish)]
    assert sorted(shared) == sorted(payloads)


@rules(v5="MQTT-3.8.3-3")
def test_no_local_goes_by_client_id_not_by_connection(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=1, no_local=True)
    client.drop()
    client = bus.connect("s", keeps=True)
    client.publish("t", b"own", qos=1)
    client.expect_nothing()
    client.subscribe("t", qos=1)
    client.publish("t", b"own", qos=1)
    client.expect(Publish, payload=b"own")


# -- unsubscribing ---------------------------------------------------------------------------------


@rules(
    v311="MQTT-3.10.4-1 MQTT-3.10.4-2 MQTT-3.10.4-4 MQTT-2.3.1-7",
    v5="MQTT-3.10.4-1 MQTT-3.10.4-2 MQTT-3.10.4-4 MQTT-3.10.4-5 MQTT-2.2.1-6 MQTT-3.11.3-2",
    wire=True,
)
def test_unsubscribe_ends_exactly_that_filter(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a/+", "a/b", "A/b", qos=1)
    client.send(Unsubscribe(4321, ("a/b",)))
    client.expect(UnsubAck(4321, (0,) if bus.version >= V5 else ()))
    publisher = bus.connect("p")
    for topic in ("a/b", "A/b"):
        publisher.publish(topic, b"x", qos=1)
        client.acknowledge(client.expect(Publish, topic=topic))
    client.unsubscribe("a/+")
    publisher.publish("a/b", b"x", qos=1)
    client.expect_nothing()


@rules(
    v311="MQTT-3.10.4-5 MQTT-3.10.4-1",
    v5="MQTT-3.10.4-5 MQTT-3.10.4-1 MQTT-3.11.3-2",
)
def test_unsubscribe_compares_and_does_not_match(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a/b")
    for number, other in enumerate(("a/+", "#", "a/b/", "/a/b", "A/B", "a/B", "a"), start=10):
        client.send(Unsubscribe(number, (other,)))
        none = (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
        client.expect(UnsubAck(number, none if bus.version >= V5 else ()))
    bus.connect("p").publish("a/b", b"x")
    client.expect(Publish("a/b", b"x"))


@rules(v311="MQTT-3.10.4-6", v5="MQTT-3.10.4-6 MQTT-3.11.3-1 MQTT-3.11.3-2")
def test_one_unsuback_with_a_code_for_each_filter_in_order(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a", "b", "c")
    client.send(Unsubscribe(9, ("c", "none", "a", "a")))
    codes = (0x00, 0x11, 0x00, 0x11)
    assert set(codes) <= UNSUBACK_CODES
    client.expect(UnsubAck(9, codes if bus.version >= V5 else ()))
    publisher = bus.connect("p")
    for topic in ("a", "b", "c"):
        publisher.publish(topic, b"x")
    client.expect(Publish("b", b"x"))
    client.expect_nothing()


def _two_under_way(bus: Bus) -> tuple[Client, Publish, Publish]:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    publisher.publish("t", b"one", qos=1)
    publisher.publish("t", b"two", qos=2)
    return client, client.expect(Publish, payload=b"one"), client.expect(Publish, payload=b"two")


@rules(v311="MQTT-3.10.4-3 MQTT-3.10.4-2", v5="MQTT-3.10.4-3 MQTT-3.10.4-2")
def test_deliveries_that_have_begun_are_completed(bus: Bus) -> None:
    client, one, two = _two_under_way(bus)
    client.unsubscribe("t")
    bus.connect("p").publish("t", b"three", qos=1)
    client.expect_nothing()
    client.send(PubAck(one.packet_id), PubRec(two.packet_id))
    client.expect(PubRel(two.packet_id))
    client.send(PubComp(two.packet_id))
    client.expect_nothing()


@rules(v311="MQTT-3.10.4-3", v5="MQTT-3.10.4-3")
def test_deliveries_that_have_begun_are_completed_after_a_reconnect(bus: Bus) -> None:
    client, one, two = _two_under_way(bus)
    client.unsubscribe("t")
    client.drop()
    again = bus.connect("s", keeps=True)
    again.expect(Publish, payload=b"one", dup=True, packet_id=one.packet_id)
    again.expect(Publish, payload=b"two", dup=True, packet_id=two.packet_id)


# -- packets that are not well-formed --------------------------------------------------------------

BAD = [
    *(
        Row(
            f"subscribe-flags-{flags}",
            lambda v, flags=flags: raw.subscribe(v, ("t", 0), flags=flags),
            v311="MQTT-3.8.1-1 MQTT-2.2.2-2",
            v5="MQTT-3.8.1-1 MQTT-2.1.3-1",
        )
        for flags in (0, 1, 3, 6, 10)
    ),
    *(
        Row(
            f"unsubscribe-flags-{flags}",
            lambda v, flags=flags: raw.unsubscribe(v, "t", flags=flags),
            v311="MQTT-3.10.1-1 MQTT-2.2.2-2",
            v5="MQTT-3.10.1-1 MQTT-2.1.3-1",
        )
        for flags in (0, 1, 3, 6, 10)
    ),
    Row(
        "subscribe-id-0",
        lambda v: raw.subscribe(v, ("t", 0), packet_id=0),
        v311="MQTT-2.3.1-1",
        v5="MQTT-2.2.1-3",
    ),
    Row(
        "unsubscribe-id-0",
        lambda v: raw.unsubscribe(v, "t", packet_id=0),
        v311="MQTT-2.3.1-1",
        v5="MQTT-2.2.1-3",
    ),
    Row("subscribe-to-nothing", lambda v: raw.subscribe(v), v311="MQTT-3.8.3-3", v5="MQTT-3.8.3-2"),
    Row("unsubscribe-from-nothing", lambda v: raw.unsubscribe(v), v311="MQTT-3.10.3-2", v5="MQTT-3.10.3-2"),
    Row(
        "filter-not-utf8",
        lambda v: raw.subscribe(v, (b"\xff", 0)),
        v311="MQTT-3.8.3-1 MQTT-1.5.3-1",
        v5="MQTT-3.8.3-1 MQTT-1.5.4-1",
    ),
    Row(
        "filter-with-null",
        lambda v: raw.subscribe(v, (b"a\x00", 0)),
        v311="MQTT-3.8.3-1 MQTT-1.5.3-2 MQTT-4.7.3-2",
        v5="MQTT-3.8.3-1 MQTT-1.5.4-2 MQTT-4.7.3-2",
    ),
    Row(
        "unsubscribe-filter-not-utf8",
        lambda v: raw.unsubscribe(v, b"\xff"),
        v311="MQTT-3.10.3-1 MQTT-1.5.3-1",
        v5="MQTT-3.10.3-1 MQTT-1.5.4-1",
    ),
    Row("qos-3", lambda v: raw.subscribe(v, ("t", 3)), v311="MQTT-3.8.3-4", v5="MQTT-4.13.1-1"),
    *(
        Row(
            f"reserved-bits-{bits:#04x}",
            lambda v, bits=bits: raw.subscribe(v, ("t", bits)),
            v311="MQTT-3.8.3-4",
            v5="MQTT-3.8.3-5",
        )
        for bits in (0x40, 0x80, 0xC1)
    ),
    *(
        Row(f"option-bits-{bits:#04x}", lambda v, bits=bits: raw.subscribe(v, ("t", bits)), v311="MQTT-3.8.3-4")
        for bits in (0x04, 0x08, 0x10)
    ),
    Row("retain-handling-3", lambda v: raw.subscribe(v, ("t", 0x30)), v5="MQTT-4.13.1-1"),
    Row("filter-without-options", lambda v: raw.frame(0x82, b"\x00\x01\x00\x00\x01t"), v5="MQTT-3.8.3-2"),
    Row("filter-without-qos", lambda v: raw.frame(0x82, b"\x00\x01\x00\x01t"), v311="MQTT-3.8.3-3"),
    Row(
        "no-local-on-a-shared-filter",
        lambda v: raw.subscribe(v, ("$share/g/t", 0x04)),
        v5="MQTT-3.8.3-4",
    ),
    Row(
        "identifier-0",
        lambda v: raw.frame(0x82, b"\x00\x01", b"\x02\x0b\x00", raw.text("t"), b"\x00"),
        v5="MQTT-4.13.1-1",
    ),
    Row(
        "identifier-not-minimal",
        lambda v: raw.frame(0x82, b"\x00\x01", b"\x03\x0b\x81\x00", raw.text("t"), b"\x00"),
        v5="MQTT-1.5.5-1",
    ),
    Row(
        "property-length-not-minimal",
        lambda v: raw.frame(0x82, b"\x00\x01", b"\x80\x00", raw.text("t"), b"\x00"),
        v5="MQTT-1.5.5-1",
    ),
]


@table("make", BAD)
def test_a_request_that_is_not_well_formed_ends_the_connection(bus: Bus, make: object) -> None:
    client = bus.connect("c")
    client.send_raw(make(bus.version))  # type: ignore[operator]
    client.expect_closed(*MALFORMED)


@rules(v311="MQTT-3.8.3-4", v5="MQTT-3.8.3-5 MQTT-3.8.4-5")
def test_a_malformed_packet_has_no_effect_at_all(bus: Bus) -> None:
    """The filters before the bad one are not subscribed to either."""
    client = bus.connect("c", keeps=True)
    client.send_raw(raw.subscribe(bus.version, ("good", 1), ("bad", 0xC0)))
    client.expect_closed(*MALFORMED)
    bus.connect("p").publish("good", b"x", qos=1)
    bus.connect("c", keeps=True).expect_nothing()


@rules(v5="MQTT-3.3.4-3")
def test_an_identifier_counts_for_every_filter_of_its_packet(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("a", "b", identifier=200)
    publisher = bus.connect("p")
    for topic in ("a", "b"):
        publisher.publish(topic, b"x", properties=Properties(content_type="x"))
        assert client.expect(Publish, topic=topic).properties.subscription_identifiers == (200,)
