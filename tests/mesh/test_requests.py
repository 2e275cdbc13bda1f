"""Requests whose services are at other brokers: each ends once, and its requester knows how (TB-15)."""

import pytest

from polybus.broker.services import ServiceRule
from polybus.wire.mqtt.packets import V5, Properties, Publish
from polybus.wire.tbus.crossing import BrokerReqAck
from polybus.wire.tbus.packets import Publish as TbusPublish
from polybus.wire.tbus.packets import ReqAck, RequestState
from tests.broker.bus import Asked, Peer, Stop, one
from tests.mesh.network import Network
from tests.session.tbus import answer, connect, messages, properties, request


def two() -> tuple[Network, Peer]:
    net = Network("a", "b").mesh()
    return net, net.a.join("asker")


def three() -> tuple[Network, Peer]:
    net = Network("a", "b", "c").mesh()
    return net, net.a.join("asker")


def served(net: Network, name: str, topic: str = "t", *, at_once: int = 1, client_id: str = "s") -> Peer:
    peer = net.nodes[name].service(client_id, topic, at_once=at_once)
    net.settle()
    return peer


def answer_one(net: Network, service: Peer, payload: bytes) -> None:
    assert service.answer(one(service), payload)
    net.settle()


def check_over(net: Network) -> None:
    """No request is left anywhere."""
    net.check()
    for node in net.nodes.values():
        assert node.broker.requests.under_way == {}
        assert node.broker.requests.size_bytes == node.broker.storage.count == 0


def test_a_request_is_answered_by_a_service_elsewhere() -> None:
    net, asker = two()
    service = served(net, "b", "t/#")
    asker.request("t/1", b"?")
    net.settle()
    asked = one(service)
    assert (asked.topic, asked.payload) == ("t/1", b"?")
    assert asked.requester == f"{net.a.own_id}\x03asker", "the way back begins with the broker's id"
    service.answer(asked, b"!")
    net.settle()
    assert asker.ends() == [("ANSWERED", b"!")]
    states = [p.state for p in net.wire("a", "b").log if isinstance(p, ReqAck)]
    assert states == [RequestState.DELIVERED]
    check_over(net)


def test_local_services_come_first() -> None:
    net, asker = two()
    far, near = served(net, "b"), served(net, "a")
    asker.request("t", b"1")
    net.settle()
    assert (near.asked(), far.asked()) == ([b"1"], [])
    asker.request("t", b"2")
    net.settle()
    assert (near.asked(), far.asked()) == ([], [b"2"]), "but rather a free one elsewhere than a busy one here"
    asker.request("t", b"3")
    net.settle()
    assert (near.asked(), far.asked()) == ([], [])
    net.check()


@pytest.mark.parametrize("strategy", ["round_robin", "random", "fastest"])
def test_local_services_come_first_with_every_strategy(strategy: str) -> None:
    from polybus.broker.services import ServiceRule

    net = Network("a", "b", default_service=ServiceRule(strategy=strategy)).mesh()
    asker = net.a.join("asker")
    far, near = served(net, "b", at_once=9), served(net, "a", at_once=3)
    for n in range(5):
        asker.request("t", b"%d" % n)
        net.settle()
    assert (near.asked(), far.asked()) == ([b"0", b"1", b"2"], [b"3", b"4"])


def test_a_free_service_is_found_though_another_broker_is_asked_first() -> None:
    net, asker = three()
    busy, free = served(net, "b"), served(net, "c")
    busy_asker = net.b.join("other")
    busy_asker.request("t", b"long")
    assert busy.asked() == [b"long"]
    asker.request("t", b"?")
    net.settle()
    assert free.asked() == [b"?"]
    refusals = [p for p in net.wire("a", "b").log if isinstance(p, BrokerReqAck)]
    assert [(p.state, p.is_busy) for p in refusals] == [(RequestState.NOT_DELIVERED, 1)]


def test_if_all_are_busy_it_waits_and_the_first_that_is_free_gets_it() -> None:
    net, asker = three()
    services = {name: served(net, name) for name in ("b", "c")}
    for name in ("b", "c"):
        net.nodes[name].join("own").request("t", b"long")
    tasks = {name: one(service) for name, service in services.items()}
    asker.request("t", b"?")
    net.settle()
    assert services["b"].asked() == services["c"].asked() == []
    services["c"].answer(tasks["c"], b"done")
    net.settle()
    assert services["c"].asked() == [b"?"]
    net.check()


def test_one_that_found_no_service_asks_again_when_another_has_come_at_once() -> None:
    """Within one tick a service goes, a request comes and is refused, and another service comes: what clients
    there want is the same as before, but who was refused has to be told."""
    net, asker = two()
    first = served(net, "b")
    with net.b.together():
        first.unsubscribe("t")
        asker.request("t", b"?", timeout_s=60)
        net.wire("a", "b").flow()
        second = net.b.service("s2", "t", at_once=1)
    net.settle()
    assert second.asked() == [b"?"]


