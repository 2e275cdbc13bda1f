"""What a connection tells the event log, the same in every protocol."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from polybus.broker.access import Access, Credentials, Verdict
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import V5, Auth, Disconnect
from tests.session.harness import Wire, World, connect_packet
from tests.session.tbus import TbusPeer, framed, message, request, subscribe, text


class Told:
    """The events so far, without `duration_s` and what only one protocol says."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self) -> list[tuple[str, dict[str, Any]]]:
        records = [record for record in self._caplog.records if record.name == "polybus.events"]
        found = [(record.getMessage(), dict(vars(record)["fields"])) for record in records]
        self._caplog.clear()
        for _, fields in found:
            for name in ("version", "protocol", "payload_bytes"):
                fields.pop(name, None)
        return found


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.DEBUG, "polybus.events")
    return Told(caplog)


@dataclass(frozen=True)
class Speaker:
    """The few things that both protocols can say."""

    begin: Callable[[World, str], Wire]
    subscribe: Callable[[Any, str], object]
    unsubscribe: Callable[[Any, str], object]
    publish: Callable[[Any, str], object]
    goodbye: Callable[[Any], object]
    wrong: Callable[[Any], object]


def _mqtt(world: World, client_id: str) -> Wire:
    return world.open(V5).send(connect_packet(client_id, V5))


def _tbus(world: World, client_id: str) -> Wire:
    return TbusPeer(world).say(framed(0x10, b"\0\0" + text(client_id)))


def _say(make: Callable[[str], str]) -> Callable[[Any, str], object]:
    return lambda peer, topic: peer.say(make(topic))


SPEAKERS = {
    "MQTT": Speaker(
        _mqtt,
        lambda peer, topic_filter: peer.subscribe(topic_filter),
        lambda peer, topic_filter: peer.unsubscribe(topic_filter),
        lambda peer, topic: peer.publish(topic, b""),
        lambda peer: peer.send(Disconnect()),
        lambda peer: peer.send(Auth()),
    ),
    "TBus": Speaker(
        _tbus,
        _say(subscribe),
        _say(lambda topic_filter: framed(0xA0, b"\0\x01" + text(topic_filter))),
        _say(lambda topic: message(topic, b"")),
        lambda peer: peer.say("e0 02 0000"),
        lambda peer: peer.say("f0 00"),
    ),
}


@pytest.fixture(params=SPEAKERS.values(), ids=SPEAKERS.keys())
def speaker(request: pytest.FixtureRequest) -> Speaker:
    found: Speaker = request.param
    return found


def test_come_and_go(speaker: Speaker, told: Told) -> None:
    world = World()
    alice = speaker.begin(world, "alice")
    assert told() == [("client connected", {"client_id": "alice", "peer": "memory"})]
    world.advance(12.5)
    speaker.goodbye(alice)
    ((event, fields),) = told()
    assert event == "client disconnected"
    assert fields == {"client_id": "alice", "peer": "memory", "reason": "said goodbye", "duration_s": 12.5}


def test_violations(speaker: Speaker, told: Told) -> None:
    alice = speaker.begin(World(), "alice")
    told()
    speaker.wrong(alice)
    (ended, why), (gone, _) = told()
    assert (ended, gone) == ("connection ended", "client disconnected")
    assert why["client_id"] == "alice"
    assert why["reason"]


def test_refused(speaker: Speaker, told: Told) -> None:
    world = World(Limits(connections=0))
    speaker.begin(world, "alice")
    assert told() == [
        (
            "connection refused",
            {"client_id": "alice", "peer": "memory", "reason": "this broker takes no more connections"},
        )
    ]


def test_no_connect_in_time(told: Told) -> None:
    world = World(Limits(connect_timeout_s=5))
    world.open()
    TbusPeer(world)
    world.advance(6)
    assert told() == [("connection refused", {"peer": "memory", "reason": "no CONNECT in time"})] * 2


class Guard:
    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        answer(self._verdict)

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        return topic != "secret"

    may_subscribe = may_publish


def test_authentication(speaker: Speaker, told: Told) -> None:
    world = World(access=Access(Guard(Verdict(True, "user"))))
    speaker.begin(world, "alice")
    assert told()[0] == (
        "authentication succeeded",
        {"client_id": "alice", "peer": "memory", "user": "user"},
    )
    world = World(access=Access(Guard(Verdict(False, reason="who?"))))
    speaker.begin(world, "alice")
    fields = {"client_id": "alice", "peer": "memory", "reason": "who?"}
    assert told() == [("authentication failed", fields), ("connection refused", fields)]


def test_authorization(speaker: Speaker, told: Told) -> None:
    guard = Guard(Verdict(True))
    alice = speaker.begin(World(access=Access(authorizer=guard)), "alice")
    told()
    speaker.publish(alice, "secret")
    speaker.publish(alice, "secret")  # once is enough
    speaker.subscribe(alice, "secret")
    assert told() == [
        ("not authorized", {"client_id": "alice", "topic": "secret", "reason": "may not publish"}),
        ("not authorized", {"client_id": "alice", "topic": "secret", "reason": "may not subscribe"}),
    ]


def test_subscriptions(speaker: Speaker, told: Told) -> None:
    alice = speaker.begin(World(Limits(subscriptions_per_session=1)), "alice")
    told()
    speaker.subscribe(alice, "a/#")
    speaker.subscribe(alice, "b")
    speaker.unsubscribe(alice, "a/#")
    speaker.unsubscribe(alice, "a/#")
    about = {"client_id": "alice", "topic": "a/#"}
    assert told() == [
        ("subscribed", about),
        ("subscription refused", {"client_id": "alice", "topic": "b", "reason": "no room for more"}),
        ("unsubscribed", about),
        ("unsubscription refused", about | {"reason": "no subscription existed"}),
    ]


def test_secrets_stay_out(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    world = World(access=Access(Guard(Verdict(False, bad_credentials=True))))
    peer = TbusPeer(world).say("10 11 0000 05 'alice' 08 16 06 'secret'")
    assert "secret" not in repr(peer.link._connect)
    assert "secret" not in str([r.__dict__ for r in caplog.records])
    assert told()


def test_how_a_request_ended_and_who_had_it(told: Told) -> None:
    world = World()
    service, asker = _tbus(world, "service"), _tbus(world, "asker")
    assert isinstance(service, TbusPeer)
    assert isinstance(asker, TbusPeer)
    service.say(subscribe("job"))
    told()
    asker.say(request("job", b"?", 7))
    failed = b"\x08" + text("asker") + b"\x40\0\x07\x41\x0d"
    service.say(framed(0x50, bytes((len(failed),)) + failed))
    ends = {name: fields for name, fields in told() if name == "request failed"}
    assert ends["request failed"].pop("duration_s") == 0
    assert ends == {
        "request failed": {
            "client_id": "asker",
            "topic": "job",
            "request": 1,
            "requester": "asker",
            "packet_id": 7,
            "service": "service",
        }
    }
