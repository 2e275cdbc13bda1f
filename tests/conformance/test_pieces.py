"""Packets that arrive in one piece, cut anywhere, or in their long form: as good as any other."""

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
)

from . import raw
from .harness import Bus, Client
from .rules import rules
from .stand_ins import Fenced, SlowDisk


def _watcher(bus: Bus) -> Client:
    watcher = bus.connect("w")
    watcher.subscribe("#", qos=0)
    return watcher


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


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v311="MQTT-3.3.4-1 MQTT-4.6.0-6", v5="MQTT-3.3.4-1 MQTT-4.6.0-5 MQTT-4.2-1")
def test_neighbours_may_be_cut_anywhere(bus: Bus, qos: int) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    packets = [
        raw.publish(bus.version, "t", b"%d" % n, flags=qos << 1, packet_id=n + 1 if qos else None)
        for n in range(3)
    ]
    data = b"".join(packets)
    for cut in range(1, len(data)):
        client.send_raw(data[:cut], data[cut:])
        answers = client.received()
        assert len(answers) == (3 if qos else 0)
        client.send(*(PubRel(answer.packet_id) for answer in answers if isinstance(answer, PubRec)))
        client.received()
        assert watcher.received() == [Publish("t", b"%d" % n) for n in range(3)]


@pytest.mark.parametrize("qos", [1, 2])
@rules(v311="MQTT-3.3.5-2 MQTT-3.3.4-1", v5="MQTT-3.4.2-1 MQTT-3.5.2-1 MQTT-3.3.4-1")
def test_forbidden_neighbours_are_all_refused(bus: Bus, qos: int) -> None:
    bus.configure(access=Access(authorizer=Fenced()))
    watcher = _watcher(bus)
    client = bus.connect("p")
    client.send(*(Publish("secret/t", b"x", qos, packet_id=n) for n in range(1, 6)))
    code = ReasonCode.NOT_AUTHORIZED if bus.version >= V5 else 0
    for n in range(1, 6):
        client.expect(PubAck(n, code) if qos == 1 else PubRec(n, code))
    watcher.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
@rules(v311="MQTT-2.3.1-1", v5="MQTT-2.2.1-3")
def test_packet_id_0_among_neighbours_is_noticed(bus: Bus, qos: int) -> None:
    client = bus.connect("p")
    ids = (1, 2, 0, 3)
    client.send_raw(
        b"".join(raw.publish(bus.version, "t", b"x", flags=qos << 1, packet_id=packet_id) for packet_id in ids)
    )
    while client.peek() in (PubAck, PubRec):
        client.expect(client.peek() or PubAck)
    client.expect_closed(ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)


@rules(v311="MQTT-4.3.3-2", v5="MQTT-4.3.3-10")
def test_equal_neighbours_are_one_message_at_qos_2(bus: Bus) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    client.send(*[Publish("t", b"x", 2, packet_id=5)] * 4)
    assert client.received() == [PubRec(5)] * 4
    assert watcher.received() == [Publish("t", b"x")]


@pytest.mark.parametrize("qos", [0, 1, 2])
@rules(v5="MQTT-3.3.2-17 MQTT-3.3.2-20")
def test_neighbours_of_one_size_keep_their_own_properties(bus: Bus, qos: int) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    said = Properties(content_type="abc")  # six bytes in the place of six bytes of payload
    packets = [
        Publish("t", b"x" if n % 3 else b"yyyyyyx", qos, packet_id=n + 1 if qos else 0, properties=p)
        for n, p in enumerate([said if n % 3 else Properties() for n in range(12)])
    ]
    client.send(*packets)
    got = [(p.payload, p.properties) for p in watcher.received() if isinstance(p, Publish)]
    assert got == [(p.payload, p.properties) for p in packets]


@pytest.mark.parametrize("glued", [False, True])
@rules(v5="MQTT-3.3.4-7")
def test_qos_1_counts_until_its_puback_has_left(bus: Bus, glued: bool) -> None:
    bus.configure(limits=Limits(receive_maximum=3), journal=SlowDisk())
    client = bus.connect("c")
    packets = [Publish("t", b"x", 1, packet_id=number) for number in range(1, 5)]
    if glued:
        client.send(*packets)
    else:
        for packet in packets:
            client.send(packet)
    client.expect_closed(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


# -- acknowledgements, short and long ----------------------------------------------------------------

LONG = ("00", "0000", "000b1f0003776879260000" + "0000")
"""A reason code; and a property length; and a reason string with a user property."""


@pytest.mark.parametrize("rest", LONG)
@rules(v5="MQTT-4.3.3-11 MQTT-4.3.3-12 MQTT-3.7.2-1")
def test_a_long_pubrel_is_as_good_as_a_short_one(bus: Bus, rest: str) -> None:
    watcher = _watcher(bus)
    client = bus.connect("p")
    for number in range(2):
        client.send(Publish("t", b"%d" % number, 2, packet_id=5))
        client.expect(PubRec(5))
        client.send_raw(raw.frame(0x62, raw.u16(5), bytes.fromhex(rest)))
        client.expect(PubComp(5))
        watcher.expect(Publish("t", b"%d" % number))


@pytest.mark.parametrize("rest", LONG)
@rules(v5="MQTT-4.3.2-3 MQTT-4.3.3-4 MQTT-4.3.3-5")
def test_long_acknowledgements_settle_deliveries(bus: Bus, rest: str) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    for qos in (1, 2):
        publisher.publish("t", b"x", qos=qos)
        got = client.expect(Publish, qos=qos)
        tail = raw.u16(got.packet_id) + bytes.fromhex(rest)
        if qos == 1:
            client.send_raw(raw.frame(0x40, tail))
        else:
            client.send_raw(raw.frame(0x50, tail))
            client.expect(PubRel(got.packet_id))
            client.send_raw(raw.frame(0x70, tail))
    client.expect_nothing()
    client.drop()
    bus.connect("s", keeps=True).expect_nothing()


@rules(v311="MQTT-4.3.3-2 MQTT-4.3.3-1", v5="MQTT-4.3.3-11 MQTT-4.3.3-5 MQTT-2.2.1-5")
def test_acknowledgements_in_one_piece_each_count(bus: Bus) -> None:
    client = bus.connect("s", keeps=True)
    client.subscribe("t", qos=2)
    publisher = bus.connect("p")
    publisher.send(*(Publish("t", b"%d" % n, 2, packet_id=n + 1) for n in range(6)))
    assert publisher.received() == [PubRec(n + 1) for n in range(6)]
    publisher.send(*(PubRel(n + 1) for n in (5, 0, 3, 1, 4, 2)))
    assert publisher.received() == [PubComp(n + 1) for n in (5, 0, 3, 1, 4, 2)]
    ids = [client.expect(Publish, payload=b"%d" % n).packet_id for n in range(6)]
    client.send(*(PubRec(packet_id) for packet_id in ids[:4]))
    assert client.received() == [PubRel(packet_id) for packet_id in ids[:4]]
    client.send(*(PubComp(packet_id) for packet_id in ids[1:3]))
    client.drop()
    again = bus.connect("s", keeps=True)
    expected = {ids[0]: PubRel, ids[3]: PubRel, ids[4]: Publish, ids[5]: Publish}
    got = [p for p in again.received() if isinstance(p, PubRel | Publish)]
    assert {p.packet_id: type(p) for p in got} == expected
