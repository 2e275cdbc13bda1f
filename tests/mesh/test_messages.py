"""What crosses from broker to broker: where it is wanted, once, and with all that was said of it (TB-15)."""

from typing import Any

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.mesh.offers import MAX_OPEN
from polybus.wire.mqtt.packets import V5, Properties, Publish
from polybus.wire.tbus.crossing import Crossing
from polybus.wire.tbus.packets import MsgAck, Subscribe, Unsubscribe
from polybus.wire.tbus.packets import Publish as TbusPublish
from tests.mesh.network import Network, Wire


def crossed(wire: Wire) -> list[TbusPublish]:
    """The messages that crossed since the last call."""
    found = [p for p in wire.log if isinstance(p, TbusPublish)]
    wire.log.clear()
    return found


def two(**settings: Any) -> Network:
    return Network("a", "b", **settings).mesh()


def three(**settings: Any) -> Network:
    return Network("a", "b", "c", **settings).mesh()


# -- where it is wanted -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_crosses_once_however_many_want_it_there(qos: int) -> None:
    net = two()
    there = [net.b.connect(f"s{n}", V5) for n in range(3)]
    for each in there:
        each.subscribe("t/#", qos=2)
    here = net.a.connect("here")
    here.subscribe("t/+", qos=2)
    net.settle()
    net.a.connect("p").publish("t/1", b"x", qos=qos)
    net.settle()
    assert [p.payload for p in crossed(net.wire("a", "b"))] == [b"x"]
    for each in (*there, here):
        assert [(p.payload, p.qos) for p in each.receive_all()] == [(b"x", qos)]
    net.settle()
    net.check()


def test_nothing_crosses_where_nobody_wants_it() -> None:
    net = three()
    net.b.join("s").subscribe("t")
    net.settle()
    publisher = net.a.join("p")
    publisher.publish("t", b"1")
    publisher.publish("u", b"2")
    net.settle()
    assert [p.payload for p in crossed(net.wire("a", "b"))] == [b"1"]
    assert crossed(net.wire("a", "c")) == []


def test_interest_is_told_once_for_a_filter_and_taken_back_with_the_last() -> None:
    net = two()
    wire = net.wire("a", "b")
    wire.log.clear()
    first, second = net.b.join("1"), net.b.join("2")
    first.subscribe("t")
    second.subscribe("t")
    net.settle()
    assert [p.topic_filter for p in wire.log if isinstance(p, Subscribe)] == ["t"]
    first.drop()
    net.settle()
    assert not [p for p in wire.log if isinstance(p, Unsubscribe)]
    second.unsubscribe("t")
    net.settle()
    assert [p.topic_filter for p in wire.log if isinstance(p, Unsubscribe)] == ["t"]
    net.a.join("p").publish("t")
    net.settle()
    assert crossed(wire) == []


def test_a_neighbour_that_comes_later_is_told_everything_that_is_wanted() -> None:
    net = Network("a", "b")
    net.b.join("s").subscribe("t/#")
    net.a.join("u").subscribe("u")
    net.mesh()
    net.a.join("p").publish("t/1", b"x")
    net.b.join("q").publish("u", b"y")
    net.settle()
    assert sorted(p.payload for p in crossed(net.wire("a", "b"))) == [b"x", b"y"]


def test_what_was_wanted_before_a_link_broke_and_is_no_more_is_forgotten() -> None:
    net = two()
    subscriber = net.b.join("s")
    subscriber.subscribe("t")
    subscriber.subscribe("u")
    net.settle()
    net.cut("a", "b")
    subscriber.unsubscribe("t")
    net.advance(1)
    net.join_all()
    publisher = net.a.join("p")
    publisher.publish("t")
    publisher.publish("u", b"still")
    net.settle()
    assert [p.payload for p in crossed(net.wire("a", "b"))] == [b"still"]
    net.check()


def test_what_is_ready_together_crosses_as_one_bulk() -> None:
    net = two()
    subscriber = net.b.join("s")
    subscriber.subscribe("t")
    net.settle()
    publisher = net.a.join("p")
    with net.a.together():
        for n in range(3):
            publisher.publish("t", b"%d" % n)
    wire = net.wire("a", "b")
    sent = wire.ports[wire.nodes.index(net.a)].sent
    assert sent[0] == 0x60
    assert sent[1] == len(sent) - 2, "one BULK and nothing else"
    net.settle()
    assert subscriber.payloads() == [b"0", b"1", b"2"]


