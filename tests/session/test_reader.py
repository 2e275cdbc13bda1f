"""The short way for frequent packets gives exactly what the long way gives, however the bytes arrive.

A stream of a publisher is fed whole, byte by byte, in random pieces, and with the short way switched
off. Subscribers of every kind must see the same messages in the same order, and the publisher the same
answers: a run is indistinguishable from single packets.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polybus.session.mqtt.reader as reader
from polybus.broker.limits import Limits
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from tests.session.harness import Peer, World, check_accounts
from tests.wire.mqtt.strategies import so_many

Cuts: TypeAlias = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[at : at + 1]


def in_pieces(sizes: list[int]) -> Cuts:
    def cut(data: bytes) -> Iterator[bytes]:
        at = turn = 0
        while at < len(data):
            size = sizes[turn % len(sizes)]
            yield data[at : at + size]
            at += size
            turn += 1

    return cut


# -- the subscribers -----------------------------------------------------------------------------------


class Audience:
    """One subscriber of every kind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peers: dict[str, Peer] = {}
        for version in (V31, V311, V5):
            for qos in (0, 1, 2):
                self._add(f"v{version} QoS {qos}", version, qos)
        self._add("aliases", V5, 2, topic_alias_maximum=2)
        self._add("small packets", V5, 2, maximum_packet_size=40)
        self._add("aliases and small packets", V5, 1, topic_alias_maximum=1, maximum_packet_size=48)
        self._add("small window", V5, 2, receive_maximum=2)
        self._add("small window 3.1.1", V311, 1)
        self.peers["small window 3.1.1"].session.window = 3
        self._add("identifiers", V5, 2).subscribe("a/+", qos=1, identifier=7)
        self._add("overlapping", V311, 1).subscribe("a/b", qos=2)
        self._add("one topic", V5, 2, topics=("a/b",))
        for name in ("x", "y"):
            self._add(f"shared {name}", V5, 2, topics=("$share/g/#",))
        for version in (V311, V5):
            self._add(f"blocked {version}", version, 2).block()
            self._add(f"offline {version}", version, 2).drop()

    def _add(
        self, name: str, version: int, qos: int, *, topics: tuple[str, ...] = ("#",), **fields: Any
    ) -> Peer:
        peer = self.peers[name] = self.world.connect(name, version, keeps=True, **fields)
        peer.subscribe(*topics, qos=qos)
        return peer

    def received(self) -> dict[str, tuple[list[Any], list[Any]]]:
        """For each subscriber: what came untracked, and what came tracked."""
        found = {}
        for name, peer in self.peers.items():
            if name.startswith("blocked"):
                peer.unblock()
            if name.startswith("offline"):
                peer = self.world.connect(name, peer.version, keeps=True, clean_start=False)
            got = [_plain(p) for p in _resolved(peer.receive_all())]
            found[name] = ([g for g in got if g.qos == 0], [g for g in got if g.qos])
            assert not peer.session.inflight
        return found


def _resolved(publishes: list[Publish]) -> Iterator[Publish]:
    aliases: dict[int, str] = {}
    for publish in publishes:
        alias = publish.properties.topic_alias
        topic = publish.topic
        if alias is not None:
            topic = aliases[alias] = topic or aliases[alias]
        properties = msgspec.structs.replace(publish.properties, topic_alias=None)
        yield msgspec.structs.replace(publish, topic=topic, properties=properties)


def _without_text(packet: Packet) -> Packet:
    """Reason strings are for people: both ways need not find the same words."""
    if isinstance(packet, Disconnect):
        properties = msgspec.structs.replace(packet.properties, reason_string=None)
        return msgspec.structs.replace(packet, properties=properties)
    return packet


def _plain(publish: Publish) -> Publish:
    assert not publish.dup
    return msgspec.structs.replace(publish, packet_id=0)


# -- the streams ---------------------------------------------------------------------------------------

TOPICS = ("a/b", "a/c", "b", "a/long/topic/name")
PAYLOADS = (b"", b"1", b"2", b"\0\0", b"thirty bytes of payload, or so", b"x" * 200)
PROPERTIES = (NO_PROPERTIES,) * 4 + (Properties(content_type="x"), Properties(topic_alias=1))


