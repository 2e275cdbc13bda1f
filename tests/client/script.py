"""A scripted broker for `MqttCore`."""

from typing import Self, TypeVar

from polybus.client.events import CoreEvent, Received
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_core import MqttCore
from polybus.client.mqtt_settings import MqttSettings
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import ConnAck, Connect, Packet, Properties
from tests.client.scripted_broker import MAX_SIZE, ScriptedBroker

P = TypeVar("P", bound=Packet)


class Script(ScriptedBroker[Packet]):
    core: MqttCore

    def __init__(self, settings: MqttSettings, *, bytewise: bool = False) -> None:
        super().__init__(bytewise=bytewise)
        self.core = MqttCore(settings)
        self.version = settings.version

    def encoded(self, packet: Packet) -> bytes:
        return encode(packet, self.version)

    def frames(self, data: bytes) -> tuple[list[Packet], int]:
        packets, pos = [], 0
        while (frame := next_frame(data, pos, MAX_SIZE)) is not None:
            first_byte, start, pos = frame
            packets.append(decode(first_byte, data[start:pos], self.version))
        return packets, pos

    def connect(self, ack: ConnAck | None = None) -> Self:
        """The whole handshake."""
        self.core.connect(now=self.now)
        return self.expect(Connect).reply(ack or ConnAck())

    def reconnect(self, *, session_present: bool, **properties: int) -> Self:
        return self.lose().connect(
            ConnAck(session_present=session_present, properties=Properties(**properties))
        )

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 0, retain: bool = False) -> int:
        return self.core.publish(Message(topic, payload, qos, retain), now=self.now)

    def subscribe(self, topic_filter: str, qos: int = 1, identifier: int = 0) -> int:
        return self.core.subscribe(SubscribeOptions(topic_filter, qos, identifier=identifier), now=self.now)

    def handle(self, received: CoreEvent) -> Self:
        """The application is done with a message."""
        assert isinstance(received, Received)
        assert received.receipt is not None
        self.core.acknowledge(received.receipt, now=self.now)
        return self

    def take(self, kind: type[P] | type[CoreEvent]) -> list[CoreEvent]:
        """The events of one kind; the others are forgotten."""
        taken = [event for event in self.events if isinstance(event, kind)]
        self.events.clear()
        return taken
