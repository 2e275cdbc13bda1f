"""A scripted broker for `MqttCore`: says what must come, answers, and keeps what the core reports."""

from typing import Self, TypeVar

from polybus.client.events import Accepted, CoreEvent, Ended, Received
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_core import MqttCore
from polybus.client.mqtt_settings import MqttSettings
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import ConnAck, Connect, Packet, Properties

P = TypeVar("P", bound=Packet)
MAX_SIZE = 268_435_460


class Script:
    """`bytewise` feeds every answer byte by byte, as a network may."""

    def __init__(self, settings: MqttSettings, *, bytewise: bool = False) -> None:
        self.core = MqttCore(settings)
        self.version = settings.version
        self.now = 100.0
        self.bytewise = bytewise
        self.events: list[CoreEvent] = []
        self.last: Packet | None = None
        self._sent: list[Packet] = []

    # --- the client acts ---

    def connect(self, ack: ConnAck | None = None) -> Self:
        """The whole handshake."""
        self.core.connect(now=self.now)
        return self.expect(Connect).reply(ack or ConnAck())

    def lose(self) -> Self:
        self.core.take_output(now=self.now)
        self.core.connection_lost()
        return self

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

    # --- the broker acts ---

    def expect(self, kind: type[Packet], **fields: object) -> Self:
        """The client's next packet is of this kind and has these fields."""
        self._collect()
        assert self._sent, f"expected {kind.__name__}, but nothing was sent"
        self.last = self._sent.pop(0)
        assert isinstance(self.last, kind), f"expected {kind.__name__}, got {self.last}"
        for name, value in fields.items():
            assert getattr(self.last, name) == value, f"{name} of {self.last}"
        return self

    def expect_nothing(self) -> Self:
        self._collect()
        assert self._sent == []
        return self

    def reply(self, *packets: Packet) -> Self:
        return self.reply_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def reply_bytes(self, data: bytes) -> Self:
        parts = [data[index : index + 1] for index in range(len(data))] if self.bytewise else [data]
        for part in parts:
            self.events.extend(self.core.receive(part, now=self.now))
        return self

    def wait(self, seconds: float) -> Self:
        self.now += seconds
        self.events.extend(self.core.tick(now=self.now))
        return self

    # --- what the core reported ---

    def take(self, kind: type[P] | type[CoreEvent]) -> list[CoreEvent]:
        """The events of one kind; the others are forgotten."""
        taken = [event for event in self.events if isinstance(event, kind)]
        self.events.clear()
        return taken

    @property
    def accepted(self) -> Accepted:
        return next(event for event in reversed(self.events) if isinstance(event, Accepted))

    @property
    def ended(self) -> Ended:
        assert isinstance(self.events[-1], Ended), self.events
        return self.events[-1]

    def _collect(self) -> None:
        data, pos = self.core.take_output(now=self.now), 0
        while (frame := next_frame(data, pos, MAX_SIZE)) is not None:
            first_byte, start, pos = frame
            self._sent.append(decode(first_byte, data[start:pos], self.version))
        assert pos == len(data), "the client sent half a packet"