@st.composite
def bursts(draw: st.DrawFn, version: int) -> list[Packet]:
    """Neighbours that are likely to become a run."""
    qos = draw(st.sampled_from((0, 0, 1, 2)))
    topics = draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=2))
    payloads = draw(st.lists(st.sampled_from(PAYLOADS), min_size=1, max_size=2))
    special = draw(st.sampled_from(PROPERTIES))
    packets: list[Packet] = []
    for n in range(draw(st.integers(1, 6))):
        at_end = n == 3 and version == V5
        packets.append(
            Publish(
                topics[n % len(topics)],
                payloads[n % len(payloads)],
                qos,
                retain=draw(st.integers(0, 9)) == 0,
                dup=bool(qos) and draw(st.integers(0, 9)) == 0,
                packet_id=draw(st.integers(1, 9)) if qos else 0,
                properties=special if at_end else NO_PROPERTIES,
            )
        )
    return packets


def others(version: int) -> st.SearchStrategy[list[Packet]]:
    ids = st.integers(1, 9)
    lists = st.lists(ids, min_size=1, max_size=4, unique=True)
    return st.one_of(
        st.just([PingReq()]),
        lists.map(lambda found: [PubRel(i) for i in found]),
        lists.map(lambda found: [PubAck(i) for i in found]),
        lists.map(lambda found: [PubComp(i) for i in found]),
        lists.map(lambda found: [PubRec(i) for i in found]),
        st.just([Subscribe(100, (SubscriptionRequest("a/b", 2, version == V5),))]),
        st.just([Unsubscribe(101, ("a/b",))]),
    )


def streams(version: int) -> st.SearchStrategy[list[Packet]]:
    parts = st.one_of(bursts(version), bursts(version), others(version))
    return st.lists(parts, min_size=1, max_size=8).map(lambda found: [p for part in found for p in part])


def play(stream: bytes, version: int, cut: Cuts, limits: Limits | None = None) -> tuple[Any, ...]:
    """Everything that can be seen from outside after this stream came in these pieces."""
    world = World(limits)
    audience = Audience(world)
    publisher = world.connect("publisher", version, keeps=True)
    before = world.broker.stats.messages_received
    for piece in cut(stream):
        publisher.feed(piece)
    world.settle()
    check_accounts(world.broker)
    packets = publisher.packets()
    answers = [_without_text(p) for p in packets if not isinstance(p, Publish)]
    own = [p for p in packets if isinstance(p, Publish)]
    stats = world.broker.stats
    counted = (stats.messages_received - before, publisher.link.messages_in)
    seen = audience.received()
    check_accounts(world.broker)
    assert not world.broker.dispatcher.queued_sessions
    return publisher.is_closed, answers, own, counted, seen


@pytest.fixture
def long_way() -> Iterator[Callable[..., Any]]:
    """Play with everything decoded by the codec."""
    with pytest.MonkeyPatch.context() as patch:

        def play_long(*arguments: Any) -> Any:
            with patch.context() as only_now:
                only_now.setattr(reader, "RUN_PUBLISHES", frozenset())
                only_now.setattr(reader, "SHORT_ACKNOWLEDGEMENTS", frozenset())
                return play(*arguments)

        yield play_long


@pytest.mark.parametrize("version", [V311, V5])
def test_any_stream_in_any_pieces(version: int, long_way: Callable[..., Any]) -> None:
    @so_many(60)
    @given(streams(version), st.lists(st.integers(1, 40), min_size=1, max_size=5))
    def check(packets: list[Packet], sizes: list[int]) -> None:
        stream = b"".join(encode(p, version) for p in packets)
        expected = long_way(stream, version, whole)
        assert play(stream, version, whole) == expected
        assert play(stream, version, byte_by_byte) == expected
        assert play(stream, version, in_pieces(sizes)) == expected

    check()


