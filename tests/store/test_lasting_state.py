"""What else outlives the broker: subscriptions, retained and stored messages, wills, requests; and clocks that
run on while nobody serves (OP-01)."""

from pathlib import Path

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.wire.mqtt.packets import V5, V311, Disconnect, Properties, Publish, Will
from tests.broker.books import check_requests
from tests.broker.bus import one
from tests.session.harness import check_accounts
from tests.store.lasting import LastingWorld


@pytest.fixture
def world(tmp_path: Path) -> LastingWorld:
    return LastingWorld(tmp_path)


# -- sessions ---------------------------------------------------------------------------------------------


def test_subscriptions_with_all_they_say(world: LastingWorld) -> None:
    peer = world.connect("s", V5, keeps=True)
    peer.subscribe("a/+", qos=2, identifier=7, no_local=True, retain_as_published=True)
    peer.subscribe("$share/g/b", qos=1)
    peer.subscribe("gone", qos=1)
    peer.unsubscribe("gone")
    before = peer.session.subscriptions
    world = world.kill()
    assert world.broker.registry.sessions["s"].subscriptions == before
    assert world.broker.subscriptions.count == 2
    back = world.connect("s", V5, clean_start=False, keeps=True)
    publisher = world.connect("p", V5)
    publisher.publish("a/x", b"r", qos=1, retain=True)
    publisher.publish("b", b"shared", qos=1)
    first, second = back.receive_all()
    assert (first.payload, first.retain, first.properties.subscription_identifiers) == (b"r", True, (7,))
    assert second.payload == b"shared"


def test_a_session_expires_while_nobody_serves(world: LastingWorld) -> None:
    for name, expiry_s in (("short", 10), ("long", 1000)):
        peer = world.connect(name, V5, keeps=True, session_expiry_s=expiry_s)
        peer.subscribe("t", qos=1)
        peer.drop()
    world.connect("p", V5).publish("t", b"x", qos=1)
    world.flush()
    world = world.kill(downtime_s=20)
    assert world.broker.stats.sessions_expired == 1
    assert list(world.broker.registry.sessions) == ["long"]
    world.flush()
    world = world.kill()
    assert (world.restored.sessions, world.restored.messages) == (1, 1)
    world = world.kill(downtime_s=1000)
    assert world.broker.registry.sessions == {}
    check_accounts(world.broker)
    world.flush()
    world = world.kill()
    assert (world.restored.sessions, world.restored.messages, world.restored.subscriptions) == (0, 0, 0)


def test_who_was_connected_at_the_end_was_there_until_the_last_stamp(world: LastingWorld) -> None:
    world.connect("s", V5, keeps=True, session_expiry_s=60)
    world.advance(100)
    world.stamp()
    world.flush()
    world.advance(30)
    world = world.kill(downtime_s=20)
    assert "s" in world.broker.registry.sessions
    world.flush()
    world.stamp()  # someone else's connection says nothing about this one
    world.flush()
    world = world.kill(downtime_s=15)
    assert "s" not in world.broker.registry.sessions


def test_a_session_that_is_not_to_be_kept_leaves_nothing(world: LastingWorld) -> None:
    peer = world.connect("s", V5)
    peer.subscribe("t", qos=1)
    world.connect("p", V5).publish("t", b"x", qos=1)
    kept = world.connect("k", V5, keeps=True)
    kept.subscribe("t", qos=1)
    kept.send(Disconnect(properties=Properties(session_expiry_s=0)))
    world.flush()
    world = world.kill()
    assert world.restored.sessions == world.restored.messages == 0


# -- messages ----------------------------------------------------------------------------------------------


