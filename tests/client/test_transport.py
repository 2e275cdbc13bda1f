"""Servers that are not what they should be: silent, half-open, or speaking something else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

import polybus
from polybus.client import BusEvent, ConnectionFailed, ConnectionLost, Disconnected, OperationTimeout
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V5, ConnAck
from tests.client.fake_broker import eventually

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tcp_server(handler: Handler) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def accept_then_be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(encode(ConnAck(), V5))
    await until_closed(reader, writer)


async def test_server_that_never_answers() -> None:
    async with tcp_server(until_closed) as url:
        with pytest.raises(ConnectionFailed, match="no answer"):
            await polybus.connect(url, connect_timeout_s=0.1)


async def test_server_that_closes_at_once() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    async with tcp_server(close) as url:
        with pytest.raises(ConnectionLost):
            await polybus.connect(url)


async def test_server_that_speaks_something_else() -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await until_closed(reader, writer)

    async with tcp_server(speak_http) as url:
        with pytest.raises((ConnectionLost, ConnectionFailed)):
            await polybus.connect(url, connect_timeout_s=1)


async def test_half_open_connection_is_noticed() -> None:
    events: list[BusEvent] = []
    silent = tcp_server(accept_then_be_silent)
    async with silent as url, polybus.connect(url, keep_alive_s=1, on_event=events.append):
        await eventually(lambda: any(isinstance(event, Disconnected) for event in events))
    [lost, *_] = [event for event in events if isinstance(event, Disconnected)]
    assert "ping" in str(lost.error)


async def test_peer_that_does_not_read_does_not_hold_the_end_up() -> None:
    stop = asyncio.Event()

    async def accept_and_stop_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(encode(ConnAck(), V5))
        await stop.wait()

    async with tcp_server(accept_and_stop_reading) as url:
        bus = await polybus.connect(url, timeout_s=0.2)
        with pytest.raises(OperationTimeout, match="takes no more"):
            await asyncio.gather(*(bus.publish("a", bytes(100_000)) for _ in range(1000)))
        async with asyncio.timeout(10):
            await bus.disconnect()
        stop.set()


@pytest.mark.parametrize("subprotocols", [None, [Subprotocol("chat")]])
async def test_websocket_without_mqtt(subprotocols: list[Subprotocol] | None) -> None:
    async def handler(websocket: ServerConnection) -> None:
        await websocket.wait_closed()

    async with serve(handler, "127.0.0.1", 0, subprotocols=subprotocols) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(ConnectionFailed, match=r"MQTT|mqtt"):
            await polybus.connect(f"ws://127.0.0.1:{port}")


async def test_websocket_that_sends_text() -> None:
    async def handler(websocket: ServerConnection) -> None:
        await websocket.send("hello")
        await websocket.wait_closed()

    async with serve(handler, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(ConnectionLost, match="text frame"):
            await polybus.connect(f"ws://127.0.0.1:{port}")
