"""QoS 2 across a link comes once, whatever is killed or cut, with disks that lag behind (TB-15, OP-01)."""

import random
from pathlib import Path

import pytest

from polybus.wire.mqtt.packets import PubComp, Publish, PubRec, PubRel
from tests.mesh.network import Network
from tests.mesh.test_killed import LastingNode, kill, lasting, meet_again
from tests.session.harness import Peer, answers

STEPS = 60


class Publisher:
    """A client that keeps its session, and sends again what it has to."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.unsent: dict[int, bytes] = {}
        """Not received yet, as far as it knows."""
        self.unreleased: dict[int, None] = {}
        self.count = 0
        self.come_back()

    def come_back(self) -> None:
        self.peer = self.net.a.connect("p", keeps=True, clean_start=False)
        self.peer.send(*(Publish("t", what, 2, packet_id=i, dup=True) for i, what in self.unsent.items()))
        self.peer.send(*map(PubRel, self.unreleased))

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.unsent[self.count] = b"%d" % self.count
            self.peer.send(Publish("t", b"%d" % self.count, 2, packet_id=self.count))

    def read(self) -> None:
        for received in self.peer.take(PubRec):
            if self.unsent.pop(received.packet_id, None) is not None:
                self.unreleased[received.packet_id] = None
            self.peer.send(PubRel(received.packet_id))
        for complete in self.peer.take(PubComp):
            self.unreleased.pop(complete.packet_id, None)


class Subscriber:
    def __init__(self, net: Network) -> None:
        self.net = net
        self.got: list[bytes] = []
        self.known: set[int] = set()
        """Received and not released: the same id is the same message."""
        self.come_back()

    def come_back(self) -> None:
        self.peer: Peer = self.net.b.connect("s", keeps=True, clean_start=False)

    def read(self) -> None:
        while packets := self.peer.packets():
            for packet in packets:
                if isinstance(packet, Publish) and packet.packet_id not in self.known:
                    self.known.add(packet.packet_id)
                    self.got.append(packet.payload)
                elif isinstance(packet, PubRel):
                    self.known.discard(packet.packet_id)
            self.peer.send(*answers(packets))


@pytest.mark.parametrize("seed", range(15))
def test_each_comes_once_in_its_order(tmp_path: Path, seed: int) -> None:
    def make(own_id: str) -> LastingNode:
        folder = tmp_path / own_id.replace(":", "-")
        folder.mkdir()
        return LastingNode(own_id, folder)

    net = Network("a", "b", make=make).mesh()  # type: ignore[arg-type]
    chance = random.Random(seed)
    publisher, subscriber = Publisher(net), Subscriber(net)
    subscriber.peer.subscribe("t", qos=2)
    net.settle()
    for name in ("a", "b"):
        lasting(net, name).flush()
    for _ in range(STEPS):
        name = chance.choice("ab")
        match chance.choice(["publish", "publish", "read", "settle", "settle", "slow", "write", "kill", "cut"]):
            case "publish":
                publisher.publish(chance.randint(1, 5))
            case "read":
                publisher.read()
                subscriber.read()
            case "settle":
                net.advance(0.05)
            case "slow":
                lasting(net, name).disk.is_slow = chance.random() < 0.7
            case "write":
                lasting(net, name).disk.write()
            case "kill":
                kill(net, name)
                (publisher if name == "a" else subscriber).come_back()
                meet_again(net)
            case "cut":
                if net.a.neighbors():
                    net.cut("a", "b")
                meet_again(net)
    for _ in range(10):
        for name in ("a", "b"):
            lasting(net, name).disk.is_slow = False
            lasting(net, name).flush()
        net.settle()
        publisher.read()
        subscriber.read()
    assert subscriber.got == [b"%d" % n for n in range(1, publisher.count + 1)]
    assert not publisher.unsent
    assert not any(s.load() or s.outstanding for s in net.a.mesh.sessions)
