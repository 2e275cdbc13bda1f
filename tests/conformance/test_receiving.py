"""QoS 1 and 2 from a publisher (sections 4.3, 4.6 and 4.9): ownership, repeats, quota."""

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
)

from .harness import Bus, Client
from .rules import rules
from .stand_ins import Fenced, SlowDisk


def _watcher(bus: Bus) -> Client:
    watcher = bus.connect("w")
    watcher.subscribe("#", qos=0)
    return watcher


@rules(v311="MQTT-4.3.2-2", v5="MQTT-4.3.2-4 MQTT-4.3.2-5", wire=True)
def test_after_puback_the_same_id_is_a_new_message(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    for number in range(3):
        client.send(Publish("t", b"%d" % number, 1, dup=number > 0, packet_id=5))
        client.expect(PubAck(5))
        watcher.expect(Publish("t", b"%d" % number))


@rules(
    v311="MQTT-4.3.3-2",
    v5="MQTT-4.3.3-8 MQTT-4.3.3-10 MQTT-4.3.3-11 MQTT-4.3.3-12",
    wire=True,
)
def test_qos_2_is_published_once(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    for number in range(2):
        client.send(Publish("t", b"%d" % number, 2, packet_id=5))
        client.expect(PubRec(5))
        for _ in range(2):
            client.send(Publish("t", b"%d" % number, 2, dup=True, packet_id=5))
            client.expect(PubRec(5))
        client.send(PubRel(5))
        client.expect(PubComp(5))
        watcher.expect(Publish("t", b"%d" % number))
        watcher.expect_nothing()


@rules(v311="MQTT-4.3.3-2 MQTT-4.1.0-1", v5="MQTT-4.3.3-10 MQTT-3.1.2-23")
def test_qos_2_is_published_once_across_connections(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p", keeps=True)
    client.send(Publish("t", b"x", 2, packet_id=5))
    client.expect(PubRec(5))
    client.drop()
    client = bus.connect("p", keeps=True)
    client.send(Publish("t", b"x", 2, dup=True, packet_id=5))
    client.expect(PubRec(5))
    client.send(PubRel(5))
    client.expect(PubComp(5))
    client.drop()
    client = bus.connect("p", keeps=True)
    client.send(PubRel(5))  # the PUBCOMP was lost
    client.expect(PubComp, packet_id=5)
    watcher.expect(Publish("t", b"x"))
    watcher.expect_nothing()


@rules(v311="MQTT-4.3.3-2", v5="MQTT-4.3.3-11")
def test_every_pubrel_gets_a_pubcomp(bus: Bus) -> None:
    client = bus.connect("p")
    client.send(Publish("t", b"x", 2, packet_id=5))
    client.expect(PubRec, packet_id=5)
    client.send(PubRel(5), PubRel(5))
    client.expect(PubComp(5))
    client.expect(PubComp, packet_id=5)


@rules(v5="MQTT-4.3.3-9")
def test_after_a_refusing_pubrec_the_id_is_a_new_message(bus: Bus) -> None:
    bus.configure(access=Access(authorizer=Fenced()))
    watcher = _watcher(bus)
    client = bus.connect("p")
    client.send(Publish("secret/t", b"no", 2, packet_id=5))
    client.expect(PubRec(5, ReasonCode.NOT_AUTHORIZED))
    client.send(Publish("t", b"yes", 2, packet_id=5))
    client.expect(PubRec(5))
    watcher.expect(Publish("t", b"yes"))
    client.send(PubRel(5))
    client.expect(PubComp(5))


@rules(v5="MQTT-4.3.3-13")
def test_the_exchange_goes_on_although_the_message_expired(bus: Bus) -> None:
    client = bus.connect("p")
    client.send(Publish("t", b"x", 2, packet_id=5, properties=Properties(message_expiry_s=1)))
    client.expect(PubRec, packet_id=5)
    bus.advance(60)
    client.send(Publish("t", b"x", 2, dup=True, packet_id=5, properties=Properties(message_expiry_s=1)))
    client.expect(PubRec, packet_id=5)
    client.send(PubRel(5))
    client.expect(PubComp(5))


@rules(v311="MQTT-4.6.0-2 MQTT-4.6.0-3", v5="MQTT-4.6.0-2 MQTT-4.6.0-3", wire=True)
def test_acknowledgements_keep_the_order_of_the_publishes(bus: Bus) -> None:
    client = bus.connect("p")
    ids = [9, 3, 7, 1, 500, 2]
    client.send(*(Publish("t", b"x", 1, packet_id=packet_id) for packet_id in ids))
    assert [client.expect(PubAck).packet_id for _ in ids] == ids
    client.send(*(Publish("t", b"x", 2, packet_id=packet_id) for packet_id in ids))
    assert [client.expect(PubRec).packet_id for _ in ids] == ids


@rules(v311="MQTT-2.3.1-6", v5="MQTT-2.2.1-5")
def test_ids_of_both_directions_are_independent(bus: Bus) -> None:
    client = bus.connect("c")
    client.subscribe("t", qos=2)
    bus.connect("p").publish("t", b"down", qos=2)
    down = client.expect(Publish, payload=b"down").packet_id
    client.send(Publish("up", b"up", 2, packet_id=down))
    client.expect(PubRec, packet_id=down)
    client.send(PubRec(down))
    client.expect(PubRel(down))
    client.send(PubRel(down), PubComp(down))
    client.expect(PubComp(down))
    client.expect_nothing()


@rules(
    v311="MQTT-4.3.2-2 MQTT-4.3.3-2 MQTT-4.6.0-2",
    v5="MQTT-4.3.2-4 MQTT-4.3.3-8 MQTT-4.3.3-11 MQTT-4.6.0-2",
)
def test_ownership_is_confirmed_when_it_is_safe(bus: Bus) -> None:
    """An acknowledgement leaves after its commit; what promises nothing does not wait."""
    disk = SlowDisk()
    bus.configure(journal=disk)
    client = bus.connect("p")
    for packet_id in (1, 2):
        client.send(Publish("t", b"x", 1, packet_id=packet_id), Publish("t", b"x", 2, packet_id=10 + packet_id))
    client.send(PingReq())
    client.expect(PingResp())
    client.expect_nothing()
    disk.write()
    bus.settle()
    acks = [(type(p), p.packet_id) for p in client.received() if isinstance(p, PubAck | PubRec)]
    assert acks == [(PubAck, 1), (PubRec, 11), (PubAck, 2), (PubRec, 12)]
    client.send(PubRel(11))
    client.expect_nothing()
    disk.write()
    bus.settle()
    client.expect(PubComp(11))


@rules(v311="MQTT-4.3.2-2 MQTT-4.3.3-2", v5="MQTT-4.3.2-4 MQTT-4.3.3-10")
def test_a_commit_that_outlives_its_connection_acknowledges_nothing(bus: Bus) -> None:
    """The client does not know, so it sends again: QoS 1 arrives again, QoS 2 does not."""
    disk = SlowDisk()
    bus.configure(journal=disk)
    client = bus.connect("p", keeps=True)
    client.send(Publish("t", b"one", 1, packet_id=1), Publish("t", b"two", 2, packet_id=2))
    client.drop()
    again = bus.connect("p", keeps=True)
    disk.write()
    again.expect_nothing()
    again.send(Publish("t", b"one", 1, dup=True, packet_id=1), Publish("t", b"two", 2, dup=True, packet_id=2))
    disk.write()
    assert {type(p).__name__ for p in again.received()} == {"PubAck", "PubRec"}


# -- the server's receive maximum ------------------------------------------------------------------


@rules(v5="MQTT-3.3.4-7", wire=True)
def test_more_than_the_receive_maximum_is_answered_with_0x93(bus: Bus) -> None:
    bus.configure(limits=Limits(receive_maximum=3))
    client = bus.connect("c")
    assert client.connack.properties.receive_maximum == 3
    for packet_id in (1, 2, 3):
        client.send(Publish("t", b"x", 2, packet_id=packet_id))
        client.expect(PubRec, packet_id=packet_id)
    client.send(Publish("t", b"x", 2, packet_id=4))
    client.expect_closed(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


@pytest.mark.parametrize("qos", [1, 2])
@rules(v5="MQTT-3.3.4-7 MQTT-4.9.0-3")
def test_the_receive_maximum_counts_what_is_not_acknowledged(bus: Bus, qos: int) -> None:
    bus.configure(limits=Limits(receive_maximum=2))
    client = bus.connect("c")
    for _ in range(10):
        client.publish("t", b"x", qos=qos)
    client.send(Publish("t", b"x", 2, packet_id=101), Publish("t", b"x", 2, packet_id=102))
    client.expect(PubRec, packet_id=101)
    client.expect(PubRec, packet_id=102)
    client.send(Publish("t", b"x"), Publish("t", b"x", retain=True))  # QoS 0 is free
    client.send(PubRel(101))
    client.expect(PubComp(101))
    client.send(Publish("t", b"x", 1, packet_id=103))
    client.expect(PubAck, packet_id=103)


@rules(v311="MQTT-3.3.4-1 MQTT-4.3.3-2")
def test_a_client_that_cannot_be_told_a_receive_maximum_has_none(bus: Bus) -> None:
    bus.configure(limits=Limits(receive_maximum=2))
    client = bus.connect("c")
    client.send(*(Publish("t", b"x", 2, packet_id=number) for number in range(1, 9)))
    for number in range(1, 9):
        client.expect(PubRec(number))


@rules(v5="MQTT-3.3.4-7 MQTT-4.3.3-10")
def test_a_repeat_does_not_count_against_the_receive_maximum(bus: Bus) -> None:
    bus.configure(limits=Limits(receive_maximum=1))
    client = bus.connect("c", keeps=True)
    client.send(Publish("t", b"x", 2, packet_id=1))
    client.expect(PubRec, packet_id=1)
    client.drop()
    again = bus.connect("c", keeps=True)
    again.send(Publish("t", b"x", 2, dup=True, packet_id=1))
    again.expect(PubRec, packet_id=1)
    again.send(PubRel(1))
    again.expect(PubComp(1))
