"""CONNECT and CONNACK (sections 3.1 and 3.2): who gets in, what the answer says, and for how long."""

import string

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.session.mqtt import MqttOptions
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Properties,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Will,
)

from . import raw
from .harness import Bus
from .rules import Row, rules, table
from .stand_ins import OnlyAlice

CONNACK_CODES = {
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95),
    *(0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
}


# -- client ids ------------------------------------------------------------------------------------

CHARACTERS = string.digits + string.ascii_letters


@pytest.mark.parametrize(
    "client_id", ["a", "Z", "0", "a" * 23, *(CHARACTERS[i : i + 23] for i in range(0, 62, 23))]
)
@rules(v311="MQTT-3.1.3-5", v5="MQTT-3.1.3-5")
def test_letters_and_digits_up_to_23_are_accepted(bus: Bus, client_id: str) -> None:
    bus.connect(client_id).expect_nothing()


@rules(v311="MQTT-3.1.3-6", v5="MQTT-3.1.3-6 MQTT-3.2.2-16", wire=True)
def test_empty_client_ids_are_different_clients(bus: Bus) -> None:
    one, two = bus.connect(""), bus.connect("")
    one.subscribe("t")
    two.subscribe("t")
    bus.connect("p").publish("t", b"x")
    one.expect(Publish("t", b"x"))
    two.expect(Publish("t", b"x"))
    if bus.version >= V5:
        ids = {c.connack.properties.assigned_client_id for c in (one, two)}
        assert len(ids) == 2
        assert all(ids)


@rules(v5="MQTT-3.1.3-7 MQTT-3.2.2-16 MQTT-3.1.3-2")
def test_an_assigned_client_id_names_the_session(bus: Bus) -> None:
    first = bus.connect("", keeps=True)
    assigned = first.connack.properties.assigned_client_id
    assert assigned
    first.subscribe("t", qos=1)
    first.disconnect()
    again = bus.connect(assigned, keeps=True)
    assert again.connack.session_present
    assert again.connack.properties.assigned_client_id is None
    bus.connect("p").publish("t", b"x", qos=1)
    again.expect(Publish, topic="t", payload=b"x")


@rules(v311="MQTT-3.1.3-7 MQTT-3.1.3-8 MQTT-3.1.3-9 MQTT-3.2.2-4 MQTT-3.2.2-5", wire=True)
def test_an_empty_client_id_must_be_clean(bus: Bus) -> None:
    client = bus.open()
    client.send_raw(raw.connect(V311, raw.text(""), flags=0x00))
    client.expect(ConnAck(2))
    client.expect_closed_silently()


@rules(v311="MQTT-3.1.3-2", v5="MQTT-3.1.3-2")
def test_sessions_go_by_client_id(bus: Bus) -> None:
    one = bus.connect("one", keeps=True)
    one.subscribe("t", qos=1)
    one.disconnect()
    other = bus.connect("two", keeps=True)
    assert not other.connack.session_present
    bus.connect("p").publish("t", b"x", qos=1)
    other.expect_nothing()
    again = bus.connect("one", keeps=True)
    again.expect(Publish, topic="t", payload=b"x")


# -- refusals --------------------------------------------------------------------------------------


@rules(
    v311="MQTT-3.2.2-4 MQTT-3.2.2-5",
    v5="MQTT-3.1.4-2 MQTT-3.2.2-6 MQTT-3.2.2-7 MQTT-4.13.2-1",
    wire=True,
)
def test_a_wrong_password_is_refused_even_for_a_kept_session(bus: Bus) -> None:
    bus.configure(access=Access(authenticator=OnlyAlice()))
    known = bus.connect("c", keeps=True, user_name="alice", password=b"secret")
    known.disconnect()
    client = bus.open()
    client.send(bus.connect_packet("c", keeps=True, user_name="alice", password=b"wrong"))
    code = ReasonCode.BAD_USER_NAME_OR_PASSWORD if bus.version >= V5 else 4
    client.expect(ConnAck(code, session_present=False))
    client.expect_closed_silently()


@rules(v311="MQTT-3.2.2-4 MQTT-3.2.2-5", v5="MQTT-3.1.4-2 MQTT-3.2.2-7")
def test_an_unwelcome_client_is_refused(bus: Bus) -> None:
    bus.configure(access=Access(authenticator=OnlyAlice()))
    client = bus.open()
    client.send(bus.connect_packet("c", user_name="bob", password=b"secret"))
    client.expect(ConnAck(ReasonCode.NOT_AUTHORIZED if bus.version >= V5 else 5))
    client.expect_closed_silently()