LONG_RUNS = {
    "one topic": [("a/b", b"12345678")],
    "two topics": [("a/b", b"1"), ("b", b"22")],
    "sizes": [("a/b", b"x" * n) for n in (0, 1, 120, 121, 122, 127, 128, 300)],
    "small and large": [("a/b", b"1"), ("a/b", b"x" * 9000), ("a/b", b"2")],
    "new topics": [(f"new/{n}", b"x") for n in range(20)],
}


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", LONG_RUNS)
def test_long_runs(version: int, qos: int, name: str, long_way: Callable[..., Any]) -> None:
    kinds = LONG_RUNS[name]
    count = 120 if name != "small and large" else 12
    packets = [Publish(*kinds[n % len(kinds)], qos, packet_id=n + 1 if qos else 0) for n in range(count)]
    stream = b"".join(encode(p, version) for p in packets)
    expected = long_way(stream, version, whole)
    assert play(stream, version, whole) == expected
    assert play(stream, version, in_pieces([1000, 7, 333])) == expected


BAD_ENDS: dict[str, tuple[bytes, bytes]] = {
    # What stands behind good packets: for 3.1.1, for 5.0.
    "wildcard": (b"\x30\x03\0\x01#", b"\x30\x04\0\x01+\0"),
    "no UTF-8": (b"\x30\x03\0\x01\xff", b"\x30\x04\0\x01\xff\0"),
    "U+0000": (b"\x30\x03\0\x01\0", b"\x30\x04\0\x01\0\0"),
    "no topic": (b"\x30\x02\0\0", b"\x30\x03\0\0\0"),
    "topic past the end": (b"\x30\x03\0\x09t", b"\x30\x04\0\x09t\0"),
    "nothing": (b"\x30\0", b"\x30\0"),
    "one byte": (b"\x30\x01\0", b"\x30\x01\0"),
    "packet id 0": (b"\x32\x05\0\x01t\0\0", b"\x32\x06\0\x01t\0\0\0"),
    "no packet id": (b"\x32\x03\0\x01t", b"\x32\x04\0\x01t\0"),
    "QoS 2 without id": (b"\x34\x04\0\x01t\0", b"\x34\x05\0\x01t\0\0"),
    "QoS 3": (b"\x36\x05\0\x01t\0\x01", b"\x36\x06\0\x01t\0\x01\0"),
    "acknowledged id 0": (b"\x40\x02\0\0", b"\x40\x02\0\0"),
    "released id 0": (b"\x62\x02\0\0", b"\x62\x02\0\0"),
    "received id 0": (b"\x50\x02\0\0", b"\x50\x02\0\0"),
    "too large": (b"\x30\xff\xff\xff\x7f", b"\x30\xff\xff\xff\x7f"),
    "length too long": (b"\x30\xff\xff\xff\xff\x01", b"\x30\xff\xff\xff\xff\x01"),
    "length not minimal": (b"\x30\x83\0\0\x01t", b"\x30\x84\0\0\x01t\0"),
    "reserved type": (b"\xf1\0", b"\0\0"),
    "unknown property": (b"\xe0\0", b"\x30\x06\0\x01t\x02\xff\0"),
    "goodbye": (b"\xe0\0", b"\xe0\0"),
}


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_bad_packet_behind_good_ones(version: int, qos: int, name: str, long_way: Callable[..., Any]) -> None:
    """What came before it counts, what comes behind it is not looked at."""
    packets = [Publish("a/b", b"%d" % n, qos, packet_id=n if qos else 0) for n in range(1, 4)]
    good = b"".join(encode(packet, version) for packet in packets)
    stream = good + BAD_ENDS[name][version == V5] + good
    expected = long_way(stream, version, whole)
    assert expected[0], "the connection ends"
    assert play(stream, version, whole) == expected
    assert play(stream, version, byte_by_byte) == expected


def test_releases_are_answered_alike_in_a_run(long_way: Callable[..., Any]) -> None:
    """The second release of one id finds nothing, whether it comes alone or not."""
    stream = b"".join(encode(p, V5) for p in (Publish("b", b"", 2, packet_id=1), PubRel(1), PubRel(1)))
    expected = long_way(stream, V5, whole)
    assert play(stream, V5, byte_by_byte) == expected
    assert play(stream, V5, whole) == expected


@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_counts_alike(qos: int, long_way: Callable[..., Any]) -> None:
    limits = Limits(receive_maximum=10)
    for first, second in ((4, 6), (4, 7), (0, 10), (0, 11)):
        packets: list[Packet] = [Publish("b", b"", 2, packet_id=100 + n) for n in range(first)]
        packets += [Publish("a/b", b"", qos, packet_id=200 + n) for n in range(second)]
        stream = b"".join(encode(p, V5) for p in packets)
        expected = long_way(stream, V5, whole, limits)
        assert expected[0] == (first + second > 10)
        assert play(stream, V5, whole, limits) == expected
        assert play(stream, V5, byte_by_byte, limits) == expected


