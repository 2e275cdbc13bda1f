"""From the sessions to the disk: what is kept, when it is acknowledged, and what happens when it cannot be."""

import errno
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.store.folder import DataFolder
from polybus.store.streams import gathering, writer
from polybus.store.streams.columns import partition_of
from polybus.store.streams.files import Files
from polybus.store.streams.format import scan
from polybus.store.streams.gathering import BATCH_BYTES
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.writer import Group, StreamSet
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Will,
)
from tests.session import tbus
from tests.store.streams.kept import EVERYTHING, Disk, KeptWorld, keeping
from tests.store.streams.records import payloads, read_files

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


# -- what is kept -------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 5, 300])
def test_what_is_published_is_kept_in_its_order(tmp_path: Path, version: int, qos: int, count: int) -> None:
    with keeping(tmp_path) as world:
        alice = world.connect("alice", version)
        alice.publish("a/b", *(b"%d" % n for n in range(count)), qos=qos)
        world.until_safe()
    records = read_files(tmp_path)
    assert payloads(records) == [b"%d" % n for n in range(count)]
    assert {(r["topic"], r["qos"], r["retain"], r["client_id"]) for r in records} == {
        ("a/b", qos, False, "alice")
    }
    assert [r["offset"] for r in records] == list(range(count))


@VERSIONS
def test_any_pieces_give_the_same_records(tmp_path: Path, version: int) -> None:
    packets = [
        Publish(f"a/{n % 3}", b"%d" % n * (n % 5), n % 2, packet_id=n + 1 if n % 2 else 0) for n in range(40)
    ]
    wire = b"".join(encode(packet, version) for packet in packets)
    with keeping(tmp_path) as world:
        alice = world.connect("alice", version)
        for step in (1, 7, len(wire)):
            for at in range(0, len(wire), step):
                alice.feed(wire[at : at + step])
                world.pump()
            world.until_safe()
    found = [(r["topic"], r["payload"], r["qos"]) for r in read_files(tmp_path)]
    assert found == [(p.topic, p.payload, p.qos) for p in packets] * 3


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("is_noise", [False, True])
def test_much_and_little_of_everything(
    tmp_path: Path, compression: Literal["none", "lz4", "zstd"], partitions: int, is_noise: bool
) -> None:
    """What is packed when it comes, by the loop or by the thread, in batches by itself and beside others."""
    noise = random.Random(5).randbytes
    rule = StreamRule("all", ("#",), partitions=partitions, compression=compression)
    sent: dict[str, list[bytes]] = {}

    def packets(topic: str, count: int, size: int, spread: int = 0) -> bytes:
        some = [
            noise(size + n % (spread + 1)) if is_noise else (b"%08d" % n).ljust(size + n % (spread + 1), b".")
            for n in range(count)
        ]
        sent.setdefault(topic, []).extend(some)
        return b"".join(encode(Publish(topic, each), V311) for each in some)

    with keeping(tmp_path, rule) as world:
        alice = world.connect("alice", V311)
        for turn in range(4):
            alice.feed(packets("alike", 3000, 64) + packets("single", 1, 10))
            alice.feed(packets(f"large/{turn}", 2, 300_000))
            alice.feed(packets("differing", 400, 1000, spread=7) + packets("few", 3, 5))
            if turn % 2:
                world.until_safe()
        world.until_safe()
    found: dict[str, list[bytes]] = {}
    for record in read_files(tmp_path):
        found.setdefault(str(record["topic"]), []).append(record["payload"])  # type: ignore[arg-type]
    assert found == sent


def test_properties_retain_and_priority(tmp_path: Path) -> None:
    said = (("colour", "red"), ("polybus-message", "priority"))
    with keeping(tmp_path) as world:
        alice = world.connect("alice", V5)
        alice.publish("a", b"x", qos=1, retain=True, properties=Properties(user_properties=said))
        world.until_safe()
    (record,) = read_files(tmp_path)
    assert (record["retain"], record["priority"]) == (True, True)
    assert record["user_properties"] == [{"name": n, "value": v} for n, v in said]


def test_every_way_onto_the_bus_is_kept(tmp_path: Path) -> None:
    with keeping(tmp_path) as world:
        teller = tbus.connect(world, "tina")
        teller.feed(bytes.fromhex("3004") + b"\x01t\x00" + b"1")
        dying = world.connect("will", V311, will=Will("w", b"2"))
        dying.drop()
        world.connect("alice").publish("a", b"3")
        world.until_safe()
    assert sorted((r["client_id"], r["topic"], r["payload"]) for r in read_files(tmp_path)) == [
        ("alice", "a", b"3"),
        ("tina", "t", b"1"),
        ("will", "w", b"2"),
    ]


