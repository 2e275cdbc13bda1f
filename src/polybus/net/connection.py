"""A socket and its link: asyncio calls in, link calls out. Knows nothing of the broker."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, cast

from polybus.broker.links import Port

HIGH_WATER_BYTES: Final = 128 * 1024
"""Unsent bytes in the transport past which a link is blocked; what is over waits in its outbox."""

LINGER_S: Final = 5.0
"""How long a closed connection may take to hand out its last bytes."""


class ServedLink(Protocol):
    """What an edge calls on a protocol's link."""

    def receive(self, data: bytes, now: float) -> None: ...

    def on_blocked(self) -> None: ...

    def on_unblocked(self, now: float) -> None: ...

    def on_closed(self, now: float) -> None: ...


class Peer:
    """Who is at the other end."""

    __slots__ = ("address", "adopt", "certificate_name")

    def __init__(self, transport: asyncio.Transport, adopt: Callable[[ServedLink], None]) -> None:
        self.address = _address(transport)
        self.certificate_name = _certificate_name(transport)
        self.adopt = adopt
        """Gives the connection to another link than the one that was made for it."""


MakeLink: TypeAlias = Callable[[Port, Peer, float], ServedLink]
"""A new link of the listener's protocol, for this port and peer, at this time."""


class Reception(Protocol):
    """What all listeners share: the book of open connections."""

    loop: asyncio.AbstractEventLoop

    def admit(self, connection: "Connection") -> bool:
        """Note a new connection; False: there is no room."""

    def leave(self, connection: "Connection") -> None: ...

    def hold_parts(self, size: int) -> bool:
        """Count bytes kept of what is not whole yet (negative: given back); False: there is no room."""


class Connection(asyncio.Protocol):
    """A stream socket whose bytes are the protocol's bytes: TCP, TLS, Unix."""

    __slots__ = ("_link", "_make_link", "_now", "_reception", "_transport")

    def __init__(self, reception: Reception, make_link: MakeLink) -> None:
        self._reception = reception
        self._make_link = make_link
        self._now: Callable[[], float] = reception.loop.time
        self._link: ServedLink | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if not self._reception.admit(self):
            stream.abort()
            return
        self._transport = stream
        stream.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._link = self._make_link(self.port(stream), Peer(stream, self.adopt), self._now())

    @property
    def is_refused(self) -> bool:
        """There was no room for it."""
        return self._transport is None

    def adopt(self, link: ServedLink) -> None:
        self._link = link

    def port(self, transport: asyncio.Transport) -> Port:
        return StreamPort(transport, self._reception.loop)

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._link.receive(data, self._now())

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.on_blocked()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.on_unblocked(self._now())

    def eof_received(self) -> None:
        """The peer sends no more. What it still has to get may go out, but not for ever."""
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        link, self._link, self._transport = self._link, None, None
        self._reception.leave(self)
        if link is not None:
            link.on_closed(self._now())

    def close(self) -> None:
        if self._transport is not None:
            close_within(self._transport, self._reception.loop)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def close_within(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close, and give unsent bytes a little time to go out."""
    if not transport.is_closing():
        transport.close()
        if transport.get_write_buffer_size():
            loop.call_later(LINGER_S, transport.abort)


class StreamPort:
    """A transport as a port. Closing lets unsent bytes go out, but not for ever."""

    __slots__ = ("_loop", "_transport", "write", "writelines")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self.write: Callable[[bytes], None] = transport.write
        self.writelines: Callable[[list[bytes]], None] = transport.writelines

    def close(self) -> None:
        close_within(self._transport, self._loop)

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()


def _address(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple):
        return f"{name[0]}:{name[1]}"
    return "unix"


def _certificate_name(transport: asyncio.Transport) -> str | None:
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None
    for part in cast(tuple[tuple[tuple[str, str], ...], ...], (certificate or {}).get("subject", ())):
        for key, value in part:
            if key == "commonName":
                return value
    return None
