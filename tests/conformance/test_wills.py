"""The will (sections 3.1.2.5 to 3.1.2.7, 3.1.3.2 to 3.1.3.4): when it is published, how, and when not."""

import pytest

from polybus.wire.mqtt.packets import Disconnect, Properties, PubAck, Publish, ReasonCode, Will

from . import raw
from .harness import Bus, Client
from .rules import rules


def _watcher(bus: Bus, topic_filter: str = "will/#", qos: int = 2) -> Client:
    watcher = bus.connect("watcher")
    watcher.subscribe(topic_filter, qos=qos)
    return watcher


@rules(
    v311="MQTT-3.1.2-8 MQTT-3.1.2-10 MQTT-3.1.2-16",
    v5="MQTT-3.1.2-7 MQTT-3.1.2-8 MQTT-3.1.2-10 MQTT-3.1.2-14",
    wire=True,
)
def test_a_lost_connection_publishes_the_will_once(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("c", keeps=True, will=Will("will/c", b"gone"))
    watcher.expect_nothing()
    client.drop()
    watcher.expect(Publish("will/c", b"gone"))
    bus.connect("c", keeps=True).drop()  # the old will is not there for the next connection
    watcher.expect_nothing()
    late = bus.connect("late")
    late.subscribe("will/#")
    late.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v311="MQTT-3.1.2-8", v5="MQTT-3.1.2-8")
def test_the_will_has_its_qos(bus: Bus, qos: int) -> None:
    watcher = _watcher(bus)
    bus.connect("c", will=Will("will/c", b"gone", qos=qos)).drop()
    watcher.expect(Publish, topic="will/c", payload=b"gone", qos=qos)


@rules(v311="MQTT-3.1.2-17", v5="MQTT-3.1.2-15")
def test_a_retained_will_is_retained(bus: Bus) -> None:
    watcher = _watcher(bus)
    bus.connect("c", will=Will("will/c", b"gone", retain=True)).drop()
    watcher.expect(Publish("will/c", b"gone", retain=False))
    late = bus.connect("late")
    late.subscribe("will/c")
    late.expect(Publish("will/c", b"gone", retain=True))


@rules(
    v311="MQTT-3.14.4-3 MQTT-3.1.2-10 MQTT-3.1.2-8", v5="MQTT-3.14.4-3 MQTT-3.1.2-10 MQTT-3.1.2-8", wire=True
)
def test_disconnect_discards_the_will(bus: Bus) -> None:
    watcher = _watcher(bus)
    bus.connect("c", will=Will("will/c", b"gone")).disconnect()
    watcher.expect_nothing()


@rules(v311="MQTT-3.1.2-12", v5="MQTT-3.1.2-8")
def test_no_will_no_message(bus: Bus) -> None:
    watcher = _watcher(bus, "#")
    bus.connect("c").drop()
    watcher.expect_nothing()


