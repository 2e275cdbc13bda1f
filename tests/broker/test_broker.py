"""The tick: what is routed, committed and flushed, in which order and how often."""

from collections.abc import Callable

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.session.harness import World, check_accounts


class SlowJournal:
    """Commits that are done when the test says so."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.waiting: list[Callable[[], None]] = []

    def commit(self, done: Callable[[], None]) -> None:
        self.log.append("commit")
        self.waiting.append(done)

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()


def test_many_reads_one_tick_one_write() -> None:
    world = World()
    peer = world.connect("s")
    peer.subscribe("t")
    publishers = [world.connect(f"p{n}") for n in range(10)]
    writes, ticks = peer.port.writes, world.broker.stats.ticks
    for publisher in publishers:
        for n in range(5):
            publisher.feed_packets(Publish("t", b"%d" % n))
    world.settle()
    assert len(peer.payloads()) == 50
    assert peer.port.writes == writes + 1
    assert world.broker.stats.ticks == ticks + 1


def test_a_quiet_broker_answers_at_once() -> None:
    world = World()
    peer = world.connect("s")
    peer.subscribe("t")
    publisher = world.connect("p")
    world.now += 1
    publisher.feed_packets(Publish("t", b"x"))
    assert peer.payloads() == [b"x"], "without waiting for a tick"


def test_a_flood_between_two_ticks_does_not_gather_without_end() -> None:
    world = World()
    peer = world.connect("s")
    peer.subscribe("t", qos=0)
    publisher = world.connect("p")
    ticks = world.broker.stats.ticks
    for n in range(40):
        publisher.feed_packets(Publish("t", bytes(100_000), n % 2, packet_id=n % 2))
    assert world.broker.stats.ticks - ticks >= 3, "it did not wait for the loop"
    world.settle()
    assert len(peer.payloads()) == 40


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("count", [1, 5, 100])
def test_no_acknowledgement_overtakes_its_message(qos: int, count: int) -> None:
    """Even if the tick comes early, in the middle of a read: at the commit all is there that is promised."""
    received: list[tuple[int, int]] = []

    class Journal:
        def commit(self, done: Callable[[], None]) -> None:
            before = world.broker.stats.messages_received
            done()
            acknowledged = sum(len(frame) >> 2 for frame in publisher.link.outbox)
            received.append((before, acknowledged))

    world = World(journal=Journal())
    publisher = world.connect("p")
    sent = acknowledged = 0
    while sent < 20_000:
        publisher.feed_packets(
            *(Publish("t", bytes(100), qos, packet_id=(sent + n) % 65_535 + 1) for n in range(count))
        )
        sent += count
    for before, new in received:
        acknowledged += new
        assert acknowledged <= before


def test_an_acknowledgement_leaves_after_its_commit() -> None:
    log: list[str] = []
    journal = SlowJournal(log)
    world = World(journal=journal)
    peer = world.connect("p")
    peer.publish("t", b"x", qos=1)
    assert log == ["commit"]
    assert peer.take(PubAck) == []
    journal.finish()
    world.settle()
    assert peer.take(PubAck) == [PubAck(1)]


def test_commits_that_are_done_late_keep_the_order_of_acknowledgements() -> None:
    journal = SlowJournal([])
    world = World(journal=journal)
    peer = world.connect("p")
    for n in range(1, 6):
        peer.send(Publish("t", b"x", 1, packet_id=n))
    assert len(journal.waiting) == 5
    journal.finish()
    world.settle()
    assert peer.take(PubAck) == [PubAck(n) for n in range(1, 6)]
    assert peer.link.unacknowledged == 0


def test_a_tick_without_acknowledgements_does_not_commit() -> None:
    log: list[str] = []
    world = World(journal=SlowJournal(log))
    world.connect("p").publish("t", b"x")
    assert log == []


def test_a_subscription_takes_effect_between_what_came_before_and_after() -> None:
    """Packets of one read are handled in their order, although routing waits for the tick."""
    world = World()
    peer = world.connect("c", V5)
    peer.feed_packets(Publish("t", b"before"))
    peer.send(Subscribe(9, (SubscriptionRequest("t"),)), Publish("t", b"after"))
    packets = peer.packets()
    assert [p.payload for p in packets if isinstance(p, Publish)] == [b"after"]
    assert any(isinstance(p, SubAck) for p in packets)


def test_wills_of_many_are_routed_in_the_same_tick() -> None:
    world = World()
    peer = world.connect("s")
    peer.subscribe("will/#")
    for n in range(20):
        world.connect(f"c{n}", will=Will(f"will/{n}", b"gone"))
    for n in range(20):
        link = world.broker.registry.sessions[f"c{n}"].link
        assert link is not None
        link.on_closed(world.now)  # type: ignore[attr-defined]
    world.broker.tick(world.now)
    assert len(peer.payloads()) == 20


@pytest.mark.parametrize("version", [V311, V5])
def test_stop_tells_everyone(version: int) -> None:
    world = World()
    kept = world.connect("kept", version, keeps=True)
    kept.subscribe("t", qos=1)
    blocked = world.connect("blocked", version)
    blocked.block()
    publisher = world.connect("p", version)
    publisher.feed_packets(Publish("t", b"last", 1, packet_id=1))
    world.broker.stop()
    assert kept.payloads() == [b"last"]
    assert publisher.take(PubAck) == [PubAck(1)]
    for peer in (kept, blocked, publisher):
        assert peer.is_closed
        expected = [ReasonCode.SERVER_SHUTTING_DOWN] if version == V5 else []
        assert [p.reason_code for p in peer.take(Disconnect)] == expected
    check_accounts(world.broker)


def test_what_can_change_while_running() -> None:
    world = World()
    peer = world.connect("s", V5, keeps=True)
    peer.subscribe("t", qos=1)
    peer.drop()
    limits = Limits(queued_messages_per_session=2, retained_messages=1, topic_levels=2)
    world.broker.reconfigure(limits, Access(), shared_strategy="sticky", drop_oldest=True, queue_qos0=True)
    publisher = world.connect("p", V5)
    for n in range(4):
        publisher.publish("t", b"%d" % n, qos=1)
    back = world.connect("s", V5, keeps=True, clean_start=False)
    assert [p.payload for p in back.receive_all()] == [b"2", b"3"]
    publisher.publish("a", b"x", retain=True)
    publisher.publish("b", b"x", retain=True)
    assert world.broker.retained.count == 1
    assert world.broker.stats.dropped_retained == 1
    publisher.publish("a/b/c", b"x")
    assert publisher.is_closed


def test_the_broker_itself_may_publish() -> None:
    world = World()
    peer = world.connect("s", V5)
    peer.subscribe("$SYS/#", no_local=True)
    broker = world.broker
    broker.publish(broker.subscriptions.route_of("$SYS/x"), Message("$SYS/x", b"1", retain=True))
    broker.tick(world.now)
    assert peer.payloads() == [b"1"]
    assert broker.retained.get("$SYS/x") is not None
