"""The MQTT client core against a scripted broker: no sockets, no clock."""

from collections.abc import Callable

import pytest

from polybus.client.errors import (
    ConnectionLost,
    ConnectRefused,
    PublishRefused,
    SubscribeRefused,
    UnsubscribeRefused,
)
from polybus.client.events import Completed, Ended, Failed, Received, RenewalRefused
from polybus.client.mqtt_core import State
from polybus.client.mqtt_settings import MqttSettings
from polybus.errors import UsageError
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.client.script import Script

Make = Callable[..., Script]


@pytest.fixture(params=["whole", "bytewise"])
def make(request: pytest.FixtureRequest) -> Make:
    def make(version: int = V5, **settings: object) -> Script:
        values = {"client_id": "c", **settings}
        return Script(MqttSettings(version=version, **values), bytewise=request.param == "bytewise")  # type: ignore[arg-type]

    return make


both_versions = pytest.mark.parametrize("version", [V311, V5])


# --- connect ----------------------------------------------------------------------------------------


@both_versions
def test_connect_says_who_we_are(make: Make, version: int) -> None:
    will = Will("gone", b"bye", 1, True)
    script = make(version, user_name="u", password=b"p", will=will, keep_alive_s=30)
    script.core.connect(now=0)
    script.expect(Connect, client_id="c", user_name="u", password=b"p", will=will, keep_alive_s=30)
    script.reply(ConnAck())
    assert script.accepted.client_id == "c"
    assert script.core.state is State.CONNECTED


def test_assigned_client_id_is_used_from_then_on(make: Make) -> None:
    script = make(client_id="").connect(ConnAck(properties=Properties(assigned_client_id="given")))
    assert script.accepted.client_id == "given"
    script.lose().core.connect(now=0)
    script.expect(Connect, client_id="given")


@pytest.mark.parametrize(
    ("version", "code", "reason_code", "may_retry"),
    [
        (V5, ReasonCode.NOT_AUTHORIZED, ReasonCode.NOT_AUTHORIZED, False),
        (V5, ReasonCode.SERVER_BUSY, ReasonCode.SERVER_BUSY, True),
        (V311, 5, ReasonCode.NOT_AUTHORIZED, False),
        (V311, 3, ReasonCode.SERVER_UNAVAILABLE, True),
    ],
)
def test_refusal_names_its_reason(
    make: Make, version: int, code: int, reason_code: ReasonCode, may_retry: bool
) -> None:
    script = make(version).connect(ConnAck(code))
    error, retry, _ = script.ended
    assert isinstance(error, ConnectRefused)
    assert error.reason_code == reason_code
    assert reason_code.name.replace("_", " ").lower() in str(error)
    assert retry is may_retry


def test_refusal_carries_the_brokers_words(make: Make) -> None:
    script = make().connect(ConnAck(0x9C, properties=Properties(reason_string="full", server_reference="b:1")))
    assert "full" in str(script.ended.error)
    assert "b:1" in str(script.ended.error)


def test_session_is_kept_over_a_break_and_given_up_at_the_end(make: Make) -> None:
    script = make()
    script.core.connect(now=0)
    script.expect(Connect, clean_start=True)
    assert script.last == Connect(
        "c",
        V5,
        True,
        60,
        properties=Properties(
            session_expiry_s=60,
            receive_maximum=1000,
            topic_alias_maximum=64,
            request_response_information=1,
        ),
    )
    script.reply(ConnAck()).lose().core.connect(now=0)
    script.expect(Connect, clean_start=False).reply(ConnAck(session_present=True))
    script.core.disconnect(now=0)
    script.expect(Disconnect, reason_code=0, properties=Properties(session_expiry_s=0))


def test_session_with_a_time_of_its_own_outlives_disconnect(make: Make) -> None:
    script = make(session_expiry_s=3600, clean_start=False).connect(ConnAck(session_present=True))
    script.core.disconnect(now=0)
    script.expect(Disconnect, properties=Properties())


