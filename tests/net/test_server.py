"""The server as a whole: how it starts, stops and takes over a changed configuration."""

import asyncio
import contextlib
import json
import logging
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from polybus.broker.limits import Limits
from polybus.broker.services import ServiceRule
from polybus.errors import ConfigError
from polybus.net import descriptors
from polybus.net import server as servers
from polybus.net.server import Server
from polybus.ops.config import Config, load
from polybus.ops.listeners import Listener
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.client.certificates import Certificates
from tests.net.peers import client, eventually, port_of, serving, serving_config, stream, unix_stream
from tests.ops.logs import restored_logging


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A socket's path may have 107 bytes, and pytest's folders are long."""
    with TemporaryDirectory(prefix="pb") as folder:
        yield Path(folder)


# -- starting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_a_port_in_use_is_a_configuration_error(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = Listener(kind=kind, port=port, path="/mqtt" if kind == "websocket" else "")  # type: ignore[arg-type]
        server = Server(Config(listeners=(Listener(), listener)))
        with pytest.raises(ConfigError, match="choose another") as refused:
            await server.start()
        assert f"127.0.0.1:{port}" in str(refused.value)
        assert "in use" in str(refused.value)
        with pytest.raises(ConnectionRefusedError):  # the listener before it is gone again
            await asyncio.open_connection("127.0.0.1", port_of(server))


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_an_address_that_is_not_ours_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        await Server(Config(listeners=(Listener(host=host),))).start()


async def test_a_certificate_that_cannot_be_used_is_a_configuration_error(certificates: Certificates) -> None:
    mixed = Listener(
        kind="tls", certificate=certificates.cert("server"), private_key=certificates.key("client")
    )
    with pytest.raises(ConfigError, match="cannot be used together"):
        await Server(Config(listeners=(mixed,))).start()


async def test_a_dead_socket_file_is_replaced(short_folder: Path) -> None:
    path = short_folder / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    async with serving(Listener(kind="unix", path=str(path))), unix_stream(path) as peer:
        await peer.greet(Connect("x", V5))


async def test_a_socket_file_in_use_is_a_configuration_error(short_folder: Path) -> None:
    path = short_folder / "s"
    listener = Listener(kind="unix", path=str(path))
    async with serving(listener):
        with pytest.raises(ConfigError, match="in use"):
            await Server(Config(listeners=(listener,))).start()
        async with unix_stream(path) as peer:  # and whoever was there first still is
            await peer.greet(Connect("x", V5))


async def test_a_file_that_is_no_socket_is_left_alone(short_folder: Path) -> None:
    path = short_folder / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="mqtt\\+unix:"):
        await Server(Config(listeners=(Listener(kind="unix", path=str(path)),))).start()
    assert path.read_text() == "precious"


async def test_the_port_that_was_chosen_is_told() -> None:
    async with serving(Listener(), Listener(host="::1")) as server:
        assert server.urls == [f"mqtt://127.0.0.1:{port_of(server)}", f"mqtt://[::1]:{port_of(server, 1)}"]
        assert port_of(server) != 0


async def test_each_listener_says_what_it_speaks(short_folder: Path) -> None:
    listeners = (
        Listener(),
        Listener(protocol="tbus"),
        Listener(protocol="tbus", kind="unix", path=str(short_folder / "s")),
    )
    async with serving(*listeners) as server:
        assert server.urls == [
            f"mqtt://127.0.0.1:{port_of(server)}",
            f"tbus://127.0.0.1:{port_of(server, 1)}",
            f"tbus+unix://{short_folder / 's'}",
        ]


# -- stopping ------------------------------------------------------------------------------------------


async def test_stop_tells_clients_of_5_0_why_and_closes_the_others() -> None:
    async with (
        serving() as server,
        client(server, "five", version=V5) as five,
        client(server, "four", version=V311) as four,
        stream(server) as silent,
    ):
        await eventually(lambda: len(server._connections) == 3)
        stopping = asyncio.create_task(server.stop())
        assert await five.packets_to_the_end() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
        assert await four.packets_to_the_end() == []
        assert await silent.rest() == b""
        await stopping
        assert not server._connections
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(server))


async def test_stop_delivers_what_was_read() -> None:
    """What a publisher has its acknowledgement for reaches subscribers before they are told."""
    count = 2000
    async with (
        serving(limits=Limits(receive_maximum=65_535, inflight_per_session=65_535)) as server,
        client(server, "subscriber") as subscriber,
        client(server, "publisher") as publisher,
    ):
        await subscriber.subscribe("t", qos=1)
        publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(count)))
        await publisher.receive()  # it has begun
        _, acknowledged, received = await asyncio.gather(
            server.stop(), publisher.packets_to_the_end(), subscriber.packets_to_the_end()
        )
        assert acknowledged[-1] == received[-1] == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        payloads = [int(packet.payload) for packet in received if isinstance(packet, Publish)]
        ids = [1, *(packet.packet_id for packet in acknowledged if isinstance(packet, PubAck))]
        assert payloads == list(range(len(payloads)))
        assert len(payloads) >= len(ids)


async def test_stop_removes_the_socket_file(short_folder: Path) -> None:
    path = short_folder / "s"
    async with serving(Listener(kind="unix", path=str(path))):
        assert path.exists()
    assert not path.exists()


async def test_stop_does_not_wait_for_peers_that_never_said_who_they_are() -> None:
    loop = asyncio.get_running_loop()
    async with serving() as server, stream(server) as silent:
        await eventually(lambda: bool(server._connections))
        before = loop.time()
        _, rest = await asyncio.gather(server.stop(), silent.rest())
        assert rest == b""
        assert loop.time() - before < 1.5


# -- reloading -----------------------------------------------------------------------------------------


class ConfigFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "polybus.toml"

    def write(self, text: str) -> Config:
        self.path.write_text("[[listener]]\nport = 0\n" + text)
        return load(self.path)


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path)


@pytest.fixture
def quiet_logging() -> Iterator[None]:
    """Reloading sets up the logs of the whole process: put them back."""
    with restored_logging():
        yield


pytestmark = pytest.mark.usefixtures("quiet_logging")


async def test_reload_takes_over_limits(file: ConfigFile) -> None:
    async with serving_config(file.write("[limits]\nconnections = 1")) as server, client(server, "one") as one:
        async with stream(server) as second:
            assert (await second.greet(Connect("two", V5))).reason_code == ReasonCode.QUOTA_EXCEEDED
        file.write("[limits]\nconnections = 10\npacket_size_bytes = 1000")
        server.reload()
        async with stream(server) as second:
            answer = await second.greet(Connect("two", V5))
            assert (answer.reason_code, answer.properties.maximum_packet_size) == (0, 1000)
            second.send(Publish("t", bytes(2000)))
            assert [type(each) for each in await second.packets_to_the_end()] == [Disconnect]
        await one.ping()


async def test_reload_takes_over_the_size_of_packets_on_websockets(tmp_path: Path) -> None:
    from tests.net.test_websocket import browser

    path = tmp_path / "polybus.toml"
    text = '[[listener]]\nkind = "websocket"\nport = 0\n[limits]\npacket_size_bytes = {}\n'
    path.write_text(text.format(1_000))
    async with serving_config(load(path)) as server:
        path.write_text(text.format(100_000))
        server.reload()
        async with browser(server) as peer:
            await peer.send(Publish("t", bytes(50_000), 1, packet_id=9))
            assert await peer.receive() == PubAck(9)


async def test_reload_takes_over_access_rules(file: ConfigFile) -> None:
    async with serving_config(file.write("")) as server:
        async with client(server, "one") as one:
            assert await one.publish("secret") == 0
        file.write('[[acl]]\ntopic = "open/#"\n')
        server.reload()
        async with client(server, "one") as one:
            assert await one.publish("secret") == ReasonCode.NOT_AUTHORIZED
            assert await one.publish("open/door") == 0
            one.send(Subscribe(1, (SubscriptionRequest("#", 0), SubscriptionRequest("open/+", 0))))
            assert await one.receive() == SubAck(1, (ReasonCode.NOT_AUTHORIZED, 0))


@pytest.mark.parametrize("before", ["", '[[acl]]\ntopic = "#"\n'], ids=["no rules", "other rules"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_new_rules_hold_for_whoever_is_connected(file: ConfigFile, before: str, qos: int) -> None:
    """An operator who takes a right away expects it gone, without throwing everyone out."""
    async with (
        serving_config(file.write(before)) as server,
        client(server, "watcher") as watcher,
        client(server, "one") as one,
    ):
        await watcher.subscribe("secret")
        assert await one.publish("secret", b"before") == 0
        assert isinstance(await watcher.receive(), Publish)
        file.write('[[acl]]\ntopic = "open/#"\n')
        server.reload()
        one.send(Publish("secret", b"after", qos, packet_id=3))
        answer = await one.receive()
        assert getattr(answer, "reason_code", None) == ReasonCode.NOT_AUTHORIZED


async def test_new_rules_end_what_was_forbidden_for_qos_0(file: ConfigFile) -> None:
    async with (
        serving_config(file.write("")) as server,
        client(server, "watcher") as watcher,
        client(server, "one") as one,
    ):
        await watcher.subscribe("#")
        await one.publish("secret", qos=1)
        file.write('[[acl]]\ntopic = "open/#"\n[[acl]]\nclient = "watcher"\ntopic = "#"\n')
        server.reload()
        one.send(Publish("secret", b"after"), Publish("open/x", b"end"))
        seen = [await watcher.receive(), await watcher.receive()]
        assert [packet.topic for packet in seen if isinstance(packet, Publish)] == ["secret", "open/x"]


async def test_reload_takes_over_passwords(file: ConfigFile, tmp_path: Path) -> None:
    from polybus.ops.passwords import set_password

    users = tmp_path / "users"
    set_password(users, "alice", b"old")
    text = f'[auth]\npassword_file = "{users}"\n'
    async with serving_config(file.write(text)) as server:

        async def log_in(password: bytes) -> int:
            async with stream(server) as peer:
                return (await peer.greet(Connect("a", V5, user_name="alice", password=password))).reason_code

        assert await log_in(b"old") == 0
        set_password(users, "alice", b"new")
        assert await log_in(b"old") == 0
        server.reload()
        assert await log_in(b"old") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await log_in(b"new") == 0


def rule(server: Server, topic: str) -> ServiceRule:
    """What holds for requests to this topic."""
    subscriptions = server.broker.subscriptions
    return subscriptions.desk(subscriptions.route_of(topic)).rule


async def test_reload_takes_over_requests_and_services(file: ConfigFile) -> None:
    text = '[requests]\ntimeout_s = 5\n[[service]]\nfilter = "slow/#"\nconcurrency = 3\n'
    async with serving_config(file.write(text)) as server:
        broker = server.broker
        assert broker.requests.timeout_s == 5.0
        assert rule(server, "slow/one") == ServiceRule("slow/#", concurrency=3)
        assert rule(server, "other") == ServiceRule()
        file.write('[requests]\nstrategy = "fastest"\n[limits]\nstored_messages = 7\nstored_bytes = 8\n')
        server.reload()
        assert broker.requests.timeout_s == 60.0
        assert rule(server, "slow/one") == ServiceRule(strategy="fastest")
        assert (broker.storage.max_messages, broker.storage.max_bytes) == (7, 8)


async def test_reload_takes_over_the_event_file(file: ConfigFile, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    async with serving_config(file.write("")) as server:
        file.write('[server]\nevent_file = "events.jsonl"\nlog_level = "NONE"')
        server.reload()
        async with client(server, "seen"):
            pass
        await eventually(lambda: '"client disconnected"' in events.read_text())
        told = [json.loads(line) for line in events.read_text().splitlines()]
        assert next(each["event"] for each in told if each.get("client_id") == "seen") == "client connected"
        file.write("")
        server.reload()
        size = events.stat().st_size
        async with client(server, "unseen") as unseen:
            await unseen.ping()
        assert events.stat().st_size == size


async def test_reload_takes_over_the_log_level(file: ConfigFile) -> None:
    async with serving_config(file.write('[server]\nlog_level = "WARN"')) as server:
        file.write('[server]\nlog_level = "DEBUG"')
        server.reload()
        assert logging.getLogger("polybus").level == logging.DEBUG


@pytest.mark.parametrize(
    "broken",
    [
        "[limits]\nconnections = 0",
        "[limits]\nno_such_key = 1",
        "[limits",
        '[auth]\npassword_file = "missing"',
        '[server]\nlog_file = "missing/polybus.log"',
        '[server]\nevent_file = "missing/events.jsonl"',
        '[tbus]\nserver_reference = "nowhere"',
        '[[service]]\nfilter = "a/#/b"',
    ],
)
async def test_a_broken_file_changes_nothing(
    file: ConfigFile, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = file.write("[limits]\nconnections = 7")
    async with serving_config(config) as server, client(server, "one") as one:
        with contextlib.suppress(ConfigError):
            file.write(broken)
        server.reload()
        assert server.config == config
        assert server.broker.limits.connections == 7
        (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert record.getMessage() == "configuration not reloaded"
        assert str(file.path) in record.fields["error"]  # type: ignore[attr-defined]
        await one.ping()
        async with client(server, "two") as two:
            await two.ping()


async def test_a_log_file_that_cannot_be_written_changes_nothing(file: ConfigFile, tmp_path: Path) -> None:
    config = file.write("[limits]\nconnections = 7")
    async with serving_config(config) as server:
        (tmp_path / "folder.log").mkdir()
        with contextlib.suppress(ConfigError):
            file.write('[server]\nlog_file = "folder.log"\n[limits]\nconnections = 8')
        server.reload()
        assert server.config == config


async def test_what_needs_a_restart_is_told_each_time(
    file: ConfigFile, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_config(file.write("")) as server:
        file.path.write_text("[[listener]]\nport = 1\n")
        for _ in range(2):
            caplog.clear()
            server.reload()
            told = [each for each in caplog.records if each.getMessage() == "needs a restart"]
            assert [each.fields["key"] for each in told] == ["listener[0].port"]  # type: ignore[attr-defined]


async def test_reload_without_a_file_changes_nothing() -> None:
    async with serving() as server:
        server.reload()
        async with client(server, "one") as one:
            await one.ping()


# -- the clock -----------------------------------------------------------------------------------------


async def test_keep_alive_ends_a_silent_client() -> None:
    async with serving() as server, stream(server) as peer:
        answer = await peer.greet(Connect("x", V5, keep_alive_s=1))
        assert isinstance(answer, ConnAck)
        assert await peer.packets_to_the_end() == [Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)]


async def test_sys_topics_are_there() -> None:
    async with serving() as server, client(server, "x") as peer:
        await peer.subscribe("$SYS/broker/version")
        message = await peer.receive()
        assert isinstance(message, Publish)
        assert message.retain
        assert message.payload.startswith(b"polybus ")


# -- what must not end ---------------------------------------------------------------------------------


async def test_housekeeping_and_timers_outlive_their_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers, "HOUSEKEEPING_S", 0.01)
    async with serving(limits=Limits(connect_timeout_s=0.2)) as server:
        calls: list[float] = []

        def fail(now: float) -> None:
            calls.append(now)
            raise RuntimeError("on purpose")

        class Broken:
            def on_timer(self, now: float) -> None:
                fail(now)

        with monkeypatch.context() as broken:
            broken.setattr(server.broker, "housekeep", fail)
            server.broker.timers.schedule(server.loop.time(), Broken())
            async with stream(server) as silent:
                await silent.rest()  # its timer was behind the broken one
            await eventually(lambda: len(calls) > 3)
        async with client(server, "x") as peer:
            await peer.ping()
    told = {record.getMessage() for record in caplog.records if record.exc_info}
    assert told == {"housekeeping failed", "a timer failed"}


async def test_running_out_of_descriptors_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers, "HOUSEKEEPING_S", 0.01)
    monkeypatch.setattr(descriptors, "are_spent", lambda: True)
    async with serving():
        await asyncio.sleep(0.1)
    assert [r.getMessage() for r in caplog.records if "descriptors" in r.getMessage()] == [
        "no file descriptors left, new connections are refused"
    ]


def test_the_limit_of_open_files_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    descriptors.make_room(4000)
    assert asked == [(4096, 4096)]
    assert not caplog.records
    descriptors.make_room(4096)
    (record,) = caplog.records
    assert record.fields == {"allowed": 4096, "needed": 4160}  # type: ignore[attr-defined]


async def test_dead_peers_are_noticed_by_the_system() -> None:
    async with serving() as server, client(server, "x"):
        (connection,) = server._connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_an_assigned_client_id_fits_into_the_smallest_limit() -> None:
    async with serving(limits=Limits(client_id_bytes=23)) as server, client(server, "") as peer:
        assert await peer.publish("a", b"") == 0
