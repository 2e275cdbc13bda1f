"""Where a conformance case runs: the real session code in memory, or a served broker over a network."""

import asyncio
import contextlib
import gc
import itertools
import socket
import threading
from collections.abc import Coroutine
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
import uvloop
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from polybus.broker.access import Access
from polybus.broker.broker import Broker
from polybus.broker.journal import Journal
from polybus.broker.limits import Limits
from polybus.net.server import Server as NetServer
from polybus.ops.config import Config, Listener, Mqtt
from polybus.session.mqtt import MqttLink, MqttOptions

PATIENCE_S: Final = 0.05
"""How long `receive` waits for a first byte over a network."""


class Setup(msgspec.Struct, frozen=True):
    """What a case chooses about its broker."""

    limits: Limits = Limits()
    access: Access = Access()
    options: MqttOptions = MqttOptions()
    journal: Journal | None = None
    """In memory only. None: every commit is done at once."""


class Connection(Protocol):
    """One network connection, seen from the client's side."""

    def send(self, data: bytes) -> None:
        """Bytes to the server. They are lost without a word if it has closed."""

    def receive(self) -> bytes:
        """What has arrived since the last call; over a network, waits a moment for the first byte."""

    @property
    def is_closed(self) -> bool:
        """The server has closed, and everything it sent before was received."""

    def drop(self) -> None:
        """The network fails: no DISCONNECT."""


class Server(Protocol):
    def open(self) -> Connection: ...

    def advance(self, seconds: float) -> None:
        """Let time pass."""

    def settle(self) -> None:
        """Let everything happen that is due now."""

    def stop(self) -> None:
        """Shut down gracefully."""

    def close(self) -> None:
        """Give everything back."""


def start(transport: str, setup: Setup) -> Server:
    """`memory`, `bytewise` (memory, a byte at a time), `tcp` or `websocket`."""
    if transport in ("memory", "bytewise"):
        return MemoryServer(setup, bytewise=transport == "bytewise")
    return NetworkServer(setup, transport)


# -- in memory ---------------------------------------------------------------------------------------


class MemoryServer:
    """A broker and its links under a clock that only `advance` moves."""

    def __init__(self, setup: Setup, *, bytewise: bool = False) -> None:
        self.now = 1_000_000.0
        self.bytewise = bytewise
        self.broker = Broker(setup.limits, access=setup.access, journal=setup.journal, wake=self._wake)
        self.broker.now = self.now
        self._options = setup.options
        self._client_ids = itertools.count(1)
        self._is_awake = False
        self._connections: list[MemoryConnection] = []

    def open(self) -> "MemoryConnection":
        connection = MemoryConnection(self)
        connection.link = MqttLink(
            self.broker, connection, self._options, self._new_client_id, peer="memory", now=self.now
        )
        self._connections.append(connection)
        return connection

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.broker.timers.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.broker.run_timers(self.now)
            self.settle()
        self.now = end
        self.broker.housekeep(end)
        self.settle()

    def settle(self) -> None:
        busy = True
        while busy:
            pieces = [connection.deliver() for connection in list(self._connections)]
            busy = self._is_awake or any(pieces)
            while self._is_awake:
                self._is_awake = False
                self.broker.tick(self.now)

    def stop(self) -> None:
        self.broker.stop()
        self.settle()

    def close(self) -> None:
        self._connections.clear()

    def forget(self, connection: "MemoryConnection") -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def _wake(self) -> None:
        self._is_awake = True

    def _new_client_id(self) -> str:
        return f"assigned-{next(self._client_ids)}"