def test_v311_clean_session_stays_clean(make: Make) -> None:
    script = make(V311).connect().lose()
    script.core.connect(now=0)
    script.expect(Connect, clean_start=True)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (ConnAck(session_present=True), "MQTT-3.2.2-4"),
        (PingResp(), "MQTT-3.2.0-1"),
        (Publish("a"), "MQTT-3.2.0-1"),
    ],
)
def test_bad_first_answer_ends_it(make: Make, answer: Packet, rule: str) -> None:
    script = make().connect(answer)  # type: ignore[arg-type]
    assert rule in str(script.ended.error)
    script.expect_nothing()  # no DISCONNECT before CONNACK


# --- publish ----------------------------------------------------------------------------------------


@both_versions
def test_qos_0_is_sent_and_forgotten(make: Make, version: int) -> None:
    script = make(version).connect()
    assert script.publish("a", b"1") == 0
    script.expect(Publish, topic="a", payload=b"1", qos=0).expect_nothing()


@both_versions
def test_qos_1_completes_with_puback(make: Make, version: int) -> None:
    script = make(version).connect()
    token = script.publish("a", qos=1)
    script.expect(Publish, qos=1, packet_id=1, dup=False).reply(PubAck(1))
    assert script.take(Completed) == [Completed(token)]


@both_versions
def test_qos_2_completes_with_pubcomp(make: Make, version: int) -> None:
    script = make(version).connect()
    token = script.publish("a", qos=2)
    script.expect(Publish, qos=2, packet_id=1).reply(PubRec(1))
    assert script.take(Completed) == []
    script.expect(PubRel, packet_id=1).reply(PubComp(1))
    assert script.take(Completed) == [Completed(token)]


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck(1, 0x87)), (2, PubRec(1, 0x97))])
def test_refused_publish_fails_and_frees_its_id(make: Make, qos: int, answer: Packet) -> None:
    script = make().connect(ConnAck(properties=Properties(receive_maximum=1)))
    token = script.publish("a", qos=qos)
    script.publish("b", qos=1)
    script.expect(Publish, topic="a").expect_nothing().reply(answer)
    [failed] = script.take(Failed)
    assert isinstance(failed, Failed)
    assert (failed.token, failed.error.__class__) == (token, PublishRefused)
    script.expect(Publish, topic="b")


def test_no_more_than_the_receive_maximum_is_under_way(make: Make) -> None:
    script = make().connect(ConnAck(properties=Properties(receive_maximum=2)))
    for topic in "abcd":
        script.publish(topic, qos=1)
    script.expect(Publish, topic="a").expect(Publish, topic="b").expect_nothing()
    script.reply(PubAck(2)).expect(Publish, topic="c").expect_nothing()
    script.reply(PubAck(1), PubAck(3)).expect(Publish, topic="d")


def test_packet_ids_wrap_around_those_in_use() -> None:
    script = Script(MqttSettings(client_id="c")).connect()
    script.publish("long", qos=2)
    script.expect(Publish, packet_id=1)
    for _ in range(65_534):
        script.publish("a", qos=1)
        script.expect(Publish)
        assert isinstance(script.last, Publish)
        script.reply(PubAck(script.last.packet_id))
    script.publish("a", qos=1)
    script.expect(Publish, packet_id=2)


@pytest.mark.parametrize(
    ("properties", "retain", "payload", "reason"),
    [
        (Properties(maximum_qos=0), False, b"", ReasonCode.QOS_NOT_SUPPORTED),
        (Properties(retain_available=0), True, b"", ReasonCode.RETAIN_NOT_SUPPORTED),
        (Properties(maximum_packet_size=20), False, b"x" * 20, ReasonCode.PACKET_TOO_LARGE),
    ],
)
def test_what_the_broker_announced_not_to_take_is_not_sent(
    make: Make, properties: Properties, retain: bool, payload: bytes, reason: ReasonCode
) -> None:
    script = make().connect(ConnAck(properties=properties))
    with pytest.raises(PublishRefused) as caught:
        script.publish("a", payload, 1, retain)
    assert caught.value.reason_code == reason
    script.expect_nothing()


