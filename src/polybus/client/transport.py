"""Asyncio edges of the client: TCP, TLS, Unix socket and WebSocket.

Each carries bytes both ways and knows nothing of what they mean. The other side of an edge is a
`Receiver`: it gets what arrives, is told when to stop writing, and hears once that it is over.
"""

import asyncio
import ssl
from typing import Final, Protocol

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.typing import Subprotocol

from polybus.client.address import Address
from polybus.client.errors import ConnectionFailed

HIGH_WATER_BYTES: Final = 256 * 1024
CLOSE_TIMEOUT_S: Final = 2.0


class Receiver(Protocol):
    def data_received(self, data: bytes) -> None: ...

    def writable_changed(self, is_writable: bool) -> None: ...

    def transport_closed(self, error: Exception | None) -> None:
        """Called once; `error` is None if the other side closed in an orderly way."""


class Transport(Protocol):
    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    async def close(self) -> None:
        """Write what is left and close; give up on a peer that does not read."""

    def abort(self) -> None:
        """Close at once."""


async def open_transport(address: Address, receiver: Receiver) -> Transport:
    """Raises `ConnectionFailed`. The caller sets the time limit."""
    try:
        if address.scheme.is_websocket:
            return await _open_websocket(address, receiver)
        return await _open_stream(address, receiver)
    except ssl.SSLCertVerificationError as error:
        text = f"{address} is not trusted: {error.verify_message}"
        raise ConnectionFailed(text) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(f"TLS with {address} failed: {error.reason or error}") from error
    except OSError as error:
        raise ConnectionFailed(f"cannot reach {address}: {error.strerror or error}") from error
    except (InvalidHandshake, InvalidMessage, InvalidURI, ConnectionClosed) as error:
        raise ConnectionFailed(f"no WebSocket for MQTT at {address.websocket_url}: {error}") from error


# --- TCP, TLS, Unix -------------------------------------------------------------------------------


async def _open_stream(address: Address, receiver: Receiver) -> Transport:
    loop = asyncio.get_running_loop()
    if address.scheme.is_unix:
        _, edge = await loop.create_unix_connection(lambda: StreamEdge(receiver), address.path)
    else:
        _, edge = await loop.create_connection(
            lambda: StreamEdge(receiver), address.host, address.port, ssl=address.ssl_context
        )
    return edge


class StreamEdge(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._receiver.data_received(data)

    def pause_writing(self) -> None:
        self._receiver.writable_changed(False)

    def resume_writing(self) -> None:
        self._receiver.writable_changed(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._receiver.transport_closed(exc)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    async def close(self) -> None:
        assert self._transport is not None
        # A paused transport does not see the other side close.
        self.resume_reading()
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


# --- WebSocket ------------------------------------------------------------------------------------


async def _open_websocket(address: Address, receiver: Receiver) -> Transport:
    websocket = await connect_websocket(
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
