"""Brokers of a network that are killed between two steps, with their state in a real file (TB-15, OP-01)."""

from pathlib import Path
from typing import Any

import pytest

from polybus.mesh.mesh import Mesh, MeshOptions
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
