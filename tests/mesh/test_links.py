"""How brokers find each other, and who is not let in (TB-14, TB-15)."""

import pytest

from polybus.broker.access import Access
from polybus.wire.tbus.packets import Disconnect
from tests.mesh.network import Network, Node
from tests.session.tbus import TbusPeer, connack_code, connect, messages, properties, wire


def test_a_newcomer_is_told_of_the_others_and_links_with_all() -> None:
    net = Network("a", "b", "c", "d").mesh()
    for name, node in net.nodes.items():
        assert node.neighbors() == sorted(n.own_id for other, n in net.nodes.items() if other != name)
    assert sum(not wire.is_cut for wire in net.wires) == 6
    net.check()


@pytest.mark.parametrize("first", ["a", "b"])
def test_two_that_call_each_other_at_once_have_one_link(first: str) -> None:
    """It is the call of the one with the smaller id."""
    net = Network("a", "b")
    second = "b" if first == "a" else "a"
    wires = {first: net.call(first, second), second: net.call(second, first)}
    net.settle()
    assert [w.is_cut for w in (wires["a"], wires["b"])] == [False, True]
    assert net.a.neighbors() == [net.b.own_id]
    assert net.b.neighbors() == [net.a.own_id]
    assert net.join_all().wire("a", "b") is wires["a"], "and nobody calls again"


def test_a_broker_that_calls_itself_is_refused_and_does_not_call_again() -> None:
    net = Network("a")
    wire = net.call("a", "a")
    net.settle()
    assert "itself" in wire.refusals[0]


def test_a_broker_that_answers_with_our_own_id_is_called_no_more() -> None:
    """As when the address in the configuration is another of our own."""
    net = Network("a", "b")
    net.b.mesh.options = net.a.mesh.options
    wire = net.call("a", "b")
    net.settle()
    assert wire.refusals
    assert net.b.own_id not in net.a.mesh.members.members


def test_an_id_that_is_linked_is_refused_and_the_older_link_is_asked_whether_it_lives() -> None:
    net = Network("a", "b")
    old = net.call("b", "a")
    net.settle()
    new = net.call("b", "a")
    net.settle()
    assert "132" in new.refusals[0]
    assert net.a.neighbors() == [net.b.own_id]
    net.advance(6)
    assert not old.is_cut, "it answered"


def test_an_older_link_that_is_dead_makes_room() -> None:
    net = Network("a", "b")
    old = net.call("b", "a")
    net.settle()
    old.is_cut = True  # and nobody was told
    new = Network("a", "b")
    new.nodes = {"a": net.a, "b": new.b}
    new.call("b", "a")
    new.settle()
    new.advance(6)
    assert net.a.neighbors() == []
    net.wires.clear()
    new.call("b", "a")
    new.settle()
    assert net.a.neighbors() == [net.b.own_id]


def test_a_broker_from_elsewhere_needs_the_token() -> None:
    net = Network("a", "b")
    refused = net.call("b", "a", peer="10.9.9.9:1234")
    net.settle()
    assert "mesh.token" in refused.refusals[0]
    assert net.a.neighbors() == []


def test_the_token_lets_in_and_a_wrong_one_does_not() -> None:
    net = Network("a", "b", token="let me in")
    net.call("b", "a", peer="10.9.9.9:1234")
    net.settle()
    assert net.a.neighbors() == [net.b.own_id]
    other = Network("a", "b", token="open sesame")
    other.nodes["a"] = net.a
    wire = other.call("b", "a")
    other.settle()
    assert "135" in wire.refusals[0]
    assert "open sesame" not in wire.refusals[0]


def test_where_clients_have_to_log_in_a_neighbour_needs_the_token_too() -> None:
    class Nobody:
        def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
            return False

        may_subscribe = may_publish

    net = Network("a", "b", access=Access(authorizer=Nobody()))
    wire = net.call("b", "a")
    net.settle()
    assert "mesh.token" in wire.refusals[0]


def test_a_broker_that_takes_no_neighbours_says_so() -> None:
    net = Network("a", "b", is_open=False)
    wire = net.call("b", "a")
    net.settle()
    assert "takes no neighbours" in wire.refusals[0]


def test_the_list_of_brokers_is_bounded_and_bad_addresses_are_passed_over() -> None:
    node = Node("10.0.0.1:5035")
    members = node.mesh.members
    bad = members.learn("10.0.0.2:5035;example.com:5035;;10.0.0.3:99999;10.0.0.1:5035;[::1]:7", 0)
    assert bad == ["example.com:5035", "", "10.0.0.3:99999"]
    assert set(members.members) == {"10.0.0.2:5035", "[::1]:7"}
    flood = ";".join(f"10.1.0.{n}:5035" for n in range(200))
    assert members.learn(flood, 0)
    assert len(members.members) == 8


