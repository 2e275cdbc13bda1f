"""Topic aliases (sections 3.1.2.11.5, 3.2.2.3.8 and 3.3.2.3.4), both ways."""

import pytest

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import V5, Properties, PubAck, Publish, ReasonCode

from . import raw
from .harness import Bus, Client
from .rules import rules


def _alias(number: int) -> Properties:
    return Properties(topic_alias=number)


def _aliased(topic: str, number: int, payload: bytes) -> bytes:
    """By hand: our own encoder keeps to the rules."""
    return raw.publish(V5, topic, payload, props=raw.properties(V5, b"\x23" + raw.u16(number)))


# -- from the client -------------------------------------------------------------------------------


@rules(v5="MQTT-3.3.2-12", wire=True)
def test_every_alias_up_to_the_maximum_is_accepted(bus: Bus) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("#")
    client = bus.connect("c")
    maximum = client.connack.properties.topic_alias_maximum
    assert maximum
    for number in range(1, maximum + 1):
        client.send_raw(_aliased(f"t/{number}", number, b"set"))
        watcher.expect(Publish(f"t/{number}", b"set", properties=Properties()))
    for number in range(maximum, 0, -1):
        client.send_raw(_aliased("", number, b"used"))
        watcher.expect(Publish(f"t/{number}", b"used"))
    client.send_raw(_aliased("other", 1, b"set again"), _aliased("", 1, b"used again"))
    watcher.expect(Publish("other", b"set again"))
    watcher.expect(Publish("other", b"used again"))


@pytest.mark.parametrize("qos", [1, 2])
@rules(v5="MQTT-3.3.2-12")
def test_aliases_work_at_every_qos(bus: Bus, qos: int) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("#")
    client = bus.connect("c")
    client.publish("t", b"set", qos=qos, properties=_alias(1))
    client.publish("", b"used", qos=qos, properties=_alias(1))
    watcher.expect(Publish("t", b"set"))
    watcher.expect(Publish("t", b"used"))


@pytest.mark.parametrize("topic", ["t", ""])
@rules(v5="MQTT-3.2.2-17 MQTT-3.3.2-9")
def test_an_alias_above_the_maximum_is_an_error(bus: Bus, topic: str) -> None:
    client = bus.connect("c")
    maximum = client.connack.properties.topic_alias_maximum
    assert maximum
    client.send_raw(_aliased(topic, maximum + 1, b"x"))
    client.expect_closed(ReasonCode.TOPIC_ALIAS_INVALID)


@rules(v5="MQTT-3.2.2-18 MQTT-3.3.2-9")
def test_no_alias_where_the_server_announced_none(bus: Bus) -> None:
    bus.configure(limits=Limits(topic_alias_maximum=0))
    client = bus.connect("c")
    assert not client.connack.properties.topic_alias_maximum
    client.send_raw(_aliased("t", 1, b"x"))
    client.expect_closed(ReasonCode.TOPIC_ALIAS_INVALID)


@rules(v5="MQTT-3.3.2-7")
def test_an_alias_does_not_outlive_the_connection(bus: Bus) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("#")
    client = bus.connect("c", keeps=True)
    client.publish("t", b"set", qos=1, properties=_alias(1))
    watcher.expect(Publish("t", b"set"))
    client.drop()
    again = bus.connect("c", keeps=True)
    again.send_raw(_aliased("", 1, b"used"))
    again.expect_closed(ReasonCode.PROTOCOL_ERROR, ReasonCode.TOPIC_ALIAS_INVALID)
    watcher.expect_nothing()


@rules(v5="MQTT-3.3.2-7")
def test_an_alias_belongs_to_one_connection(bus: Bus) -> None:
    bus.connect("one").publish("t", b"set", qos=1, properties=_alias(1))
    two = bus.connect("two")
    two.send_raw(_aliased("", 1, b"used"))
    two.expect_closed(ReasonCode.PROTOCOL_ERROR, ReasonCode.TOPIC_ALIAS_INVALID)


# -- to the client ---------------------------------------------------------------------------------


