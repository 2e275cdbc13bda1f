"""Three brokers whose links break at any moment, with anything on its way: each request ends once, each message
of QoS 1 and 2 arrives once at everyone who wants it, and nothing goes around."""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.broker.bus import Asked, End, Peer
from tests.examples import examples
from tests.mesh.network import Network, Wire

NODES = ("a", "b", "c")
nodes = st.sampled_from(NODES)


class Life(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.net = Network(*NODES).mesh()
        self.subscribers = {name: node.connect(f"sub-{name}") for name, node in self.net.nodes.items()}
        for peer in self.subscribers.values():
            peer.subscribe("m/#", qos=2)
        self.sharers = {name: node.connect(f"share-{name}") for name, node in self.net.nodes.items()}
        for peer in self.sharers.values():
            peer.subscribe("$share/g/m/#", qos=2)
        self.net.settle()
        self.publishers = {name: node.connect(f"pub-{name}") for name, node in self.net.nodes.items()}
        self.askers = {name: node.join(f"ask-{name}") for name, node in self.net.nodes.items()}
        self.services: list[tuple[str, Peer]] = []
        self.published: list[bytes] = []
        self.got: dict[str, list[bytes]] = {name: [] for name in NODES}
        self.shared: list[bytes] = []
        self.asked: Counter[tuple[str, int]] = Counter()
        self.ends: Counter[tuple[str, int]] = Counter()
        self.hands: dict[Peer, list[Asked]] = {}
        self.count = 0

    # -- messages -----------------------------------------------------------------------------------

    @rule(name=nodes, qos=st.sampled_from([1, 2]), many=st.integers(1, 4))
    def publish(self, name: str, qos: int, many: int) -> None:
        payloads = [b"%d" % (self.count + n) for n in range(many)]
        self.count += many
        self.published += payloads
        self.publishers[name].publish("m/x", *payloads, qos=qos)

    @rule(name=nodes)
    def read(self, name: str) -> None:
        self.got[name] += [p.payload for p in self.subscribers[name].receive_all()]
        self.shared += [p.payload for p in self.sharers[name].receive_all()]

    # -- requests -----------------------------------------------------------------------------------

    @rule(name=nodes, may_wait=st.booleans(), priority=st.booleans())
    def ask(self, name: str, may_wait: bool, priority: bool) -> None:
        asker = self.askers[name]
        packet_id = asker.request(
            "r", timeout_s=500 if may_wait else None, may_wait=may_wait, priority=priority
        )
        self.asked[name, packet_id] += 1

    @rule(name=nodes, at_once=st.integers(1, 2))
    def serve(self, name: str, at_once: int) -> None:
        if len(self.services) < 4:
            self.count += 1
            peer = self.net.nodes[name].service(f"srv-{self.count}", "r", at_once=at_once)
            self.services.append((name, peer))
            self.hands[peer] = []

    @rule(which=st.integers(0, 3), how=st.sampled_from(["answer", "fail", "drop", "unsubscribe"]))
    def work(self, which: int, how: str) -> None:
        if which >= len(self.services):
            return
        _, peer = self.services[which]
        self.hands[peer] += peer.take(Asked)
        if how in ("drop", "unsubscribe"):
            peer.unsubscribe("r") if how == "unsubscribe" else None
            peer.drop()
            del self.services[which]
            return
        for asked in self.hands[peer]:  # also what it was told to leave: that is refused, and harms nobody
            peer.answer(asked, b"!") if how == "answer" else peer.fail(asked, "no")
        self.hands[peer].clear()

    @rule(name=nodes, pick=st.integers(0, 1000))
    def cancel(self, name: str, pick: int) -> None:
        mine = [packet_id for who, packet_id in self.asked if who == name]
        if mine:
            self.askers[name].cancel(mine[pick % len(mine)])

    @rule(name=nodes)
    def hear(self, name: str) -> None:
        for end in self.askers[name].take(End):
            self.ends[name, end.packet_id] += 1

    # -- the network --------------------------------------------------------------------------------

    def _alive(self) -> list[Wire]:
        return [w for w in self.net.wires if not w.is_cut]

    @rule()
    def settle(self) -> None:
        self.net.settle()

    @rule(which=st.integers(0, 5), side=st.integers(0, 1), is_cut=st.booleans())
    def flow_one_way(self, which: int, side: int, is_cut: bool) -> None:
        """What one side wrote arrives, what the other did does not yet, or never does."""
        alive = self._alive()
        if which >= len(alive):
            return
        wire = alive[which]
        link, node = ((wire.called, wire.nodes[1]), (wire.calling, wire.nodes[0]))[side]
        data = wire.ports[side].take()
        if data:
            link.receive(data, node.now)
            node.go()
        if is_cut:
            wire.cut()

    @rule(which=st.integers(0, 5))
    def cut(self, which: int) -> None:
        alive = self._alive()
        if which < len(alive):
            alive[which].cut()

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0]))
    def reconnect(self, seconds: float) -> None:
        self.net.advance(seconds)
        self.net.join_all()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "net"):
            for node in self.net.nodes.values():
                node.go()
            self.net.check()

    def teardown(self) -> None:
        if not hasattr(self, "net"):
            return
        for _ in range(4):
            self.reconnect(20.0)
        assert all(len(node.neighbors()) == 2 for node in self.net.nodes.values())
        for name in NODES:
            self.net.settle()
            self.read(name)
        for _ in range(3):
            self.net.settle()
            for name in NODES:
                self.read(name)
        for name in NODES:
            assert sorted(self.got[name], key=int) == self.published
        assert sorted(self.shared, key=int) == self.published
        self.serve(NODES[self.count % 3], 1) if not self.services else None
        for _ in range(len(self.asked) + 5):
            self.net.settle()
            for which in range(len(self.services)):
                self.work(which, "answer")
        self.net.advance(600)
        for name in NODES:
            self.hear(name)
        assert self.ends == self.asked
        for node in self.net.nodes.values():
            assert node.broker.requests.under_way == {}
            assert not any(s.inflight or s.queue for s in node.mesh.sessions)


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=examples(40), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
