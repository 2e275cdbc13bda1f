"""Sessions (sections 3.1.2.4, 3.1.2.11 and 4.1): what outlives a connection and for how long."""

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import Properties, PubAck, Publish, PubRec, PubRel

from .harness import Bus
from .rules import rules


@rules(
    v311="MQTT-3.1.2-4 MQTT-3.1.2-5 MQTT-3.2.2-2 MQTT-3.1.4-3 MQTT-4.5.0-1",
    v5="MQTT-3.1.2-5 MQTT-3.1.2-23 MQTT-3.2.2-3 MQTT-3.1.4-4 MQTT-4.5.0-1",
    wire=True,
)
def test_a_kept_session_is_resumed_with_its_subscriptions_and_what_it_missed(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t/#", qos=2)
    client.disconnect()
    publisher = bus.connect("p")
    publisher.publish("t/1", b"one", qos=1)
    publisher.publish("t/2", b"two", qos=2)
    again = bus.connect("s", keeps=True)
    assert again.connack.session_present
    again.acknowledge(again.expect(Publish, topic="t/1", payload=b"one", qos=1, dup=False))
    again.acknowledge(again.expect(Publish, topic="t/2", payload=b"two", qos=2, dup=False))
    publisher.publish("t/3", b"three", qos=1)
    again.expect(Publish, topic="t/3", payload=b"three", qos=1)


@rules(v311="MQTT-3.1.2-5 MQTT-3.1.2-4", v5="MQTT-3.1.2-5 MQTT-3.1.2-23")
def test_a_kept_session_survives_a_lost_connection(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=1)
    client.drop()
    bus.connect("p").publish("t", b"missed", qos=1)
    again = bus.connect("s", keeps=True)
    assert again.connack.session_present
    again.expect(Publish, topic="t", payload=b"missed")


@rules(
    v311="MQTT-3.1.2-4 MQTT-3.2.2-3 MQTT-3.1.4-4",
    v5="MQTT-3.1.2-6 MQTT-3.2.2-3 MQTT-3.1.4-5",
)
def test_a_session_is_made_where_there_is_none(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    assert not client.connack.session_present
    assert client.connack.reason_code == 0
    client.subscribe("t")
    bus.connect("p").publish("t", b"x")
    client.expect(Publish("t", b"x"))


@rules(
    v311="MQTT-3.1.2-6 MQTT-3.2.2-1 MQTT-3.1.4-3",
    v5="MQTT-3.1.2-4 MQTT-3.2.2-2 MQTT-3.1.4-4",
    wire=True,
)
def test_a_clean_start_discards_subscriptions_and_queue(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=1)
    client.disconnect()
    publisher = bus.connect("p")
    publisher.publish("t", b"missed", qos=1)
    fresh = bus.connect("s", keeps=True, clean=True)
    assert not fresh.connack.session_present
    assert fresh.connack.reason_code == 0
    publisher.publish("t", b"not subscribed", qos=1)
    fresh.expect_nothing()


@rules(v311="MQTT-3.1.2-6", v5="MQTT-3.1.2-4")
def test_a_clean_start_discards_what_was_in_flight(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    publisher.publish("t", b"one", qos=1)
    publisher.publish("t", b"two", qos=2)
    client.expect(Publish, payload=b"one")
    client.send(PubRec(client.expect(Publish, payload=b"two").packet_id))
    client.expect(PubRel)
    client.drop()
    bus.connect("s", clean=True).expect_nothing()


@rules(v311="MQTT-3.1.2-6", v5="MQTT-4.1.0-2")
def test_nothing_of_a_clean_session_is_left_for_the_next(bus: Bus) -> None:
    client = bus.connect("s")  # clean session 1; in 5.0 session expiry 0
    client.subscribe("t", qos=1)
    client.disconnect()
    publisher = bus.connect("p")
    publisher.publish("t", b"missed", qos=1)
    next_one = bus.connect("s", keeps=True)
    assert not next_one.connack.session_present
    publisher.publish("t", b"not subscribed", qos=1)
    next_one.expect_nothing()


@rules(v311="MQTT-3.1.2-6", v5="MQTT-3.1.2-4 MQTT-3.2.2-2")
def test_a_takeover_by_a_clean_client_discards_the_session(bus: Bus) -> None:
    bus.connect("s", keeps=True).subscribe("t", qos=1)
    fresh = bus.connect("s", clean=True)
    assert not fresh.connack.session_present
    bus.connect("p").publish("t", b"x", qos=1)
    fresh.expect_nothing()


@rules(v311="MQTT-3.1.2-7", v5="MQTT-3.3.1-5")
def test_retained_messages_outlive_the_session_of_their_publisher(bus: Bus) -> None:
    publisher = bus.connect("p")
    publisher.publish("t", b"kept", qos=1, retain=True)
    publisher.disconnect()
    bus.connect("p").disconnect()
    reader = bus.connect("r")
    reader.subscribe("t")
    reader.expect(Publish("t", b"kept", retain=True))


@rules(v311="MQTT-4.1.0-1 MQTT-4.1.0-2", v5="MQTT-4.1.0-1")
def test_a_session_lasts_while_its_connection_is_open(bus: Bus) -> None:
    """However long it is idle, and although it would not outlive the connection by a second."""
    client = bus.connect("s")
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    publisher.publish("t", b"before", qos=2)
    got = client.expect(Publish, payload=b"before", qos=2)
    bus.advance(40 * 24 * 3600)
    client.send(PubRec(got.packet_id))
    client.expect(PubRel(got.packet_id))
    publisher.publish("t", b"after", qos=1)
    client.expect(Publish, payload=b"after", qos=1)


@rules(v311="MQTT-4.1.0-1", v5="MQTT-3.1.2-23")
def test_every_part_of_a_kept_session_is_kept(bus: Bus) -> None:
    """Subscription, unacknowledged both ways, and queued: section 4.1 lists them."""
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    client.send(Publish("in", b"half", 2, packet_id=77))
    client.expect(PubRec, packet_id=77)
    publisher.publish("t", b"unacknowledged", qos=1)
    client.expect(Publish, payload=b"unacknowledged")
    client.drop()
    publisher.publish("t", b"queued", qos=1)
    again = bus.connect("s", keeps=True)
    again.expect(Publish, payload=b"unacknowledged", dup=True)
    again.expect(Publish, payload=b"queued", dup=False)
    watcher = bus.connect("w")
    watcher.subscribe("in")
    again.send(Publish("in", b"half", 2, dup=True, packet_id=77))
    again.expect(PubRec, packet_id=77)
    watcher.expect_nothing()


@rules(v5="MQTT-4.1.0-2 MQTT-3.1.2-23")
def test_a_session_expires_after_its_interval_and_not_before(bus: Bus) -> None:
    for waited_s, present in ((95, True), (106, False)):
        client = bus.connect("s", clean=True, session_expiry_s=100)
        client.subscribe("t", qos=1)
        client.drop()
        bus.advance(waited_s)
        again = bus.connect("s", clean=False)
        assert again.connack.session_present is present
        bus.connect("p").publish("t", b"x", qos=1)
        if present:
            again.expect(Publish, payload=b"x")
        else:
            again.expect_nothing()


@rules(v5="MQTT-4.1.0-2")
def test_an_expired_session_does_not_get_what_it_missed(bus: Bus) -> None:
    client = bus.connect("s", session_expiry_s=10)
    client.subscribe("t", qos=1)
    client.drop()
    bus.connect("p").publish("t", b"missed", qos=1)
    bus.advance(12)
    again = bus.connect("s", clean=False, session_expiry_s=10)
    assert not again.connack.session_present
    again.expect_nothing()


@rules(v5="MQTT-3.1.2-23 MQTT-4.1.0-2")
def test_disconnect_may_change_the_expiry(bus: Bus) -> None:
    longer = bus.connect("longer", session_expiry_s=10)
    longer.disconnect(properties=Properties(session_expiry_s=1000))
    shorter = bus.connect("shorter", session_expiry_s=1000)
    shorter.disconnect(properties=Properties(session_expiry_s=10))
    none = bus.connect("none", session_expiry_s=1000)
    none.disconnect(properties=Properties(session_expiry_s=0))
    assert not bus.connect("none", clean=False).connack.session_present
    bus.advance(20)
    assert bus.connect("longer", clean=False).connack.session_present
    assert not bus.connect("shorter", clean=False).connack.session_present


@rules(v311="MQTT-3.1.2-5", v5="MQTT-4.5.0-1")
def test_a_message_is_added_to_every_matching_session(bus: Bus) -> None:
    here = bus.connect("here")
    here.subscribe("a/+", qos=1)
    away = bus.connect("away", keeps=True)
    away.subscribe("#", qos=1)
    away.drop()
    elsewhere = bus.connect("elsewhere")
    elsewhere.subscribe("b", qos=1)
    bus.connect("p").publish("a/b", b"x", qos=1)
    here.send(PubAck(here.expect(Publish, topic="a/b", payload=b"x", qos=1).packet_id))
    bus.connect("away", keeps=True).expect(Publish, topic="a/b", payload=b"x", qos=1)
    elsewhere.expect_nothing()


@rules(v5="MQTT-3.1.2-23 MQTT-4.1.0-2")
def test_a_server_that_keeps_sessions_for_less_says_so(bus: Bus) -> None:
    bus.configure(limits=Limits(session_expiry_s=100))
    for asked, told in ((50, None), (100, None), (1000, 100), (0xFFFF_FFFF, 100)):
        client = bus.connect("s", clean=True, session_expiry_s=asked)
        assert client.connack.properties.session_expiry_s == told
        client.drop()
        lasts_s = told or asked
        bus.advance(lasts_s - 2)
        client = bus.connect("s", clean=False, session_expiry_s=asked)
        assert client.connack.session_present
        client.drop()
        bus.advance(lasts_s + 2)
        assert not bus.connect("s", clean=False).connack.session_present
