"""What a broker knows after it was killed, by the promises it gave before (OP-01)."""

from pathlib import Path

import pytest

from polybus.broker.broker import MAX_PENDING_BYTES
from polybus.wire.mqtt.packets import V5, V311, ConnAck, Properties, PubAck, PubComp, Publish, PubRec, PubRel
from tests.session.harness import check_accounts, connect_packet
from tests.store.lasting import LastingWorld

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


@pytest.fixture
def world(tmp_path: Path) -> LastingWorld:
    return LastingWorld(tmp_path)


@VERSIONS
def test_what_waits_for_a_client_that_is_away(world: LastingWorld, version: int) -> None:
    away = world.connect("away", version, keeps=True)
    away.subscribe("a/#", qos=1)
    away.drop()
    world.connect("p", version).publish("a/b", b"1", b"2", b"3", qos=1)
    world = world.kill()
    check_accounts(world.broker)
    back = world.connect("away", version, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"1", b"2", b"3"]
    world.connect("p", version).publish("a/b", b"4", qos=1)
    assert [p.payload for p in back.receive_all()] == [b"4"]
    world.flush()
    world = world.kill()
    assert world.restored.messages == 0
    assert world.restored.sessions == world.restored.subscriptions == 1


@VERSIONS
def test_what_was_sent_and_not_acknowledged(world: LastingWorld, version: int) -> None:
    slow = world.connect("slow", version, keeps=True)
    slow.subscribe("t", qos=1)
    world.connect("p", version).publish("t", b"1", b"2", b"3", qos=1)
    sent = slow.take(Publish)
    slow.send(PubAck(sent[0].packet_id))
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    back = world.connect("slow", version, clean_start=False, keeps=True)
    again = back.receive_all()
    assert [p.payload for p in again][-2:] == [b"2", b"3"]
    assert [p.packet_id for p in again][-2:] == [p.packet_id for p in sent[1:]]
    assert all(p.dup for p in again)


@VERSIONS
def test_exactly_once_towards_a_kept_session(world: LastingWorld, version: int) -> None:
    """What is not safe yet must not be on its way: its packet id would be given to another message."""
    subscriber = world.connect("s", version, keeps=True)
    subscriber.subscribe("t", qos=2)
    publishers = [world.connect(name, version) for name in ("p", "q")]
    world.disk.is_slow = True
    publishers[0].publish("t", b"lost", qos=2)
    assert subscriber.take(Publish) == []
    world = world.kill()  # and its publisher never comes back
    back = world.connect("s", version, clean_start=False, keeps=True)
    world.disk.is_slow = True
    world.connect("q", version).send(Publish("t", b"safe", 2, packet_id=1))
    assert back.take(Publish) == []
    world.disk.write()
    world.settle()
    [sent] = back.take(Publish)
    assert (sent.payload, sent.dup) == (b"safe", False)


@VERSIONS
@pytest.mark.parametrize("count", [1, 3])
def test_a_release_waits_until_it_is_safe_that_the_message_was_received(
    world: LastingWorld, version: int, count: int
) -> None:
    subscriber = world.connect("s", version, keeps=True)
    subscriber.subscribe("t", qos=2)
    world.connect("p", version).publish("t", *[b"x"] * count, qos=2)
    ids = [p.packet_id for p in subscriber.take(Publish)]
    assert len(ids) == count
    world.disk.is_slow = True
    subscriber.send(*map(PubRec, ids))
    assert subscriber.take(PubRel) == []
    world = world.kill()  # the file does not know that they were received
    back = world.connect("s", version, clean_start=False, keeps=True)
    assert [(p.packet_id, p.dup) for p in back.take(Publish)] == [(i, True) for i in ids]
    back.send(*map(PubRec, ids))
    assert [p.packet_id for p in back.take(PubRel)] == ids
    world = world.kill()  # now it does
    back = world.connect("s", version, clean_start=False, keeps=True)
    assert back.take(Publish) == []
    assert [p.packet_id for p in back.take(PubRel)] == ids
    back.send(*map(PubComp, ids))
    world.flush()
    world = world.kill()
    assert world.restored.messages == 0