def test_limits_that_come_with_a_new_connection_fail_what_waits(make: Make) -> None:
    script = make()
    token = script.publish("a", b"x" * 50, 1)
    script.connect(ConnAck(properties=Properties(maximum_packet_size=30)))
    [failed] = script.take(Failed)
    assert isinstance(failed, Failed)
    assert failed.token == token
    script.expect_nothing()


@pytest.mark.parametrize("topic", ["", "a/+", "a/#", "nul\0", "x" * 70_000])
@pytest.mark.parametrize("qos", [0, 1])
def test_bad_topic_is_the_callers_fault(make: Make, topic: str, qos: int) -> None:
    script = make().connect()
    with pytest.raises(UsageError):
        script.publish(topic, qos=qos)
    script.expect_nothing()


def test_withdrawn_publish_is_never_sent(make: Make) -> None:
    script = make()
    token = script.publish("a", qos=1)
    assert script.core.abandon(token, now=script.now)
    script.connect().expect_nothing()


def test_sent_publish_cannot_be_withdrawn(make: Make) -> None:
    script = make().connect()
    token = script.publish("a", qos=1)
    assert not script.core.abandon(token, now=script.now)


# --- receive ----------------------------------------------------------------------------------------


@both_versions
def test_qos_1_is_acknowledged_when_handled(make: Make, version: int) -> None:
    script = make(version).connect().reply(Publish("a", b"1", 1, packet_id=7))
    [received] = script.take(Received)
    script.expect_nothing().handle(received).expect(PubAck, packet_id=7)
    script.handle(received).expect_nothing()


@both_versions
def test_qos_2_is_delivered_once(make: Make, version: int) -> None:
    script = make(version).connect().reply(Publish("a", b"1", 2, packet_id=7))
    [received] = script.take(Received)
    script.handle(received).expect(PubRec, packet_id=7)
    script.reply(Publish("a", b"1", 2, dup=True, packet_id=7)).expect(PubRec, packet_id=7)
    script.reply(PubRel(7)).expect(PubComp, packet_id=7, reason_code=0)
    assert script.take(Received) == []
    script.reply(Publish("a", b"2", 2, packet_id=7))
    assert len(script.take(Received)) == 1


