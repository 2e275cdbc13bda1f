"""From the sessions to the disk: what is kept."""

import random
from pathlib import Path
from typing import Literal

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.stream import partition_of
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Properties,
    Publish,
    Will,
)
from tests.session import tbus
from tests.store.streams.kept import keeping
from tests.store.streams.records import payloads, read_files

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


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
