"""Streams replayed by MQTT clients: paho subscribes to `$stream/…`."""

import queue
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes

from tests.client.certificates import Certificates
from tests.e2e.conftest import StartBus
from tests.e2e.paho_peers import Paho, connected, properties
from tests.e2e.processes import PATIENCE_S, Served, eventually

CONFIG = """
[store]
folder = "data"
[http]
enabled = false
[[stream]]
name = "one"
filters = ["one/#"]
segment_bytes = 30000
[[stream]]
name = "three"
filters = ["three/#", "both/#"]
partitions = 3
"""


@pytest.fixture
def bus(start_bus: StartBus) -> Served:
    return start_bus(CONFIG)


@pytest.fixture(scope="module")
def empty_bus(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("bus"), certificates, CONFIG) as served:
        yield served


def fill(peer: Paho, topic: str, numbers: range, qos: int = 1) -> None:
    sent = [peer.client.publish(topic, str(n), qos) for n in numbers]
    for each in sent:
        each.wait_for_publish(PATIENCE_S)


def said(message: MQTTMessage) -> dict[str, str]:
    return dict(message.properties.UserProperty)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_backlog_and_what_follows_come_in_order_without_a_gap(bus: Served, qos: int) -> None:
    with connected(bus) as publisher, connected(bus) as reader:
        fill(publisher, "one/a", range(3000))
        reader.subscribe("$stream/one/first/#", qos)
        fill(publisher, "one/a", range(3000, 4000))
        for number in range(4000):
            message = reader.get()
            assert message.payload == b"%d" % number
            assert message.topic == "$stream/one/first/one/a"
            assert message.qos == qos
            assert said(message)["polybus-offset"] == f"0:{number}"
        fill(publisher, "one/a", range(4000, 4001))
        assert reader.get().payload == b"4000"


