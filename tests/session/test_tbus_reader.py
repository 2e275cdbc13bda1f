"""Runs of TBus messages: the short way must do exactly what the long one does, however bytes are cut."""

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polybus.session.tbus.reader as reader
from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import V5, V311
from tests.session.harness import World, check_accounts
from tests.session.tbus import (
    TbusPeer,
    answer,
    bulk,
    connect,
    disconnect_code,
    message,
    request,
    subscribe,
    wire,
)

TOPICS = ["t/0", "t/1", "t/2", "alone", "t/" + "x" * 130, "nobody"]

plain = st.builds(message, st.sampled_from(TOPICS), st.binary(max_size=150))
other = st.one_of(
    st.builds(message, st.sampled_from(TOPICS), st.binary(max_size=5), st.just(2)),
    st.builds(message, st.sampled_from(TOPICS), st.binary(max_size=5), st.just(0), st.just(b"\x02\0\0\0\x05")),
    st.sampled_from(["c0 00", subscribe("t/1"), message("$SYS/x", b""), request("nobody", b"", 1)]),
)
streams = st.lists(
    st.one_of(
        plain, plain, plain, other, st.lists(plain | other, min_size=1, max_size=6).map(lambda m: bulk(*m))
    ),
    max_size=25,
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


def outcome(data: bytes, cuts: list[int], *, with_runs: bool) -> list[object]:
    world = World()
    tbus, five, three = connect(world, "tbus"), world.connect("five", V5), world.connect("three", V311)
    tbus.subscribe("t/#")
    five.subscribe("t/#", identifier=3)
    three.subscribe("t/0", "alone")
    peer = connect(world, "p")
    with pytest.MonkeyPatch.context() as only_now:
        if not with_runs:
            only_now.setattr(reader, "PLAIN_MESSAGE", -1)
        for piece in pieces(data, cuts):
            peer.feed(piece)
            world.settle()
    check_accounts(world.broker)
    routes = {name: route.messages for name, route in world.broker.subscriptions.routes.items()}
    heard = [tbus.heard(), peer.heard(), five.packets(), three.packets()]
    return [*heard, routes, peer.link.messages_in, world.broker.stats.messages_received, peer.is_closed]


@given(streams, st.lists(st.integers(0, 10_000), max_size=4))
def test_runs_change_nothing(stream: list[str], cuts: list[int]) -> None:
    data = b"".join(map(wire, stream))
    assert outcome(data, cuts, with_runs=True) == outcome(data, cuts, with_runs=False)


def test_neighbours_are_written_in_one_piece() -> None:
    world = World()
    watching = connect(world, "w")
    watching.subscribe("t/#")
    data = b"".join(wire(message(f"t/{n % 3}", b"%d" % n)) for n in range(50))
    writes = watching.port.writes
    connect(world, "p").feed(data)
    world.settle()
    assert watching.heard() == data
    assert watching.port.writes == writes + 1


class Rules:
    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        return topic != "t/1" or client_id == "admin"

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        return True


def test_runs_keep_to_the_rules() -> None:
    world = World(access=Access(authorizer=Rules()))
    watching = connect(world, "w")
    watching.subscribe("t/#")
    connect(world, "admin").say(message("t/1", b"admin"))
    assert watching.heard() == wire(message("t/1", b"admin"))
    connect(world, "p").say(*(message(f"t/{n % 3}", b"%d" % n) for n in range(9)))
    assert watching.heard() == b"".join(wire(message(f"t/{n % 3}", b"%d" % n)) for n in range(9) if n % 3 != 1)


def test_a_run_stops_before_what_is_too_large() -> None:
    world = World(Limits(packet_size_bytes=200))
    watching = connect(world, "w")
    watching.subscribe("t")
    peer = connect(world, "p").say(message("t", b"1"), message("t", b"2" * 200), message("t", b"3"))
    assert watching.heard() == wire(message("t", b"1"))
    assert disconnect_code(peer) == 128


def test_a_flood_of_topics_takes_turns() -> None:
    world = World()
    peer = connect(world, "p")
    peer.feed(b"".join(wire(message(f"new/{n}", b"")) for n in range(5000)))
    assert peer.port.is_paused
    world.settle()
    assert not peer.port.is_paused
    assert world.broker.stats.messages_received == 5000


ANYTHING = [
    "10 08 003c 05 'alice'",
    message("t", b"x", 2, b"\x02\0\0\0\x05"),
    message("t", b"x" * 300),
    request("t", b"q", 1, timeout_s=5),
    request("s", b"q", 2),
    answer("alice", 1, b"a"),
    "50 06 05 40 0001 41 06",
    "50 0f 0e 08 01 'c' 1f 04 'oops' 40 0005 41 0d",
    subscribe("t", 3),
    subscribe("s/+/#"),
    "a0 04 0001 01 't'",
    "c0 00",
    bulk(message("t", b"1"), message("t", b"2"), "c0 00", request("s", b"q", 3)),
    "e0 02 0000",
]


@given(
    st.lists(st.sampled_from(ANYTHING), min_size=1, max_size=8),
    st.lists(
        st.tuples(st.integers(0, 2000), st.integers(0, 255), st.sampled_from(["set", "insert", "delete"]))
    ),
    st.booleans(),
    st.lists(st.integers(0, 2000), max_size=3),
)
def test_whatever_comes_costs_no_one_else(
    stream: list[str], changes: list[tuple[int, int, str]], connected: bool, cuts: list[int]
) -> None:
    data = bytearray(b"".join(map(wire, stream)))
    for place, value, how in changes:
        at = place % (len(data) + 1)
        data[at : at + (how != "insert")] = b"" if how == "delete" else bytes((value,))
    world = World(Limits(connect_timeout_s=5))
    other = connect(world, "other", bulk_limit=100)
    other.subscribe("t")
    peer = connect(world, "alice", bulk_limit=100) if connected else TbusPeer(world)
    errors: list[logging.LogRecord] = []
    watch = logging.Handler(logging.ERROR)
    watch.emit = errors.append  # type: ignore[method-assign]
    log = logging.getLogger("polybus")
    log.addHandler(watch)
    try:
        for piece in pieces(bytes(data), cuts):
            if not peer.is_closed:
                peer.feed(piece)
                world.settle()
        world.advance(6)
    finally:
        log.removeHandler(watch)
    assert not errors
    check_accounts(world.broker)
    other.heard()
    other.say("c0 00")
    assert other.heard() == wire("d0 00")
    if not peer.is_closed:
        peer.drop()
    world.advance(100)
    assert world.broker.partial_bytes == 0
