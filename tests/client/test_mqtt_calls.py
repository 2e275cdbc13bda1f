"""Requests of the MQTT client core against a scripted broker: one that manages them, one that does not."""

from typing import Any

import pytest

from polybus.client.errors import (
    NotDelivered,
    RequestCanceled,
    RequestDeleted,
    RequestFailed,
    RequestTimeout,
    ServiceError,
)
from polybus.client.events import (
    Completed,
    CoreEvent,
    Failed,
    Received,
    Requested,
    ReturnAddress,
    Unclaimed,
    Withdrawn,
)
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_settings import MqttSettings
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import (
    ConnAck,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
)
from tests.client.script import Script


def connected(ack: ConnAck | None = None, **settings: Any) -> Script:
    script = Script(MqttSettings(**{"client_id": "c", "run": "r1", **settings})).connect(ack)
    script.events.clear()
    return script


def ask(script: Script, payload: bytes = b"x", timeout_s: float = 5, **how: Any) -> int:
    message = Message(
        "t", payload, priority=how.pop("priority", False), properties=how.pop("properties", Properties())
    )
    return script.core.request(message, timeout_s, how.pop("may_wait", True), now=script.now)


def asked(script: Script, topic: str = "polybus/answers/c/r1") -> Publish:
    """The first request: with the subscription to the answers before it."""
    script.expect(Subscribe)
    assert isinstance(script.last, Subscribe)
    assert script.last.requests[0].topic_filter == topic
    script.reply(SubAck(script.last.packet_id, (1,)))
    return next_request(script)


def next_request(script: Script) -> Publish:
    script.expect(Publish, topic="t", qos=1)
    assert isinstance(script.last, Publish)
    return script.last


def words(publish: Publish) -> dict[str, str]:
    return dict(publish.properties.user_properties)


def end(request: Publish, status: str | None, payload: bytes = b"y", qos: int = 0) -> Publish:
    said = request.properties
    assert said.response_topic is not None
    properties = Properties(
        correlation_data=said.correlation_data,
        user_properties=(("polybus-status", status),) if status else (),
    )
    return Publish(said.response_topic, payload, qos, packet_id=9 if qos else 0, properties=properties)


def last(script: Script) -> CoreEvent:
    return script.events[-1]


# --- asking -----------------------------------------------------------------------------------------


def test_request_says_how_it_is_to_be_managed() -> None:
    script = connected()
    ask(
        script,
        priority=True,
        timeout_s=1.2,
        properties=Properties(content_type="a", user_properties=(("k", "v"),)),
    )
    first = asked(script)
    assert first.properties == Properties(
        message_expiry_s=2,
        content_type="a",
        response_topic="polybus/answers/c/r1",
        correlation_data=first.properties.correlation_data,
        user_properties=(("k", "v"), ("polybus-request", "managed, priority, waiting")),
    )
    ask(script, may_wait=False)
    second = next_request(script)  # without another subscription
    assert words(second) == {"polybus-request": "managed"}
    assert first.properties.correlation_data != second.properties.correlation_data


@pytest.mark.parametrize(
    ("settings", "information", "topic"),
    [
        ({"client_id": "a/b+c#"}, None, "polybus/answers/a_b_c_/r1"),
        ({"clean_start": False}, None, "polybus/answers/c"),
        ({}, "replies/", "replies/c/r1"),
    ],
)
def test_where_answers_come(settings: dict[str, Any], information: str | None, topic: str) -> None:
    script = connected(ConnAck(properties=Properties(response_information=information)), **settings)
    ask(script)
    assert asked(script, topic).properties.response_topic == topic


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("status", ["answered", None])
def test_answer_of_either_kind_of_broker(qos: int, status: str | None) -> None:
    script = connected()
    token = ask(script)
    request = asked(script)
    script.reply(PubAck(request.packet_id), end(request, status, b"42", qos))
    assert last(script) == Completed(token, Message("t", b"42", qos))
    if qos:
        script.expect(PubAck, packet_id=9)
    script.events.clear()
    script.reply(end(request, status, b"again"))
    assert script.events == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("error", ServiceError),
        ("timed-out", RequestTimeout),
        ("canceled", RequestCanceled),
        ("deleted", RequestDeleted),
        ("not-delivered", NotDelivered),
    ],
)
def test_other_ends(status: str, kind: type[RequestFailed]) -> None:
    script = connected()
    token = ask(script)
    script.reply(end(asked(script), status, b"because"))
    failed = last(script)
    assert isinstance(failed, Failed)
    assert (failed.token, type(failed.error)) == (token, kind)
    assert isinstance(failed.error, RequestFailed)
    assert failed.error.reason == "because"


