"""A bus that is killed, as only the kernel can, and started again: what it acknowledged is there (OP-01)."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from paho.mqtt.client import Client

from polybus.broker.records import unpack_session
from polybus.store.state import STATE_FILE, StateFile
from tests.e2e.conftest import StartBus
from tests.e2e.paho_peers import connected, kept
from tests.e2e.processes import PATIENCE_S, Served, eventually, polybus, run, unique

VERSIONS = pytest.mark.parametrize("version", ["3.1.1", "5"])


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_kept_sessions_and_their_messages(start_bus: StartBus, tmp_path: Path, version: str, qos: int) -> None:
    bus = start_bus(folder=tmp_path)
    client_id, topic = unique("kept"), unique("topic")
    with connected(bus, version, client_id=client_id, **kept(version)) as subscriber:
        subscriber.subscribe(topic, qos)
    with connected(bus, version) as publisher:
        for number in range(50):
            publisher.publish(topic, str(number), qos)
        publisher.publish("last/value", b"kept", 1, retain=True)
    bus.kill()
    bus = start_bus(folder=tmp_path)
    with connected(bus, version, client_id=client_id, **kept(version)) as subscriber:
        assert subscriber.session_present
        assert [subscriber.get().payload for _ in range(50)] == [b"%d" % n for n in range(50)]
        subscriber.subscribe("last/#", 1)
        assert subscriber.get().payload == b"kept"
        assert subscriber.messages.empty()
    bus.check_health()


def test_a_second_broker_is_told_who_has_the_folder(start_bus: StartBus, tmp_path: Path) -> None:
    bus = start_bus(folder=tmp_path)
    flags = ["--mqtt-port", "0", "--tbus-port", "0", "--data-dir", bus.data_path]
    done = polybus("serve", *flags)
    assert done.returncode == 2
    assert f"process {bus.process.pid}" in done.stderr
    assert str(bus.data_path) in done.stderr


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    letter = b"this is no database, it is a letter to my aunt\n" * 100
    (tmp_path / "state.sqlite").write_bytes(letter)
    done = polybus("serve", "--mqtt-port", "0", "--tbus-port", "0", "--data-dir", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "state.sqlite") in done.stderr
    assert (tmp_path / "state.sqlite").read_bytes() == letter


def test_a_stop_and_a_start(start_bus: StartBus, tmp_path: Path) -> None:
    bus = start_bus(folder=tmp_path)
    topic = unique("topic")
    with connected(bus, client_id="kept", **kept("5")) as subscriber:
        subscriber.subscribe(topic, 1)
    with connected(bus) as publisher:
        publisher.publish(topic, b"before")
    bus.signal(signal.SIGTERM)
    assert bus.process.wait(PATIENCE_S) == 0
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="kept", **kept("5")) as subscriber:
        assert subscriber.get().payload == b"before"


def test_a_stop_writes_who_left_with_it(start_bus: StartBus, tmp_path: Path) -> None:
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="kept", disconnect=False, **kept("5")):
        bus.signal(signal.SIGTERM)
        assert bus.process.wait(PATIENCE_S) == 0
    file = StateFile(bus.data_path / STATE_FILE)
    [(_, record)] = file.begin(0.0).sessions
    file.close()
    session = unpack_session(record)
    assert (session.client_id, session.is_connected) == ("kept", False)
    assert session.ends_at is not None


def test_a_request_and_its_answer_outlive_the_bus(start_bus: StartBus, tmp_path: Path) -> None:
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="asker", disconnect=False, **kept("5")) as asker:
        ends_topic = asker.ends_topic
        asked = asker.request("solve", b"6*7", "managed,waiting", timeout_s=600)
        bus.kill()
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="service") as service:
        service.serve("solve")
        request = service.get()
        assert request.payload == b"6*7"
        service.answer(request, b"42")
        bus.kill()
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="asker", **kept("5")) as asker:
        asker.ends_topic = ends_topic
        assert asker.end(asked) == ("answered", b"42")


def test_a_file_that_is_taken_away(start_bus: StartBus, tmp_path: Path) -> None:
    bus = start_bus(folder=tmp_path)
    topic = unique("topic")
    with connected(bus, client_id="kept", **kept("5")) as subscriber:
        subscriber.subscribe(topic, 1)
    path, away = bus.data_path / STATE_FILE, tmp_path / "away"
    path.rename(away)
    eventually(lambda: f"{path} was removed" in bus.log, lambda: bus.log)
    with Counted(bus, topic) as publisher, connected(bus) as plain:
        refused = publisher.publish()
        eventually(lambda: refused in publisher.codes, lambda: bus.log)
        assert publisher.codes == {refused: 0x97}
        plain.subscribe("plain", 1)
        publisher.paho.publish("plain", b"goes on", 1)
        assert plain.get().payload == b"goes on"
        away.rename(path)
        eventually(lambda: "can be written again" in bus.log, lambda: bus.log)
        taken = publisher.publish()
        eventually(lambda: taken in publisher.codes, lambda: bus.log)
        assert publisher.codes[taken] == 0
    bus.kill()
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="kept", **kept("5")) as subscriber:
        subscriber.get()
        assert subscriber.messages.empty()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 1 MiB."""
    folder = tmp_path / "data"
    folder.mkdir()
    mounted = run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
    if mounted.returncode:
        pytest.skip(f"mounting needs a right that we do not have: {mounted.stderr.strip()}")
    yield folder
    run("umount", "-l", folder)