class Resolver:
    """The client's side of the server's aliases."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.known: dict[int, str] = {}
        self.seen: set[int] = set()

    def expect(self, topic: str, payload: bytes) -> Publish:
        got = self.client.expect(Publish, payload=payload)
        alias = got.properties.topic_alias
        if alias is not None:
            self.seen.add(alias)
            if got.topic:
                self.known[alias] = got.topic
        assert (got.topic or self.known.get(alias or 0)) == topic
        return got


@pytest.mark.parametrize("maximum", [1, 3])
@rules(v5="MQTT-3.1.2-26 MQTT-3.3.2-11", wire=True)
def test_the_server_keeps_to_the_clients_alias_maximum(bus: Bus, maximum: int) -> None:
    client = bus.connect("s", topic_alias_maximum=maximum)
    client.subscribe("#", qos=1)
    resolver = Resolver(client)
    publisher = bus.connect("p")
    for turn in range(3):
        for number in range(5):
            for qos in (0, 1):
                payload = b"%d %d %d" % (turn, number, qos)
                publisher.publish(f"t/{number}", payload, qos=qos)
                got = resolver.expect(f"t/{number}", payload)
                if got.qos:
                    client.send(PubAck(got.packet_id))
    assert resolver.seen <= set(range(1, maximum + 1))


@pytest.mark.parametrize("maximum", [None, 0])
@rules(v5="MQTT-3.1.2-27 MQTT-3.1.2-26")
def test_no_alias_to_a_client_that_announced_none(bus: Bus, maximum: int | None) -> None:
    client = bus.connect("s", topic_alias_maximum=maximum)
    client.subscribe("#", qos=1)
    other = bus.connect("other", topic_alias_maximum=10)
    other.subscribe("#", qos=1)
    publisher = bus.connect("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, properties=_alias(1))
        got = client.expect(Publish, topic="t", payload=b"%d" % number)
        assert got.properties.topic_alias is None
    publisher.publish("", b"used", qos=1, properties=_alias(1))
    got = client.expect(Publish, topic="t", payload=b"used", qos=1)
    assert got.properties.topic_alias is None


@rules(v5="MQTT-3.3.2-7 MQTT-3.1.2-26")
def test_the_servers_aliases_start_afresh_with_the_connection(bus: Bus) -> None:
    publisher = bus.connect("p")
    for _ in range(3):
        client = bus.connect("s", keeps=True, topic_alias_maximum=5)
        client.subscribe("t", qos=1)
        resolver = Resolver(client)
        for number in range(3):
            publisher.publish("t", b"%d" % number, qos=1)
            client.send(PubAck(resolver.expect("t", b"%d" % number).packet_id))
        publisher.publish("t", b"unacknowledged", qos=1)
        resolver.expect("t", b"unacknowledged")
        client.drop()
        again = bus.connect("s", keeps=True, topic_alias_maximum=0)
        got = again.expect(Publish, topic="t", payload=b"unacknowledged", dup=True)
        assert got.properties.topic_alias is None
        again.send(PubAck(got.packet_id))
        again.drop()


@rules(v5="MQTT-3.3.2-7")
def test_what_was_queued_is_introduced_on_the_new_connection(bus: Bus) -> None:
    client = bus.connect("s", keeps=True, topic_alias_maximum=5)
    client.subscribe("t", qos=1)
    publisher = bus.connect("p")
    publisher.publish("t", b"0", qos=1)
    client.send(PubAck(Resolver(client).expect("t", b"0").packet_id))
    client.drop()
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=1)
    again = Resolver(bus.connect("s", keeps=True, topic_alias_maximum=5))
    again.expect("t", b"1")
    again.expect("t", b"2")


@rules(v5="MQTT-3.1.2-26 MQTT-3.1.2-24")
def test_aliases_and_a_small_maximum_packet_size_together(bus: Bus) -> None:
    """A message too large introduces no alias that a later one would rely on."""
    client = bus.connect("s", topic_alias_maximum=5, maximum_packet_size=60)
    client.subscribe("t", qos=1)
    publisher = bus.connect("p")
    resolver = Resolver(client)
    publisher.publish("t", b"x" * 100, qos=1)
    publisher.publish("t", b"small", qos=1)
    resolver.expect("t", b"small")
    publisher.publish("t", b"small again", qos=1)
    resolver.expect("t", b"small again")
