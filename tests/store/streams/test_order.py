"""What a publisher has to send again is kept before what it sent later, whenever a disk fails and recovers.

The writer's thread is driven by hand: what the loop does and what the thread does, step by step.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from polybus.store.folder import DataFolder
from polybus.store.streams.files import Files
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.writer import Group, StreamSet, Told
from polybus.wire.mqtt.packets import V5, V311, PubAck, Publish, PubRec
from tests.session.harness import Peer, World
from tests.store.streams.records import payloads, read_files

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
TRACKED = pytest.mark.parametrize("qos", [1, 2])


class Hiccup(Files):
    """Fails so many times."""

    fails = 0

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EIO, "a hiccup")
        super().append(fd, pieces)


class ByHand(World):
    def __init__(self, streams: StreamSet) -> None:
        super().__init__(journal=streams)
        self.streams = streams
        self.stream = streams.streams["all"]
        self.posted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        streams._post = lambda call, *arguments: self.posted.append((call, arguments))
        self.broker.subscriptions.log_of = streams.log_of
        streams.on_failed = self.broker.commit_failed

    def loop(self, calls: int = 1000) -> None:
        """It does what the thread has posted."""
        while self.posted and calls:
            calls -= 1
            call, arguments = self.posted.pop(0)
            call(*arguments)
            self.settle()

    def thread(self, *, tends: bool = False) -> None:
        """It does what it is asked for."""
        work = self.streams._work
        while work.qsize():
            wish = work.get()
            if isinstance(wish, Group):
                self.streams._write(wish)
            elif isinstance(wish, Told):
                self.streams._post(self.streams._go_on, wish.stream)
            if tends:
                self.streams._tend()

    def all(self) -> None:
        """Both do what there is to do."""
        for _ in range(100):
            self.thread()
            if not self.posted and not self.streams.waiting_bytes():
                return
            self.loop()
            self.streams._on_time()
        raise AssertionError("there is no end to it")

    def come_again(self, name: str, version: int, qos: int) -> Peer:
        """It sends both again that have no acknowledgement."""
        assert self.stream.refusal is None
        again = self.connect(name, version, clean_start=False, keeps=True)
        for number in (1, 2):
            again.send(Publish("a", b"%d" % number, qos, packet_id=number, dup=True))
        self.all()
        acknowledged = again.take(PubAck if qos == 1 else PubRec)  # type: ignore[type-var]
        assert [(a.packet_id, a.reason_code) for a in acknowledged] == [(1, 0), (2, 0)]
        return again


@pytest.fixture
def disk() -> Hiccup:
    return Hiccup()


@pytest.fixture
def world(tmp_path: Path, disk: Hiccup) -> Iterator[ByHand]:
    with DataFolder(tmp_path) as folder:
        streams = StreamSet(folder, [StreamRule("all", ("#",))], files=disk)
        yield ByHand(streams)
        streams.close()


@VERSIONS
@TRACKED
def test_a_message_of_another_publisher_fails_too(
    tmp_path: Path, world: ByHand, disk: Hiccup, version: int, qos: int
) -> None:
    alice, bob = (world.connect(name, version, keeps=True) for name in ("alice", "bob"))
    world.all()
    disk.fails = 1
    alice.send(Publish("a", b"x", qos, packet_id=1))  # the thread has this, when …
    bob.send(Publish("a", b"1", qos, packet_id=1))  # … this gathers behind it
    world.thread(tends=True)
    world.loop()  # alice is told, bob's is made
    assert alice.is_closed
    assert not bob.is_closed
    world.thread()  # bob's fails, which is posted; but the loop has read something before:
    bob.feed_packets(Publish("a", b"2", qos, packet_id=2))
    world.all()
    assert bob.is_closed
    world.come_again("bob", version, qos)
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


@VERSIONS
@TRACKED
def test_news_of_an_earlier_recovery_does_not_end_a_new_failure(
    tmp_path: Path, world: ByHand, disk: Hiccup, version: int, qos: int
) -> None:
    alice, bob = (world.connect(name, version, keeps=True) for name in ("alice", "bob"))
    world.all()
    disk.fails = 1
    alice.send(Publish("a", b"x", qos, packet_id=1))
    world.thread()
    world.streams._tend()
    world.streams._tend()  # the loop was busy for a while
    world.loop()
    world.thread()
    world.streams._tend()
    world.loop(1)
    assert world.stream.refusal is None
    disk.fails = 1
    bob.send(Publish("a", b"1", qos, packet_id=1))
    world.thread()
    assert world.stream.refusal is not None
    world.loop(1)  # what was posted before bob's failed
    world.thread()
    bob.feed_packets(Publish("a", b"2", qos, packet_id=2))
    world.all()
    assert bob.is_closed
    world.come_again("bob", version, qos)
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


def test_nothing_is_taken_back_that_was_sent_again(tmp_path: Path, world: ByHand, disk: Hiccup) -> None:
    alice = world.connect("alice", keeps=True)
    world.all()
    disk.fails = 1
    for number in (1, 2):
        alice.send(Publish("a", b"%d" % number, 2, packet_id=number))
    world.thread(tends=True)
    world.loop()
    assert alice.is_closed
    again = world.connect("alice", clean_start=False, keeps=True)
    world.thread()
    again.feed_packets(Publish("a", b"1", 2, packet_id=1, dup=True))
    assert again.is_closed, "not everybody knows yet what has failed"
    world.all()
    world.come_again("alice", V311, 2)
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


@VERSIONS
def test_a_client_that_left_before_the_tick_may_send_again(
    tmp_path: Path, world: ByHand, disk: Hiccup, version: int
) -> None:
    alice = world.connect("alice", version, keeps=True)
    world.all()
    disk.fails = 1
    alice.feed_packets(Publish("a", b"1", 2, packet_id=1))
    alice.drop()
    world.all()
    assert world.stream.lost == 1
    world.streams._tend()
    world.all()
    world.come_again("alice", version, 2)
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


def test_a_client_that_is_refused_before_the_tick_may_send_again(
    tmp_path: Path, world: ByHand, disk: Hiccup
) -> None:
    alice, bob = (world.connect(name, keeps=True) for name in ("alice", "bob"))
    world.all()
    disk.fails = 1
    bob.send(Publish("a", b"x", 1, packet_id=1))
    alice.feed_packets(Publish("a", b"1", 2, packet_id=1))
    world.thread()
    assert world.stream.refusal is not None
    alice.feed_packets(Publish("a", b"2", 2, packet_id=2))
    assert alice.is_closed, "3.1.1 has no other refusal"
    world.loop()
    world.streams._tend()
    world.all()
    world.come_again("alice", V311, 2)
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]
