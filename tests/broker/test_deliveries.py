"""Several clients in any order of events: nothing acknowledged is lost, nothing at QoS 2 comes twice.

A state machine drives the real session code. Clients publish in bursts, subscribe, acknowledge in any
order, stop reading, lose their connection with whatever was on its way, and come back. The model knows
who is entitled to each message; at the end everyone comes back, reads, and the books are compared.
"""

from collections import Counter
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from tests.broker.naive import matches
from tests.examples import examples
from tests.session.harness import Peer, World, check_accounts

TOPICS = ("a/b", "a/c", "b")
FILTERS = ("a/+", "a/b", "#", "b")


class Item(NamedTuple):
    number: int
    publisher: str
    topic: str
    qos: int


class Client:
    """A client that keeps its half of the session state, as it should."""

    def __init__(self, name: str, version: int, window: int | None) -> None:
        self.name = name
        self.version = version
        self.window = window
        self.peer: Peer | None = None
        self.keeps = False
        self.subscriptions: dict[str, int] = {}
        self.ids = 0
        self.forget()

    def forget(self) -> None:
        """A new session: what belonged to the old one is over."""
        self.subscriptions = {}
        self.expected: list[Item] = []
        self.got: list[Item] = []
        self.received: set[int] = set()
        self.owed: list[Packet] = []
        self.unreleased: dict[int, Publish] = {}

    @property
    def has_session(self) -> bool:
        return self.peer is not None or self.keeps

    def qos_for(self, topic: str) -> int | None:
        return max((q for f, q in self.subscriptions.items() if matches(f, topic)), default=None)


