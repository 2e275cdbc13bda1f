"""User properties of MQTT 5.0 that the broker knows, and what it refuses: docs/requests.md."""

from collections.abc import Callable
from typing import Any

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.session.mqtt import requests
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.session.asking import (
    ANSWERS,
    JOBS,
    NO_SERVICE,
    answer,
    ask,
    ends,
    given,
    how,
    refused,
    requester,
    said,
    serve,
    service,
)
from tests.session.harness import World, connect_packet

# -- what is refused ------------------------------------------------------------------------------------


Pairs = tuple[tuple[str, str], ...]


def one(name: str, value: str) -> Pairs:
    return ((f"polybus-{name}", value),)


REQUEST_TAKES = "polybus-request takes cancel, managed, priority, waiting; not "
REQUEST_NEEDS = "polybus-request needs managed, or cancel alone, not "
MESSAGE_TAKES = "polybus-message takes priority, waiting; not "
ONCE = "polybus-request or polybus-message once, not more"
WRONG: list[tuple[Pairs, str | None, str]] = [
    (one("request", "managed, urgent"), ANSWERS, f"{REQUEST_TAKES}'urgent'"),
    (one("request", "Managed"), ANSWERS, f"{REQUEST_TAKES}'Managed'"),
    (one("request", ""), ANSWERS, f"{REQUEST_TAKES}''"),
    (one("request", "managed," + "x" * 999), ANSWERS, f"{REQUEST_TAKES}'{'x' * 80}'"),
    (one("request", "priority"), ANSWERS, f"{REQUEST_NEEDS}'priority'"),
    (one("request", "managed, cancel"), ANSWERS, f"{REQUEST_NEEDS}'managed, cancel'"),
    (one("request", "cancel, priority"), ANSWERS, f"{REQUEST_NEEDS}'cancel, priority'"),
    (one("request", "managed"), None, "a managed request needs a Response Topic"),
    (one("message", "managed"), None, f"{MESSAGE_TAKES}'managed'"),
    (one("message", ""), None, f"{MESSAGE_TAKES}''"),
    (one("request", "managed") + one("message", "priority"), ANSWERS, ONCE),
    (one("message", "priority") + one("request", "managed"), ANSWERS, ONCE),
    (one("request", "managed") * 2, ANSWERS, ONCE),
]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("pairs", "response_topic", "why"), WRONG)
def test_words_nobody_knows_are_refused(pairs: Pairs, response_topic: str | None, why: str, qos: int) -> None:
    world = World()
    asker, worker = requester(world), service(world)
    watcher = world.connect("watcher")
    watcher.subscribe("#")
    properties = Properties(response_topic=response_topic, user_properties=pairs)
    asker.send(Publish(JOBS, b"?", qos, packet_id=9 if qos else 0, properties=properties))
    reply = asker.packets()
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    kind = (Disconnect, PubAck, PubRec)[qos]
    assert reply == [kind(*((9,) if qos else ()), code, Properties(reason_string=why))]
    assert asker.is_closed == (qos == 0)
    assert worker.packets() == watcher.packets() == []
    if qos == 2:
        asker.send(PubRel(9))
        (complete,) = asker.take(PubComp)
        assert complete.reason_code == ReasonCode.PACKET_IDENTIFIER_NOT_FOUND, "the exchange was over"


