"""The columns of the `polybus` source: those of a stream's records, and the partition they come from."""

from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_PAIR: Final = StructType([StructField("name", StringType()), StructField("value", StringType())])

SPARK_SCHEMA: Final = StructType(
    [
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),  # in its partition; never used twice
        StructField("time", TimestampType(), False),  # by the broker's clock
        StructField("topic", StringType(), False),
        StructField("payload", BinaryType(), False),
        StructField("qos", ByteType(), False),
        StructField("retain", BooleanType(), False),
        StructField("client_id", StringType(), False),
        StructField("user_properties", ArrayType(_PAIR), False),
        StructField("priority", BooleanType(), False),
    ]
)
ARROW_SCHEMA: Final[pa.Schema] = to_arrow_schema(SPARK_SCHEMA, timezone="UTC")


def with_partition(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """A stream's batch as Spark gets it; nothing is copied but the number."""
    numbers = pa.array(np.full(len(batch), partition, dtype=np.int32))
    return pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=ARROW_SCHEMA)
