"""The broker's events: bronze as lines, silver as the log."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from polybus.pipeline.jobs.intake import Intake
from polybus.pipeline.lake import Book, Lake
from polybus.pipeline.settings import Events
from polybus.pipeline.transforms import logs

JOB: Final = "events"
FORMAT: Final = "polybus_events"


def event_stream(spark: SparkSession, settings: Events) -> DataFrame:
    return (
        spark.readStream.format(FORMAT)
        .option("path", settings.path)
        .option("maxBytesPerBatch", settings.max_bytes_per_batch)
        .load()
    )


def event_intake(lake: Lake) -> Intake:
    def process(bronze: DataFrame, batch: int) -> Book:
        parsed = logs.parse_events(bronze)
        lake.append("log", batch, logs.log(parsed))
        lake.append("rejected_events", batch, logs.rejected_events(parsed))
        kept, refused = lake.read_batches("log", [batch]), lake.read_batches("rejected_events", [batch])
        days = {str(row["day"]): row["count"] for row in kept.groupBy("day").count().collect()}
        return {
            "rows": bronze.count(),
            "fates": {"kept": sum(days.values()), "rejected": refused.count()},
            "days": sorted(days),
        }

    return Intake(lake, JOB, "events", ("file", "position"), process)