def test_nothing_goes_around_in_circles() -> None:
    net = three()
    peers = [node.connect(f"s{n}") for n, node in enumerate(net.nodes.values())]
    for peer in peers:
        peer.subscribe("#", qos=2)
    net.settle()
    for qos in (0, 1, 2):
        peers[0].publish("t", b"%d" % qos, qos=qos)
    net.settle()
    for peer in peers:
        assert [p.payload for p in peer.receive_all()] == [b"0", b"1", b"2"]
        net.settle()
    assert crossed(net.wire("b", "c")) == []


def test_what_is_a_brokers_own_stays_there() -> None:
    net = two()
    net.b.connect("s").subscribe("$SYS/#", "$memoryLimit", "#")
    net.settle()
    assert not any(s.subscriptions.keys() - {"#"} for s in net.a.mesh.sessions)
    broker = net.a.broker
    broker.publish(broker.subscriptions.route_of("$SYS/x"), Message("$SYS/x", b"1", retain=True))
    net.settle()
    assert crossed(net.wire("a", "b")) == []


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$polybus/answers/1", "$memoryLimit"])
def test_a_neighbour_that_publishes_there_is_sent_away(topic: str) -> None:
    from polybus.wire.tbus.crossing import encode_between

    net = two()
    link = net.wire("a", "b")
    link.called.receive(encode_between(Crossing(topic, b"5")), net.a.now)
    net.settle()
    assert link.is_cut
    assert net.a.broker.storage.max_messages == 500


# -- with all that was said ---------------------------------------------------------------------------


def test_priority_and_everything_mqtt_says_crosses() -> None:
    net = two()
    subscriber = net.b.connect("s", V5)
    subscriber.subscribe("t", qos=1)
    net.settle()
    said = Properties(
        payload_format_indicator=1,
        message_expiry_s=100,
        content_type="text/x",
        response_topic="r",
        correlation_data=b"\x40\xff\xff\0",
        user_properties=(("a", "1"), ("a", "2"), ("polybus-message", "priority")),
    )
    net.a.connect("p", V5).publish("t", b"x", qos=1, properties=said)
    net.settle()
    [got] = subscriber.receive_all()
    assert (got.qos, got.payload) == (1, b"x")
    assert got.properties.message_expiry_s in range(95, 101)
    for name in ("payload_format_indicator", "content_type", "response_topic", "correlation_data"):
        assert getattr(got.properties, name) == getattr(said, name)
    assert got.properties.user_properties[:2] == (("a", "1"), ("a", "2"))
    assert crossed(net.wire("a", "b"))[0].is_priority
    net.settle()
    net.check()


def test_what_expires_on_its_way_is_not_delivered() -> None:
    net = two()
    subscriber = net.b.connect("s", V5)
    subscriber.subscribe("t", qos=1)
    net.settle()
    net.cut("a", "b")
    net.a.connect("p", V5).publish("t", b"x", qos=1, properties=Properties(message_expiry_s=5))
    net.advance(10)
    net.join_all()
    assert subscriber.receive_all() == []


def test_a_message_larger_than_the_neighbour_takes_is_dropped_and_the_link_stays() -> None:
    net = Network("a", "b")
    net.b.broker.limits = Limits(packet_size_bytes=1000)
    net.mesh()
    subscriber = net.b.connect("s")
    subscriber.subscribe("t", qos=1)
    net.settle()
    publisher = net.a.connect("p")
    for qos in (0, 1):
        publisher.publish("t", bytes(2000), qos=qos)
        publisher.publish("t", b"small", qos=qos)
    net.settle()
    assert [p.payload for p in subscriber.receive_all()] == [b"small", b"small"]
    assert net.a.broker.stats.dropped_too_large == 2
    assert net.a.neighbors() == [net.b.own_id]


# -- safe ---------------------------------------------------------------------------------------------


