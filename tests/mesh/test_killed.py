"""Brokers of a network that are killed between two steps, with their state in a real file (TB-15, OP-01)."""

from pathlib import Path
from typing import Any

import pytest

from polybus.broker.stamps import MAX_STAMP
from polybus.broker.taken import MAX_TAKEN, WINDOW
from polybus.mesh.mesh import Mesh, MeshOptions
from polybus.wire.mqtt.packets import V5, Properties, PubAck, Publish
from polybus.wire.tbus.crossing import Crossing, encode_between
from tests.mesh.network import Network, Wire
from tests.session.harness import Peer
from tests.store.lasting import LastingWorld


class LastingNode(LastingWorld):
    def __init__(self, own_id: str, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.own_id = own_id
        self.mesh = Mesh(self.broker, MeshOptions(own_id, keep_s=1000.0))

    def neighbors(self) -> list[str]:
        return sorted(self.mesh.members.others())

    def killed(self) -> "LastingNode":
        self.file.close()
        return LastingNode(self.own_id, self.folder, now=self.now)


@pytest.fixture
def net(tmp_path: Path) -> Network:
    def make(own_id: str) -> LastingNode:
        folder = tmp_path / own_id.replace(":", "-")
        folder.mkdir()
        return LastingNode(own_id, folder)

    return Network("a", "b", make=make).mesh()  # type: ignore[arg-type]


def lasting(net: Network, name: str) -> LastingNode:
    node = net.nodes[name]
    assert isinstance(node, LastingNode)
    return node


def kill(net: Network, name: str) -> None:
    """Without a word: the other side sees that the connection is gone."""
    node = lasting(net, name)
    for wire in net.wires:
        if node in wire.nodes and not wire.is_cut:
            wire.is_cut = True
            side = 1 - wire.nodes.index(node)
            wire.ports[side].is_closed = True
            (wire.calling, wire.called)[side].on_closed(wire.nodes[side].now)
    net.nodes[name] = node.killed()  # type: ignore[assignment]


def meet_again(net: Network) -> None:
    net.advance(1)
    net.join_all()
    assert net.a.neighbors() == [net.b.own_id]


def arrive(wire: Wire, net: Network) -> None:
    """What a has written arrives at b; what b answers does not arrive."""
    side = wire.nodes.index(net.a)
    link = (wire.called, wire.calling)[side]
    link.receive(wire.ports[side].take(), net.b.now)
    net.b.go()


def subscribed(net: Network, qos: int) -> Peer:
    peer = net.b.connect("s", keeps=True, clean_start=False)
    peer.subscribe("t", qos=qos)
    net.settle()
    lasting(net, "a").flush()
    lasting(net, "b").flush()
    return peer


def back(net: Network) -> Peer:
    return net.b.connect("s", keeps=True, clean_start=False)


def received(peer: Peer) -> list[bytes]:
    return [p.payload for p in peer.receive_all()]


@pytest.mark.parametrize("qos", [1, 2])
def test_killed_after_it_took_them_and_before_it_said_so(net: Network, qos: int) -> None:
    subscribed(net, qos).drop()
    net.a.connect("p").publish("t", b"0", b"1", qos=qos)
    arrive(net.wire("a", "b"), net)
    lasting(net, "b").flush()
    kill(net, "b")
    meet_again(net)
    assert net.b.broker.stats.crossed_twice == 2
    assert received(back(net)) == [b"0", b"1"]
    assert not any(session.inflight for session in net.a.mesh.sessions)


@pytest.mark.parametrize("qos", [1, 2])
def test_killed_before_it_was_on_disk(net: Network, qos: int) -> None:
    subscribed(net, qos).drop()
    net.settle()
    lasting(net, "b").disk.is_slow = True
    net.a.connect("p").publish("t", b"0", b"1", qos=qos)
    net.settle()
    assert any(session.inflight for session in net.a.mesh.sessions), "not acknowledged before it is safe"
    kill(net, "b")
    meet_again(net)
    assert net.b.broker.stats.crossed_twice == 0
    assert received(back(net)) == [b"0", b"1"]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_publishers_broker_is_killed_with_what_waits(net: Network, qos: int) -> None:
    peer = subscribed(net, qos)
    net.cut("a", "b")
    net.a.connect("p").publish("t", b"0", b"1", qos=qos)
    lasting(net, "a").flush()
    kill(net, "a")
    net.a.connect("p").publish("t", b"2", qos=qos)
    meet_again(net)
    assert received(peer) == [b"0", b"1", b"2"]


def test_it_is_killed_with_what_was_sent_and_not_acknowledged(net: Network) -> None:
    peer = subscribed(net, 1)
    net.a.connect("p").publish("t", b"0", qos=1)
    lasting(net, "a").flush()
    arrive(net.wire("a", "b"), net)
    assert received(peer) == [b"0"]
    kill(net, "a")
    meet_again(net)
    net.a.connect("p").publish("t", b"1", qos=1)
    net.settle()
    assert received(peer) == [b"1"]
    assert net.b.broker.stats.crossed_twice == 1


def test_a_waiting_request_outlives_its_broker_and_finds_a_service_elsewhere(net: Network) -> None:
    net.a.join("asker").request("sums", b"?", timeout_s=100)
    lasting(net, "a").flush()
    kill(net, "a")
    meet_again(net)
    service = net.b.service("s", "sums")
    net.settle()
    assert service.asked() == [b"?"]


def test_what_is_retained_is_still_the_newest(net: Network) -> None:
    net.a.connect("p").publish("t", b"old", retain=True)
    net.settle()
    lasting(net, "b").flush()
    kill(net, "b")
    net.a.connect("p").publish("t", b"new", retain=True)
    meet_again(net)
    found = net.b.broker.retained.get("t")
    assert found is not None
    assert found.payload == b"new"


def receive_until_quiet(net: Network, peer: Peer) -> list[bytes]:
    got = []
    while new := received(peer):
        got += new
        net.settle()
    return got


@pytest.mark.parametrize("is_priority", [False, True])
def test_killed_long_after_its_last_commit_it_sends_no_more_again_than_is_remembered(
    net: Network, is_priority: bool
) -> None:
    peer = subscribed(net, 1)
    net.cut("a", "b")
    payloads = [b"%d" % n for n in range(3 * MAX_TAKEN)]
    net.a.connect("p").publish("t", *payloads, qos=1)
    lasting(net, "a").flush()
    lasting(net, "a").disk.is_slow = True
    meet_again(net)
    got = receive_until_quiet(net, peer)
    assert 0 < len(got) <= WINDOW, "the rest waits for the commit"
    kill(net, "a")
    net.advance(1)
    net.a.mesh.members.members[net.b.own_id].due_at = net.a.now
    if is_priority:  # others that come first do not push out what is remembered of these
        urgent = net.a.connect("u", V5)
        said = Properties(user_properties=(("polybus-message", "priority"),))
        for _ in range(2 * MAX_TAKEN):
            urgent.publish("t", b"urgent", qos=1, properties=said)
    net.join_all()
    for _ in range(20):
        got += receive_until_quiet(net, peer)
        lasting(net, "a").flush()
        net.settle()
    assert [p for p in got if p != b"urgent"] == payloads
    assert got.count(b"urgent") == (2 * MAX_TAKEN if is_priority else 0)
    assert not any(session.load() or session.outstanding for session in net.a.mesh.sessions)


def test_killed_before_it_knows_that_it_took_it_the_publisher_sends_it_again(net: Network) -> None:
    peer = subscribed(net, 2)
    publisher = net.a.connect("p", keeps=True, clean_start=False)
    lasting(net, "a").flush()
    lasting(net, "a").disk.is_slow = True
    publisher.send(Publish("t", b"0", 2, packet_id=7))
    net.settle()
    kill(net, "a")
    meet_again(net)
    again = net.a.connect("p", keeps=True, clean_start=False)
    again.send(Publish("t", b"0", 2, packet_id=7, dup=True))
    lasting(net, "a").flush()
    net.settle()
    assert received(peer) == [b"0"]


@pytest.mark.parametrize("fields", [{"retain": 1}, {"retain": 2}, {"packet_id": 1, "qos": 1}])
@pytest.mark.parametrize("stamp", [MAX_STAMP, MAX_STAMP + 1, (1 << 64) - 1])
def test_no_stamp_of_a_neighbour_keeps_a_broker_from_its_commits(
    net: Network, stamp: int, fields: dict[str, int]
) -> None:
    wire = net.wire("a", "b")
    side = wire.nodes.index(net.a)
    crossing = Crossing("h", b"p", stamp=stamp, **fields)  # type: ignore[arg-type]
    (wire.calling, wire.called)[side].receive(encode_between(crossing), net.a.now)
    net.settle()
    assert wire.is_cut is (stamp > MAX_STAMP)
    publisher = net.a.connect("p", keeps=True, clean_start=False)
    publisher.publish("h", b"here", retain=True)
    publisher.publish("h", b"again", qos=1, retain=True)
    lasting(net, "a").flush()
    assert publisher.take(PubAck)
    meet_again(net)
    kill(net, "a")
    meet_again(net)
    for node in (net.a, net.b):
        found = node.broker.retained.get("h")
        assert found is not None
        assert found.stamp <= MAX_STAMP
    found = net.a.broker.retained.get("h")
    assert found is not None
    assert found.payload == b"again" or stamp == MAX_STAMP


def test_what_waits_is_kept_until_it_is_safe_with_who_took_it(net: Network) -> None:
    subscribed(net, 1).drop()
    back(net)
    net.settle()
    lasting(net, "b").flush()
    lasting(net, "b").disk.is_slow = True
    waits = Properties(user_properties=(("polybus-message", "waiting"),), message_expiry_s=60)
    net.a.connect("w", V5).publish("t", b"w", qos=1, properties=waits)
    net.settle()
    kill(net, "b")
    lasting(net, "a").flush()
    peer = back(net)
    meet_again(net)
    assert received(peer) == [b"w"]
