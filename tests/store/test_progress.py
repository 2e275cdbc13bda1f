"""How far each exchange had come when the broker was killed: packet ids, parts of runs, promises to a client
that came back (OP-01)."""

from pathlib import Path

import pytest

from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from tests.session.harness import check_accounts, connect_packet
from tests.store.lasting import LastingWorld

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


@pytest.fixture
def world(tmp_path: Path) -> LastingWorld:
    return LastingWorld(tmp_path)


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waited_keeps_the_packet_id_it_was_sent_under(world: LastingWorld, version: int, qos: int) -> None:
    """Under another one a client would take it for another message: QoS 2 would come twice."""
    world.connect("s", version, keeps=True).subscribe("t", qos=qos)
    world.broker.registry.sessions["s"].next_id = 7
    world = world.kill()
    world.connect("p", version).publish("t", b"1", b"2", qos=qos)
    world = world.kill()  # they wait in the file
    back = world.connect("s", version, clean_start=False, keeps=True)
    sent = back.take(Publish)
    assert [(p.payload, p.dup) for p in sent] == [(b"1", False), (b"2", False)]
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    world.connect("p", version).publish("t", b"3", qos=qos)
    again = world.connect("s", version, clean_start=False, keeps=True).take(Publish)
    assert [(p.payload, p.packet_id, p.dup) for p in again[:2]] == [
        (p.payload, p.packet_id, True) for p in sent
    ]
    assert [(p.payload, p.dup) for p in again[2:]] == [(b"3", False)]


def test_the_order_in_which_they_were_sent(world: LastingWorld) -> None:
    """[MQTT-4.6.0-1] also if what waited went out behind what did not."""
    subscriber = world.connect("s", V5, keeps=True, receive_maximum=2)
    subscriber.subscribe("t", qos=2)
    world.connect("p", V5).publish("t", b"1", b"2", b"3", qos=2)
    first, second = subscriber.take(Publish)
    subscriber.send(PubRec(second.packet_id))
    subscriber.send(PubComp(second.packet_id))
    [third] = subscriber.take(Publish)
    world.flush()
    world = world.kill()
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.take(Publish)] == [first.payload, third.payload]


@pytest.mark.parametrize("settled", [0, 1, 3, 4, 6, 8])
def test_a_run_in_parts(world: LastingWorld, settled: int) -> None:
    """A client with a narrow window takes a run piece by piece; whatever is left comes after a restart."""
    world.connect("s", V5, keeps=True).subscribe("t", qos=1)
    world = world.kill()
    payloads = [b"%d" % n for n in range(9)]
    world.connect("p", V5).publish("t", *payloads, qos=1)
    world.flush()
    world.connect("other", V5, keeps=True).subscribe("t", qos=1)
    narrow = world.connect("s", V5, clean_start=False, keeps=True, receive_maximum=3)
    got: list[Publish] = []
    for _ in range(settled):
        got += narrow.take(Publish)
        narrow.send(PubAck(got.pop(0).packet_id))
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    back = world.connect("s", V5, clean_start=False, keeps=True)
    left = [p.payload for p in back.receive_all()]
    # Those that were sent together with one that is not acknowledged may come again.
    assert left[-(9 - settled) :] == payloads[settled:]
    assert left == payloads[-len(left) :]
    assert len(left) <= 9 - settled // 3 * 3
    world.flush()
    assert world.kill().restored.messages == 0


def test_who_comes_back_was_there_until_now(world: LastingWorld) -> None:
    """Nobody was connected for a while, and the broker is killed before it says again who is."""
    world.connect("s", V5, session_expiry_s=100).subscribe("t", qos=1)
    world.connect("s", V5, clean_start=False, session_expiry_s=100).drop()
    world.advance(90)
    world.connect("s", V5, clean_start=False, session_expiry_s=100)
    world = world.kill(downtime_s=50)
    assert "s" in world.broker.registry.sessions
    world.advance(40)
    assert "s" in world.broker.registry.sessions
    world.advance(20)
    assert "s" not in world.broker.registry.sessions


