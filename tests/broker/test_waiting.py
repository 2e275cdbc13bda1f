"""Messages that wait for a subscriber (TB-09), and priority when a link is full (TB-11)."""

import pytest

from polybus.broker.limits import Limits
from polybus.broker.sessions import Subscription
from polybus.wire.mqtt.packets import V5
from tests.broker.bus import Bus, Got


@pytest.mark.parametrize("path", ["a/b", "a/+", "#"])
def test_messages_wait_for_a_subscriber_in_their_order(path: str) -> None:
    bus = Bus()
    publisher = bus.join("p")
    for n, priority in enumerate((False, True, False, True)):
        publisher.publish("a/b", b"%d" % n, priority=priority, waits_s=100)
    publisher.publish("a/b", b"not this one")
    publisher.publish("x/y/z", b"elsewhere", waits_s=100)
    assert bus.broker.storage.count == 5
    first, second = bus.join("f"), bus.join("s")
    first.subscribe(path)
    second.subscribe("#")
    elsewhere = [b"elsewhere"]
    assert first.payloads() == [b"1", b"3", b"0", b"2"] + (elsewhere if path == "#" else [])
    assert second.payloads() == ([] if path == "#" else elsewhere), "the first subscriber had the others"
    bus.check_empty()


def test_a_second_protocol_gets_what_waited() -> None:
    bus = Bus()
    publisher = bus.join("p")
    for n in range(3):
        publisher.publish("t", b"%d" % n, waits_s=100)
    mqtt = bus.connect("m", V5)
    mqtt.subscribe("#", qos=1)
    assert [p.payload for p in mqtt.receive_all()] == [b"0", b"1", b"2"]
    mqtt.drop()
    publisher.publish("t", b"3", waits_s=100)
    assert bus.join("plain").payloads() == []
    late = bus.join("late")
    late.subscribe("t")
    assert late.payloads() == [b"3"]
    bus.check_empty()


def test_with_someone_there_nothing_waits() -> None:
    bus = Bus()
    publisher, subscriber = bus.join("p"), bus.join("s")
    subscriber.subscribe("t")
    publisher.publish("t", b"1", waits_s=100)
    assert subscriber.payloads() == [b"1"]
    subscriber.block()
    publisher.publish("t", b"2", waits_s=100)
    subscriber.unblock()
    assert subscriber.payloads() == [b"2"]
    bus.check_empty()


def test_messages_wait_for_who_comes_back() -> None:
    """A subscription whose client is away gets QoS 0 messages only if they wait."""
    bus = Bus()
    publisher, subscriber = bus.join("p"), bus.join("s", keeps_s=1000)
    subscriber.subscribe("t")
    subscriber.drop()
    publisher.publish("t", b"lost")
    publisher.publish("t", b"kept", waits_s=100)
    assert bus.broker.storage.count == 1
    assert bus.join("s", keeps_s=1000).payloads() == [b"kept"]
    assert bus.broker.storage.count == 0


def test_messages_for_a_queue_need_no_storage() -> None:
    bus = Bus()
    publisher, subscriber = bus.join("p"), bus.join("s", keeps_s=1000)
    subscriber.subscribe("t", qos=1)
    subscriber.drop()
    publisher.publish("t", b"queued", waits_s=100, qos=1)
    assert bus.broker.storage.count == 0
    assert bus.join("s", keeps_s=1000).payloads() == [b"queued"]


def test_messages_expire() -> None:
    bus = Bus()
    publisher = bus.join("p")
    for seconds in (10, 20):
        publisher.publish("t", b"%d" % seconds, waits_s=seconds)
    bus.advance(10)
    bus.check()
    subscriber = bus.join("s")
    subscriber.subscribe("t")
    assert subscriber.payloads() == [b"20"]
    assert bus.broker.stats.dropped_expired == 1
    bus.check_empty()


