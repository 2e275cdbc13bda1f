"""TBus sessions, byte for byte as docs/protocols/tbus.md has them: what each message does."""

from collections.abc import Callable

import pytest

from polybus.broker.access import Access, Credentials, Verdict
from polybus.broker.limits import Limits
from polybus.session.tbus.options import TbusOptions
from polybus.wire.mqtt.packets import V5, Disconnect, Properties, Publish, ReasonCode
from tests.session.harness import World, check_accounts
from tests.session.tbus import (
    CONNACK,
    TbusPeer,
    answer,
    connack_code,
    connect,
    message,
    reqacks,
    request,
    subscribe,
    wire,
)

Say = Callable[[TbusPeer, str], TbusPeer]

WAYS = {
    "whole": lambda peer, text: peer.say(text),
    "byte by byte": lambda peer, text: peer.say_in_bytes(text),
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def say(request: pytest.FixtureRequest) -> Say:
    way: Say = request.param
    return way


# -- each message type -----------------------------------------------------------------------------


def test_connect(say: Say) -> None:
    world = World()
    alice = TbusPeer(world)
    say(alice, "10 08 003c 05 'alice'")
    assert alice.heard() == wire("20 02 00 00")
    assert world.broker.registry.sessions["alice"].link is alice.link


def test_connect_with_everything(say: Say) -> None:
    """CleanStart, and properties: Token 16, BulkLimit 45, UserName 46."""
    alice = TbusPeer(World())
    say(alice, "11 1c 0000 05 'alice' 13 16 06 'secret' 45 00010000 46 04 'user'")
    assert alice.heard() == wire("20 02 00 00")


def test_a_message(say: Say) -> None:
    world = World()
    alice = connect(world, "alice")
    say(alice, "80 06 0001 03 'a/#'")
    assert alice.heard() == wire("90 05 0001 00 0000")
    bob = connect(world, "bob")
    say(bob, "30 0a 03 'a/b' 00 'hello'")
    assert alice.heard() == wire("30 0a 03 'a/b' 00 'hello'")
    say(bob, "32 05 03 'a/b' 00")  # Priority, and an empty payload
    assert alice.heard() == wire("32 05 03 'a/b' 00")
    assert bob.heard() == b"", "TBus acknowledges no messages"


def test_a_long_topic_and_a_large_payload(say: Say) -> None:
    world = World()
    alice = connect(world, "alice")
    topic = "a/" + "x" * 198
    alice.subscribe("a/+")
    bob = connect(world, "bob")
    sent = f"30 97a302 c801 '{topic}' 00 {'41' * 37_068}"
    assert len(wire(sent)) == 4 + 37_271
    say(bob, sent)
    assert alice.heard() == wire(sent)


def test_publishers_hear_themselves() -> None:
    alice = connect(World(), "alice")
    alice.subscribe("t")
    alice.say("30 04 01 't' 00 'x'")
    assert alice.heard() == wire("30 04 01 't' 00 'x'")


def test_priority_goes_first() -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    connect(world, "bob").say("30 04 01 't' 00 '1'", "32 04 01 't' 00 '2'", "30 04 01 't' 00 '3'")
    assert alice.heard() == wire("32 04 01 't' 00 '2' 30 04 01 't' 00 '1' 30 04 01 't' 00 '3'")


def test_a_message_with_a_timeout_waits_for_a_subscriber(say: Say) -> None:
    world = World()
    bob = connect(world, "bob")
    say(bob, "30 09 01 't' 05 02 0000000a 'w' 30 04 01 't' 00 'n' 30 09 01 't' 05 02 00000000 'z'")
    world.advance(9)
    alice = connect(world, "alice")
    alice.say("80 04 0001 01 't'")
    assert alice.heard() == wire("90 05 0001 00 0000 30 04 01 't' 00 'w'"), "behind the acknowledgement"


def test_a_message_waits_no_longer_than_its_timeout() -> None:
    world = World()
    connect(world, "bob").say("30 09 01 't' 05 02 0000000a 'w'")
    world.advance(11)
    alice = connect(world, "alice")
    alice.subscribe("t")
    assert alice.heard() == b""


def test_a_request_and_its_answer(say: Say) -> None:
    world = World()
    service = connect(world, "service")
    say(service, "80 06 0001 03 'add'")
    assert service.heard() == wire("90 05 0001 00 0000")
    client = connect(world, "client")
    say(client, "31 0b 03 'add' 03 40 0102 '1+2'")
    # Timeout 60 s, who asked, and the PacketId
    assert service.heard() == wire("31 18 03 'add' 10 02 0000003c 08 06 'client' 40 0102 '1+2'")
    say(service, "34 0d 0b 08 06 'client' 40 0102 '3'")
    assert client.heard() == wire("34 0d 0b 08 06 'client' 40 0102 '3'")
    assert service.heard() == b""


def test_the_timeout_a_service_sees_is_what_is_left() -> None:
    world = World()
    client = connect(world, "c")
    # Priority; a ResponseDestination that a requester says is not heeded
    client.say("33 0f 01 's' 0b 02 0000000a 08 01 'x' 40 0001 'q'")
    world.advance(2.5)
    service = connect(world, "s")
    service.subscribe("other")
    service.say("80 04 0007 01 's'")
    assert service.heard() == wire("90 05 0007 00 0000 33 0f 01 's' 0b 02 00000008 08 01 'c' 40 0001 'q'")
    service.say("36 08 06 08 01 'c' 40 0001 'a'")
    assert client.heard() == wire("36 08 06 08 01 'c' 40 0001 'a'")


def test_no_service(say: Say) -> None:
    client = connect(World(), "c")
    say(client, "31 07 01 's' 03 40 0001 'q'")
    text = "no service is subscribed to this topic"
    assert client.heard() == b"\x50\x2e\x2d\x1f\x26" + text.encode() + wire("40 0001 41 0c")


def test_a_timeout_of_0_is_none() -> None:
    client = connect(World(), "c").say(request("s", b"q", 1, timeout_s=0))
    assert reqacks(client) == [(1, 12)]


def test_cancel(say: Say) -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say("31 09 03 'add' 03 40 0005 'q'")
    service.heard()
    say(client, "50 06 05 40 0005 41 06")
    assert service.heard() == wire("50 0e 0d 08 01 'c' 40 0005 41 06 42 03 'add'")
    assert reqacks(client) == [(5, 6)]
    say(service, "34 07 06 08 01 'c' 40 0005")  # too late
    assert client.heard() == b""
    assert reqacks(service) == [(5, 14)]


def test_a_service_that_fails(say: Say) -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 5))
    service.heard()
    say(service, "50 0f 0e 08 01 'c' 1f 04 'oops' 40 0005 41 0d")
    assert client.heard() == wire("50 0c 0b 1f 04 'oops' 40 0005 41 0d")
    assert service.heard() == b""


