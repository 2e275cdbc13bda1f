"""Retained messages (sections 3.3.1.3 and 3.8.3.1): what is stored, replaced, removed and sent when."""

import pytest

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import Publish

from .harness import Bus, Client
from .rules import rules


def _late(bus: Bus, topic_filter: str = "t", qos: int = 2) -> Client:
    client = bus.connect("late")
    client.subscribe(topic_filter, qos=qos)
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(
    v311="MQTT-3.3.1-5 MQTT-3.3.1-6 MQTT-3.3.1-8",
    v5="MQTT-3.3.1-5 MQTT-3.3.1-9",
    wire=True,
)
def test_a_retained_message_is_stored_with_its_qos(bus: Bus, qos: int) -> None:
    bus.connect("p").publish("t", b"kept", qos=qos, retain=True)
    _late(bus).expect(Publish, topic="t", payload=b"kept", qos=qos, retain=True, dup=False)


@rules(v311="MQTT-3.3.1-6", v5="MQTT-3.3.1-9")
def test_a_new_subscription_gets_the_last_message_of_every_matching_topic(bus: Bus) -> None:
    publisher = bus.connect("p")
    for topic in ("t/a", "t/b", "t/b/c", "u"):
        publisher.publish(topic, b"old", qos=1, retain=True)
        publisher.publish(topic, b"new", qos=1, retain=True)
    got = _late(bus, "t/#").received()
    assert sorted(p.topic for p in got if isinstance(p, Publish)) == ["t/a", "t/b", "t/b/c"]
    assert {p.payload for p in got if isinstance(p, Publish)} == {b"new"}


@rules(v311="MQTT-3.3.1-7", v5="MQTT-3.3.1-5")
def test_a_retained_qos_0_message_displaces_the_one_before(bus: Bus) -> None:
    publisher = bus.connect("p")
    publisher.publish("t", b"old", qos=2, retain=True)
    publisher.publish("t", b"new", qos=0, retain=True)
    late = _late(bus)
    late.expect(Publish("t", b"new", qos=0, retain=True))
    late.expect_nothing()


@rules(v311="MQTT-3.3.1-9", v5="MQTT-3.3.1-12", wire=True)
def test_an_established_subscription_gets_retain_0(bus: Bus) -> None:
    clients = [bus.connect(f"s{qos}") for qos in range(3)]
    for qos, client in enumerate(clients):
        client.subscribe("t", qos=qos)
    publisher = bus.connect("p")
    for qos in range(3):
        publisher.publish("t", b"x", qos=qos, retain=True)
    for client in clients:
        for _ in range(3):
            client.expect(Publish, payload=b"x", retain=False)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v5="MQTT-3.3.1-13")
def test_retain_as_published(bus: Bus, qos: int, retain: bool) -> None:
    client = bus.connect("s")
    client.subscribe("t", qos=2, retain_as_published=True)
    bus.connect("p").publish("t", b"x", qos=qos, retain=retain)
    client.expect(Publish, payload=b"x", qos=qos, retain=retain)


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(
    v311="MQTT-3.3.1-10 MQTT-3.3.1-11",
    v5="MQTT-3.3.1-6 MQTT-3.3.1-7",
)
def test_an_empty_message_removes_and_is_not_stored(bus: Bus, qos: int) -> None:
    here = bus.connect("here")
    here.subscribe("#", qos=2)
    publisher = bus.connect("p")
    publisher.publish("t", b"kept", qos=1, retain=True)
    here.expect(Publish, payload=b"kept")
    publisher.publish("t", b"", qos=qos, retain=True)
    here.expect(Publish, topic="t", payload=b"", qos=qos, retain=False)
    publisher.publish("never", b"", qos=qos, retain=True)
    here.expect(Publish, topic="never", payload=b"")
    _late(bus, "#").expect_nothing()


