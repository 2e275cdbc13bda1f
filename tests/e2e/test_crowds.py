"""Many at once: clients that connect in the same instant, and retained messages by the ten thousand."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from polybus.ops.passwords import set_password
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V5, V311, ConnAck, Connect, PubAck, Publish
from tests.e2e.conftest import StartBus
from tests.e2e.processes import Served, unique
from tests.e2e.traffic import Exchange, connected
from tests.net.peers import Peer, dial, trusting

CROWD = 300
RETAINED = 50_000


@pytest.mark.parametrize("kind", ["tcp", "tls"])
async def test_clients_that_connect_in_the_same_instant(bus: Served, kind: str) -> None:
    """MQ-02: each gets its CONNACK, and a running exchange goes on."""
    name = unique("crowd")
    context = trusting(bus.certificates) if kind == "tls" else None
    go = asyncio.Event()

    async def come(number: int, stack: AsyncExitStack) -> Peer:
        version = V5 if number % 2 else V311
        await go.wait()
        peer = await stack.enter_async_context(dial(bus.ports[kind], ssl=context))
        answer = await peer.greet(Connect(f"{name}-{number}", version))
        assert answer.reason_code == 0
        return peer

    async with Exchange(bus) as exchange, AsyncExitStack() as stack:
        coming = [asyncio.create_task(come(number, stack)) for number in range(CROWD)]
        go.set()
        peers = await asyncio.gather(*coming)
        for peer in peers:
            await peer.ping()
        assert len(peers) == CROWD
        await exchange.goes_on()
    print(f"{CROWD} over {kind}: {exchange.summary}")


async def test_connects_that_are_already_in_the_socket(bus: Served) -> None:
    """The sockets are open and the server busy with none of them when all CONNECTs arrive."""
    name = unique("crowd")
    async with Exchange(bus) as exchange, AsyncExitStack() as stack:
        dials = [stack.enter_async_context(dial(bus.port)) for _ in range(CROWD)]
        peers = await asyncio.gather(*dials)
        for number, peer in enumerate(peers):
            peer.write(encode(Connect(f"{name}-{number}", V5), V5))
        answers = await asyncio.gather(*(peer.receive() for peer in peers))
        assert all(isinstance(answer, ConnAck) and answer.reason_code == 0 for answer in answers)
        await exchange.goes_on()
    print(f"{CROWD} at once: {exchange.summary}")


async def test_logins_in_the_same_instant(start_bus: StartBus, tmp_path: Path) -> None:
    """As above, with a password: whoever has sent a CONNECT in time is not late."""
    users = tmp_path / "users"
    set_password(users, "alice", b"secret")
    bus = start_bus(f'[auth]\npassword_file = "{users}"\n[limits]\nconnect_timeout_s = 2.0\n')

    async def come(number: int) -> int:
        async with dial(bus.port) as peer:
            return (
                await peer.greet(Connect(f"c{number}", V5, user_name="alice", password=b"secret"))
            ).reason_code

    answers = await asyncio.gather(*(come(number) for number in range(CROWD)), return_exceptions=True)
    assert answers == [0] * CROWD


async def test_many_retained_messages_for_one_subscriber(start_bus: StartBus) -> None:
    bus = start_bus("[mqtt]\nsys_interval_s = 0\n")
    async with connected(bus.port, "writer", V311) as writer:
        for start in range(0, RETAINED, 1000):
            packets = [
                encode(Publish(f"site/{n % 100}/sensor/{n}", b"%d" % n, 0, True), V311)
                for n in range(start, start + 1000)
            ]
            writer.write(b"".join(packets))
            await writer.drain()
        await writer.ping()
    async with Exchange(bus) as exchange, connected(bus.port, "collector", V311) as collector:
        await collector.subscribe("site/#")
        seen: set[int] = set()
        while len(seen) < RETAINED:
            message = await collector.receive()
            assert isinstance(message, Publish)
            assert message.retain
            seen.add(int(message.payload))
        assert seen == set(range(RETAINED))
        collector.send(Publish("site/end", b"end"))
        message = await collector.receive()
        assert isinstance(message, Publish)
        assert (message.topic, message.retain) == ("site/end", False)
        await exchange.goes_on()
    print(f"{RETAINED} retained: {exchange.summary}")
    bus.check_health()


async def test_retained_messages_that_are_acknowledged_come_in_windows(start_bus: StartBus) -> None:
    count, window = 3000, 20
    bus = start_bus(f"[limits]\ninflight_per_session = {window}\n[mqtt]\nsys_interval_s = 0\n")
    async with connected(bus.port, "writer", V5) as writer, connected(bus.port, "reader", V5) as reader:
        for number in range(count):
            await writer.publish(f"site/{number}", b"%d" % number, retain=True)
        await reader.subscribe("site/#", qos=1)
        seen: list[int] = []
        while len(seen) < count:
            full = min(window, count - len(seen))
            messages = [await reader.receive() for _ in range(full)]
            await reader.ping()  # nothing came past the window
            for message in messages:
                assert isinstance(message, Publish)
                seen.append(int(message.payload))
                reader.send(PubAck(message.packet_id))
        assert sorted(seen) == list(range(count))