@pytest.mark.parametrize(
    "value",
    ["0", "65536", "-1", "1.5", "no", "Yes", "", "١", " 1", "000001", "9" * 5000, "000001" + "9" * 5000],
)
def test_services_say_how_many_or_yes(value: str) -> None:
    world = World()
    worker = world.connect("worker", V5)
    offer = Properties(user_properties=(("polybus-service", value),))
    worker.send(Subscribe(7, (SubscriptionRequest("a", 1), SubscriptionRequest("b")), offer))
    (reply,) = worker.take(SubAck)
    assert (reply.packet_id, reply.reason_codes) == (7, (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * 2)
    assert reply.properties.reason_string is not None
    assert reply.properties.reason_string.startswith("polybus-service is yes or a number from 1 to 65535, not ")
    assert len(reply.properties.reason_string) < 200
    assert not worker.is_closed
    assert world.broker.subscriptions.count == 0


def test_whoever_wants_no_reason_strings_gets_none() -> None:
    world = World()
    asker = world.connect("asker", V5, request_problem_information=0)
    ask(asker, how="nonsense")
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert asker.packets() == [PubAck(1, code)]
    assert serve(asker, JOBS, "none") == SubAck(2, (code,))
    ask(asker, how="nonsense", qos=0)
    assert asker.packets() == [Disconnect(code)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_reason_that_is_too_long_for_the_client_is_left_out(qos: int) -> None:
    world = World()
    asker = world.connect("asker", V5, maximum_packet_size=40)
    asker.send(Publish(JOBS, b"", qos, packet_id=1, properties=said("nonsense")))
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert asker.packets() == [(PubAck if qos == 1 else PubRec)(1, code)]


def test_a_reason_that_is_too_long_for_the_client_is_left_out_of_suback() -> None:
    world = World()
    asker = world.connect("asker", V5, maximum_packet_size=40)
    assert serve(asker, JOBS, "none") == SubAck(1, (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,))


def test_a_response_topic_with_too_many_levels() -> None:
    world = World(Limits(topic_levels=4))
    asker = requester(world)
    ask(asker, response_topic="a/b/c/d/e")
    assert [p.reason_code for p in asker.take(Disconnect)] == [ReasonCode.TOPIC_NAME_INVALID]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("whose", ["nobody's", "someone else's", "its own twice", "nonsense"])
def test_answers_that_are_refused(whose: str, is_error: bool, qos: int) -> None:
    """To whom it may concern: the request and its requester notice nothing."""
    world = World()
    asker, worker = requester(world), service(world, "worker")
    other = service(world, "other", on="other/jobs")
    ask(asker)
    request = given(worker)
    answerer = other
    topic = request.properties.response_topic
    assert topic is not None
    if whose == "nobody's":
        topic = requests.ANSWERS + "7777"
    elif whose == "nonsense":
        topic = requests.ANSWERS + "00zz/nonsense"
    elif whose == "its own twice":
        answer(worker, request)
        answerer = worker
    properties = Properties(user_properties=(("polybus-status", "error"),)) if is_error else Properties()
    answerer.send(Publish(topic, b"again", qos, packet_id=5 if qos else 0, properties=properties))
    reason = Properties(reason_string="you have no such request to answer")
    expected = [(PubAck if qos == 1 else PubRec)(5, ReasonCode.NOT_AUTHORIZED, reason)] if qos else []
    assert answerer.packets() == expected
    assert not answerer.is_closed
    if whose != "its own twice":
        assert ends(asker) == []
        answer(worker, request)
    assert ends(asker) == [("answered", b"!")]
    assert world.broker.stats.answers_rejected == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_service_knows_one_word(qos: int) -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, how="managed, waiting")
    request = given(worker)
    topic = request.properties.response_topic
    assert topic is not None
    properties = Properties(user_properties=(("polybus-status", "ok"),))
    worker.send(Publish(topic, b"!", qos, packet_id=5 if qos else 0, properties=properties))
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    reason = Properties(reason_string="polybus-status takes error; not 'ok'")
    kind = (Disconnect, PubAck, PubRec)[qos]
    assert worker.packets() == [kind(*((5,) if qos else ()), code, reason)]
    assert ends(asker) == []
    if qos:
        answer(worker, request)
        assert ends(asker) == [("answered", b"!")]


def test_an_answer_after_the_timeout_is_refused() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, message_expiry_s=5)
    request = given(worker)
    world.advance(6)
    assert [how(p) for p in worker.take(Publish)] == ["cancel"]
    assert refused(answer(worker, request)) == ReasonCode.NOT_AUTHORIZED
    assert [s for s, _ in ends(asker)] == ["timed-out"]


def test_nobody_publishes_below_the_brokers_own_topics() -> None:
    world = World()
    asker = requester(world)
    asker.publish("$polybus/elsewhere", b"x", qos=1)
    ask(asker, topic="$polybus/elsewhere")
    ask(asker, topic="$SYS/elsewhere")
    assert [p.reason_code for p in asker.take(PubAck)] == [ReasonCode.NOT_AUTHORIZED] * 3


# -- MQTT's own request and response ----------------------------------------------------------------------


