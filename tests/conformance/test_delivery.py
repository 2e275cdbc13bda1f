"""QoS 1 and 2 towards a subscriber (sections 4.3, 4.4 and 4.6): ids, acknowledgements, re-sending, order."""

from collections.abc import Callable
from typing import Any

import pytest

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
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
)

from .harness import Bus, Client
from .rules import Row, rules, table


def _subscriber(bus: Bus, qos: int = 2, **properties: Any) -> Client:
    client = bus.connect("s", keeps=True, **properties)
    client.subscribe("t/#", qos=qos)
    return client


def _send(publisher: Client, packets: list[Publish], *, glued: bool) -> None:
    """To the end of every exchange; `glued`: all publishes in one piece."""
    if glued:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)
    answers = [answer for answer in publisher.received() if isinstance(answer, PubRec)]
    publisher.send(*(PubRel(answer.packet_id) for answer in answers))
    publisher.received()


def _again(bus: Bus) -> Client:
    client = bus.connect("s", keeps=True)
    assert client.connack.session_present
    return client


@rules(
    v311="MQTT-2.3.1-4 MQTT-2.3.1-1 MQTT-4.3.2-1 MQTT-4.3.3-1 MQTT-3.3.1-3",
    v5="MQTT-2.2.1-4 MQTT-4.3.2-1 MQTT-4.3.2-2 MQTT-4.3.3-1 MQTT-4.3.3-2 MQTT-3.3.1-3",
    wire=True,
)
def test_every_new_message_has_an_unused_id_its_qos_and_dup_0(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    ids = []
    for number in range(40):
        qos = 1 + number % 2
        publisher.publish(f"t/{qos}", b"%d" % number, qos=qos)
        got = client.expect(Publish, topic=f"t/{qos}", payload=b"%d" % number, qos=qos, dup=False)
        ids.append(got.packet_id)
    assert 0 not in ids
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("glued", [False, True])
@rules(v311="MQTT-2.3.1-4", v5="MQTT-2.2.1-4 MQTT-4.3.2-1")
def test_an_id_in_use_is_passed_over_when_the_numbers_come_round(bus: Bus, glued: bool) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    publisher.publish("t/1", b"open", qos=1)
    open_one = client.expect(Publish, payload=b"open").packet_id
    publisher.publish("t/2", b"half", qos=2)
    open_two = client.expect(Publish, payload=b"half").packet_id
    client.send(PubRec(open_two))
    client.expect(PubRel(open_two))
    used = set()
    for _ in range(170):
        _send(publisher, [Publish("t/1", b"x", 1, packet_id=1)] * 400, glued=glued)
        acks = []
        for packet in client.received():
            assert isinstance(packet, Publish)
            assert packet.packet_id not in (0, open_one, open_two)
            used.add(packet.packet_id)
            acks.append(PubAck(packet.packet_id))
        client.send(*acks)
    assert len(used) == 65_533


@rules(
    v311="MQTT-4.3.2-1 MQTT-3.3.1-1 MQTT-4.4.0-1 MQTT-2.3.1-4",
    v5="MQTT-4.3.2-3 MQTT-3.3.1-1 MQTT-4.4.0-1",
    wire=True,
)
def test_qos_1_is_unacknowledged_until_puback(bus: Bus) -> None:
    client = _subscriber(bus)
    bus.connect("p").publish("t/1", b"x", qos=1)
    got = client.expect(Publish, payload=b"x", qos=1, dup=False)
    client.drop()
    for _ in range(2):
        client = _again(bus)
        client.expect(Publish("t/1", b"x", 1, dup=True, packet_id=got.packet_id))
        client.drop()
    client = _again(bus)
    client.expect(Publish("t/1", b"x", 1, dup=True, packet_id=got.packet_id))
    client.send(PubAck(got.packet_id))
    client.expect_nothing()
    client.drop()
    _again(bus).expect_nothing()


@rules(
    v311="MQTT-4.3.3-1 MQTT-3.3.1-1 MQTT-4.4.0-1 MQTT-2.3.1-6",
    v5="MQTT-4.3.3-3 MQTT-4.3.3-4 MQTT-4.3.3-5 MQTT-4.3.3-6 MQTT-3.3.1-1 MQTT-4.4.0-1 MQTT-2.2.1-5",
    wire=True,
)
def test_qos_2_is_resent_as_what_is_outstanding(bus: Bus) -> None:
    client = _subscriber(bus)
    bus.connect("p").publish("t/2", b"x", qos=2)
    got = client.expect(Publish, payload=b"x", qos=2, dup=False)
    client.drop()
    client = _again(bus)
    client.expect(Publish("t/2", b"x", 2, dup=True, packet_id=got.packet_id))
    client.send(PubRec(got.packet_id))
    client.expect(PubRel(got.packet_id))
    client.drop()
    for _ in range(2):
        client = _again(bus)
        client.expect(PubRel(got.packet_id))
        client.expect_nothing()
        client.drop()
    client = _again(bus)
    client.expect(PubRel(got.packet_id))
    client.send(PubComp(got.packet_id))
    client.drop()
    _again(bus).expect_nothing()


@rules(v5="MQTT-4.4.0-1", v311="MQTT-3.3.1-1")
def test_nothing_is_resent_while_the_connection_lives(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    publisher.publish("t/1", b"x", qos=1)
    publisher.publish("t/2", b"x", qos=2)
    client.expect(Publish, qos=1)
    client.send(PubRec(client.expect(Publish, qos=2).packet_id))
    client.expect(PubRel)
    bus.advance(3600)
    client.send(PingReq())
    client.expect(PingResp())
    client.expect_nothing()


@rules(v311="MQTT-4.3.3-1", v5="MQTT-4.3.3-6")
def test_a_repeated_pubrec_gets_pubrel_and_no_publish(bus: Bus) -> None:
    client = _subscriber(bus)
    bus.connect("p").publish("t/2", b"x", qos=2)
    got = client.expect(Publish, qos=2)
    for _ in range(3):
        client.send(PubRec(got.packet_id))
        client.expect(PubRel(got.packet_id))
    client.send(PubComp(got.packet_id))
    client.expect_nothing()


@rules(v5="MQTT-4.4.0-2 MQTT-4.3.3-4")
def test_a_refused_message_is_settled(bus: Bus) -> None:
    client = _subscriber(bus, receive_maximum=2)
    publisher = bus.connect("p")
    publisher.publish("t/1", b"one", qos=1)
    publisher.publish("t/2", b"two", qos=2)
    publisher.publish("t/1", b"three", qos=1)
    publisher.publish("t/1", b"four", qos=1)
    client.send(PubAck(client.expect(Publish, payload=b"one").packet_id, ReasonCode.QUOTA_EXCEEDED))
    two = client.expect(Publish, payload=b"two").packet_id
    client.expect(Publish, payload=b"three")
    client.send(PubRec(two, ReasonCode.UNSPECIFIED_ERROR))
    client.expect(Publish, payload=b"four")  # no PUBREL, and the quota is given back
    client.drop()
    again = _again(bus)
    again.expect(Publish, payload=b"three", dup=True)
    again.expect(Publish, payload=b"four", dup=True)
    again.expect_nothing()


@rules(v5="MQTT-4.3.3-7")
def test_a_message_on_its_way_does_not_expire(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    publisher.publish("t/2", b"x", qos=2, properties=Properties(message_expiry_s=10))
    got = client.expect(Publish, payload=b"x")
    client.drop()
    bus.advance(100)
    again = _again(bus)
    again.expect(Publish, payload=b"x", packet_id=got.packet_id, dup=True)
    again.send(PubRec(got.packet_id))
    again.expect(PubRel(got.packet_id))


WRONG_ANSWERS: list[tuple[str, int, Callable[[int], Packet]]] = [
    ("puback-for-qos-2", 2, PubAck),
    ("pubcomp-before-pubrec", 2, PubComp),
    ("pubrec-for-qos-1", 1, PubRec),
    ("pubcomp-for-qos-1", 1, PubComp),
]


@table(
    "case",
    [
        Row(
            name,
            (qos, make),
            v311="MQTT-4.3.2-1" if qos == 1 else "MQTT-4.3.3-1",
            v5="MQTT-4.3.2-3" if qos == 1 else "MQTT-4.3.3-3",
        )
        for name, qos, make in WRONG_ANSWERS
    ],
)
def test_another_acknowledgement_does_not_settle_a_message(
    bus: Bus, case: tuple[int, Callable[[int], Packet]]
) -> None:
    """Whether the server minds or not: it still owes the message."""
    qos, make = case
    client = _subscriber(bus)
    bus.connect("p").publish("t/x", b"x", qos=qos)
    got = client.expect(Publish, payload=b"x", qos=qos)
    client.send(make(got.packet_id))
    client.drop()
    again = _again(bus)
    again.expect(Publish("t/x", b"x", qos, dup=True, packet_id=got.packet_id))
    again.acknowledge(got)
    again.expect_nothing()
    again.drop()
    _again(bus).expect_nothing()


@rules(v5="MQTT-4.4.0-1 MQTT-4.3.2-3")
def test_what_is_acknowledged_before_it_was_sent_again_is_settled(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    for number in range(3):
        publisher.publish("t/1", b"%d" % number, qos=1)
    got = [client.expect(Publish, payload=b"%d" % number) for number in range(3)]
    client.drop()
    again = bus.connect("s", keeps=True, receive_maximum=1)
    again.expect(Publish, payload=b"0", dup=True)
    again.send(PubAck(got[1].packet_id))  # received on the connection before
    again.expect_nothing()
    again.send(PubAck(got[0].packet_id))
    again.expect(Publish, payload=b"2", dup=True)
    again.send(PubAck(got[2].packet_id))
    again.expect_nothing()


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v311="MQTT-4.6.0-5 MQTT-4.6.0-6", v5="MQTT-4.6.0-5 MQTT-4.6.0-6", wire=True)
def test_messages_arrive_in_the_order_they_were_sent(bus: Bus, qos: int) -> None:
    clients = []
    for granted in range(3):
        clients.append(bus.connect(f"s{granted}"))
        clients[-1].subscribe("t", qos=granted)
    publisher = bus.connect("p")
    payloads = [b"%d" % number for number in range(50)]
    publisher.send(*(Publish("t", p, qos, packet_id=i + 1 if qos else 0) for i, p in enumerate(payloads)))
    for granted, client in enumerate(clients):
        got = [client.expect(Publish, topic="t", qos=min(qos, granted)).payload for _ in payloads]
        assert got == payloads


@pytest.mark.parametrize("qos", [1, 2])
@rules(v311="MQTT-4.6.0-6 MQTT-3.1.2-5", v5="MQTT-4.6.0-5 MQTT-3.1.2-5")
def test_messages_in_one_piece_wait_for_a_client_that_is_away(bus: Bus, qos: int) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    packets = [Publish("t/x", b"%d" % number, qos, packet_id=number + 1) for number in range(60)]
    _send(publisher, packets[:20], glued=True)
    early = [client.expect(Publish, payload=packet.payload, dup=False) for packet in packets[:20]]
    client.drop()
    _send(publisher, packets[20:40], glued=True)
    again = _again(bus)
    _send(publisher, packets[40:], glued=True)
    for packet in early:
        again.expect(Publish("t/x", packet.payload, qos, dup=True, packet_id=packet.packet_id))
    late = [again.expect(Publish, payload=packet.payload, qos=qos, dup=False) for packet in packets[20:]]
    assert len({packet.packet_id for packet in (*early, *late)}) == 60
    again.expect_nothing()


@rules(v311="MQTT-4.6.0-6", v5="MQTT-4.6.0-5")
def test_order_survives_queueing_and_a_narrow_window(bus: Bus) -> None:
    bus.configure(limits=Limits(inflight_per_session=3))
    client = _subscriber(bus)
    client.drop()
    publisher = bus.connect("p")
    payloads = [b"%d" % number for number in range(30)]
    for payload in payloads[:20]:
        publisher.publish("t/1", payload, qos=1)
    again = _again(bus)
    got = []
    for number, _ in enumerate(payloads):
        if number < 10:
            publisher.publish("t/1", payloads[20 + number], qos=1)
        packet = again.expect(Publish, qos=1, dup=False)
        got.append(packet.payload)
        again.send(PubAck(packet.packet_id))
    assert got == payloads


@rules(v311="MQTT-4.6.0-1 MQTT-4.6.0-6", v5="MQTT-4.6.0-1 MQTT-4.6.0-5")
def test_resending_keeps_the_order(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    for number in range(9):
        publisher.publish("t/x", b"%d" % number, qos=1 + number % 2)
    got = [client.expect(Publish, payload=b"%d" % number) for number in range(9)]
    client.send(PubAck(got[2].packet_id), PubAck(got[0].packet_id))
    client.drop()
    publisher.publish("t/x", b"9", qos=1)
    again = _again(bus)
    assert [again.expect(Publish).payload for _ in range(8)] == [b"1", b"3", b"4", b"5", b"6", b"7", b"8", b"9"]


@rules(v311="MQTT-4.6.0-4", v5="MQTT-4.6.0-4")
def test_pubrels_go_in_the_order_of_the_pubrecs(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    for number in range(4):
        publisher.publish("t/2", b"%d" % number, qos=2)
    ids = [client.expect(Publish, qos=2).packet_id for _ in range(4)]
    mixed = [ids[2], ids[0], ids[3], ids[1]]
    client.send(*(PubRec(packet_id) for packet_id in mixed))
    assert [client.expect(PubRel).packet_id for _ in mixed] == mixed


# -- flow control ----------------------------------------------------------------------------------


@pytest.mark.parametrize("maximum", [1, 3, 10])
@rules(v5="MQTT-3.3.4-9 MQTT-4.9.0-2")
def test_the_receive_maximum_holds_for_messages_in_one_piece(bus: Bus, maximum: int) -> None:
    client = _subscriber(bus, receive_maximum=maximum)
    for qos in (1, 2):
        packets = [Publish("t/x", b"%d" % number, qos, packet_id=number + 1) for number in range(30)]
        _send(bus.connect("p"), packets, glued=True)
        for number in range(0, 30, maximum):
            batch = packets[number : number + maximum]
            got = [client.expect(Publish, payload=packet.payload, qos=qos) for packet in batch]
            client.expect_nothing()
            for packet in got:
                client.acknowledge(packet) if qos == 1 else client.send(PubRec(packet.packet_id))
            if qos == 2:
                client.send(*(PubComp(client.expect(PubRel).packet_id) for _ in got))


@rules(v5="MQTT-3.3.4-9 MQTT-4.9.0-2")
def test_the_receive_maximum_holds_for_retained_messages(bus: Bus) -> None:
    publisher = bus.connect("p")
    for number in range(10):
        publisher.publish(f"t/{number}", b"kept", qos=1, retain=True)
    client = _subscriber(bus, receive_maximum=3)
    topics = set()
    for _ in range(3):
        batch = [client.expect(Publish, retain=True, qos=1) for _ in range(3)]
        client.expect_nothing()
        topics |= {packet.topic for packet in batch}
        client.send(*(PubAck(packet.packet_id) for packet in batch))
    topics.add(client.expect(Publish, retain=True).topic)
    client.expect_nothing()
    assert len(topics) == 10


@pytest.mark.parametrize("maximum", [1, 3, 10])
@rules(v5="MQTT-3.3.4-9 MQTT-4.9.0-1 MQTT-4.9.0-2", wire=True)
def test_no_more_than_the_receive_maximum_is_unacknowledged(bus: Bus, maximum: int) -> None:
    client = _subscriber(bus, receive_maximum=maximum)
    publisher = bus.connect("p")
    for number in range(20):
        publisher.publish("t/x", b"%d" % number, qos=1 + number % 2)
    waiting = [client.expect(Publish, payload=b"%d" % number) for number in range(maximum)]
    client.expect_nothing()
    for number in range(maximum, 20):
        oldest = waiting.pop(0)
        if oldest.qos == 1:
            client.send(PubAck(oldest.packet_id))
        else:
            client.send(PubRec(oldest.packet_id))
            client.expect(PubRel)
            client.expect_nothing()  # PUBREC alone gives nothing back
            client.send(PubComp(oldest.packet_id))
        waiting.append(client.expect(Publish, payload=b"%d" % number))
        client.expect_nothing()


@rules(v5="MQTT-3.3.4-9 MQTT-4.9.0-2")
def test_the_receive_maximum_of_the_new_connection_counts(bus: Bus) -> None:
    client = _subscriber(bus)
    publisher = bus.connect("p")
    for number in range(6):
        publisher.publish("t/1", b"%d" % number, qos=1)
    for number in range(6):
        client.expect(Publish, payload=b"%d" % number)
    client.drop()
    again = bus.connect("s", keeps=True, receive_maximum=2)
    first = again.expect(Publish, payload=b"0", dup=True)
    again.expect(Publish, payload=b"1", dup=True)
    again.expect_nothing()
    again.send(PubAck(first.packet_id))
    again.expect(Publish, payload=b"2", dup=True)
    again.expect_nothing()


@rules(v5="MQTT-3.3.4-10 MQTT-4.9.0-3")
def test_at_quota_0_everything_else_goes_on(bus: Bus) -> None:
    client = _subscriber(bus, receive_maximum=1)
    client.subscribe("zero", qos=0)
    publisher = bus.connect("p")
    publisher.publish("t/2", b"one", qos=2)
    publisher.publish("t/1", b"two", qos=1)
    one = client.expect(Publish, payload=b"one").packet_id
    client.send(PingReq())
    client.expect(PingResp())
    assert client.subscribe("more") == (0,)
    assert client.unsubscribe("more") == (0,)
    client.publish("elsewhere", b"x", qos=1)
    client.publish("elsewhere", b"x", qos=2)
    publisher.publish("zero", b"qos 0")
    client.expect(Publish("zero", b"qos 0"))
    client.send(PubRec(one))
    client.expect(PubRel(one))
    client.expect_nothing()
    client.send(PubComp(one))
    client.expect(Publish, payload=b"two")
