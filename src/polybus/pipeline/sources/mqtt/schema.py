"""The columns of the `mqtt` source: as Spark sees them, as Arrow carries them, as the spool keeps them."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from polybus.client.message import Message

_PAIR: Final = StructType([StructField("name", StringType(), False), StructField("value", StringType(), False)])

SPARK_SCHEMA: Final = StructType(
    [
        StructField("offset", LongType(), False),  # in the spool; never used twice
        StructField("time", TimestampType(), False),  # of arrival, by the receiver's clock
        StructField("topic", StringType(), False),
        StructField("payload", BinaryType(), False),
        StructField("qos", ByteType(), False),
        StructField("retain", BooleanType(), False),
        StructField("content_type", StringType(), True),
        StructField("response_topic", StringType(), True),
        StructField("correlation_data", BinaryType(), True),
        StructField("user_properties", ArrayType(_PAIR, False), False),
    ]
)
ARROW_SCHEMA: Final[pa.Schema] = to_arrow_schema(SPARK_SCHEMA, timezone="UTC")
SPOOL_SCHEMA: Final[pa.Schema] = pa.schema([ARROW_SCHEMA.field(i) for i in range(1, len(ARROW_SCHEMA))])
"""Without the offset, which is the row's place in the spool."""


class Arrival(NamedTuple):
    time_us: int
    message: Message


def to_batch(arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    """Rows as the spool keeps them."""
    messages = [arrival.message for arrival in arrivals]
    properties = [message.properties for message in messages]
    columns = (
        [arrival.time_us for arrival in arrivals],
        [message.topic for message in messages],
        [message.payload for message in messages],
        [message.qos for message in messages],
        [message.retain for message in messages],
        [each.content_type for each in properties],
        [each.response_topic for each in properties],
        [each.correlation_data for each in properties],
        [[{"name": name, "value": value} for name, value in each.user_properties] for each in properties],
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SPOOL_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SPOOL_SCHEMA)


def with_offsets(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Rows as Spark gets them."""
    offsets = pa.array(np.arange(first, first + len(batch), dtype=np.int64))
    return pa.RecordBatch.from_arrays([offsets, *batch.columns], schema=ARROW_SCHEMA)