class Deliveries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.items: dict[bytes, tuple[str, str]] = {}
        self.number = 0
        kinds = [("old", V311, None), ("new", V5, None), ("narrow", V5, 3)]
        self.clients = {name: Client(name, version, window) for name, version, window in kinds}
        for client in self.clients.values():
            self.connect(client, keeps=True, clean_start=True)
        for name, qos in (("old", 1), ("new", 2), ("narrow", 2)):
            self.subscribe(name, "#", qos)

    # -- what happens ---------------------------------------------------------------------------------

    names = st.sampled_from(["old", "new", "narrow"])

    @rule(name=names, topic_filter=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        client = self.clients[name]
        if client.peer is None or client.peer.link.blocked:
            return
        self.read(client)
        assert client.peer.subscribe(topic_filter, qos=qos) == (qos,)
        client.subscriptions[topic_filter] = qos

    @rule(name=names, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        client = self.clients[name]
        if client.peer is None or client.peer.link.blocked:
            return
        self.read(client)
        client.peer.unsubscribe(topic_filter)
        client.subscriptions.pop(topic_filter, None)

    @rule(
        name=names,
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=2),
        qos=st.integers(0, 2),
        count=st.integers(1, 6),
        again=st.booleans(),
    )
    def publish(self, name: str, topics: list[str], qos: int, count: int, again: bool) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        packets = []
        for n in range(count):
            self.number += 1
            topic = topics[n % len(topics)]
            client.ids = client.ids % 60_000 + 1
            packets.append(Publish(topic, b"%06d" % self.number, qos, packet_id=client.ids if qos else 0))
            self.items[packets[-1].payload] = (name, topic)
            for other in self.clients.values():
                granted = other.qos_for(topic)
                if granted is not None and other.has_session and min(qos, granted):
                    other.expected.append(Item(self.number, name, topic, min(qos, granted)))
        client.peer.send(*packets)
        if qos == 2:
            client.unreleased.update({p.packet_id: p for p in packets})
            if again:  # as a client does that did not see the PUBREC
                client.peer.send(*packets)

    @rule(name=names)
    def release(self, name: str) -> None:
        client = self.clients[name]
        if client.peer is not None and client.unreleased:
            client.peer.send(*(PubRel(i) for i in client.unreleased))
            client.unreleased.clear()

    @rule(name=names, data=st.data())
    def acknowledge(self, name: str, data: st.DataObject) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        self.read(client)
        if not client.owed:
            return
        order = data.draw(st.permutations(client.owed[:8]))
        chosen = order[: data.draw(st.integers(1, len(order)))]
        for packet in chosen:
            client.owed.remove(packet)
        client.peer.send(*chosen)

    @rule(name=names)
    def block(self, name: str) -> None:
        peer = self.clients[name].peer
        if peer is not None:
            peer.block()

    @rule(name=names)
    def unblock(self, name: str) -> None:
        peer = self.clients[name].peer
        if peer is not None and peer.link.blocked:
            peer.unblock()

    @rule(name=names)
    def lose_connection(self, name: str) -> None:
        """And everything that was written but not read."""
        client = self.clients[name]
        if client.peer is not None:
            client.peer.drop()
            client.peer = None
            client.owed.clear()
            if not client.keeps:
                client.forget()

    @rule(name=names, keeps=st.booleans(), clean_start=st.sampled_from([False, False, False, True]))
    def come_back(self, name: str, keeps: bool, clean_start: bool) -> None:
        """Possibly while the broker thinks it is still there."""
        self.connect(self.clients[name], keeps=keeps, clean_start=clean_start)

    @rule(seconds=st.sampled_from([1, 100]))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)

    # -- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def accounts_are_right(self) -> None:
        check_accounts(self.world.broker)

    @precondition(lambda self: self.number > 0)
    @invariant()
    def nothing_comes_to_those_who_did_not_ask(self) -> None:
        for client in self.clients.values():
            wanted = {item[:3] for item in client.expected}
            assert all(item[:3] in wanted for item in client.got if item.qos)

    def teardown(self) -> None:
        for client in self.clients.values():
            if client.peer is None:
                self.connect(client, keeps=True, clean_start=not client.keeps)
            elif client.peer.link.blocked:
                client.peer.unblock()
        for client in self.clients.values():
            self.finish(client)
        for client in self.clients.values():
            self.compare(client)
            assert client.peer is not None
            assert not client.peer.is_closed
            assert not client.peer.session.inflight
        assert self.world.broker.memory_bytes() == self.world.broker.subscriptions.size_bytes

    # -- below ------------------------------------------------------------------------------------------

    def connect(self, client: Client, *, keeps: bool, clean_start: bool) -> None:
        if client.peer is not None and not client.keeps:
            client.forget()  # the older connection ends, and its session with it
        if not keeps and client.version < V5:
            clean_start = True  # before 5.0 the two are one
        fields = {"receive_maximum": client.window} if client.window else {}
        client.owed.clear()
        if clean_start:
            client.forget()
        old = client.peer
        client.peer = self.world.connect(
            client.name, client.version, keeps=keeps, clean_start=clean_start, **fields
        )
        assert old is None or old.is_closed
        client.keeps = keeps
        if clean_start and client.version < V5 and keeps:
            # 3.1.1 cannot begin a kept session anew in one step: the broker resumes what there was
            client.peer.drop()
            client.peer = self.world.connect(client.name, client.version, clean_start=True)
            client.peer.drop()
            client.peer = self.world.connect(client.name, client.version, keeps=True)
            client.forget()

    def read(self, client: Client) -> None:
        assert client.peer is not None
        for packet in client.peer.packets():
            if isinstance(packet, Publish):
                publisher, topic = self.items[packet.payload]
                assert packet.topic == topic
                item = Item(int(packet.payload), publisher, topic, packet.qos)
                if packet.qos == 2:
                    if packet.packet_id not in client.received:
                        client.received.add(packet.packet_id)
                        client.got.append(item)
                    client.owed.append(PubRec(packet.packet_id))
                else:
                    client.got.append(item)
                    if packet.qos == 1:
                        client.owed.append(PubAck(packet.packet_id))
            elif isinstance(packet, PubRel):
                client.received.discard(packet.packet_id)
                client.owed.append(PubComp(packet.packet_id))

    def finish(self, client: Client) -> None:
        assert client.peer is not None
        self.read(client)
        while client.owed:
            owed, client.owed = client.owed, []
            client.peer.send(*owed)
            self.read(client)

    def compare(self, client: Client) -> None:
        expected = [item for item in client.expected if item.qos == 1]
        got = list(dict.fromkeys(item for item in client.got if item.qos == 1))
        assert set(got) == set(expected), "QoS 1: at least once"
        exactly = [item for item in client.expected if item.qos == 2]
        twice = [item for item in client.got if item.qos == 2]
        assert Counter(twice) == Counter(exactly), "QoS 2: exactly once"
        at_most = [item for item in client.got if item.qos == 0]
        assert len(at_most) == len(set(at_most)), "QoS 0: at most once"
        for qos in (0, 1, 2):
            for publisher in self.clients:
                for topic in TOPICS:
                    numbers = [
                        item.number
                        for item in dict.fromkeys(client.got)
                        if (item.publisher, item.topic, item.qos) == (publisher, topic, qos)
                    ]
                    assert numbers == sorted(numbers), "[MQTT-4.6.0-6] in the order they were published"


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=examples(200), stateful_step_count=40)