def test_a_failure_without_words_has_some() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 5))
    service.say("50 09 08 08 01 'c' 40 0005 41 0d")
    assert b"the service failed" in client.port.sent
    assert reqacks(client) == [(5, 13)]


def test_a_failure_of_many_words_is_cut() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 5))
    service.say(f"50 9527 9327 08 01 'c' 1f 8827 {'61' * 5000} 40 0005 41 0d")
    assert client.heard() == wire(f"50 8a20 8820 1f 8020 {'61' * 4096} 40 0005 41 0d")


def test_timed_out() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 5, timeout_s=3))
    service.heard()
    world.advance(3.1)
    assert reqacks(client) == [(5, 11)]
    assert reqacks(service) == [(5, 6)]


def test_deleted_from_storage() -> None:
    world = World(Limits(stored_messages=1))
    client = connect(world, "c")
    client.say(request("s", b"1", 1, timeout_s=60), request("s", b"2", 2, timeout_s=60))
    assert reqacks(client) == [(1, 10)]


def test_the_same_request_again_is_not_done_twice() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 5, timeout_s=60))
    assert service.heard()
    client.drop()
    client = connect(world, "c")
    client.say(request("add", b"q", 5, timeout_s=60))
    assert service.heard() == b""
    service.say(answer("c", 5, b"done"))
    assert client.heard() == wire(answer("c", 5, b"done"))
    client.say(request("add", b"q", 5, timeout_s=60))
    assert service.heard(), "the first one is finished: this is a new one"