def test_what_is_for_a_neighbour_that_is_away_waits_and_comes_once() -> None:
    net = two()
    subscriber = net.b.connect("s")
    subscriber.subscribe("t", qos=1)
    net.settle()
    net.cut("a", "b")
    publisher = net.a.connect("p")
    publisher.publish("t", b"0", b"1", b"2", qos=1)
    publisher.publish("t", b"lost", qos=0)
    net.settle()
    net.advance(1)
    net.join_all()
    assert [p.payload for p in subscriber.receive_all()] == [b"0", b"1", b"2"]
    net.settle()
    net.check()


def test_what_was_not_acknowledged_is_sent_again_and_taken_once() -> None:
    """The link breaks after the messages have arrived and before their acknowledgement has."""
    net = two()
    subscriber = net.b.connect("s")
    subscriber.subscribe("t", qos=2)
    net.settle()
    wire = net.wire("a", "b")
    publisher = net.a.connect("p")
    publisher.publish("t", b"0", b"1", qos=2)
    publisher.publish("t", b"2", qos=1)
    net.a.go()
    port = wire.ports[wire.nodes.index(net.a)]
    end = wire.called if wire.nodes[1] is net.b else wire.calling
    end.receive(port.take(), net.b.now)
    net.b.go()
    net.cut("a", "b")
    assert [p.payload for p in subscriber.receive_all()] == [b"0", b"1", b"2"]
    net.advance(1)
    net.join_all()
    assert subscriber.receive_all() == []
    assert net.b.broker.stats.crossed_twice == 3
    assert not any(session.inflight for session in net.a.mesh.sessions)
    net.check()


def test_what_waits_for_a_neighbour_is_bounded_and_the_oldest_regular_goes_first() -> None:
    net = two(limits=Limits(queued_messages_per_session=3))
    subscriber = net.b.connect("s", V5)
    subscriber.subscribe("t", qos=1)
    net.settle()
    net.cut("a", "b")
    publisher = net.a.connect("p", V5)
    urgent = Properties(user_properties=(("polybus-message", "priority"),))
    publisher.publish("t", b"urgent", qos=1, properties=urgent)
    for n in range(4):
        publisher.publish("t", b"%d" % n, qos=1)
    net.advance(1)
    net.join_all()
    assert [p.payload for p in subscriber.receive_all()] == [b"urgent", b"2", b"3"]
    assert net.a.broker.stats.dropped_queue_full == 2


def test_a_neighbour_that_stays_away_is_forgotten_with_what_waits() -> None:
    net = two()
    net.b.connect("s").subscribe("t", qos=1)
    net.settle()
    net.cut("a", "b")
    net.a.connect("p").publish("t", b"x", qos=1)
    net.a.advance(1001)
    net.a.advance(1)
    assert net.a.mesh.sessions == ()
    assert not net.a.mesh.members.members
    assert net.a.broker.dispatcher.holdings.size_bytes == 0


# -- messages that wait -------------------------------------------------------------------------------


def test_a_subscription_anywhere_releases_what_waits_and_it_waits_no_more() -> None:
    net = three()
    net.a.join("p").publish("t", b"w", waits_s=60)
    assert net.a.broker.storage.count == 1
    subscriber = net.b.join("s")
    subscriber.subscribe("t")
    net.settle()
    assert subscriber.payloads() == [b"w"]
    assert net.a.broker.storage.count == 0
    later = net.c.join("l")
    later.subscribe("t")
    net.settle()
    assert later.payloads() == []
    net.check()


def test_it_comes_once_when_subscribers_appear_at_two_brokers_at_once() -> None:
    net = three()
    net.a.join("p").publish("t", b"w", waits_s=60)
    subscribers = [net.b.join("s"), net.c.join("s"), net.a.join("s")]
    subscribers[0].subscribe("t")
    subscribers[1].subscribe("t")
    net.settle()
    subscribers[2].subscribe("t")
    net.settle()
    assert [payload for s in subscribers for payload in s.payloads()] == [b"w"]


