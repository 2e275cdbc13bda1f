"""Shared subscriptions: who gets the next message, and who gets it when that one leaves."""

from collections import Counter

import pytest

from polybus.broker.sessions import Session, Subscription
from polybus.broker.shared import STRATEGIES, SharedGroup
from polybus.wire.mqtt.packets import V5, V311, PubAck, Publish, PubRec
from tests.session.harness import Peer, World, check_accounts


def members(world: World, count: int, qos: int = 1, version: int = V5, **fields: object) -> list[Peer]:
    peers = [world.connect(f"m{n}", version, keeps=True, **fields) for n in range(count)]
    for peer in peers:
        peer.subscribe("$share/g/t", qos=qos)
    return peers


def counts(peers: list[Peer]) -> list[int]:
    return [len(p.take(Publish)) for p in peers]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("batch", [1, 30])
def test_round_robin_is_fair(qos: int, batch: int) -> None:
    world = World()
    peers = members(world, 3, qos)
    publisher = world.connect("p", V5)
    for _ in range(90 // batch):
        publisher.publish("t", *[b"x"] * batch, qos=qos)
    assert counts(peers) == [30, 30, 30]


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("how", ["offline", "blocked"])
def test_round_robin_is_fair_among_those_who_are_able(gone: int, how: str) -> None:
    world = World()
    peers = members(world, 3, qos=0)
    absent = peers.pop(gone)
    if how == "offline":
        absent.drop()
    else:
        absent.block()
    publisher = world.connect("p")
    for _ in range(100):
        publisher.publish("t", b"x")
    assert counts(peers) == [50, 50]


def test_random_asks_the_chooser() -> None:
    asked: list[int] = []
    answers = iter([2, 0, 0, 1])

    def choose(n: int) -> int:
        asked.append(n)
        return next(answers)

    world = World(choose=choose, shared_strategy="random")
    peers = members(world, 3)
    world.connect("p").publish("t", b"1", b"2", b"3", b"4", qos=1)
    assert asked == [3] * 4
    assert [p.payloads() for p in peers] == [[b"2", b"3"], [b"4"], [b"1"]]


def test_sticky_stays_until_its_member_goes() -> None:
    world = World(choose=lambda n: min(1, n - 1), shared_strategy="sticky")
    peers = members(world, 3, qos=0)
    publisher = world.connect("p")
    for _ in range(10):
        publisher.publish("t", b"x")
    assert counts(peers) == [0, 10, 0]
    peers[1].drop()
    for _ in range(10):
        publisher.publish("t", b"x")
    assert counts(peers) == [0, 0, 10]
    peers[2].unsubscribe("$share/g/t")
    for _ in range(10):
        publisher.publish("t", b"x")
    assert counts(peers) == [10, 0, 0]


def test_fewest_in_flight_prefers_the_quick() -> None:
    world = World(shared_strategy="fewest_in_flight")
    slow, quick = members(world, 2)
    publisher = world.connect("p")
    got: Counter[str] = Counter()
    for _ in range(20):
        publisher.publish("t", b"x", qos=1)
        got["quick"] += len(quick.receive_all())
        got["slow"] += len(slow.take(Publish))
    assert got == {"quick": 19, "slow": 1}


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_takes_one_of_those_offered(strategy: str) -> None:
    group = SharedGroup("g", "t", strategy, lambda n: n - 1)
    assert group.pick() is None
    sessions = [Session(str(n)) for n in range(4)]
    for session in sessions:
        group.join(session, Subscription("t", "g", 1))
    for session in sessions:
        assert group.pick(besides=session) in [s for s in sessions if s is not session]
    for session in sessions[:3]:
        group.leave(session)
    assert group.pick() is sessions[3]
    assert group.pick(besides=sessions[3]) is None


# -- a member leaves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "ended"])
@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("batch", [1, 10])
def test_unacknowledged_qos_1_goes_to_another_member(keeps: bool, version: int, batch: int) -> None:
    world = World()
    peers = [world.connect(name, version, keeps=keeps) for name in ("a", "b")]
    for peer in peers:
        peer.subscribe("$share/g/t", qos=1)
    publisher = world.connect("p", version)
    payloads = [b"%d" % n for n in range(10)]
    for at in range(0, 10, batch):
        publisher.publish("t", *payloads[at : at + batch], qos=1)
    leaving, staying = peers
    lost = leaving.take(Publish)
    kept = staying.payloads()
    assert lost
    assert kept
    leaving.send(PubAck(lost[0].packet_id))
    leaving.drop()
    assert staying.payloads() == [p.payload for p in lost[1:]]
    if keeps:
        back = world.connect("a", version, keeps=True, clean_start=False)
        assert back.payloads() == []
    check_accounts(world.broker)


def test_qos_2_in_flight_is_not_handed_over() -> None:
    """[MQTT-4.8.2-5] the server must complete the delivery to that client when it reconnects."""
    world = World()
    leaving, staying = members(world, 2, qos=2)
    publisher = world.connect("p", V5)
    for n in range(4):
        publisher.publish("t", b"%d" % n, qos=2)
    mine = leaving.take(Publish)
    assert len(mine) == 2
    staying.receive_all()
    leaving.send(PubRec(mine[0].packet_id))
    leaving.drop()
    assert staying.payloads() == []
    back = world.connect("m0", V5, keeps=True, clean_start=False)
    got = back.receive_all()
    assert [(p.payload, p.dup) for p in got] == [(mine[1].payload, True)]
    assert not back.session.inflight


def test_what_waited_in_the_queue_is_handed_over_at_any_qos() -> None:
    """Never sent, so no client can have it yet."""
    world = World()
    leaving = world.connect("m0", V5, keeps=True, receive_maximum=1)
    leaving.subscribe("$share/g/t", qos=2)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"0", b"1", b"2", qos=2)
    assert leaving.payloads() == [b"0"]
    staying = world.connect("m1", V5, keeps=True)
    staying.subscribe("$share/g/t", qos=2)
    leaving.drop()
    assert [p.payload for p in staying.receive_all()] == [b"1", b"2"]
    back = world.connect("m0", V5, keeps=True, clean_start=False)
    assert [p.payload for p in back.receive_all()] == [b"0"]
    check_accounts(world.broker)
    assert world.broker.dispatcher.holdings.size_bytes == 0


def test_without_another_member_everything_waits() -> None:
    world = World()
    (only,) = members(world, 1)
    publisher = world.connect("p", V5)
    publisher.publish("t", b"0", b"1", qos=1)
    only.drop()
    publisher.publish("t", b"2", qos=1)
    back = world.connect("m0", V5, keeps=True, clean_start=False)
    assert [p.payload for p in back.receive_all()] == [b"0", b"1", b"2"]


def test_unsubscribing_leaves_the_group() -> None:
    world = World()
    peers = members(world, 2, qos=0)
    peers[0].unsubscribe("$share/g/t")
    world.connect("p").publish("t", *[b"x"] * 4)
    assert counts(peers) == [0, 4]
    peers[1].unsubscribe("$share/g/t")
    world.connect("p").publish("t", b"x")
    assert world.broker.subscriptions._filters._root.children is None


def test_two_groups_and_a_plain_subscriber_each_get_a_copy() -> None:
    world = World()
    a, b, c = (world.connect(name, V5) for name in "abc")
    a.subscribe("$share/g/t")
    b.subscribe("$share/h/+")
    c.subscribe("t")
    world.connect("p", V5).publish("t", b"1", b"2")
    assert a.payloads() == b.payloads() == c.payloads() == [b"1", b"2"]
