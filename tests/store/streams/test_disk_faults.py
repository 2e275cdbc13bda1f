"""When the disk cannot: nobody is told that something is kept, and everything else goes on."""

import errno
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from polybus.store.streams import writer
from polybus.store.streams.files import Files
from polybus.store.streams.rule import StreamRule
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    ReasonCode,
)
from tests.store.streams.kept import Disk, Gate, KeptWorld, keeping
from tests.store.streams.records import payloads, read_files

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


def failing(tmp_path: Path, disk: Disk) -> AbstractContextManager[KeptWorld]:
    rules = StreamRule("kept", ("kept/#",)), StreamRule("other", ("other/#",))
    return keeping(tmp_path, *rules, files=disk)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_could_not_be_written_is_not_acknowledged_and_then_refused_with_a_reason(
    tmp_path: Path, error: int, qos: int
) -> None:
    disk = Disk()
    with failing(tmp_path, disk) as world:
        alice, bob = world.connect("alice", V5, keeps=True), world.connect("bob", V5)
        bob.subscribe("#")
        disk.error = error
        alice.send(Publish("kept/a", b"1", qos, packet_id=9))
        world.until(lambda: alice.is_closed, "the end of the connection")
        assert alice.take(PubAck) == alice.take(PubRec) == []
        (last,) = alice.take(Disconnect)
        assert last.reason_code == ReasonCode.QUOTA_EXCEEDED
        assert "stream kept cannot be written" in str(last.properties.reason_string)
        again = world.connect("alice", V5, clean_start=False, keeps=True)
        again.send(Publish("kept/a", b"1", qos, packet_id=9, dup=True))
        world.until_safe()
        acknowledged = again.take(PubAck if qos == 1 else PubRec)  # type: ignore[type-var]
        assert [a.reason_code for a in acknowledged] == [ReasonCode.QUOTA_EXCEEDED]
        assert "cannot be written" in str(acknowledged[0].properties.reason_string)
        # Everything else goes on: other topics, QoS 0, who only listens.
        again.publish("free", b"2", qos=1)
        again.publish("kept/a", b"3")
        world.until_safe()
        assert [a.reason_code for a in again.take(PubAck)] == [0]
        assert {b"2", b"3"} <= set(bob.payloads())
        assert world.streams.streams["kept"].lost >= 1
        disk.error = 0
        world.until(lambda: world.streams.streams["kept"].refusal is None, "the disk being tried again")
        again.send(Publish("kept/a", b"4", qos, packet_id=9))
        world.until_safe()
        assert [a.reason_code for a in again.take(PubAck if qos == 1 else PubRec)] == [0]  # type: ignore[type-var]
    assert payloads(read_files(tmp_path)) == [b"4"]


def test_a_fault_of_our_own_in_the_thread_leaves_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Files):
        is_broken = False

        def create(self, path: Path, data: bytes) -> int:
            if self.is_broken:
                raise RuntimeError("our own fault")
            return super().create(path, data)

    files = Broken()
    with keeping(tmp_path, StreamRule("all", ("#",), segment_bytes=1000), files=files) as world:
        alice = world.connect("alice")
        files.is_broken = True
        alice.publish("a", b"x" * 2000, qos=1)
        acknowledged: list[PubAck] = []

        def is_over() -> bool:
            acknowledged.extend(alice.take(PubAck))
            return bool(acknowledged) or "the writer of streams failed" in caplog.text

        world.until(is_over, "an end")
        assert acknowledged, "it is written"
    assert payloads(read_files(tmp_path)) == [b"x" * 2000]


def test_a_client_of_3_1_1_is_told_by_the_end_of_its_connection(tmp_path: Path) -> None:
    disk = Disk()
    with failing(tmp_path, disk) as world:
        alice, carol = world.connect("alice", V311), world.connect("carol", V311)
        disk.fill()
        alice.publish("kept/a", b"1", qos=1)
        world.until(lambda: alice.is_closed, "the end of the connection")
        assert alice.take(PubAck) == []
        again = world.connect("alice", V311)
        again.feed_packets(Publish("kept/a", b"1", 1, packet_id=1))
        world.until(lambda: again.is_closed, "the end of the connection")
        assert again.take(PubAck) == []
        carol.publish("free", b"x", qos=1)
        world.until_safe()
        assert len(carol.take(PubAck)) == 1
        assert not carol.is_closed


