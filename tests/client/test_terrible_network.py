"""A client core and a small broker with a kept session over a network that breaks at any byte.

Each seed is one history of publishes, handling and losses. Afterwards the network heals, and then:
QoS 1 arrived at least once, QoS 2 exactly once, in both directions.
"""

import random
from collections import Counter

import pytest

from polybus.client.events import Completed, Received
from polybus.client.message import Message
from polybus.client.mqtt_core import MqttCore, State
from polybus.client.mqtt_settings import MqttSettings
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    V5,
    ConnAck,
    Connect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)

STEPS = 400


class SmallBroker:
    """Keeps one session for ever. `window` is the receive maximum it announces."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.accepted: Counter[bytes] = Counter()
        self.output = b""
        self._input = b""
        self._received: set[int] = set()  # QoS 2 ids between PUBLISH and PUBREL
        self.under_way: dict[int, Publish | PubRel] = {}
        self._has_session = False

    def publish(self, payload: bytes, qos: int) -> None:
        free = next(n for n in range(1, 0x10000) if n not in self.under_way)
        packet = Publish("down", payload, qos, packet_id=free)
        self.under_way[free] = packet
        self._send(packet)

    def lose(self) -> None:
        self.output = self._input = b""

    def receive(self, data: bytes) -> None:
        self._input += data
        while (frame := next_frame(self._input, 0, 1 << 20)) is not None:
            first_byte, start, end = frame
            body, self._input = self._input[start:end], self._input[end:]
            self._handle(decode(first_byte, body, V5))

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Connect():
                self._send(ConnAck(0, self._has_session, Properties(receive_maximum=self.window)))
                self._has_session = True
                for known in self.under_way.values():
                    self._send(_repeated(known))
            case Publish(qos=1):
                self.accepted[packet.payload] += 1
                self._send(PubAck(packet.packet_id))
            case Publish(qos=2):
                if packet.packet_id not in self._received:
                    self._received.add(packet.packet_id)
                    self.accepted[packet.payload] += 1
                assert len(self._received) <= 2 * self.window
                self._send(PubRec(packet.packet_id))
            case PubRel():
                self._received.discard(packet.packet_id)
                self._send(PubComp(packet.packet_id))
            case PubRec():
                self.under_way[packet.packet_id] = PubRel(packet.packet_id)
                self._send(PubRel(packet.packet_id))
            case PubAck() | PubComp():
                self.under_way.pop(packet.packet_id, None)
            case _:
                raise AssertionError(packet)

    def _send(self, packet: Packet) -> None:
        self.output += encode(packet, V5)


def _repeated(packet: Publish | PubRel) -> Publish | PubRel:
    if isinstance(packet, PubRel):
        return packet
    return Publish(packet.topic, packet.payload, packet.qos, dup=True, packet_id=packet.packet_id)


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.core = MqttCore(MqttSettings(client_id="c", clean_start=False, session_expiry_s=600))
        self.broker = SmallBroker(window=self.random.choice([1, 3, 50]))
        self.sent: dict[bytes, int] = {}
        self.tokens: set[int] = set()
        self.delivered: Counter[bytes] = Counter()
        self.unhandled: list[Received] = []
        self._to_broker = b""
        self.now = 0.0

    def step(self) -> None:
        action = self.random.choices(
            [self.client_publishes, self.broker_publishes, self.handle_one, self.move_bytes, self.break_down],
            [4, 4, 6, 12, 1],
        )[0]
        action()
        self.now += 0.01

    def client_publishes(self) -> None:
        payload = b"up %d" % len(self.sent)
        self.sent[payload] = qos = self.random.choice([1, 2])
        self.tokens.add(self.core.publish(Message("up", payload, qos), now=self.now))

    def broker_publishes(self) -> None:
        if self.core.state is State.CONNECTED:
            payload = b"down %d" % len(self.sent)
            self.sent[payload] = qos = self.random.choice([1, 2])
            self.broker.publish(payload, qos)

    def handle_one(self) -> None:
        if self.unhandled:
            received = self.unhandled.pop(self.random.randrange(len(self.unhandled)))
            self.delivered[received.message.payload] += 1
            assert received.receipt is not None
            self.core.acknowledge(received.receipt, now=self.now)

    def move_bytes(self, everything: bool = False) -> None:
        if self.core.state is State.IDLE:
            self.core.connect(now=self.now)
        self._to_broker += self.core.take_output(now=self.now)
        size = len(self._to_broker) if everything else self.random.randint(0, len(self._to_broker))
        data, self._to_broker = self._to_broker[:size], self._to_broker[size:]
        self.broker.receive(data)
        size = len(self.broker.output) if everything else self.random.randint(0, len(self.broker.output))
        data, self.broker.output = self.broker.output[:size], self.broker.output[size:]
        for event in self.core.receive(data, now=self.now):
            match event:
                case Received():
                    self.unhandled.append(event)
                case Completed(token):
                    self.tokens.remove(token)

    def break_down(self) -> None:
        """What is under way is lost, in both directions."""
        self._to_broker = b""
        self.broker.lose()
        self.core.connection_lost()

    def heal(self) -> None:
        for _ in range(10_000):
            if not (self.tokens or self.unhandled or self.broker.under_way):
                return
            self.move_bytes(everything=True)
            self.handle_one()
        raise AssertionError("the network healed, but the exchange does not come to its end")


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_and_qos_2_is_never_doubled(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.heal()
    got = history.delivered + history.broker.accepted
    for payload, qos in history.sent.items():
        assert got[payload] == 1 if qos == 2 else got[payload] >= 1, (seed, payload, qos, got[payload])
