"""Peers that stop reading: memory stays within its limit, and nobody else is kept waiting.

A flood lasts some seconds; with ``POLYBUS_LONG=1`` a minute, as issue and requirements have it.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V5, V311, Connect, PubAck, Publish, SubAck
from tests.e2e.conftest import StartBus
from tests.e2e.processes import LONG, Served
from tests.e2e.traffic import Exchange, Flood, connected, subscribe_bytes
from tests.net.peers import Peer

FLOOD_S = 60.0 if LONG else 2.0
MIB = 1024 * 1024
MEMORY = 16 * MIB
SLACK = 48 * MIB
"""What a Python process may grow by for other reasons: arenas, and freed memory that is kept at hand."""
SETTINGS = f"""
[limits]
packet_size_bytes = {MIB}
memory_bytes = {MEMORY}
outbox_bytes_per_connection = {MIB}
queued_messages_per_session = 2000
queued_bytes_per_session = {4 * MIB}
inflight_per_session = 100
[mqtt]
sys_interval_s = 0.5
"""


class Watch:
    """The most memory that the bus takes while this runs."""

    def __init__(self, bus: Served) -> None:
        self._bus = bus

    async def __aenter__(self) -> "Watch":
        self.before = self.most = self._bus.rss_bytes()
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        self._look()
        print(f"memory: {self.before / MIB:.0f} MiB before, {self.most / MIB:.0f} MiB at most")

    @property
    def growth(self) -> int:
        self._look()
        return self.most - self.before

    def _look(self) -> None:
        self.most = max(self.most, self._bus.rss_bytes())

    async def _sample(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def deaf_socket(bus: Served, *said: bytes) -> AsyncIterator[socket.socket]:
    """It says something and does not read. Its receive buffer is small."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", bus.port))
        await loop.sock_sendall(sock, b"".join(said))
        yield sock


async def test_a_subscriber_stops_reading_in_a_qos_0_flood(start_bus: StartBus) -> None:
    bus = start_bus(SETTINGS)
    flood = Flood(bus, "flood")
    hello = encode(Connect("deaf", V311), V311)
    async with (
        Watch(bus) as memory,
        Exchange(bus) as exchange,
        deaf_socket(bus, hello, subscribe_bytes("flood", 0)) as deaf,
    ):
        await flood.run(FLOOD_S)
        assert flood.received == flood.sent
        assert memory.growth < MEMORY + SLACK
        await exchange.goes_on()
        async with connected(bus.port, "watcher") as watcher:
            dropped = await _reaches(watcher, "publish/messages/dropped", 1)
        print(f"{flood.sent} messages, {dropped} dropped")
        # It reads again: what was kept comes in order, then new ones.
        reader, writer = await asyncio.open_connection(sock=deaf.dup())
        peer = Peer(reader, writer, V311)
        assert (await peer.receive()).__class__.__name__ == "ConnAck"
        last = -1
        async with connected(bus.port, "late", V311) as late:
            late.send(Publish("flood", b"end"))
            while (message := await peer.receive()) != Publish("flood", b"end"):
                if isinstance(message, Publish):
                    (number,) = struct.unpack_from(">Q", message.payload)
                    assert number > last
                    last = number
        assert last >= 0
        await peer.ping()
        await peer.close()
    assert "reads too slowly" in bus.log
    print(exchange.summary)
    bus.check_health()


