"""What a client sends again after a crash, and what it takes for new: as MQTT says."""

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from polybus.wire.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel, ReasonCode
from tests.e2e.crash.session import Accepted, Arrived, ClientSession, Completed, Strange

ONE, TWO = Publish("t", b"1", 1), Publish("t", b"2", 2)


def test_qos_0_is_sent_and_forgotten() -> None:
    session = ClientSession()
    assert session.publish(Publish("t"), "x") == Publish("t")
    assert session.resume(is_present=True) == []


def test_what_is_unacknowledged_is_sent_again_in_order_with_dup_and_the_same_id() -> None:
    session = ClientSession()
    first, second, third = session.publish(ONE, 1), session.publish(TWO, 2), session.publish(ONE, 3)
    assert (first.packet_id, second.packet_id, third.packet_id) == (1, 2, 3)
    session.receive(PubRec(2))
    assert session.resume(is_present=True) == [replace(first, dup=True), PubRel(2), replace(third, dup=True)]
    assert session.receive(PubAck(1)) == ([Accepted(1)], [])
    assert session.resume(is_present=True) == [PubRel(2), replace(third, dup=True)]


def test_without_its_session_it_sends_anew_what_the_broker_never_took() -> None:
    session = ClientSession()
    first, second = session.publish(ONE, 1), session.publish(TWO, 2)
    session.publish(TWO, 3)
    session.receive(PubRec(3))
    session.receive(Publish("t", b"x", 2, packet_id=9))
    assert session.resume(is_present=False) == [first, second]
    assert session.incoming == {}


def test_qos_2_is_accepted_once_and_completed() -> None:
    session = ClientSession()
    packet_id = session.publish(TWO, "x").packet_id
    assert session.receive(PubRec(packet_id)) == ([Accepted("x")], [PubRel(packet_id)])
    assert session.receive(PubRec(packet_id)) == ([], [PubRel(packet_id)])
    assert session.receive(PubComp(packet_id)) == ([Completed("x")], [])
    assert session.outgoing == {}


@pytest.mark.parametrize(("message", "acknowledgement"), [(ONE, PubAck), (TWO, PubRec)])
def test_a_refusal_ends_it(message: Publish, acknowledgement: type[PubAck] | type[PubRec]) -> None:
    session = ClientSession()
    packet_id = session.publish(message, "x").packet_id
    events, replies = session.receive(acknowledgement(packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert (events, replies) == ([Accepted("x", ReasonCode.QUOTA_EXCEEDED)], [])
    assert changed(Accepted("x"), reason_code=ReasonCode.QUOTA_EXCEEDED).is_refused
    assert session.outgoing == {}


def test_qos_1_is_handed_over_each_time_it_comes() -> None:
    session = ClientSession()
    message = replace(ONE, packet_id=7)
    for _ in range(2):
        assert session.receive(message) == ([Arrived(message)], [PubAck(7)])


def test_qos_2_is_handed_over_once_across_connections() -> None:
    session = ClientSession()
    message = replace(TWO, packet_id=7)
    assert session.receive(message) == ([Arrived(message)], [PubRec(7)])
    session.resume(is_present=True)
    assert session.receive(replace(message, dup=True)) == ([], [PubRec(7)])
    assert session.receive(PubRel(7)) == ([], [PubComp(7)])
    assert session.receive(PubRel(7)) == ([], [PubComp(7)])
    assert session.receive(message) == ([Arrived(message)], [PubRec(7)])


def test_an_id_that_is_in_use_for_another_message_is_noticed() -> None:
    session = ClientSession()
    session.receive(Publish("t", b"old", 2, packet_id=7))
    (event,), _ = session.receive(Publish("t", b"new", 2, packet_id=7))
    assert isinstance(event, Strange)


@pytest.mark.parametrize(
    ("published", "packet"),
    [
        (None, PubAck(1)),
        (None, PubRec(1)),
        (None, PubComp(1)),
        (ONE, PubRec(1)),
        (TWO, PubAck(1)),
        (TWO, PubComp(1)),
    ],
)
def test_an_acknowledgement_of_nothing_is_strange(
    published: Publish | None, packet: PubAck | PubRec | PubComp
) -> None:
    session = ClientSession()
    if published is not None:
        session.publish(published, "x")
    events, _ = session.receive(packet)
    assert [type(event) for event in events] == [Strange]


def test_ids_go_around_and_pass_over_those_in_use() -> None:
    session = ClientSession()
    session.publish(ONE, 1)
    for number in range(2, 0x10000):
        session.publish(ONE, number)
        session.receive(PubAck(number))
    assert session.publish(ONE, "again").packet_id == 2
