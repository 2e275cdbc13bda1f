"""A broker in memory: peers that speak MQTT to the real session code, under a clock that tests move.

    world = World()
    alice = world.connect("alice", V5)
    alice.subscribe("a/#", qos=1)
    world.connect("bob").publish("a/b", b"x", qos=1)
    assert alice.take(Publish)[0].payload == b"x"

Unlike the conformance suite's clients, a peer may be fed in any pieces, may stop reading, and nothing
happens behind the test's back: `feed` only feeds, `settle` lets the broker tick.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from polybus.broker.access import Access
from polybus.broker.broker import Broker
from polybus.broker.limits import Limits
from polybus.broker.message import OVERHEAD_BYTES, Delivery, DeliveryRun, Message, Run
from polybus.broker.sessions import Session
from polybus.session.mqtt import MqttLink, MqttOptions
from polybus.session.stream import StreamLink
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    ConnAck,
    Connect,
    Packet,
    Properties,
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

NO_LIMIT = 1 << 30
P = TypeVar("P", bound=Packet)


class Port:
    """The transport below a link. With `capacity`, writing past it blocks the link, as asyncio's do."""

    link: StreamLink

    def __init__(self) -> None:
        self.sent = bytearray()
        """What the broker wrote and no one took yet."""
        self.writes = 0
        self.is_closed = False
        self.is_paused = False
        self.capacity: int | None = None

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written to after it was closed"
        self.writes += 1
        self.sent += data
        if self.capacity is not None and len(self.sent) > self.capacity and not self.link.blocked:
            self.link.on_blocked()

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def take(self) -> bytes:
        data = bytes(self.sent)
        self.sent.clear()
        return data


class Wire:
    """One connection, whatever is spoken on it: bytes, and what can happen to a transport."""

    def __init__(self, world: "World", port: Port, link: StreamLink) -> None:
        self.world = world
        self.port = port
        self.link = port.link = link

    @property
    def session(self) -> Session:
        assert self.link.session is not None
        return self.link.session

    @property
    def is_closed(self) -> bool:
        return self.port.is_closed

    def feed(self, data: bytes) -> Self:
        """Bytes reach the broker; what they cause waits for the tick."""
        self.link.receive(data, self.world.now)
        return self

    def drop(self) -> None:
        """The network fails."""
        self.port.is_closed = True
        self.link.on_closed(self.world.now)
        self.world.settle()

    def block(self) -> None:
        self.link.on_blocked()

    def unblock(self) -> None:
        self.link.on_unblocked(self.world.now)
        self.world.settle()


class Peer(Wire):
    """One connection and the MQTT client at its other end."""

    link: MqttLink

    def __init__(self, world: "World", version: int = V311) -> None:
        port = Port()
        link = MqttLink(world.broker, port, world.options, world.new_client_id, peer="memory", now=world.now)
        super().__init__(world, port, link)
        self.version = version
        self.inbox: list[Packet] = []
        self._partial = b""
        self._ids = itertools.count()  # a cycle would remember all it gave

    # -- to the broker ------------------------------------------------------------------------

    def feed_packets(self, *packets: Packet) -> Self:
        return self.feed(b"".join(encode(p, self.version) for p in packets))

    def send(self, *packets: Packet) -> Self:
        self.feed_packets(*packets)
        self.world.settle()
        return self

    def new_id(self) -> int:
        return next(self._ids) % 65_535 + 1

    def subscribe(self, *filters: str, qos: int = 0, identifier: int = 0, **options: Any) -> tuple[int, ...]:
        requests = tuple(SubscriptionRequest(f, qos, **options) for f in filters)
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
        self.send(Subscribe(self.new_id(), requests, properties))
        return self.take(SubAck)[0].reason_codes

    def unsubscribe(self, *filters: str) -> None:
        self.send(Unsubscribe(self.new_id(), filters))
        assert self.take(UnsubAck)

    def publish(self, topic: str, *payloads: bytes, qos: int = 0, **fields: Any) -> None:
        """All in one piece, and at QoS 2 released."""
        ids = [self.new_id() if qos else 0 for _ in payloads]
        pairs = zip(payloads, ids, strict=True)
        self.send(*(Publish(topic, payload, qos, packet_id=i, **fields) for payload, i in pairs))
        if qos == 2:
            self.send(*(PubRel(i) for i in ids))

    # -- from the broker ------------------------------------------------------------------------

    def packets(self) -> list[Packet]:
        """Everything that was written so far."""
        self._fill()
        packets, self.inbox = self.inbox, []
        return packets

    def take(self, kind: type[P]) -> list[P]:
        """Every packet of this type; the others stay."""
        self._fill()
        found = [p for p in self.inbox if isinstance(p, kind)]
        self.inbox = [p for p in self.inbox if not isinstance(p, kind)]
        return found

    def payloads(self) -> list[bytes]:
        return [p.payload for p in self.take(Publish)]

    def receive_all(self) -> list[Publish]:
        """Take deliveries and acknowledge them, until there are no more."""
        received: list[Publish] = []
        while True:
            packets = self.packets()
            if not packets:
                return received
            received += [p for p in packets if isinstance(p, Publish)]
            self.send(*answers(packets))

    def _fill(self) -> None:
        data = self._partial + self.port.take()
        pos = 0
        while (found := next_frame(data, pos, NO_LIMIT)) is not None:
            first_byte, start, pos = found
            self.inbox.append(decode(first_byte, data[start:pos], self.version))
        self._partial = data[pos:]


