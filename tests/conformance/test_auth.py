"""Enhanced authentication (section 4.12) and AUTH (section 3.15)."""

from typing import Any

import pytest

from polybus.broker.access import Access
from polybus.wire.mqtt.packets import Auth, ConnAck, Disconnect, Properties, Publish, ReasonCode

from . import raw
from .harness import Bus, Client
from .rules import Row, rules, table
from .stand_ins import Riddle

CONTINUE = ReasonCode.CONTINUE_AUTHENTICATION
AGAIN = ReasonCode.RE_AUTHENTICATE


def _auth(code: int, data: bytes = b"", method: str | None = "riddle") -> Auth:
    return Auth(code, Properties(authentication_method=method, authentication_data=data or None))


def _asked(bus: Bus, method: str = "riddle", **fields: Any) -> Client:
    """A client that has been asked the riddle."""
    bus.configure(access=Access(methods={"riddle": Riddle(), "other": Riddle()}))
    client = bus.open()
    client.send(bus.connect_packet("c", authentication_method=method, **fields))
    challenge = client.expect(Auth, reason_code=CONTINUE)
    assert challenge.properties.authentication_method == method
    assert challenge.properties.authentication_data == b"six times seven?"
    return client


def _welcome(bus: Bus) -> Client:
    client = _asked(bus)
    client.send(_auth(CONTINUE, b"42"))
    client.connack = client.expect(ConnAck, reason_code=0)
    return client


@rules(v5="MQTT-4.12.0-2 MQTT-4.12.0-5 MQTT-3.2.0-1 MQTT-3.15.2-1", wire=True)
def test_challenge_answer_and_welcome(bus: Bus) -> None:
    client = _welcome(bus)
    assert client.connack.properties.authentication_method == "riddle"
    assert client.connack.properties.authentication_data == b"right"
    client.ping()


@rules(v5="MQTT-4.12.0-5")
def test_a_welcome_without_a_challenge_repeats_the_method(bus: Bus) -> None:
    bus.configure(access=Access(methods={"riddle": Riddle()}))
    client = bus.connect("c", authentication_method="riddle", authentication_data=b"42")
    assert client.connack.properties.authentication_method == "riddle"


@rules(v5="MQTT-4.12.0-1 MQTT-3.2.2-8")
def test_an_unknown_method_is_refused(bus: Bus) -> None:
    bus.configure(access=Access(methods={"riddle": Riddle()}))
    client = bus.open()
    client.send(bus.connect_packet("c", authentication_method="Riddle"))
    client.expect_refused(ReasonCode.BAD_AUTHENTICATION_METHOD, ReasonCode.NOT_AUTHORIZED)


@rules(v5="MQTT-4.12.0-4 MQTT-3.2.2-7", wire=True)
def test_a_wrong_answer_is_refused(bus: Bus) -> None:
    client = _asked(bus)
    client.send(_auth(CONTINUE, b"41"))
    client.expect_refused(ReasonCode.NOT_AUTHORIZED, ReasonCode.BAD_USER_NAME_OR_PASSWORD)


TOO_SOON: list[tuple[str, bytes]] = [
    ("publish", raw.publish(5, "t", b"x")),
    ("subscribe", raw.subscribe(5, ("t", 0))),
    ("pingreq", bytes.fromhex("c000")),
    ("connect", raw.connect(5)),
    ("puback", bytes.fromhex("40020001")),
]


@table("data", [Row(name, data, v5="MQTT-3.1.2-30 MQTT-3.14.0-1") for name, data in TOO_SOON])
def test_nothing_but_auth_comes_before_the_welcome(bus: Bus, data: bytes) -> None:
    client = _asked(bus)
    watcher = bus.connect("w")
    watcher.subscribe("#")
    client.send_raw(data)
    client.expect_refused(ReasonCode.PROTOCOL_ERROR)
    watcher.expect_nothing()


@rules(v5="MQTT-3.1.2-30")
def test_a_client_may_leave_while_it_authenticates(bus: Bus) -> None:
    client = _asked(bus)
    client.send(Disconnect())
    client.expect_closed_silently()


BAD_ANSWERS: list[tuple[str, Auth | bytes, str]] = [
    ("re-authenticate", _auth(AGAIN, b"42"), "MQTT-4.12.0-3"),
    ("success", _auth(0, b"42"), "MQTT-4.12.0-3"),
    ("another-method", _auth(CONTINUE, b"42", "other"), "MQTT-4.12.0-5"),
    ("no-method", raw.frame(0xF0, b"\x18", b"\x05\x16\x00\x0242"), "MQTT-4.12.0-5"),
    ("another-reason-code", raw.frame(0xF0, b"\x01", b"\x09\x15\x00\x06riddle"), "MQTT-3.15.2-1"),
    ("reserved-bits", raw.frame(0xF1, b"\x18", b"\x09\x15\x00\x06riddle"), "MQTT-3.15.1-1 MQTT-2.1.3-1"),
]


