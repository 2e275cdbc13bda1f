"""When batches are made and written, and when that is acknowledged."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.store.folder import DataFolder
from polybus.store.streams import gathering, writer
from polybus.store.streams.format import scan
from polybus.store.streams.gathering import BATCH_BYTES
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.stream import partition_of
from polybus.store.streams.writer import Group, StreamSet, Told
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from tests.store.streams.kept import EVERYTHING, Gate, keeping
from tests.store.streams.records import payloads, read_files

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


# -- acknowledgements wait ----------------------------------------------------------------------------


@VERSIONS
def test_nothing_is_acknowledged_before_it_is_written(tmp_path: Path, version: int) -> None:
    gate = Gate()
    with keeping(tmp_path, files=gate) as world:
        alice, bob = world.connect("alice", version), world.connect("bob", version)
        bob.subscribe("#")
        gate.open_gate.clear()
        alice.publish("a", b"1", b"2", qos=1)
        alice.send(Publish("a", b"3", 2, packet_id=77))
        world.pump()
        assert bob.payloads() == [b"1", b"2", b"3"], "subscribers need not wait"
        assert alice.take(PubAck) == []
        assert alice.take(PubRec) == []
        assert read_files(tmp_path) == []
        gate.open_gate.set()
        world.until_safe()
        assert len(alice.take(PubAck)) == 2
        assert [p.packet_id for p in alice.take(PubRec)] == [77]
        alice.send(PubRel(77))
        world.until_safe()
        assert [p.packet_id for p in alice.take(PubComp)] == [77]
    assert payloads(read_files(tmp_path)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(("rows", "enough"), [(1, 1), (1, 1 << 20), (2, 1), (3, 1), (16_384, 1)])
@pytest.mark.parametrize("partitions", [1, 4])
def test_every_commit_is_done_however_batches_are_cut(
    tmp_path: Path, rows: int, enough: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "BATCH_ROWS", rows)
    monkeypatch.setattr(writer, "ENOUGH_BYTES", enough)
    with keeping(tmp_path, StreamRule("all", ("#",), partitions=partitions)) as world:
        alice = world.connect("alice", V311)
        acknowledged: list[PubAck] = []
        sent = 0
        for count in (1, 2, 3, 5):
            alice.feed_packets(*(Publish(f"t/{n}", b"%d" % n, 1, packet_id=n + 1) for n in range(count)))
            sent += count
            while len(acknowledged) < sent:
                world.until(
                    lambda: acknowledged.extend(found := alice.take(PubAck)) or found, "acknowledgements"
                )
    assert len(read_files(tmp_path)) == sent


def test_a_commit_with_nothing_before_it_is_done_at_once_and_all_in_order(tmp_path: Path) -> None:
    gate = Gate()
    with keeping(tmp_path, files=gate) as world:
        done: list[int] = []
        world.streams.commit(lambda: done.append(0))
        assert done == [0]
        gate.open_gate.clear()
        alice = world.connect("alice")
        for number in (1, 2, 3):
            alice.publish("a", b"x")
            world.streams.commit(lambda number=number: done.append(number))  # type: ignore[misc]
        world.pump()
        assert done == [0]
        gate.open_gate.set()
        world.until(lambda: len(done) == 4)
        assert done == [0, 1, 2, 3]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_message_that_is_a_batch_of_its_own_is_acknowledged(
    tmp_path: Path, qos: int, partitions: int
) -> None:
    """It is on its way before anyone waits for it, and nothing may come behind it."""
    payload = b"x" * BATCH_BYTES
    with keeping(tmp_path, StreamRule("all", ("#",), partitions=partitions)) as world:
        alice = world.connect("alice")
        alice.send(Publish("a", payload, qos, packet_id=7))
        done: list[bool] = []
        world.streams.commit(lambda: done.append(True))
        world.first_posted()
        assert done, "written, and those who wait are not told"
        world.pump()
        assert [each.packet_id for each in alice.take(PubAck if qos == 1 else PubRec)] == [7]
    assert payloads(read_files(tmp_path)) == [payload]


def test_what_is_left_beside_a_batch_is_written_though_nobody_waits(tmp_path: Path) -> None:
    """One packet is a batch of its own; its neighbour is of another partition, and nothing follows."""
    with keeping(tmp_path, StreamRule("all", ("#",), partitions=2)) as world:
        alice = world.connect("alice")
        wire = encode(Publish("a", b"x" * BATCH_BYTES), V311) + encode(Publish("d", b"last"), V311)
        assert partition_of(b"a", 2) != partition_of(b"d", 2)
        for topic in ("a", "d"):  # known topics are read as one run
            alice.publish(topic, b"first")
        world.until_safe()
        world.until(lambda: not world.streams._is_awake, "time is up")
        alice.feed(wire)
        assert world.streams._is_awake, "nobody would say when it is time"
        world.until(lambda: world.streams.waiting_bytes() == 0, "nothing waits")
    assert sorted(map(len, payloads(read_files(tmp_path)))) == [4, 5, 5, BATCH_BYTES]  # type: ignore[arg-type]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("count", [2, 15, 16])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_few_large_packets_that_come_together(
    tmp_path: Path, version: int, qos: int, count: int, compression: Literal["none", "lz4", "zstd"]
) -> None:
    """They are packed when they come, though so few records would not be."""
    sent = [b"%01000d" % n * 20 for n in range(count)]
    with keeping(tmp_path, StreamRule("all", ("#",), compression=compression)) as world:
        alice = world.connect("alice", version)
        packets = [Publish("a", each, qos, packet_id=n + 1) for n, each in enumerate(sent)]
        alice.feed(b"".join(encode(packet, version) for packet in packets))
        world.until_safe()
    assert payloads(read_files(tmp_path)) == sent


@pytest.mark.parametrize("topics", [1, 3])
@pytest.mark.parametrize("qos", [0, 1])
def test_small_packets_of_a_publisher_with_a_long_name(tmp_path: Path, topics: int, qos: int) -> None:
    """It is in each record: a batch of them all would be larger than Arrow can count, or than memory is."""
    count, name = 1000, "c" * 65_000
    sent = [(f"t/{n % topics}", b"%d" % n) for n in range(count)]
    with keeping(tmp_path, limits=Limits(client_id_bytes=len(name))) as world:
        alice = world.connect(name, V311)
        packets = [Publish(topic, payload, qos, packet_id=n + 1) for n, (topic, payload) in enumerate(sent)]
        alice.feed(b"".join(encode(packet, V311) for packet in packets))
        world.until_safe()
        segments = world.streams.streams["all"].partitions[0].segments
        batches = [batch for segment in segments for batch in segment.index()]
    found = read_files(tmp_path)
    assert [(record["topic"], record["payload"]) for record in found] == sent
    assert {record["client_id"] for record in found} == {name}
    assert max(batch.rows for batch in batches) * len(name) <= 2 * BATCH_BYTES


# -- when batches are made ----------------------------------------------------------------------------


def rows_of_batches(folder: Path) -> list[int]:
    """In their order."""
    return [batch.rows for path in sorted(folder.rglob("*.arrow")) for batch in scan(path.read_bytes()).batches]


def test_what_nobody_waits_for_is_written_after_a_moment_each_time(tmp_path: Path) -> None:
    with keeping(tmp_path) as world:
        alice = world.connect("alice")
        partition = world.streams.streams["all"].partitions[0]
        for reached in (1, 2, 3):
            alice.publish("a", b"x")
            world.until(lambda reached=reached: partition.next == reached, "a record")  # type: ignore[misc]


def test_what_has_gathered_is_written_at_the_end(tmp_path: Path) -> None:
    with keeping(tmp_path) as world:
        world.connect("alice").publish("a", b"1", b"2")
        assert read_files(tmp_path) == []
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


@pytest.mark.parametrize(("bound", "value"), [("BATCH_ROWS", 10), ("BATCH_BYTES", 10 * len("a/b0000alice"))])
def test_a_batch_has_no_more_than_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(gathering, bound, value)
    with keeping(tmp_path) as world:
        alice = world.connect("alice")
        for number in range(25):
            alice.publish("a/b", b"%04d" % number)
        assert world.streams.waiting_bytes() > 0
    assert payloads(read_files(tmp_path)) == [b"%04d" % number for number in range(25)]
    assert rows_of_batches(tmp_path) == [10, 10, 5]


class Unhurried:
    """Streams whose thread does not run: the test does what it would do, step by step."""

    def __init__(self, folder: DataFolder, *rules: StreamRule) -> None:
        self.streams = StreamSet(folder, rules or [EVERYTHING])
        self.done: list[str] = []

    def append(self, topic: str, payload: bytes = b"x", qos: int = 0, origin: str = "") -> bool:
        log = self.streams.log_of(topic)
        assert log is not None
        return log.append(Message(topic, payload, qos, origin=origin))

    def commit(self, name: str) -> None:
        self.streams.commit(lambda: self.done.append(name))

    def asked(self) -> list[object]:
        """What the thread was given since the last time."""
        work = self.streams._work
        return [work.get() for _ in range(work.qsize())]

    def write(self) -> int:
        """What it was given to write; of how many groups."""
        groups = [each for each in self.asked() if isinstance(each, Group)]
        for group in groups:
            self.streams._write(group)
        return len(groups)


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[Unhurried]:
    with DataFolder(tmp_path) as folder:
        made = Unhurried(folder, StreamRule("a", ("a",)), StreamRule("b", ("b",)))
        yield made
        made.streams.close()


def test_the_thread_is_woken_once_for_all_that_gathers(unhurried: Unhurried) -> None:
    """Each time would put off what is due, for ever if there is always more."""
    for _round in range(2):
        unhurried.append("a")
        unhurried.append("b")
        assert len(unhurried.asked()) == 1
        unhurried.streams._on_time()
        assert unhurried.write() == 1


def test_who_waits_need_not_wait_for_more(unhurried: Unhurried) -> None:
    unhurried.append("a")
    unhurried.commit("1")
    group = unhurried.asked()[-1]
    assert isinstance(group, Group)
    for name in ("2", "3"):
        unhurried.append("b")
        unhurried.commit(name)
    assert unhurried.asked() == [], "the disk is busy"
    unhurried.streams._write(group)
    assert unhurried.done == ["1"]
    assert unhurried.write() == 1
    assert unhurried.done == ["1", "2", "3"]
    assert unhurried.streams.waiting_bytes() == 0


def test_who_asks_in_between_does_not_overtake(unhurried: Unhurried) -> None:
    unhurried.append("a")
    unhurried.streams.commit(lambda: unhurried.commit("late"))
    unhurried.commit("early")
    unhurried.write()
    assert unhurried.done == ["early", "late"]


def test_an_error_after_a_commit_costs_nobody_else(
    unhurried: Unhurried, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("a fault of our own")

    unhurried.append("a")
    unhurried.streams.commit(fail)
    unhurried.commit("behind")
    unhurried.write()
    assert unhurried.done == ["behind"]
    assert "a fault of our own" in caplog.text


def test_a_batch_that_cannot_be_made_is_told_like_one_that_cannot_be_written(
    unhurried: Unhurried, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[set[str], str, bool]] = []

    def fail(*arguments: object) -> None:
        raise ValueError("a fault of our own")

    unhurried.streams.on_failed = lambda who, why: told.append((set(who), why, bool(unhurried.done)))
    with monkeypatch.context() as broken:
        broken.setattr(writer, "build", fail)
        unhurried.append("a", qos=1, origin="alice")
        unhurried.append("a", qos=0, origin="bob")
        unhurried.commit("all")
    unhurried.write()
    stream = unhurried.streams.streams["a"]
    assert told == [({"alice"}, "stream a cannot be written: internal error", False)], (
        "before the commit is done"
    )
    assert unhurried.done == ["all"]
    assert (stream.lost, stream.refusal) == (2, "stream a cannot be written: internal error")
    assert "a fault of our own" in caplog.text
    unhurried.streams._tend()
    assert unhurried.asked() == [Told(stream)]
    unhurried.streams._go_on(stream)
    assert stream.refusal is None
    unhurried.append("a")
    unhurried.commit("again")
    unhurried.write()
    assert (stream.lost, stream.partitions[0].written, unhurried.done) == (2, 1, ["all", "again"])


def test_a_full_batch_of_one_stream_does_not_make_another_safe(
    unhurried: Unhurried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the disk by itself: what came before it may still gather."""
    monkeypatch.setattr(gathering, "BATCH_ROWS", 2)
    monkeypatch.setattr(writer, "ENOUGH_BYTES", 5000)
    unhurried.append("b")
    unhurried.append("a", b"x" * 3000)
    unhurried.append("a", b"y" * 3000)
    unhurried.commit("all")
    written = unhurried.streams.streams["a"].partitions[0], unhurried.streams.streams["b"].partitions[0]
    assert unhurried.write() == 1
    assert [partition.written for partition in written] == [2, 0]
    assert unhurried.done == []
    assert unhurried.write() == 1
    assert [partition.written for partition in written] == [2, 1]
    assert unhurried.done == ["all"]


