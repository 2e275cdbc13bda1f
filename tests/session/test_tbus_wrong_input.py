"""Every row of "What happens to wrong input" in docs/protocols/tbus.md, and nothing but that happens."""

from collections.abc import Callable

import pytest

from polybus.broker.limits import Limits
from tests.session.harness import World, check_accounts
from tests.session.tbus import (
    TbusPeer,
    answer,
    bulk,
    connack_code,
    connect,
    disconnect_code,
    message,
    messages,
    reqacks,
    request,
    wire,
)

Way = Callable[[TbusPeer, str], TbusPeer]
WAYS = [TbusPeer.say, TbusPeer.say_in_bytes]
GOOD = "30 04 01 't' 00 'g'"


@pytest.mark.parametrize("first", ["30 04 01 't' 00 'x'", "c0 00", "e0 02 0000", "00", "ff", "'GET'"])
def test_the_first_message_is_no_connect(first: str) -> None:
    peer = TbusPeer(World()).say(first)
    assert peer.is_closed
    assert peer.heard() == b""


UNREADABLE_CONNECTS = {
    "an empty client id": "10 03 003c 00",
    "no client id": "10 02 003c",
    "nothing": "10 00",
    "an id longer than the message": "10 05 003c 05 'al'",
    "not UTF-8": "10 04 003c 01 ff",
    "U+0000": "10 05 003c 02 4100",
    "flags that are not used": "14 08 003c 05 'alice'",
    "all flags": "1f 08 003c 05 'alice'",
    "properties that end too early": "10 09 003c 05 'alice' 05",
    "properties and more": "10 0a 003c 05 'alice' 00 00",
    "an unknown property": "10 0b 003c 05 'alice' 02 7f00",
    "a misplaced property": "10 0e 003c 05 'alice' 05 02 00000001",
    "a property twice": "10 0d 003c 05 'alice' 04 1600 1600",
    "a length that is not minimal": "10 8800 003c 05 'alice'",
    "a length of five bytes": "10 8080808001",
    "a size of 32 MiB": "10 80808010",
}


@pytest.mark.parametrize("sent", UNREADABLE_CONNECTS.values(), ids=UNREADABLE_CONNECTS.keys())
@pytest.mark.parametrize("way", WAYS)
def test_a_connect_that_cannot_be_read(sent: str, way: Way) -> None:
    world = World()
    peer = TbusPeer(world)
    way(peer, sent)
    assert connack_code(peer) == 129
    assert peer.is_closed
    assert world.broker.partial_bytes == 0
    assert not world.broker.registry.sessions


def test_an_id_of_65_536_bytes() -> None:
    peer = TbusPeer(World()).say(f"10 858004 003c 808004 {'61' * 65_536}")
    assert connack_code(peer) == 129


def test_an_id_in_use() -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    other = TbusPeer(world).say("10 08 0000 05 'alice'", message("t", b"x"))
    assert connack_code(other) == 132
    assert other.is_closed
    assert alice.heard() == b"", "the older connection notices nothing"
    alice.say(message("t", b"y"))
    assert alice.heard() == wire(message("t", b"y"))
    alice.drop()
    connect(world, "alice")


