"""The daily data cap of each truck (10 MB, section 1.6): what is used of it, and when it will be used up."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def cap_use(ledger: DataFrame, cap_bytes: int) -> DataFrame:
    """A row a truck and day (UTC). All bytes count: copies, rubbish, both directions, protocol included.

    `exhausted_at` is when the cap was reached; else `projected_at` is when it will be at the pace of this
    day so far (first message to last), if that is before the day ends.
    """
    sent = ledger.where(F.col("truck").isNotNull()).select(
        F.to_date("time").alias("day"),
        "truck",
        "time",
        (F.col("payload_bytes") + F.col("protocol_bytes")).alias("bytes"),
    )
    of_day = Window.partitionBy("day", "truck")
    running = of_day.orderBy("time").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    used = (
        sent.withColumn("sum", F.sum("bytes").over(running))
        .groupBy("day", "truck")
        .agg(
            F.sum("bytes").alias("used_bytes"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
            F.min(F.when(F.col("sum") >= cap_bytes, F.col("time"))).alias("exhausted_at"),
        )
        .withColumn("cap_bytes", F.lit(cap_bytes).cast("long"))
        .withColumn("used_share", F.col("used_bytes") / F.col("cap_bytes"))
    )
    seconds = (F.unix_micros("last") - F.unix_micros("first")) / 1e6
    pace = F.try_divide(F.col("used_bytes"), F.when(seconds > 0, seconds))
    left_s = (F.col("cap_bytes") - F.col("used_bytes")) / pace
    projected = F.timestamp_micros((F.unix_micros("last") + left_s * 1e6).cast("long"))
    end_of_day = F.date_add("day", 1).cast("timestamp")
    return used.withColumn("bytes_per_hour", pace * 3600).withColumn(
        "projected_at", F.when(F.col("exhausted_at").isNull() & (projected < end_of_day), projected)
    )