def test_how_many_a_service_takes_by_the_rule_counts_elsewhere_too() -> None:
    net = Network("a", "b", default_service=ServiceRule(concurrency=3)).mesh()
    asker = net.a.join("asker")
    service = net.b.service("s", "t")
    net.settle()
    for number in range(5):
        asker.request("t", b"%d" % number)
    net.settle()
    assert service.asked() == [b"0", b"1", b"2"]


def test_what_waits_its_turn_elsewhere_goes_to_a_local_service_that_comes() -> None:
    net, asker = two()
    far = served(net, "b")
    net.b.join("own").request("t", b"long")
    asker.request("t", b"?")
    net.settle()
    near = served(net, "a")
    assert (near.asked(), far.asked()) == ([b"?"], [b"long"])


def test_a_request_that_waits_is_released_by_a_service_anywhere() -> None:
    net, asker = three()
    asker.request("t", b"?", timeout_s=60)
    assert net.a.broker.storage.count == 1
    service = served(net, "c")
    answer_one(net, service, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    assert net.a.broker.storage.count == 0


def test_without_any_service_and_without_leave_to_wait_it_ends() -> None:
    net, asker = two()
    served(net, "b", "other")
    asker.request("t", b"?")
    net.settle()
    assert asker.ends() == [("NOT_DELIVERED", b"")]


def test_an_answer_for_a_requester_that_is_away_waits_at_its_own_broker() -> None:
    net, asker = two()
    service = served(net, "b")
    asker.request("t", b"?", timeout_s=60)
    net.settle()
    asker.drop()
    answer_one(net, service, b"!")
    assert net.a.broker.storage.count == 1
    back = net.a.join("asker")
    assert back.ends() == [("ANSWERED", b"!")]
    check_over(net)


def test_cancel_is_carried_to_the_service() -> None:
    net, asker = two()
    service = served(net, "b")
    packet_id = asker.request("t", b"?")
    net.settle()
    asked = one(service)
    assert asker.cancel(packet_id)
    net.settle()
    assert asker.ends() == [("CANCELED", b"")]
    assert [stop.packet_id for stop in service.take(Stop)] == [asked.packet_id]
    assert not service.answer(asked, b"late")
    net.settle()
    assert asker.ends() == []
    check_over(net)


def test_a_timeout_is_told_by_the_owner_and_the_service_is_told_to_stop() -> None:
    net, asker = two()
    service = served(net, "b")
    asker.request("t", b"?", timeout_s=3)
    net.settle()
    net.advance(4)
    assert asker.ends() == [("TIMED_OUT", b"")]
    assert len(service.take(Stop)) == 1
    net.settle()
    check_over(net)


def test_an_error_of_the_service_is_told() -> None:
    net, asker = two()
    service = served(net, "b")
    asker.request("t", b"?")
    net.settle()
    assert service.fail(one(service), "cannot do it")
    net.settle()
    [end] = asker.take_ends("ERROR")
    assert end.reason == "cannot do it"


def test_priority_crosses_both_ways() -> None:
    net, asker = two()
    service = served(net, "b")
    asker.request("t", b"?", priority=True)
    net.settle()
    asked = one(service)
    assert asked.priority
    service.answer(asked, b"!")
    net.settle()
    publishes = [p for p in net.wire("a", "b").log if isinstance(p, TbusPublish)]
    assert [p.is_priority for p in publishes] == [True, True]


def test_a_service_that_goes_away_loses_it_to_another_there() -> None:
    net, asker = two()
    first = served(net, "b")
    asker.request("t", b"?")
    net.settle()
    assert first.asked() == [b"?"]
    second = served(net, "b", client_id="s2")
    first.drop()
    net.settle()
    answer_one(net, second, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]


def test_a_service_that_goes_away_loses_it_to_one_at_another_broker() -> None:
    net, asker = three()
    first = served(net, "b")
    asker.request("t", b"?")
    net.settle()
    assert first.asked() == [b"?"]
    second = served(net, "c")
    first.drop()
    net.settle()
    answer_one(net, second, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    net.check()


def test_a_request_that_ends_services_is_given_up_in_the_end() -> None:
    net, asker = two()
    asker.request("t", b"killer", timeout_s=600)
    for n in range(20):
        service = served(net, "b", client_id=f"s{n}")
        service.drop()
        net.settle()
        if ends := asker.ends():
            assert ends == [("ERROR", b"")]
            break
    else:
        raise AssertionError("it never ended")
    net.check()


def test_a_link_that_breaks_with_a_request_in_hand_gives_it_to_others_or_has_it_wait() -> None:
    net, asker = three()
    service = served(net, "b")
    asker.request("t", b"?", timeout_s=60)
    net.settle()
    assert service.asked() == [b"?"]
    net.cut("a", "b")
    assert len(service.take(Stop)) == 1, "its requester is out of reach"
    assert asker.ends() == []
    other = served(net, "c")
    answer_one(net, other, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    net.check()


def test_a_link_that_breaks_ends_what_may_not_wait() -> None:
    net, asker = two()
    served(net, "b")
    asker.request("t", b"?")
    net.settle()
    net.cut("a", "b")
    assert asker.ends() == [("NOT_DELIVERED", b"")]


def test_an_answer_over_the_next_link_belongs_to_nothing_and_nobody_minds() -> None:
    net, asker = two()
    service = served(net, "b")
    asker.request("t", b"?", timeout_s=60)
    net.settle()
    asked = one(service)
    net.cut("a", "b")
    assert not service.answer(asked, b"too late")
    net.advance(1)
    net.join_all()
    answer_one(net, service, b"again")
    assert asker.ends() == [("ANSWERED", b"again")]
    net.check()


def test_a_neighbours_request_goes_to_no_third_broker() -> None:
    net, asker = three()
    near = served(net, "b")
    asker.request("t", b"1")
    net.settle()
    far = served(net, "c")
    near.unsubscribe("t")
    net.settle()
    wire = net.wire("b", "c")
    assert not [p for p in wire.log if isinstance(p, TbusPublish)]
    near.drop()
    net.settle()
    assert far.asked() == [b"1"], "its own broker found the other one"
    assert not [p for p in wire.log if isinstance(p, TbusPublish)]


def test_a_slow_neighbour_is_told_later_and_nothing_is_lost() -> None:
    net, asker = two()
    service = served(net, "b", at_once=5)
    for n in range(5):
        asker.request("t", b"%d" % n)
    net.settle()
    wire = net.wire("a", "b")
    end = wire.calling if wire.nodes[0] is net.b else wire.called
    end.on_blocked()
    for asked in service.take(Asked):
        service.answer(asked, asked.payload)
    net.settle()
    assert asker.ends() == []
    end.on_unblocked(net.b.now)
    net.settle()
    assert sorted(asker.ends()) == [("ANSWERED", b"%d" % n) for n in range(5)]
    net.check()


def test_mqtt_asks_and_serves_across() -> None:
    net = Network("a", "b").mesh()
    service = net.b.connect("s", V5)
    from polybus.wire.mqtt.packets import Subscribe, SubscriptionRequest

    offer = Properties(user_properties=(("polybus-service", "yes"),))
    service.send(Subscribe(1, (SubscriptionRequest("t", 0),), offer))
    net.settle()
    service.packets()
    asker = net.a.connect("asker", V5)
    asker.subscribe("answers")
    how = Properties(
        response_topic="answers",
        correlation_data=b"c",
        content_type="text/q",
        user_properties=(("polybus-request", "managed"), ("who", "me")),
    )
    asker.publish("t", b"?", properties=how)
    net.settle()
    [asked] = service.take(Publish)
    assert (asked.payload, asked.properties.content_type) == (b"?", "text/q")
    assert asked.properties.correlation_data == b"c"
    assert ("who", "me") in asked.properties.user_properties
    back = Properties(correlation_data=b"c", user_properties=(("by", "s"),))
    service.publish(str(asked.properties.response_topic), b"!", properties=back)
    net.settle()
    [end] = asker.take(Publish)
    assert (end.topic, end.payload, end.properties.correlation_data) == ("answers", b"!", b"c")
    assert set(end.properties.user_properties) == {("by", "s"), ("polybus-status", "answered")}


def test_a_tbus_service_sees_who_asks_and_answers_with_it() -> None:
    net = Network("a", "b").mesh()
    service, asker = connect(net.b, "s"), connect(net.a, "asker")
    service.subscribe("t")
    net.settle()
    asker.say(request("t", b"?", 7))
    net.settle()
    ((first_byte, body),) = messages(service.heard())
    assert first_byte == 0x31
    said = properties(body[2:-1])
    assert said[0x08] == f"{net.a.own_id}\x03asker".encode()
    assert said[0x40] == b"\0\x07"
    service.say(answer(said[0x08].decode(), 7, b"!"))
    net.settle()
    ((first_byte, body),) = messages(asker.heard())
    assert (first_byte, body[-1:]) == (0x34, b"!")
    assert properties(body[:-1])[0x08] == b"asker"


def test_a_neighbour_that_asks_in_the_name_of_others_or_answers_them_is_sent_away() -> None:
    from polybus.wire.tbus.crossing import Crossing, encode_between

    for packet in (
        Crossing("t", b"", is_request=True, response_destination="10.9.9.9:1\x03x", packet_id=1),
        Crossing(None, b"", is_response=True, response_destination="10.9.9.9:1\x03x", packet_id=1),
        ReqAck(1, RequestState.ERROR, "x"),
    ):
        net = Network("a", "b").mesh()
        link = net.wire("a", "b")
        link.called.receive(
            encode_between(packet if isinstance(packet, Crossing) else BrokerReqAck(1, packet.state, "x")),
            net.a.now,
        )
        net.settle()
        assert link.is_cut
