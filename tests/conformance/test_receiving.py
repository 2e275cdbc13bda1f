"""QoS 1 and 2 from a publisher (sections 4.3, 4.6 and 4.9): ownership, repeats, quota."""

from collections.abc import Callable

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
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

from . import raw
from .access import Fenced
from .harness import Bus, Client
from .rules import rules


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


class SlowDisk:
    """A journal whose commits are done when `write` is called."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def commit(self, done: Callable[[], None]) -> None:
        self._waiting.append(done)

    def write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()


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


# -- many packets in one piece -----------------------------------------------------------------------


@rules(v311="MQTT-4.3.3-2", v5="MQTT-4.3.3-10 MQTT-4.3.3-12")
def test_repeats_in_one_piece_are_published_once(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    first, repeat = Publish("t", b"x", 2, packet_id=5), Publish("t", b"x", 2, dup=True, packet_id=5)
    client.send(first, repeat, first, PubRel(5), first, PubRel(5))
    codes = [type(p).__name__ for p in client.received()]
    assert codes == ["PubRec", "PubRec", "PubRec", "PubComp", "PubRec", "PubComp"]
    assert watcher.received() == [Publish("t", b"x")] * 2


@rules(v311="MQTT-4.3.2-2", v5="MQTT-4.3.2-5")
def test_the_same_id_again_in_one_piece_is_a_new_message_at_qos_1(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    client.send(*(Publish("t", b"%d" % n, 1, dup=n > 0, packet_id=5) for n in range(4)))
    assert client.received() == [PubAck(5)] * 4
    assert watcher.received() == [Publish("t", b"%d" % n) for n in range(4)]


@rules(v5="MQTT-3.3.4-7")
def test_an_overrun_in_one_piece_is_noticed(bus: Bus) -> None:
    bus.configure(limits=Limits(receive_maximum=10))
    client = bus.connect("c")
    client.send(*(Publish("t", b"x", 2, packet_id=n) for n in range(1, 12)))
    while client.peek() is PubRec:
        client.expect(PubRec)
    client.expect_closed(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


@rules(
    v311="MQTT-3.3.4-1 MQTT-4.6.0-6 MQTT-4.6.0-2 MQTT-4.6.0-3",
    v5="MQTT-3.3.4-1 MQTT-4.6.0-5 MQTT-4.6.0-2 MQTT-4.6.0-3",
)
def test_a_mixture_in_one_piece_is_answered_one_by_one(bus: Bus) -> None:
    """All QoS, retained or not, with properties or not, to two topics, allowed and forbidden."""
    bus.configure(access=Access(authorizer=Fenced()))
    watcher = _watcher(bus)
    client = bus.connect("p")
    said = Properties(content_type="x") if bus.version >= V5 else Properties()
    packets = []
    for number in range(1, 200):
        qos = number * 7 % 3
        topic = ("a", "b", "a", "a", "secret/c")[number % 5]
        packet_id = number if qos else 0
        properties = said if number % 11 == 0 else Properties()
        packets.append(
            Publish(topic, b"%d" % number, qos, number % 13 == 0, packet_id=packet_id, properties=properties)
        )
    client.send(*packets)
    answers = client.received()
    assert [p.packet_id for p in answers if isinstance(p, PubAck)] == [
        p.packet_id for p in packets if p.qos == 1
    ]
    assert [p.packet_id for p in answers if isinstance(p, PubRec)] == [
        p.packet_id for p in packets if p.qos == 2
    ]
    got = [(p.topic, p.payload) for p in watcher.received() if isinstance(p, Publish)]
    assert got == [(p.topic, p.payload) for p in packets if p.topic != "secret/c"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v311="MQTT-4.8.0-1 MQTT-3.3.2-2", v5="MQTT-4.13.1-1 MQTT-3.3.2-2")
def test_an_error_within_a_piece_ends_it_there(bus: Bus, qos: int) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    ids = [n if qos else None for n in range(1, 5)]
    flags = qos << 1
    good = [raw.publish(bus.version, "t", b"%d" % n, flags=flags, packet_id=ids[n]) for n in range(4)]
    bad = raw.publish(bus.version, "t/#", b"bad", flags=flags, packet_id=9 if qos else None)
    client.send_raw(good[0] + good[1] + bad + good[2] + good[3])
    while client.peek() in (PubAck, PubRec):
        client.expect(client.peek() or PubAck)
    client.expect_closed(ReasonCode.TOPIC_NAME_INVALID, ReasonCode.MALFORMED_PACKET)
    assert [p.payload for p in watcher.received() if isinstance(p, Publish)] == [b"0", b"1"]
