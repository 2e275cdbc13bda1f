"""The broker's events: bronze as lines, silver as the log."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from polybus.pipeline.books import Book
from polybus.pipeline.jobs.intake import Intake
from polybus.pipeline.lake import Lake
from polybus.pipeline.settings import Events
from polybus.pipeline.transforms import logs

JOB: Final = "events"
FORMAT: Final = "polybus_events"
FATES: Final = (logs.KEPT, logs.REJECTED)


def event_stream(spark: SparkSession, settings: Events) -> DataFrame:
    return (
        spark.readStream.format(FORMAT)
        .option("path", settings.path)
        .option("maxBytesPerBatch", settings.max_bytes_per_batch)
        .load()
    )


def event_intake(lake: Lake) -> Intake:
    def process(bronze: DataFrame, batch: int) -> Book:
        lake.append("log_lines", batch, logs.parse_events(bronze))
        lines = lake.read_batches("log_lines", [batch])
        counts = lines.groupBy("fate", "day").agg(F.count("*").alias("rows")).collect()
        return {
            "fates": {fate: sum(row["rows"] for row in counts if row["fate"] == fate) for fate in FATES},
            "days": sorted(str(row["day"]) for row in counts if row["day"] is not None),
        }

    return Intake(lake, JOB, "events", ("file", "position"), process)
