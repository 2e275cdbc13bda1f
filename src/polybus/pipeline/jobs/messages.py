"""Messages: bronze as they came; silver decoded and judged."""

from datetime import UTC, datetime, timedelta
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from polybus.errors import UsageError
from polybus.fleet.decoding import Limits
from polybus.pipeline.books import Book
from polybus.pipeline.jobs.intake import Intake
from polybus.pipeline.lake import Lake
from polybus.pipeline.schemas import MESSAGES
from polybus.pipeline.settings import Fleet, Messages
from polybus.pipeline.sources.polybus.options import PolybusOptions
from polybus.pipeline.sources.polybus.places import open_place
from polybus.pipeline.sources.polybus.source import PolybusSource
from polybus.pipeline.transforms import fleet
from polybus.pipeline.transforms.fleet import Fate
from polybus.pipeline.transforms.messages import as_messages

JOB: Final = "messages"
FILE_FORMATS: Final = ("parquet", "json", "orc", "avro")
"""Spark wants to be told the columns of files that it streams."""


def message_stream(spark: SparkSession, settings: Messages) -> DataFrame:
    reader = spark.readStream.format(settings.format)
    if settings.format in FILE_FORMATS:
        reader = reader.schema(MESSAGES)
    try:
        rows = reader.options(**settings.options).load()
    except (AnalysisException, Py4JJavaError) as error:
        # The class of error differs by what Spark was about when it noticed.
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        raise UsageError(
            f"messages.format: there is no source {settings.format!r}; there are polybus, mqtt, Spark's own, "
            "and those of packages that are installed"
        ) from error
    return as_messages(rows)


def message_intake(lake: Lake, settings: Fleet, messages: Messages) -> Intake:
    limits = Limits(settings.max_payload_bytes, settings.max_clock_error_s)

    def process(bronze: DataFrame, batch: int) -> Book:
        return _process(lake, settings, limits, bronze, batch)

    def source_id() -> str:
        return stream_id(messages)

    return Intake(lake, JOB, "messages", ("partition", "offset"), process, time="time", source_id=source_id)


def stream_id(settings: Messages) -> str:
    """Empty: what is read has none."""
    if settings.format != PolybusSource.name():
        return ""
    options = PolybusOptions.parse({name: _as_option(value) for name, value in settings.options.items()})
    with open_place(options) as place:
        return place.facts().id


def watermark_before(books: dict[int, Book], batch: int, late_after_s: float) -> datetime | None:
    """Of all records of earlier batches the newest, less the patience; None: there is none yet. A record is not
    newer than its arrival."""
    newest = max(
        (book["newest_ms"] for number, book in books.items() if number < batch and book["newest_ms"]),
        default=None,
    )
    if newest is None:
        return None
    return datetime.fromtimestamp(newest / 1000, UTC) - timedelta(seconds=late_after_s)


def _as_option(value: str | int | float | bool) -> str:
    """As Spark would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _process(lake: Lake, settings: Fleet, limits: Limits, bronze: DataFrame, batch: int) -> Book:
    books = dict(lake.books(JOB))
    watermark = watermark_before(books, batch, settings.late_after_s)
    seen = _seen(lake, books, batch, watermark)
    lake.append("records", batch, fleet.judge(fleet.decode(bronze, limits), seen, watermark))
    records = lake.read_batches("records", [batch])
    counts = (
        records.groupBy("fate", "kind")
        .agg(
            F.count("*").alias("rows"),
            # A clock that is ahead must not make all others late.
            F.unix_millis(F.max(F.least("at", "received"))).alias("newest"),
            F.unix_millis(F.max("at")).alias("last"),
            F.collect_set(F.to_date(F.coalesce("at", "received")).cast("string")).alias("days"),
        )
        .collect()
    )
    return {
        "fates": {fate.value: sum(row["rows"] for row in counts if row["fate"] == fate) for fate in Fate},
        "kinds": {row["kind"]: row["rows"] for row in counts if row["fate"] == Fate.KEPT},
        "newest_ms": max((row["newest"] for row in counts if row["fate"] == Fate.KEPT), default=None),
        "last_ms": max((row["last"] for row in counts if row["fate"] == Fate.KEPT), default=None),
        "days": sorted({day for row in counts for day in row["days"]}),
        "watermark": watermark.isoformat() if watermark is not None else None,
    }


def _seen(lake: Lake, books: dict[int, Book], batch: int, watermark: datetime | None) -> DataFrame:
    """Keys that a record of this batch could repeat: kept before, and not before the watermark. Only
    batches that have such records are read."""
    wanted = [
        number
        for number, book in books.items()
        if number < batch
        and book["newest_ms"]
        and (watermark is None or book.get("last_ms", book["newest_ms"]) >= watermark.timestamp() * 1000)
    ]
    rows = lake.read_batches("records", wanted).where(F.col("fate") == Fate.KEPT)
    return (rows if watermark is None else rows.where(F.col("at") >= F.lit(watermark))).select(*fleet.KEY)