def test_without_the_property_the_broker_keeps_out_of_it() -> None:
    world = World()
    asker = requester(world)
    plain = world.connect("plain", V5)
    plain.subscribe(JOBS, qos=1)
    worker = service(world)
    properties = Properties(
        response_topic=ANSWERS,
        correlation_data=b"c",
        content_type="text/plain",
        payload_format_indicator=1,
        user_properties=(("a", "1"), ("polybus-status", "kept"), ("a", "2")),
    )
    asker.publish(JOBS, b"?", qos=1, properties=properties)
    for peer in (plain, worker):
        assert [p.properties for p in peer.receive_all()] == [properties]
    assert world.broker.requests.count == 0
    answered = Properties(correlation_data=b"c", user_properties=(("polybus-status", "error"),))
    for peer in (plain, worker):
        peer.publish(ANSWERS, b"!", qos=1, properties=answered)
    assert [(p.payload, p.properties) for p in asker.receive_all()] == [(b"!", answered)] * 2


def test_words_of_messages_are_forwarded_like_any_property() -> None:
    world = World()
    reader = world.connect("reader", V5)
    reader.subscribe("t")
    pairs = (("a", "1"), ("polybus-message", "priority, waiting"), ("b", "2"))
    world.connect("writer", V5).publish("t", b"x", properties=Properties(user_properties=pairs))
    assert [p.properties.user_properties for p in reader.take(Publish)] == [pairs]


# -- priority and waiting -----------------------------------------------------------------------------------


def message(how: str, **more: Any) -> Properties:
    return Properties(user_properties=(("polybus-message", how),), **more)


@pytest.mark.parametrize("version", [V311, V5])
def test_priority_messages_that_come_in_the_same_moment_go_first(version: int) -> None:
    world = World()
    reader = world.connect("reader", version)
    reader.subscribe("t")
    writer = world.connect("writer", V5)
    first, urgent = message("waiting"), message("priority")
    writer.send(
        Publish("t", b"1"),
        Publish("t", b"2", properties=urgent),
        Publish("t", b"3", properties=first),
        Publish("t", b"4", properties=urgent),
    )
    assert reader.payloads() == [b"2", b"4", b"1", b"3"]


def test_priority_requests_and_answers_go_first() -> None:
    world = World()
    asker, worker = requester(world), service(world, takes="4")
    asker.send(
        *(
            Publish(JOBS, b"%d" % n, properties=said(how))
            for n, how in enumerate(["managed", "priority,managed"])
        )
    )
    in_hand = worker.take(Publish)
    assert [p.payload for p in in_hand] == [b"1", b"0"]
    worker.send(*(Publish(p.properties.response_topic or "", p.payload) for p in reversed(in_hand)))
    assert [payload for _, payload in ends(asker)] == [b"1", b"0"]


def test_priority_requests_wait_first_in_line() -> None:
    world = World()
    asker, worker = requester(world), service(world)
    ask(asker, b"in hand")
    for n, words in enumerate(["managed", "managed, priority", "managed", "managed, priority"]):
        ask(asker, b"%d" % n, words)
    served = []
    while in_hand := worker.take(Publish):
        served += [p.payload for p in in_hand]
        answer(worker, in_hand[0])
    assert served == [b"in hand", b"1", b"3", b"0", b"2"]


def test_priority_ends_go_first_to_a_client_that_reads_slowly() -> None:
    world = World()
    asker, worker = requester(world), service(world, takes="4")
    ask(asker, b"0")
    ask(asker, b"1", "managed, priority")
    asker.block()
    for request in worker.take(Publish):
        answer(worker, request, request.payload)
    assert asker.take(Publish) == []
    asker.unblock()
    assert ends(asker) == [("answered", b"1"), ("answered", b"0")]


def test_priority_ends_go_first_to_a_client_that_acknowledges_slowly() -> None:
    world = World()
    asker, worker = requester(world, receive_maximum=1), service(world, takes="4")
    for n, words in enumerate(["managed", "managed", "managed, priority"]):
        ask(asker, b"%d" % n, words)
    for request in worker.take(Publish):
        answer(worker, request, request.payload)
    assert [payload for _, payload in ends(asker)] == [b"0", b"2", b"1"]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_waiting_message_waits_for_the_first_subscription(version: int, qos: int) -> None:
    world = World()
    writer = world.connect("writer", V5)
    for n, words in enumerate(["waiting", "waiting, priority", "waiting,priority", "waiting"]):
        writer.publish("a/b", b"%d" % n, qos=qos, properties=message(words))
    assert world.broker.storage.count == 4
    world.connect("other").subscribe("a/c")
    reader = world.connect("reader", version)
    reader.subscribe("a/#", qos=2)
    received = reader.receive_all()
    assert [p.payload for p in received] == [b"1", b"2", b"0", b"3"]
    assert {p.qos for p in received} == {qos}
    late = world.connect("late", version)
    late.subscribe("#")
    assert late.packets() == []
    assert world.broker.storage.count == 0


