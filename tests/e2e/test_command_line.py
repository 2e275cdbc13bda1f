"""`polybus pub` and `polybus sub` against a served bus, and the life of `polybus serve` itself."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.conftest import StartBus
from tests.e2e.processes import EVERY_KIND, POLYBUS, Program, Served, eventually, polybus, unique
from tests.ports import own_port

CONNECT_V5 = bytes.fromhex("100e00044d5154540502000000000161")  # client id "a"
CONNECT_V311 = bytes.fromhex("100d00044d51545404020000000162")  # client id "b"


def subscriber(bus: Served, folder: Path, topic: str, *arguments: str, kind: str = "tcp") -> Program:
    """Waits for nothing: retain something under the topic to see that it listens."""
    authority = ["--cafile", bus.authority] if kind in ("tls", "wss") else []
    return Program([*POLYBUS, "sub", "--url", bus.url(kind), "-t", topic, *authority, *arguments], folder)


def publish(bus: Served, topic: str, *arguments: str, kind: str = "tcp", stdin: str = "") -> None:
    authority = ["--cafile", bus.authority] if kind in ("tls", "wss") else []
    done = polybus("pub", "--url", bus.url(kind), "-t", topic, *authority, *arguments, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_pub_and_sub_over_every_transport(bus: Served, tmp_path: Path, kind: str) -> None:
    topic = unique()
    publish(bus, topic, "-m", "ready", "-r", "-q", "1", kind=kind)
    with subscriber(bus, tmp_path, topic, "-C", "3", "-q", "2", "-v", kind=kind) as sub:
        sub.wait_for("ready")
        publish(bus, topic, "-l", "-q", "2", "-V", "3.1.1", kind=kind, stdin="one\ntwo\n")
        assert sub.wait() == 0
    assert sub.output == f"{topic} ready\n{topic} one\n{topic} two\n"


def test_every_one_of_many_short_visits_over_websocket_counts(bus: Served, tmp_path: Path) -> None:
    """Each publishes, says goodbye and closes, often in one segment."""
    topic = unique()
    publish(bus, topic, "-m", "ready", "-r", "-q", "1")
    with subscriber(bus, tmp_path, topic, "-C", "11") as sub:
        sub.wait_for("ready")
        for number in range(10):
            publish(bus, topic, "-m", str(number), kind="websocket")
        assert sub.wait() == 0
    assert sub.output.split() == ["ready", *map(str, range(10))]


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_tls_to_a_plain_port_is_told_as_such(bus: Served, scheme: str) -> None:
    done = polybus("pub", "--url", f"{scheme}://127.0.0.1:{bus.ports['tcp']}", "-t", "t", "-m", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the TLS handshake with" in done.stderr
    assert "does that port speak TLS?" in done.stderr


def test_json(bus: Served, tmp_path: Path) -> None:
    topic = unique()
    publish(
        bus,
        topic,
        "-m",
        "x",
        "-r",
        "-q",
        "1",
        "--user-property",
        "a=b",
        "--property",
        "content_type=text/plain",
    )
    with subscriber(bus, tmp_path, topic, "-C", "1", "--json") as sub:
        assert sub.wait() == 0
    message = json.loads(sub.output)
    assert (message["topic"], message["payload"], message["retain"]) == (topic, "x", True)
    assert message["properties"] == {"content_type": "text/plain", "user_properties": [["a", "b"]]}


def test_a_kept_session(bus: Served, tmp_path: Path) -> None:
    topic, client_id = unique(), unique("c")
    publish(bus, topic, "-m", "ready", "-r", "-q", "1")
    kept = ["--id", client_id, "--keep", "-q", "1"]
    with subscriber(bus, tmp_path, topic, *kept, "-C", "1") as sub:
        assert sub.wait() == 0
    publish(bus, topic, "-m", "while away", "-q", "1")
    with subscriber(bus, tmp_path, topic, *kept, "-C", "1", "-R") as sub:
        assert sub.wait() == 0
    assert sub.output == "while away\n"


def test_sub_stays_through_a_restart(start_bus: StartBus, tmp_path: Path) -> None:
    port = own_port()
    command = [*POLYBUS, "serve", "--memory", "--mqtt-port", str(port), "--tbus-port", "0"]
    url = f"mqtt://127.0.0.1:{port}"
    with Program(command, tmp_path) as first:
        first.wait_for(url)
        assert polybus("pub", "--url", url, "-t", "t", "-m", "before", "-r", "-q", "1").returncode == 0
        with Program([*POLYBUS, "sub", "--url", url, "-t", "t", "-q", "1", "-C", "2"], tmp_path) as sub:
            sub.wait_for("before")
            first.process.send_signal(signal.SIGTERM)
            assert first.wait() == 0, first.output
            sub.wait_for("connecting again")
            with Program(command, tmp_path) as second:
                second.wait_for(url)
                sub.wait_for("connected again")
                eventually(lambda: _publish(url, "after") and sub.process.poll() is not None)
                assert sub.wait() == 0
                assert "after" in sub.output


def _publish(url: str, payload: str) -> bool:
    return polybus("pub", "--url", url, "-t", "t", "-m", payload, "-q", "1").returncode == 0


# -- serve -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(start_bus: StartBus, number: signal.Signals) -> None:
    bus = start_bus("", EVERY_KIND)
    assert bus.socket_path.exists()
    with (
        socket.create_connection(("127.0.0.1", bus.port)) as five,
        socket.create_connection(("127.0.0.1", bus.port)) as four,
    ):
        for client, connect in ((five, CONNECT_V5), (four, CONNECT_V311)):
            client.settimeout(10)
            client.sendall(connect)
            assert client.recv(1) == b"\x20"
        bus.signal(number)
        assert _to_the_end(five)[-3:] in (b"\xe0\x01\x8b", b"\x02\x8b\x00"), (
            bus.log
        )  # with or without properties
        _to_the_end(four)
        assert bus.process.wait(20) == 0, bus.log
    assert "is stopping" in bus.stdout
    assert not bus.socket_path.exists()
    assert "Traceback" not in bus.log


def test_reload(start_bus: StartBus) -> None:
    bus = start_bus("[limits]\nkeep_alive_s = 100\n")
    assert b"\x13\x00\x64" in _connack(bus)  # server keep alive, in words of 5.0
    bus.write_config('[limits]\nkeep_alive_s = 50\n[server]\nlog_level = "DEBUG"\n')
    bus.reload()
    assert b"\x13\x00\x32" in _connack(bus)
    bus.write_config("[limits]\nkeep_alive_s = -1\n")
    bus.reload()
    assert "configuration not reloaded" in bus.log
    assert "limits.keep_alive_s" in bus.log
    assert b"\x13\x00\x32" in _connack(bus)
    bus.config_path.unlink()
    bus.reload()
    assert b"\x13\x00\x32" in _connack(bus)
    bus.write_config("")
    bus.reload()
    assert b"\x13" not in _connack(bus)
    assert "Traceback" not in bus.log


def test_a_log_file_that_cannot_be_written_keeps_what_runs(start_bus: StartBus) -> None:
    bus = start_bus("")
    (bus.folder / "folder").mkdir()
    bus.write_config('[server]\nlog_file = "folder"\n[limits]\nkeep_alive_s = 50\n')
    bus.reload()
    assert "configuration not reloaded" in bus.log
    assert "Traceback" not in bus.log
    assert b"\x13\x00\x32" not in _connack(bus)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[limits]\nconnections = 0\n", "limits.connections"),
        ("[limit]\n", "limit"),
        ("[[listener]]\nkind = 'tls'\n", "certificate"),
        ("not toml", "line 1"),
        ("[auth]\npassword_file = 'missing'\n", "auth.password_file"),
    ],
)
def test_a_bad_configuration_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "polybus.toml"
    path.write_text(text)
    done = polybus("serve", "--config", path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert str(path) in done.stderr
    assert told in done.stderr
    assert all(line.startswith("polybus: ") for line in done.stderr.splitlines())


def test_logs_as_json(start_bus: StartBus) -> None:
    bus = start_bus('[server]\nlog_format = "json"\nlog_level = "TRACE"\n')
    _connack(bus)
    eventually(lambda: "client connected" in bus.log)
    entries = [json.loads(line) for line in bus.log.splitlines()]
    assert any(e["event"] == "client connected" and e["fields"]["client_id"] == "a" for e in entries)


def test_every_event_in_a_file(start_bus: StartBus) -> None:
    """Of a client that comes, subscribes, publishes and goes; and through a rotation of the file."""
    bus = start_bus('[server]\nlog_level = "ERROR"\nevent_file = "events.jsonl"\n')
    file, moved = bus.folder / "events.jsonl", bus.folder / "events.1"
    topic, client_id = unique(), unique("c")
    publish(bus, topic, "-m", "x", "-r", "-q", "1", "--id", client_id)
    eventually(lambda: "client disconnected" in file.read_text())
    file.rename(moved)
    with subscriber(bus, bus.folder, topic, "-C", "1") as sub:
        assert sub.wait() == 0
    eventually(lambda: file.exists() and "client disconnected" in file.read_text())
    told = [json.loads(line) for line in moved.read_text().splitlines()]
    assert [each["event"] for each in told if each.get("client_id") == client_id] == [
        "client connected",
        "message received",
        "message delivered",
        "client disconnected",
    ]
    later = [json.loads(line) for line in file.read_text().splitlines()]
    assert ("subscribed", topic) in [(each["event"], each.get("topic")) for each in later]
    assert bus.log == ""


def test_tbus_with_the_flags_of_the_document(tmp_path: Path) -> None:
    """One client is let in, the next is refused by the limit; everything is logged (TB-14, TB-16)."""
    flags = ["--ip", "127.0.0.1", "--port", "0", "--client-limit", "1", "--log-level", "ALL"]
    with Program([*POLYBUS, "tbus", *flags], tmp_path) as bus:
        bus.wait_for("is ready")
        eventually(lambda: "\n  tbus://" in bus.output)
        where = re.search(r"\n  tbus://127\.0\.0\.1:(\d+)\n", bus.output)
        assert where
        assert "mqtt" not in bus.output
        connect = bytes.fromhex("11 05 0000 02") + b"c1"  # clean start, no keep alive
        with (
            socket.create_connection(("127.0.0.1", int(where[1])), 10) as one,
            socket.create_connection(("127.0.0.1", int(where[1])), 10) as two,
        ):
            one.sendall(connect)
            assert one.recv(4) == bytes.fromhex("20 02 00 00")
            two.sendall(connect.replace(b"c1", b"c2"))
            assert _to_the_end(two)[2] == 131
            one.sendall(bytes.fromhex("30 05 02") + b"a/" + bytes.fromhex("00") + b"x")
            one.sendall(bytes.fromhex("C0 00"))
            assert one.recv(2) == bytes.fromhex("D0 00")
        bus.wait_for("TRACE polybus.events: message received client_id=c1 topic=a/")
        bus.wait_for("client disconnected")
        bus.process.send_signal(signal.SIGTERM)
        assert bus.wait() == 0, bus.output
        assert "INFO  polybus.events: client connected client_id=c1" in bus.output
        assert "WARN  polybus.events: connection refused client_id=c2" in bus.output


def test_standard_output_that_nobody_reads(tmp_path: Path) -> None:
    """`polybus serve | head -1` is no reason to stop."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = f"exec {' '.join(POLYBUS)} serve --memory --mqtt-port 0 --tbus-port 0 >&{write}"
        with Program(["sh", "-c", command], tmp_path) as program:
            eventually(lambda: program.process.poll() is not None or "listening" in program.output)
    finally:
        os.close(write)


def _connack(bus: Served) -> bytes:
    with socket.create_connection(("127.0.0.1", bus.port)) as client:
        client.settimeout(10)
        client.sendall(CONNECT_V5)
        head = client.recv(2, socket.MSG_WAITALL)
        assert head[0] == 0x20
        return client.recv(head[1], socket.MSG_WAITALL)


def _to_the_end(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(4096):
        data += piece
    return data