@rules(v311="MQTT-3.1.4-5", v5="MQTT-3.1.4-6", wire=True)
def test_nothing_after_a_refused_connect_is_processed(bus: Bus) -> None:
    bus.configure(access=Access(authenticator=OnlyAlice()))
    watcher = bus.connect("w", user_name="alice", password=b"secret")
    watcher.subscribe("#")
    client = bus.open()
    client.send(bus.connect_packet("c", user_name="bob"), Publish("t", b"x", retain=True))
    client.expect(ConnAck)
    client.expect_closed_silently()
    watcher.expect_nothing()
    late = bus.connect("late", user_name="alice", password=b"secret")
    late.subscribe("#")
    late.expect_nothing()


@rules(v311="MQTT-3.1.4-5", v5="MQTT-3.1.4-6")
def test_nothing_is_processed_while_the_refusal_is_decided(bus: Bus) -> None:
    gate = OnlyAlice(later=True)
    bus.configure(access=Access(authenticator=gate))
    watcher = bus.open()
    watcher.send(bus.connect_packet("w", user_name="alice", password=b"secret"))
    gate.decide()
    bus.settle()
    watcher.expect(ConnAck, reason_code=0)
    watcher.subscribe("#")
    client = bus.open()
    client.send(bus.connect_packet("c", user_name="bob"), Publish("t", b"x"))
    assert client.received() == []
    gate.decide()
    bus.settle()
    client.expect(ConnAck)
    client.expect_closed_silently()
    watcher.expect_nothing()


@rules(v311="MQTT-3.1.4-2 MQTT-3.1.4-4", v5="MQTT-3.1.4-3 MQTT-3.2.0-2")
def test_a_welcome_for_a_connection_that_is_gone_does_nothing(bus: Bus) -> None:
    gate = OnlyAlice(later=True)
    bus.configure(access=Access(authenticator=gate))
    gone = bus.open()
    gone.send(bus.connect_packet("c", user_name="alice", password=b"secret"))
    gone.drop()
    here = bus.open()
    here.send(bus.connect_packet("c", user_name="alice", password=b"secret"))
    gate.decide()
    bus.settle()
    here.expect(ConnAck, reason_code=0)
    here.expect_nothing()


@rules(v311="MQTT-3.2.0-1 MQTT-3.1.4-4", v5="MQTT-3.2.0-1 MQTT-3.1.4-5")
def test_what_came_while_the_welcome_was_decided_is_processed_after_it(bus: Bus) -> None:
    gate = OnlyAlice(later=True)
    bus.configure(access=Access(authenticator=gate))
    client = bus.open()
    packets = (Subscribe(1, (SubscriptionRequest("t"),)), Publish("t", b"x"), PingReq())
    client.send(bus.connect_packet("c", user_name="alice", password=b"secret"), *packets)
    assert client.received() == []
    gate.decide()
    bus.settle()
    client.expect(ConnAck, reason_code=0)
    assert {type(p).__name__ for p in client.received()} == {"SubAck", "Publish", "PingResp"}


REFUSALS = {
    "bad-password": lambda v: Connect("c", v, user_name="alice", password=b"wrong"),
    "not-welcome": lambda v: Connect("c", v, user_name="bob"),
    "bad-method": lambda v: Connect("c", v, properties=Properties(authentication_method="none-such")),
}


@table("make", [Row(name, make, v5="MQTT-3.2.2-8 MQTT-3.2.2-1") for name, make in REFUSALS.items()])
def test_refusals_use_connack_reason_codes(bus: Bus, make: object) -> None:
    bus.configure(access=Access(authenticator=OnlyAlice()))
    client = bus.open()
    client.send(make(V5))  # type: ignore[operator]
    client.expect(ConnAck)
    acknowledge_flags, code = client.last_frame[2], client.last_frame[3]
    assert acknowledge_flags == 0
    assert code in CONNACK_CODES - {0}


@rules(v5="MQTT-3.2.2-1 MQTT-3.2.2-8")
def test_the_reserved_acknowledge_flags_are_zero(bus: Bus) -> None:
    client = bus.connect("c", keeps=True)
    assert client.last_frame[2:4] == b"\x00\x00"
    client.disconnect()
    assert bus.connect("c", keeps=True).last_frame[2:4] == b"\x01\x00"


@rules(v311="MQTT-3.1.3-9 MQTT-3.2.2-5", v5="MQTT-3.1.3-8 MQTT-3.2.2-7 MQTT-4.13.2-1")
def test_a_refused_client_id_closes(bus: Bus) -> None:
    bus.configure(options=MqttOptions(allow_zero_length_client_id=False))
    client = bus.open()
    client.send(bus.connect_packet(""))
    client.expect(ConnAck(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if bus.version >= V5 else 2))
    client.expect_closed_silently()


# -- takeover --------------------------------------------------------------------------------------


