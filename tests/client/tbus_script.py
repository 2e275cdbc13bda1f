"""A scripted broker for `TbusCore`: says what must come, answers, and keeps what the core reports."""

from typing import Any, Self

from polybus.client.events import Accepted, CoreEvent, Ended
from polybus.client.message import Message, SubscribeOptions
from polybus.client.tbus_core import TbusCore
from polybus.client.tbus_settings import TbusSettings
from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import Bulk, ConnAck, Connect, Packet, Publish

MAX_SIZE = 268_435_460


class TbusScript:
    """`bytewise` feeds every answer byte by byte, as a network may."""

    def __init__(self, *, bytewise: bool = False, **settings: Any) -> None:
        self.core = TbusCore(TbusSettings(**{"client_id": "c", **settings}))
        self.now = 100.0
        self.bytewise = bytewise
        self.events: list[CoreEvent] = []
        self.last: Packet | None = None
        self.bulks = 0
        self._sent: list[Packet] = []

    # --- the client acts ---

    def connect(self, ack: ConnAck | None = None) -> Self:
        """The whole handshake."""
        self.core.connect(now=self.now)
        return self.expect(Connect).reply(ack or ConnAck())

    def lose(self) -> Self:
        """The connection is gone, with what was on its way."""
        self.core.take_output(now=self.now)
        self._sent.clear()
        self.core.connection_lost()
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

    def expect_request(self, **fields: object) -> Publish:
        self.expect(Publish, is_request=True, **fields)
        assert isinstance(self.last, Publish)
        return self.last

    def expect_nothing(self) -> Self:
        self._collect()
        assert self._sent == []
        return self

    def reply(self, *packets: Packet) -> Self:
        return self.reply_bytes(b"".join(map(encode, packets)))

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

    def take(self) -> list[CoreEvent]:
        taken, self.events = self.events, []
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
            packet = decode(first_byte, data[start:pos])
            if isinstance(packet, Bulk):
                self.bulks += 1
                body = packet.body
                self._sent += [decode(first, body[begin:stop]) for first, begin, stop in frames(body)]
            else:
                self._sent.append(packet)
        assert pos == len(data), "the client sent half a packet"
