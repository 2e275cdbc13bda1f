"""What the scripted brokers share: say what must come, answer, and keep what the client's core reports."""

from abc import ABC, abstractmethod
from typing import Generic, Self, TypeVar

from polybus.client.core import Core
from polybus.client.events import Accepted, CoreEvent, Ended

MAX_SIZE = 268_435_460

PacketT = TypeVar("PacketT")


class ScriptedBroker(ABC, Generic[PacketT]):
    """`bytewise` feeds every answer byte by byte, as a network may."""

    core: Core

    def __init__(self, *, bytewise: bool) -> None:
        self.now = 100.0
        self.bytewise = bytewise
        self.events: list[CoreEvent] = []
        self.last: PacketT | None = None
        self._sent: list[PacketT] = []

    @abstractmethod
    def encoded(self, packet: PacketT) -> bytes: ...

    @abstractmethod
    def frames(self, data: bytes) -> tuple[list[PacketT], int]:
        """The packets in what the client wrote, and how many of its bytes they take."""

    def lose(self) -> Self:
        self.core.take_output(now=self.now)
        self.core.connection_lost()
        return self

    def expect(self, kind: type[PacketT], **fields: object) -> Self:
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

    def reply(self, *packets: PacketT) -> Self:
        return self.reply_bytes(b"".join(map(self.encoded, packets)))

    def reply_bytes(self, data: bytes) -> Self:
        parts = [data[index : index + 1] for index in range(len(data))] if self.bytewise else [data]
        for part in parts:
            self.events.extend(self.core.receive(part, now=self.now))
        return self

    def wait(self, seconds: float) -> Self:
        self.now += seconds
        self.events.extend(self.core.tick(now=self.now))
        return self

    @property
    def accepted(self) -> Accepted:
        return next(event for event in reversed(self.events) if isinstance(event, Accepted))

    @property
    def ended(self) -> Ended:
        assert isinstance(self.events[-1], Ended), self.events
        return self.events[-1]

    def _collect(self) -> None:
        data = self.core.take_output(now=self.now)
        packets, size = self.frames(data)
        self._sent += packets
        assert size == len(data), "the client sent half a packet"
