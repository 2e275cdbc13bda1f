"""BULK both ways: what is taken apart, what is put together, and when."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.limits import Limits
from polybus.session.tbus.bulking import (
    MAX_BULK_BYTES,
    WINDOW_S,
    AdaptiveBulker,
    FixedBulker,
    bulker,
    pack,
)
from polybus.session.tbus.options import TbusOptions
from tests.session.harness import World, check_accounts
from tests.session.tbus import (
    CONNACK,
    TbusPeer,
    answer,
    bulk,
    connect,
    message,
    messages,
    request,
    subscribe,
    varint,
    wire,
)

ONE, TWO, URGENT = (wire(message("t", p, flags)) for p, flags in ((b"1", 0), (b"2", 0), (b"!", 2)))


def bulked(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return b"\x60" + varint(len(body)) + body


# -- from the client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [TbusPeer.say, TbusPeer.say_in_bytes])
def test_a_bulk_is_as_good_as_its_messages(way: Callable[[TbusPeer, str], TbusPeer]) -> None:
    world = World()
    watching = connect(world, "w")
    watching.subscribe("t")
    watching.subscribe("u")
    peer = connect(world, "p")
    # Two plain messages, a priority one, SUBSCRIBE, a request to itself, PINGREQ
    way(
        peer,
        "60 29 30 04 01 't' 00 '1' 30 04 01 't' 00 '2' 32 04 01 'u' 00 '3'"
        " 80 04 0001 01 's' 31 07 01 's' 03 40 0001 'q' c0 00 30 04 01 't' 00 '4'",
    )
    assert sorted(body[-1:] for _, body in messages(watching.heard())) == [b"1", b"2", b"3", b"4"]
    heard = messages(peer.heard())
    assert [first_byte for first_byte, _ in heard[:1]] == [0x90]
    assert sorted(first_byte for first_byte, _ in heard) == [0x31, 0x90, 0xD0]
    assert peer.link._bulk_left == 0
    assert not peer.is_closed


def test_bulks_cut_anywhere() -> None:
    data = wire(f"{bulk(message('t', b'1'), message('u', b'2' * 200))} {message('t', b'3')} {bulk('c0 00')}")
    for cut in range(len(data) + 1):
        world = World()
        watching = connect(world, "w")
        watching.subscribe("#")
        peer = connect(world, "p")
        peer.feed(data[:cut]).feed(data[cut:])
        world.settle()
        assert watching.heard() == b"".join(
            wire(m) for m in (message("t", b"1"), message("u", b"2" * 200), message("t", b"3"))
        )
        assert peer.heard() == wire("d0 00")


def test_messages_take_effect_before_their_bulk_is_whole() -> None:
    world = World()
    watching = connect(world, "w")
    watching.subscribe("t")
    peer = connect(world, "p")
    peer.feed(bulked(ONE, TWO)[:-1])
    world.settle()
    assert watching.heard() == ONE


def test_a_bulk_of_everything_a_read_can_hold() -> None:
    world = World()
    watching = connect(world, "w")
    watching.subscribe("#")
    peer = connect(world, "p")
    parts = [wire(message(f"t/{n % 5}", b"%d" % n, 2 if n % 11 == 0 else 0)) for n in range(3000)]
    peer.feed(bulked(*parts))
    world.settle()
    heard = messages(watching.heard())
    assert len(heard) == 3000
    plain = [p for p in parts if p[0] == 0x30]
    assert [wire_of(m) for m in heard if m[0] == 0x30] == plain, "in their order"


def test_a_pause_within_a_bulk_loses_nothing() -> None:
    world = World(Limits(publish_rate_per_client=10))
    watching = connect(world, "w")
    watching.subscribe("t")
    peer = connect(world, "p")
    world.advance(10)
    sent = [wire(message("t", b"%03d" % n)) for n in range(100)]
    peer.feed(bulked(*sent[:60]) + bulked(*sent[60:]) + wire("c0 00"))
    world.settle()
    assert peer.port.is_paused
    heard = watching.heard()
    assert len(messages(heard)) == 21
    for _ in range(20):
        world.advance(1)
        heard += watching.heard()
    assert heard == b"".join(sent)
    assert peer.heard() == wire("d0 00")
    check_accounts(world.broker)


def test_others_get_their_turn_within_a_bulk() -> None:
    world = World()
    peer = connect(world, "p")
    peer.feed(bulked(*[wire("c0 00")] * 2000))
    assert peer.port.is_paused, "waits for its turn"
    world.settle()
    assert not peer.port.is_paused
    assert peer.heard() == wire("d0 00") * 2000


# -- to the client --------------------------------------------------------------------------------------


def test_no_bulk_without_a_bulk_limit() -> None:
    world = World()
    peer = connect(world, "s")
    peer.subscribe("t")
    connect(world, "p").feed(ONE + URGENT + TWO)
    world.settle()
    assert peer.heard() == URGENT + ONE + TWO


def test_what_is_ready_together_goes_together() -> None:
    world = World()
    peer = connect(world, "s", bulk_limit=1000)
    peer.subscribe("t")
    publisher = connect(world, "p")
    publisher.feed(ONE + TWO)
    world.settle()
    assert peer.heard() == wire("60 0c 30 04 01 't' 00 '1' 30 04 01 't' 00 '2'")
    publisher.feed(ONE + URGENT + TWO)
    world.settle()
    assert peer.heard() == bulked(URGENT, ONE, TWO)
    publisher.feed(ONE)
    world.settle()
    assert peer.heard() == ONE, "one by itself is no bulk"


def test_more_gathers_while_the_link_is_blocked() -> None:
    world = World()
    peer = connect(world, "s", bulk_limit=1000)
    peer.subscribe("t")
    publisher = connect(world, "p")
    peer.block()
    for part in (ONE, TWO, URGENT, ONE):
        publisher.feed(part)
        world.settle()
        world.advance(1)
    assert peer.heard() == b""
    peer.unblock()
    assert peer.heard() == bulked(URGENT, ONE, TWO, ONE)
    check_accounts(world.broker)


def test_requests_and_answers_travel_in_bulks() -> None:
    world = World()
    service = connect(world, "s", bulk_limit=1000)
    service.say(subscribe("add", 10))
    service.heard()
    client = connect(world, "c", bulk_limit=1000)
    client.say(request("add", b"1", 1), request("add", b"2", 2))
    heard = service.heard()
    assert heard[0] == 0x60
    assert [first_byte for first_byte, _ in messages(messages(heard)[0][1])] == [0x31, 0x31]
    service.say(bulk(answer("c", 1, b"a"), answer("c", 2, b"b")))
    assert client.heard() == bulked(wire(answer("c", 1, b"a")), wire(answer("c", 2, b"b")))


def test_connack_and_disconnect_are_in_no_bulk() -> None:
    world = World()
    service = connect(world, "s")
    service.say(subscribe("add", 10))
    client = connect(world, "c")
    client.say(request("add", b"1", 1, timeout_s=60), request("add", b"2", 2, timeout_s=60))
    client.drop()
    service.say(answer("c", 1, b"a"), answer("c", 2, b"b"))
    client = TbusPeer(world).say("10 0a 0000 01 'c' 05 45 00001000")
    waited = bulked(wire(answer("c", 1, b"a")), wire(answer("c", 2, b"b")))
    assert client.heard() == wire(CONNACK) + waited
    client.subscribe("t")
    client.feed(ONE + TWO + wire("c1 00"))
    world.settle()
    assert client.is_closed
    assert messages(client.heard())[-1][0] == 0xE0


def test_off_is_off() -> None:
    world = World()
    peer = connect(world, "s", bulk_limit=1000, options=TbusOptions(bulk="off"))
    peer.subscribe("t")
    connect(world, "p").feed(ONE + TWO)
    world.settle()
    assert peer.heard() == ONE + TWO


# -- by the document's window ---------------------------------------------------------------------------


def fixed(world: World) -> tuple[TbusPeer, TbusPeer]:
    peer = connect(world, "s", bulk_limit=1000, options=TbusOptions(bulk="fixed"))
    peer.subscribe("t")
    return peer, connect(world, "p")


def test_the_window_opens_when_messages_come_fast() -> None:
    world = World()
    peer, publisher = fixed(world)
    world.advance(10)
    for _ in range(9):
        publisher.feed(ONE)
        world.settle()
        assert peer.heard() == ONE, "not yet ten"
        world.advance(0.005)
    for _ in range(10):  # the tenth, and what comes within 50 ms
        publisher.feed(TWO)
        world.settle()
        assert peer.heard() == b""
        world.advance(0.0049)
    world.advance(0.002)
    assert peer.heard() == bulked(*[TWO] * 10)
    world.advance(10)
    assert peer.heard() == b""
    publisher.feed(ONE)
    world.settle()
    assert peer.heard() == ONE, "slow again"


def test_priority_does_not_wait_for_the_window() -> None:
    world = World()
    peer, publisher = fixed(world)
    publisher.feed(ONE * 10)
    world.settle()
    publisher.feed(URGENT)
    world.settle()
    assert peer.heard() == URGENT
    world.advance(WINDOW_S)
    assert peer.heard() == bulked(ONE * 10)


def test_a_link_that_blocks_takes_back_what_was_gathered() -> None:
    world = World()
    peer, publisher = fixed(world)
    publisher.feed(ONE * 10)
    world.settle()
    peer.block()
    assert world.broker.dispatcher.backlog_bytes > 0, "it is counted"
    world.advance(1)
    assert peer.heard() == b""
    peer.unblock()
    world.advance(WINDOW_S)
    assert peer.heard() == bulked(ONE * 10)
    check_accounts(world.broker)


@pytest.mark.parametrize("goodbye", ["c1 00", "e0 02 0000"])
def test_nothing_gathered_is_lost_when_it_ends(goodbye: str) -> None:
    world = World()
    peer, publisher = fixed(world)
    publisher.feed(ONE * 10)
    world.settle()
    peer.say(goodbye)
    assert peer.heard().startswith(ONE * 10)
    assert world.broker.timers.deadline() is None


def test_a_full_window_closes_early() -> None:
    world = World()
    peer, publisher = fixed(world)
    for _ in range(20):
        publisher.feed(ONE * 10)
        world.settle()
    first = peer.heard()
    assert {first_byte for first_byte, _ in messages(first)} == {0x60}
    assert len(first) >= 1000
    world.advance(WINDOW_S)
    inside = b"".join(body for _, body in messages(first + peer.heard()))
    assert inside == ONE * 200


# -- by itself ------------------------------------------------------------------------------------------


def test_which_bulker() -> None:
    assert bulker("off", 1000) is None
    assert bulker("adaptive", None) is None
    assert bulker("adaptive", 0) is None
    assert isinstance(bulker("adaptive", 1), AdaptiveBulker)
    assert isinstance(bulker("fixed", 1), FixedBulker)


def test_a_bulk_is_never_too_large_to_wait_for() -> None:
    pieces = [wire(message("t", b"x" * 1000))] * 1000
    written = AdaptiveBulker(1 << 32).pass_on(pieces, 0.0)
    sizes = [len(body) for first_byte, body in messages(b"".join(written))]
    assert max(sizes) <= MAX_BULK_BYTES
    assert len(sizes) == 4


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), max_size=8),
    st.integers(1, 200),
)
def test_packing_changes_nothing_but_the_wrapping(sizes: list[list[int]], limit: int) -> None:
    numbers = itertools.count()
    pieces = [b"".join(wire(message("t", b"%d" % next(numbers) + b"x" * n)) for n in each) for each in sizes]
    written = b"".join(pack(pieces, limit))
    inside = b""
    wrapped = []
    for first_byte, body in messages(written):
        if first_byte == 0x60:
            assert len(body) <= limit
            assert len(messages(body)) > 1
            inside += body
            wrapped.append(body)
        else:
            inside += wire_of((first_byte, body))
    assert inside == b"".join(pieces)


@given(st.lists(st.tuples(st.floats(0, 0.03), st.integers(1, 12), st.booleans()), max_size=60))
def test_the_window_keeps_nothing_back_for_longer(events: list[tuple[float, int, bool]]) -> None:
    """Every message comes out once, priority at once, all others within the window and in their order."""
    gatherer = FixedBulker(500)
    now = 0.0
    sent: list[tuple[float, bytes]] = []
    heard: list[tuple[float, bytes]] = []

    def write(pieces: list[bytes]) -> None:
        for first_byte, body in messages(b"".join(pieces)):
            inner = messages(body) if first_byte == 0x60 else [(first_byte, body)]
            heard.extend((now, wire_of(m)) for m in inner)

    for number, (pause, count, is_urgent) in enumerate(events):
        until = now + pause
        while gatherer.deadline is not None and gatherer.deadline <= until:
            now = gatherer.deadline
            write(gatherer.pass_on([], now))
        now = until
        piece = wire(message("t", b"%d" % number, 2 if is_urgent else 0)) * (1 if is_urgent else count)
        sent += [(now, wire_of(m)) for m in messages(piece)]
        write(gatherer.pass_on([piece], now))
    if gatherer.deadline is not None:
        now = gatherer.deadline
        write(gatherer.pass_on([], now))
    for flags in (0x30, 0x32):
        went = [each for each in sent if each[1][0] == flags]
        came = [each for each in heard if each[1][0] == flags]
        assert [m for _, m in went] == [m for _, m in came]
        patience = WINDOW_S + 1e-9 if flags == 0x30 else 0
        assert all(0 <= b - a <= patience for (a, _), (b, _) in zip(went, came, strict=True))


def wire_of(each: tuple[int, bytes]) -> bytes:
    first_byte, body = each
    return bytes((first_byte,)) + varint(len(body)) + body