def test_what_expires_meanwhile_is_dropped_and_counted(world: LastingWorld) -> None:
    away = world.connect("s", V5, keeps=True)
    away.subscribe("t", qos=1)
    away.drop()
    publisher = world.connect("p", V5)
    for payload, expiry_s in ((b"short", 10), (b"long", 100)):
        packet = Publish("t", payload, 1, packet_id=1, properties=Properties(message_expiry_s=expiry_s))
        publisher.send(packet)
        publisher.send(Publish(f"r/{expiry_s}", b"x", 1, True, packet_id=1, properties=packet.properties))
    world = world.kill(downtime_s=40)
    assert world.restored.expired == world.broker.stats.dropped_expired == 2
    back = world.connect("s", V5, clean_start=False, keeps=True)
    [message] = back.receive_all()
    assert (message.payload, message.properties.message_expiry_s) == (b"long", 60)
    back.subscribe("r/#", qos=1)
    assert [p.topic for p in back.receive_all()] == ["r/100"]
    world.flush()
    world = world.kill()
    assert (world.restored.retained, world.restored.messages, world.restored.expired) == (1, 0, 0)


def test_what_expires_in_a_queue_may_be_in_flight_elsewhere(world: LastingWorld) -> None:
    """It has expired for those who wait for it; who was sent it may still ask for it again."""
    connected = world.connect("connected", V5, keeps=True)
    away = world.connect("away", V5, keeps=True)
    for peer in (connected, away):
        peer.subscribe("t", qos=1)
    away.drop()
    world.connect("p", V5).publish("t", b"x", qos=1, properties=Properties(message_expiry_s=10))
    world = world.kill(downtime_s=20)
    assert (world.restored.messages, world.restored.expired) == (2, 1)
    world.flush()
    world = world.kill()
    assert (world.restored.messages, world.restored.expired) == (1, 0)
    check_accounts(world.broker)
    back = world.connect("connected", V5, clean_start=False, keeps=True)
    assert [(p.payload, p.dup) for p in back.receive_all()] == [(b"x", True)]
    world.flush()
    assert world.kill().restored.messages == 0


def test_retained_messages_last_wins(world: LastingWorld) -> None:
    publisher = world.connect("p", V5)
    for topic, payloads in {"a": [b"1", b"2"], "b": [b"1", b""], "c": [b"1"]}.items():
        for payload in payloads:
            publisher.publish(topic, payload, qos=1, retain=True)
    world.broker.publish(world.broker.subscriptions.route_of("$SYS/x"), Message("$SYS/x", b"1", retain=True))
    world = world.kill()
    assert world.restored.retained == 2
    subscriber = world.connect("s", V5)
    subscriber.subscribe("#", "$SYS/#")
    assert sorted((p.topic, p.payload) for p in subscriber.take(Publish)) == [("a", b"2"), ("c", b"1")]


def test_all_that_a_message_says(world: LastingWorld) -> None:
    away = world.connect("s", V5, keeps=True)
    away.subscribe("t", qos=1)
    away.drop()
    said = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\0\1",
        user_properties=(("a", "1"), ("a", "2")),
    )
    publisher = world.connect("p", V5)
    publisher.send(Publish("t", b"x", 1, packet_id=1, properties=said))
    world = world.kill()
    back = world.connect("s", V5, clean_start=False, keeps=True)
    [message] = back.receive_all()
    assert message.properties == said


def test_a_payload_for_many_is_stored_once(world: LastingWorld) -> None:
    for number in range(50):
        peer = world.connect(f"s{number}", V5, keeps=True)
        peer.subscribe("t", qos=1)
        peer.drop()
    world.connect("p", V5).publish("t", b"x" * 10_000, qos=1)
    world.connect("q", V311).publish("t", b"y", b"z", qos=1)
    world.flush()
    db = world.file._db
    assert db.execute("SELECT count(*) FROM deliveries").fetchone() == (100,)
    assert db.execute("SELECT count(*) FROM pieces").fetchone() == (2,)
    for number in range(50):
        back = world.connect(f"s{number}", V5, clean_start=False, keeps=True)
        assert len(back.receive_all()) == 3
    world.flush()
    assert db.execute("SELECT count(*) FROM pieces").fetchone() == (0,)


