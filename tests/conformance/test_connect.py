"""CONNECT (section 3.1): the first packet, and whether it is one."""

import pytest

from polybus.broker.access import Access
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    PingReq,
    PingResp,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
)

from . import raw
from .harness import Bus
from .rules import Row, rules, table
from .stand_ins import Recording

MALFORMED = (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


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