def test_messages_are_discarded_for_requests_and_not_the_other_way() -> None:
    bus = Bus(Limits(stored_messages=3))
    peer = bus.join("p")
    peer.publish("m", b"regular", waits_s=100)
    peer.publish("m", b"urgent", waits_s=100, priority=True)
    peer.request("t", b"0", timeout_s=100)
    peer.request("t", b"1", timeout_s=100)
    peer.publish("m", b"regular again", waits_s=100)
    bus.check()
    assert bus.broker.stats.stored_discarded == 2
    peer.request("t", b"2", timeout_s=100)
    peer.publish("m", b"urgent again", waits_s=100, priority=True)
    assert bus.broker.stats.stored_discarded == 4
    assert peer.frames() == []
    subscriber = bus.service("s", "#", at_once=9)
    assert subscriber.asked() == [b"0", b"1", b"2"]
    assert subscriber.payloads() == []
    bus.check()


def test_who_does_not_want_its_own_messages_does_not_take_them_from_storage() -> None:
    bus = Bus()
    peer, other = bus.join("p"), bus.join("o")
    peer.publish("t", b"own", waits_s=100)
    other.publish("t", b"of others", waits_s=100)
    bus.broker.subscribe(peer.mine, "t", Subscription("t", None, 0, no_local=True))
    bus.go()
    assert peer.payloads() == [b"of others"]
    peer.publish("t", b"own again", waits_s=100)
    assert peer.payloads() == []
    other.subscribe("#")
    assert other.payloads() == [b"own", b"own again"]
    bus.check_empty()


# -- priority when a link is full (TB-11) ------------------------------------------------------------


def test_urgent_before_unsent() -> None:
    bus = Bus()
    subscriber, publisher = bus.join("s"), bus.join("p")
    subscriber.subscribe("t")
    subscriber.block()
    for n, priority in enumerate((False, True, False, True)):
        publisher.publish("t", b"%d" % n, priority=priority)
        bus.check()
    assert subscriber.frames() == []
    subscriber.unblock()
    assert subscriber.payloads() == [b"1", b"3", b"0", b"2"]
    assert bus.broker.dispatcher.backlog_bytes == 0


def test_regular_messages_are_dropped_first() -> None:
    bus = Bus(Limits(outbox_bytes_per_connection=2000))
    subscriber, publisher = bus.join("s"), bus.join("p")
    subscriber.subscribe("t")
    subscriber.block()
    for n in range(20):
        publisher.publish("t", b"r%d" % n)
        bus.check()
    fits = 20 - subscriber.messages_dropped
    assert 4 < fits < 20
    for n in range(fits):
        publisher.publish("t", b"p%d" % n, priority=True)
        assert subscriber.backlog_bytes <= 2000
        bus.check()
    for n in range(10):
        publisher.publish("t", b"p%d" % (fits + n), priority=True)
    subscriber.unblock()
    got = [payload.decode() for payload in subscriber.payloads()]
    urgent = [name for name in got if name[0] == "p"]
    regular = [name for name in got if name[0] == "r"]
    assert got == urgent + regular
    assert urgent == [f"p{n}" for n in range(len(urgent))]
    assert len(urgent) >= fits - 1, "each took the place of a regular one"
    assert regular == [f"r{n}" for n in range(fits - len(regular), fits)], "the oldest were dropped"
    assert len(got) + subscriber.messages_dropped == 20 + fits + 10


def test_memory_is_freed_of_regular_messages_first() -> None:
    bus = Bus()
    publisher = bus.join("p")
    slow = [bus.join(name) for name in "ab"]
    for peer in slow:
        peer.subscribe("t")
        peer.block()
    publisher.publish("t", b"regular")
    publisher.publish("t", b"urgent", priority=True)
    dispatcher = bus.broker.dispatcher
    half = dispatcher.backlog_bytes // 2
    dispatcher.relieve(half - 100)
    for peer in slow:
        assert (peer.unsent, [len(peer.urgent or ())]) == (None, [1])
    dispatcher.relieve(1)
    assert sorted(len(peer.urgent or ()) for peer in slow) == [0, 1]
    bus.check()
    dispatcher.relieve(1)
    assert dispatcher.backlog_bytes == 0
    assert bus.broker.stats.dropped_memory == 4
    for peer in slow:
        peer.unblock()
        assert peer.take(Got) == []
