"""Table 2-1 of the document, from what the bus saw: traffic by type, with delivered and protocol bytes."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from polybus.pipeline.transforms.fleet import Fate

OTHER = "other"


def traffic_by_type(ledger: DataFrame) -> DataFrame:
    """Delivered is what arrived for the first time. Copies are `repeated`, and add to the overhead as the
    protocol does: overhead = (repeated + protocol) / delivered."""
    is_copy = F.col("fate") == Fate.DUPLICATE
    sums = (
        ledger.groupBy(F.to_date("time").alias("day"), F.coalesce("kind", F.lit(OTHER)).alias("kind"))
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.when(~is_copy, F.col("payload_bytes")).otherwise(0)).alias("delivered_bytes"),
            F.sum(F.when(is_copy, F.col("payload_bytes")).otherwise(0)).alias("repeated_bytes"),
            F.sum("protocol_bytes").alias("protocol_bytes"),
        )
        .withColumn("total", F.col("delivered_bytes") + F.col("repeated_bytes") + F.col("protocol_bytes"))
    )
    return (
        sums.withColumn("share_of_total", F.col("total") / F.sum("total").over(Window.partitionBy("day")))
        .withColumn(
            "overhead", F.try_divide(F.col("repeated_bytes") + F.col("protocol_bytes"), "delivered_bytes")
        )
        .drop("total")
    )
