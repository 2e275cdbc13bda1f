"""CONNECT and CONNACK (sections 3.1 and 3.2): who gets in, and what the answer says."""

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
from .access import OnlyAlice, Recording
from .harness import Bus
from .rules import Row, rules, table

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)

CONNACK_CODES = {
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95),
    *(0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
}


# -- the first packet, and no second one -----------------------------------------------------------

NOT_CONNECT = {
    "connack": "20020000",
    "publish": "30060003612f6278",
    "puback": "40020001",
    "subscribe": "8206000100016100",
    "pingreq": "c000",
    "disconnect": "e000",
    "auth": "f000",
}


@table(
    "data",
    [
        Row(name, data, v311="MQTT-3.1.0-1 MQTT-4.8.0-1", v5="MQTT-3.1.0-1 MQTT-3.14.0-1 MQTT-3.2.0-1")
        for name, data in NOT_CONNECT.items()
    ],
)
def test_another_first_packet_closes_without_a_word(bus: Bus, data: str) -> None:
    client = bus.open()
    client.send_raw(data)
    client.expect_closed_silently()


@rules(v311="MQTT-3.1.0-2 MQTT-4.8.0-1", v5="MQTT-3.1.0-2 MQTT-3.2.0-2 MQTT-4.13.1-1", wire=True)
def test_a_second_connect_ends_the_connection(bus: Bus) -> None:
    client = bus.connect("c")
    client.send(bus.connect_packet("c"))
    client.expect_closed(ReasonCode.PROTOCOL_ERROR)


@rules(v5="MQTT-3.2.0-2")
def test_one_connack_whatever_follows(bus: Bus) -> None:
    client = bus.open()
    client.send(bus.connect_packet("c"), PingReq(), Publish("a"), PingReq())
    client.expect(ConnAck, reason_code=0)
    assert client.received() == [PingResp(), PingResp()]


@rules(v311="MQTT-3.2.0-1 MQTT-3.1.4-4", v5="MQTT-3.2.0-1 MQTT-3.1.4-5", wire=True)
def test_connack_goes_before_what_waited(bus: Bus) -> None:
    away = bus.connect("s", keeps=True)
    away.subscribe("t", qos=1)
    away.disconnect()
    bus.connect("p").publish("t", b"waited", qos=1)
    again = bus.open()
    again.send(bus.connect_packet("s", keeps=True))
    again.expect(ConnAck(0, session_present=True))
    again.expect(Publish, topic="t", payload=b"waited")


@rules(v311="MQTT-3.2.0-1", v5="MQTT-3.2.0-1 MQTT-3.1.4-5")
def test_packets_sent_along_with_connect_are_answered_after_connack(bus: Bus) -> None:
    client = bus.open()
    client.send(bus.connect_packet("c"), Subscribe(1, (SubscriptionRequest("t"),)), Publish("t", b"x"))
    client.expect(ConnAck, reason_code=0)
    assert {type(p).__name__ for p in client.received()} == {"SubAck", "Publish"}


# -- name, level, reserved flag --------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"MQT", b"MQTTT", b"", b"MQIsdp"])
@rules(v311="MQTT-3.1.2-1", v5="MQTT-3.1.2-1")
def test_another_protocol_name_is_refused(bus: Bus, name: bytes) -> None:
    client = bus.open()
    client.send_raw(raw.connect(bus.version, name=name))
    assert client.expect_closed_after() in ("", "20020001", "2003008400")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@rules(v311="MQTT-3.1.2-2 MQTT-3.2.2-4 MQTT-3.2.2-5")
def test_an_unknown_level_gets_return_code_1(bus: Bus, level: int) -> None:
    client = bus.open()
    client.send_raw(raw.connect(V311, level=level))
    assert client.expect_closed_after() == "20020001"


@pytest.mark.parametrize("level", [6, 7, 0x7F])
@rules(v311="MQTT-3.1.2-2", v5="MQTT-3.1.2-2 MQTT-3.2.2-7 MQTT-4.13.2-1")
def test_an_unknown_version_is_refused(bus: Bus, level: int) -> None:
    """Which form the answer has is open: the client speaks a version that does not exist yet."""
    client = bus.open()
    client.send_raw(raw.connect(bus.version, level=level))
    assert client.expect_closed_after() in ("20020001", "2003008400")


