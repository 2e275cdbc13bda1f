"""A broker made of records: what it knows, what it counts on from there, and what it does not write again."""

from pathlib import Path

import pytest

from polybus.broker import restore as restoring
from polybus.broker.broker import Broker
from polybus.broker.ledger import Batch
from polybus.broker.message import Message
from polybus.broker.records import piece_record
from polybus.broker.storage import Kind
from polybus.store.durable import ENCODINGS
from polybus.wire.mqtt.packets import V5, PubAck, PubComp, Publish, PubRec
from tests.session.harness import check_accounts
from tests.store.lasting import WALL, LastingWorld


@pytest.fixture
def world(tmp_path: Path) -> LastingWorld:
    return LastingWorld(tmp_path)


def away(world: LastingWorld, qos: int = 1) -> None:
    peer = world.connect("s", V5, keeps=True)
    peer.subscribe("t", qos=qos)
    peer.drop()


def everything(world: LastingWorld) -> None:
    """Something of each kind, with nobody connected."""
    away(world)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"1", b"2", qos=1)
    publisher.publish("r", b"retained", qos=1, retain=True)
    publisher.drop()
    bus_peer = world.join("asker", keeps_s=1000)
    bus_peer.publish("waits", b"x", waits_s=100)
    bus_peer.drop()
    world.flush()


def test_what_is_there_is_not_written_again(world: LastingWorld) -> None:
    everything(world)
    world = world.kill()
    assert (world.restored.messages, world.restored.retained, world.restored.stored) == (2, 1, 1)
    world.flush()
    assert world.disk.batches == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_numbers_go_on_behind_those_in_use(world: LastingWorld, qos: int) -> None:
    away(world, qos)
    payloads = [b"%d" % n for n in range(5)]
    for number, payload in enumerate(payloads):
        world.connect(f"other{number}", V5, keeps=True)
        world.connect("p", V5).publish("t", payload, qos=qos)
        world.join("asker").publish("waits", payload, waits_s=100)
        world.flush()
        world = world.kill()
        check_accounts(world.broker)
    assert (world.restored.messages, world.restored.stored, world.restored.sessions) == (5, 5, 6)
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.take(Publish)] == payloads
    world.flush()
    world = world.kill()
    world.connect("s", V5, clean_start=False, keeps=True)
    world.connect("p", V5).publish("t", b"last", qos=qos)
    world.flush()
    world = world.kill()
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [*payloads, b"last"]
    asker = world.join("asker")
    asker.subscribe("waits")
    assert asker.payloads() == payloads


def test_what_waits_has_waited_from_now_on(world: LastingWorld) -> None:
    everything(world)
    world = world.kill(downtime_s=30)
    [stored] = world.broker.storage.matching(Kind.MESSAGE, "waits")
    assert stored.since == world.now


def test_pieces_that_nobody_needs_are_removed(world: LastingWorld) -> None:
    away(world)
    world.connect("p", V5).publish("t", b"x", qos=1)
    world = world.kill()
    world.connect("s", V5, clean_start=False, keeps=True).receive_all()
    world.flush()
    assert list(world.file.begin(WALL).pieces) == []
    world.file.apply(Batch(pieces=[(99, piece_record(Message("t", b"x"), WALL))]))
    world = world.kill()
    world.flush()
    assert list(world.file.begin(WALL).pieces) == []


def test_an_id_that_was_used_again_for_qos_2(world: LastingWorld) -> None:
    """The run that had it was acknowledged so far; the rest of it is still under way."""
    subscriber = world.connect("s", V5, keeps=True)
    subscriber.subscribe("t", qos=2)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"1", b"2", qos=1)
    subscriber.send(PubAck(1))
    subscriber.session.next_id = 1
    publisher.publish("t", b"3", qos=2)
    subscriber.send(PubRec(1))
    world.flush()
    world = world.kill()
    check_accounts(world.broker)
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.take(Publish)] == [b"2"]
    back.send(PubAck(2), PubComp(1))
    world.flush()
    assert world.kill().restored.messages == 0


def test_a_row_whose_id_belongs_to_a_later_one_is_removed(world: LastingWorld) -> None:
    subscriber = world.connect("s", V5, keeps=True)
    subscriber.subscribe("t", qos=1)
    world.connect("p", V5).publish("t", b"x", qos=1)
    world.flush()
    [row] = world.file.begin(WALL).sent
    number, session, piece, first, count, qos, packet_id, sent, _ = row
    world.file.apply(Batch(rows=[[number + 1, session, piece, first, count, qos, packet_id, sent + 1, None]]))
    world = world.kill()
    check_accounts(world.broker)
    world.flush()
    assert [row[0] for row in world.file.begin(WALL).sent] == [number + 1]
    back = world.connect("s", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"x"]


def test_it_says_how_far_it_is(world: LastingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    away(world)
    for _ in range(5):
        world.connect("p", V5).publish("t", b"1", b"2", b"3", qos=1)
    monkeypatch.setattr(restoring, "PROGRESS_STEP", 6)
    told: list[int] = []
    restoring.restore(Broker(), world.file.begin(WALL), ENCODINGS, now=0.0, progress=told.append)
    assert told == [6, 12]
