"""A scripted broker for `TbusCore`."""

from typing import Any, Self

from polybus.client.events import CoreEvent
from polybus.client.message import Message, SubscribeOptions
from polybus.client.tbus_core import TbusCore
from polybus.client.tbus_settings import TbusSettings
from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import Bulk, ConnAck, Connect, Packet, Publish
from tests.client.scripted_broker import MAX_SIZE, ScriptedBroker


class TbusScript(ScriptedBroker[Packet]):
    core: TbusCore

    def __init__(self, *, bytewise: bool = False, **settings: Any) -> None:
        super().__init__(bytewise=bytewise)
        self.core = TbusCore(TbusSettings(**{"client_id": "c", **settings}))
        self.bulks = 0

    def encoded(self, packet: Packet) -> bytes:
        return encode(packet)

    def frames(self, data: bytes) -> tuple[list[Packet], int]:
        packets: list[Packet] = []
        pos = 0
        while (frame := next_frame(data, pos, MAX_SIZE)) is not None:
            first_byte, start, pos = frame
            packet = decode(first_byte, data[start:pos])
            if isinstance(packet, Bulk):
                self.bulks += 1
                body = packet.body
                packets += [decode(first, body[begin:stop]) for first, begin, stop in frames(body)]
            else:
                packets.append(packet)
        return packets, pos

    def connect(self, ack: ConnAck | None = None) -> Self:
        """The whole handshake."""
        self.core.connect(now=self.now)
        return self.expect(Connect).reply(ack or ConnAck())

    def lose(self) -> Self:
        """What was on its way is gone too."""
        super().lose()
        self._sent.clear()
        return self

    def publish(self, topic: str, payload: bytes = b"x", wait_s: int = 0, *, priority: bool = False) -> int:
        return self.core.publish(Message(topic, payload, priority=priority), wait_s, now=self.now)

    def request(
        self,
        topic: str = "t",
        payload: bytes = b"x",
        timeout_s: float = 5,
        *,
        may_wait: bool = True,
        priority: bool = False,
    ) -> int:
        return self.core.request(Message(topic, payload, priority=priority), timeout_s, may_wait, now=self.now)

    def subscribe(self, topic_filter: str, concurrency: int = 0) -> int:
        return self.core.subscribe(SubscribeOptions(topic_filter, concurrency=concurrency), now=self.now)

    def cancel(self, token: int) -> bool:
        """True if it had not been sent."""
        return self.core.abandon(token, now=self.now)

    def expect_request(self, **fields: object) -> Publish:
        self.expect(Publish, is_request=True, **fields)
        assert isinstance(self.last, Publish)
        return self.last

    def take(self) -> list[CoreEvent]:
        taken, self.events = self.events, []
        return taken