@table("answer", [Row(name, answer, v5=ids) for name, answer, ids in BAD_ANSWERS])
def test_an_answer_that_breaks_the_rules_is_refused(bus: Bus, answer: Auth | bytes) -> None:
    client = _asked(bus)
    if isinstance(answer, bytes):
        client.send_raw(answer)
    else:
        client.send(answer)
    client.expect_refused(ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)


@rules(v5="MQTT-4.12.0-6")
def test_no_method_no_auth_and_no_method_back(bus: Bus) -> None:
    bus.configure(access=Access(methods={"riddle": Riddle()}))
    client = bus.connect("c")
    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None
    client.expect_nothing()


@pytest.mark.parametrize("code", [CONTINUE, AGAIN, 0])
@rules(v5="MQTT-4.12.0-7")
def test_auth_from_a_client_without_a_method_is_an_error(bus: Bus, code: int) -> None:
    bus.configure(access=Access(methods={"riddle": Riddle()}))
    client = bus.connect("c")
    client.send(_auth(code, b"42"))
    client.expect_closed(ReasonCode.PROTOCOL_ERROR)


# -- re-authentication -----------------------------------------------------------------------------


@rules(v5="MQTT-4.12.1-1 MQTT-4.12.0-2 MQTT-4.12.0-5 MQTT-3.15.2-1")
def test_a_client_may_authenticate_again(bus: Bus) -> None:
    client = _welcome(bus)
    client.send(_auth(AGAIN))
    client.expect(_auth(CONTINUE, b"six times seven?"))
    client.ping()  # the connection works on meanwhile
    client.send(_auth(CONTINUE, b"42"))
    done = client.expect(Auth, reason_code=0)
    assert done.properties.authentication_method == "riddle"
    client.ping()


@rules(v5="MQTT-4.12.1-2 MQTT-4.13.2-1")
def test_a_failed_re_authentication_ends_the_connection(bus: Bus) -> None:
    client = _welcome(bus)
    client.send(_auth(AGAIN))
    client.expect(Auth, reason_code=CONTINUE)
    client.send(_auth(CONTINUE, b"41"))
    client.expect_closed(ReasonCode.NOT_AUTHORIZED)


@rules(v5="MQTT-4.12.1-1 MQTT-4.12.0-5")
def test_re_authentication_keeps_the_method(bus: Bus) -> None:
    client = _welcome(bus)
    client.send(_auth(AGAIN, method="other"))
    client.expect_closed(ReasonCode.PROTOCOL_ERROR, ReasonCode.BAD_AUTHENTICATION_METHOD)


@pytest.mark.parametrize("code", [CONTINUE, 0])
@rules(v5="MQTT-4.12.1-1 MQTT-4.12.0-3")
def test_re_authentication_starts_with_its_reason_code(bus: Bus, code: int) -> None:
    client = _welcome(bus)
    client.send(_auth(code, b"42"))
    client.expect_closed(ReasonCode.PROTOCOL_ERROR)


@rules(v5="MQTT-3.15.1-1 MQTT-2.1.3-1")
def test_auth_with_reserved_bits_ends_the_connection(bus: Bus) -> None:
    client = _welcome(bus)
    client.send_raw(raw.frame(0xF2, b"\x19", b"\x09\x15\x00\x06riddle"))
    client.expect_closed(ReasonCode.MALFORMED_PACKET)


@rules(v5="MQTT-3.2.0-1 MQTT-4.12.0-2")
def test_what_waited_comes_after_the_welcome(bus: Bus) -> None:
    client = _asked(bus, keeps=True)
    client.send(_auth(CONTINUE, b"42"))
    client.expect(ConnAck, reason_code=0)
    client.subscribe("t", qos=1)
    client.drop()
    bus.connect("p").publish("t", b"waited", qos=1)
    again = bus.open()
    again.send(bus.connect_packet("c", keeps=True, authentication_method="riddle"))
    again.expect(Auth, reason_code=CONTINUE)
    assert again.received() == []
    again.send(_auth(CONTINUE, b"42"))
    again.expect(ConnAck(0, session_present=True))
    again.expect(Publish, payload=b"waited")
