"""The client's WebSocket edge, on the `websockets` library."""

import asyncio

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.typing import Subprotocol

from polybus.client.address import Address
from polybus.client.errors import ConnectionFailed
from polybus.client.transport import CLOSE_TIMEOUT_S, HIGH_WATER_BYTES, Receiver, Transport


async def open_websocket(address: Address, receiver: Receiver) -> Transport:
    """Raises `ConnectionFailed`, and what the network raises."""
    try:
        websocket = await connect(
            address.websocket_url,
            subprotocols=[Subprotocol("mqtt")],
            ssl=address.ssl_context,
            proxy=None,  # like the other edges
            compression=None,  # payloads are small or compressed already
            open_timeout=None,  # the caller's
            ping_interval=None,  # MQTT has its own
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=None,  # the maximum packet size limits
            write_limit=HIGH_WATER_BYTES,
        )
    except (InvalidHandshake, InvalidMessage, InvalidURI, ConnectionClosed) as error:
        raise ConnectionFailed(f"no WebSocket for MQTT at {address.websocket_url}: {error}") from error
    if websocket.subprotocol != "mqtt":
        await websocket.close()
        raise ConnectionFailed(f"{address.websocket_url} does not speak MQTT: it did not agree to 'mqtt'")
    return WebSocketEdge(websocket, receiver)


class WebSocketEdge:
    """Two tasks around a `websockets` connection. All that gathers while one frame is written goes
    out as the next one."""

    def __init__(self, websocket: ClientConnection, receiver: Receiver) -> None:
        self._websocket = websocket
        self._receiver = receiver
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_writable = True
        self._has_output = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    def write(self, data: bytes) -> None:
        self._output.append(data)
        self._output_bytes += len(data)
        self._has_output.set()
        if self._output_bytes > HIGH_WATER_BYTES and self._is_writable:
            self._is_writable = False
            self._receiver.writable_changed(False)

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    async def close(self) -> None:
        self._may_read.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._output and not self._writer.done():
                    await self._send_output()
                await self._websocket.close()
                await asyncio.wait({self._reader})
        except (TimeoutError, ConnectionClosed):
            self.abort()
        finally:
            self._writer.cancel()

    def abort(self) -> None:
        self._writer.cancel()
        self._may_read.set()
        self._websocket.transport.abort()

    async def _read(self) -> None:
        error: Exception | None = None
        try:
            async for frame in self._websocket:
                if isinstance(frame, str):
                    # [MQTT-6.0.0-1] data frames are binary
                    error = ConnectionError("a text frame on an MQTT WebSocket")
                    break
                self._receiver.data_received(frame)
                # Frames may wait in line: let those who take the messages have their turn.
                await asyncio.sleep(0)
                await self._may_read.wait()
        except ConnectionClosed as closed:
            error = closed
        finally:
            self._writer.cancel()
            self._websocket.transport.abort()
            self._receiver.transport_closed(error)

    async def _write(self) -> None:
        try:
            while True:
                await self._has_output.wait()
                await self._send_output()
        except ConnectionClosed:
            return  # the reader reports it

    async def _send_output(self) -> None:
        data = b"".join(self._output)
        self._output.clear()
        self._output_bytes = 0
        self._has_output.clear()
        if data:
            await self._websocket.send(data)
        if not self._is_writable and self._output_bytes <= HIGH_WATER_BYTES // 2:
            self._is_writable = True
            self._receiver.writable_changed(True)