@rules(v311="MQTT-3.1.2-3 MQTT-3.1.4-1 MQTT-3.2.2-6", v5="MQTT-3.1.2-3 MQTT-3.1.4-1", wire=True)
def test_the_reserved_connect_flag_must_be_zero(bus: Bus) -> None:
    client = bus.open()
    client.send_raw(raw.connect(bus.version, flags=0x03))
    client.expect_malformed_connect()


# -- a payload that its flags do not announce ------------------------------------------------------

ID = raw.text("raw")
WILL, WILL_QOS_1, WILL_QOS_3, WILL_RETAIN, PASSWORD, USER = 0x04, 0x08, 0x18, 0x20, 0x40, 0x80
BAD_UTF8 = raw.text(b"\xc3\x28")
SURROGATE = raw.text(b"\xed\xa0\x80")
NULL = raw.text(b"a\x00b")


def _will(version: int, *fields: bytes) -> tuple[bytes, ...]:
    return (raw.no_properties(version), *fields)


BAD_CONNECTS = [
    Row(
        "will-qos-without-will",
        (WILL_QOS_1, lambda v: [ID]),
        v311="MQTT-3.1.2-13 MQTT-3.1.2-11 MQTT-3.1.4-1",
        v5="MQTT-3.1.2-11 MQTT-3.1.4-1",
    ),
    Row(
        "will-retain-without-will",
        (WILL_RETAIN, lambda v: [ID]),
        v311="MQTT-3.1.2-15 MQTT-3.1.2-11",
        v5="MQTT-3.1.2-13",
    ),
    Row(
        "will-fields-without-will",
        (0, lambda v: [ID, *_will(v, raw.text("w"), raw.text("x"))]),
        v311="MQTT-3.1.2-11 MQTT-3.1.4-1",
        v5="MQTT-3.1.4-1",
    ),
    Row(
        "will-qos-3",
        (WILL | WILL_QOS_3, lambda v: [ID, *_will(v, raw.text("w"), raw.text("x"))]),
        v311="MQTT-3.1.2-14",
        v5="MQTT-3.1.2-12",
    ),
    Row("will-missing", (WILL, lambda v: [ID]), v311="MQTT-3.1.2-9", v5="MQTT-3.1.2-9"),
    Row(
        "will-payload-missing",
        (WILL, lambda v: [ID, *_will(v, raw.text("w"))]),
        v311="MQTT-3.1.2-9",
        v5="MQTT-3.1.2-9",
    ),
    Row(
        "user-name-unannounced",
        (0, lambda v: [ID, raw.text("u")]),
        v311="MQTT-3.1.2-18",
        v5="MQTT-3.1.2-16",
    ),
    Row("user-name-missing", (USER, lambda v: [ID]), v311="MQTT-3.1.2-19", v5="MQTT-3.1.2-17"),
    Row(
        "password-unannounced",
        (USER, lambda v: [ID, raw.text("u"), raw.text("p")]),
        v311="MQTT-3.1.2-20",
        v5="MQTT-3.1.2-18",
    ),
    Row(
        "password-missing",
        (USER | PASSWORD, lambda v: [ID, raw.text("u")]),
        v311="MQTT-3.1.2-21",
        v5="MQTT-3.1.2-19",
    ),
    Row("password-without-user-name", (PASSWORD, lambda v: [ID, raw.text("p")]), v311="MQTT-3.1.2-22"),
    Row("client-id-missing", (0, lambda v: [b""]), v311="MQTT-3.1.3-3", v5="MQTT-3.1.3-3"),
    Row("client-id-cut-short", (0, lambda v: [b"\x00\x05ab"]), v311="MQTT-3.1.4-1", v5="MQTT-3.1.4-1"),
    Row(
        "client-id-not-utf8",
        (0, lambda v: [BAD_UTF8]),
        v311="MQTT-3.1.3-4 MQTT-1.5.3-1",
        v5="MQTT-3.1.3-4 MQTT-1.5.4-1",
    ),
    Row(
        "client-id-with-null",
        (0, lambda v: [NULL]),
        v311="MQTT-3.1.3-4 MQTT-1.5.3-2",
        v5="MQTT-3.1.3-4 MQTT-1.5.4-2",
    ),
    Row(
        "will-topic-not-utf8",
        (WILL, lambda v: [ID, *_will(v, SURROGATE, raw.text("x"))]),
        v311="MQTT-3.1.3-10 MQTT-1.5.3-1",
        v5="MQTT-3.1.3-11 MQTT-1.5.4-1",
    ),
    Row(
        "user-name-not-utf8",
        (USER, lambda v: [ID, BAD_UTF8]),
        v311="MQTT-3.1.3-11 MQTT-1.5.3-1",
        v5="MQTT-3.1.3-12 MQTT-1.5.4-1",
    ),
]