async def test_a_subscriber_stops_reading_in_a_qos_1_flood(start_bus: StartBus) -> None:
    """What it subscribed to with QoS 1 waits, up to the limits of its queue, and the rest is counted."""
    bus = start_bus(SETTINGS)
    hello = encode(Connect("deaf", V5), V5)
    payload = bytes(1000)
    async with (
        Watch(bus) as memory,
        Exchange(bus) as exchange,
        deaf_socket(bus, hello, subscribe_bytes("flood", 1, V5)) as deaf,
        connected(bus.port, "publisher", V5) as publisher,
        connected(bus.port, "watcher", V5) as watcher,
    ):
        count = 0
        until = asyncio.get_running_loop().time() + FLOOD_S
        while asyncio.get_running_loop().time() < until or count < 8000:
            publisher.send(
                *(Publish("flood", b"%08d" % (count + n) + payload, 1, packet_id=n + 1) for n in range(100))
            )
            for _ in range(100):
                assert isinstance(await publisher.receive(), PubAck)
            count += 100
        assert memory.growth < MEMORY + SLACK
        await exchange.goes_on()
        dropped = await _reaches(watcher, "publish/messages/dropped", 1)
        assert dropped <= count - 2000
        reader, writer = await asyncio.open_connection(sock=deaf.dup())
        peer = Peer(reader, writer, V5)
        await peer.receive()
        assert isinstance(await peer.receive(), SubAck)
        numbers: list[int] = []
        while len(numbers) < count - dropped:
            message = await peer.receive()
            assert isinstance(message, Publish)
            peer.send(PubAck(message.packet_id))
            numbers.append(int(message.payload[:8]))
        assert numbers == sorted(set(numbers))
        await publisher.publish("flood", b"live")
        message = await peer.receive()
        assert isinstance(message, Publish)
        assert message.payload == b"live"
        await peer.close()
    print(f"{count} messages, {dropped} dropped, {exchange.summary}")
    assert "queue is full" in bus.log
    bus.check_health()


@asynccontextmanager
async def spent_budget(start_bus: StartBus) -> AsyncIterator[Served]:
    """A bus whose subscribers stopped reading. Together they could hold far more than its budget.

    Each has a topic of its own: subscribers of one topic share its bytes, and would cost next to nothing.
    Messages are small, so that none is read in parts.
    """
    count, outbox = 30, 4 * MIB
    assert count * outbox > MEMORY + SLACK
    of_one = f"outbox_bytes_per_connection = {MIB}"
    bus = start_bus(SETTINGS.replace(of_one, f"outbox_bytes_per_connection = {outbox}"))
    async with contextlib.AsyncExitStack() as stack:
        for number in range(count):
            hello = encode(Connect(f"deaf{number}", V311), V311)
            await stack.enter_async_context(deaf_socket(bus, hello, subscribe_bytes(f"flood/{number}", 0)))
        async with connected(bus.port, "filler", V311) as filler:
            for _ in range(80):  # 8 MB for each: the kernel alone takes some
                for number in range(count):
                    filler.write(encode(Publish(f"flood/{number}", bytes(2_000)), V311) * 50)
                    await filler.drain()
            await filler.ping()
        # Some were slow by themselves; of the others the slowest gave up what they held.
        assert "reads too slowly" in bus.log or "memory budget is spent" in bus.log
        async with connected(bus.port, "watcher") as watcher:
            dropped = await _reaches(watcher, "publish/messages/dropped", count)
        print(f"{dropped} of {80 * 50 * count} messages dropped")
        yield bus


async def test_many_subscribers_stop_reading(start_bus: StartBus) -> None:
    async with spent_budget(start_bus) as bus, Exchange(bus) as exchange:
        await exchange.goes_on()
        print(f"memory: {bus.rss_bytes() / MIB:.0f} MiB")
        assert bus.rss_bytes() < 50 * MIB + MEMORY + SLACK
    print(exchange.summary)
    bus.check_health()


async def test_whoever_sends_a_large_packet_does_not_pay_for_slow_readers(start_bus: StartBus) -> None:
    """It comes in two parts, as large packets do."""
    packet = encode(Publish("large", bytes(500_000), 1, packet_id=1), V5)
    async with spent_budget(start_bus) as bus, connected(bus.port, "innocent") as innocent:
        innocent.write(packet[:300_000])
        await innocent.drain()
        async with Exchange(bus) as exchange:
            await exchange.goes_on()
        innocent.write(packet[300_000:])
        assert await innocent.receive() == PubAck(1)


def packets_of(what: str, version: int) -> bytes:
    """Some 100 kB of packets that want an answer each; neighbouring publishes differ in topic."""
    properties = b"\0" if version == V5 else b""

    def publish(first_byte: int, number: int) -> bytes:
        body = struct.pack(">H2sH", 2, b"%02d" % (number % 100), number % 60_000 + 1) + properties
        return bytes((first_byte, len(body))) + body

    if what == "pings":
        return b"\xc0\0" * 50_000
    if what == "subscribes":
        return subscribe_bytes("a", 0, version) * 10_000
    first_byte = 0x32 if what == "qos 1" else 0x34
    return b"".join(publish(first_byte, number) for number in range(10_000))