def test_an_answer_waits_for_its_requester() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 5, timeout_s=60))
    client.drop()
    service.say(answer("c", 5, b"done"))
    assert service.heard().startswith(b"\x31")
    client = TbusPeer(world).say("10 04 0000 01 'c'")
    assert client.heard() == wire(CONNACK) + wire(answer("c", 5, b"done")), "behind the CONNACK"


def test_clean_start_throws_away_what_waits() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add", 10)
    client = connect(world, "c")
    client.say(request("add", b"1", 1, timeout_s=60), request("add", b"2", 2, timeout_s=60))
    client.drop()
    service.say(answer("c", 1, b"done"))
    service.heard()
    client = TbusPeer(world).say("11 04 0000 01 'c'")
    assert client.heard() == wire(CONNACK)
    assert reqacks(service) == [(2, 6)], "what it has in hand needs no answer"


def test_concurrency(say: Say) -> None:
    world = World()
    service = connect(world, "s")
    say(service, "80 0a 0001 03 'add' 03 44 0002")
    assert service.heard() == wire("90 05 0001 00 0000")
    client = connect(world, "c")
    for n in (1, 2, 3):
        client.say(request("add", b"q", n))
    assert service.heard().count(b"q") == 2
    service.say(answer("c", 1, b""))
    assert service.heard().count(b"q") == 1


def test_who_takes_no_requests_just_watches(say: Say) -> None:
    world = World()
    watcher = connect(world, "w")
    say(watcher, "80 08 0001 01 '#' 03 44 0000")
    assert watcher.heard() == wire("90 05 0001 00 0000")
    client = connect(world, "c")
    client.say(request("add", b"q", 1), message("add", b"m"))
    assert watcher.heard() == wire(message("add", b"m"))
    assert reqacks(client) == [(1, 12)]


def test_without_concurrency_the_rules_hold() -> None:
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    client = connect(world, "c")
    client.say(request("add", b"q", 1), request("add", b"q", 2))
    assert service.heard().count(b"q") == 1


def test_subscribing_twice_replaces_the_first() -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    alice.subscribe("t")
    alice.say(message("t", b"x"))
    assert alice.heard() == wire(message("t", b"x"))


def test_unsubscribe(say: Say) -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("a/#")
    say(alice, "a0 06 0102 03 'a/#'")
    assert alice.heard() == wire("b0 05 0102 00 0000")
    say(alice, "30 04 02 'ab' 00 30 06 03 'a/b' 00 'x'")
    assert alice.heard() == b""
    say(alice, "a0 06 0103 03 'a/#'")
    assert alice.heard() == wire("b0 1e 0103 19 1f 17") + b"no subscription existed" + wire("0011")


def test_ping(say: Say) -> None:
    alice = connect(World(), "alice")
    say(alice, "c0 00")
    assert alice.heard() == wire("d0 00")


@pytest.mark.parametrize("goodbye", ["e0 02 0000", "e0 08 0080 05 1f 03 'bye'"])
def test_disconnect(say: Say, goodbye: str) -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    say(alice, goodbye)
    assert alice.is_closed
    assert alice.heard() == b""
    assert "alice" not in world.broker.registry.sessions
    assert world.broker.subscriptions.count == 0