# -- back-pressure ----------------------------------------------------------------------------------------


@VERSIONS
def test_a_slow_disk_stops_publishers_and_loses_nothing(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ENOUGH_BYTES", 50_000)
    monkeypatch.setattr(writer, "MOST_WAITING_BYTES", 200_000)
    gate = Gate()
    with keeping(tmp_path, files=gate) as world:
        alice, bob = world.connect("alice", version), world.connect("bob", version)
        bob.subscribe("b")
        gate.open_gate.clear()
        noise = random.Random(1).randbytes  # what can be packed takes less room
        sent = 0
        while not alice.port.is_paused and sent < 2000:
            alice.feed(b"".join(encode(Publish("a", noise(1000)), version) for _ in range(20)))
            world.settle()
            sent += 20
        waiting = world.streams.waiting_bytes()
        bob.publish("b", b"messages flow")
        heard = bob.payloads()
        gate.open_gate.set()
        assert heard == [b"messages flow"]
        assert 200_000 <= waiting < 400_000
        world.until(lambda: not alice.port.is_paused, "reading again")
        world.until_safe()
        assert world.streams.waiting_bytes() == 0
    assert sum(record["topic"] == "a" for record in read_files(tmp_path)) == sent


def test_properties_that_wait_for_a_slow_disk_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING_BYTES", 200_000)
    gate = Gate()
    with keeping(tmp_path, files=gate) as world:
        alice = world.connect("alice", V5)
        gate.open_gate.clear()
        said = Properties(user_properties=(("name", "v" * 10_000),) * 5 + (("", ""),) * 100)
        sent = 0
        while not alice.port.is_paused and sent < 10:
            alice.send(Publish("a", b"", properties=said))
            sent += 1
        gate.open_gate.set()
        assert sent < 5
        world.until_safe()
    assert len(read_files(tmp_path)) == sent