VIOLATIONS = {
    "a second CONNECT": "10 08 003c 05 'alice'",
    "a second CONNECT that cannot be read": "10 00",
    "CONNACK": "20 02 00 00",
    "SUBACK": "90 05 0001 00 0000",
    "UNSUBACK": "b0 05 0001 00 0000",
    "PINGRESP": "d0 00",
    "MSGACK": "40 07 06 42 01 't' 43 0001",
    "type 0": "00 00",
    "type 7": "70 00",
    "type 15": "f0 00",
    "REQACK delivered": "50 06 05 40 0001 41 02",
    "REQACK deleted": "50 06 05 40 0001 41 0a",
    "REQACK timed out": "50 06 05 40 0001 41 0b",
    "REQACK not delivered": "50 06 05 40 0001 41 0c",
    "REQACK unknown": "50 06 05 40 0001 41 0e",
    "REQACK of no state": "50 06 05 40 0001 41 07",
    "REQACK error to nobody": "50 06 05 40 0001 41 0d",
    "REQACK without PacketId": "50 03 02 41 06",
    "REQACK without RequestState": "50 04 03 40 0001",
    "a PUBLISH of nothing": "30 00",
    "a PUBLISH without properties": "30 02 01 't'",
    "an empty topic": "30 02 00 00",
    "a topic longer than the message": "30 04 7f 't' 00 'x'",
    "a topic that is not UTF-8": "30 03 01 ff 00",
    "a topic with U+0000": "30 04 02 7400 00",
    "properties longer than the message": "30 04 01 't' 7f 'x'",
    "a flag that is not used": "38 04 01 't' 00 'x'",
    "flags of PINGREQ": "c1 00",
    "PINGREQ with a body": "c0 01 00",
    "flags of SUBSCRIBE": "82 04 0001 01 't'",
    "a property twice": "30 0d 01 't' 0a 02 00000001 02 00000001",
    "an unknown property": "30 06 01 't' 02 03 01 'x'",
    "a misplaced property": "30 07 01 't' 03 44 0001 'x'",
    "a length that is not minimal": "30 8400 01 't' 00 'x'",
    "a length of five bytes": "30 8080808001",
    "32 MiB": "30 80808010",
    "Request and Response": "35 09 07 08 01 'c' 40 0001",
    "a request without PacketId": "31 04 01 't' 00 'x'",
    "a request with PacketId 0": "31 07 01 't' 03 40 0000 'x'",
    "an answer without PacketId": "34 05 03 08 01 'c' 'x'",
    "an answer without ResponseDestination": "34 05 03 40 0001 'x'",
    "a topic with #": "30 06 03 'a/#' 00 'x'",
    "a topic with +": "32 06 03 '+/a' 00 'x'",
    "a request to a filter": "31 08 02 'a#' 03 40 0001 'x'",
    "SUBSCRIBE with packet id 0": "80 04 0000 01 't'",
    "SUBSCRIBE without a filter": "80 02 0001",
    "SUBSCRIBE with a filter of U+0000": "80 04 0001 01 00",
    "UNSUBSCRIBE with properties": "a0 05 0001 01 't' 00",
    "a DISCONNECT of no reason": "e0 02 0001",
    "BULK in BULK": "60 06 60 04 30 04 01 't'",
    "CONNECT in BULK": "60 0a 10 08 003c 05 'alice'",
    "an empty BULK": "60 00",
    "a BULK that ends inside a message": "60 04 30 04 01 't'",
    "a BULK of one byte": "60 01 30",
    "a BULK that ends inside a length": "60 02 30 84",
    "flags of BULK": "61 06 30 04 01 't' 00 'x'",
    "a BULK of 32 MiB": "60 80808010",
    "a BULK whose length is not minimal": "60 8600 30 04 01 't' 00 'x'",
}


@pytest.mark.parametrize("sent", VIOLATIONS.values(), ids=VIOLATIONS.keys())
@pytest.mark.parametrize("way", WAYS)
def test_violations_end_the_connection(sent: str, way: Way) -> None:
    world = World()
    watching = connect(world, "watching")
    watching.subscribe("t")
    peer = connect(world, "alice")
    way(peer, f"{GOOD} {sent} {GOOD}")
    assert disconnect_code(peer) == 128
    assert peer.is_closed
    assert watching.heard() == wire(GOOD), "what came before took effect, what came behind did not"
    assert world.broker.partial_bytes == 0
    check_accounts(world.broker)


BROKEN_BULKS = {
    "BULK": "60 00",
    "CONNECT": "10 08 003c 05 'alice'",
    "cut": "30 04 01",
    "cut in its length": "30 ff",
    "cut in its first byte": "30",
    "wrong": "c1 00",
}


@pytest.mark.parametrize("rest", BROKEN_BULKS.values(), ids=BROKEN_BULKS.keys())
@pytest.mark.parametrize("way", WAYS)
def test_whole_messages_of_a_broken_bulk_take_effect(rest: str, way: Way) -> None:
    world = World()
    watching = connect(world, "watching")
    watching.subscribe("t")
    peer = connect(world, "alice")
    way(peer, f"{bulk(GOOD, GOOD, rest)} {GOOD}")
    assert disconnect_code(peer) == 128
    assert watching.heard() == wire(GOOD) * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inside", ["30 04 01 't' 00", f"{GOOD} 30 04 01 't' 00"])
def test_a_message_does_not_go_on_behind_its_bulk(inside: str, way: Way) -> None:
    world = World()
    watching = connect(world, "watching")
    watching.subscribe("t")
    peer = connect(world, "alice")
    way(peer, f"{bulk(inside)} 'x' {GOOD}")
    assert disconnect_code(peer) == 128
    assert watching.heard() == (wire(GOOD) if GOOD in inside else b"")


@pytest.mark.parametrize("begin", ["60 14", "10 08"])
def test_what_may_not_be_in_a_bulk_is_not_waited_for(begin: str) -> None:
    peer = connect(World(), "alice").say(f"60 7f {GOOD} {begin}")
    assert disconnect_code(peer) == 128