def test_priority_is_still_first(world: LastingWorld) -> None:
    away = world.join("s", keeps_s=100)
    away.subscribe("t", qos=1)
    away.drop()
    publisher = world.join("p")
    publisher.publish("t", b"regular", qos=1)
    publisher.publish("t", b"urgent", qos=1, priority=True)
    world.flush()
    world = world.kill()
    assert world.join("s", keeps_s=100).payloads() == [b"urgent", b"regular"]


def test_messages_that_wait_for_a_subscriber(world: LastingWorld) -> None:
    publisher = world.join("p")
    publisher.publish("t", b"short", waits_s=10)
    publisher.publish("t", b"long", waits_s=100)
    world.flush()
    world = world.kill(downtime_s=20)
    assert world.broker.storage.count == 1
    subscriber = world.join("s")
    subscriber.subscribe("t")
    assert subscriber.payloads() == [b"long"]
    world.flush()
    assert world.kill().restored.stored == 0


def test_stored_messages_for_which_there_is_no_room_any_more(world: LastingWorld) -> None:
    publisher = world.join("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, waits_s=100)
    world.flush()
    world.file.close()
    world = LastingWorld(world.folder, Limits(stored_messages=2))
    assert world.broker.storage.count == 2
    world.flush()
    world = world.kill()
    assert world.restored.stored == 2
    subscriber = world.join("s")
    subscriber.subscribe("t")
    assert subscriber.payloads() == [b"3", b"4"]


# -- wills ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("downtime_s", "comes_back", "is_published"), [(5, False, False), (5, True, False), (20, False, True)]
)
def test_a_will_with_a_delay(
    world: LastingWorld, downtime_s: float, comes_back: bool, is_published: bool
) -> None:
    watcher = world.connect("w", V5, keeps=True)
    watcher.subscribe("will", qos=1)
    watcher.drop()
    will = Will("will", b"gone", 1, properties=Properties(will_delay_s=10))
    world.connect("s", V5, keeps=True, will=will).drop()
    world.flush()
    world = world.kill(downtime_s)
    if comes_back:
        world.connect("s", V5, clean_start=False, keeps=True)
        world.advance(20)
    back = world.connect("w", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == ([b"gone"] if is_published else [])
    if not comes_back and not is_published:
        world.advance(6)
        assert [p.payload for p in back.receive_all()] == [b"gone"]
    world.flush()
    world = world.kill()
    back = world.connect("w", V5, clean_start=False, keeps=True)
    world.advance(100)
    assert back.receive_all() == []  # once


def test_whose_connection_died_with_the_broker_has_its_will(world: LastingWorld) -> None:
    watcher = world.connect("w", V5, keeps=True)
    watcher.subscribe("will", qos=1)
    world.connect("s", V5, keeps=True, will=Will("will", b"gone", 1))
    world = world.kill()
    back = world.connect("w", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"gone"]


# -- requests ------------------------------------------------------------------------------------------


def test_a_request_that_waits_for_a_service(world: LastingWorld) -> None:
    world.join("asker").request("sums", b"1+1", packet_id=7, timeout_s=100)
    world.flush()
    world = world.kill(downtime_s=10)
    check_requests(world.broker)
    service = world.service("service", "sums")
    asked = one(service)
    assert (asked.requester, asked.packet_id, asked.payload) == ("asker", 7, b"1+1")
    assert round(asked.left_s) == 90
    service.answer(asked, b"2")
    world.flush()
    world = world.kill()  # the answer waits for its requester
    assert world.join("asker").ends() == [("ANSWERED", b"2")]
    world.flush()
    assert world.kill().restored.requests == 0


def test_a_request_in_a_services_hands_is_given_out_again(world: LastingWorld) -> None:
    service, asker = world.service("service", "sums"), world.join("asker")
    asker.request("sums", b"1+1", packet_id=7, timeout_s=100)
    stale = one(service)
    world.flush()
    world = world.kill()
    again = world.service("service", "sums")
    asked = one(again)
    assert asked.payload == b"1+1"
    asker = world.join("asker")
    asker.request("sums", b"1+1", packet_id=7, timeout_s=100)  # sent again: it is the same one
    assert again.asked() == []
    assert again.answer(asked, b"2")
    assert asker.ends() == [("ANSWERED", b"2")]
    asker.request("sums", b"3+3", packet_id=8, timeout_s=100)
    assert one(again).serial > stale.serial + 1000  # no number is given twice


def test_a_request_that_timed_out_while_nobody_served(world: LastingWorld) -> None:
    asker = world.join("asker")
    asker.request("sums", b"1+1", timeout_s=10)
    asker.request("sums", b"2+2", timeout_s=100)
    world.flush()
    world = world.kill(downtime_s=20)
    assert world.join("asker").ends() == [("TIMED_OUT", b"")]
    world.flush()
    world = world.kill()
    assert world.restored.requests == 1


def test_an_end_waits_for_its_requester_as_long_as_it_would_have(world: LastingWorld) -> None:
    service, asker = world.service("service", "sums"), world.join("asker")
    for packet_id in (1, 2):
        asker.request("sums", b"1+1", packet_id=packet_id, timeout_s=10_000)
        asked = one(service)
        if packet_id == 2:
            asker.drop()
        service.fail(asked, "no idea")
    assert [end.reason for end in asker.take_ends("ERROR")] == ["no idea"]
    world.flush()
    kept_s = world.broker.limits.request_ends_kept_s
    world = world.kill(downtime_s=kept_s / 2)
    world.flush()
    world = world.kill(downtime_s=kept_s / 3)
    [end] = world.join("asker").take_ends("ERROR")
    assert (end.packet_id, end.reason) == (2, "no idea")
    world.flush()
    assert world.kill().restored.requests == 0


def test_an_end_that_waited_too_long(world: LastingWorld) -> None:
    service, asker = world.service("service", "sums"), world.join("asker")
    asker.request("sums", b"1+1", timeout_s=10_000)
    asked = one(service)
    asker.drop()
    service.fail(asked, "no idea")
    world.flush()
    world = world.kill(downtime_s=world.broker.limits.request_ends_kept_s + 1)
    assert world.join("asker").ends() == []
    world.flush()
    assert world.kill().restored.requests == 0


def test_a_request_that_may_not_wait_ends_with_the_broker(world: LastingWorld) -> None:
    world.service("service", "sums")
    world.join("asker").request("sums", b"1+1")
    world.flush()
    assert world.kill().restored.requests == 0


def test_requests_for_which_there_is_no_room_any_more(world: LastingWorld) -> None:
    asker = world.join("asker")
    for packet_id in (1, 2, 3):
        asker.request("sums", b"1+1", packet_id=packet_id, timeout_s=100)
    world.flush()
    world.file.close()
    world = LastingWorld(world.folder, Limits(stored_messages=2))
    check_requests(world.broker)
    [end] = world.join("asker").take_ends("DELETED")
    assert end.packet_id == 1
    world.flush()
    assert world.kill().restored.requests == 2


def test_canceling_after_a_restart(world: LastingWorld) -> None:
    world.join("asker").request("sums", b"1+1", packet_id=7, timeout_s=100)
    world.flush()
    world = world.kill()
    asker = world.join("asker")
    assert asker.cancel(7)
    assert asker.ends() == [("CANCELED", b"")]
    world.flush()
    assert world.kill().restored.requests == 0


def test_outcomes_as_messages_to_kept_sessions(world: LastingWorld) -> None:
    """The answer goes over from the request to the session, in one commit."""
    service = world.service("service", "sums")
    asker = world.join("asker", keeps_s=100)
    asker.ends_qos = 1
    asker.request("sums", b"1+1", timeout_s=100)
    service.answer(one(service), b"2")
    assert asker.ends() == [("ANSWERED", b"2")]
    world.flush()
    world = world.kill()
    assert (world.restored.requests, world.restored.messages) == (0, 1)
    assert world.join("asker", keeps_s=100).ends() == [("ANSWERED", b"2")]
