"""Lines of the broker's event file → the log that can be searched (TB-16, TB-21)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from polybus.errors import UsageError
from polybus.pipeline.schemas import LOG_COLUMNS, LOG_LINES
from polybus.pipeline.tables import DOUBLE, LONG, TEXT, TIME

LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
HEAD_BYTES: Final = 1000
MAX_LINE_BYTES: Final = 64 * 1024
"""An event's fields are short (docs/operations.md): a longer line is something else."""

_FIELDS: Final[dict[str, DataType]] = {
    "ts": TIME,
    "event": TEXT,
    "level": TEXT,
    "client_id": TEXT,
    "topic": TEXT,
    "request": LONG,
    "requester": TEXT,
    "packet_id": LONG,
    "service": TEXT,
    "duration_s": DOUBLE,
    "payload_bytes": LONG,
    "reason": TEXT,
    "peer": TEXT,
    "user": TEXT,
    "protocol": TEXT,
    "version": TEXT,
}
_DETAILS: Final = {
    "empty": "the line has no bytes",
    "huge": f"an event has at most {MAX_LINE_BYTES} bytes",
    "not UTF-8": "the line has bytes that are no text",
    "not JSON": "the line is no JSON object",
    "wrong schema": "an event has ts, event and level, and each field its own type",
}
KEPT, REJECTED = "kept", "rejected"
_CORRUPT: Final = "_corrupt"
_SCHEMA: Final = StructType(
    [*(StructField(name, kind) for name, kind in _FIELDS.items()), StructField(_CORRUPT, TEXT)]
)
_SAID: Final = [name for name in _FIELDS if name not in ("ts", "level", "event")]


def parse_events(lines: DataFrame) -> DataFrame:
    """The table `log_lines`: each line with its fields, or with a `why` (and a `detail`) if it is no event.

    `text` is what a search looks at: the event and what it says, as name=value.
    """
    is_text = (F.octet_length("line") <= MAX_LINE_BYTES) & F.is_valid_utf8(F.col("line").cast("string"))
    text = F.when(is_text, F.col("line").cast("string"))
    options = {"columnNameOfCorruptRecord": _CORRUPT, "mode": "PERMISSIVE"}
    event, why = F.col("parsed"), F.col("why")
    said = [F.concat(F.lit(f"{name}="), event[name].cast("string")) for name in _SAID]
    parsed = lines.withColumn("parsed", F.from_json(text, _SCHEMA, options)).withColumn("why", _why(event))
    return parsed.select(
        "file",
        "position",
        *[F.when(why.isNull(), event[name]).alias(name) for name in _FIELDS if name in LOG_COLUMNS],
        F.when(why.isNull(), F.concat_ws(" ", event["event"], *said)).alias("text"),
        "why",
        F.element_at(_details(), why).alias("detail"),
        F.when(why.isNotNull(), F.substring("line", 1, HEAD_BYTES)).alias("head"),
        F.when(why.isNull(), KEPT).otherwise(REJECTED).alias("fate"),
        F.when(why.isNull(), F.to_date(event["ts"])).alias("day"),
    ).select(*LOG_LINES.names)


def _why(event: Column) -> Column:
    return (
        F.when(F.octet_length("line") == 0, "empty")
        .when(F.octet_length("line") > MAX_LINE_BYTES, "huge")
        .when(~F.is_valid_utf8(F.col("line").cast("string")), "not UTF-8")
        .when(event.isNull(), "not JSON")
        .when(event[_CORRUPT].isNotNull() & event["event"].isNull() & event["ts"].isNull(), "not JSON")
        .when(event[_CORRUPT].isNotNull(), "wrong schema")
        .when(event["ts"].isNull() | event["event"].isNull() | event["level"].isNull(), "wrong schema")
        .when(~event["level"].isin(*LEVELS), "wrong schema")
    )


def _details() -> Column:
    return F.create_map(*[F.lit(each) for pair in _DETAILS.items() for each in pair])


# --- views of `log_lines` -------------------------------------------------------------------------


def log(lines: DataFrame) -> DataFrame:
    return lines.where(F.col("fate") == KEPT).select(*LOG_COLUMNS)


def rejected_events(lines: DataFrame) -> DataFrame:
    return lines.where(F.col("fate") == REJECTED).select(
        "file", "position", F.col("why").alias("reason"), "detail", "head"
    )


def search(
    log: DataFrame,
    words: Sequence[str] = (),
    *,
    level: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Rows that have every word (in any case), in order of time. Days that cannot match are not read."""
    rows = log
    if level is not None:
        if level.upper() not in LEVELS:
            raise UsageError(f"level {level!r} is none of {', '.join(LEVELS)}")
        rows = rows.where(F.col("level").isin(*LEVELS[LEVELS.index(level.upper()) :]))
    for time, is_right in ((since, F.col("ts").__ge__), (until, F.col("ts").__lt__)):
        if time is not None:
            rows = rows.where(is_right(F.lit(time)))
    if "day" in log.columns:
        rows = rows.where(F.col("day") >= F.to_date(F.lit(since))) if since is not None else rows
        rows = rows.where(F.col("day") <= F.to_date(F.lit(until))) if until is not None else rows
    for word in words:
        rows = rows.where(F.contains(F.lower("text"), F.lit(word.lower())))
    return rows.orderBy("ts", "file", "position")