@VERSIONS
def test_a_failure_that_is_known_before_the_tick_is_not_acknowledged_either(
    tmp_path: Path, version: int
) -> None:
    disk = Disk()
    with failing(tmp_path, disk) as world:
        alice = world.connect("alice", version)
        disk.fill()
        alice.feed_packets(Publish("kept/a", b"1", 1, packet_id=1), Publish("kept/a", b"2", 2, packet_id=2))
        world.first_posted()  # that it is time to write it
        world.first_posted()  # that it could not be written
        world.pump()
        assert alice.is_closed
        assert alice.take(PubAck) == alice.take(PubRec) == []


def test_a_client_that_left_meanwhile_may_send_again(tmp_path: Path) -> None:
    disk = Disk()
    with failing(tmp_path, disk) as world:
        alice = world.connect("alice", V5, keeps=True)
        disk.fill()
        alice.send(Publish("kept/a", b"1", 2, packet_id=5))
        alice.drop()
        world.until(lambda: world.streams.streams["kept"].refusal, "a failure")
        world.until_safe()
        disk.error = 0
        world.until(lambda: world.streams.streams["kept"].refusal is None, "the disk being tried again")
        again = world.connect("alice", V5, clean_start=False, keeps=True)
        again.send(Publish("kept/a", b"1", 2, packet_id=5, dup=True))
        world.until_safe()
        assert [p.reason_code for p in again.take(PubRec)] == [0]
    assert payloads(read_files(tmp_path)) == [b"1"]


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_behind_a_failure_fails_too_even_if_the_disk_has_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, qos: int
) -> None:
    """It would be in the stream before the message that is sent again."""

    class Hiccup(Gate):
        fails = False

        def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
            super().append(fd, pieces)
            if self.fails:
                self.fails = False
                raise OSError(errno.EIO, "a hiccup")

    monkeypatch.setattr(writer, "TEND_S", 0.001)
    disk = Hiccup()
    with keeping(tmp_path, files=disk) as world:
        stream = world.streams.streams["all"]
        alice = world.connect("alice", version, keeps=True)
        disk.fails = True
        disk.open_gate.clear()
        for number in (1, 2):
            alice.send(Publish("a", b"%d" % number, qos, packet_id=number))
            world.pump()
        disk.open_gate.set()
        world.until(lambda: alice.is_closed, "the end of the connection")
        world.until(lambda: stream.refusal is None, "the disk being tried again")
        world.pump()
        assert stream.lost == 2
        again = world.connect("alice", version, clean_start=False, keeps=True)
        for number in (1, 2):
            again.send(Publish("a", b"%d" % number, qos, packet_id=number, dup=True))
        world.until_safe()
        assert len(again.take(PubAck if qos == 1 else PubRec)) == 2  # type: ignore[type-var]
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


def test_a_stream_that_cannot_be_written_does_not_stop_another(tmp_path: Path) -> None:
    class Half(Disk):
        def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
            if self.error and b"kept/a" in bytes(pieces[-1]):
                super().append(fd, pieces)
            else:
                Files.append(self, fd, pieces)

    disk = Half()
    with failing(tmp_path, disk) as world:
        alice, bob = world.connect("alice", V5), world.connect("bob", V5)
        disk.fill()
        alice.feed_packets(Publish("kept/a", b"1", 1, packet_id=1))
        bob.feed_packets(Publish("other/b", b"2", 1, packet_id=1))
        world.until(lambda: alice.is_closed)
        world.until_safe()
        assert [p.reason_code for p in bob.take(PubAck)] == [0]
        assert not bob.is_closed
    assert payloads(read_files(tmp_path)) == [b"2"]