def test_a_message_that_may_wait_goes_to_everyone_who_is_there() -> None:
    net = three()
    subscribers = [net.b.join("s"), net.c.join("s")]
    for each in subscribers:
        each.subscribe("t")
    net.settle()
    net.a.join("p").publish("t", b"w", waits_s=60)
    net.settle()
    assert [s.payloads() for s in subscribers] == [[b"w"], [b"w"]]
    assert net.a.broker.storage.count == 0
    acks = [p for w in net.wires for p in w.log if isinstance(p, MsgAck)]
    assert [(ack.topic) for ack in acks] == ["t", "t"]


def test_a_neighbour_whose_subscriber_has_just_gone_leaves_it_to_others() -> None:
    net = three()
    gone = net.b.join("s")
    gone.subscribe("t")
    net.settle()
    gone.drop()  # and the news is not here yet
    net.a.join("p").publish("t", b"w", waits_s=60)
    net.settle()
    assert net.a.broker.storage.count == 1
    other = net.c.join("s")
    other.subscribe("t")
    net.settle()
    assert other.payloads() == [b"w"]
    assert net.a.broker.storage.count == 0


def test_an_offer_whose_link_breaks_is_open_to_others_again() -> None:
    net = three()
    net.b.join("s").subscribe("t")
    net.settle()
    net.a.join("p").publish("t", b"w", waits_s=60)
    here = net.a.join("h")
    here.subscribe("t")
    assert here.payloads() == [], "b may be giving it to someone"
    net.wire("a", "b").cut()
    net.a.go()
    assert here.payloads() == [b"w"]
    assert net.a.broker.storage.count == 0
    net.check()


@pytest.mark.parametrize("limits", [Limits(inflight_per_session=3), Limits(inflight_bytes_per_session=500)])
def test_what_the_window_has_no_room_for_is_offered_when_it_has(limits: Limits) -> None:
    net = two(limits=limits)
    publisher = net.a.join("p")
    for n in range(10):
        publisher.publish("t", b"%d" % n, waits_s=60)
    subscriber = net.b.join("s")
    subscriber.subscribe("t")
    net.settle()
    assert subscriber.payloads() == [b"%d" % n for n in range(10)]
    assert net.a.broker.storage.count == 0
    net.check()


def test_what_the_window_had_no_room_for_is_still_for_whoever_comes_here() -> None:
    net = two(limits=Limits(inflight_per_session=3))
    publisher = net.a.join("p")
    for n in range(6):
        publisher.publish("t", b"%d" % n, waits_s=60)
    there, here = net.b.join("s"), net.a.join("s")
    there.subscribe("t")
    net.wire("a", "b").flow()  # a has offered what it can
    here.subscribe("t")
    net.settle()
    assert sorted(there.payloads()) == [b"%d" % n for n in range(6)]
    assert here.payloads() == [b"3", b"4", b"5"]
    assert net.a.broker.storage.count == 0
    net.check()


def test_what_waits_is_offered_after_what_is_sent_again() -> None:
    net = two()
    subscriber = net.b.connect("s")
    subscriber.subscribe("t", qos=1)
    net.settle()
    net.a.connect("p").publish("t", b"tracked", qos=1)
    net.cut("a", "b")  # before it has arrived
    net.a.join("w").publish("u", b"w", waits_s=60)
    waiter = net.b.join("v")
    waiter.subscribe("u")
    net.advance(1)
    net.join_all()
    assert [p.payload for p in subscriber.receive_all()] == [b"tracked"]
    assert waiter.payloads() == [b"w"]
    net.settle()
    net.check()


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_what_waits_is_not_given_to_a_client_that_would_lose_it(topic_filter: str) -> None:
    net = two()
    subscriber = net.b.connect("s")
    subscriber.subscribe(topic_filter)
    net.settle()
    subscriber.block()
    publisher = net.a.join("p")
    publisher.publish("t", b"0", waits_s=60)
    publisher.publish("t", b"1", waits_s=60)
    net.settle()
    assert net.a.broker.storage.count == 2, "it waits where it was"
    subscriber.unblock()
    net.settle()
    assert subscriber.payloads() == [b"0", b"1"]
    assert net.a.broker.storage.count == 0
    net.check()