ANSWERED = pytest.mark.parametrize("what", ["pings", "qos 1", "qos 2", "subscribes"])


@ANSWERED
async def test_a_client_that_sends_and_never_reads(start_bus: StartBus, what: str) -> None:
    """Its answers are kept up to a limit; then it is read no more, until it reads."""
    bus = start_bus(
        SETTINGS.replace(f"outbox_bytes_per_connection = {MIB}", "outbox_bytes_per_connection = 100000")
    )
    packets = packets_of(what, V311)
    loop = asyncio.get_running_loop()
    async with (
        Watch(bus) as memory,
        Exchange(bus) as exchange,
        deaf_socket(bus, encode(Connect("deaf", V311), V311)) as deaf,
    ):
        sent, most = 0, 32 * MIB  # the kernel alone holds some 15 of it
        with contextlib.suppress(TimeoutError):
            while sent < most:
                async with asyncio.timeout(2):
                    await loop.sock_sendall(deaf, packets)
                sent += len(packets)
        await exchange.goes_on()
        print(f"{what}: {sent} bytes taken, memory grew by {memory.growth / MIB:.0f} MiB")
        assert sent < most, "it is read, and its answers pile up"
        assert memory.growth < MEMORY + SLACK
    print(exchange.summary)
    bus.check_health()


@ANSWERED
async def test_a_client_that_sends_much_gets_only_its_turn(start_bus: StartBus, what: str) -> None:
    bus = start_bus(SETTINGS)
    packets = packets_of(what, V311)
    async with Exchange(bus) as exchange, connected(bus.port, "busy", V311) as busy:
        reading = asyncio.create_task(_swallow(busy))
        busy.write(packets * (1_500_000 // len(packets)))
        await busy.drain()
        await exchange.goes_on()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    print(f"{what}: {exchange.summary}")
    bus.check_health()


async def test_a_client_that_reads_and_never_acknowledges(start_bus: StartBus) -> None:
    """Messages that are under way to it count as much as those that wait for it."""
    window = 1000
    bus = start_bus(SETTINGS.replace("inflight_per_session = 100", f"inflight_per_session = {window}"))
    payload = bytes(MIB // 4)
    async with (
        Watch(bus) as memory,
        Exchange(bus) as exchange,
        connected(bus.port, "forgetful") as forgetful,
        connected(bus.port, "publisher") as publisher,
    ):
        await forgetful.subscribe("large", qos=1)
        reading = asyncio.create_task(_swallow(forgetful))
        for number in range(window // 2):
            await publisher.publish("large", b"%08d" % number + payload)
            if memory.growth > 2 * (MEMORY + SLACK):
                break
        await exchange.goes_on()
        reading.cancel()
        assert memory.growth < MEMORY + SLACK


async def test_packets_that_are_begun_and_not_finished(start_bus: StartBus) -> None:
    """Before CONNECT nobody is known, and everybody may come: they may not fill the memory."""
    bus = start_bus(SETTINGS.replace("[mqtt]", "connect_timeout_s = 60\n[mqtt]"))
    begun = b"\x10" + b"\xf0\xff\x3f" + bytes.fromhex("00044d5154540402003c") + bytes(MIB - 2000)
    async with Watch(bus) as memory, Exchange(bus) as exchange, contextlib.AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        for _ in range(150):
            sock = await stack.enter_async_context(deaf_socket(bus))
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(1):
                    await loop.sock_sendall(sock, begun)
            if memory.growth > 2 * (MEMORY + SLACK):
                break
        await exchange.goes_on()
        assert memory.growth < MEMORY + SLACK


async def _swallow(peer: Peer) -> None:
    while True:
        await peer.some()


async def _reaches(watcher: Peer, name: str, least: int) -> int:
    """The figure once it has stood still from one update to the next."""
    await watcher.subscribe(f"$SYS/broker/{name}", "$SYS/broker/uptime")
    value, settled = 0, 0
    while settled < 3:
        message = await watcher.receive()
        assert isinstance(message, Publish)
        if message.topic.endswith("uptime"):
            settled = settled + 1 if value >= least else 0
        elif int(message.payload) != value:
            value, settled = int(message.payload), 0
    return value
