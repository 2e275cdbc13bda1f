"""Clients publish, subscribe, acknowledge, come and go, and the broker is killed at any moment.

The clients do what the standard asks of clients and believe every acknowledgement. The model is naive: it
knows who was subscribed when a message was first sent, and what each client got. At the end everyone comes
back and takes all there is; then nothing that was acknowledged is missing, QoS 2 came once, and each
publisher's messages first came in their order.

The same examples each time, unless `EXAMPLES=5000` asks for so many others.
"""

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from tests.examples import examples
from tests.session.harness import Peer, check_accounts, connect_packet
from tests.store.lasting import LastingWorld

TOPICS = ("a", "b")
EXPIRY_S = 100
CLIENTS = (("v311", V311, 65_535), ("v5", V5, 65_535), ("narrow", V5, 3), ("other", V311, 65_535))


class Sent:
    """A message as its publisher knows it."""

    def __init__(self, publisher: str, topic: str, payload: bytes, qos: int, audience: dict[str, int]) -> None:
        self.publisher = publisher
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.audience = audience
        """Who has to get it, and at which QoS."""
        self.is_acknowledged = False


class Client:
    """What a client keeps of its session, whatever happens to its connection."""

    def __init__(self, name: str, version: int, window: int) -> None:
        self.name = name
        self.version = version
        self.window = window
        self.peer: Peer | None = None
        self.ids = itertools.count(1)
        self.outgoing: dict[int, tuple[Publish | PubRel, Sent]] = {}
        self.incoming: set[int] = set()
        self.replies: list[Packet] = []
        self.asked: dict[int, tuple[str, int]] = {}
        """Topics and QoS of SUBSCRIBE (or -1: UNSUBSCRIBE) by packet id."""
        self.subscriptions: dict[str, int] = {}
        """Those that were acknowledged and not asked to end."""
        self.got: list[tuple[bytes, int]] = []
        self.has_session = False
        """It was told so: the broker must know it again."""
        self.seen_until = 0.0
        self.left_at = 0.0

    def new_id(self) -> int:
        while (packet_id := next(self.ids) % 65_535 or 1) in self.outgoing:
            pass
        return packet_id

    def forget(self) -> None:
        """The session is gone."""
        self.outgoing.clear()
        self.incoming.clear()
        self.subscriptions.clear()
        self.has_session = False

    def lose(self) -> None:
        self.peer = None
        self.replies.clear()
        self.asked.clear()

    def take(self) -> None:
        """Believe everything the broker says; answers wait until the client gets round to them."""
        assert self.peer is not None
        for packet in self.peer.packets():
            match packet:
                case Publish(qos=1):
                    self.got.append((packet.payload, 1))
                    self.replies.append(PubAck(packet.packet_id))
                case Publish(qos=2):
                    if packet.packet_id not in self.incoming:
                        self.incoming.add(packet.packet_id)
                        self.got.append((packet.payload, 2))
                    self.replies.append(PubRec(packet.packet_id))
                case PubRel():
                    self.incoming.discard(packet.packet_id)
                    self.replies.append(PubComp(packet.packet_id))
                case PubAck() | PubComp():
                    if packet.packet_id in self.outgoing:
                        self.outgoing.pop(packet.packet_id)[1].is_acknowledged = True
                case PubRec():
                    if packet.packet_id in self.outgoing:
                        release = PubRel(packet.packet_id)
                        self.outgoing[packet.packet_id] = release, self.outgoing[packet.packet_id][1]
                        self.replies.append(release)
                case SubAck() | UnsubAck():
                    topic, qos = self.asked.pop(packet.packet_id)
                    if qos >= 0 and all(topic != later for later, _ in self.asked.values()):
                        self.subscriptions[topic] = qos
                case Disconnect() | ConnAck():
                    raise AssertionError(packet)


class KillMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="polybus-kill-"))
        limits = Limits(session_expiry_s=EXPIRY_S, inflight_per_session=20)
        self.world = LastingWorld(self.folder, limits)
        self.clients = [Client(*each) for each in CLIENTS]
        self.messages: list[Sent] = []
        self.numbers = itertools.count(1)

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.world.file.close()
            shutil.rmtree(self.folder)

    # -- clients ------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for client in self.clients:
            self.connect(client)
        for client in self.clients[:3]:
            self.subscribe(client, "a", 1 + (client.version == V5))
        self.world.disk.is_slow = True

    def here(self) -> list[Client]:
        return [client for client in self.clients if client.peer is not None]

    def away(self) -> list[Client]:
        return [client for client in self.clients if client.peer is None]

    def pick(self, number: int) -> Client:
        """One who is connected."""
        here = self.here()
        return here[number % len(here)]

    def connect(self, client: Client, *, clean_start: bool = False) -> None:
        world = self.world
        peer = world.open(client.version)
        fields = {"receive_maximum": client.window} if client.version == V5 else {}
        keeps = {"session_expiry_s": EXPIRY_S} if client.version == V5 else {}
        is_clean = clean_start and client.version == V5
        peer.send(connect_packet(client.name, client.version, clean_start=is_clean, **fields, **keeps))
        while not (connacks := peer.take(ConnAck)):
            assert world.disk.is_writing
            world.disk.write()
            world.settle()
        [connack] = connacks
        assert connack.reason_code == 0
        now = world.now
        if connack.session_present:
            assert not is_clean
            assert client.left_at == 0.0 or now - client.left_at < EXPIRY_S, "it had expired"
        else:
            is_due = client.left_at and now - client.seen_until >= EXPIRY_S
            assert is_clean or is_due or not client.has_session, "a session is lost"
            self.released(client)
            client.forget()
        client.peer = peer
        client.has_session = True
        client.seen_until = now
        client.left_at = 0.0
        for packet, _ in client.outgoing.values():
            again = packet
            if isinstance(packet, Publish):
                again = Publish(packet.topic, packet.payload, packet.qos, dup=True, packet_id=packet.packet_id)
            peer.send(again)
        client.take()

    def released(self, client: Client) -> None:
        """What it did not get by now need not come any more."""
        got = {payload for payload, _ in client.got}
        for message in self.messages:
            if client.name in message.audience and message.payload not in got:
                del message.audience[client.name]

    def subscribe(self, client: Client, topic: str, qos: int) -> None:
        assert client.peer is not None
        packet_id = client.new_id()
        client.asked[packet_id] = topic, qos
        client.subscriptions.pop(topic, None)  # nobody knows at which QoS until it is acknowledged
        client.peer.send(Subscribe(packet_id, (SubscriptionRequest(topic, qos),)))
        client.take()

    # -- rules ----------------------------------------------------------------------------------------

    @rule(
        number=st.integers(0, 3),
        topic=st.sampled_from(TOPICS),
        qos=st.sampled_from([1, 2, 2]),
        sizes=st.lists(st.sampled_from([0, 0, 0, 30]), min_size=1, max_size=12),
    )
    def publish(self, number: int, topic: str, qos: int, sizes: list[int]) -> None:
        """Several in one read, alike or not: runs of all kinds."""
        client = self.pick(number)
        packets = []
        for size in sizes:
            payload = b"%06d" % next(self.numbers) + b"." * size
            audience = {
                each.name: min(qos, each.subscriptions[topic])
                for each in self.clients
                if topic in each.subscriptions
            }
            message = Sent(client.name, topic, payload, qos, audience)
            self.messages.append(message)
            packet = Publish(topic, payload, qos, packet_id=client.new_id())
            client.outgoing[packet.packet_id] = packet, message
            packets.append(packet)
        client.peer.send(*packets)
        client.take()

    @rule(number=st.integers(0, 3), topic=st.sampled_from(TOPICS), count=st.integers(1, 20))
    def publish_run(self, number: int, topic: str, count: int) -> None:
        self.publish(number, topic, 1, [0] * count)

    @rule(number=st.integers(0, 3), count=st.integers(1, 30))
    def reply(self, number: int, count: int) -> None:
        """The client gets round to some of what it has to answer."""
        client = self.pick(number)
        client.take()
        replies, client.replies = client.replies[:count], client.replies[count:]
        if replies:
            client.peer.send(*replies)
            client.take()

    @rule(number=st.integers(0, 3), topic=st.sampled_from(TOPICS), qos=st.integers(0, 2))
    def change_subscription(self, number: int, topic: str, qos: int) -> None:
        """To this QoS; 0: to none."""
        client = self.pick(number)
        if qos:
            self.subscribe(client, topic, qos)
            return
        assert client.peer is not None
        packet_id = client.new_id()
        client.asked[packet_id] = topic, -1
        client.subscriptions.pop(topic, None)
        client.peer.send(Unsubscribe(packet_id, (topic,)))
        client.take()

    @precondition(lambda self: len(self.here()) > 1)
    @rule(number=st.integers(0, 3))
    def drop(self, number: int) -> None:
        client = self.pick(number)
        client.take()
        client.peer.drop()
        client.lose()
        client.left_at = self.world.now

    @precondition(lambda self: self.away())
    @rule(number=st.integers(0, 3))
    def come_back(self, number: int) -> None:
        away = self.away()
        self.connect(away[number % len(away)])

    @rule(number=st.integers(0, 3), clean_start=st.booleans())
    def take_over(self, number: int, clean_start: bool) -> None:
        client = self.pick(number)
        client.take()
        client.lose()
        client.left_at = self.world.now
        self.connect(client, clean_start=clean_start)

    @rule(seconds=st.sampled_from([0.02, 1, 40]))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.world.stamp()
        if not self.world.disk.is_slow:
            self.world.flush()
            for client in self.here():
                client.seen_until = self.world.now

    @rule()
    def exchange(self) -> None:
        """Everyone answers everything, once."""
        for number in range(len(self.here())):
            self.reply(number, 1000)

    @rule(is_slow=st.booleans())
    def change_disk(self, is_slow: bool) -> None:
        self.world.disk.is_slow = is_slow
        if not is_slow:
            self.write()

    @precondition(lambda self: self.world.disk.is_writing)
    @rule()
    def write(self) -> None:
        self.world.disk.write()
        self.world.settle()

    @rule(
        downtime_s=st.sampled_from([0, 0, 0, 1, 40, 130]),
        is_written=st.booleans(),
        takes=st.booleans(),
        order=st.permutations(range(4)),
        back=st.integers(2, 4),
    )
    def kill(self, downtime_s: float, is_written: bool, takes: bool, order: list[int], back: int) -> None:
        """With what is under way on the disk or not, and what was sent with its clients or not. Most of
        them come back at once, in any order."""
        for client in self.clients:
            if client.peer is not None:
                if takes:
                    client.take()
                client.left_at = self.world.now
            client.lose()
        if is_written:
            self.world.disk.write_silently()
        is_slow = self.world.disk.is_slow
        self.world = self.world.kill(downtime_s)
        check_accounts(self.world.broker)
        check_rows(self.world)
        for number in order[:back]:
            self.connect(self.clients[number])
        self.world.disk.is_slow = is_slow

    # -- what holds ----------------------------------------------------------------------------------------

    @invariant()
    def books_are_right(self) -> None:
        check_accounts(self.world.broker)
        check_rows(self.world)

    def finish(self) -> None:
        world = self.world
        world.disk.is_slow = False
        self.write()
        for client in self.clients:
            if client.peer is None:
                self.connect(client)
        for _ in range(1000):
            is_quiet = True
            for client in self.clients:
                assert client.peer is not None
                client.take()
                replies, client.replies = client.replies, []
                if replies:
                    client.peer.send(*replies)
                    is_quiet = False
            if is_quiet:
                break
        else:
            raise AssertionError("they never end")
        for client in self.clients:
            assert not client.outgoing, "something was never acknowledged"
            self.check(client)
        world.flush()
        check_rows(world)
        assert not rows_of(world), "something is left"
        self.world = self.world.kill()
        assert self.world.restored.messages == 0
        check_accounts(self.world.broker)

    def check(self, client: Client) -> None:
        payloads = [payload for payload, _ in client.got]
        for message in self.messages:
            if client.name in message.audience and message.is_acknowledged:
                count = payloads.count(message.payload)
                assert count, f"{client.name} never got {message.payload!r}"
                assert count == 1 or message.audience[client.name] == 1, (
                    f"{message.payload!r} came {count} times"
                )
        of_qos_2 = [payload for payload, qos in client.got if qos == 2]
        assert len(of_qos_2) == len(set(of_qos_2)), "QoS 2 came twice"
        sent = {message.payload: (n, message) for n, message in enumerate(self.messages)}
        last: dict[tuple[str, str, int], int] = {}
        seen = set()
        for payload, qos in client.got:
            if payload in seen:
                continue
            seen.add(payload)
            n, message = sent[payload]
            key = message.publisher, message.topic, qos
            if message.qos == qos:
                assert last.get(key, -1) < n, f"{payload!r} came too late"
                last[key] = n


