"""The server: one broker, its listeners, its signals.

Where the pure core meets the world: the loop's clock becomes `now`, `wake` becomes `call_soon`, the
earliest deadline becomes a timer handle.
"""

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import uvloop

import polybus
from polybus.broker.broker import Broker
from polybus.broker.links import Port
from polybus.broker.message import Message
from polybus.errors import ConfigError, PolybusError
from polybus.mesh.address import broker_id
from polybus.mesh.mesh import NEIGHBORS, Mesh, MeshOptions
from polybus.net import acceptor, descriptors
from polybus.net.acceptor import Acceptor
from polybus.net.calling import Caller
from polybus.net.connection import LINGER_S, Connection, MakeLink, Peer, ServedLink
from polybus.net.durable import Streams, open_streams
from polybus.net.websocket import WebSocketConnection
from polybus.ops import config as configuration
from polybus.ops import logging as ops_logging
from polybus.ops.access import build_access, close_access
from polybus.ops.config import Config
from polybus.ops.listeners import WAYS, Listener, ListenerProtocol
from polybus.ops.sys_topics import SysTopics
from polybus.ops.tls import server_context
from polybus.session.mqtt import MqttLink, MqttOptions
from polybus.session.tbus.joining import CallingLink, Gate
from polybus.session.tbus.link import TbusLink
from polybus.session.tbus.options import TbusOptions
from polybus.store.durable import DurableState
from polybus.store.folder import DataFolder, StoreError
from polybus.store.writer import Logs

log = logging.getLogger("polybus.net")

HOUSEKEEPING_S = 1.0
REMIND_S = 60.0
"""Between two log lines about the same lasting shortage."""
BACKLOG = 4096
"""Connections the kernel may hold for us: hundreds of clients may come in the same instant (MQ-02)."""
SPARE_CONNECTIONS = 64
"""Sockets past the client limit that are kept just long enough to be refused with a reason."""


SPARE_HEAP_BYTES = 64 * 1024 * 1024
"""Freed memory the C library keeps at hand. Reads come in pieces of up to 256 kB, and asking the
kernel for each anew costs more than reading it."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def run(config: Config) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    _configure_logging(config)
    ops_logging.leave_out_unused()
    _keep_freed_memory()
    descriptors.make_room(config.limits.connections)
    try:
        return uvloop.run(_serve(config))
    except KeyboardInterrupt:
        return 0


def _configure_logging(config: Config) -> None:
    server = config.server
    ops_logging.configure(server.log_level, server.log_format, server.log_file, server.event_file)


def _keep_freed_memory() -> None:
    """Where the C library has glibc's mallopt; elsewhere nothing is lost but some speed."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, SPARE_HEAP_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, SPARE_HEAP_BYTES // 16)


async def _serve(config: Config) -> int:
    server = Server(config)
    await server.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    where = config.server.data_dir
    kept = f"state is kept in {where}" if where is not None else "all state is in memory"
    print(f"Polybus {polybus.__version__} is ready, {kept}", *server.urls, sep="\n  ", flush=True)
    await stopped.wait()
    print("Polybus is stopping", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)  # once is enough
    await server.stop()
    return 0