def test_a_full_disk(start_bus: StartBus, tmp_path: Path, small_disk: Path) -> None:
    bus = start_bus(folder=tmp_path)
    topic = unique("topic")
    with connected(bus, client_id="kept", **kept("5")) as subscriber:
        subscriber.subscribe(topic, 1)
    with Counted(bus, topic) as publisher:
        for _ in range(1000):
            mid = publisher.publish()
            eventually(lambda mid=mid: mid in publisher.codes or "cannot be written" in bus.log)  # type: ignore[misc]
            if mid not in publisher.codes:
                break
        assert set(publisher.codes.values()) == {0}
        with Counted(bus, topic) as other, connected(bus) as plain:
            mid = other.publish()
            eventually(lambda: mid in other.codes, lambda: bus.log)
            assert other.codes == {mid: 0x97}
            plain.subscribe("plain", 1)
            other.paho.publish("plain", b"goes on", 1)
            assert plain.get().payload == b"goes on"
        assert run("mount", "-o", "remount,size=64m", small_disk).returncode == 0
        eventually(lambda: "can be written again" in bus.log, lambda: bus.log)
        publisher.publish()
        eventually(lambda: len(publisher.codes) == len(publisher.payloads), lambda: bus.log)
    assert set(publisher.codes.values()) == {0}
    bus.kill()
    bus = start_bus(folder=tmp_path)
    with connected(bus, client_id="kept", **kept("5")) as subscriber:
        assert [subscriber.get().payload for _ in publisher.payloads] == list(publisher.payloads.values())


class Counted:
    """A publisher of large messages that remembers how each was acknowledged."""

    def __init__(self, bus: Served, topic: str) -> None:
        self.codes: dict[int, int] = {}
        self.payloads: dict[int, bytes] = {}
        self._topic = topic
        self._connected = connected(bus, prepare=self._watch)

    def _watch(self, client: Client) -> None:
        client.on_publish = lambda _c, _d, mid, code, _properties: self.codes.__setitem__(mid, code.value)

    def __enter__(self) -> Self:
        self.paho = self._connected.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connected.__exit__(*error)

    def publish(self) -> int:
        payload = b"%08d" % len(self.payloads) + b"x" * 20_000
        mid = self.paho.client.publish(self._topic, payload, 1).mid
        self.payloads[mid] = payload
        return mid
