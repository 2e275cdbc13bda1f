"""Messages of any source in the columns of the table `messages`, and what a protocol needs to carry them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.errors import UsageError
from polybus.pipeline.schemas import MESSAGES

REQUIRED = ("offset", "time", "topic", "payload")


def as_messages(rows: DataFrame) -> DataFrame:
    """Adds the columns that a source does not have. Raises `UsageError` if it has no messages at all."""
    missing = [name for name in REQUIRED if name not in rows.columns]
    if missing:
        raise UsageError(
            f"the source of messages has no column {', '.join(missing)}; it has {', '.join(rows.columns)}: "
            "use format polybus, mqtt, or files with the columns of the table messages"
        )
    return rows.select(
        *[_column(rows, field.name).cast(field.dataType).alias(field.name) for field in MESSAGES]
    )


def protocol_bytes() -> Column:
    """What MQTT 5.0 needs beside the payload: PUBLISH without it, and the acknowledgement at QoS 1 and 2.

    TCP, TLS and IP are not in it, as they are not in table 2-1.
    """
    properties = F.aggregate(
        F.coalesce("user_properties", F.array().cast(MESSAGES["user_properties"].dataType)),
        F.lit(0),
        lambda total, pair: total + 5 + F.octet_length(pair["name"]) + F.octet_length(pair["value"]),
    )
    packet_id = F.when(F.col("qos") > 0, 2).otherwise(0)
    head = 2 + F.octet_length("topic") + packet_id + _varint_bytes(properties) + properties
    acknowledgements = F.when(F.col("qos") == 1, 4).when(F.col("qos") == 2, 12).otherwise(0)
    return 1 + _varint_bytes(head + F.octet_length("payload")) + head + acknowledgements


def _column(rows: DataFrame, name: str) -> Column:
    if name in rows.columns:
        return F.col(name)
    # `mqtt` has one spool, and MQTT does not tell who published.
    return {"partition": F.lit(0), "qos": F.lit(0), "retain": F.lit(False), "priority": F.lit(False)}.get(
        name, F.lit(None)
    )


def _varint_bytes(value: Column) -> Column:
    return F.when(value < 128, 1).when(value < 16_384, 2).when(value < 2_097_152, 3).otherwise(4)