def test_neighbours_do_not_count_as_clients_and_a_client_without_room_is_told_of_them() -> None:
    from polybus.broker.limits import Limits

    net = Network("a", "b", limits=Limits(connections=1))
    net.call("b", "a")
    net.settle()
    connect(net.a, "first")
    second = TbusPeer(net.a)
    second.say("10 05 0000 02 'zz'")
    ((first_byte, body),) = messages(second.heard())
    assert (first_byte, body[0]) == (0x20, 131)
    assert properties(body[1:])[0x1C] == net.b.own_id.encode()


def test_a_client_that_claims_to_be_a_broker_with_a_name_that_is_no_address() -> None:
    from polybus.session.tbus.joining import Gate
    from polybus.session.tbus.link import TbusLink
    from polybus.session.tbus.options import TbusOptions

    node = Node("10.0.0.1:5035")
    peer = TbusPeer(node)
    gate = Gate(node.broker, node.mesh, TbusOptions(), lambda link: None)
    peer.link = peer.port.link = TbusLink(
        node.broker, peer.port, TbusOptions(), peer="127.0.0.1:9", gate=gate, now=node.now
    )
    peer.say("12 06 0000 03 'bob'")
    assert connack_code(peer) == 129
    assert peer.is_closed


def test_without_a_mesh_a_broker_is_refused() -> None:
    node = Node("10.0.0.1:5035")
    peer = TbusPeer(node)
    peer.say("12 06 0000 03 'bob'")
    assert connack_code(peer) == 128


def test_a_client_id_cannot_be_taken_for_a_requester_elsewhere() -> None:
    peer = TbusPeer(Node("10.0.0.1:5035"))
    peer.say("10 06 0000 03 61 03 62")
    assert connack_code(peer) == 129


def test_a_link_ends_with_a_word_and_is_noticed() -> None:
    net = Network("a", "b").mesh()
    link = net.wire("a", "b")
    net.b.broker.stop()
    net.settle()
    assert link.is_cut
    assert any(isinstance(packet, Disconnect) for packet in link.log)
    assert net.a.neighbors() == []


def test_new_access_rules_do_not_take_interest_from_neighbours() -> None:
    class Nobody:
        def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
            return True

        def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
            return False

    net = Network("a", "b").mesh()
    subscriber = net.b.join("s")
    subscriber.subscribe("t")
    net.settle()
    broker = net.a.broker
    broker.reconfigure(
        broker.limits,
        Access(authorizer=Nobody()),
        shared_strategy="round_robin",
        drop_oldest=False,
        queue_qos0=False,
    )
    net.a.join("p").publish("t", b"x")
    net.settle()
    assert subscriber.payloads() == [b"x"]


def test_two_that_do_not_read_each_other_for_a_while_do_not_wait_for_ever() -> None:
    from polybus.broker.limits import Limits

    net = Network("a", "b", limits=Limits(outbox_bytes_per_connection=2000)).mesh()
    for node in net.nodes.values():
        node.join(f"s-{node.own_id}").subscribe("#")
    net.settle()
    link = net.wire("a", "b")
    for end in (link.calling, link.called):
        end.on_blocked()
    for node in net.nodes.values():
        publisher = node.join("p")
        for n in range(100):
            publisher.publish("t", b"%d" % n)
            publisher.request(f"nobody/{n}", timeout_s=60)
    link.calling.receive(wire("c0 00") * 2000, net.b.now)
    link.called.receive(wire("c0 00") * 2000, net.a.now)
    for node in net.nodes.values():
        node.go()  # until each has had its turns
    assert link.calling.is_reading
    assert link.called.is_reading
    for end, node in ((link.calling, net.b), (link.called, net.a)):
        end.on_unblocked(node.now)
    net.settle()
    assert net.a.neighbors() == [net.b.own_id]
    net.check()


def test_silence_is_noticed() -> None:
    net = Network("a", "b").mesh()
    wire_ = net.wire("a", "b")
    wire_.is_cut = True  # and nobody was told
    net.advance(60)
    assert net.a.neighbors() == net.b.neighbors() == []


def test_a_neighbour_that_says_what_only_clients_say_or_nobody_is_sent_away() -> None:
    net = Network("a", "b").mesh()
    link = net.wire("a", "b")
    link.called.receive(wire("20 02 00 00"), net.a.now)  # a CONNACK in the middle of things
    net.settle()
    assert link.is_cut
    net.join_all()
    net.advance(1)
    net.join_all()
    assert net.a.neighbors() == [net.b.own_id], "and comes back"