@rules(v311="MQTT-3.1.4-2", v5="MQTT-3.1.4-3 MQTT-3.14.4-2", wire=True)
def test_the_same_client_id_again_ends_the_older_connection(bus: Bus) -> None:
    old = bus.connect("c")
    new = bus.connect("c")
    old.expect_closed(ReasonCode.SESSION_TAKEN_OVER)
    new.expect_nothing()


@rules(v311="MQTT-3.1.4-2 MQTT-3.1.2-4", v5="MQTT-3.1.4-3 MQTT-3.1.2-5")
def test_a_takeover_keeps_the_session(bus: Bus) -> None:
    old = bus.connect("c", keeps=True)
    old.subscribe("t", qos=1)
    new = bus.connect("c", keeps=True)
    assert new.connack.session_present
    old.expect_closed(ReasonCode.SESSION_TAKEN_OVER)
    bus.connect("p").publish("t", b"x", qos=1)
    new.expect(Publish, topic="t", payload=b"x")


# -- keep alive ------------------------------------------------------------------------------------


@rules(v311="MQTT-3.1.2-24", v5="MQTT-3.1.2-22 MQTT-3.2.2-22")
def test_silence_for_one_and_a_half_keep_alives_is_a_network_failure(bus: Bus) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("will")
    client = bus.connect("c", keep_alive_s=10, will=Will("will", b"gone"))
    assert client.connack.properties.server_keep_alive_s is None
    bus.advance(14)
    client.expect_nothing()
    bus.advance(2.5)
    client.expect_closed(ReasonCode.KEEP_ALIVE_TIMEOUT)
    watcher.expect(Publish("will", b"gone"))


@pytest.mark.parametrize("packet", [PingReq(), Publish("t"), Subscribe(1, (SubscriptionRequest("t"),))])
@rules(v311="MQTT-3.1.2-24", v5="MQTT-3.1.2-22")
def test_any_packet_keeps_a_connection_alive(bus: Bus, packet: PingReq | Publish | Subscribe) -> None:
    client = bus.connect("c", keep_alive_s=10)
    for _ in range(4):
        bus.advance(9)
        client.send(packet)
        client.received()
    bus.advance(9)
    client.expect_nothing()
    bus.advance(8)
    client.expect_closed(ReasonCode.KEEP_ALIVE_TIMEOUT)


@rules(v311="MQTT-3.1.2-24", v5="MQTT-3.1.2-22 MQTT-3.2.2-22")
def test_what_the_server_sends_does_not_keep_a_client_alive(bus: Bus) -> None:
    client = bus.connect("c", keep_alive_s=10)
    client.subscribe("t")
    other = bus.connect("p")
    for _ in range(3):
        bus.advance(4.5)
        other.publish("t", b"x")
    bus.advance(3)
    for _ in range(3):
        client.expect(Publish("t", b"x"))
    client.expect_closed(ReasonCode.KEEP_ALIVE_TIMEOUT)


@rules(v311="MQTT-3.1.2-24", v5="MQTT-3.2.2-22")
def test_keep_alive_0_never_ends(bus: Bus) -> None:
    client = bus.connect("c", keep_alive_s=0)
    bus.advance(100_000)
    client.expect_nothing()


@rules(v5="MQTT-3.1.2-22")
def test_a_server_keep_alive_is_what_the_server_measures_by(bus: Bus) -> None:
    bus.configure(limits=Limits(keep_alive_s=20))
    client = bus.connect("c", keep_alive_s=100)
    assert client.connack.properties.server_keep_alive_s == 20
    bus.advance(29)
    client.expect_nothing()
    bus.advance(3)
    client.expect_closed(ReasonCode.KEEP_ALIVE_TIMEOUT)


@rules(v311="MQTT-3.1.2-24")
def test_a_client_that_cannot_be_told_another_keep_alive_keeps_its_own(bus: Bus) -> None:
    bus.configure(limits=Limits(keep_alive_s=20))
    client = bus.connect("c", keep_alive_s=100)
    bus.advance(149)
    client.expect_nothing()
    bus.advance(3)
    client.expect_closed()


# -- what a client asks for in CONNECT -------------------------------------------------------------


@rules(v5="MQTT-3.1.2-28")
def test_response_information_is_sent_only_if_asked_for(bus: Bus) -> None:
    bus.configure(options=MqttOptions(response_information="answers/"))
    for asked, told in ((None, None), (0, None), (1, "answers/")):
        client = bus.connect("c", request_response_information=asked)
        assert client.connack.properties.response_information == told


@rules(v311="MQTT-3.12.4-1", v5="MQTT-3.12.4-1", wire=True)
def test_pingreq_is_answered(bus: Bus) -> None:
    client = bus.connect("c")
    client.send(PingReq(), PingReq())
    client.expect(PingResp())
    client.expect(PingResp())
    client.expect_nothing()
