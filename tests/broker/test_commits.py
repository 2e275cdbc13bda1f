"""The commit gate by itself: what leaves when, with commits that are done in any order."""

from collections.abc import Callable
from typing import Any

import pytest

from polybus.broker.ledger import Ledger
from polybus.wire.mqtt.packets import V5, V311, PubAck, Publish
from tests.session.harness import Peer, World


class Slow:
    """Commits are done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_slow = False

    def commit(self, done: Callable[[], None]) -> None:
        if self.is_slow:
            self.waiting.append(done)
        else:
            done()


def make(**settings: Any) -> tuple[World, Slow, list[Peer]]:
    journal = Slow()
    world = World(journal=journal, **settings)
    peers = [world.connect(name, V5) for name in ("a", "b")]
    journal.is_slow = True
    return world, journal, peers


def acknowledged(peer: Peer) -> list[int]:
    return [p.packet_id for p in peer.take(PubAck)]


def publish(peer: Peer, packet_id: int) -> None:
    peer.send(Publish("t", b"", 1, packet_id=packet_id))


def test_each_leaves_with_its_commit() -> None:
    world, journal, (a, b) = make()
    publish(a, 1)
    publish(b, 2)
    journal.waiting[0]()
    world.settle()
    assert (acknowledged(a), acknowledged(b)) == ([1], [])
    journal.waiting[1]()
    world.settle()
    assert (acknowledged(a), acknowledged(b)) == ([], [2])


def test_one_that_is_done_early_frees_whoever_waits_for_no_other() -> None:
    world, journal, (a, b) = make()
    publish(a, 1)
    a.feed_packets(Publish("t", b"", 1, packet_id=2))
    publish(b, 3)  # both in the second commit
    journal.waiting[1]()
    world.settle()
    assert (acknowledged(a), acknowledged(b)) == ([], [3])
    publish(b, 4)
    journal.waiting[2]()
    world.settle()
    assert acknowledged(b) == [4]
    journal.waiting[0]()
    world.settle()
    assert acknowledged(a) == [1, 2]


def test_any_order_keeps_the_order_on_a_link() -> None:
    world, journal, (a, _) = make()
    for packet_id in (1, 2, 3):
        publish(a, packet_id)
    for number in (2, 1):
        journal.waiting[number]()
        world.settle()
        assert acknowledged(a) == []
    journal.waiting[0]()
    world.settle()
    assert acknowledged(a) == [1, 2, 3]


def test_a_link_with_too_much_that_waits_is_not_read() -> None:
    """MQTT 3.1.1 has no receive maximum: a flood must not become a heap of acknowledgements."""
    world, journal, _ = make()
    flood = world.connect("flood", V311)
    sent = 0
    while not flood.port.is_paused:
        sent += 1
        flood.feed_packets(Publish("t", b"", 1, packet_id=sent % 65_535 + 1))
        assert sent < 20_000
    flood.feed_packets(Publish("t", b"", 1, packet_id=7))  # what was on its way
    while journal.waiting:
        waiting, journal.waiting = journal.waiting, []
        for done in waiting:
            done()
        world.settle()
    assert not flood.port.is_paused
    assert len(acknowledged(flood)) == sent + 1


def test_without_a_store_nothing_is_noted() -> None:
    ledger = Ledger()
    world = World(ledger=ledger)
    kept = world.connect("kept", V5, keeps=True)
    kept.subscribe("t", qos=2)
    world.connect("p", V5, keeps=True).publish("t", b"x", b"y", qos=2, retain=True)
    kept.receive_all()
    assert not ledger.is_dirty
    assert ledger.take().is_empty()
    assert (ledger.next_row, ledger.next_piece, ledger.next_session) == (1, 1, 1)


def test_who_depends_on_everything_so_far_is_not_freed_before_it() -> None:
    """What was noted in its name may be in the commit that comes next, also if that one holds nothing of it."""
    world, journal, (a, b) = make()
    world.broker._commits.follow(a.link)
    publish(b, 1)
    publish(a, 2)
    journal.waiting[1]()
    world.settle()
    assert (acknowledged(a), acknowledged(b)) == ([], [])
    publish(a, 3)
    journal.waiting[2]()
    world.settle()
    assert acknowledged(a) == []
    journal.waiting[0]()
    world.settle()
    assert (acknowledged(a), acknowledged(b)) == ([2, 3], [1])


@pytest.mark.parametrize("is_asked", [True, False], ids=["under way", "before its tick"])
def test_only_those_whose_messages_were_lost_are_told(is_asked: bool) -> None:
    world, journal, (a, b) = make()
    publish(b, 2)
    a.feed_packets(Publish("t", b"", 1, packet_id=1))
    if is_asked:
        world.settle()
    world.broker.commit_failed({"a"}, "the disk is full")
    world.settle()
    assert a.is_closed
    assert not b.is_closed
    journal.is_slow = False
    for done in journal.waiting:
        done()
    world.settle()
    assert (acknowledged(a), acknowledged(b)) == ([], [2])