def test_few_cross_in_vain_while_a_client_is_slow() -> None:
    net = two()
    subscriber = net.b.connect("s")
    subscriber.subscribe("t")
    net.settle()
    subscriber.block()
    publisher = net.a.join("p")
    for n in range(3 * MAX_OPEN):
        publisher.publish("t", b"%d" % n, waits_s=60)
    net.settle()
    assert 0 < len(crossed(net.wire("a", "b"))) <= MAX_OPEN
    subscriber.unblock()
    net.settle()
    assert subscriber.payloads() == [b"%d" % n for n in range(3 * MAX_OPEN)]
    assert net.a.broker.storage.count == 0


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
@pytest.mark.parametrize("who", ["the same", "another"])
def test_what_waits_is_for_a_session_that_comes_back_elsewhere(topic_filter: str, who: str) -> None:
    net = two()
    keeps = {"keeps": True, "clean_start": False}
    away = net.b.connect("s", **keeps)
    away.subscribe(topic_filter, qos=1)
    net.settle()
    away.drop()
    net.a.join("p").publish("t", b"w", waits_s=60)
    net.settle()
    assert net.a.broker.storage.count == 1
    back = net.b.connect("s" if who == "the same" else "other", **keeps)
    if who == "another":
        back.subscribe(topic_filter, qos=1)
    net.settle()
    assert [p.payload for p in back.receive_all()] == [b"w"]
    assert net.a.broker.storage.count == 0
    net.check()


def test_an_answer_to_an_offer_that_has_expired_changes_nothing() -> None:
    net = two()
    far, near = net.b.connect("far"), net.a.connect("near")
    far.subscribe("$share/g/t")
    net.settle()
    net.a.join("p").publish("t", b"w", waits_s=5)
    far.drop()
    net.a.advance(6)
    near.subscribe("$share/g/t")
    net.settle()
    assert near.payloads() == []


def test_what_waits_expires_at_its_own_broker() -> None:
    net = two()
    net.a.join("p").publish("t", b"w", waits_s=5)
    net.advance(6)
    late = net.b.join("s")
    late.subscribe("t")
    net.settle()
    assert late.payloads() == []
    assert net.a.broker.storage.count == 0


# -- shared subscriptions -----------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_group_spans_brokers_and_each_message_comes_once(qos: int) -> None:
    net = three()
    members = [node.connect(f"m{n}", V5) for n, node in enumerate(net.nodes.values())]
    for member in members:
        member.subscribe("$share/g/t", qos=2)
    watcher = net.b.connect("w", V5)
    watcher.subscribe("t", qos=2)
    net.settle()
    publisher = net.a.connect("p")
    for n in range(12):
        publisher.publish("t", b"%d" % n, qos=qos)
        net.settle()
    got = [[p.payload for p in member.receive_all()] for member in members]
    net.settle()
    assert sorted((p for each in got for p in each), key=int) == [b"%d" % n for n in range(12)]
    assert all(got), "each had its turn"
    assert len(watcher.receive_all()) == 12
    assert len(crossed(net.wire("a", "b"))) == 12, "one copy for the group and the others"
    net.settle()
    net.check()


def test_if_the_member_there_has_just_gone_another_gets_it() -> None:
    net = two()
    far, near = net.b.connect("far"), net.a.connect("near")
    far.subscribe("$share/g/t", qos=1)
    net.settle()
    near.subscribe("$share/g/t", qos=1)
    net.b.go()
    far.drop()  # a does not know yet
    publisher = net.a.connect("p")
    publisher.publish("t", b"0", qos=1)
    publisher.publish("t", b"1", qos=1)
    net.settle()
    assert sorted(p.payload for p in near.receive_all()) == [b"0", b"1"]
    net.settle()
    net.check()


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("stays", ["t", "$share/other/t"])
def test_if_only_others_are_there_the_group_gets_it_elsewhere(stays: str, is_told: bool) -> None:
    net = two()
    far, near = net.b.connect("far"), net.a.connect("near")
    far.subscribe("$share/g/t", stays, qos=1)
    net.settle()
    net.b.go()
    net.a.connect("p").publish("t", b"0", qos=1)  # before there was anyone else
    near.subscribe("$share/g/t", qos=1)
    far.unsubscribe("$share/g/t")
    wire = net.wire("a", "b")
    if not is_told:  # the link breaks before b can say that nobody was there
        side = wire.nodes.index(net.a)
        (wire.called, wire.calling)[side].receive(wire.ports[side].take(), net.b.now)
        net.b.go()
        net.cut("a", "b")
        net.advance(1)
        net.join_all()
    net.settle()
    assert [p.payload for p in near.receive_all()] == [b"0"]
    assert [p.payload for p in far.receive_all()] == [b"0"]
    net.settle()
    net.check()
    assert not any(session.load() for session in net.a.mesh.sessions)