def rows_of(world: LastingWorld) -> list[tuple[int, ...]]:
    db = world.file._db
    return list(db.execute("SELECT row, session, piece FROM deliveries"))


def check_rows(world: LastingWorld) -> None:
    """What the file will hold after the next commits is what the broker has in memory."""
    broker = world.broker
    holders: dict[int, int] = {}
    rows: set[int] = set()
    for session in broker.registry.sessions.values():
        if not session.kept:
            continue
        items = list(session.queue.items()) if session.queue is not None else []
        seen = set()
        for packet_id, sent in session.inflight.items():
            if sent is None:
                assert session.releases is not None
                rows.add(session.releases[packet_id])
            elif id(sent) not in seen:
                seen.add(id(sent))
                items.append(sent)  # type: ignore[arg-type]
        assert not session.releases or session.releases.keys() <= session.inflight.keys()
        for item in items:
            assert item.row
            assert item.row not in rows
            rows.add(item.row)
            piece = item.run.piece if hasattr(item, "run") else item.piece
            assert piece is not None
            holders[id(piece)] = holders.get(id(piece), 0) + 1
            assert piece.holders > 0
    if not world.disk.is_writing and not broker.ledger.is_dirty:
        assert {row for row, _, _ in rows_of(world)} == rows
        pieces = {n for (n,) in world.file._db.execute("SELECT number FROM pieces")}
        assert pieces == {piece for _, _, piece in rows_of(world)} - {0}


KillMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=80)
TestKill = KillMachine.TestCase
