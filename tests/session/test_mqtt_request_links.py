"""What a connection makes of requests: its limits of size, its aliases, its losses and returns."""

import pytest

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
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
    service,
)
from tests.session.harness import World

# -- sizes and aliases ----------------------------------------------------------------------------------------


def test_a_request_goes_to_a_service_that_takes_its_size() -> None:
    world = World()
    small = service(world, "small", maximum_packet_size=200)
    large = service(world, "large")
    asker = requester(world)
    ask(asker, b"x" * 200)
    assert small.packets() == []
    answer(large, given(large))
    ask(asker, b"x")
    assert given(small).payload == b"x"
    assert ends(asker) == [("answered", b"!")]


def test_a_service_that_takes_its_size_may_be_busy_for_now() -> None:
    world = World()
    small = service(world, "small", maximum_packet_size=200)
    large = service(world, "large")
    asker = requester(world)
    for _ in range(2):
        ask(asker, b"x" * 200)
    request = given(large)
    answer(large, request)
    answer(large, given(large))
    assert ends(asker) == [("answered", b"!")] * 2
    assert small.packets() == []


def test_the_news_may_be_too_large_as_well() -> None:
    world = World()
    worker = service(world)
    asker = requester(world, maximum_packet_size=60)
    ask(asker)
    answer(worker, given(worker), b"x" * 60)
    assert ends(asker) == []
    assert not asker.is_closed
    assert world.broker.requests.count == 0
    assert world.broker.stats.dropped_too_large == 1


def test_a_requester_with_a_long_name(caplog: pytest.LogCaptureFixture) -> None:
    world = World(Limits(client_id_bytes=65_535))
    worker = service(world)
    asker = requester(world, "x" * 65_535)
    ask(asker, correlation_data=None)
    answer(worker, given(worker))
    assert ends(asker) == [("answered", b"!")]
    assert caplog.text == ""


def test_topic_aliases_towards_requester_and_service() -> None:
    world = World()
    asker = requester(world, topic_alias_maximum=3)
    worker = service(world, takes="9", topic_alias_maximum=3)
    for _ in range(3):
        ask(asker)
    in_hand = worker.take(Publish)
    assert [(p.topic, p.properties.topic_alias) for p in in_hand] == [(JOBS, 1), ("", 1), ("", 1)]
    answer(worker, in_hand[0])
    answer(worker, in_hand[1])
    cancel(asker)
    (stop,) = worker.take(Publish)
    assert (stop.topic, stop.properties.topic_alias, how(stop)) == ("", 1, "cancel")
    told = asker.receive_all()
    assert [(p.topic, p.properties.topic_alias) for p in told] == [(ANSWERS, 1), ("", 1), ("", 1)]


def test_topic_aliases_towards_a_requester_with_a_limit_of_size() -> None:
    world = World()
    asker, worker = requester(world, topic_alias_maximum=3, maximum_packet_size=1000), service(world)
    for expected in ((ANSWERS, 1), ("", 1)):
        ask(asker)
        answer(worker, given(worker))
        (end,) = asker.receive_all()
        assert (end.topic, end.properties.topic_alias) == expected


def test_topic_aliases_from_requester_and_service() -> None:
    world = World()
    asker, worker = requester(world), service(world, takes="2")
    asker.send(
        Publish(JOBS, b"1", properties=said("managed", topic_alias=5)),
        Publish("", b"2", properties=said("managed", topic_alias=5)),
    )
    first, second = worker.take(Publish)
    assert [first.payload, second.payload] == [b"1", b"2"]
    topic = first.properties.response_topic
    assert topic is not None
    worker.send(
        Publish(topic, b"!", properties=Properties(topic_alias=1)),
        Publish("", b"again", 1, packet_id=1, properties=Properties(topic_alias=1)),
    )
    assert refused(worker.take(PubAck)[0]) == ReasonCode.NOT_AUTHORIZED
    asker.send(Publish("", b"", 1, packet_id=1, properties=said("cancel", topic_alias=5)))
    assert ends(asker) == [("answered", b"!"), ("canceled", b"canceled by its requester")]


# -- connections come and go -----------------------------------------------------------------------------------


def test_a_requester_that_is_away_is_told_when_it_comes_back() -> None:
    world = World()
    asker, worker = requester(world, keeps=True), service(world, takes="4")
    ask(asker, b"answered", "managed, waiting")
    ask(asker, b"failed", "managed, waiting")
    ask(asker, b"late", "managed, waiting", message_expiry_s=5)
    ask(asker, b"may not wait")
    asker.drop()
    answered, failed, _, forgotten, stop = worker.take(Publish)
    assert how(stop) == "cancel"
    assert refused(answer(worker, forgotten, b"nobody will see this")) == ReasonCode.NOT_AUTHORIZED
    answer(worker, answered)
    fail(worker, failed, b"broken")
    world.advance(6)
    back = world.connect("asker", V5, clean_start=False, keeps=True)
    assert sorted(ends(back)) == [("answered", b"!"), ("error", b"broken"), ("timed-out", b"no answer in time")]
    assert world.broker.requests.count == world.broker.storage.count == 0


