"""Stream sockets: TCP and Unix, limits before CONNECT, peers that go away in every ugly manner."""

import asyncio
import logging
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from polybus.broker.limits import Limits
from polybus.net import connection as connections
from polybus.net import server as servers
from polybus.ops.listeners import Listener
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    ConnectReturnCode,
    PubAck,
    Publish,
    ReasonCode,
    Will,
)
from tests.net.peers import Peer, check_exchange, client, eventually, port_of, serving, stream, unix_stream


@pytest.mark.parametrize("version", [V311, V5])
async def test_exchange_over_tcp(version: int) -> None:
    async with (
        serving() as server,
        client(server, "one", version=version) as one,
        client(server, "two", version=version) as two,
    ):
        await check_exchange(one, two)


async def test_exchange_over_a_unix_socket() -> None:
    with TemporaryDirectory(prefix="pb") as folder:  # a socket's path may have 107 bytes
        path = Path(folder) / "s"
        async with (
            serving(Listener(kind="unix", path=str(path))) as server,
            unix_stream(path) as one,
            unix_stream(path) as two,
        ):
            assert server.urls == [f"mqtt+unix://{path}"]
            assert (path.stat().st_mode & 0o777) == 0o660
            await one.greet(Connect("one", V5))
            await two.greet(Connect("two", V5))
            await check_exchange(one, two)


async def test_several_listeners_share_one_broker() -> None:
    async with (
        serving(Listener(), Listener()) as server,
        client(server, "one", 0) as one,
        client(server, "two", 1) as two,
    ):
        assert port_of(server, 0) != port_of(server, 1)
        await check_exchange(one, two)


async def test_a_packet_byte_by_byte_and_many_in_one_write() -> None:
    async with serving() as server, stream(server) as peer, client(server, "two") as two:
        for byte in encode(Connect("one", V5), V5):
            peer.write(bytes((byte,)))
            await peer.drain()
        assert isinstance(await peer.receive(), ConnAck)
        await two.subscribe("t")
        peer.send(*(Publish("t", b"%d" % n) for n in range(50)))
        received = [await two.receive() for _ in range(50)]
        assert [int(each.payload) for each in received if isinstance(each, Publish)] == list(range(50))


# -- how many, and how long ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    [(V5, ReasonCode.QUOTA_EXCEEDED), (V311, ConnectReturnCode.SERVER_UNAVAILABLE)],
)
async def test_one_client_too_many_is_told_so(version: int, code: int) -> None:
    async with (
        serving(limits=Limits(connections=2)) as server,
        client(server, "one") as one,
        client(server, "two"),
    ):
        async with stream(server) as third:
            answer = await third.greet(Connect("three", version))
            assert answer.reason_code == code
            await third.rest()
        await one.ping()
        await one.close()
        await eventually(lambda: server.broker.registry.connected == 1)
        async with client(server, "four") as four:
            await four.ping()


async def test_beyond_the_spare_ones_sockets_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SPARE_CONNECTIONS", 2)
    async with (
        serving(limits=Limits(connections=1)) as server,
        client(server, "one") as one,
        stream(server) as second,
        stream(server) as third,
        stream(server) as fourth,
    ):
        assert await fourth.rest() == b""
        assert server.broker.stats.connections_refused == 1
        for spare in (second, third):  # these two may still say hello, and hear why not
            answer = await spare.greet(Connect("late", V5))
            assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
        await one.ping()


@pytest.mark.parametrize("said", [b"", b"\x10", b"\x10\x20\x00\x04MQTT"])
async def test_no_connect_in_time_is_closed(said: bytes) -> None:
    async with (
        serving(limits=Limits(connect_timeout_s=0.2)) as server,
        client(server, "one") as one,
        stream(server) as peer,
    ):
        peer.write(said)
        assert await peer.rest() == b""
        await eventually(lambda: len(server._connections) == 1)
        await one.ping()


async def test_connect_byte_by_byte_does_not_stretch_the_time() -> None:
    """Each byte is a sign of life, but none of them is a CONNECT."""
    limits = Limits(connect_timeout_s=0.5)
    packet = encode(Connect("x" * 1000, V5), V5)
    async with serving(limits=limits) as server, stream(server) as peer:
        started = asyncio.get_running_loop().time()
        ended = asyncio.create_task(peer.rest())
        for byte in packet:
            if ended.done():
                break
            peer.write(bytes((byte,)))
            await asyncio.wait([ended], timeout=0.02)
        assert await ended == b""
        assert asyncio.get_running_loop().time() - started < 0.02 * len(packet)
        assert server.broker.registry.connected == 0