def test_a_packet_id_in_use_for_a_different_request() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    for other in (request("add", b"other", 1, timeout_s=60), request("else", b"q", 1, timeout_s=60)):
        client = connect(world, "c", clean_start=True)
        client.say(request("add", b"q", 1, timeout_s=60))
        client.say(other)
        assert disconnect_code(client) == 128
    service.heard()
    client = connect(world, "c")
    service.say(answer("c", 1, b"a"))
    assert client.heard() == wire(answer("c", 1, b"a")), "the first one is none the worse"


def test_a_packet_id_in_use_where_one_may_not_publish() -> None:
    world = World()
    client = connect(world, "c")
    client.say(request("add", b"q", 1, timeout_s=60), request("$SYS/x", b"q", 1))
    assert disconnect_code(client) == 128


def test_answers_nobody_asked_for() -> None:
    world = World()
    service, other = connect(world, "s"), connect(world, "o")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 1))
    service.heard()
    for liar, requester, packet_id in (
        (other, "c", 1),  # someone else's
        (service, "c", 2),  # never asked
        (service, "nobody", 1),
        (client, "c", 1),
    ):
        liar.say(answer(requester, packet_id, b"lie"))
        assert reqacks(liar) == [(packet_id, 14)]
    assert client.heard() == b"", "the requester notices nothing"
    service.say(answer("c", 1, b"a"))
    assert client.heard() == wire(answer("c", 1, b"a"))
    service.say(answer("c", 1, b"b"))
    ((_, body),) = messages(service.heard())
    assert body[body.index(b"\x40") :] == wire("40 0001 41 0e"), "a second one"
    assert b"\x08\x01c" in body, "it says whose"
    assert client.heard() == b""


def test_failures_of_what_one_does_not_have() -> None:
    world = World()
    service = connect(world, "s")
    service.say("50 09 08 08 01 'c' 40 0009 41 0d")
    assert reqacks(service) == [(9, 14)]
    assert not service.is_closed


def test_canceling_what_is_done_or_never_was() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say("50 06 05 40 0001 41 06")
    assert reqacks(client) == [(1, 14)]
    client.say(request("add", b"q", 1))
    service.say(answer("c", 1, b"a"))
    client.say("50 06 05 40 0001 41 06")
    first, second = messages(client.heard())
    assert first[0] == 0x34, "the answer was on its way already"
    assert second[1].endswith(wire("40 0001 41 0e"))


def test_canceling_belongs_to_the_requester() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 1))
    other = connect(world, "o").say("50 09 08 08 01 'c' 40 0001 41 06")
    assert reqacks(other) == [(1, 14)]
    service.say(answer("c", 1, b"a"))
    assert client.heard() == wire(answer("c", 1, b"a"))


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a#", "a/b+", "+a", "$share/g/t", "$share/g", "a//#/"])
def test_filters_that_are_wrong(topic_filter: str) -> None:
    world = World()
    alice = connect(world, "alice")
    name = f"{len(topic_filter):02x} {topic_filter.encode().hex()}"
    size = f"{3 + len(topic_filter):02x}"
    for first_byte, reply in (("80", 0x90), ("a0", 0xB0)):
        alice.say(f"{first_byte} {size} 0102 {name}")
        ((kind, body),) = messages(alice.heard())
        assert kind == reply
        assert body[:2] == wire("0102")
        assert body[-2:] == wire("008f")
    assert not alice.is_closed
    assert world.broker.subscriptions.count == 0


def test_too_many_levels() -> None:
    alice = connect(World(Limits(topic_levels=3)), "alice")
    alice.say("80 0a 0001 07 'a/b/c/d'")
    assert alice.heard().endswith(wire("008f"))
    alice.say(message("a/b/c/d", b""))
    assert disconnect_code(alice) == 128


def test_a_message_larger_than_allowed_is_not_waited_for() -> None:
    alice = connect(World(Limits(packet_size_bytes=100)), "alice")
    alice.say("30 62 01 't' 00")  # 100 bytes will be right
    assert not alice.is_closed
    alice = connect(World(Limits(packet_size_bytes=100)), "alice").say("30 63")
    assert disconnect_code(alice) == 128


def test_no_memory_for_what_is_not_whole() -> None:
    world = World(Limits(memory_bytes=200_000))
    alice = connect(world, "alice").say(f"30 80808001 {'00' * 150_000}")
    assert alice.say(f"{'00' * 10_000}").is_closed
    assert disconnect_code(alice) == 128