def test_what_follows_a_goodbye_is_not_looked_at() -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    connect(world, "bob").say("e0 02 0000", message("t", b"x"))
    assert alice.heard() == b""


# -- clocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["", "10", "10 08 003c 05 'ali'"])
def test_a_connect_must_come_in_time(begin: str) -> None:
    world = World(Limits(connect_timeout_s=5))
    peer = TbusPeer(world).say(begin)
    world.advance(4.9)
    assert not peer.is_closed
    world.advance(0.2)
    assert peer.is_closed
    assert peer.heard() == b""
    assert world.broker.timers.deadline() is None


def test_keep_alive_is_taken_at_its_word() -> None:
    world = World()
    alice = connect(world, "alice", keep_alive_s=10)
    for _ in range(5):
        world.advance(9)
        alice.say("c0 00")
        assert alice.heard() == wire("d0 00")
    world.advance(9.9)
    assert not alice.is_closed
    world.advance(0.2)
    assert alice.is_closed
    assert alice.heard() == wire("e0 17 008d 14 1f 12") + b"keep alive timeout"


def test_no_keep_alive() -> None:
    world = World()
    alice = connect(world, "alice", keep_alive_s=0)
    world.advance(1_000_000)
    assert not alice.is_closed


# -- who comes in --------------------------------------------------------------------------------------


