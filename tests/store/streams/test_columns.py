"""Runs and messages become the same records, whichever way they take."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.links import Encoding
from polybus.broker.message import Message, MessageProperties, Run
from polybus.session.alike import FEW
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.session.tbus.encoding import TBUS
from polybus.store.streams.blocks import WORTH_A_BLOCK, Block, divided
from polybus.store.streams.columns import build
from polybus.store.streams.ipc import Compression
from polybus.store.streams.pieces import WORTH_PACKING, Packer, Piece, pieces_of
from polybus.store.streams.stream import partition_of
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V5, V311, Publish
from polybus.wire.tbus.codec import encode_publish
from tests.store.streams.records import read_back

topics = st.text("abcäß/ ", min_size=1, max_size=12)
Pairs = list[tuple[str, bytes]]


def mqtt(version: int) -> Callable[[str, bytes, int], bytes]:
    return lambda topic, payload, qos: encode(
        Publish(topic, payload, qos, packet_id=len(payload) + 1 if qos else 0), version
    )


def tbus(topic: str, payload: bytes, qos: int) -> bytes:
    return b"".join(encode_publish(topic, payload, False))


CASES = [
    (MQTT_311, mqtt(V311), 0),
    (MQTT_311, mqtt(V311), 1),
    (MQTT_311, mqtt(V311), 2),
    (MQTT_5, mqtt(V5), 0),
    (MQTT_5, mqtt(V5), 1),
    (TBUS, tbus, 0),
]


def records_of(encoding: Encoding, write: Callable[[str, bytes, int], bytes], qos: int, pairs: Pairs) -> Pairs:
    wire = b"".join(write(topic, payload, qos) for topic, payload in pairs)
    run = Run(wire, len(pairs), encoding, "möte", qos)
    batch = read_back(build(list(pieces_of(run, 77)), 1000))
    count = len(pairs)
    assert batch.column("offset").to_pylist() == list(range(1000, 1000 + count))
    assert batch.column("client_id").to_pylist() == ["möte"] * count
    assert batch.column("qos").to_pylist() == [qos] * count
    assert batch.column("retain").to_pylist() == [False] * count
    assert batch.column("user_properties").to_pylist() == [[]] * count
    return list(zip(batch.column("topic").to_pylist(), batch.column("payload").to_pylist(), strict=True))


@pytest.mark.parametrize(("encoding", "write", "qos"), CASES)
@given(data=st.data())
def test_a_run_of_anything(
    encoding: Encoding, write: Callable[[str, bytes, int], bytes], qos: int, data: st.DataObject
) -> None:
    """Repeated often enough to be compared by columns, too."""
    distinct = data.draw(st.lists(st.tuples(topics, st.binary(max_size=200)), min_size=1, max_size=6))
    repeats = data.draw(st.integers(1, 2 * FEW))
    pairs = [pair for pair in distinct for _ in range(repeats)]
    assert records_of(encoding, write, qos, pairs) == pairs


@pytest.mark.parametrize(("encoding", "write", "qos"), CASES)
@pytest.mark.parametrize("size", [0, 1, 64, 200, 20_000])
def test_packets_alike_are_one_piece(
    encoding: Encoding, write: Callable[[str, bytes, int], bytes], qos: int, size: int
) -> None:
    pairs = [("sensors/a", b"%d" % n + b"." * max(0, size - 1) if size else b"") for n in range(FEW + 1)]
    assert records_of(encoding, write, qos, pairs) == pairs
    wire = b"".join(write(topic, payload, qos) for topic, payload in pairs)
    assert len(list(pieces_of(Run(wire, len(pairs), encoding, "", qos), 0))) == 1


@pytest.mark.parametrize(("encoding", "write", "qos"), CASES)
@given(data=st.data())
def test_a_long_run_of_packets_that_differ_is_a_block(
    encoding: Encoding, write: Callable[[str, bytes, int], bytes], qos: int, data: st.DataObject
) -> None:
    distinct = data.draw(st.lists(st.tuples(topics, st.binary(max_size=300)), min_size=1, max_size=9))
    others = [("another/topic", b""), ("möte", bytes(200)), *distinct]
    pairs = [*(pair for _ in range(WORTH_A_BLOCK) for pair in others), ("long", bytes(20_000))]
    assert records_of(encoding, write, qos, pairs) == pairs
    wire = b"".join(write(topic, payload, qos) for topic, payload in pairs)
    (block,) = pieces_of(Run(wire, len(pairs), encoding, "", qos), 0)
    assert isinstance(block, Block)
    size = sum(len(topic.encode()) + len(payload) for topic, payload in pairs)
    assert (block.count, block.size_bytes) == (len(pairs), size)


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_a_block_is_divided_by_topic_and_keeps_its_order(partitions: int) -> None:
    pairs = [(f"topic/{n % 11}", b"%d" % n) for n in range(200)]
    wire = b"".join(mqtt(V311)(topic, payload, 0) for topic, payload in pairs)
    (block,) = pieces_of(Run(wire, len(pairs), MQTT_311, "me"), 5)
    assert isinstance(block, Block)
    parts = dict(divided(block, lambda topic: partition_of(topic, partitions)))
    for number in range(partitions):
        mine = [pair for pair in pairs if partition_of(pair[0].encode(), partitions) == number]
        if mine:
            batch = read_back(build([parts[number]], 0))
            found = zip(batch.column("topic").to_pylist(), batch.column("payload").to_pylist(), strict=True)
            assert list(found) == mine
            assert parts[number].size_bytes == sum(len(topic + "me") + len(payload) for topic, payload in mine)
        else:
            assert number not in parts


def test_blocks_and_pieces_stand_in_their_order() -> None:
    mixed = [(f"t/{n % 3}", b"%d" % n) for n in range(40)]
    wire = b"".join(mqtt(V311)(topic, payload, 1) for topic, payload in mixed)
    items: list[Message | Run] = [
        Message("first", b"1", retain=True),
        Run(wire, len(mixed), MQTT_311, "me", 1),
        Run(wire, len(mixed), MQTT_311, "me", 1),
        Message("last", b"2", 2),
    ]
    batch = read_back(
        build([piece for number, item in enumerate(items) for piece in pieces_of(item, number)], 7)
    )
    rows = batch.to_pylist()
    assert [(row["topic"], row["payload"]) for row in rows] == [("first", b"1"), *mixed, *mixed, ("last", b"2")]
    assert [row["offset"] for row in rows] == list(range(7, 7 + len(rows)))
    assert batch.column("time").cast("int64").to_pylist() == [0, *[1] * 40, *[2] * 40, 3]
    assert [row["qos"] for row in rows] == [0, *[1] * 80, 2]
    assert [row["retain"] for row in rows] == [True, *[False] * 81]


def alike_run(
    encoding: Encoding, write: Callable[[str, bytes, int], bytes], qos: int, pairs: Pairs, client: str = "me"
) -> Run:
    """As a reader makes it that knows they are alike."""
    wire = b"".join(write(topic, payload, qos) for topic, payload in pairs)
    size = len(wire) // len(pairs)
    if not qos:
        return Run(wire, len(pairs), encoding, client, size=size)
    first = wire.index(pairs[0][0].encode()) + len(pairs[0][0].encode())
    return Run(wire, len(pairs), encoding, client, qos, range(first, len(wire), size))


@pytest.mark.parametrize(("encoding", "write", "qos"), CASES)
@pytest.mark.parametrize("is_noise", [False, True])
def test_a_run_that_is_packed_when_it_comes(
    encoding: Encoding, write: Callable[[str, bytes, int], bytes], qos: int, is_noise: bool
) -> None:
    """Beside blocks, short runs and messages, with and without compression of the batch."""
    noise = random.Random(3).randbytes
    packer = Packer()
    runs = [
        [(f"möte/{n}", noise(200) if is_noise else b"%0200d" % (1000 * n + each)) for each in range(100)]
        for n in range(3)
    ]
    pieces: list[Piece | Block] = []
    pairs: Pairs = []
    mixed = [(f"t/{n % 3}", b"%d" % n) for n in range(WORTH_A_BLOCK)]
    for number, run in enumerate(runs):
        packed = packer.pack(alike_run(encoding, write, qos, run), number)
        assert packed is not None
        assert packed.block is not None
        assert packed.block.is_packed == (not is_noise)
        differing = Run(b"".join(write(*pair, qos) for pair in mixed), len(mixed), encoding, "other", qos)
        pieces += [packed, *pieces_of(Message("single", b"1"), number), *pieces_of(differing, number)]
        pairs += [*run, ("single", b"1"), *mixed]
        for some in (pieces, pieces[:1], pieces[:2]):
            batch = read_back(build(some, 0), "lz4")
            found = zip(batch.column("topic").to_pylist(), batch.column("payload").to_pylist(), strict=True)
            assert list(found) == pairs[: len(batch)]
    assert read_back(build(pieces, 0), "lz4").column("time").cast("int64").to_pylist()[-1] == 2


def test_what_is_not_packed_when_it_comes() -> None:
    packer = Packer()
    count = WORTH_PACKING // 10
    short = alike_run(MQTT_311, mqtt(V311), 0, [("a", b"x" * 100)] * 10)
    empty = alike_run(MQTT_311, mqtt(V311), 0, [("a" * 20, b"")] * count)
    large = alike_run(MQTT_311, mqtt(V311), 0, [("a", b"x" * 20_000)] * 60)
    unknown = Run(alike_run(MQTT_311, mqtt(V311), 0, [("a", b"x" * 100)] * count).wire, count, MQTT_311, "me")
    assert [packer.pack(run, 0) for run in (short, empty, large, unknown)] == [None] * 4


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("commit", [0, 1, 0xFFFF_FFFF_FFFF])
@given(data=st.data())
def test_records_of_any_kind_in_any_compression(
    compression: Compression, commit: int, data: st.DataObject
) -> None:
    message = st.builds(
        Message,
        topics,
        st.binary(max_size=100),
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        properties=st.builds(
            MessageProperties,
            user_properties=st.lists(st.tuples(topics, st.text(max_size=5)), max_size=2).map(tuple),
        ),
        origin=st.text("abß", max_size=5),
    )
    distinct = data.draw(st.lists(message, min_size=1, max_size=5))
    messages = [each for each in distinct for _ in range(data.draw(st.integers(1, 30)))]
    records = build([piece for n, each in enumerate(messages) for piece in pieces_of(each, n)], 1 << 40)
    batch = read_back(records, compression, commit)
    assert [
        (r["topic"], r["payload"], r["qos"], r["retain"], r["priority"], r["client_id"])
        for r in batch.to_pylist()
    ] == [(m.topic, m.payload, m.qos, m.retain, m.priority, m.origin) for m in messages]
    said = [tuple((p["name"], p["value"]) for p in r["user_properties"]) for r in batch.to_pylist()]
    assert said == [message.properties.user_properties for message in messages]
    assert batch.column("offset").to_pylist() == [(1 << 40) + n for n in range(len(messages))]
    assert batch.column("time").cast("int64").to_pylist() == [*range(len(messages))]


def test_packets_of_one_size_that_differ_in_topic_are_not_taken_for_alike() -> None:
    pairs = [(f"a/{n % 2}", b"%d" % n) for n in range(8)]
    assert records_of(MQTT_311, mqtt(V311), 0, pairs) == pairs


def test_a_message_keeps_what_it_says() -> None:
    said = MessageProperties(user_properties=(("a", "1"), ("a", "2"), ("ß", "")))
    messages = [
        Message("t", b"\x00\xff", 2, True, True, properties=said, origin="me"),
        Message("u", b"", origin=""),
    ]
    batch = read_back(build([piece for message in messages for piece in pieces_of(message, 5)], 0))
    first, second = batch.to_pylist()
    assert first["payload"] == b"\x00\xff"
    assert (first["qos"], first["retain"], first["priority"], first["client_id"]) == (2, True, True, "me")
    assert [(p["name"], p["value"]) for p in first["user_properties"]] == [("a", "1"), ("a", "2"), ("ß", "")]
    assert (second["retain"], second["priority"], second["user_properties"]) == (False, False, [])


def test_a_topic_has_its_partition_for_ever() -> None:
    """These numbers must never change: logs on disk depend on them."""
    assert [partition_of(topic, 8) for topic in (b"a", b"sensors/1", b"trucks/7/speed", "ä".encode())] == [
        3, 3, 2, 3,
    ]  # fmt: skip