@rules(v311="MQTT-3.1.2-8 MQTT-4.8.0-1", v5="MQTT-3.1.2-8 MQTT-4.13.1-1")
def test_a_protocol_error_publishes_the_will(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("c", will=Will("will/c", b"gone"))
    client.send_raw(raw.publish(bus.version, "t", flags=0x06, packet_id=1))
    client.expect_closed(ReasonCode.MALFORMED_PACKET)
    watcher.expect(Publish("will/c", b"gone"))


@rules(v311="MQTT-3.14.1-1 MQTT-2.2.2-2", v5="MQTT-3.14.1-1 MQTT-2.1.3-1")
def test_disconnect_with_reserved_bits_is_an_error_and_keeps_the_will(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("c", will=Will("will/c", b"gone"))
    client.send_raw("e100")
    client.expect_closed(ReasonCode.MALFORMED_PACKET)
    watcher.expect(Publish("will/c", b"gone"))


@rules(v311="MQTT-3.1.2-8", v5="MQTT-3.1.2-8")
def test_a_takeover_publishes_the_will_of_the_older_connection(bus: Bus) -> None:
    watcher = _watcher(bus)
    old = bus.connect("c", will=Will("will/c", b"gone"))
    bus.connect("c")
    old.expect_closed(ReasonCode.SESSION_TAKEN_OVER)
    watcher.expect(Publish("will/c", b"gone"))


@rules(v5="MQTT-3.1.2-8")
def test_disconnect_with_will_publishes_it(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("c", will=Will("will/c", b"gone"))
    client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL))
    client.expect_closed_silently()
    watcher.expect(Publish("will/c", b"gone"))


# -- delay -----------------------------------------------------------------------------------------


def _delayed(delay_s: int, payload: bytes = b"gone") -> Will:
    return Will("will/c", payload, properties=Properties(will_delay_s=delay_s))


@rules(v5="MQTT-3.1.2-8 MQTT-3.1.2-7 MQTT-3.1.2-10")
def test_the_will_waits_for_its_delay(bus: Bus) -> None:
    watcher = _watcher(bus)
    bus.connect("c", keeps=True, will=_delayed(30)).drop()
    bus.advance(28)
    watcher.expect_nothing()
    bus.advance(4)
    watcher.expect(Publish("will/c", b"gone"))
    bus.advance(3600)
    watcher.expect_nothing()


@rules(v5="MQTT-3.1.3-9 MQTT-3.1.2-8")
def test_a_reconnect_within_the_delay_withdraws_the_will(bus: Bus) -> None:
    watcher = _watcher(bus)
    bus.connect("c", keeps=True, will=_delayed(30)).drop()
    bus.advance(20)
    bus.connect("c", keeps=True)
    bus.advance(60)
    watcher.expect_nothing()


@rules(v5="MQTT-3.1.3-9")
def test_a_takeover_within_the_delay_withdraws_the_will(bus: Bus) -> None:
    watcher = _watcher(bus)
    old = bus.connect("c", keeps=True, will=_delayed(30))
    bus.connect("c", keeps=True)
    old.expect_closed(ReasonCode.SESSION_TAKEN_OVER)
    bus.advance(60)
    watcher.expect_nothing()


@rules(v5="MQTT-3.1.2-8")
def test_the_end_of_the_session_ends_the_delay(bus: Bus) -> None:
    watcher = _watcher(bus)
    bus.connect("expires", session_expiry_s=10, will=_delayed(1000, b"expires")).drop()
    bus.advance(12)
    watcher.expect(Publish, payload=b"expires")
    bus.connect("at once", session_expiry_s=0, will=_delayed(1000, b"at once")).drop()
    watcher.expect(Publish, payload=b"at once")
    bus.connect("clean", session_expiry_s=1000, will=_delayed(1000, b"clean")).drop()
    watcher.expect_nothing()
    bus.connect("clean", clean=True)
    watcher.expect(Publish, payload=b"clean")


# -- properties ------------------------------------------------------------------------------------


@rules(v5="MQTT-3.1.3-10 MQTT-3.1.2-8")
def test_the_will_carries_its_properties_in_order(bus: Bus) -> None:
    watcher = _watcher(bus)
    pairs = (("b", "2"), ("a", "1"), ("b", "1"), ("a", "1"))
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\x01",
        message_expiry_s=100,
        user_properties=pairs,
    )
    bus.connect("c", will=Will("will/c", b"gone", properties=properties)).drop()
    got = watcher.expect(Publish, topic="will/c", payload=b"gone")
    assert got.properties.user_properties == pairs
    assert got.properties == properties


@rules(v5="MQTT-3.1.2-10 MQTT-3.14.4-3")
def test_a_session_that_outlives_disconnect_has_no_will_left(bus: Bus) -> None:
    watcher = _watcher(bus)
    bus.connect("c", session_expiry_s=10, will=_delayed(5)).disconnect()
    bus.advance(30)
    watcher.expect_nothing()


@rules(v311="MQTT-3.1.2-8", v5="MQTT-3.1.2-7")
def test_a_will_goes_to_those_who_are_away_too(bus: Bus) -> None:
    away = bus.connect("away", keeps=True)
    away.subscribe("will/#", qos=1)
    away.drop()
    bus.connect("c", will=Will("will/c", b"gone", qos=1)).drop()
    again = bus.connect("away", keeps=True)
    again.send(PubAck(again.expect(Publish, payload=b"gone", qos=1).packet_id))
