import itertools
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from pyspark.testing import assertDataFrameEqual

from polybus.errors import UsageError
from polybus.pipeline.schemas import MESSAGES
from polybus.pipeline.transforms.messages import as_messages, protocol_bytes
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import NO_PROPERTIES, V5, PubAck, Publish

NOW = datetime(2026, 5, 4, 6, 0, tzinfo=UTC)


def test_a_source_without_some_columns_gets_them(spark):
    rows = spark.createDataFrame(
        [(7, NOW, "a", b"x", "extra")], "offset long, time timestamp, topic string, payload binary, more string"
    )
    expected = spark.createDataFrame([(0, 7, NOW, "a", b"x", 0, False, None, None, False)], MESSAGES)
    assertDataFrameEqual(as_messages(rows), expected)


def test_a_source_of_something_else_is_refused(spark):
    with pytest.raises(UsageError, match="has no column offset, topic, payload; it has time"):
        as_messages(spark.createDataFrame([(NOW,)], "time timestamp"))


SIZES = [0, 1, 90, 127, 128, 1000, 16_380, 100_000]
PROPERTIES = [(), (("a", "b"),), (("trace", "x" * 130), ("é", ""))]


def test_protocol_bytes_are_what_mqtt_needs(spark):
    """Compared with the real encoder: all of PUBLISH and its acknowledgements but the payload."""
    topic, acks = "fleet/t1/position", {0: 0, 1: len(encode(PubAck(1), V5)), 2: 3 * len(encode(PubAck(1), V5))}
    rows, expected = [], []
    for size, pairs, qos in itertools.product(SIZES, PROPERTIES, acks):
        properties = replace(NO_PROPERTIES, user_properties=pairs)
        packet = Publish(topic, b"x" * size, qos, packet_id=int(qos > 0), properties=properties)
        expected.append(len(encode(packet, V5)) - size + acks[qos])
        rows.append((0, len(rows), NOW, topic, packet.payload, qos, False, "t1", pairs, False))
    found = spark.createDataFrame(rows, MESSAGES).orderBy("offset").select(protocol_bytes())
    assert [row[0] for row in found.collect()] == expected