def test_without_a_kept_session_it_is_told_when_it_subscribes_again() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, how="managed, waiting")
    asker.drop()
    answer(worker, given(worker))
    back = world.connect("asker", V5, clean_start=False)
    assert back.packets() == []
    back.subscribe(ANSWERS, qos=1)
    assert ends(back) == [("answered", b"!")]


def test_a_clean_start_throws_it_away_and_cancels_what_is_unfinished() -> None:
    world = World()
    asker, worker = requester(world, keeps=True), service(world, takes="2")
    ask(asker, b"1", "managed, waiting")
    ask(asker, b"2", "managed, waiting")
    ask(asker, b"3", "managed, waiting", topic="nobody/here")
    asker.drop()
    first, second = worker.take(Publish)
    answer(worker, first)
    back = requester(world, keeps=True)
    assert back.packets() == []
    (stop,) = worker.take(Publish)
    assert (how(stop), stop.properties.response_topic) == ("cancel", second.properties.response_topic)
    assert world.broker.requests.count == world.broker.storage.count == 0


def test_the_news_of_an_end_is_not_kept_for_ever() -> None:
    world = World(Limits(request_ends_kept_s=100))
    asker = requester(world, keeps=True)
    ask(asker, how="managed, waiting", message_expiry_s=5)
    asker.drop()
    world.advance(104)
    assert world.broker.requests.count == 1
    world.advance(2)
    assert world.broker.requests.count == world.broker.storage.count == 0
    assert ends(world.connect("asker", V5, clean_start=False, keeps=True)) == []


def test_a_service_that_comes_back_serves_again_and_answers_nothing_of_before() -> None:
    world = World()
    asker, worker = requester(world), service(world, keeps=True)
    ask(asker, b"1", "managed, waiting")
    before = given(worker)
    worker.drop()
    ask(asker, b"2", "managed, waiting")
    back = world.connect("worker", V5, clean_start=False, keeps=True)
    again = given(back)
    assert again == before, "the one that waited longest"
    answer(back, again)
    answer(back, given(back))
    assert refused(answer(back, before)) == ReasonCode.NOT_AUTHORIZED
    assert ends(asker) == [("answered", b"!")] * 2


def test_a_request_that_may_not_wait_ends_with_its_only_service() -> None:
    world = World()
    asker, worker = requester(world), service(world, keeps=True)
    ask(asker)
    worker.drop()
    assert ends(asker) == [("not-delivered", NO_SERVICE)]
    ask(asker)
    assert ends(asker) == [("not-delivered", NO_SERVICE)], "a service that is away is none"


def test_a_request_of_qos_2_sent_again_is_one_request() -> None:
    world = World()
    asker, worker = requester(world, keeps=True), service(world, takes="9")
    packet = Publish(JOBS, b"?", 2, packet_id=5, properties=said("managed, waiting"))
    again = Publish(JOBS, b"?", 2, dup=True, packet_id=5, properties=said("managed, waiting"))
    asker.send(packet, again)
    assert asker.take(PubRec) == [PubRec(5)] * 2
    asker.drop()
    back = world.connect("asker", V5, clean_start=False, keeps=True)
    back.send(again)
    assert back.take(PubRec) == [PubRec(5)]
    back.send(PubRel(5))
    answer(worker, given(worker))
    assert ends(back) == [("answered", b"!")]
    back.send(packet)
    assert given(worker).payload == b"?", "after its release the id is free for another"


def test_an_answer_of_qos_2_sent_again_is_one_answer() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker)
    topic = given(worker).properties.response_topic
    assert topic is not None
    for dup in (False, True):
        worker.send(Publish(topic, b"!", 2, dup=dup, packet_id=5))
    worker.send(PubRel(5))
    assert worker.packets() == [PubRec(5), PubRec(5), PubComp(5)]
    assert ends(asker) == [("answered", b"!")]


def test_an_end_that_was_not_acknowledged_is_sent_again() -> None:
    world = World()
    asker = requester(world, keeps=True)
    ask(asker)
    (end,) = asker.take(Publish)
    asker.drop()
    back = world.connect("asker", V5, clean_start=False, keeps=True)
    (again,) = back.receive_all()
    assert (again.dup, again.packet_id, again.payload) == (True, end.packet_id, NO_SERVICE)
    assert again.properties == end.properties
