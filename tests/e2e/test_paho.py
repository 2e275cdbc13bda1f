"""paho-mqtt, the client most Python programs use, over every transport and in both versions."""

import os
import time

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.e2e.paho_peers import VERSIONS, connected, properties
from tests.e2e.processes import Served, eventually, unique

both_versions = pytest.mark.parametrize("version", VERSIONS)


@both_versions
@pytest.mark.parametrize("kind", ["tcp", "tls", "websocket", "wss"])
def test_exchange_over_every_transport(bus: Served, version: str, kind: str) -> None:
    topic = unique()
    with connected(bus, version, kind) as one, connected(bus, version, kind) as two:
        one.subscribe(f"{topic}/#", 2)
        for qos in (0, 1, 2):
            two.publish(f"{topic}/{qos}", f"hello {qos}", qos)
            message = one.get()
            assert (message.topic, message.payload, message.qos) == (f"{topic}/{qos}", b"hello %d" % qos, qos)


@both_versions
@pytest.mark.parametrize("kind", ["tcp", "tls", "websocket"])
def test_a_payload_of_5_mb(bus: Served, version: str, kind: str) -> None:
    topic, payload = unique(), os.urandom(5_000_000)
    # paho 2 loses a packet that its socket takes only in part when it goes over WebSocket.
    publishing_kind = "tcp" if kind == "websocket" else kind
    with connected(bus, version, kind) as one, connected(bus, version, publishing_kind) as two:
        one.subscribe(topic, 1)
        two.publish(topic, payload)
        assert one.get().payload == payload


@both_versions
def test_retained(bus: Served, version: str) -> None:
    topic = unique()
    with connected(bus, version) as one:
        one.publish(topic, "kept", retain=True)
        one.subscribe(topic, 1)
        message = one.get()
        assert (message.payload, message.retain) == (b"kept", True)


@both_versions
def test_will(bus: Served, version: str) -> None:
    topic = unique()
    with connected(bus, version) as watcher:
        watcher.subscribe(topic, 1)
        with connected(bus, version, prepare=lambda client: client.will_set(topic, "gone", 1)) as dying:
            sock = dying.client.socket()
            assert sock is not None
            dying.client.loop_stop()
            sock.close()
            assert watcher.get().payload == b"gone"


def test_properties_make_the_round_trip(bus: Served) -> None:
    topic = unique()
    sent = properties(
        PacketTypes.PUBLISH,
        PayloadFormatIndicator=1,
        ContentType="text/plain",
        ResponseTopic="answers/here",
        CorrelationData=b"\x00\xff",
        UserProperty=[("a", "1"), ("a", "2"), ("ü", "✓")],
        MessageExpiryInterval=100,
    )
    with connected(bus) as one:
        one.subscribe(topic, 1)
        one.publish(topic, "x", properties=sent)
        got = one.get().properties
        for name in (
            "PayloadFormatIndicator",
            "ContentType",
            "ResponseTopic",
            "CorrelationData",
            "UserProperty",
        ):
            assert getattr(got, name) == getattr(sent, name)
        assert 0 < got.MessageExpiryInterval <= 100


def test_subscription_identifier_and_options(bus: Served) -> None:
    topic = unique()
    with connected(bus) as one, connected(bus) as two:
        two.publish(topic, "kept", retain=True)
        identified = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=77)
        choosy = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True, retainHandling=2)
        one.subscribe(topic, options=choosy, properties=identified)
        one.publish(topic, "mine")
        two.publish(topic, "yours", retain=True)
        message = one.get()
        assert (message.payload, message.retain) == (b"yours", True)
        assert message.properties.SubscriptionIdentifier == [77]


def test_shared_subscription(bus: Served) -> None:
    topic = unique()
    with connected(bus) as one, connected(bus) as two, connected(bus) as publisher:
        for member in (one, two):
            member.subscribe(f"$share/group/{topic}", 1)
        for number in range(100):
            publisher.publish(topic, str(number))
        eventually(lambda: one.messages.qsize() + two.messages.qsize() == 100)
        got = [
            sorted(int(member.get().payload) for _ in range(member.messages.qsize())) for member in (one, two)
        ]
        assert sorted(got[0] + got[1]) == list(range(100))
        assert all(len(part) == 50 for part in got)