def test_only_what_a_stream_is_for(tmp_path: Path) -> None:
    rules = StreamRule("one", ("a/#", "b")), StreamRule("two", ("a/x",)), StreamRule("three", ("c/#",))
    with keeping(tmp_path, *rules) as world:
        alice = world.connect("alice")
        for topic in ("a/x", "a/y", "b", "b/c", "$SYS/x", "c"):
            alice.publish(topic, topic.encode())
        world.broker.publish(world.broker.subscriptions.route_of("$SYS/a"), Message("$SYS/a", b"figures"))
        world.until_safe()
    found = {name: payloads(read_files(tmp_path / "streams" / name)) for name in ("one", "two", "three")}
    assert found == {"one": [b"a/x", b"a/y", b"b"], "two": [b"a/x"], "three": [b"c"]}


def test_a_topic_is_always_in_the_same_partition(tmp_path: Path) -> None:
    rule = StreamRule("all", ("#",), partitions=4)
    for _round in range(2):
        with keeping(tmp_path, rule) as world:
            alice = world.connect("alice")
            for number in range(60):
                alice.publish(f"t/{number % 20}", b"x")
            world.until_safe()
    homes: dict[object, set[int]] = {}
    for partition in range(4):
        for record in read_files(tmp_path / "streams/all" / str(partition)):
            homes.setdefault(record["topic"], set()).add(partition)
    assert len(homes) == 20
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 4


def test_long_topics_are_not_remembered(tmp_path: Path) -> None:
    topics = [f"{n}".ljust(30_000, "x") for n in range(10)]
    with keeping(tmp_path, StreamRule("all", ("#",), partitions=3)) as world:
        alice = world.connect("alice")
        for topic in (*topics, "short"):
            alice.publish(topic, b"x")
        world.until_safe()
        assert list(world.streams.streams["all"]._places) == [b"short"]
    for partition in range(3):
        found = {record["topic"] for record in read_files(tmp_path / "streams" / "all" / str(partition))}
        assert found == {topic for topic in (*topics, "short") if partition_of(topic.encode(), 3) == partition}


def test_a_run_of_topics_with_different_streams_is_divided_rightly(tmp_path: Path) -> None:
    """Their audience is the same: nobody."""
    with keeping(tmp_path, StreamRule("a", ("a",)), StreamRule("b", ("b",))) as world:
        alice = world.connect("alice")
        alice.send(*(Publish("abc"[n % 3], b"%d" % n) for n in range(30)))
        world.until_safe()
    assert payloads(read_files(tmp_path / "streams/a")) == [b"%d" % n for n in range(0, 30, 3)]
    assert payloads(read_files(tmp_path / "streams/b")) == [b"%d" % n for n in range(1, 30, 3)]


def test_a_new_subscriber_changes_nothing(tmp_path: Path) -> None:
    with keeping(tmp_path) as world:
        alice, bob = world.connect("alice"), world.connect("bob")
        alice.publish("a", b"1")
        world.until_safe()
        bob.subscribe("#")
        alice.publish("a", b"2")
        world.until_safe()
        bob.unsubscribe("#")
        alice.publish("a", b"3")
        world.until_safe()
        assert bob.payloads() == [b"2"]
    assert payloads(read_files(tmp_path)) == [b"1", b"2", b"3"]


# -- acknowledgements wait ----------------------------------------------------------------------------


class Gate(Files):
    """Writes of records wait until the gate is open."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.open_gate.set()

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        assert self.open_gate.wait(10)
        super().append(fd, pieces)


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
    with keeping(tmp_path) as world:
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


# -- when the disk cannot -----------------------------------------------------------------------------------


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


# -- retention ----------------------------------------------------------------------------------------


def test_old_segments_are_dropped_while_it_runs(tmp_path: Path) -> None:
    rule = StreamRule("all", ("#",), segment_bytes=4096, max_bytes=8192)
    with keeping(tmp_path, rule) as world:
        alice = world.connect("alice")
        partition = world.streams.streams["all"].partitions[0]

        def dropped() -> bool:
            alice.publish("a", b"x" * 500)
            world.until_safe()
            return partition.first > 0

        world.until(dropped, "a segment being dropped")
        place = tmp_path / "streams/all/0"
        world.until(lambda: len(list(place.glob("*.arrow"))) == len(partition.segments), "files going too")
        next_offset = partition.next
    assert read_files(tmp_path)[-1]["offset"] == next_offset - 1


def test_limits_do_not_matter_to_what_is_kept(tmp_path: Path) -> None:
    with keeping(tmp_path, limits=Limits(publish_rate_per_client=1000.0)) as world:
        world.connect("alice").publish("a", b"1", b"2", b"3")
        world.until_safe()
    assert payloads(read_files(tmp_path)) == [b"1", b"2", b"3"]