def test_answers_to_an_earlier_run() -> None:
    script = connected(clean_start=False)
    ask(script)
    request = asked(script, "polybus/answers/c")
    other = Publish(
        "polybus/answers/c", b"old", properties=Properties(correlation_data=b"r0-1", content_type="text/plain")
    )
    script.reply(other)
    unclaimed = last(script)
    assert isinstance(unclaimed, Unclaimed)
    assert isinstance(unclaimed.end, Message)
    assert unclaimed.end.payload == b"old"
    script.reply(end(request, None))
    assert isinstance(last(script), Completed)


def test_refused_acknowledgement_ends_it() -> None:
    script = connected()
    token = ask(script)
    request = asked(script)
    script.reply(PubAck(request.packet_id, ReasonCode.NOT_AUTHORIZED))
    failed = last(script)
    assert isinstance(failed, Failed)
    assert (failed.token, type(failed.error)) == (token, NotDelivered)
    assert "not authorized" in str(failed.error)


@pytest.mark.parametrize("may_wait", [True, False])
def test_broker_that_does_not_manage_and_has_no_subscriber(may_wait: bool) -> None:
    script = connected()
    ask(script, may_wait=may_wait)
    request = asked(script)
    script.events.clear()
    script.reply(PubAck(request.packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS))
    assert bool(script.events) is not may_wait  # it may come yet


def test_answers_that_we_may_not_have() -> None:
    script = connected()
    token = ask(script)
    script.expect(Subscribe)
    assert isinstance(script.last, Subscribe)
    script.reply(SubAck(script.last.packet_id, (ReasonCode.NOT_AUTHORIZED,)))
    failed = last(script)
    assert isinstance(failed, Failed)
    assert (failed.token, type(failed.error)) == (token, NotDelivered)
    assert "polybus/answers/c/r1" in str(failed.error)


def test_too_large_for_this_broker() -> None:
    script = connected(ConnAck(properties=Properties(maximum_packet_size=1000)))
    with pytest.raises(NotDelivered, match="too large"):
        ask(script, bytes(1000))
    script.expect_nothing()
    script.lose()
    token = ask(script, bytes(1000))
    script.connect(ConnAck(session_present=True, properties=Properties(maximum_packet_size=500)))
    [failed] = [event for event in script.events if isinstance(event, Failed)]
    assert (failed.token, type(failed.error)) == (token, NotDelivered)


def test_wrong_topics_are_the_callers_fault() -> None:
    script = connected()
    for topic in ("", "a/#", "a\0"):
        with pytest.raises(UsageError):
            script.core.request(Message(topic), 5, True, now=0)
    script.expect_nothing()
    assert script.core.deadline() == script.now + 45  # of the keep alive


# --- time and cancel --------------------------------------------------------------------------------


def test_deadline_is_kept_here_too() -> None:
    script = connected(keep_alive_s=0)
    token = ask(script, timeout_s=2)
    request = asked(script)
    assert script.core.deadline() == pytest.approx(script.now + 2.5)
    script.events.clear()
    script.wait(2.5)
    failed = last(script)
    assert isinstance(failed, Failed)
    assert (failed.token, type(failed.error)) == (token, RequestTimeout)
    cancel = next_request(script)
    assert words(cancel) == {"polybus-request": "cancel"}
    assert cancel.properties.correlation_data == request.properties.correlation_data
    assert script.core.deadline() is None


def test_cancel() -> None:
    script = connected()
    token = ask(script)
    request = asked(script)
    assert script.core.abandon(token, now=script.now) is False
    assert words(next_request(script)) == {"polybus-request": "cancel"}
    script.events.clear()
    script.reply(end(request, "canceled"))
    assert script.events == []


def test_cancel_of_what_was_never_sent() -> None:
    script = Script(MqttSettings("c"))
    token = ask(script)
    assert script.core.abandon(token, now=script.now)
    script.connect().expect_nothing()