class Door:
    """An authenticator that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Credentials] = []
        self.answers: list[Callable[[Verdict], None]] = []

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        self.asked.append(credentials)
        self.answers.append(answer)


def test_authentication() -> None:
    door = Door()
    world = World(access=Access(authenticator=door))
    alice = TbusPeer(world)
    alice.say("10 17 0000 05 'alice' 0e 16 06 'secret' 46 04 'user'", message("t", b"early"))
    assert alice.heard() == b""
    assert alice.port.is_paused
    (asked,) = door.asked
    assert (asked.client_id, asked.user_name, asked.password) == ("alice", "user", b"secret")
    watching = TbusPeer(world).say("10 08 0000 05 'watch'")
    door.answers[1](Verdict(True))
    world.settle()
    assert watching.heard() == wire(CONNACK)
    watching.subscribe("t")
    door.answers[0](Verdict(True, "user"))
    world.settle()
    assert alice.heard() == wire(CONNACK)
    assert not alice.port.is_paused
    assert alice.link.user == "user"
    assert watching.heard() == wire(message("t", b"early"))


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict(False), 135),
        (Verdict(False, bad_credentials=True, reason="wrong"), 135),
        (Verdict(False, busy=True), 128),
    ],
)
def test_not_let_in(verdict: Verdict, code: int) -> None:
    door = Door()
    world = World(access=Access(authenticator=door))
    alice = TbusPeer(world).say("10 08 0000 05 'alice'", message("t", b""))
    assert door.asked[0].password is None
    door.answers[0](verdict)
    world.settle()
    assert connack_code(alice) == code
    assert alice.is_closed


def test_a_verdict_must_come_in_time() -> None:
    door = Door()
    world = World(access=Access(authenticator=door))
    alice = TbusPeer(world).say("10 08 0000 05 'alice'")
    world.advance(61)
    assert alice.is_closed
    door.answers[0](Verdict(True))
    assert "alice" not in world.broker.registry.sessions


def test_of_two_that_ask_for_one_name_the_first_gets_it() -> None:
    door = Door()
    world = World(access=Access(authenticator=door))
    first = TbusPeer(world).say("10 08 0000 05 'alice'")
    second = TbusPeer(world).say("10 08 0000 05 'alice'")
    door.answers[1](Verdict(True))
    door.answers[0](Verdict(True))
    world.settle()
    assert second.heard() == wire(CONNACK)
    assert connack_code(first) == 132
    assert world.broker.registry.sessions["alice"].link is second.link


def test_a_limit_of_client_id_bytes() -> None:
    world = World(Limits(client_id_bytes=3))
    connect(world, "bob")
    alice = TbusPeer(world).say("10 08 0000 05 'alice'")
    assert connack_code(alice) == 129
    assert alice.is_closed
    assert list(world.broker.registry.sessions) == ["bob"]


def test_a_full_broker_names_others() -> None:
    world = World(Limits(connections=1))
    connect(world, "alice")
    others = "10.0.0.1:5035;10.0.0.2:5035"
    bob = TbusPeer(world, TbusOptions(server_reference=others)).say("10 06 0000 03 'bob'")
    text = b"this broker takes no more connections"
    assert bob.heard() == wire("20 46 83 44 1c 1b") + others.encode() + b"\x1f\x25" + text
    assert bob.is_closed
    assert world.broker.stats.connections_refused == 1


def test_a_full_broker_that_knows_no_others() -> None:
    world = World(Limits(connections=1))
    connect(world, "alice")
    bob = TbusPeer(world).say("10 06 0000 03 'bob'")
    assert bob.heard() == wire("20 29 83 27 1f 25") + b"this broker takes no more connections"


def test_neighbours_are_not_taken() -> None:
    bob = TbusPeer(World()).say("12 06 0000 03 'bob'")
    assert bob.heard() == wire("20 23 80 21 1f 1f") + b"this broker takes no neighbours"
    assert bob.is_closed


class Rules:
    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        return not topic.startswith("secret")

    may_subscribe = may_publish


def test_where_one_may_not_publish() -> None:
    world = World()
    watching = world.connect("w", V5)
    watching.subscribe("#")
    world.broker.access = Access(authorizer=Rules())
    alice = connect(world, "alice")
    alice.say(message("secret/a", b"1"), message("open", b"2"), message("secret/a", b"3", flags=2))
    assert watching.payloads() == [b"2"]
    assert alice.heard() == b""
    alice.say(request("secret/a", b"", 9, timeout_s=10))
    assert reqacks(alice) == [(9, 12)]
    assert not alice.is_closed
    alice.say(subscribe("secret/#"))
    assert alice.heard() == wire("90 15 0007 10 1f 0e") + b"not authorized" + wire("0087")


def test_the_brokers_own_topics() -> None:
    world = World()
    watching = world.connect("w", V5)
    watching.subscribe("$SYS/#")
    alice = connect(world, "alice")
    alice.say(message("$SYS/x", b""), request("$SYS/x", b"", 9))
    assert watching.payloads() == []
    assert reqacks(alice) == [(9, 12)]


def test_too_many_subscriptions() -> None:
    alice = connect(World(Limits(subscriptions_per_session=1)), "alice")
    alice.subscribe("a")
    alice.subscribe("a")
    alice.say(subscribe("b"))
    assert alice.heard() == wire("90 17 0007 12 1f 10") + b"no room for more" + wire("0097")


# -- other protocols --------------------------------------------------------------------------------------


def test_messages_cross_both_ways() -> None:
    world = World()
    mqtt = world.connect("m", V5)
    mqtt.subscribe("#", qos=1)
    alice = connect(world, "alice")
    alice.subscribe("a/#")
    mqtt.send(Publish("a/b", b"x", 1, retain=True, packet_id=1))
    assert alice.heard() == wire("30 06 03 'a/b' 00 'x'"), "neither QoS nor retain"
    mqtt.take(Publish)
    alice.say(message("a/b", b"1"), message("a/b", b"2"), message("c", b"3", flags=2))
    assert [(p.topic, p.payload, p.qos) for p in mqtt.take(Publish)] == [
        ("c", b"3", 0),
        ("a/b", b"1", 0),
        ("a/b", b"2", 0),
    ]


def test_retained_messages_do_not_cross() -> None:
    world = World()
    world.connect("m").publish("t", b"x", retain=True)
    alice = connect(world, "alice")
    alice.subscribe("t")
    world.settle()
    assert alice.heard() == b""


def test_a_session_kept_for_mqtt_is_not_for_tbus() -> None:
    """What is queued there is not lost to a client that cannot take it."""
    world = World()
    mqtt = world.connect("same", V5, keeps=True)
    mqtt.subscribe("t", qos=1)
    mqtt.drop()
    world.connect("p", V5).publish("t", b"1", qos=1)
    refused = TbusPeer(world).say("10 07 0000 04 'same'")
    assert connack_code(refused) == 132
    assert refused.is_closed
    back = world.connect("same", V5, clean_start=False, keeps=True)
    assert back.payloads() == [b"1"]
    check_accounts(world.broker)


def test_an_mqtt_client_with_the_same_id_is_another_requester() -> None:
    """Neither hears of the other's requests, nor do their packet ids meet."""
    world = World()
    service = connect(world, "s")
    service.subscribe("add")
    mqtt = world.connect("same", V5)
    mqtt.subscribe("answers", qos=1)
    wishes = Properties(response_topic="answers", user_properties=(("polybus-request", "managed, waiting"),))
    mqtt.publish("add", b"q", qos=1, properties=wishes)
    mqtt.drop()
    tbus = connect(world, "same")
    assert tbus.heard() == b""
    (number,) = [r.packet_id for mine in world.broker.requests.under_way.values() for r in mine.values()]
    tbus.say(f"50 06 05 40 {number:04x} 41 06")
    assert reqacks(tbus) == [(number, 14)], "it has nothing to cancel"
    tbus.say(request("nobody", b"x", number))
    assert reqacks(tbus) == [(number, 12)]


