"""Several brokers in one process, with the real sessions and mesh, on wires and a clock that tests move.

    net = Network("a", "b")
    net.call("b", "a")
    asker, service = net.a.join("asker"), net.b.service("service", "sums")
    net.settle()
    asker.request("sums", b"1+1", timeout_s=9)
    net.settle()

Nothing crosses a wire before `settle`; `cut` breaks one, with what is on its way.
"""

from collections.abc import Callable
from typing import Any

from polybus.broker.limits import Limits
from polybus.mesh.mesh import Mesh, MeshOptions
from polybus.session.tbus.joining import CallingLink, Gate
from polybus.session.tbus.link import TbusLink
from polybus.session.tbus.neighbor import NeighborLink
from polybus.session.tbus.options import TbusOptions
from polybus.wire.tbus.codec import frames, next_frame
from polybus.wire.tbus.crossing import decode_between
from polybus.wire.tbus.packets import Bulk, Packet
from tests.broker.bus import Bus
from tests.session.harness import NO_LIMIT, Port

LOCAL = "127.0.0.1:40000"


class Node(Bus):
    """A broker with a mesh."""

    def __init__(
        self,
        own_id: str,
        limits: Limits | None = None,
        *,
        token: str = "",
        is_open: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(limits, **settings)
        self.own_id = own_id
        self.mesh = Mesh(self.broker, MeshOptions(own_id, token, is_open, most=8, keep_s=1000.0))

    def neighbors(self) -> list[str]:
        return sorted(self.mesh.members.others())


class LostPort(Port):
    """What is written to a wire that is cut is lost, as with a socket."""

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            super().write(data)


class Wire:
    """A connection of two brokers, or what is left of it."""

    def __init__(self, caller: Node, called: Node, *, peer: str = LOCAL) -> None:
        self.ports = LostPort(), LostPort()
        self.nodes = caller, called
        self.refusals: list[str] = []
        """Why there was no link."""
        self.is_cut = False
        self.log: list[Packet] = []
        """Everything that crossed, in both directions."""
        ours, theirs = self.ports
        gate = Gate(called.broker, called.mesh, TbusOptions(), self._adopt)
        self.called: TbusLink = TbusLink(
            called.broker, theirs, TbusOptions(), peer=peer, gate=gate, now=called.now
        )
        theirs.link = self.called
        self.calling = CallingLink(
            caller.broker, ours, TbusOptions(), caller.mesh, called.own_id, self._refused, now=caller.now
        )
        ours.link = self.calling

    def _adopt(self, link: NeighborLink) -> None:
        self.called = self.ports[1].link = link

    def _refused(self, why: str) -> None:
        self.refusals.append(why)
        caller, called = self.nodes
        caller.mesh.members.failed(called.own_id, why, caller.now)

    def flow(self) -> bool:
        """Everything that was written arrives; False: there was nothing."""
        if self.is_cut:
            return False
        moved = False
        for port, link, node in (
            (self.ports[0], self.called, self.nodes[1]),
            (self.ports[1], self.calling, self.nodes[0]),
        ):
            data = port.take()
            if data:
                moved = True
                self.log += packets(data)
                link.receive(data, node.now)
        if any(port.is_closed for port in self.ports):
            self.cut()
            return True
        return moved

    def cut(self) -> None:
        """The network fails: both ends notice, what is on its way is gone."""
        if self.is_cut:
            return
        self.is_cut = True
        for port, link, node in zip(self.ports, (self.calling, self.called), self.nodes, strict=True):
            port.is_closed = True
            link.on_closed(node.now)


class Network:
    """Brokers by name, with ids in the order of their names."""

    def __init__(self, *names: str, make: Callable[..., Node] = Node, **settings: Any) -> None:
        self.nodes = {name: make(f"10.0.0.{n}:5035", **settings) for n, name in enumerate(names, start=1)}
        self.wires: list[Wire] = []

    def __getattr__(self, name: str) -> Node:
        try:
            return self.nodes[name]
        except KeyError:
            raise AttributeError(name) from None

    def call(self, caller: str, called: str, *, peer: str = LOCAL) -> Wire:
        """One broker calls another; what comes of it shows with `settle`."""
        node, address = self.nodes[caller], self.nodes[called].own_id
        node.mesh.members.add(address, node.now)
        members = node.mesh.members.members
        if address in members:
            members[address].is_called = True
        wire = Wire(node, self.nodes[called], peer=peer)
        self.wires.append(wire)
        return wire

    def join_all(self) -> "Network":
        """Call whoever is to be called until nobody is."""
        while True:
            calls = [
                (name, other)
                for name, node in self.nodes.items()
                for address in node.mesh.members.due(node.now)
                for other, called in self.nodes.items()
                if called.own_id == address
            ]
            for caller, called in calls:
                self.call(caller, called)
            if not self.settle() and not calls:
                return self

    def mesh(self) -> "Network":
        """Everybody is linked with everybody: each newcomer calls the first."""
        first, *others = self.nodes
        for name in others:
            node = self.nodes[name]
            node.mesh.members.add(self.nodes[first].own_id, node.now, is_configured=True)
            self.join_all()
        return self

    def settle(self) -> bool:
        """Until nothing moves any more; False: nothing did."""
        moved = False
        while True:
            for node in self.nodes.values():
                node.go()
            flows = [wire.flow() for wire in self.wires]
            if not any(flows):
                return moved
            moved = True

    def advance(self, seconds: float) -> None:
        for node in self.nodes.values():
            node.advance(seconds)
        self.settle()

    def wire(self, one: str, other: str) -> Wire:
        """The one that links these two."""
        ends = {self.nodes[one], self.nodes[other]}
        [found] = [w for w in self.wires if not w.is_cut and set(w.nodes) == ends]
        return found

    def cut(self, one: str, other: str) -> None:
        self.wire(one, other).cut()
        self.settle()

    def check(self) -> None:
        for node in self.nodes.values():
            node.check()


def packets(data: bytes) -> list[Packet]:
    """Messages as they were written, those in BULKs too."""
    found: list[Packet] = []
    pos = 0
    while (frame := next_frame(data, pos, NO_LIMIT)) is not None:
        first_byte, start, pos = frame
        packet = decode_between(first_byte, data[start:pos])
        if isinstance(packet, Bulk):
            inner = packet.body
            found += [decode_between(first, inner[begin:end]) for first, begin, end in frames(inner)]
        else:
            found.append(packet)
    assert pos == len(data)
    return found