def test_a_promise_of_the_connection_before_waits_for_its_commit(world: LastingWorld) -> None:
    """The client comes back while the disk is in trouble, so it is let in; but what it sent before is not safe
    yet, and it must not be told so."""
    world.connect("s", V5, keeps=True).subscribe("t", qos=2)
    publisher = world.connect("p", V5, keeps=True)
    world.disk.is_slow = True
    world.stamp()
    world.advance(1)
    assert world.disk.is_writing
    publisher.send(Publish("t", b"x", 2, packet_id=5))
    publisher.drop()
    world.broker.set_trouble("disk full")
    back = world.connect("p", V5, clean_start=False, keeps=True)
    world.broker.set_trouble("")
    world.disk.write()  # what was under way before; the rest is being written now
    world.settle()
    assert world.disk.is_writing
    back.send(Publish("t", b"x", 2, dup=True, packet_id=5))
    assert back.take(PubRec) == []
    world.disk.write()
    world.settle()
    assert [p.packet_id for p in back.take(PubRec)] == [5]
    back.send(PubRel(5))
    world.flush()
    world = world.kill()
    again = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in again.receive_all()] == [b"x"]


def test_what_was_sent_before_it_was_written_down_that_it_waited(world: LastingWorld) -> None:
    subscriber = world.connect("s", V5, keeps=True, receive_maximum=1)
    subscriber.subscribe("t", qos=2)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"1", qos=2)
    [first] = subscriber.take(Publish)
    subscriber.send(PubRec(first.packet_id))
    world.disk.is_slow = True
    world.stamp()
    world.advance(1)
    assert world.disk.is_writing
    publisher.publish("t", b"2", qos=2)
    subscriber.send(PubComp(first.packet_id))
    world.disk.is_slow = False
    world.flush()
    [second] = subscriber.take(Publish)
    world = world.kill()
    world.connect("p", V5).publish("t", b"3", qos=2)
    back = world.connect("s", V5, clean_start=False, keeps=True)
    again = [(p.payload, p.packet_id, p.dup) for p in back.take(Publish)]
    assert again[0] == (b"2", second.packet_id, True)
    assert [payload for payload, _, _ in again] == [b"2", b"3"]


@pytest.mark.parametrize("is_away", [True, False])
@pytest.mark.parametrize(("identifier", "is_kept_flag"), [(7, False), (0, True), (7, True)])
def test_what_is_said_with_a_message(
    world: LastingWorld, identifier: int, is_kept_flag: bool, is_away: bool
) -> None:
    """Retain flag and subscription identifiers are of the delivery, not of the message."""
    peer = world.connect("s", V5, keeps=True)
    peer.subscribe("t", qos=1, identifier=identifier, retain_as_published=is_kept_flag)
    if is_away:
        peer.drop()
    world.connect("p", V5).publish("t", b"x", qos=1, retain=True)
    world.flush()
    world = world.kill()
    [message] = world.connect("s", V5, clean_start=False, keeps=True).receive_all()
    assert message.retain is is_kept_flag
    assert message.properties.subscription_identifiers == ((identifier,) if identifier else ())
    assert message.dup is not is_away


def test_another_member_of_the_group_gets_it(world: LastingWorld) -> None:
    """What waits for a member of a shared group that never comes back goes to another."""
    member = world.connect("a", V5, keeps=True)
    member.subscribe("$share/g/t", qos=1)
    member.drop()
    world.connect("p", V5).publish("t", b"x", qos=1)
    world = world.kill()
    other = world.connect("b", V5)
    other.subscribe("$share/g/t", qos=1)
    world.connect("a", V5)  # a clean start: its session ends
    assert [p.payload for p in other.receive_all()] == [b"x"]
    world.flush()
    assert world.kill().restored.messages == 0


@VERSIONS
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("is_away", [True, False])
def test_each_message_of_a_run_at_qos_2(world: LastingWorld, version: int, count: int, is_away: bool) -> None:
    """They are stored once and together, and end one by one."""
    payloads = [b"%d" % n for n in range(count)]
    subscribers = [world.connect(name, version, keeps=True) for name in ("a", "b")]
    for peer in subscribers:
        peer.subscribe("t", qos=2)
        if is_away:
            peer.drop()
    world.connect("p", version).publish("t", *payloads, qos=2)
    world.flush()
    assert len(list(world.file.begin(0.0).pieces)) == 1
    world = world.kill()
    a = world.connect("a", version, clean_start=False, keeps=True)
    [*sent] = a.take(Publish)
    assert [(p.payload, p.dup) for p in sent] == [(payload, not is_away) for payload in payloads]
    a.send(PubRec(sent[0].packet_id))
    a.send(PubComp(sent[0].packet_id))
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    peers = [world.connect(name, version, clean_start=False, keeps=True) for name in ("a", "b")]
    for peer, left in zip(peers, (payloads[1:], payloads), strict=True):
        assert [p.payload for p in peer.receive_all()] == left
    world.connect("p", version).publish("t", *payloads, qos=2)
    for peer in peers:
        assert [p.payload for p in peer.receive_all()] == payloads
    world.flush()
    assert list(world.file.begin(0.0).pieces) == []
    assert world.kill().restored.messages == 0