def test_topic_alias(bus: Served) -> None:
    topic = unique()
    with connected(bus) as one, connected(bus) as publisher:
        assert publisher.connack is not None
        assert publisher.connack.TopicAliasMaximum >= 1
        one.subscribe(topic, 1)
        alias = properties(PacketTypes.PUBLISH, TopicAlias=1)
        publisher.publish(topic, "named", properties=alias)
        assert one.get().topic == topic
        # paho refuses to publish without a topic: the packet is written by hand.
        sock = publisher.client.socket()
        assert sock is not None
        sock.sendall(b"\x30\x0b\x00\x00\x03\x23\x00\x01alias")
        message = one.get()
        assert (message.topic, message.payload) == (topic, b"alias")


def test_topic_aliases_towards_the_client(bus: Served) -> None:
    """paho resolves none, so it must get none unless it asks."""
    topic = unique()
    with connected(bus) as one:
        one.subscribe(topic, 1)
        for _ in range(3):
            one.publish(topic, "x")
            assert one.get().topic == topic


def test_session_expiry(bus: Served) -> None:
    topic, client_id = unique(), unique("c")

    def kept(seconds: int) -> dict[str, object]:
        expiry = properties(PacketTypes.CONNECT, SessionExpiryInterval=seconds)
        return {"clean_start": False, "properties": expiry}

    with connected(bus, client_id=client_id, **kept(60)) as one:
        assert not one.session_present
        one.subscribe(topic, 1)
    with connected(bus) as publisher:
        publisher.publish(topic, "while away")
    with connected(bus, client_id=client_id, **kept(1)) as one:
        assert one.session_present
        assert one.get().payload == b"while away"
    time.sleep(1.1)  # what is shown is that time has passed: to look earlier would begin it anew
    with connected(bus, client_id=client_id, **kept(0)) as one:
        assert not one.session_present


def test_message_expiry(bus: Served) -> None:
    topic, client_id = unique(), unique("c")
    kept = {"clean_start": False, "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=60)}
    with connected(bus, client_id=client_id, **kept) as one:
        one.subscribe(topic, 1)
    with connected(bus) as publisher:
        short = properties(PacketTypes.PUBLISH, MessageExpiryInterval=1)
        long = properties(PacketTypes.PUBLISH, MessageExpiryInterval=100)
        publisher.publish(topic, "short", properties=short)
        publisher.publish(topic, "long", properties=long)
        time.sleep(1.1)  # as above
    with connected(bus, client_id=client_id, **kept) as one:
        message = one.get()
        assert message.payload == b"long"
        assert message.properties.MessageExpiryInterval <= 99


def test_request_and_response(bus: Served) -> None:
    asked = properties(PacketTypes.CONNECT, RequestResponseInformation=1)
    topic = unique()
    with connected(bus, properties=asked) as client, connected(bus) as service:
        assert client.connack is not None
        prefix = client.connack.ResponseInformation
        assert prefix == "answers/"
        answer_topic = f"{prefix}{topic}"
        client.subscribe(answer_topic, 1)
        service.subscribe(topic, 1)
        request = properties(PacketTypes.PUBLISH, ResponseTopic=answer_topic, CorrelationData=b"42")
        client.publish(topic, "question", properties=request)
        got = service.get()
        reply = properties(PacketTypes.PUBLISH, CorrelationData=got.properties.CorrelationData)
        service.publish(got.properties.ResponseTopic, "answer", properties=reply)
        answer = client.get()
        assert (answer.payload, answer.properties.CorrelationData) == (b"answer", b"42")
        assert not hasattr(service.connack, "ResponseInformation")


def test_a_clean_session_of_3_1_1_is_kept_or_not(bus: Served) -> None:
    topic, client_id = unique(), unique("c")
    with connected(bus, "3.1.1", client_id=client_id, clean_session=False) as one:
        one.subscribe(topic, 2)
    with connected(bus, "3.1.1") as publisher:
        publisher.publish(topic, "1", 1)
        publisher.publish(topic, "2", 2)
    with connected(bus, "3.1.1", client_id=client_id, clean_session=False) as one:
        assert one.session_present
        assert [one.get().payload, one.get().payload] == [b"1", b"2"]
    with connected(bus, "3.1.1", client_id=client_id, clean_session=True) as one:
        assert not one.session_present
