"""A broker in the same loop, for tests of the bus without sockets. Answers by itself; can be told
not to, to be away, and to lose connections."""

import asyncio
from collections.abc import Callable

from polybus.client.backoff import Backoff
from polybus.client.bus import Bus
from polybus.client.errors import ConnectionFailed
from polybus.client.events import BusEvent
from polybus.client.mqtt_core import MqttCore
from polybus.client.mqtt_settings import MqttSettings
from polybus.client.transport import Receiver, Transport
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)

MAX_SIZE = 268_435_460


class FakeTransport:
    def __init__(self, broker: "FakeBroker", receiver: Receiver) -> None:
        self.broker = broker
        self.receiver = receiver
        self.is_reading = True
        self.is_closed = False
        self._unread: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.broker.receive(data)

    def deliver(self, data: bytes) -> None:
        if self.is_reading:
            asyncio.get_running_loop().call_soon(self._deliver_now, data)
        else:
            self._unread.append(data)

    def _deliver_now(self, data: bytes) -> None:
        if not self.is_closed:
            self.receiver.data_received(data)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        unread, self._unread = self._unread, []
        for data in unread:
            self.deliver(data)

    async def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class FakeBroker:
    def __init__(self) -> None:
        self.received: list[Packet] = []
        self.transport: FakeTransport | None = None
        self.connections = 0
        self.connack = ConnAck()
        self.is_away = False
        self.answers: dict[type[Packet], Callable[[Packet], list[Packet]]] = dict(ANSWERS)

    def bus(
        self,
        on_event: Callable[[BusEvent], None] | None = None,
        *,
        clean_start: bool = True,
        **options: object,
    ) -> Bus:
        values = {
            "timeout_s": 5.0,
            "connect_timeout_s": 5.0,
            "reconnect": Backoff(0.001, 0.002),
            "on_event": on_event,
            **options,
        }
        settings = MqttSettings(client_id="c", clean_start=clean_start)
        return Bus(MqttCore(settings), self.dial, **values)  # type: ignore[arg-type]

    async def dial(self, receiver: Receiver) -> Transport:
        if self.is_away:
            raise ConnectionFailed("away")
        self.connections += 1
        self.transport = FakeTransport(self, receiver)
        return self.transport

    def receive(self, data: bytes) -> None:
        pos = 0
        while (frame := next_frame(data, pos, MAX_SIZE)) is not None:
            first_byte, start, pos = frame
            packet = decode(first_byte, data[start:pos], V5)
            self.received.append(packet)
            if isinstance(packet, Connect):
                self.send(self.connack)
            elif (answer := self.answers.get(type(packet))) is not None:
                self.send(*answer(packet))

    def send(self, *packets: Packet) -> None:
        """All in one read."""
        assert self.transport is not None
        if packets:
            self.transport.deliver(b"".join(encode(packet, V5) for packet in packets))

    def stop_answering(self, *kinds: type[Packet]) -> None:
        for kind in kinds:
            del self.answers[kind]

    def lose(self) -> None:
        """The connection breaks without a word."""
        assert self.transport is not None
        transport, self.transport = self.transport, None
        transport.is_closed = True
        transport.receiver.transport_closed(ConnectionResetError("reset"))

    def got(self, kind: type[Packet]) -> list[Packet]:
        return [packet for packet in self.received if isinstance(packet, kind)]


def _puback(packet: Packet) -> list[Packet]:
    assert isinstance(packet, Publish)
    answers: list[list[Packet]] = [[], [PubAck(packet.packet_id or 1)], [PubRec(packet.packet_id or 1)]]
    return answers[packet.qos]


ANSWERS: dict[type[Packet], Callable[..., list[Packet]]] = {
    Publish: _puback,
    PubRel: lambda packet: [PubComp(packet.packet_id)],
    PubRec: lambda packet: [PubRel(packet.packet_id)],
    Subscribe: lambda packet: [SubAck(packet.packet_id, tuple(r.qos for r in packet.requests))],
    Unsubscribe: lambda packet: [UnsubAck(packet.packet_id, (0,) * len(packet.topic_filters))],
    PingReq: lambda packet: [PingResp()],
    Disconnect: lambda packet: [],
}


async def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (any condition, not only one that can tell)
            await asyncio.sleep(0.002)