class MemoryConnection:
    """Both ends at once: what the client holds, and the port below the server's link."""

    link: MqttLink

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._to_server: list[bytes] = []
        self._to_client: list[bytes] = []
        self._is_paused = False
        self._is_closed = False

    # the client's end

    def send(self, data: bytes) -> None:
        if self._server.bytewise:
            self._to_server += [data[at : at + 1] for at in range(len(data))]
        else:
            self._to_server.append(data)
        self._server.settle()

    def receive(self) -> bytes:
        self._server.settle()
        data, self._to_client = b"".join(self._to_client), []
        return data

    @property
    def is_closed(self) -> bool:
        return self._is_closed and not self._to_client

    def drop(self) -> None:
        self._to_server.clear()
        self._end()
        self._server.settle()

    # the server's end

    def write(self, data: bytes) -> None:
        assert not self._is_closed, "the server writes after it has closed"
        self._to_client.append(bytes(data))

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self._end()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    # the network

    def deliver(self) -> bool:
        """Bring one piece to the server, if it reads and there is one."""
        if not self._to_server or self._is_paused:
            return False
        self.link.receive(self._to_server.pop(0), self._server.now)
        return True

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._server.forget(self)
            self.link.on_closed(self._server.now)


# -- over a network ------------------------------------------------------------------------------------------


class NetworkServer:
    """A served broker on a loopback port, with an event loop in a thread of its own."""

    def __init__(self, setup: Setup, transport: str) -> None:
        self._thresholds = gc.get_threshold()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._is_websocket = transport == "websocket"
        self._connections: list[TcpConnection | WebSocketConnection] = []
        self._server = self._call(_serve(setup, transport))
        self._is_stopped = False
        self.url = self._server.urls[0]

    def open(self) -> Connection:
        connection = WebSocketConnection(self.url) if self._is_websocket else TcpConnection(self.address)
        self._connections.append(connection)
        return connection

    @property
    def address(self) -> tuple[str, int]:
        url = urlsplit(self.url)
        return str(url.hostname), url.port or 0

    def advance(self, seconds: float) -> None:
        raise NotImplementedError("time cannot be moved over a real network: run this case in memory")

    def settle(self) -> None:
        """Clients see to it themselves, by pinging."""

    def stop(self) -> None:
        self._is_stopped = True
        self._call(self._server.stop())

    def close(self) -> None:
        for connection in self._connections:
            connection.drop()
        if not self._is_stopped:
            self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()  # the server tunes the collector for a process of its own
        gc.set_threshold(*self._thresholds)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)


class TcpConnection:
    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=5)
        self._socket.settimeout(PATIENCE_S)
        self._is_closed = False

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the server has closed: `receive` will say so
            self._socket.sendall(data)

    def receive(self) -> bytes:
        if self._is_closed:
            return b""
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._is_closed = True
            self._socket.close()
        return data

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def drop(self) -> None:
        self._is_closed = True
        self._socket.close()


class WebSocketConnection:
    """One binary frame for each piece sent; `frames` are what the server sent, as they came."""

    def __init__(self, url: str) -> None:
        self._stack = contextlib.ExitStack()
        offer = connect_websocket(url, subprotocols=[Subprotocol("mqtt")], compression=None)
        self.websocket = self._stack.enter_context(offer)
        self.frames: list[bytes | str] = []
        self._is_closed = False

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionClosed):
            self.websocket.send(data)

    def receive(self) -> bytes:
        try:
            frame = self.websocket.recv(timeout=PATIENCE_S)
        except TimeoutError:
            return b""
        except ConnectionClosed:
            self._is_closed = True
            return b""
        self.frames.append(frame)
        return frame.encode() if isinstance(frame, str) else frame

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def drop(self) -> None:
        """Like a network that fails: the socket goes, no closing frame does."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self.websocket.socket.shutdown(socket.SHUT_RDWR)
        self._stack.close()


async def _serve(setup: Setup, kind: str) -> NetServer:
    options = setup.options
    listener = Listener(kind=kind, port=0, path="/mqtt" if kind == "websocket" else "")  # type: ignore[arg-type]
    config = Config(
        listeners=(listener,),
        limits=setup.limits,
        mqtt=Mqtt(
            sys_interval_s=0,
            allow_zero_length_client_id=options.allow_zero_length_client_id,
            response_information=options.response_information,
            server_reference=options.server_reference,
        ),
    )
    server = NetServer(config)
    server.broker.access = setup.access
    await server.start()
    return server