def test_a_waiting_message_waits_until_it_expires() -> None:
    world = World()
    writer = world.connect("writer", V5)
    writer.publish("t", b"short", properties=message("waiting", message_expiry_s=5))
    writer.publish("t", b"long", properties=message("waiting", message_expiry_s=50))
    writer.publish("t", b"for ever", properties=message("waiting"))
    world.advance(10)
    reader = world.connect("reader", V5)
    reader.subscribe("t")
    assert [(p.payload, p.properties.message_expiry_s) for p in reader.take(Publish)] == [
        (b"long", 40),
        (b"for ever", None),
    ]


def test_what_may_not_wait_is_gone() -> None:
    world = World()
    writer = world.connect("writer", V5)
    writer.publish("t", b"x", properties=message("priority"))
    assert world.broker.storage.count == 0
    reader = world.connect("reader")
    reader.subscribe("t")
    assert reader.packets() == []


@pytest.mark.parametrize(("qos", "waits_in_storage"), [(0, True), (1, False)])
def test_a_session_that_is_away_is_someone_for_what_it_would_keep(qos: int, waits_in_storage: bool) -> None:
    world = World()
    reader = world.connect("reader", keeps=True)
    reader.subscribe("t", qos=qos)
    reader.drop()
    world.connect("writer", V5).publish("t", b"x", qos=1, properties=message("waiting"))
    assert world.broker.storage.count == waits_in_storage
    back = world.connect("reader", keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"x"]


def test_a_service_that_appears_later_still_gets_a_request_that_may_wait() -> None:
    world = World()
    asker = requester(world)
    ask(asker, b"1", "managed, waiting", message_expiry_s=10)
    ask(asker, b"2", "waiting,managed,priority", message_expiry_s=10)
    world.connect("plain", V5).subscribe("#")
    world.advance(3)
    worker = service(world, takes="2")
    in_hand = worker.take(Publish)
    assert [(p.payload, p.properties.message_expiry_s) for p in in_hand] == [(b"2", 7), (b"1", 7)]
    for request in in_hand:
        answer(worker, request, request.payload)
    assert ends(asker) == [("answered", b"2"), ("answered", b"1")]


def test_mqtt_3_1_1_can_neither_ask_nor_serve() -> None:
    world = World()
    old = world.connect("old")
    old.subscribe("#", JOBS, qos=2)
    asker = requester(world)
    ask(asker)
    assert ends(asker) == [("not-delivered", NO_SERVICE)]
    ask(asker, how="managed, waiting")
    old.subscribe(JOBS)
    assert old.packets() == []
    old.send(Publish(requests.ANSWERS + "2", b"!", 1, packet_id=1))
    assert old.packets() == [PubAck(1)], "it cannot be told that nobody asked"
    assert ends(asker) == []


# -- the broker as a service -----------------------------------------------------------------------------------


def test_the_storage_limit_as_a_request() -> None:
    world = World()
    asker = requester(world)
    ask(asker, b"20", topic="$memoryLimit")
    ask(asker, b"4096", topic="$memoryLimit/bytes")
    limits = b'{"messages":{"limit":20,"used":0},"bytes":{"limit":%d,"used":0}}'
    told = ends(asker)
    assert told == [("answered", limits % Limits().stored_bytes), ("answered", limits % 4096)]
    assert (world.broker.storage.max_messages, world.broker.storage.max_bytes) == (20, 4096)
    ask(asker, b"\x0230", topic="$memoryLimit")
    assert world.broker.storage.max_messages == 30, "the document's encoded string"
    ask(asker, b"", topic="$memoryLimit")
    assert world.broker.storage.max_messages == 30, "only asked"
    assert [s for s, _ in ends(asker)] == ["answered"] * 2
    ask(asker, b"many", topic="$memoryLimit")
    ((how_it_ended, text),) = ends(asker)
    assert how_it_ended == "error"
    assert b"a limit is a whole number from 0" in text
    assert world.broker.storage.max_messages == 30


