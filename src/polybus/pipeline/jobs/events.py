"""The broker's events: bronze as lines, silver as the log."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from polybus.pipeline.jobs.intake import Intake, days_of
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
        log, rejected = logs.log(parsed), logs.rejected_events(parsed)
        lake.append("log", batch, log)
        lake.append("rejected_events", batch, rejected)
        kept = lake.read_batches("log", [batch])
        return {
            "rows": bronze.count(),
            "fates": {"kept": kept.count(), "rejected": lake.read_batches("rejected_events", [batch]).count()},
            "days": days_of(kept, "ts"),
        }

    return Intake(lake, JOB, "events", ("file", "position"), process)
