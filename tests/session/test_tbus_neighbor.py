"""A link of brokers byte by byte, with a neighbour that is written by hand (TB-15, docs/protocols/tbus.md)."""

import pytest

from polybus.broker.limits import Limits
from polybus.session.tbus.joining import Gate
from polybus.session.tbus.link import TbusLink
from polybus.session.tbus.neighbor import NeighborLink
from polybus.session.tbus.options import TbusOptions
from tests.mesh.network import Node
from tests.session.tbus import TbusPeer, connect, framed, message, messages, text, wire

OWN = "10.0.0.1:5035"
OTHER = "10.0.0.2:5035"
ALL_SAID = "a0 03 0001 00"


class Neighbor(TbusPeer):
    """The other broker, with its flag and id in the CONNECT."""

    def __init__(self, node: Node, connect: str | None = None) -> None:
        super().__init__(node)
        self.link.leave_to()  # to one with a gate
        gate = Gate(node.broker, node.mesh, TbusOptions(bulk="off"), self.adopt)
        self.link = self.port.link = TbusLink(
            node.broker, self.port, TbusOptions(bulk="off"), peer="127.0.0.1:9", gate=gate, now=node.now
        )
        self.say(connect or framed(0x12, bytes.fromhex("001e") + text(OTHER)))

    def adopt(self, link: NeighborLink) -> None:
        self.link = self.port.link = link


@pytest.fixture
def node() -> Node:
    return Node(OWN)


@pytest.fixture
def neighbor(node: Node) -> Neighbor:
    peer = Neighbor(node)
    peer.heard()
    return peer


def want(topic_filter: str, qos: int = 0, concurrency: int = 0) -> str:
    properties = b"\x44" + concurrency.to_bytes(2) + b"\x47" + bytes([qos])
    return framed(0x80, b"\0\1" + text(topic_filter) + bytes([len(properties)]) + properties)


def test_the_greeting(node: Node) -> None:
    connect(node, "s").subscribe("a/#")
    service = connect(node, "t")
    service.subscribe("b", concurrency=3)
    heard = messages(Neighbor(node).heard())
    limit = b"\x27" + (16 * 1024 * 1024).to_bytes(4)
    assert heard[0] == (0x20, b"\0" + bytes([20]) + b"\x12" + text(OWN) + limit)
    filters = {body for first_byte, body in heard if first_byte == 0x80}
    assert filters == {
        b"\0\1" + text("a/#") + bytes.fromhex("05 44 0001 47 00"),
        b"\0\1" + text("b") + bytes.fromhex("05 44 0003 47 00"),
    }
    assert heard[-1] == (0xA0, b"\0\1\0"), "that was everything"


def test_the_second_is_told_of_the_first(node: Node) -> None:
    Neighbor(node)
    third = Neighbor(node, framed(0x12, bytes.fromhex("001e") + text("10.0.0.3:5035")))
    assert text(OTHER) in messages(third.heard())[0][1]


def test_byte_by_byte(node: Node) -> None:
    peer = TbusPeer(node)
    neighbor = Neighbor.__new__(Neighbor)
    neighbor.world, neighbor.port = node, peer.port
    gate = Gate(node.broker, node.mesh, TbusOptions(bulk="off"), neighbor.adopt)
    neighbor.link = peer.port.link = TbusLink(
        node.broker, peer.port, TbusOptions(bulk="off"), peer="127.0.0.1:9", gate=gate, now=node.now
    )
    neighbor.say_in_bytes(framed(0x12, bytes.fromhex("001e") + text(OTHER)))
    neighbor.heard()
    neighbor.say_in_bytes(want("t"), ALL_SAID)
    connect(node, "p").say(message("t", b"x"))
    assert neighbor.heard() == wire(message("t", b"x"))


def test_a_plain_message_is_written_as_to_a_client(node: Node, neighbor: Neighbor) -> None:
    neighbor.say(want("t"))
    publisher = connect(node, "p")
    publisher.say(message("t", b"x"), message("t", b"y", flags=2))
    assert neighbor.heard() == wire(message("t", b"y", flags=2)) + wire(message("t", b"x"))


def test_a_message_that_waits_is_offered_and_the_answer_counts(node: Node, neighbor: Neighbor) -> None:
    neighbor.say(want("t"))
    publisher = connect(node, "p")
    publisher.say(message("t", b"w", properties=bytes.fromhex("02 0000003c")))
    offered = message("t", b"w", properties=bytes.fromhex("02 0000003c 40 0001"))
    assert neighbor.heard() == wire(offered)
    assert node.broker.storage.count == 1
    neighbor.say("40 09 08 42 01 't' 43 0001 4d 01")  # nobody was there
    assert node.broker.storage.count == 1
    neighbor.say(want("t"))  # someone has come
    assert neighbor.heard() == wire(offered.replace("400001", "400002"))
    neighbor.say("40 07 06 42 01 't' 43 0002")
    assert node.broker.storage.count == 0


def test_an_offer_is_taken_or_not(node: Node, neighbor: Neighbor) -> None:
    offer = message("t", b"w", properties=bytes.fromhex("02 0000003c 40 0007"))
    neighbor.say(offer)
    assert neighbor.heard() == wire("40 09 08 42 01 't' 43 0007 4d 01")
    assert node.broker.storage.count == 0, "it waits at its own broker"
    subscriber = connect(node, "s")
    subscriber.subscribe("t")
    neighbor.heard()
    neighbor.say(offer)
    assert neighbor.heard() == wire("40 07 06 42 01 't' 43 0007")
    assert subscriber.heard() == wire(message("t", b"w"))


