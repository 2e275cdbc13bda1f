"""Who sends how much, where and when."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def client_traffic(ledger: DataFrame) -> DataFrame:
    """All that was sent, copies and rubbish too: bytes cost what they cost."""
    return ledger.groupBy(
        F.to_date("time").alias("day"), F.date_trunc("minute", "time").alias("minute"), "client_id", "topic"
    ).agg(
        F.count("*").alias("messages"),
        F.sum("payload_bytes").alias("payload_bytes"),
        F.sum("protocol_bytes").alias("protocol_bytes"),
    )