@rules(v311="MQTT-3.3.1-12", v5="MQTT-3.3.1-8")
def test_retain_0_neither_stores_nor_touches(bus: Bus) -> None:
    publisher = bus.connect("p")
    publisher.publish("kept", b"kept", qos=1, retain=True)
    for qos in range(3):
        publisher.publish("kept", b"other", qos=qos)
        publisher.publish("kept", b"", qos=qos)
        publisher.publish("none", b"other", qos=qos)
    late = _late(bus, "#")
    late.expect(Publish, topic="kept", payload=b"kept", retain=True)
    late.expect_nothing()


@rules(v5="MQTT-3.3.1-9 MQTT-3.8.4-4")
def test_retain_handling_0_sends_at_every_subscribe(bus: Bus) -> None:
    bus.connect("p").publish("t", b"kept", retain=True)
    client = bus.connect("s")
    for _ in range(3):
        client.subscribe("t", retain_handling=0)
        client.expect(Publish("t", b"kept", retain=True))
    client.expect_nothing()


@rules(v5="MQTT-3.3.1-10")
def test_retain_handling_1_sends_only_to_a_new_subscription(bus: Bus) -> None:
    bus.connect("p").publish("t", b"kept", retain=True)
    client = bus.connect("s", keeps=True)
    client.subscribe("t", retain_handling=1)
    client.expect(Publish("t", b"kept", retain=True))
    client.subscribe("t", qos=1, retain_handling=1)
    client.expect_nothing()
    client.drop()
    again = bus.connect("s", keeps=True)
    again.subscribe("t", retain_handling=1)
    again.expect_nothing()
    again.unsubscribe("t")
    again.subscribe("t", retain_handling=1)
    again.expect(Publish("t", b"kept", retain=True))


@rules(v5="MQTT-3.3.1-11")
def test_retain_handling_2_never_sends(bus: Bus) -> None:
    bus.connect("p").publish("t", b"kept", retain=True)
    client = bus.connect("s")
    client.subscribe("t", retain_handling=2)
    client.expect_nothing()
    client.subscribe("t", retain_handling=2)
    client.expect_nothing()
    bus.connect("p").publish("t", b"live")
    client.expect(Publish("t", b"live"))


@rules(v5="MQTT-3.3.1-9")
def test_a_retained_message_has_retain_1_whatever_retain_as_published_says(bus: Bus) -> None:
    bus.connect("p").publish("t", b"kept", retain=True)
    for as_published in (False, True):
        client = bus.connect("s")
        client.subscribe("t", retain_as_published=as_published)
        client.expect(Publish("t", b"kept", retain=True))


@rules(v311="MQTT-3.8.4-3", v5="MQTT-3.8.4-3 MQTT-3.8.4-4")
def test_subscribing_again_sends_retained_again_and_loses_nothing(bus: Bus) -> None:
    bus.configure(limits=Limits(inflight_per_session=2))
    publisher = bus.connect("p")
    publisher.publish("t", b"kept", retain=True, qos=1)
    client = bus.connect("s")
    client.subscribe("t", qos=1)
    first = client.expect(Publish, payload=b"kept", qos=1, retain=True)
    publisher.publish("t", b"one", qos=1)
    publisher.publish("t", b"two", qos=1)
    client.subscribe("t", qos=1)
    publisher.publish("t", b"three", qos=1)
    client.acknowledge(first)
    live: list[bytes] = []
    kept = 0
    while len(live) < 3 or not kept:
        got = client.expect(Publish, qos=1)
        if got.retain:
            kept += 1
        else:
            live.append(got.payload)
        client.acknowledge(got)
    assert live == [b"one", b"two", b"three"]
    client.expect_nothing()


@rules(v311="MQTT-3.3.1-6 MQTT-3.8.4-6", v5="MQTT-3.8.4-8")
def test_a_retained_message_comes_at_the_lower_qos(bus: Bus) -> None:
    bus.connect("p").publish("t", b"kept", qos=2, retain=True)
    for qos in range(3):
        _late(bus, "t", qos).expect(Publish, payload=b"kept", qos=qos, retain=True)