def test_topics_count_each_message_once() -> None:
    world = World()
    publisher = world.connect("p", V311)
    for _ in range(2):  # the second time every id is known already
        publisher.send(*(Publish("t", b"", 2, packet_id=n) for n in range(1, 21)))
    assert world.broker.subscriptions.routes[b"t"].messages == 20


def test_only_what_was_sent_counts_as_sent() -> None:
    world = World()
    peer = world.connect("s", V5, maximum_packet_size=30)
    peer.subscribe("t")
    world.connect("p", V5).publish("t", b"small", b"x" * 100, b"y" * 100)
    assert peer.payloads() == [b"small"]
    assert peer.link.messages_out == 1
    assert world.broker.stats.dropped_too_large == 2


# -- work is bounded by the bytes ----------------------------------------------------------------------


class CountingBytes(bytes):
    """Bytes that count how often they are asked what stands at a place."""

    questions = 0

    def startswith(self, *arguments: Any) -> bool:  # type: ignore[override]
        CountingBytes.questions += 1
        return super().startswith(*arguments)


def _each(count: int, make: Callable[[int], Packet], version: int = V311) -> bytes:
    return b"".join(encode(make(n), version) for n in range(1, count + 1))


FLOODS: dict[str, tuple[int, bytes]] = {
    "acknowledged, never sent": (V311, _each(1000, PubAck)),
    "received, never sent": (V311, _each(1000, PubRec)),
    "completed, never sent": (V311, _each(1000, PubComp)),
    "released, never published": (V311, _each(1000, PubRel)),
    "one release again and again": (V5, _each(1000, lambda n: PubRel(1), V5)),
    "one id again and again": (V311, _each(1000, lambda n: Publish("t", b"", 2, packet_id=1))),
    "properties in the last": (
        V5,
        _each(799, lambda n: Publish("t", b"\0\0", 1, packet_id=n), V5)
        + encode(Publish("t", b"", 1, packet_id=1, properties=Properties(payload_format_indicator=0)), V5),
    ),
    "topics that take turns": (V311, _each(1000, lambda n: Publish("tu"[n % 2], b"", 1, packet_id=n))),
    "id 0 in the last": (V311, _each(999, PubAck) + b"\x40\x02\0\0"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_work_grows_with_the_bytes_and_not_with_their_square(name: str) -> None:
    version, data = FLOODS[name]
    world = World()
    peer = world.connect("p", version)
    CountingBytes.questions = 0
    peer.feed(CountingBytes(data))
    assert CountingBytes.questions <= 10 * 1000
    world.settle()


# -- pieces --------------------------------------------------------------------------------------------


def test_a_large_packet_in_small_pieces_is_joined_once() -> None:
    world = World()
    peer = world.connect("s")
    peer.subscribe("t")
    publisher = world.connect("p")
    data = encode(Publish("t", bytes(1_000_000)), V311)
    for at in range(0, len(data), 100):
        publisher.feed(data[at : at + 100])
    world.settle()
    assert [len(p) for p in peer.payloads()] == [1_000_000]
    assert publisher.link._parts is None


def test_a_packet_that_is_too_large_is_refused_by_its_header() -> None:
    world = World(Limits(packet_size_bytes=1000))
    for header in (b"\x30\xe7\x07", b"\x82\xff\x7f", b"\x10\xff\xff\xff\x7f"):
        peer = world.connect("p", V5)
        peer.feed(header)
        world.settle()
        assert peer.is_closed
        assert peer.take(Disconnect)[0].reason_code == 0x95


def test_nothing_is_read_after_the_end() -> None:
    world = World()
    watching = world.connect("s")
    watching.subscribe("t")
    peer = world.connect("p")
    peer.feed_packets(Publish("t", b"1"), Disconnect(), Publish("t", b"2"))
    peer.feed_packets(Publish("t", b"3"))
    world.settle()
    assert watching.payloads() == [b"1"]