class Server:
    """Everything between `start` and `stop`. Usable in tests without signals."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        access = build_access(config)
        self._open_stores()
        self.broker = Broker(
            config.limits,
            wake=self._wake,
            choose=secrets.randbelow,
            access=access,
            journal=self._state.journal if self._state is not None else None,
            ledger=self._state.ledger if self._state is not None else None,
            shared_strategy=config.mqtt.shared_strategy,
            drop_oldest=config.mqtt.queue_full == "drop_oldest",
            queue_qos0=config.mqtt.queue_qos0,
            service_rules=config.service_rules(),
            default_service=config.requests.default_rule(),
            request_timeout_s=config.requests.timeout_s,
        )
        self.broker.now = self.loop.time()
        self.broker.timers.on_earlier = self._arm
        self.urls: list[str] = []
        self._mqtt_options = _mqtt_options(config)
        self._tbus_options = _tbus_options(config)
        self._makers: Mapping[ListenerProtocol, MakeLink] = {
            "mqtt": self._make_mqtt_link,
            "tbus": self._make_tbus_link,
        }
        self._servers: list[Acceptor] = []
        self._sockets: list[Path] = []
        self._connections: set[Connection] = set()
        self._emptied = asyncio.Event()
        self.mesh: Mesh | None = None
        self._caller: Caller | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._housekeeper: asyncio.TimerHandle | None = None
        self._remind_at = 0.0
        self._sys_topics = SysTopics(self.broker, self.loop.time())

    def _open_stores(self) -> None:
        """Everything durable is in one folder. Raises ConfigError."""
        self._folder: DataFolder | None = None
        self._state: DurableState | None = None
        self.streams: Streams | None = None
        config = self.config
        if config.server.data_dir is None:
            return
        self._folder = DataFolder(config.server.data_dir)
        try:
            self._state = DurableState(
                self._folder,
                config.store.sync,
                self.loop.call_soon_threadsafe,
                now=self.loop.time(),
                open_logs=self._open_streams,
                on_trouble=self._on_trouble,
            )
        except BaseException:
            self._close_stores()
            raise

    def _open_streams(self, committed: int | None) -> Logs | None:
        if not self.config.streams:
            return None
        assert self._folder is not None
        self.streams = open_streams(self.config, self._folder, committed)
        return self.streams.set

    def _close_stores(self) -> None:
        """Blocks. What is logged comes before what was received, as always."""
        if self.streams is not None:
            self.streams.finish()
        try:
            if self._state is not None:
                self._state.close()
        except (sqlite3.Error, StoreError) as error:
            log.error("the last changes could not be written", extra={"fields": {"error": str(error)}})
        if self.streams is not None:
            self.streams.close()
        if self._folder is not None:
            self._folder.close()

    def _on_trouble(self, why: str) -> None:
        self.broker.set_trouble(why)

    async def start(self) -> None:
        try:
            if self._state is not None:
                self._state.restore(self.broker, self.loop.time())
            if self.streams is not None:
                self.streams.start(self.broker, self.loop)
            for listener in self.config.listeners:
                await self._listen(listener)
            self._join_mesh()
            if self.streams is not None and self.config.serves_http:
                http = self.streams.serve_http(self.broker, self.loop, self.config.http)
                self.urls.append(f"{http.url}/streams")
                log.info("listening", extra={"fields": {"url": self.urls[-1]}})
        except BaseException:
            await self._close_listeners()
            self._close_stores()
            raise
        self.broker.run_timers(self.loop.time())  # what was due while nobody served
        self._keep_house()
        # What is alive by now stays alive: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    async def stop(self) -> None:
        """Stop listening, tell every client, flush, close."""
        if self._caller is not None:
            self._caller.close()
        await self._close_listeners()
        for handle in (self._timer, self._housekeeper):
            if handle is not None:
                handle.cancel()
        self.broker.now = self.loop.time()
        if self.streams is not None:
            self.broker.tick(self.broker.now)
            assert self._state is not None
            await self.streams.stop(self._state.journal.settle)
        self.broker.stop()
        for connection in list(self._connections):
            connection.close()
        await self._wait_until_empty(LINGER_S)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until_empty(1.0)
        close_access(self.broker.access)
        # On the loop's thread, where nobody is left to wait: what a tick took now would come too late.
        self.broker.drain()
        self._close_stores()
        log.info("stopped")

    async def _wait_until_empty(self, timeout_s: float) -> None:
        if self._connections:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), timeout_s)

    def reload(self) -> None:
        """SIGHUP: take over what can be changed while running; on any error keep what runs."""
        try:
            new = configuration.reload(self.config)
            access = build_access(new)
            _configure_logging(new)
        except PolybusError as error:
            log.error("configuration not reloaded", extra={"fields": {"error": str(error)}})
            return
        for key in configuration.reloadable_difference(self.config, new):
            log.warning("needs a restart", extra={"fields": {"key": key}})
        self.broker.reconfigure(
            new.limits,
            access,
            shared_strategy=new.mqtt.shared_strategy,
            drop_oldest=new.mqtt.queue_full == "drop_oldest",
            queue_qos0=new.mqtt.queue_qos0,
            service_rules=new.service_rules(),
            default_service=new.requests.default_rule(),
            request_timeout_s=new.requests.timeout_s,
        )
        self._mqtt_options = _mqtt_options(new)
        self._tbus_options = _tbus_options(new)
        # What stays as it is, the next reload must compare with.
        old = self.config
        self.config = msgspec.structs.replace(
            new, listeners=old.listeners, store=old.store, streams=old.streams, http=old.http, mesh=old.mesh
        )
        log.info("configuration reloaded")

    # -- Reception: what connections ask for -----------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        if not self._has_room():
            return False
        self._connections.add(connection)
        return True

    def _has_room(self, in_handshake: int = 0) -> bool:
        if len(self._connections) + in_handshake < self.config.limits.connections + SPARE_CONNECTIONS:
            return True
        self.broker.stats.connections_refused += 1
        return False

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._emptied.set()

    def hold_parts(self, size: int) -> bool:
        self.broker.partial_bytes += size
        return self.broker.has_room_for_parts()

    # -- links -----------------------------------------------------------------------------------

    def _make_mqtt_link(self, port: Port, peer: Peer, now: float) -> ServedLink:
        return MqttLink(
            self.broker,
            port,
            self._mqtt_options,
            _new_client_id,
            peer=peer.address,
            certificate_name=peer.certificate_name,
            now=now,
        )

    def _make_tbus_link(self, port: Port, peer: Peer, now: float) -> ServedLink:
        return TbusLink(
            self.broker,
            port,
            self._tbus_options,
            peer=peer.address,
            certificate_name=peer.certificate_name,
            gate=None if self.mesh is None else Gate(self.broker, self.mesh, self._tbus_options, peer.adopt),
            now=now,
        )

    def _make_call(
        self, port: Port, peer: Peer, now: float, address: str, failed: Callable[[str], None]
    ) -> ServedLink:
        assert self.mesh is not None
        return CallingLink(
            self.broker, port, self._tbus_options, self.mesh, address, failed, peer=peer.address, now=now
        )

    # -- the mesh ----------------------------------------------------------------------------------

    def _join_mesh(self) -> None:
        """Where TBus is served, other brokers may call, and are called (TB-15)."""
        config = self.config.mesh
        own_id = config.address or self._tbus_address()
        if not own_id:
            if config.neighbors:
                raise ConfigError(
                    "mesh.address is missing: other brokers have to know where to find this one, and that does"
                    ' not follow from its listeners; give ip:port of TBus here, such as "10.0.0.1:5035"'
                )
            return
        options = MeshOptions(
            own_id, config.token, config.enabled, config.max_neighbors, config.keep_s, config.keep_alive_s
        )
        if self._state is None:
            self.broker.ledger.offset = time.time() - self.loop.time()
        self.broker.now = self.loop.time()
        self.mesh = Mesh(self.broker, options)
        self.broker.subscriptions.controls[NEIGHBORS] = self._tell_neighbors
        if not config.enabled:
            return
        for address in config.neighbors:
            self.mesh.members.add(address, self.loop.time(), is_configured=True)
        self._caller = Caller(self.mesh, self, self._make_call)
        self._caller.look()

    def _tbus_address(self) -> str:
        """Where other brokers on this machine or network find this one; empty: it cannot be told."""
        for listener, server in zip(self.config.listeners, self._servers, strict=True):
            if (listener.protocol, listener.kind) == ("tbus", "tcp"):
                host, port = server.sockets[0].getsockname()[:2]
                if not ipaddress.ip_address(host).is_unspecified:
                    return broker_id(host, port)
        return ""

    def _tell_neighbors(self, message: Message) -> bytes:
        assert self.mesh is not None
        return msgspec.json.encode({"id": self.mesh.options.own_id, "neighbors": self.mesh.status()})

    # -- time ------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        try:
            self.broker.tick(self.loop.time())
        except Exception:
            log.exception("a tick failed")

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._run_timers)

    def _run_timers(self) -> None:
        try:
            self.broker.run_timers(self.loop.time())
        except Exception:
            log.exception("a timer failed")
        finally:
            deadline = self.broker.timers.deadline()
            if deadline is not None:
                self._arm(deadline)

    def _keep_house(self) -> None:
        now = self.loop.time()
        try:
            self.broker.housekeep(now)
            if self._state is None:
                self.broker.ledger.offset = time.time() - now
            if self._state is not None:
                self._state.keep_house(self.broker, now)
            self._sys_topics.publish(now, self.config.mqtt.sys_interval_s)
            if now >= self._remind_at and descriptors.are_spent():
                self._remind_at = now + REMIND_S
                fields = {"connections": len(self._connections)}
                log.error("no file descriptors left, new connections are refused", extra={"fields": fields})
        except Exception:
            log.exception("housekeeping failed")
        finally:
            self._housekeeper = self.loop.call_later(HOUSEKEEPING_S, self._keep_house)

    # -- listeners -------------------------------------------------------------------------------

    async def _listen(self, listener: Listener) -> None:
        make_link = self._makers[listener.protocol]
        factory: Callable[[], Connection] = lambda: Connection(self, make_link)  # noqa: E731 (replaced below)
        if listener.is_websocket:
            factory = lambda: WebSocketConnection(  # noqa: E731
                self, make_link, listener.path, self.config.limits.packet_size_bytes, listener.allowed_origins
            )
        try:
            server = await self._open(listener, factory)
        except OSError as error:
            flag = WAYS[listener.protocol, listener.kind].flag
            hint = f" (--{flag.replace('_', '-')})" if flag else ""
            raise ConfigError(
                f"cannot listen on {listener.url}: {_reason(error)};"
                f" choose another address or port{hint}, or stop what uses it"
            ) from error
        self._servers.append(server)
        self.urls.append(_actual_url(listener, server))
        log.info("listening", extra={"fields": {"url": self.urls[-1]}})

    async def _open(self, listener: Listener, factory: Callable[[], Connection]) -> Acceptor:
        context = server_context(listener) if listener.is_encrypted else None
        if listener.kind == "unix":
            path = Path(listener.path)
            _remove_dead_socket(path)
            sockets = [acceptor.bind_unix(listener.path, BACKLOG)]
            os.chmod(path, 0o660)
            self._sockets.append(path)
        else:
            sockets = await acceptor.bind(listener.host, listener.port, BACKLOG)
            for sock in sockets:  # whoever is accepted inherits it
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return Acceptor(
            sockets,
            factory,
            context,
            has_room=self._has_room,
            traffic=self.broker.stats.traffic,
            handshake_timeout_s=self.config.limits.connect_timeout_s,
        )

    async def _close_listeners(self) -> None:
        for server in self._servers:
            server.close()
        for path in self._sockets:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _mqtt_options(config: Config) -> MqttOptions:
    return MqttOptions(
        allow_zero_length_client_id=config.mqtt.allow_zero_length_client_id,
        response_information=config.mqtt.response_information,
        server_reference=config.mqtt.server_reference,
    )


def _tbus_options(config: Config) -> TbusOptions:
    return TbusOptions(bulk=config.tbus.bulk, server_reference=config.tbus.server_reference)


def _new_client_id() -> str:
    """Not longer than every server has to take (MQTT-3.1.3-5), whatever the limit is."""
    return f"polybus-{secrets.token_hex(7)}"


def _actual_url(listener: Listener, server: Acceptor) -> str:
    """The listener's address with the port the kernel chose where 0 was asked for."""
    if listener.kind == "unix" or listener.port:
        return listener.url
    port = server.sockets[0].getsockname()[1]
    return msgspec.structs.replace(listener, port=port).url


def _reason(error: OSError) -> str:
    """In the system's words; the event loop's own repeat the address."""
    if error.errno and error.errno > 0 and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _remove_dead_socket(path: Path) -> None:
    """A socket file that nobody listens on any more would keep us from binding."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise ConfigError(f"{path} is in use by another process; choose another path, or stop it")