# -- retained -----------------------------------------------------------------------------------------


def retained(net: Network, name: str, topic: str = "t") -> bytes | None:
    found = net.nodes[name].broker.retained.get(topic)
    return None if found is None else found.payload


def test_every_broker_has_what_is_retained() -> None:
    net = three()
    net.a.connect("p").publish("t", b"v", retain=True)
    net.settle()
    for name in net.nodes:
        peer = net.nodes[name].connect("s", V5)
        peer.subscribe("t")
        assert [(p.payload, p.retain) for p in peer.take(Publish)] == [(b"v", True)]
    net.a.connect("q").publish("t", b"", retain=True)
    net.settle()
    assert [retained(net, name) for name in net.nodes] == [None, None, None]


def test_a_subscriber_elsewhere_gets_what_is_retained_once_as_a_message() -> None:
    net = two()
    peer = net.b.connect("s", V5)
    peer.subscribe("t")
    net.settle()
    net.a.connect("p").publish("t", b"v", retain=True)
    net.settle()
    assert [(p.payload, p.retain) for p in peer.take(Publish)] == [(b"v", False)]


def test_brokers_that_meet_have_the_newest_of_both() -> None:
    net = Network("a", "b")
    net.a.connect("p").publish("old", b"a", retain=True)
    net.b.connect("p").publish("new", b"b", retain=True)
    net.advance(1)
    net.b.connect("q").publish("old", b"b", retain=True)
    net.a.connect("q").publish("new", b"a", retain=True)
    watcher = net.b.connect("w")
    watcher.subscribe("new")
    assert watcher.payloads() == [b"b"]
    net.mesh()
    assert [retained(net, name, topic) for name in net.nodes for topic in ("old", "new")] == [b"b", b"a"] * 2
    assert watcher.payloads() == [b"a"], "it missed that one"


def test_what_was_deleted_while_a_link_was_broken_stays_deleted() -> None:
    net = two()
    net.a.connect("p").publish("t", b"v", retain=True)
    net.settle()
    assert retained(net, "b") == b"v"
    net.cut("a", "b")
    net.advance(1)
    net.a.connect("p").publish("t", b"", retain=True)
    net.join_all()
    assert [retained(net, name) for name in net.nodes] == [None, None]


def test_a_newcomers_clients_hear_nothing_of_what_was_deleted_before() -> None:
    net = Network("a", "b", "c")
    net.call("a", "b")
    net.settle()
    publisher = net.a.connect("p")
    for value in (b"v", b""):
        publisher.publish("t", value, retain=True)
        net.advance(1)
    curious = net.c.connect("s")
    curious.subscribe("#")
    net.call("c", "a")
    net.settle()
    assert curious.take(Publish) == []
    assert not net.c.broker.retained.is_news(Message("t", b"v", retain=True, stamp=1)), "but it is known"


def test_both_publish_at_once_and_choose_alike() -> None:
    net = two()
    net.a.connect("p").publish("t", b"a", retain=True)
    net.b.connect("p").publish("t", b"b", retain=True)
    net.settle()
    assert retained(net, "a") == retained(net, "b")


def test_retained_and_tracked_it_comes_once_after_a_link_was_broken() -> None:
    net = two()
    subscriber = net.b.connect("s")
    subscriber.subscribe("t", qos=1)
    net.settle()
    net.cut("a", "b")
    net.a.connect("p").publish("t", b"v", qos=1, retain=True)
    net.advance(1)
    net.join_all()
    assert [p.payload for p in subscriber.receive_all()] == [b"v"]
    assert retained(net, "b") == b"v"
