"""What a peer can make grow or keep waiting, and what was agreed with it, one case a bound."""

from typing import Any

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.broker.subscriptions import MAX_ROUTES_BYTES, MAX_WALK
from polybus.session.intake import WORK_A_TURN
from polybus.session.mqtt.reader import MAX_FILTERS_BYTES
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.session.harness import World, check_accounts


@pytest.mark.parametrize("qos", [1, 2])
def test_one_unacknowledged_message_does_not_hold_up_a_run(qos: int) -> None:
    world = World()
    peer = world.connect("s", V5, receive_maximum=20)
    peer.subscribe("t", qos=qos)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"first", qos=qos)
    assert peer.payloads() == [b"first"]
    run = [b"%02d" % n for n in range(20)]
    publisher.publish("t", *run, qos=qos)
    assert peer.payloads() == run[:19], "the window has room for all but one"
    check_accounts(world.broker)


@pytest.mark.parametrize(("version", "qos"), [(V311, 0), (V311, 1), (V311, 2), (V5, 0)])
def test_a_long_run_of_many_topics_waits_its_turn(version: int, qos: int) -> None:
    count = 3 * WORK_A_TURN
    world = World()
    busy = world.connect("busy", version)
    ids = range(1, count + 1) if qos else [0] * count
    busy.feed_packets(*(Publish(f"t{n % 100}", b"", qos, packet_id=i) for n, i in enumerate(ids)))
    assert busy.link.messages_in < count, "others are served in between"
    world.settle()
    assert busy.link.messages_in == count


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_only_the_broker_publishes_its_own_topics(version: int, qos: int) -> None:
    world = World()
    peer = world.connect("s", version)
    peer.subscribe("$SYS/#")
    liar = world.connect("p", version)
    liar.publish("$SYS/broker/version", b"a", b"b", qos=qos)
    assert peer.payloads() == []
    assert not liar.is_closed


def test_a_refused_publish_to_the_brokers_topics_says_why() -> None:
    liar = World().connect("p", V5)
    liar.send(Publish("$SYS/x", b"", 1, packet_id=1))
    assert liar.take(PubAck)[0].reason_code == ReasonCode.NOT_AUTHORIZED


def test_a_packet_of_nothing_but_filters_is_too_large() -> None:
    world = World()
    peer = world.connect("c", V5)
    requests = (SubscriptionRequest("a"),) * (MAX_FILTERS_BYTES // 4 + 1)
    peer.send(Subscribe(1, requests))
    assert peer.take(Disconnect)[0].reason_code == ReasonCode.PACKET_TOO_LARGE
    assert world.broker.subscriptions.count == 0


def test_wills_and_properties_count() -> None:
    world = World()
    before = world.broker.memory_bytes()
    properties = Properties(user_properties=(("k", "v" * 10_000),))
    peer = world.connect("c", V5, will=Will("w", b"x" * 5_000, properties=properties))
    assert world.broker.memory_bytes() - before > 15_000
    peer.drop()
    world.settle()
    assert world.broker.memory_bytes() == before


def test_long_topic_names_do_not_fill_the_cache() -> None:
    world = World()
    publisher = world.connect("p")
    for n in range(MAX_ROUTES_BYTES // 50_000 + 100):
        publisher.publish(f"{n}/" + "x" * 50_000, b"")
    assert sum(map(len, world.broker.subscriptions.routes)) <= MAX_ROUTES_BYTES


def test_a_wildcard_over_many_names_takes_effect_without_a_walk() -> None:
    world = World()
    publisher = world.connect("p")
    for n in range(MAX_WALK + 100):
        publisher.publish(f"t/{n}", b"old")
    peer = world.connect("s")
    peer.subscribe("t/#")
    for n in (0, MAX_WALK + 99):
        publisher.publish(f"t/{n}", b"new")
    assert peer.payloads() == [b"new", b"new"]


def test_what_a_client_was_told_outlives_a_reload() -> None:
    world = World(Limits(receive_maximum=100, topic_alias_maximum=10))
    peer = world.connect("c", V5)
    unchanged: dict[str, Any] = {"shared_strategy": "round_robin", "drop_oldest": False, "queue_qos0": False}
    world.broker.reconfigure(Limits(receive_maximum=1, topic_alias_maximum=0), Access(), **unchanged)
    peer.feed_packets(*(Publish("t", b"", 2, packet_id=n) for n in range(1, 51)))
    peer.send(Publish("t", b"", properties=Properties(topic_alias=10)))
    assert not peer.is_closed


def test_whoever_spends_the_budget_does_not_silence_others() -> None:
    """One client never acknowledges; another, which does, goes on."""
    world = World(Limits(memory_bytes=1024 * 1024, packet_size_bytes=64 * 1024))
    hog = world.connect("hog", V5)
    hog.subscribe("hog", qos=1)
    good = world.connect("good", V5)
    good.subscribe("good", qos=1)
    publisher = world.connect("p", V5)
    for n in range(200):
        publisher.publish("hog", b"x" * 20_000, qos=1)
        publisher.publish("good", b"%d" % n, qos=1)
        assert [p.payload for p in good.receive_all()] == [b"%d" % n]
    assert world.broker.memory_bytes() <= 1024 * 1024 + 100_000
