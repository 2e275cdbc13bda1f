"""Asyncio edges of the client: TCP, TLS and Unix socket here, WebSocket in `websocket`.

Each carries bytes both ways and knows nothing of what they mean. The other side of an edge is a
`Receiver`: it gets what arrives, is told when to stop writing, and hears once that it is over.
"""

import asyncio
import ssl
from typing import Final, Protocol, cast

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
            from polybus.client.websocket import open_websocket  # the library costs time to load

            return await open_websocket(address, receiver)
        return await _open_stream(address, receiver)
    except ssl.SSLCertVerificationError as error:
        text = f"{address} is not trusted: {error.verify_message}"
        raise ConnectionFailed(text) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(_no_handshake(address, error.reason or str(error))) from error
    except ConnectionRefusedError as error:
        text = f"cannot reach {address}: connection refused; is it running? Start one with: polybus serve"
        raise ConnectionFailed(text) from error
    except OSError as error:
        # A peer that hangs up in the handshake leaves asyncio without words.
        if address.scheme.has_tls and isinstance(error, ConnectionError):
            raise ConnectionFailed(_no_handshake(address, error.strerror or str(error))) from error
        reason = error.strerror or str(error) or type(error).__name__
        raise ConnectionFailed(f"cannot reach {address}: {reason}") from error


def _no_handshake(address: Address, reason: str) -> str:
    told = f" ({reason})" if reason else ""
    return f"the TLS handshake with {address} failed{told}; does that port speak TLS?"


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
        # Not checked: uvloop's transports have the methods and not the type.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

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
