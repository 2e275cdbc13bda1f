"""What a broker knows after it was killed, by the promises it gave before (OP-01)."""

from pathlib import Path

import pytest

from polybus.wire.mqtt.packets import V5, V311, PubAck, Publish
from tests.session.harness import check_accounts
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
