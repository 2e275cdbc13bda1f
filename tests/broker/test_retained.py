"""Retained messages: limits, expiry, and replay in steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.limits import Limits
from polybus.broker.message import OVERHEAD_BYTES, Delivery, Message
from polybus.broker.retained import Retained
from polybus.broker.sessions import Subscription
from polybus.wire.mqtt.packets import (
    V5,
    Properties,
    Publish,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from tests.broker.naive import filters, matches, names
from tests.session.harness import World
from tests.wire.mqtt.strategies import so_many


def keep(topic: str, payload: bytes = b"x", expires_at: float | None = None) -> Message:
    return Message(topic, payload, retain=True, expires_at=expires_at)


def replayed(retained: Retained, path: str) -> list[str]:
    found = retained.replay(Subscription(path, None, 0))
    return sorted(d.message.topic for d in found if d is not None)


@so_many(200)
@given(st.lists(st.tuples(names, st.sampled_from([b"", b"x", b"yy"]))), st.lists(filters, max_size=5))
def test_the_last_value_of_each_topic(steps: list[tuple[str, bytes]], asked: list[str]) -> None:
    retained = Retained(Limits())
    model: dict[str, bytes] = {}
    for topic, payload in steps:
        assert retained.store(keep(topic, payload))
        model[topic] = payload
        if not payload:
            del model[topic]
    assert retained.count == len(model)
    assert retained.size_bytes == sum(len(p) + len(t) + OVERHEAD_BYTES for t, p in model.items())
    for path in asked:
        assert replayed(retained, path) == sorted(t for t in model if matches(path, t))


def test_a_limit_of_messages_lets_known_topics_be_replaced() -> None:
    retained = Retained(Limits(retained_messages=2))
    assert retained.store(keep("a"))
    assert retained.store(keep("b"))
    assert not retained.store(keep("c"))
    assert retained.store(keep("a", b"new"))
    assert retained.store(keep("a", b""))
    assert retained.store(keep("c"))
    assert replayed(retained, "#") == ["b", "c"]


def test_a_limit_of_bytes_counts_what_a_replacement_frees() -> None:
    retained = Retained(Limits(retained_bytes=2 * (OVERHEAD_BYTES + 11)))
    assert retained.store(keep("a", b"x" * 10))
    assert retained.store(keep("b", b"x" * 10))
    assert not retained.store(keep("b", b"x" * 11))
    assert retained.get("b") is not None, "a refused replacement leaves what was there"
    assert retained.store(keep("b", b"x"))
    assert retained.store(keep("a", b"x" * 19))


def test_expired_messages_are_forgotten() -> None:
    retained = Retained(Limits())
    retained.store(keep("a", expires_at=10.0))
    retained.store(keep("b", expires_at=20.0))
    retained.store(keep("c"))
    assert retained.expire(9.9) == 0
    assert retained.expire(10.0) == 1
    assert replayed(retained, "#") == ["b", "c"]
    assert retained.expire(100.0) == 1
    assert (retained.count, retained._expiries, retained._expiring) == (1, [], {})


def test_a_replacement_sets_a_new_expiry() -> None:
    retained = Retained(Limits())
    retained.store(keep("a", expires_at=10.0))
    retained.store(keep("a", expires_at=30.0))
    assert retained.expire(20.0) == 0
    retained.store(keep("a"))
    assert retained.expire(40.0) == 0
    assert retained.count == 1


def test_a_replacement_that_expires_earlier_is_forgotten_earlier() -> None:
    retained = Retained(Limits())
    retained.store(keep("a", expires_at=1000.0))
    retained.store(keep("a", expires_at=10.0))
    retained.expire(20.0)
    assert retained.count == 0


def test_the_heap_does_not_grow_with_replacements() -> None:
    retained = Retained(Limits())
    for n in range(10_000):
        retained.store(keep("a", expires_at=1000.0 + n))
    assert len(retained._expiries) <= 65


def test_the_heap_does_not_grow_with_deletions() -> None:
    """A peer that sets and deletes topics with a long expiry must not make anything grow."""
    retained = Retained(Limits())
    for n in range(5_000):
        retained.store(keep(f"t/{n}", expires_at=1e9))
        retained.store(keep(f"t/{n}", b""))
    assert retained.count == retained.size_bytes == 0
    assert len(retained._expiries) + len(retained._expiring) <= 200


# -- on their way to a subscriber ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def forest() -> Retained:
    retained = Retained(Limits())
    for n in range(100_000):
        retained.store(keep(f"{n % 1000}/{n // 1000}/leaf"))
    return retained


@pytest.mark.parametrize("path", ["#", "+/+/leaf", "7/#", "+/50/#"])
def test_replay_over_a_forest_reaches_everyone_in_small_steps(forest: Retained, path: str) -> None:
    """Each step of a tick looks at a bounded number of messages, and they come to an end."""
    world = World()
    world.broker.retained._tree = forest._tree
    peer = world.connect("s", V5)
    peer.feed_packets(Subscribe(1, (SubscriptionRequest(path),)))
    ticks = total = 0
    while world.broker.dispatcher.unfinished or not ticks:
        world.broker.tick(world.now)
        got = len(peer.take(Publish))
        assert got <= 500
        total += got
        ticks += 1
        assert ticks < 1000
    assert total == sum(matches(path, f"{n % 1000}/{n // 1000}/leaf") for n in range(100_000))


def test_others_are_served_between_the_steps(forest: Retained) -> None:
    world = World()
    world.broker.retained._tree = forest._tree
    busy = world.connect("busy")
    other = world.connect("other")
    other.subscribe("x")
    publisher = world.connect("p")
    busy.feed_packets(Subscribe(1, (SubscriptionRequest("#"),)))
    world.broker.tick(world.now)
    publisher.feed_packets(Publish("x", b"hello"))
    world.broker.tick(world.now)
    assert other.payloads() == [b"hello"]
    assert world.broker.dispatcher.unfinished


def test_a_blocked_or_full_subscriber_gets_the_rest_later() -> None:
    world = World()
    publisher = world.connect("p", V5)
    for n in range(100):
        publisher.publish(f"t/{n}", b"x", qos=1, retain=True)
    peer = world.connect("s", V5, receive_maximum=10)
    peer.send(Subscribe(1, (SubscriptionRequest("t/#", 1),)))
    assert len(peer.session.inflight) == 10
    peer.block()
    peer.unblock()
    assert len(peer.session.inflight) == 10
    assert {p.topic for p in peer.receive_all()} == {f"t/{n}" for n in range(100)}
    assert peer.session.replays is None


def test_what_expired_while_the_subscriber_was_blocked_is_not_replayed() -> None:
    """[MQTT-3.3.2-5] the server must not start to deliver a message that has expired."""
    world = World()
    world.connect("p", V5).publish("t", b"x", retain=True, properties=Properties(message_expiry_s=10))
    peer = world.connect("s", V5)
    peer.block()
    peer.send(Subscribe(1, (SubscriptionRequest("t"),)))
    world.now += 100
    peer.unblock()
    assert peer.payloads() == []


def test_a_replay_ends_with_its_subscription() -> None:
    """[MQTT-3.10.4-2] after UNSUBSCRIBE no new messages are added for delivery."""
    world = World()
    publisher = world.connect("p")
    for n in range(2000):
        publisher.publish(f"t/{n}", b"x", retain=True)
    peer = world.connect("s")
    peer.feed_packets(Subscribe(1, (SubscriptionRequest("t/#"),)))
    world.broker.tick(world.now)
    peer.packets()
    peer.send(Unsubscribe(2, ("t/#",)))
    kinds = [type(p) for p in peer.packets()]
    assert kinds.index(UnsubAck) == len(kinds) - 1


def test_replays_do_not_pile_up() -> None:
    """A client that subscribes to the same filter again and again and never reads."""
    world = World()
    world.connect("p").publish("t", b"x", retain=True)
    peer = world.connect("s")
    peer.block()
    for n in range(1000):
        peer.feed_packets(Subscribe(n + 1, (SubscriptionRequest("t"),)))
    assert len(peer.session.replays or ()) <= 2


def test_a_replay_ends_with_its_connection() -> None:
    world = World()
    publisher = world.connect("p")
    for n in range(2000):
        publisher.publish(f"t/{n}", b"x", retain=True)
    peer = world.connect("s")
    peer.feed_packets(Subscribe(1, (SubscriptionRequest("#"),)))
    world.broker.tick(world.now)
    peer.drop()
    assert not world.broker.dispatcher.unfinished


def test_the_replayed_delivery() -> None:
    retained = Retained(Limits())
    message = Message("t", b"x", qos=2, retain=True)
    retained.store(message)
    subscription = Subscription("t", None, 1, identifier=7)
    found = [d for d in retained.replay(subscription) if d is not None]
    assert found == [Delivery(message, 1, True, (7,))]
