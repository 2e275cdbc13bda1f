"""Filters and topics built to be slow, through the real session code: work is counted, not timed."""

import pytest

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import V5, V311, Publish, ReasonCode
from tests.broker.test_tree import all_nodes, count_steps
from tests.session.harness import World

DEEP = "/" * 65_534


@pytest.mark.parametrize("text", [DEEP, "+/" * 32_767 + "#", "+/" * 200 + "a"])
def test_deep_filters_are_refused_before_they_reach_the_tree(text: str) -> None:
    world = World()
    assert world.connect("c", V5).subscribe(text) == (ReasonCode.TOPIC_FILTER_INVALID,)
    assert world.broker.subscriptions._filters._root.children is None


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("retain", [False, True])
def test_deep_topics_are_refused_before_they_reach_the_cache(qos: int, retain: bool) -> None:
    world = World()
    peer = world.connect("c", V5)
    peer.publish(DEEP, b"x", qos=qos, retain=retain)
    assert peer.is_closed
    assert not world.broker.subscriptions.routes
    assert world.broker.retained.count == 0


def test_every_mix_of_wildcards_costs_each_node_once() -> None:
    """1,023 filters of `a`, `+` and `#` over nine levels, and a topic that they all match."""
    world = World()
    peer = world.connect("c", V311)
    filters = []
    for depth in range(10):
        for number in range(1 << depth):
            levels = ["+" if number >> bit & 1 else "a" for bit in range(depth)]
            filters.append("/".join([*levels, "#"]))
    for at in range(0, len(filters), 100):
        peer.subscribe(*filters[at : at + 100])
    tree = world.broker.subscriptions._filters
    nodes = sum(1 for _ in all_nodes(tree))
    counter = count_steps(tree)
    publisher = world.connect("p", V311)
    for n in range(50):
        publisher.publish("/".join("a" * 10), b"%d" % n)
    assert len(peer.take(Publish)) == 50, "one copy each"
    assert counter.steps <= 3 * nodes, "and the tree is asked once, not fifty times"


def test_a_changed_wildcard_visits_only_cached_names() -> None:
    world = World(Limits(topic_levels=128))
    publisher = world.connect("p")
    for n in range(500):
        publisher.publish(f"{n}/" + "x/" * 20 + "end", b"")
    names = world.broker.subscriptions._names
    nodes = sum(1 for _ in all_nodes(names))
    counter = count_steps(names)
    peer = world.connect("c")
    for topic_filter in ("+/" * 126 + "#", "#", "+/+/+/nothing", "+/" * 21 + "end"):
        counter.steps = 0
        peer.subscribe(topic_filter)
        assert counter.steps <= 2 * nodes
