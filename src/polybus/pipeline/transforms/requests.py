"""The broker's events → a row a request (TB-07), and tables of latency and outcomes.

A request's number is unique in one run of the broker only. So its rows are divided where `request received`
stands: what follows with the same number belongs to that request until the next one begins.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BEGIN: Final = "request received"
DELIVERED: Final = ("request delivered", "request restored")
WAITED: Final = ("request stored", "answer stored")
OUTCOMES: Final[Mapping[str, str]] = {
    # The event that ends it: how it ended, in the words of docs/requests.md.
    "answer delivered": "answered",
    "answer not delivered": "answer not delivered",
    "request canceled": "canceled",
    "request timed out": "timed out",
    "request failed": "error",
    "request not delivered": "not delivered",
    "request discarded": "deleted",
}
UNFINISHED: Final = "unfinished"


def spans(log: DataFrame) -> DataFrame:
    """A row for each request of which the begin is in `log`."""
    of_number = Window.partitionBy("request").orderBy("ts", "file", "position")
    is_end = F.col("event").isin(*OUTCOMES)
    steps = (
        log.where(F.col("request").isNotNull())
        .withColumn("life", F.sum((F.col("event") == BEGIN).cast("long")).over(of_number))
        .where(F.col("life") > 0)
    )
    return (
        steps.groupBy("request", "life")
        .agg(
            _first(F.col("event") == BEGIN, "ts").alias("begin"),
            _first(is_end, "ts").alias("end"),
            _first(is_end, "event").alias("ended_by"),
            _first(F.col("event") == BEGIN, "requester").alias("requester"),
            _first(F.col("event") == BEGIN, "packet_id").alias("packet_id"),
            _first(F.col("event") == BEGIN, "topic").alias("topic"),
            # Of deliveries the last counts: the service before went away.
            F.coalesce(
                _first(is_end & F.col("service").isNotNull(), "service"),
                F.max_by("client_id", F.when(F.col("event").isin(*DELIVERED), _order())),
            ).alias("service"),
            _first(is_end, "duration_s").alias("duration_s"),
            F.bool_or(F.col("event").isin(*WAITED)).alias("waited"),
            F.sum(F.col("event").isin(*DELIVERED).cast("long")).alias("deliveries"),
            _first(is_end, "reason").alias("reason"),
        )
        .withColumn("outcome", F.coalesce(_translated("ended_by", OUTCOMES), F.lit(UNFINISHED)))
        .withColumn("service_name", service_name("topic"))
        .withColumn("day", F.to_date("begin"))
        .drop("life", "ended_by")
    )


def service_name(topic: str) -> Column:
    """Trucks serve the same thing, each under its own name: their topics are one service."""
    return F.regexp_replace(F.col(topic), r"^fleet/[^/]+/", "fleet/+/")


def latency(spans: DataFrame) -> DataFrame:
    """Of those that were answered, by service and hour of their begin."""
    return (
        spans.where(F.col("outcome") == "answered")
        .groupBy("day", F.date_trunc("hour", "begin").alias("hour"), "service_name")
        .agg(
            F.count("*").alias("answered"),
            F.percentile("duration_s", 0.5).alias("p50_s"),
            F.percentile("duration_s", 0.9).alias("p90_s"),
            F.percentile("duration_s", 0.99).alias("p99_s"),
            F.max("duration_s").alias("max_s"),
        )
    )


def outcomes(spans: DataFrame) -> DataFrame:
    counted = spans.groupBy("day", "service_name", "outcome").agg(F.count("*").alias("requests"))
    whole = Window.partitionBy("day", "service_name")
    return counted.withColumn("share", F.col("requests") / F.sum("requests").over(whole))


def _order() -> Column:
    return F.struct("ts", "file", "position")


def _first(condition: Column, name: str) -> Column:
    """Of the earliest row for which it holds."""
    return F.min_by(name, F.when(condition, _order()))


def _translated(name: str, words: Mapping[str, str]) -> Column:
    column: Column | None = None
    for said, meant in words.items():
        is_said = F.col(name) == said
        column = F.when(is_said, meant) if column is None else column.when(is_said, meant)
    assert column is not None
    return column
