"""Requests in MQTT 5.0: what docs/requests.md promises to requesters and services.

The life of a request is tested with the broker; here is who hears what, in which packets.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from polybus.broker.limits import Limits
from polybus.broker.services import ServiceRule
from polybus.session.mqtt import requests
from polybus.wire.mqtt.packets import (
    V5,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.session.asking import (
    ANSWERS,
    JOBS,
    NO_SERVICE,
    answer,
    ask,
    cancel,
    ends,
    fail,
    given,
    how,
    refused,
    requester,
    said,
    serve,
    service,
    status,
)
from tests.session.harness import Peer, World, check_accounts

PAGE = Path(__file__).parents[2] / "docs" / "requests.md"

# -- asked and answered --------------------------------------------------------------------------------


def test_a_request_and_its_answer() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, b"14")
    assert asker.take(PubAck) == [PubAck(1 + 1)], "published and acknowledged like any other message"
    request = given(worker)
    assert (request.topic, request.payload, request.qos, request.retain) == (JOBS, b"14", 0, False)
    acknowledgement = answer(worker, request, b"42")
    assert acknowledgement is not None
    assert acknowledgement.reason_code == 0
    (end,) = asker.receive_all()
    assert (end.topic, end.payload, status(end)) == (ANSWERS, b"42", "answered")
    assert end.properties.correlation_data == b"c"
    assert worker.packets() == [], "a service hears nothing of its own answer"
    check_accounts(world.broker)
    assert world.broker.requests.count == 0


@pytest.mark.parametrize("asked", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_the_end_has_the_lesser_quality_of_request_and_subscription(
    asked: int, subscribed: int, answered: int
) -> None:
    world = World()
    asker, worker = requester(world, qos=subscribed), service(world)
    ask(asker, qos=asked)
    answer(worker, given(worker), qos=answered)
    (end,) = asker.receive_all()
    assert end.qos == min(asked, subscribed)
    ask(asker, topic="nobody/here", qos=asked)
    (end,) = asker.receive_all()
    assert end.qos == min(asked, subscribed)


def test_what_a_service_sees_of_the_requester() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    pairs = (("trace", "1"), ("trace", "2"), ("ü", "✓"))
    ask(
        asker,
        user_properties=(*pairs, ("polybus-status", "error"), ("polybus-service", "7")),
        content_type="text/plain",
        payload_format_indicator=1,
        message_expiry_s=20,
        correlation_data=b"\0\xff",
    )
    seen = given(worker).properties
    assert seen.user_properties == (*pairs, ("polybus-request", "managed"))
    assert (seen.content_type, seen.payload_format_indicator) == ("text/plain", 1)
    assert (seen.correlation_data, seen.message_expiry_s) == (b"\0\xff", 20)
    assert seen.response_topic is not None
    assert seen.response_topic.startswith("$polybus/answers/")
    assert ANSWERS not in seen.response_topic


def test_what_a_requester_sees_of_the_answer() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker)
    pairs = (("took", "3 ms"), ("polybus-message", "priority"))
    answer(
        worker,
        given(worker),
        b"{}",
        content_type="application/json",
        payload_format_indicator=1,
        correlation_data=b"of the service",
        response_topic="of/the/service",
        user_properties=pairs,
    )
    (end,) = asker.receive_all()
    assert end.properties == Properties(
        content_type="application/json",
        payload_format_indicator=1,
        correlation_data=b"c",
        user_properties=(("took", "3 ms"), ("polybus-status", "answered")),
    )


def test_an_end_that_is_no_answer_is_text() -> None:
    world = World()
    asker = requester(world)
    ask(asker, content_type="image/png", user_properties=(("a", "b"),), correlation_data=b"\0\xff")
    (end,) = asker.receive_all()
    assert end.properties == Properties(
        payload_format_indicator=1,
        correlation_data=b"\0\xff",
        user_properties=(("polybus-status", "not-delivered"),),
    )


def test_without_correlation_data() -> None:
    """The service has something to send back; the requester gets what it sent: nothing."""
    world = World()
    asker, worker = requester(world), service(world, takes="2")
    ask(asker, correlation_data=None)
    ask(asker, correlation_data=None)
    first, second = worker.take(Publish)
    assert first.properties.correlation_data
    assert first.properties.correlation_data != second.properties.correlation_data
    answer(worker, first)
    (end,) = asker.receive_all()
    assert end.properties.correlation_data is None


def test_the_same_correlation_data_twice_is_two_requests() -> None:
    world = World()
    asker, worker = requester(world), service(world, takes="2")
    ask(asker, b"1")
    ask(asker, b"1")
    for request in worker.take(Publish):
        answer(worker, request)
    assert ends(asker) == [("answered", b"!")] * 2


def test_an_empty_answer_is_an_answer() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker)
    answer(worker, given(worker), b"")
    assert ends(asker) == [("answered", b"")]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_of_a_request_is_retained(qos: int) -> None:
    world = World()
    asker, worker = requester(world), service(world)
    asker.publish(JOBS, b"?", qos=qos, retain=True, properties=said("managed"))
    request = given(worker)
    assert not request.retain
    topic = request.properties.response_topic
    assert topic is not None
    worker.publish(topic, b"!", qos=1, retain=True)
    (end,) = asker.receive_all()
    assert not end.retain
    assert world.broker.retained.count == 0


# -- how it ends ---------------------------------------------------------------------------------------


def _answered(world: World) -> Peer:
    asker, worker = requester(world), service(world)
    ask(asker)
    answer(worker, given(worker), b"42")
    return asker


def _error(world: World) -> Peer:
    asker, worker = requester(world), service(world)
    ask(asker)
    fail(worker, given(worker), "zu groß".encode())
    return asker


def _timed_out_at_work(world: World) -> Peer:
    asker = requester(world)
    service(world)
    ask(asker, message_expiry_s=5)
    world.advance(4.9)
    assert ends(asker) == []
    world.advance(0.2)
    return asker


def _timed_out_while_waiting(world: World) -> Peer:
    asker = requester(world)
    ask(asker, how="managed, waiting", message_expiry_s=5)
    world.advance(4.9)
    assert ends(asker) == []
    world.advance(0.2)
    return asker


def _timed_out_by_the_brokers_own_limit(world: World) -> Peer:
    asker = requester(world)
    service(world)
    ask(asker)
    world.advance(59.9)
    assert ends(asker) == []
    world.advance(0.2)
    return asker


def _canceled(world: World) -> Peer:
    asker = requester(world)
    service(world)
    ask(asker)
    assert cancel(asker) == 0
    return asker


def _deleted(world: World) -> Peer:
    asker = requester(world)
    ask(asker, how="managed, waiting")
    ask(requester(world, "other"), how="managed, waiting, priority")
    return asker


def _no_room(world: World) -> Peer:
    ask(requester(world, "other"), how="managed, waiting, priority")
    asker = requester(world)
    ask(asker, how="managed, waiting")
    return asker


def _no_service(world: World) -> Peer:
    asker = requester(world)
    ask(asker)
    return asker


def _too_large_for_services(world: World) -> Peer:
    service(world, maximum_packet_size=200)
    asker = requester(world)
    ask(asker, b"x" * 200, how="managed, waiting")
    return asker


def _too_many(world: World) -> Peer:
    service(world)
    ask(requester(world, "other"))
    asker = requester(world)
    ask(asker)
    return asker


def _answer_too_large(world: World) -> Peer:
    worker = service(world)
    asker = requester(world, maximum_packet_size=200)
    ask(asker)
    answer(worker, given(worker), b"x" * 200)
    return asker


def _away_too_long(world: World) -> Peer:
    worker = service(world)
    asker = requester(world, keeps=True)
    ask(asker, how="managed, waiting", message_expiry_s=10)
    asker.drop()
    answer(worker, given(worker))
    world.advance(11)
    return world.connect("asker", V5, clean_start=False, keeps=True)


@pytest.mark.parametrize(
    ("reach", "expected", "text"),
    [
        (_answered, "answered", b"42"),
        (_error, "error", "zu groß".encode()),
        (_timed_out_at_work, "timed-out", b"no answer in time"),
        (_timed_out_while_waiting, "timed-out", b"no service took it in time"),
        (_timed_out_by_the_brokers_own_limit, "timed-out", b"no answer in time"),
        (_canceled, "canceled", b"canceled by its requester"),
        (_deleted, "deleted", b"the storage is full, and this was deleted to make room"),
        (_no_room, "deleted", b"there is no room to store it"),
        (_no_service, "not-delivered", NO_SERVICE),
        (_too_large_for_services, "not-delivered", b"too large for every service"),
        (_too_many, "not-delivered", b"too many requests are under way"),
        (_answer_too_large, "not-delivered", b"the answer is larger than this client takes"),
        (_away_too_long, "not-delivered", b"the answer came, but its requester was away"),
    ],
)
def test_every_end(reach: Callable[[World], Peer], expected: str, text: bytes) -> None:
    scarce = {_deleted: "stored_messages", _no_room: "stored_messages", _too_many: "requests"}
    world = World(Limits(**{scarce[reach]: 1}) if reach in scarce else None)
    asker = reach(world)
    (end,) = asker.receive_all()
    assert (status(end), end.payload, end.topic) == (expected, text, ANSWERS)
    assert end.properties.correlation_data == b"c"
    check_accounts(world.broker)
    world.advance(10_000)
    assert asker.receive_all() == [], "exactly one end comes"
    assert world.broker.requests.count == world.broker.storage.count == 0
    assert world.broker.timers.deadline() is None


def test_the_page_names_every_status() -> None:
    table = PAGE.read_text().split("## How it ends")[1].split("\n\n")[1].splitlines()[2:]
    assert {line.split("`")[1] for line in table} == set(requests.STATUSES.values())


def test_an_error_is_text_however_wrong() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker)
    fail(worker, given(worker), b"\xff bad")
    assert ends(asker) == [("error", "\ufffd bad".encode())]


# -- to the requester alone ------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [ANSWERS, "answers/+", "#", "$polybus/answers/#"])
def test_the_end_comes_to_the_requester_alone(watched: str) -> None:
    world = World()
    other = world.connect("other", V5)
    other.subscribe(watched, qos=2)
    asker, worker = requester(world), service(world)
    ask(asker)
    answer(worker, given(worker))
    ask(asker, topic="nobody/here")
    assert ends(asker) == [("answered", b"!"), ("not-delivered", NO_SERVICE)]
    assert other.packets() == []


def test_a_requester_without_a_subscription_is_told_when_it_has_one() -> None:
    world = World()
    worker = service(world)
    asker = world.connect("asker", V5)
    asker.subscribe("answers/others", "$share/group/answers/asker", qos=1)
    ask(asker, how="managed, waiting", correlation_data=b"1")
    answer(worker, given(worker))
    ask(asker, how="managed, waiting", topic="nobody/here", message_expiry_s=2, correlation_data=b"2")
    world.advance(3)
    assert asker.take(Publish) == []
    assert asker.subscribe("answers/#", qos=1) == (1,)
    told = asker.receive_all()
    assert [(status(p), p.properties.correlation_data) for p in told] == [
        ("answered", b"1"),
        ("timed-out", b"2"),
    ]
    assert world.broker.requests.count == 0


def test_subscription_identifiers_and_no_local_hold_for_ends_too() -> None:
    world = World()
    asker = world.connect("asker", V5)
    asker.subscribe(ANSWERS, qos=1, identifier=7, no_local=True)
    ask(asker)
    (end,) = asker.receive_all()
    assert (status(end), end.properties.subscription_identifiers) == ("not-delivered", (7,))


# -- who gets it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic_filter", [JOBS, "#", "jobs/+", "$share/group/jobs/#"])
def test_a_subscription_without_the_property_never_gets_a_request(topic_filter: str) -> None:
    world = World()
    watcher = world.connect("watcher", V5)
    watcher.subscribe(topic_filter, qos=2)
    old_watcher = world.connect("old watcher")
    old_watcher.subscribe("#")
    asker = requester(world)
    ask(asker)
    assert ends(asker) == [("not-delivered", NO_SERVICE)]
    ask(asker, how="managed, waiting")
    worker = service(world, on="jobs/#")
    answer(worker, given(worker))
    assert ends(asker) == [("answered", b"!")]
    assert watcher.packets() == old_watcher.packets() == []


@pytest.mark.parametrize("topic_filter", [JOBS, "#", "jobs/+", "$share/group/jobs/#"])
def test_any_subscription_with_the_property_is_a_service(topic_filter: str) -> None:
    world = World()
    asker, worker = requester(world), service(world, on=topic_filter)
    ask(asker)
    answer(worker, given(worker))
    assert ends(asker) == [("answered", b"!")]


def test_a_request_goes_to_one_service() -> None:
    world = World()
    workers = [service(world, f"worker {n}", on=on) for n, on in enumerate((JOBS, "jobs/#", "#"))]
    asker = requester(world)
    ask(asker)
    assert [len(w.take(Publish)) for w in workers] == [1, 0, 0]


def test_a_service_gets_messages_as_well() -> None:
    world = World()
    worker = service(world)
    world.connect("other").publish(JOBS, b"a message")
    assert [(p.payload, p.properties) for p in worker.take(Publish)] == [(b"a message", Properties())]


@pytest.mark.parametrize("takes", ["1", "3", "65535"])
def test_a_number_says_how_many_requests_at_once(takes: str) -> None:
    world = World(default_service=ServiceRule(concurrency=2))
    asker, worker = requester(world), service(world, takes=takes)
    for number in range(5):
        ask(asker, b"%d" % number)
    at_once = min(5, int(takes))
    in_hand = worker.take(Publish)
    assert [p.payload for p in in_hand] == [b"%d" % n for n in range(at_once)]
    answered = 0
    while in_hand:
        answer(worker, in_hand.pop(0))
        answered += 1
        in_hand += worker.take(Publish)
    assert answered == 5
    assert ends(asker) == [("answered", b"!")] * 5


def test_yes_takes_as_many_as_the_rule_says() -> None:
    rules = [ServiceRule("jobs/#", concurrency=3)]
    world = World(service_rules=rules)
    asker, worker = requester(world), service(world, takes="yes", on="#")
    for _ in range(5):
        ask(asker)
        ask(asker, topic="elsewhere")
    assert [p.topic for p in worker.take(Publish)].count(JOBS) == 3


def test_a_subscription_can_be_renewed_with_another_number() -> None:
    world = World()
    asker, worker = requester(world), service(world, takes="1")
    for _ in range(5):
        ask(asker)
    assert len(worker.take(Publish)) == 1
    serve(worker, JOBS, "4")
    assert len(worker.take(Publish)) == 3


def test_one_subscribe_may_offer_several_services() -> None:
    world = World()
    asker, worker = requester(world), world.connect("worker", V5)
    offer = Properties(user_properties=(("polybus-service", "1"),))
    filters = tuple(SubscriptionRequest(f, 1) for f in ("jobs/one", "jobs/two"))
    worker.send(Subscribe(1, filters, offer))
    assert worker.take(SubAck)[0].reason_codes == (1, 1)
    ask(asker, topic="jobs/one")
    ask(asker, topic="jobs/two")
    assert [(p.topic, p.qos) for p in worker.take(Publish)] == [("jobs/one", 0), ("jobs/two", 0)]


def test_who_unsubscribed_gets_no_more_requests() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, b"1")
    ask(asker, b"2", how="managed, waiting")
    first = given(worker)
    worker.unsubscribe(JOBS)
    answer(worker, first)
    assert ends(asker) == [("answered", b"!")], "what it had in hand it may still answer"
    assert worker.payloads() == []


def test_who_subscribes_anew_without_the_property_serves_no_more() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, b"1")
    ask(asker, b"2")
    first = given(worker)
    worker.subscribe(JOBS)
    assert ends(asker) == [("not-delivered", NO_SERVICE)]
    answer(worker, first)
    assert ends(asker) == [("answered", b"!")]
    assert worker.payloads() == []


def test_another_service_gets_what_one_did_not_answer() -> None:
    world = World()
    asker, first, second = requester(world), service(world, "first"), service(world, "second")
    ask(asker)
    request = given(first)
    first.drop()
    again = given(second)
    assert again == request, "nothing tells it from the first time"
    answer(second, again)
    assert ends(asker) == [("answered", b"!")]


def test_a_service_that_takes_too_long_loses_it_and_is_told() -> None:
    world = World(default_service=ServiceRule(answer_within_s=2))
    asker, slow, other = requester(world), service(world, "slow"), service(world, "other")
    ask(asker)
    late = given(slow)
    world.advance(2.1)
    assert [how(p) for p in slow.take(Publish)] == ["cancel"]
    assert refused(answer(slow, late, b"late")) == ReasonCode.NOT_AUTHORIZED
    answer(other, given(other))
    assert ends(asker) == [("answered", b"!")]


# -- canceling ------------------------------------------------------------------------------------------


def test_a_cancel_reaches_the_service_whose_answer_is_then_refused() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, b"14", user_properties=(("trace", "1"),), content_type="text/plain")
    request = given(worker)
    assert cancel(asker) == 0
    stop = given(worker)
    assert (stop.topic, stop.payload, how(stop)) == (JOBS, b"", "cancel")
    assert stop.properties.correlation_data == request.properties.correlation_data
    assert stop.properties.response_topic == request.properties.response_topic
    assert refused(answer(worker, request)) == ReasonCode.NOT_AUTHORIZED
    assert ends(asker) == [("canceled", b"canceled by its requester")]
    ask(asker)
    assert given(worker).payload == b"?", "it is free for the next"


def test_a_cancel_names_topic_and_correlation_data() -> None:
    world = World()
    asker, worker = requester(world), service(world, takes="9", on="jobs/#")
    other = requester(world, "other")
    for topic in (JOBS, "jobs/two"):
        for data in (b"1", b"2", None):
            ask(asker, topic=topic, correlation_data=data)
    ask(other, correlation_data=b"3")
    worker.packets()
    for wrong in ({"topic": "jobs/three"}, {"correlation_data": b"3"}):
        assert cancel(asker, **wrong) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # type: ignore[arg-type]
    assert worker.packets() == []
    assert cancel(asker, topic="jobs/two", correlation_data=b"2") == 0
    assert [(p.topic, p.properties.correlation_data) for p in worker.take(Publish)] == [("jobs/two", b"2")]
    assert cancel(asker, correlation_data=None) == 0
    assert [p.topic for p in worker.take(Publish)] == [JOBS]
    assert [s for s, _ in ends(asker)] == ["canceled"] * 2


def test_there_may_be_nothing_to_cancel() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker)
    answer(worker, given(worker))
    asker.send(Publish(JOBS, b"", 1, packet_id=9, properties=said("cancel", response_topic=None)))
    (acknowledgement,) = [p for p in asker.take(PubAck) if p.packet_id == 9]
    assert acknowledgement.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert acknowledgement.properties.reason_string == "there is no such request to cancel"
    assert ends(asker) == [("answered", b"!")]
    asker.send(Publish(JOBS, b"", 0, properties=said("cancel", response_topic=None)))
    assert not asker.is_closed
    assert worker.packets() == []


def test_an_answer_that_is_here_already_wins_over_a_cancel() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker)
    topic = given(worker).properties.response_topic
    assert topic is not None
    world.broker.stir()  # busy: what follows is handled in one tick
    worker.feed_packets(Publish(topic, b"!"))
    asker.feed_packets(Publish(JOBS, properties=said("cancel")))
    world.settle()
    assert ends(asker) == [("answered", b"!")]


def test_a_request_that_waits_can_be_canceled() -> None:
    world = World()
    asker = requester(world)
    ask(asker, how="managed, waiting")
    assert cancel(asker) == 0
    assert [s for s, _ in ends(asker)] == ["canceled"]
    assert service(world).packets() == []
    assert world.broker.storage.count == 0