def test_a_replay_while_messages_keep_coming_misses_none(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader:
        fill(publisher, "one/a", range(500))
        infos = []
        for number in range(500, 3000):
            infos.append(publisher.client.publish("one/a", str(number), 1))
            if number == 1000:
                reader.subscribe("$stream/one/first/#", 1)
        assert [int(reader.get().payload) for _ in range(3000)] == list(range(3000))


def test_from_an_offset_and_by_filter(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader, connected(bus) as other:
        fill(publisher, "one/a", range(10))
        fill(publisher, "one/b", range(10, 20))
        reader.subscribe("$stream/one/7/#")
        assert [int(reader.get().payload) for _ in range(13)] == list(range(7, 20))
        other.subscribe("$stream/one/first/one/b")
        assert [int(other.get().payload) for _ in range(10)] == list(range(10, 20))


def test_from_a_time(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader:
        fill(publisher, "one/a", range(10))
        between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        fill(publisher, "one/a", range(10, 12))
        reader.subscribe(f"$stream/one/{between}/#", 1)
        first = reader.get()
        assert first.payload == b"10"
        assert said(first)["polybus-time"] >= between
        assert reader.get().payload == b"11"


def test_several_partitions_go_on_where_a_reader_was(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader, connected(bus) as other:
        for number in range(60):
            publisher.client.publish(f"three/{number % 6}", str(number), 1)
        reader.subscribe("$stream/three/first/#", 1)
        messages = [reader.get() for _ in range(60)]
        by_partition: dict[str, list[int]] = {}
        for message in messages:
            partition, offset = said(message)["polybus-offset"].split(":")
            by_partition.setdefault(partition, []).append(int(offset))
        assert len(by_partition) == 3
        assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())
        start = ",".join(f"{partition}:{offsets[-2]}" for partition, offsets in by_partition.items())
        other.subscribe(f"$stream/three/{start}/#", 1)
        again = sorted(said(other.get())["polybus-offset"] for _ in range(6))
        wanted = sorted(f"{p}:{offset}" for p, offsets in by_partition.items() for offset in offsets[-2:])
        assert again == wanted


def test_only_what_follows(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader:
        fill(publisher, "one/a", range(5))
        reader.subscribe("$stream/one/next/#", 1)
        fill(publisher, "one/a", range(5, 6))
        assert reader.get().payload == b"5"


def test_what_a_publisher_said_comes_along(bus: Served) -> None:
    with connected(bus, client_id="says-more") as publisher, connected(bus) as reader:
        more = properties(PacketTypes.PUBLISH, UserProperty=[("colour", "red"), ("colour", "blue")])
        publisher.publish("both/x", b"\x00\xff", properties=more)
        reader.subscribe("$stream/three/first/#")
        pairs = reader.get().properties.UserProperty
        assert ("polybus-client", "says-more") in pairs
        assert [value for name, value in pairs if name == "colour"] == ["red", "blue"]


@pytest.mark.parametrize(
    ("topic_filter", "why"),
    [
        ("$stream/nothing/first/#", "there is no stream 'nothing'; there are: one, three"),
        ("$stream/one/yesterday/#", "no start"),
        ("$stream/one/99/#", "has not reached 99"),
        ("$stream/one/2030-01-01T00:00:00/#", "no time zone"),
        ("$stream/three/5/#", "has 3 partitions"),
        ("$stream/three/0:first,7:first/#", "no partition 7"),
        ("$stream/three/0:1,0:2/#", "twice"),
        ("$stream/one", "is replayed by"),
        ("$share/g/$stream/one/first/#", "cannot be shared"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_reason(
    empty_bus: Served, topic_filter: str, why: str
) -> None:
    with connected(empty_bus) as reader:
        answers: queue.Queue[tuple[int, str]] = queue.Queue()
        reader.client.on_subscribe = lambda _c, _u, _mid, codes, said: answers.put(
            (codes[0].value, said.ReasonString)
        )
        reader.client.subscribe(topic_filter)
        code, reason = answers.get(timeout=PATIENCE_S)
        assert code == 0x8F
        assert why in reason


def test_a_replay_ends_with_its_subscription_and_begins_anew(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader:
        fill(publisher, "one/a", range(3))
        for _ in range(2):
            reader.subscribe("$stream/one/first/#", 1)
            assert [reader.get().payload for _ in range(3)] == [b"0", b"1", b"2"]
            done: list[int] = []
            reader.client.on_unsubscribe = lambda _c, _u, mid, *_rest: done.append(mid)  # noqa: B023
            _, mid = reader.client.unsubscribe("$stream/one/first/#")
            eventually(lambda: mid in done)  # noqa: B023
        fill(publisher, "one/a", range(3, 4))
        reader.subscribe("one/#")
        fill(publisher, "one/a", range(4, 5))
        assert reader.get().topic == "one/a"


def test_a_kept_session_goes_on_where_it_was(bus: Served) -> None:
    keep = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    options = {"client_id": "keeper", "clean_start": False, "properties": keep}
    with connected(bus) as publisher:
        fill(publisher, "one/a", range(100))
        with connected(bus, **options) as reader:  # type: ignore[arg-type]
            reader.subscribe("$stream/one/first/#", 1)
            seen = [int(reader.get().payload) for _ in range(100)]
        fill(publisher, "one/a", range(100, 200))
        with connected(bus, **options) as reader:  # type: ignore[arg-type]
            seen += [int(reader.get().payload) for _ in range(100)]
        assert seen == list(range(200))


def test_nobody_publishes_to_a_stream_topic(bus: Served) -> None:
    with connected(bus) as publisher, connected(bus) as reader:
        reader.subscribe("$stream/one/next/#", 1)
        answers: queue.Queue[int] = queue.Queue()
        publisher.client.on_publish = lambda _c, _u, _mid, code, _said: answers.put(code.value)
        publisher.client.publish("$stream/one/next/one/a", b"forged", 1)
        assert answers.get(timeout=PATIENCE_S) == 0x87
        publisher.publish("one/a", b"real")
        assert reader.get().payload == b"real"