def test_the_order_of_what_overtook_the_rest(world: LastingWorld) -> None:
    """[MQTT-4.4.0-1] they are sent again in the order in which they were sent, not in which they came."""
    peer = world.connect("s", V5, keeps=True)
    peer.subscribe("t", qos=1)
    peer.drop()
    publisher = world.connect("p", V5)
    urgent = Properties(user_properties=(("polybus-message", "priority"),))
    publisher.publish("t", b"regular", qos=1)
    publisher.publish("t", b"urgent", qos=1, properties=urgent)
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.take(Publish)] == [b"urgent", b"regular"]
    world.flush()
    world = world.kill()
    again = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in again.take(Publish)] == [b"urgent", b"regular"]


def test_what_waited_for_the_link_waits_for_its_commit_too(world: LastingWorld) -> None:
    """QoS 2: it must not leave before it is safe under which id."""
    subscriber = world.connect("s", V5, keeps=True)
    subscriber.subscribe("t", qos=2)
    subscriber.block()
    world.connect("p", V5).publish("t", b"x", qos=2)
    world.flush()
    world.disk.is_slow = True
    subscriber.unblock()
    assert subscriber.take(Publish) == []
    world.disk.write()
    world.settle()
    assert [p.payload for p in subscriber.take(Publish)] == [b"x"]


def test_one_of_several_has_received_it(world: LastingWorld) -> None:
    """Others still need the message; that this one does not is written down before it is told to release it."""
    subscribers = [world.connect(name, V5, keeps=True) for name in ("a", "b")]
    for peer in subscribers:
        peer.subscribe("t", qos=2)
    world.connect("p", V5).publish("t", b"x", qos=2)
    world.flush()
    [sent] = subscribers[0].take(Publish)
    world.disk.is_slow = True
    subscribers[0].send(PubRec(sent.packet_id))
    assert subscribers[0].take(PubRel) == []
    world.disk.write()
    world.settle()
    assert len(subscribers[0].take(PubRel)) == 1
    subscribers[0].send(PubComp(sent.packet_id))
    world.disk.is_slow = False
    world.flush()
    world = world.kill()
    assert world.restored.messages == 1
    back = world.connect("b", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"x"]


def test_what_a_kept_publisher_sent_to_others(world: LastingWorld) -> None:
    """Nobody needs the message any more, but its id must be known before the publisher is told."""
    world.connect("plain", V5).subscribe("t", qos=2)
    publisher = world.connect("p", V5, keeps=True)
    world.disk.is_slow = True
    publisher.send(Publish("t", b"x", 2, packet_id=1))
    assert publisher.take(PubRec) == []
    world.disk.write()
    world.settle()
    assert len(publisher.take(PubRec)) == 1
    world = world.kill()
    plain = world.connect("plain", V5)
    plain.subscribe("t", qos=2)
    publisher = world.connect("p", V5, clean_start=False, keeps=True)
    publisher.send(Publish("t", b"x", 2, dup=True, packet_id=1))
    assert plain.take(Publish) == []


def test_a_session_that_ends_before_what_it_sent_is_written(world: LastingWorld) -> None:
    publisher = world.connect("p", V5, keeps=True)
    world.disk.is_slow = True
    world.stamp()
    world.advance(1)
    assert world.disk.is_writing
    publisher.send(Publish("t", b"x", 2, packet_id=1))
    world.open(V5).send(connect_packet("p", V5))  # a clean start
    world.disk.is_slow = False
    world.flush()
    world = world.kill()
    assert world.restored.sessions == 0
    assert list(world.file.begin(0.0).received) == []


def test_who_left_in_good_order_has_no_will(world: LastingWorld) -> None:
    watching = world.connect("w", V5, keeps=True)
    watching.subscribe("wills", qos=1)
    world.flush()
    leaving = world.connect("l", V5, keeps=True, will=Will("wills", b"gone", 1))
    world.flush()
    leaving.send(Disconnect())
    world.flush()
    world = world.kill(downtime_s=10)
    assert world.connect("w", V5, clean_start=False, keeps=True).receive_all() == []