@table("case", BAD_CONNECTS)
def test_a_connect_that_is_not_well_formed_is_refused(bus: Bus, case: tuple[int, object]) -> None:
    flags, payload = case
    client = bus.open()
    client.send_raw(raw.connect(bus.version, *payload(bus.version), flags=0x02 | flags))  # type: ignore[operator]
    client.expect_malformed_connect()


@rules(v311="MQTT-2.2.2-2 MQTT-3.1.4-1", v5="MQTT-2.1.3-1 MQTT-3.1.4-1")
def test_connect_with_fixed_header_flags_is_refused(bus: Bus) -> None:
    client = bus.open()
    client.send_raw(raw.connect(bus.version, first_byte=0x11))
    client.expect_malformed_connect()


BAD_PROPERTIES = {
    "too-short-for-its-property": "0221ff",
    "longer-than-the-packet": "7f",
    "receive-maximum-0": "03210000",
    "receive-maximum-twice": "06210001210001",
    "maximum-packet-size-0": "052700000000",
    "request-response-information-2": "021902",
    "request-problem-information-2": "021702",
    "another-packet's-property": "020101",
    "no-such-property": "0270ff",
    "authentication-data-alone": "0416000161",
    "length-of-5-bytes": "8080808001",
}


@table("props", [Row(name, props, v5="MQTT-3.1.4-1 MQTT-4.13.1-1") for name, props in BAD_PROPERTIES.items()])
def test_connect_with_bad_properties_is_refused(bus: Bus, props: str) -> None:
    client = bus.open()
    client.send_raw(raw.connect(V5, props=bytes.fromhex(props)))
    client.expect_malformed_connect()


@rules(
    v311="MQTT-3.1.3-1 MQTT-3.1.3-3 MQTT-3.1.2-9 MQTT-3.1.2-19 MQTT-3.1.2-21",
    v5="MQTT-3.1.3-1 MQTT-3.1.3-3 MQTT-3.1.2-9 MQTT-3.1.2-17 MQTT-3.1.2-19",
)
def test_every_field_of_the_payload_is_taken_for_what_it_is(bus: Bus) -> None:
    seen = Recording()
    bus.configure(access=Access(authenticator=seen))
    watcher = bus.connect("watcher")
    watcher.subscribe("#")
    client = bus.open()
    fields = [*_will(bus.version, raw.text("will/topic"), raw.text("will payload"))]
    fields += [raw.text("the user"), raw.text("the password")]
    client.send_raw(raw.connect(bus.version, raw.text("the-id"), *fields, flags=0x02 | WILL | USER | PASSWORD))
    client.expect(ConnAck, reason_code=0)
    assert seen.last.client_id == "the-id"
    assert seen.last.user_name == "the user"
    assert seen.last.password == b"the password"
    client.drop()
    watcher.expect(Publish("will/topic", b"will payload"))


@rules(v5="MQTT-3.1.2-19 MQTT-3.1.2-16")
def test_a_password_may_come_without_a_user_name(bus: Bus) -> None:
    seen = Recording()
    bus.configure(access=Access(authenticator=seen))
    bus.connect("c", password=b"secret")
    assert (seen.last.user_name, seen.last.password) == (None, b"secret")


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


# -- packets that only a server sends --------------------------------------------------------------

SERVER_ONLY = {
    "connack": "2003000000",
    "suback": "900400010000",
    "pingresp": "d000",
    "unsuback": "b0040001" + "0000",
}
SERVER_ONLY_V311 = {"connack": "20020000", "suback": "9003000100", "pingresp": "d000", "unsuback": "b0020001"}


@table(
    "data",
    [
        *(Row(name, data, v311="MQTT-4.8.0-1") for name, data in SERVER_ONLY_V311.items()),
        *(Row(name, data, v5="MQTT-4.13.1-1") for name, data in SERVER_ONLY.items()),
        Row("auth-in-3.1.1", "f000", v311="MQTT-4.8.0-1"),
        Row("type-0", "0000", v311="MQTT-4.8.0-1", v5="MQTT-4.13.1-1"),
    ],
)
def test_a_packet_that_no_client_sends_ends_the_connection(bus: Bus, data: str) -> None:
    client = bus.connect("c")
    client.send_raw(data)
    client.expect_closed(*MALFORMED)