def test_the_storage_limit_as_a_message() -> None:
    world = World()
    writer = world.connect("writer")
    writer.publish("$memoryLimit", b"7", qos=1)
    assert world.broker.storage.max_messages == 7
    writer.publish("$memoryLimit", b"seven", qos=1)
    assert [p.reason_code for p in writer.take(PubAck)] == [0, 0]
    assert world.broker.storage.max_messages == 7


# -- authorization ---------------------------------------------------------------------------------------------


class Rules:
    """Who may publish and subscribe where, by what their names end with."""

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        return not topic.endswith("forbidden") and not topic.startswith("$")

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        return not topic_filter.endswith("forbidden")


def test_a_request_needs_leave_to_publish() -> None:
    world = World(access=Access(authorizer=Rules()))
    worker = service(world, on="#")
    asker = requester(world)
    for topic in ("jobs/forbidden", "$memoryLimit"):
        ask(asker, b"3", topic=topic)
        ask(asker, b"3", topic=topic, how="managed, waiting", qos=0)
        ask(asker, b"", topic=topic, how="cancel")
    assert [p.reason_code for p in asker.take(PubAck)] == [ReasonCode.NOT_AUTHORIZED] * 4
    assert worker.packets() == ends(asker) == []
    assert world.broker.storage.max_messages == Limits().stored_messages


def test_a_service_needs_leave_to_subscribe_but_none_to_answer() -> None:
    world = World(access=Access(authorizer=Rules()))
    worker = world.connect("worker", V5)
    assert serve(worker, "jobs/forbidden", "1").reason_codes == (ReasonCode.NOT_AUTHORIZED,)
    assert serve(worker, JOBS, "1").reason_codes == (0,)
    asker = requester(world)
    ask(asker)
    acknowledgement = answer(worker, given(worker))
    assert acknowledgement is not None
    assert acknowledgement.reason_code == 0
    assert ends(asker) == [("answered", b"!")]


def test_rules_that_change_end_services_too() -> None:
    world = World()
    asker, worker = requester(world), service(world, on="jobs/forbidden")
    ask(asker, topic="jobs/forbidden")
    assert len(worker.take(Publish)) == 1
    broker = world.broker
    broker.reconfigure(
        broker.limits, Access(authorizer=Rules()), shared_strategy="round_robin", drop_oldest=False,
        queue_qos0=False,
    )  # fmt: skip
    assert broker.subscriptions.count == 1
    assert not worker.session.instances


def test_where_the_answer_is_to_go_needs_leave_to_subscribe() -> None:
    """Whoever may not listen there is not told there: nothing reaches a topic that is not its own."""
    world = World(access=Access(authorizer=Rules()))
    asker = world.connect("asker", V5)
    assert asker.subscribe("answers/forbidden") == (ReasonCode.NOT_AUTHORIZED,)
    ask(asker, response_topic="answers/forbidden")
    assert asker.take(Publish) == []


def will(*pairs: tuple[str, str]) -> Will:
    return Will("t", b"gone", properties=Properties(user_properties=pairs, response_topic=ANSWERS))


@pytest.mark.parametrize("how", ["managed", "cancel", "nonsense"])
def test_a_will_cannot_be_a_request(how: str) -> None:
    world = World()
    peer = world.open(V5)
    peer.send(connect_packet("asker", V5, will=will(("polybus-request", how))))
    assert [p.reason_code for p in peer.take(ConnAck)] == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert peer.is_closed


def test_a_will_may_wait() -> None:
    world = World()
    world.connect("asker", V5, will=will(("polybus-message", "waiting, priority"))).drop()
    watcher = world.connect("watcher")
    watcher.subscribe("t")
    assert watcher.payloads() == [b"gone"]


def test_a_refusal_with_its_reason_is_one_acknowledgement() -> None:
    """Of three publishes that wait for the commit; the receive maximum counts them."""
    waiting: list[Callable[[], None]] = []

    class LaterJournal:
        def commit(self, done: Callable[[], None]) -> None:
            waiting.append(done)

    world = World(journal=LaterJournal())
    peer = world.connect("asker", V5)
    ask(peer, how="nonsense")
    world.settle()
    first = waiting.pop()
    peer.publish("t", b"1", b"2", qos=1)
    assert peer.link.unacknowledged == 3
    first()
    assert peer.link.unacknowledged == 2