def test_a_tracked_message_is_taken_once_and_acknowledged_each_time(node: Node, neighbor: Neighbor) -> None:
    subscriber = connect(node, "s")
    subscriber.subscribe("t")
    neighbor.heard()
    tracked = message("t", b"x", properties=bytes.fromhex("40 0007 47 01 49 0000000000000123"))
    neighbor.say(tracked)
    assert neighbor.heard() == wire("40 07 06 42 01 't' 43 0007")
    neighbor.say(tracked)
    assert neighbor.heard() == wire("40 07 06 42 01 't' 43 0007")
    assert subscriber.heard() == wire(message("t", b"x"))


def test_a_request_comes_and_its_answer_goes(node: Node, neighbor: Neighbor) -> None:
    service = connect(node, "s")
    service.subscribe("t")
    neighbor.heard()
    who = text(f"{OTHER}\x03asker")
    neighbor.say(message("t", b"?", 1, b"\x02\0\0\0\x05\x08" + who + b"\x40\0\7"))
    assert neighbor.heard() == wire(
        framed(0x50, bytes([len(who) + 9]) + b"\x08" + who + b"\x40\0\7\x41\2\x42\1t")
    )
    ((first_byte, body),) = messages(service.heard())
    assert first_byte == 0x31
    assert who in body
    service.say(framed(0x34, bytes([len(who) + 4]) + b"\x08" + who + b"\x40\0\7" + b"!"))
    assert neighbor.heard() == wire(framed(0x34, bytes([len(who) + 4]) + b"\x08" + who + b"\x40\0\7" + b"!"))


def test_a_request_for_which_nobody_is_free_is_refused_and_it_is_said_when_someone_is(
    node: Node, neighbor: Neighbor
) -> None:
    service = connect(node, "s")
    service.subscribe("t")
    own = connect(node, "own")
    own.say(framed(0x31, text("t") + b"\3\x40\0\1" + b"?"))
    service.heard()
    neighbor.heard()
    who = text(f"{OTHER}\x03asker")
    neighbor.say(message("t", b"?", 1, b"\x08" + who + b"\x40\0\7"))
    ((first_byte, body),) = messages(neighbor.heard())
    assert first_byte == 0x50
    assert body.endswith(b"\x4e\1")
    assert b"\x41\x0c" in body
    service.say(framed(0x34, b"\x08\x08\3own\x40\0\1"))
    assert neighbor.heard() == wire(want("t", concurrency=1))


@pytest.mark.parametrize(
    "bad",
    [
        "20 02 00 00",  # CONNACK
        framed(0x12, bytes.fromhex("001e") + text(OTHER)),  # a second CONNECT
        "b0 05 0001 00 0000",  # UNSUBACK
        message("$SYS/x", b""),
        message("t/+", b""),
        message("t", b"", properties=bytes.fromhex("4c 0c 0b") + b"$share/g/#/"),
        message("t", b"", 1, b"\x08" + text("10.9.9.9:1\x03x") + b"\x40\0\7"),
        message("t", b"", properties=bytes.fromhex("47 01 47 01")),
        message("t", b"", properties=bytes.fromhex("55 01")),
        "50 05 04 40 0007 41",
        "50 06 05 40 0007 41 0d",
    ],
)
def test_what_is_wrong_ends_the_link_with_a_word(node: Node, neighbor: Neighbor, bad: str) -> None:
    neighbor.say(bad)
    ((first_byte, body),) = messages(neighbor.heard())
    assert first_byte == 0xE0
    assert int.from_bytes(body[:2]) == 128
    assert neighbor.is_closed
    assert node.neighbors() == []
    assert Neighbor(node).heard().startswith(b"\x20"), "it may come back"


@pytest.mark.parametrize("topic_filter", ["a/#/b", "$SYS/#", "$neighbors", "$share/g", ""])
def test_a_filter_that_is_refused_is_told_and_the_link_stays(
    node: Node, neighbor: Neighbor, topic_filter: str
) -> None:
    neighbor.say(want(topic_filter))
    ((first_byte, body),) = messages(neighbor.heard())
    assert (first_byte, body[-2:]) == (0x90, (143).to_bytes(2))
    assert not neighbor.is_closed


def test_filters_are_bounded() -> None:
    node = Node(OWN, Limits(subscriptions_per_session=2))
    neighbor = Neighbor(node)
    neighbor.heard()
    neighbor.say(want("a"), want("b"))
    assert neighbor.heard() == b""
    neighbor.say(want("c"))
    ((first_byte, body),) = messages(neighbor.heard())
    assert (first_byte, body[-2:]) == (0x90, (151).to_bytes(2))


def test_pings_are_answered_and_silence_is_not(node: Node, neighbor: Neighbor) -> None:
    neighbor.say("c0 00")
    assert neighbor.heard() == wire("d0 00")
    node.advance(31)
    assert neighbor.is_closed
    assert node.neighbors() == []


def test_bulks_go_both_ways(node: Node) -> None:
    neighbor = Neighbor(node)
    neighbor.heard()
    neighbor.say(framed(0x60, wire(want("t")) + wire(want("u"))))
    assert set(neighbor.session.subscriptions) == {"t", "u"}