class World:
    """A broker and its clock."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        access: Access | None = None,
        options: MqttOptions | None = None,
        **settings: Any,
    ) -> None:
        self.now = 1_000.0
        self.options = options or MqttOptions()
        self.broker = Broker(limits, access=access, wake=self._wake, **settings)
        self.broker.now = self.broker.dispatcher.now = self.now
        self._client_ids = itertools.count(1)
        self._is_awake = False

    def open(self, version: int = V311) -> Peer:
        """A connection on which nothing was sent yet."""
        return Peer(self, version)

    def connect(
        self,
        client_id: str,
        version: int = V311,
        *,
        clean_start: bool = True,
        keeps: bool = False,
        **fields: Any,
    ) -> Peer:
        """A client that was accepted. `keeps`: with a session that outlives the connection."""
        peer = self.open(version)
        peer.send(connect_packet(client_id, version, clean_start=clean_start, keeps=keeps, **fields))
        assert [c.reason_code for c in peer.take(ConnAck)] == [0]
        return peer

    def settle(self) -> None:
        while self._is_awake:
            self._is_awake = False
            self.broker.tick(self.now)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.broker.timers.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.broker.run_timers(self.now)
            self.settle()
        self.now = end
        self.broker.housekeep(end)
        self.settle()

    def new_client_id(self) -> str:
        return f"assigned-{next(self._client_ids)}"

    def _wake(self) -> None:
        self._is_awake = True


def connect_packet(
    client_id: str,
    version: int = V311,
    *,
    clean_start: bool = True,
    keeps: bool = False,
    **fields: Any,
) -> Connect:
    own = {name: fields.pop(name) for name in list(fields) if name in Connect.__struct_fields__}
    if keeps and version == V5:
        fields.setdefault("session_expiry_s", 3600)
    properties = Properties(**fields) if fields else NO_PROPERTIES
    return Connect(
        client_id, version, clean_start and not (keeps and version < V5), properties=properties, **own
    )


def answers(packets: Iterable[Packet]) -> list[Packet]:
    """What a client says to these."""
    replies: list[Packet] = []
    for packet in packets:
        if isinstance(packet, Publish) and packet.qos:
            replies.append((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
        elif isinstance(packet, PubRel):
            replies.append(PubComp(packet.packet_id))
        elif isinstance(packet, PubRec):
            replies.append(PubRel(packet.packet_id))
    return replies


def check_accounts(broker: Broker) -> None:
    """What the broker keeps count of is what there is."""
    dispatcher = broker.dispatcher
    sessions = list(broker.registry.sessions.values())
    queues = [s.queue for s in sessions if s.queue is not None]
    check_holdings(broker)
    assert dispatcher.queued_sessions == {s for s in sessions if s.queue is not None}
    for queue in queues:
        items = list(queue.items())
        assert queue.messages == sum(i.count for i in items) > 0
        assert queue.size_bytes == sum(i.size_bytes() for i in items)
    links = [s.link for s in sessions if s.link is not None]
    assert dispatcher.backlog_bytes == sum(link.backlog_bytes for link in links)
    assert broker.registry.connected == sum(s.link is not None and not s.is_neighbor for s in sessions)
    assert broker.subscriptions.count == sum(len(s.subscriptions) for s in sessions)
    for session in sessions:
        waiting = set(session.resend or ())
        if session.link is None:
            assert session.outstanding == session.unnoted
        else:
            assert session.outstanding == len(session.inflight.keys() - waiting) + session.unnoted
            assert session.outstanding <= session.window


def check_holdings(broker: Broker) -> None:
    """The budget counts each message, or the bytes of each run, once, and some more for each who holds it."""
    bodies: dict[int, tuple[Message | Run, int]] = {}
    messages = 0
    for session in broker.registry.sessions.values():
        items = list(session.queue.items()) if session.queue is not None else []
        messages += len(items)
        runs: dict[int, list[DeliveryRun]] = {}
        size_bytes = 0
        for sent in session.inflight.values():
            if sent is None:
                continue
            messages += 1
            size_bytes += sent.size_bytes()
            if isinstance(sent, DeliveryRun):
                runs.setdefault(id(sent), []).append(sent)
            else:
                items.append(sent)
        assert session.inflight_bytes == size_bytes
        for same in runs.values():
            assert same[0].left == len(same)
            items.append(same[0].run)
        for item in items:
            key = id(item.message if isinstance(item, Delivery) else item.wire)
            body, holders = bodies.setdefault(key, (item.body, 0))
            assert body is item.body
            bodies[key] = body, holders + 1
    assert all(body.holders == holders for body, holders in bodies.values())
    shared = sum(body.body_bytes() for body, _ in bodies.values())
    assert broker.dispatcher.holdings.size_bytes == shared + messages * OVERHEAD_BYTES


def eventually(condition: Callable[[], bool], world: World, ticks: int = 100) -> None:
    for _ in range(ticks):
        if condition():
            return
        world.broker.tick(world.now)
    assert condition()
