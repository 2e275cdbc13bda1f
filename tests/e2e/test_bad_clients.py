"""Bytes that make no sense, over real sockets: others do not notice, and the log keeps its countenance."""

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V5, V311, Connect, PubAck, Publish, Subscribe, SubscriptionRequest
from tests.e2e.conftest import StartBus
from tests.e2e.processes import EVERY_KIND, Served
from tests.e2e.traffic import Exchange, connected
from tests.net.peers import Peer, dial, trusting, unix_stream

SEED = 20_240_607
HTTP_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curious\r\nAccept: text/html, text/plain\r\n\r\n"
every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


@asynccontextmanager
async def opened(bus: Served, kind: str, *, inside_tls: bool = True) -> AsyncIterator[Peer]:
    """A connection whose bytes reach the listener as they are, within TLS if it has that."""
    if kind == "unix":
        async with unix_stream(bus.socket_path) as peer:
            yield peer
        return
    context = trusting(bus.certificates) if inside_tls and kind in ("tls", "wss") else None
    async with dial(bus.ports[kind], ssl=context) as peer:
        yield peer


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


@every_kind
async def test_random_bytes(bus: Served, kind: str) -> None:
    noise = random.Random(SEED)
    async with Exchange(bus) as exchange:
        for round in range(40):
            async with opened(bus, kind, inside_tls=bool(round % 2)) as peer:
                with contextlib.suppress(ConnectionError):
                    peer.write(noise.randbytes(noise.choice((1, 2, 10, 100, 5000, 200_000))))
                    await peer.drain()
                if round % 3 == 0:
                    peer.reset()
        await exchange.goes_on()


@pytest.mark.parametrize("version", [V311, V5])
async def test_mutated_packets_after_a_good_connect(bus: Served, version: int) -> None:
    noise = random.Random(SEED + version)
    good = b"".join(
        encode(packet, version)
        for packet in (
            Subscribe(1, (SubscriptionRequest("bad/#", 1),)),
            Publish("bad/topic", b"payload", 1, packet_id=2),
            Publish("bad/topic", b"payload", 0),
            PubAck(1),
        )
    )
    async with Exchange(bus) as exchange:
        for round in range(150):
            mutated = bytearray(good)
            for _ in range(noise.randint(1, 4)):
                mutated[noise.randrange(len(mutated))] = noise.randrange(256)
            async with dial(bus.port) as peer:
                peer.version = version
                peer.write(encode(Connect(f"mutant{round}", version), version) + mutated)
                with contextlib.suppress(AssertionError):
                    await peer.receive()
        await exchange.goes_on()


@every_kind
@pytest.mark.parametrize("said", [HTTP_GET, tls_hello()], ids=["http get", "tls hello"])
async def test_the_wrong_protocol(bus: Served, kind: str, said: bytes) -> None:
    """It is closed soon, though not in words that a stranger would understand."""
    async with Exchange(bus) as exchange, opened(bus, kind, inside_tls=False) as peer:
        peer.write(said)
        if said is HTTP_GET or kind not in ("tls", "wss"):  # there a hello is the right beginning
            answer = await peer.rest()
            assert not answer.startswith(b"\x20")
            assert answer.startswith(b"HTTP/1.1 4") == (kind == "websocket" and said is HTTP_GET)
        await exchange.goes_on()


async def test_a_stranger_is_known_by_its_first_byte(bus: Served) -> None:
    """GET announces, in words of MQTT, a packet of 71 bytes: nobody need wait for the rest."""
    async with dial(bus.port) as peer, asyncio.timeout(5):
        peer.write(b"GET / HTTP/1.1\r\n\r\n")
        await peer.rest()


async def test_connects_that_come_byte_by_byte(start_bus: StartBus) -> None:
    """Many at once, each with a sign of life now and then: all are let go in time."""
    bus = start_bus("[limits]\nconnect_timeout_s = 1.0\n", EVERY_KIND)
    packet = encode(Connect("x" * 1000, V5), V5)

    async def dribble(kind: str) -> int:
        async with opened(bus, kind) as peer:
            ended = asyncio.create_task(peer.rest())
            for sent, byte in enumerate(packet):
                if ended.done():
                    return sent
                with contextlib.suppress(ConnectionError):
                    peer.write(bytes((byte,)))
                await asyncio.wait([ended], timeout=0.05)
            raise AssertionError(f"{kind}: the whole CONNECT was waited for")

    async with Exchange(bus) as exchange:
        sent = await asyncio.gather(*(dribble(kind) for kind in EVERY_KIND for _ in range(10)))
        assert max(sent) < len(packet)
        await exchange.goes_on()
    bus.check_health()


async def test_connections_that_come_and_go(bus: Served) -> None:
    """Half of them in the middle of their CONNECT, half of them by reset; none stays behind."""
    packet = encode(Connect("", V5), V5)
    async with Exchange(bus) as exchange:
        for number in range(300):
            with socket.create_connection(("127.0.0.1", bus.port)) as sock:
                sock.sendall(packet[: number % (len(packet) + 1)])
                if number % 2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await exchange.goes_on()
        async with connected(bus.port, "watcher") as watcher:
            await watcher.subscribe("$SYS/broker/clients/connected")
            while True:  # the exchange and the watcher
                message = await watcher.receive()
                assert isinstance(message, Publish)
                if int(message.payload) == 3:
                    break


async def test_a_packet_larger_than_allowed_is_not_read(start_bus: StartBus) -> None:
    bus = start_bus("[limits]\npacket_size_bytes = 10000\nmemory_bytes = 2000000\n")
    before = bus.rss_bytes()
    async with Exchange(bus) as exchange:
        for said in (b"\x10\xff\xff\xff\x7f", encode(Connect("x", V5), V5) + b"\x30\xff\xff\xff\x7f"):
            async with dial(bus.port) as peer:
                peer.write(said)
                with contextlib.suppress(ConnectionError):
                    for _ in range(100):
                        peer.write(bytes(100_000))
                        await peer.drain()
                await peer.rest()
        await exchange.goes_on()
    assert bus.rss_bytes() - before < 20_000_000
    bus.check_health()