@VERSIONS
@pytest.mark.parametrize("count", [1, 3])
def test_exactly_once_from_a_kept_publisher(world: LastingWorld, version: int, count: int) -> None:
    subscriber = world.connect("s", version, keeps=True)
    subscriber.subscribe("t", qos=2)
    publisher = world.connect("p", version, keeps=True)
    sent = [Publish("t", b"%d" % n, 2, packet_id=n) for n in range(1, count + 1)]
    world.disk.is_slow = True
    publisher.send(*sent)
    world.disk.write_silently()  # on the disk, but the publisher does not know
    world = world.kill()
    publisher = world.connect("p", version, clean_start=False, keeps=True)
    publisher.send(*(Publish("t", p.payload, 2, dup=True, packet_id=p.packet_id) for p in sent))
    assert [p.packet_id for p in publisher.take(PubRec)] == [p.packet_id for p in sent]
    publisher.send(*(PubRel(p.packet_id) for p in sent))
    assert len(publisher.take(PubComp)) == count
    back = world.connect("s", version, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [p.payload for p in sent]
    world.flush()
    world = world.kill()
    publisher = world.connect("p", version, clean_start=False, keeps=True)
    publisher.send(Publish("t", b"new", 2, packet_id=1))  # the ids are free again
    back = world.connect("s", version, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"new"]


def test_a_packet_id_that_was_used_again(tmp_path: Path) -> None:
    """The row of a run stays until its last message is acknowledged; ids of the others are free before."""
    world = LastingWorld(tmp_path)
    slow = world.connect("s", V5, keeps=True)
    slow.subscribe("t", qos=1)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"1", b"2", b"3", qos=1)
    slow.send(PubAck(1), PubAck(2))
    session = slow.session
    session.next_id = 1
    publisher.publish("t", b"4", qos=1)
    assert [p.packet_id for p in slow.take(Publish)] == [1, 2, 3, 1]
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert {p.packet_id: p.payload for p in back.receive_all()} == {2: b"2", 3: b"3", 1: b"4"}
    world.flush()
    assert world.kill().restored.messages == 0


def test_a_clean_start_is_safe_before_it_is_told(world: LastingWorld) -> None:
    world.connect("c", V5, keeps=True).subscribe("t", qos=1)
    world.disk.is_slow = True
    peer = world.open(V5)
    peer.send(connect_packet("c", V5, clean_start=True))
    assert peer.packets() == []
    world.disk.write()
    world.settle()
    assert [c.session_present for c in peer.take(ConnAck)] == [False]
    world = world.kill()
    assert world.restored.sessions == 0


def test_who_touches_nothing_durable_does_not_wait_for_a_slow_disk(world: LastingWorld) -> None:
    world.connect("kept", V5, keeps=True).subscribe("kept", qos=1)
    plain, busy = world.connect("plain", V5), world.connect("busy", V5)
    plain.subscribe("plain", qos=1)
    world.disk.is_slow = True
    busy.publish("kept", b"", qos=1)
    assert busy.take(PubAck) == []
    plain.publish("plain", b"", qos=1)
    assert len(plain.take(PubAck)) == 1
    busy.publish("plain", b"", qos=1)
    assert busy.take(PubAck) == []  # they come in their order
    while world.disk.is_writing:
        world.disk.write()
        world.settle()
    assert [p.packet_id for p in busy.take(PubAck)] == [1, 2]


def test_what_is_acknowledged_at_once_is_never_written(world: LastingWorld) -> None:
    subscriber = world.connect("s", keeps=True)
    subscriber.subscribe("t", qos=1)
    publisher = world.connect("p")
    world.disk.is_slow = True
    publisher.publish("t", b"first", qos=1)
    publisher.publish("t", b"second", qos=1)  # waits for its turn
    subscriber.receive_all()
    world.disk.write()
    world.settle()
    world.flush()
    assert world.kill().restored.messages == 0
    assert world.broker.ledger.next_row == 3


def test_a_long_queue(world: LastingWorld) -> None:
    """As runs, and one by one; nothing is lost, and all in order."""
    away = world.connect("away", V5, keeps=True)
    away.subscribe("t", qos=1)
    away.drop()
    publisher = world.connect("p", V5)
    wanted = [b"%07d" % number for number in range(20_000)]
    for first in range(0, len(wanted), 500):
        said = {"properties": Properties(content_type="x")} if first % 1000 else {}
        publisher.publish("t", *wanted[first : first + 500], qos=1, **said)
    world = world.kill()
    assert world.restored.messages == len(wanted)
    check_accounts(world.broker)
    back = world.connect("away", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == wanted
    world.flush()
    assert world.kill().restored.messages == 0


@VERSIONS
def test_a_message_that_fills_a_tick_is_committed_with_its_packet_id(world: LastingWorld, version: int) -> None:
    """A large one makes the tick come while it is being taken: its delivery must not be safe before it is known
    as received, or the publisher's next attempt would be another message."""
    away = world.connect("away", version, keeps=True)
    away.subscribe("t", qos=2)
    away.drop()
    publisher = world.connect("p", version, keeps=True)
    world.flush()
    world.advance(1.0)
    world.disk.is_slow = True
    large = Publish("t", bytes(MAX_PENDING_BYTES + 1), 2, packet_id=7)
    publisher.send(large)
    world.disk.write_silently()  # the first commit, and nothing behind it
    world = world.kill()
    again = world.connect("p", version, clean_start=False, keeps=True)
    again.send(Publish("t", large.payload, 2, dup=True, packet_id=7))
    again.send(PubRel(7))
    world.flush()
    back = world.connect("away", version, clean_start=False, keeps=True)
    assert len(back.receive_all()) == 1


@VERSIONS
def test_what_is_refused_is_not_remembered_as_received(world: LastingWorld, version: int) -> None:
    publisher = world.connect("p", version, keeps=True)
    publisher.send(Publish("$SYS/x", b"", 2, packet_id=7))
    session = world.broker.registry.sessions["p"]
    assert not session.received