# -- ends ----------------------------------------------------------------------------------------------


async def test_a_reset_publishes_the_will_and_forgets_the_connection() -> None:
    async with serving() as server, client(server, "watcher") as watcher, stream(server) as peer:
        await watcher.subscribe("will")
        await peer.greet(Connect("x", V5, will=Will("will", b"gone")))
        peer.reset()
        message = await watcher.receive()
        assert isinstance(message, Publish)
        assert message.payload == b"gone"
        await eventually(lambda: len(server._connections) == 1)


async def test_a_peer_that_closes_its_half_is_gone() -> None:
    async with serving() as server, stream(server) as peer:
        await peer.greet(Connect("x", V5))
        peer.half_close()
        assert await peer.rest() == b""
        await eventually(lambda: not server._connections)
        assert server.broker.registry.connected == 0


async def test_a_peer_that_closes_its_half_still_gets_what_it_asked_for() -> None:
    """`printf … | nc`: requests, then end of file, and only then answers."""
    async with serving() as server, stream(server) as peer:
        peer.send(Connect("x", V5), Publish("t", b"1", 1, packet_id=7))
        peer.half_close()
        answers = await peer.packets_to_the_end()
        assert isinstance(answers[0], ConnAck)
        assert answers[1:] == [PubAck(7)]


async def test_reset_in_the_middle_of_a_delivery(caplog: pytest.LogCaptureFixture) -> None:
    payload = bytes(100_000)
    async with (
        serving() as server,
        client(server, "reader") as reader,
        client(server, "publisher") as publisher,
    ):
        await reader.subscribe("t", qos=1)
        for round in range(5):
            async with client(server, f"dying{round}") as dying:
                await dying.subscribe("t", qos=round % 2)
                sent = asyncio.create_task(_publish(publisher, payload, 20))
                await dying.receive()
                dying.reset()
                for _ in range(20):
                    message = await reader.receive()
                    assert isinstance(message, Publish)
                    assert message.payload == payload
                    reader.send(PubAck(message.packet_id))
                await sent
        await reader.close()
        await publisher.close()
        await eventually(lambda: not server._connections)
        assert server.broker.dispatcher.backlog_bytes == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_peer_that_closes_its_half_and_never_reads_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unsent bytes must not hold the connection for ever."""
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    async with serving() as server, client(server, "publisher") as publisher:
        with _socket_that_does_not_read(server) as deaf:
            await _stall(server, deaf, publisher)
            deaf.shutdown(socket.SHUT_WR)
            await eventually(lambda: len(server._connections) == 1, "its end", patience_s=5)
            await publisher.ping()


async def test_a_kept_alive_peer_that_never_reads_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    async with serving() as server, client(server, "publisher") as publisher:
        with _socket_that_does_not_read(server, keep_alive_s=1) as deaf:
            await _stall(server, deaf, publisher)
            await eventually(lambda: len(server._connections) == 1, "the end of the silent connection")
            assert server.broker.registry.connected == 1


async def test_a_peer_that_never_reads_does_not_hold_up_the_stop() -> None:
    loop = asyncio.get_running_loop()
    async with serving() as server, client(server, "publisher") as publisher:
        with _socket_that_does_not_read(server) as deaf:
            await _stall(server, deaf, publisher)
            before = loop.time()
            await server.stop()
            assert loop.time() - before < 10
            assert not server._connections


async def _publish(publisher: Peer, payload: bytes, count: int) -> None:
    for _ in range(count):
        await publisher.publish("t", payload)


def _socket_that_does_not_read(server: servers.Server, keep_alive_s: int = 0) -> socket.socket:
    """Its small receive buffer is soon full."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", port_of(server)))
    deaf.sendall(
        encode(Connect("deaf", V5, keep_alive_s=keep_alive_s), V5) + bytes.fromhex("82070001000001") + b"t\0"
    )
    return deaf


async def _stall(server: servers.Server, deaf: socket.socket, publisher: Peer) -> None:
    """Send it so much that the server has unsent bytes for it."""
    await eventually(lambda: bool(server.broker.subscriptions.count))
    link = server.broker.registry.sessions["deaf"].link
    while link is not None and not link.blocked:
        await publisher.publish("t", bytes(1_000_000))
    assert link is not None
