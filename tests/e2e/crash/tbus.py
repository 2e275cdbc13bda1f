"""TBus clients that come back whenever the broker does: a requester and a service.

TBus acknowledges nothing. So a requester repeats what has not ended, under the same PacketId, each time it
comes back; docs/protocols/tbus.md promises that the broker does the same request once.
"""

import asyncio
import contextlib

from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    SubAck,
    Subscribe,
)
from tests.e2e.crash.world import POLL_S, RETRY_S, World, until

READ_BYTES = 65_536
LARGEST = 1 << 28
BULK_LIMIT = 100_000
TIMEOUT_S = 600
REQUEST_IDS = 60_000


class Gone(Exception):
    """The connection is gone."""


class TbusClient:
    def __init__(self, world: World, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self.is_connected = False
        self.is_away = False
        self._pongs = 0
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        while True:
            if not self.is_away:
                with contextlib.suppress(OSError, Gone):
                    await self._visit()
            await asyncio.sleep(RETRY_S)

    def send(self, packet: Packet) -> None:
        if self._writer is not None and self.is_connected and not self._writer.transport.is_closing():
            self._writer.write(encode(packet))

    async def ping(self) -> None:
        """Until the broker has read all that was sent before."""
        expected = self._pongs + 1
        self.send(PingReq())
        await until(lambda: self._pongs >= expected)

    def drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def welcomed(self) -> None:
        """Right after CONNACK."""

    def received(self, packet: Packet) -> None:
        """Anything after CONNACK."""

    async def _visit(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self.world.tbus_port)
        try:
            self._writer.write(encode(Connect(self.client_id, bulk_limit=BULK_LIMIT)))
            buffer = b""
            while data := await reader.read(READ_BYTES):
                buffer += data
                pos = 0
                while (frame := next_frame(buffer, pos, LARGEST)) is not None:
                    first_byte, start, pos = frame
                    self._take(decode(first_byte, buffer[start:pos]))
                buffer = buffer[pos:]
        finally:
            self.is_connected = False
            self._writer.transport.abort()
            self._writer = None

    def _take(self, packet: Packet) -> None:
        match packet:
            case Bulk(body):
                for first, begin, stop in frames(body):
                    self._take(decode(first, body[begin:stop]))
            case ConnAck(ConnectReason.SUCCESS):
                self.is_connected = True
                self.world.happened("connack")
                self.welcomed()
            case ConnAck(reason) | Disconnect(reason):
                self.world.books.strange.append(
                    f"{self.client_id}: {type(packet).__name__} {reason} {packet.reason_string}"
                )
                raise Gone
            case PingResp():
                self._pongs += 1
            case _:
                self.received(packet)


class TbusRequester(TbusClient):
    def __init__(self, world: World, client_id: str, topic: str) -> None:
        super().__init__(world, client_id)
        self.topic = topic
        self.unfinished: dict[int, Publish] = {}
        self.is_repeating = True
        self._asked = 0

    def ask(self) -> None:
        self._asked += 1
        assert self._asked <= REQUEST_IDS, "PacketIds would be used again"
        key = f"{self.client_id}-{self._asked}"
        request = Publish(self.topic, key.encode(), is_request=True, timeout_s=TIMEOUT_S, packet_id=self._asked)
        self.unfinished[self._asked] = request
        self.world.books.ask(key, None, ("answered", b"did " + key.encode()))
        self.send(request)

    async def ask_on(self, window: int, pause_s: float) -> None:
        while not self.world.is_draining:
            if self.is_connected and len(self.unfinished) < window:
                self.ask()
                await asyncio.sleep(self.world.pause_s(pause_s))
            else:
                await asyncio.sleep(POLL_S)

    def welcomed(self) -> None:
        if self.is_repeating:
            for request in self.unfinished.values():
                self.send(request)

    def received(self, packet: Packet) -> None:
        match packet:
            case Publish(is_response=True, packet_id=int(number), payload=payload):
                self._end(number, "answered", payload)
            case ReqAck(packet_id=number, state=state):
                self._end(number, f"REQACK {state.name}", (packet.reason_string or "").encode())

    def _end(self, number: int, status: str, payload: bytes) -> None:
        self.unfinished.pop(number, None)
        self.world.books.end(f"{self.client_id}-{number}", status, payload)
        self.world.happened("end")


class TbusService(TbusClient):
    def __init__(self, world: World, client_id: str, topic_filter: str, concurrency: int = 4) -> None:
        super().__init__(world, client_id)
        self._filter = topic_filter
        self._concurrency = concurrency

    def welcomed(self) -> None:
        self.send(Subscribe(1, self._filter, self._concurrency))

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.is_request:
            pause_s = 0.0 if self.world.is_draining else self.world.pause_s(0.05)
            asyncio.get_running_loop().call_later(pause_s, self._answer, packet)
        elif isinstance(packet, SubAck):
            self.world.happened("suback")

    def _answer(self, request: Publish) -> None:
        self.world.happened("answer")
        self.send(
            Publish(
                None,
                b"did " + request.payload,
                is_response=True,
                response_destination=request.response_destination,
                packet_id=request.packet_id,
            )
        )