def test_an_mqtt_client_takes_over() -> None:
    world = World()
    alice = connect(world, "alice")
    mqtt = world.connect("alice", V5)
    assert alice.heard() == wire("e0 17 0080 14 1f 12") + b"session taken over"
    assert alice.is_closed
    again = TbusPeer(world).say("10 08 0000 05 'alice'")
    assert connack_code(again) == 132
    assert not mqtt.is_closed


def test_the_broker_stops() -> None:
    world = World()
    alice = connect(world, "alice")
    mqtt = world.connect("m", V5)
    world.broker.stop()
    assert alice.heard() == wire("e0 19 0080 16 1f 14") + b"server shutting down"
    assert alice.is_closed
    assert mqtt.take(Disconnect)[0].reason_code == ReasonCode.SERVER_SHUTTING_DOWN


# -- slow readers ---------------------------------------------------------------------------------------


def test_a_slow_reader_gets_priority_first() -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    alice.block()
    bob = connect(world, "bob")
    bob.say(message("t", b"1"))
    bob.say(message("t", b"2", flags=2))
    assert alice.heard() == b""
    alice.unblock()
    assert alice.heard() == wire(message("t", b"2", flags=2)) + wire(message("t", b"1"))


def test_whoever_does_not_read_its_answers_is_not_read() -> None:
    world = World(Limits(outbox_bytes_per_connection=1000))
    alice = connect(world, "alice")
    alice.block()
    for _ in range(100):
        alice.say("c0 00")
    assert alice.port.is_paused
    alice.unblock()
    assert not alice.port.is_paused
    assert alice.heard() == wire("d0 00") * 100
    check_accounts(world.broker)


def test_the_last_word_reaches_a_slow_reader() -> None:
    world = World()
    alice = connect(world, "alice")
    alice.subscribe("t")
    alice.block()
    connect(world, "bob").say(message("t", b"x"))
    alice.say("c1 00")
    assert alice.heard().startswith(b"\xe0")
    assert alice.is_closed
    check_accounts(world.broker)


def test_a_blocked_service_is_given_nothing() -> None:
    world = World()
    slow, quick = connect(world, "slow"), connect(world, "quick")
    slow.subscribe("add")
    quick.subscribe("add")
    slow.block()
    connect(world, "c").say(request("add", b"q", 1))
    assert quick.heard().endswith(b"q")
