"""A served broker in this process, and clients that speak to it packet by packet."""

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from polybus.broker.limits import Limits
from polybus.net.server import Server
from polybus.ops.config import Auth, Config
from polybus.ops.listeners import Listener
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    V5,
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.client.certificates import Certificates

PATIENCE_S = 20.0
"""How long anything may take on a busy machine before a test fails."""


@asynccontextmanager
async def serving(
    *listeners: Listener, limits: Limits | None = None, auth: Auth | None = None
) -> AsyncIterator[Server]:
    """A server with these listeners (default: one on TCP) that stops at the end."""
    config = Config(listeners=listeners or (Listener(),), limits=limits or Limits(), auth=auth or Auth())
    async with serving_config(config) as server:
        yield server


@asynccontextmanager
async def serving_config(config: Config) -> AsyncIterator[Server]:
    thresholds = gc.get_threshold()
    server = Server(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        gc.unfreeze()  # the server tunes the collector for a process of its own
        gc.set_threshold(*thresholds)


async def eventually(
    condition: Callable[[], bool], what: str = "the condition", *, patience_s: float = PATIENCE_S
) -> None:
    """Wait until it holds."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.005)


def port_of(server: Server, index: int = 0) -> int:
    return urlsplit(server.urls[index]).port or 0


def trusting(certificates: Certificates, client: str | None = None) -> ssl.SSLContext:
    """Trusts the tests' authority; shows the certificate `client` if there is one."""
    context = ssl.create_default_context(cafile=certificates.cert("ca"))
    if client is not None:
        context.load_cert_chain(certificates.cert(client), certificates.key(client))
    return context


class Peer:
    """One connection, seen from the client's side. Everything it awaits has a time limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int = V5) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._aside: list[Packet] = []
        self.version = version

    # raw bytes

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()

    async def some(self) -> bytes:
        """What has come, at least a byte."""
        async with asyncio.timeout(PATIENCE_S):
            data, self._buffer = self._buffer or await self._reader.read(1 << 18), b""
        assert data, "the server closed"
        return data

    async def rest(self) -> bytes:
        """Everything up to the end, which must come."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while data := await self._reader.read(1 << 16):
                    self._buffer += data
        return self._buffer

    def half_close(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        """Go away without a word: the server gets RST."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    # packets

    def send(self, *packets: Packet) -> None:
        self._writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def receive(self) -> Packet:
        return self._aside.pop(0) if self._aside else await self._next()

    async def _next(self) -> Packet:
        async with asyncio.timeout(PATIENCE_S):
            while (frame := next_frame(self._buffer, 0, 1 << 28)) is None:
                data = await self._reader.read(1 << 16)
                assert data, f"the server closed; left over: {self._buffer!r}"
                self._buffer += data
        first_byte, start, end = frame
        body, self._buffer = self._buffer[start:end], self._buffer[end:]
        return decode(first_byte, body, self.version)

    async def packets_to_the_end(self) -> list[Packet]:
        await self.rest()
        found: list[Packet] = []
        while (frame := next_frame(self._buffer, 0, 1 << 28)) is not None:
            first_byte, start, end = frame
            found.append(decode(first_byte, self._buffer[start:end], self.version))
            self._buffer = self._buffer[end:]
        return found

    async def greet(self, connect: Connect) -> ConnAck:
        self.version = connect.version
        self.send(connect)
        answer = await self.receive()
        assert isinstance(answer, ConnAck)
        return answer

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        self.send(Subscribe(1, tuple(SubscriptionRequest(each, qos) for each in filters)))
        while not isinstance(answer := await self._next(), SubAck):
            self._aside.append(answer)  # 5.0 section 3.8.4: messages may come before
        assert answer.reason_codes == (qos,) * len(filters)

    async def publish(self, topic: str, payload: bytes = b"", qos: int = 1, *, retain: bool = False) -> int:
        """The reason code of the acknowledgement."""
        self.send(Publish(topic, payload, qos, retain, packet_id=1 if qos else 0))
        if not qos:
            return 0
        answer = await self.receive()
        assert isinstance(answer, PubAck)
        return answer.reason_code

    async def ping(self) -> None:
        self.send(PingReq())
        assert isinstance(await self.receive(), PingResp)


@asynccontextmanager
async def dial(port: int, **options: object) -> AsyncIterator[Peer]:
    """A connection to a port of this machine; nothing is said yet."""
    async with asyncio.timeout(PATIENCE_S):
        opened = await asyncio.open_connection("127.0.0.1", port, **options)  # type: ignore[arg-type]
    peer = Peer(*opened)
    try:
        yield peer
    finally:
        await peer.close()


def stream(server: Server, index: int = 0, **options: object) -> AbstractAsyncContextManager[Peer]:
    """A connection to a TCP or TLS listener; nothing is said yet."""
    return dial(port_of(server, index), **options)


@asynccontextmanager
async def unix_stream(path: Path) -> AsyncIterator[Peer]:
    async with asyncio.timeout(PATIENCE_S):
        opened = await asyncio.open_unix_connection(path)
    peer = Peer(*opened)
    try:
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def client(
    server: Server, client_id: str, index: int = 0, *, version: int = V5, **options: object
) -> AsyncIterator[Peer]:
    """A client that has its CONNACK."""
    async with stream(server, index, **options) as peer:
        answer = await peer.greet(Connect(client_id, version))
        assert answer.reason_code == 0
        yield peer


async def check_exchange(subscriber: Peer, publisher: Peer, payload: bytes = b"hello") -> None:
    """What a listener is for: a message gets from the one to the other."""
    await subscriber.subscribe("a/b", qos=1)
    assert await publisher.publish("a/b", payload) == 0
    message = await subscriber.receive()
    assert isinstance(message, Publish)
    assert (message.topic, message.payload) == ("a/b", payload)
    subscriber.send(PubAck(message.packet_id))