# --- losses -----------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_is_sent_again_once() -> None:
    script = connected()
    ask(script)
    first = asked(script)
    script.reconnect(session_present=True)
    assert (script.accepted.requests, script.accepted.resent) == (1, 0)
    again = next_request(script)
    assert again.dup
    assert again.properties.correlation_data == first.properties.correlation_data
    script.expect_nothing()


def test_what_was_acknowledged_is_not_sent_again_while_the_session_lives() -> None:
    script = connected()
    token = ask(script)
    request = asked(script)
    script.reply(PubAck(request.packet_id)).reconnect(session_present=True)
    assert script.accepted.requests == 0
    script.expect_nothing().reply(end(request, "answered"))
    assert isinstance(last(script), Completed)
    assert last(script).token == token  # type: ignore[union-attr]


def test_what_was_acknowledged_is_sent_again_when_the_session_is_lost() -> None:
    script = connected()
    ask(script, timeout_s=10)
    request = asked(script)
    script.reply(PubAck(request.packet_id))
    script.now += 4
    script.reconnect(session_present=False)
    assert (script.accepted.requests, script.accepted.renewed) == (1, ())
    again = asked(script)
    assert again.properties.correlation_data == request.properties.correlation_data
    assert again.properties.message_expiry_s == 6
    script.expect_nothing()


# --- serving ----------------------------------------------------------------------------------------


def given(
    word: str, response_topic: str = "$polybus/answers/1f", qos: int = 0, payload: bytes = b"?"
) -> Publish:
    properties = Properties(
        response_topic=response_topic, correlation_data=b"key", user_properties=(("polybus-request", word),)
    )
    return Publish("t", payload, qos, packet_id=7 if qos else 0, properties=properties)


def test_service_says_that_it_is_one() -> None:
    script = connected()
    script.core.subscribe(SubscribeOptions("t", 1, concurrency=4), now=0)
    script.expect(Subscribe)
    assert isinstance(script.last, Subscribe)
    assert script.last.properties.user_properties == (("polybus-service", "4"),)


def test_managed_request_and_its_cancel() -> None:
    script = connected()
    script.reply(given("managed"))
    requested = last(script)
    assert isinstance(requested, Requested)
    address = ReturnAddress("$polybus/answers/1f", b"key")
    assert (requested.message.payload, requested.answer_to) == (b"?", address)
    script.reply(given("cancel", payload=b""))
    assert last(script) == Withdrawn(address)
    script.core.answer(address, requested.message, b"42", now=0)
    script.expect(Publish, topic="$polybus/answers/1f", payload=b"42", qos=0)
    script.core.fail(address, requested.message, "cannot", now=0)
    script.expect(Publish, topic="$polybus/answers/1f", payload=b"cannot")
    assert isinstance(script.last, Publish)
    assert script.last.properties.correlation_data == b"key"
    assert words(script.last) == {"polybus-status": "error"}


def test_request_of_a_broker_that_does_not_manage_is_a_message_too() -> None:
    script = connected()
    script.reply(given("managed", "answers/a", qos=1))
    received = last(script)
    assert isinstance(received, Received)
    script.core.answer(ReturnAddress("answers/a", b"key"), received.message, b"42", now=0)
    script.expect(Publish, topic="answers/a", qos=1)  # as safe as the request was
    script.reply(given("cancel", "answers/a", qos=1, payload=b""))
    assert last(script) == Withdrawn(ReturnAddress("answers/a", b"key"))
    script.expect(PubAck)


def test_answers_that_cannot_be_sent_harm_nobody() -> None:
    script = connected(ConnAck(properties=Properties(maximum_packet_size=200)))
    script.core.answer(ReturnAddress("wild/#", b"key"), Message("t"), b"x", now=0)
    script.expect_nothing()
    script.core.answer(ReturnAddress("a", None), Message("t"), bytes(1000), now=0)
    script.expect(Publish, topic="a")
    assert isinstance(script.last, Publish)
    assert b"larger than the 200 bytes" in script.last.payload


# --- priority and waiting ---------------------------------------------------------------------------


def test_wishes_of_messages() -> None:
    script = connected()
    script.core.publish(Message("a", priority=True), 20, now=0)
    script.expect(Publish)
    assert isinstance(script.last, Publish)
    assert script.last.properties == Properties(
        message_expiry_s=20, user_properties=(("polybus-message", "priority, waiting"),)
    )
    with pytest.raises(UsageError, match="one of them"):
        script.core.publish(Message("a", properties=Properties(message_expiry_s=5)), 20, now=0)