def test_unknown_release_is_answered(make: Make) -> None:
    make().connect().reply(PubRel(9)).expect(PubComp, reason_code=ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


def test_unknown_received_is_released(make: Make) -> None:
    make().connect().reply(PubRec(9)).expect(PubRel, reason_code=ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


def test_broker_that_overruns_our_receive_maximum_is_cut_off(make: Make) -> None:
    script = make(receive_maximum=2).connect()
    script.reply(*(Publish("a", qos=1, packet_id=n) for n in (1, 2, 3)))
    assert script.ended.error.reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED  # type: ignore[attr-defined]
    script.expect(Disconnect, reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


def test_topic_alias_stands_for_its_topic(make: Make) -> None:
    alias = Properties(topic_alias=3)
    script = make().connect().reply(Publish("a", b"1", properties=alias), Publish("", b"2", properties=alias))
    script.reply(Publish("b", b"3", properties=alias), Publish("", b"4", properties=alias))
    topics = [event.message.topic for event in script.take(Received) if isinstance(event, Received)]
    assert topics == ["a", "a", "b", "b"]


@pytest.mark.parametrize("alias", [1, 65])
def test_unknown_topic_alias_ends_the_connection(make: Make, alias: int) -> None:
    topic = "" if alias == 1 else "a"
    script = (
        make(topic_alias_maximum=64).connect().reply(Publish(topic, properties=Properties(topic_alias=alias)))
    )
    assert isinstance(script.ended.error, ConnectionLost)
    script.expect(Disconnect, reason_code=ReasonCode.TOPIC_ALIAS_INVALID)


def test_topic_aliases_end_with_the_connection(make: Make) -> None:
    alias = Properties(topic_alias=3)
    script = make().connect().reply(Publish("a", properties=alias)).reconnect(session_present=True)
    script.reply(Publish("", properties=alias))
    assert isinstance(script.ended, Ended)


def test_subscription_identifiers_are_passed_on(make: Make) -> None:
    script = make().connect().reply(Publish("a", properties=Properties(subscription_identifiers=(4, 5))))
    [received] = script.take(Received)
    assert isinstance(received, Received)
    assert received.identifiers == (4, 5)


# --- subscribe --------------------------------------------------------------------------------------


@both_versions
def test_subscribe_and_unsubscribe(make: Make, version: int) -> None:
    script = make(version).connect()
    token = script.subscribe("a/#", 1)
    script.expect(Subscribe, packet_id=1).reply(SubAck(1, (1,)))
    assert script.take(Completed) == [Completed(token)]
    token = script.core.unsubscribe("a/#", now=0)
    script.expect(Unsubscribe, topic_filters=("a/#",), packet_id=2)
    script.reply(UnsubAck(2, (0,) if version == V5 else ()))
    assert script.take(Completed) == [Completed(token)]


def test_identifier_is_asked_for_where_the_broker_has_them(make: Make) -> None:
    script = make().connect()
    script.subscribe("a", identifier=9)
    script.expect(Subscribe, properties=Properties(subscription_identifiers=(9,)))
    script = make().connect(ConnAck(properties=Properties(subscription_identifiers_available=0)))
    script.subscribe("a", identifier=9)
    script.expect(Subscribe, properties=Properties())


@pytest.mark.parametrize(("version", "code"), [(V5, 0x87), (V311, 0x80)])
def test_refused_subscription_fails(make: Make, version: int, code: int) -> None:
    script = make(version).connect()
    token = script.subscribe("a")
    script.expect(Subscribe).reply(SubAck(1, (code,)))
    [failed] = script.take(Failed)
    assert isinstance(failed, Failed)
    assert (failed.token, failed.error.__class__) == (token, SubscribeRefused)


def test_refused_unsubscribe_fails(make: Make) -> None:
    script = make().connect()
    script.core.unsubscribe("a", now=0)
    script.expect(Unsubscribe).reply(UnsubAck(1, (0x87,)))
    [failed] = script.take(Failed)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UnsubscribeRefused)


@pytest.mark.parametrize(
    ("topic_filter", "properties"),
    [
        ("a/#", Properties(wildcard_subscription_available=0)),
        ("$share/g/a", Properties(shared_subscription_available=0)),
    ],
)
def test_filter_the_broker_announced_not_to_take(make: Make, topic_filter: str, properties: Properties) -> None:
    script = make().connect(ConnAck(properties=properties))
    with pytest.raises(SubscribeRefused):
        script.subscribe(topic_filter)
    script.expect_nothing()


# --- reconnect --------------------------------------------------------------------------------------


@both_versions
def test_unacknowledged_publish_is_sent_again(make: Make, version: int) -> None:
    script = make(version, clean_start=False).connect()
    token = script.publish("a", qos=1)
    script.expect(Publish, packet_id=1, dup=False).reconnect(session_present=True)
    script.expect(Publish, packet_id=1, dup=True).reply(PubAck(1))
    assert script.events[-1] == Completed(token)


def test_publish_is_new_to_a_broker_without_the_session(make: Make) -> None:
    script = make().connect()
    script.publish("a", qos=2)
    script.expect(Publish, packet_id=1).reconnect(session_present=False)
    script.expect(Publish, packet_id=1, dup=False)
    assert script.accepted.resent == 1


def test_release_is_sent_again_and_before_publishes(make: Make) -> None:
    script = make().connect()
    first, second = script.publish("a", qos=2), script.publish("b", qos=2)
    script.expect(Publish, topic="a").expect(Publish, topic="b").reply(PubRec(1)).expect(PubRel)
    script.reconnect(session_present=True)
    script.expect(PubRel, packet_id=1).expect(Publish, topic="b", dup=True).expect_nothing()
    script.reply(PubComp(1), PubRec(2)).expect(PubRel).reply(PubComp(2))
    assert script.take(Completed) == [Completed(first), Completed(second)]


def test_released_publish_is_complete_when_the_broker_lost_the_session(make: Make) -> None:
    script = make().connect()
    token = script.publish("a", qos=2)
    script.expect(Publish).reply(PubRec(1)).expect(PubRel).reconnect(session_present=False)
    assert script.events[-1] == Completed(token)
    script.expect_nothing()


def test_resending_keeps_to_a_smaller_receive_maximum(make: Make) -> None:
    script = make().connect()
    for topic in "abc":
        script.publish(topic, qos=1)
    script.expect(Publish).expect(Publish).expect(Publish).reconnect(session_present=True, receive_maximum=1)
    script.expect(Publish, topic="a", dup=True).expect_nothing()
    script.reconnect(session_present=True, receive_maximum=1)
    script.expect(Publish, topic="a", dup=True).reply(PubAck(1))
    script.expect(Publish, topic="b", dup=True).reply(PubAck(2)).expect(Publish, topic="c", dup=True)


def test_what_is_published_without_a_connection_waits_in_order(make: Make) -> None:
    script = make()
    tokens = [script.publish("a", qos=1), script.publish("b", qos=2)]
    script.connect().expect(Publish, topic="a", dup=False).expect(Publish, topic="b")
    script.reply(PubAck(1), PubRec(2)).expect(PubRel).reply(PubComp(2))
    assert script.take(Completed) == [Completed(token) for token in tokens]
    with pytest.raises(UsageError, match="QoS 0"):
        make().publish("a")


def test_subscriptions_are_renewed_when_the_session_is_gone(make: Make) -> None:
    script = make().connect()
    script.subscribe("a", 2, identifier=5)
    script.expect(Subscribe).reply(SubAck(1, (2,))).reconnect(session_present=False)
    assert script.accepted.renewed == ("a",)
    script.expect(Subscribe, properties=Properties(subscription_identifiers=(5,)))
    script.reply(SubAck(2, (2,))).reconnect(session_present=True).expect_nothing()


def test_renewal_that_is_refused_is_reported(make: Make) -> None:
    script = make().connect()
    script.subscribe("a")
    script.expect(Subscribe).reply(SubAck(1, (1,))).reconnect(session_present=False)
    script.expect(Subscribe).reply(SubAck(2, (0x87,)))
    assert isinstance(script.events[-1], RenewalRefused)
    script.reconnect(session_present=False).expect_nothing()


def test_unanswered_subscribe_is_asked_again(make: Make) -> None:
    script = make().connect()
    token = script.subscribe("a")
    script.expect(Subscribe).reconnect(session_present=True)
    script.expect(Subscribe).reply(SubAck(2, (1,)))
    assert script.events[-1] == Completed(token)


def test_subscription_ended_without_a_connection_is_not_renewed(make: Make) -> None:
    script = make().connect()
    script.subscribe("a")
    script.expect(Subscribe).reply(SubAck(1, (1,))).lose()
    script.core.unsubscribe("a", now=0)
    script.connect().expect(Unsubscribe).expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_message_repeated_after_a_reconnect_is_delivered_once(make: Make, qos: int) -> None:
    script = make().connect().reply(Publish("a", b"1", qos, packet_id=7))
    [received] = script.take(Received)
    script.reconnect(session_present=True).reply(Publish("a", b"1", qos, dup=True, packet_id=7))
    assert script.take(Received) == []
    script.expect_nothing().handle(received).expect(PubAck if qos == 1 else PubRec, packet_id=7)


@pytest.mark.parametrize("qos", [1, 2])
def test_message_handled_during_a_break_is_acknowledged_when_repeated(make: Make, qos: int) -> None:
    script = make().connect().reply(Publish("a", b"1", qos, packet_id=7))
    [received] = script.take(Received)
    script.lose().handle(received).connect(ConnAck(session_present=True)).expect_nothing()
    script.reply(Publish("a", b"1", qos, dup=True, packet_id=7)).expect(PubAck if qos == 1 else PubRec)
    assert script.take(Received) == []


def test_receipt_of_a_lost_session_acknowledges_nothing(make: Make) -> None:
    script = make().connect().reply(Publish("a", b"1", 1, packet_id=7))
    [old] = script.take(Received)
    script.reconnect(session_present=False).reply(Publish("b", b"2", 1, packet_id=7))
    [new] = script.take(Received)
    script.handle(old).expect_nothing().handle(new).expect(PubAck, packet_id=7)


# --- the end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "may_retry"),
    [(ReasonCode.SERVER_SHUTTING_DOWN, True), (ReasonCode.SESSION_TAKEN_OVER, False)],
)
def test_brokers_disconnect_says_why(make: Make, reason: ReasonCode, may_retry: bool) -> None:
    script = make().connect().reply(Disconnect(reason))
    assert isinstance(script.ended.error, ConnectionLost)
    assert script.ended.error.reason_code == reason
    assert script.ended.may_retry is may_retry


@pytest.mark.parametrize(
    "packet",
    [
        Connect("x", V5),
        ConnAck(),
        Subscribe(1, ()),
        SubAck(9, (0,)),
        UnsubAck(9, (0,)),
        PingReq(),
        Auth(0x18, Properties(authentication_method="m")),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_what_a_broker_must_not_send_ends_the_connection(make: Make, packet: Packet) -> None:
    data = b"\x82\x06\x00\x01\x00\x00\x01a"[:8] if isinstance(packet, Subscribe) else encode(packet, V5)
    script = make().connect().reply_bytes(data)
    assert isinstance(script.ended.error, ConnectionLost)
    script.expect(Disconnect).expect_nothing()
    assert script.core.state is State.IDLE
    script.reply(PingResp()).expect_nothing()


@pytest.mark.parametrize(("sent_qos", "answer"), [(1, PubRec(1)), (2, PubAck(1)), (2, PubComp(1))])
def test_answer_of_the_wrong_kind_ends_the_connection(make: Make, sent_qos: int, answer: Packet) -> None:
    script = make().connect()
    script.publish("a", qos=sent_qos)
    script.expect(Publish).reply(answer).expect(Disconnect, reason_code=ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("data", [b"\x00\x00", b"\x30\xff\xff\xff\xff\x01", b"\x36\x03\x00\x01a", b"\x20\x00"])
def test_malformed_bytes_end_the_connection(make: Make, data: bytes) -> None:
    script = make().connect().reply_bytes(data)
    assert isinstance(script.ended.error, ConnectionLost)
    script.expect(Disconnect)


def test_packet_larger_than_we_take_ends_the_connection(make: Make) -> None:
    script = make(maximum_packet_size=100).connect().reply(Publish("a", b"x" * 200))
    script.expect(Disconnect, reason_code=ReasonCode.PACKET_TOO_LARGE)


# --- keep alive -------------------------------------------------------------------------------------


def test_ping_in_time_and_life_after_the_answer(make: Make) -> None:
    script = make(keep_alive_s=40).connect()
    assert script.core.deadline() == script.now + 30
    script.wait(29.9).expect_nothing().wait(0.1).expect(PingReq).reply(PingResp())
    script.wait(29.9).expect_nothing().wait(0.1).expect(PingReq)


def test_silence_after_a_ping_is_a_loss(make: Make) -> None:
    script = make(keep_alive_s=40).connect().wait(30).expect(PingReq).wait(9.9)
    assert not any(isinstance(event, Ended) for event in script.events)
    assert "ping" in str(script.wait(0.1).ended.error)


def test_silence_does_not_count_while_we_do_not_read(make: Make) -> None:
    script = make(keep_alive_s=40).connect().wait(30).expect(PingReq)
    script.now += 10
    assert script.core.tick(now=script.now, is_reading=False) == []
    script.expect(PingReq)


def test_any_byte_after_a_ping_is_a_sign_of_life(make: Make) -> None:
    script = make(keep_alive_s=40).connect().wait(30).expect(PingReq).reply(Publish("a"))
    script.wait(20).expect_nothing()
    assert script.core.state is State.CONNECTED


def test_publisher_of_qos_0_pings_a_silent_broker(make: Make) -> None:
    script = make(keep_alive_s=40).connect()
    script.now += 29
    script.publish("a")
    script.expect(Publish).wait(1).expect(PingReq)


@pytest.mark.parametrize(("server_s", "deadline"), [(4, 103.0), (0, None)])
def test_servers_keep_alive_replaces_ours(make: Make, server_s: int, deadline: float | None) -> None:
    script = make().connect(ConnAck(properties=Properties(server_keep_alive_s=server_s)))
    assert script.core.deadline() == deadline
