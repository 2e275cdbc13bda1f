"""Sessions: taken over, kept for as long as they asked, ended; and their wills."""

import pytest

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import V5, V311, ConnAck, Disconnect, Properties, Publish, ReasonCode, Will
from tests.session.harness import Peer, World, check_accounts, connect_packet

WILL = Will("will", b"gone")


def late(seconds: int, **more: int) -> Will:
    return Will("will", b"gone", properties=Properties(will_delay_s=seconds, **more))


def watcher(world: World) -> Peer:
    peer = world.connect("watcher", V5)
    peer.subscribe("will")
    return peer


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("clean_start", [False, True])
def test_takeover(version: int, keeps: bool, clean_start: bool) -> None:
    world = World()
    old = world.connect("c", version, keeps=keeps)
    old.subscribe("t", qos=1)
    new = world.open(version)
    new.send(connect_packet("c", version, clean_start=clean_start, keeps=keeps and not clean_start))
    present = keeps and not clean_start
    assert [p.session_present for p in new.take(ConnAck)] == [present]
    assert old.is_closed
    reasons = [p.reason_code for p in old.take(Disconnect)]
    assert reasons == ([ReasonCode.SESSION_TAKEN_OVER] if version == V5 else [])
    assert world.broker.subscriptions.count == int(present)
    old.drop()  # the transport's own end comes later and changes nothing
    assert world.broker.registry.connected == 1
    assert not new.is_closed
    check_accounts(world.broker)


def test_a_taken_over_client_publishes_its_will_unless_it_may_be_back_in_time() -> None:
    world = World()
    watching = watcher(world)
    world.connect("c", V5, keeps=True, will=WILL)
    world.connect("c", V5, keeps=True, clean_start=False, will=late(10))
    assert watching.payloads() == [b"gone"]
    world.connect("c", V5, keeps=True, clean_start=False)
    world.advance(100)
    assert watching.payloads() == []


def test_a_session_ends_when_its_time_is_over() -> None:
    world = World()
    peer = world.connect("c", V5, session_expiry_s=10)
    peer.subscribe("t", qos=1)
    peer.drop()
    world.connect("p").publish("t", b"x", qos=1)
    assert world.broker.dispatcher.holdings.size_bytes > 0
    world.advance(9.9)
    assert "c" in world.broker.registry.sessions
    world.advance(0.1)
    assert "c" not in world.broker.registry.sessions
    assert world.broker.dispatcher.holdings.size_bytes == 0
    assert world.broker.stats.sessions_expired == 1
    assert world.broker.stats.dropped_no_session == 1
    check_accounts(world.broker)


def test_coming_back_stops_the_clock() -> None:
    world = World()
    for _ in range(5):
        world.connect("c", V5, clean_start=False, session_expiry_s=10).drop()
        world.advance(6)
    assert "c" in world.broker.registry.sessions
    peer = world.connect("c", V5, clean_start=False, session_expiry_s=10)
    world.advance(1000)
    assert not peer.is_closed
    assert len(world.broker.timers._targets) == 0


def test_expiry_is_bounded_by_the_limit() -> None:
    world = World(Limits(session_expiry_s=50))
    world.connect("c", V5, session_expiry_s=0xFFFFFFFF).drop()
    world.connect("d", V311, keeps=True).drop()
    world.advance(51)
    assert not world.broker.registry.sessions


def test_a_disconnect_may_change_the_expiry() -> None:
    world = World()
    world.connect("c", V5, session_expiry_s=10).send(Disconnect(0, Properties(session_expiry_s=100)))
    world.advance(50)
    assert "c" in world.broker.registry.sessions
    world.connect("c", V5, session_expiry_s=10).send(Disconnect(0, Properties(session_expiry_s=0)))
    assert "c" not in world.broker.registry.sessions


@pytest.mark.parametrize(
    ("delay", "expiry", "due"), [(0, 0, 0), (0, 60, 0), (10, 60, 10), (60, 10, 10), (5, 0, 0)]
)
def test_a_will_comes_after_its_delay_or_with_the_end_of_the_session(delay: int, expiry: int, due: int) -> None:
    world = World()
    watching = watcher(world)
    world.connect("c", V5, session_expiry_s=expiry, will=late(delay)).drop()
    if due:
        world.advance(due - 0.1)
        assert watching.payloads() == []
        world.advance(0.1)
    assert watching.payloads() == [b"gone"]
    world.advance(1000)
    assert watching.payloads() == []


def test_a_will_is_not_sent_after_a_goodbye_or_a_return() -> None:
    world = World()
    watching = watcher(world)
    world.connect("c", V5, keeps=True, will=late(10)).send(Disconnect())
    world.connect("d", V5, keeps=True, will=late(10)).drop()
    world.connect("d", V5, keeps=True, clean_start=False)
    world.advance(100)
    assert watching.payloads() == []
    world.connect("e", V5, will=WILL).send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL))
    assert watching.payloads() == [b"gone"]


def test_a_delayed_will_counts_its_expiry_from_its_publication() -> None:
    world = World()
    kept = world.connect("watcher", V5, keeps=True)
    kept.subscribe("will", qos=1)
    kept.drop()
    will = Will("will", b"gone", 1, properties=Properties(will_delay_s=10, message_expiry_s=20))
    world.connect("c", V5, keeps=True, will=will).drop()
    world.advance(15)
    back = world.connect("watcher", V5, keeps=True, clean_start=False)
    got = back.receive_all()
    assert [p.properties.message_expiry_s for p in got] == [15]


def test_clean_start_ends_the_old_session_and_publishes_its_waiting_will() -> None:
    world = World()
    watching = watcher(world)
    world.connect("c", V5, keeps=True, will=late(10)).drop()
    world.connect("c", V5)
    assert watching.payloads() == [b"gone"]


def test_a_limit_of_sessions() -> None:
    world = World(Limits(sessions=2))
    world.connect("a", V5, keeps=True).drop()
    world.connect("b", V5, keeps=True)
    refused = world.open(V5)
    refused.send(connect_packet("c", V5))
    assert [p.reason_code for p in refused.take(ConnAck)] == [ReasonCode.QUOTA_EXCEEDED]
    world.connect("a", V5, keeps=True)


def test_a_session_that_ends_gets_nothing_more() -> None:
    """Published just before the session's timer fires, routed after it: nothing may be left behind."""
    world = World()
    peer = world.connect("c", V5, session_expiry_s=10)
    peer.subscribe("t", qos=1)
    peer.drop()
    publisher = world.connect("p", V5)
    world.now += 10
    world.broker.tick(world.now)
    publisher.feed_packets(*(Publish("t", b"x", 1, packet_id=n) for n in (1, 2, 3)))
    world.broker.run_timers(world.now)
    world.settle()
    assert "c" not in world.broker.registry.sessions
    check_accounts(world.broker)
