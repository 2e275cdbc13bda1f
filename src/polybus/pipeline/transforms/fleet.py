"""Messages → fleet records: decoded, judged, and divided into tables (PL-04).

Every message gets one fate:

    rejected    it cannot be decoded; the reason says why
    late        its time is before the watermark: whether it is a copy can no longer be told
    duplicate   a record of the same truck, kind and id came before
    kept
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from polybus.fleet.decoding import Limits, Reason, Rejected, decode_message, split_topic
from polybus.fleet.records import Position, Record, Tachograph, Update, Vehicle
from polybus.pipeline.schemas import KINDS, RECORDS, TABLES
from polybus.pipeline.tables import TEXT, TIME
from polybus.pipeline.transforms.messages import protocol_bytes

KEY: Final = ("truck", "kind", "id")
HEAD_BYTES: Final = 1000
"""Of a payload that was rejected, for people; bronze has all of it."""


class Fate(StrEnum):
    KEPT = "kept"
    REJECTED = "rejected"
    DUPLICATE = "duplicate"
    LATE = "late"


DECODED: Final = StructType(
    [
        StructField("reason", TEXT),
        StructField("detail", TEXT),
        StructField("truck", TEXT),
        StructField("kind", TEXT),
        StructField("id", TEXT),
        StructField("at", TIME),
        *(StructField(kind, schema) for kind, schema in KINDS.items()),
    ]
)


def decode(messages: DataFrame, limits: Limits) -> DataFrame:
    """What came, without the payload: its sizes instead, and what `DECODED` has. That is either a reason, a
    detail and the payload's head, or a record."""
    decoded = _decoder(limits)(F.col("topic"), F.col("payload"), F.unix_millis("time"))
    return (
        messages.select(
            "partition",
            "offset",
            F.col("time").alias("received"),
            "topic",
            "client_id",
            "qos",
            F.octet_length("payload").cast("long").alias("payload_bytes"),
            protocol_bytes().cast("long").alias("protocol_bytes"),
            F.substring("payload", 1, HEAD_BYTES).alias("head"),
            decoded.alias("decoded"),
        )
        .select("*", "decoded.*")
        .withColumn("head", F.when(F.col("reason").isNotNull(), F.col("head")))
        .drop("decoded")
    )


def judge(decoded: DataFrame, seen: DataFrame, watermark: datetime | None) -> DataFrame:
    """The table `records`. `seen` has the keys that were kept before and are not before the watermark."""
    is_late = F.lit(False) if watermark is None else F.col("at") < F.lit(watermark)
    is_good = F.col("reason").isNull() & ~F.coalesce(is_late, F.lit(False))
    # Only the good ones take part: a late copy must not make a kept one the second.
    order = Window.partitionBy(*KEY, "is_good").orderBy("received", "partition", "offset")
    before = seen.select(*KEY, F.lit(True).alias("was_seen")).distinct()
    return (
        decoded.withColumn("is_good", is_good)
        .withColumn("copy", F.when(F.col("is_good"), F.row_number().over(order)))
        .join(before, list(KEY), "left")
        .withColumn(
            "fate",
            F.when(F.col("reason").isNotNull(), Fate.REJECTED)
            .when(~F.col("is_good"), Fate.LATE)
            .when((F.col("copy") > 1) | F.col("was_seen"), Fate.DUPLICATE)
            .otherwise(Fate.KEPT),
        )
        .withColumn("watermark", F.lit(watermark).cast(TIME))
        .select(*RECORDS.names)
    )


# --- views of `records` ---------------------------------------------------------------------------


def ledger(records: DataFrame) -> DataFrame:
    """Every message once, without what it said."""
    return records.withColumn("time", F.coalesce("at", "received")).select(*TABLES["ledger"].schema.names)


def of_kind(records: DataFrame, kind: str) -> DataFrame:
    kept = records.where((F.col("fate") == Fate.KEPT) & (F.col("kind") == kind))
    return kept.select("truck", "id", "at", "received", "partition", "offset", f"{kind}.*")


def rejected(records: DataFrame) -> DataFrame:
    return records.where(F.col("fate") == Fate.REJECTED).select(*TABLES["rejected"].schema.names)


def duplicates(records: DataFrame) -> DataFrame:
    return records.where(F.col("fate") == Fate.DUPLICATE).select(*TABLES["duplicates"].schema.names)


def late(records: DataFrame) -> DataFrame:
    said = F.coalesce(*[F.to_json(kind) for kind in KINDS])
    return (
        records.where(F.col("fate") == Fate.LATE)
        .withColumn("record", said)
        .select(*TABLES["late"].schema.names)
    )


# --- on executors ---------------------------------------------------------------------------------


def _decoder(limits: Limits) -> Callable[..., Column]:
    @F.arrow_udf(DECODED)  # type: ignore[attr-defined,untyped-decorator] # its stubs do not know it yet
    def decode_column(topic: pa.Array, payload: pa.Array, received_ms: pa.Array) -> pa.Array:
        """Runs on an executor, once for each batch of rows."""
        rows = zip(topic.to_pylist(), payload.to_pylist(), received_ms.to_pylist(), strict=True)
        return decoded_rows(rows, limits)

    return decode_column  # type: ignore[no-any-return]


def decoded_rows(rows: Iterable[tuple[str | None, bytes | None, int]], limits: Limits) -> pa.Array:
    """Of topics, payloads and times, whatever these are."""
    return _column([_row(*row, limits) for row in rows], to_arrow_type(DECODED, timezone="UTC"))


def _column(rows: list[tuple[Any, ...]], arrow_type: pa.DataType) -> pa.Array:
    """A record that passed for good and does not fit the columns must not stop all others."""
    try:
        return pa.array(rows, arrow_type)
    except (pa.ArrowException, OverflowError, ValueError):
        return pa.concat_arrays([_fitting(row, arrow_type) for row in rows])


def _fitting(row: tuple[Any, ...], arrow_type: pa.DataType) -> pa.Array:
    try:
        return pa.array([row], arrow_type)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        detail = f"it does not fit the table: {error}"[:HEAD_BYTES]
        truck, kind, nothing = row[2], row[3], (None,) * len(row[4:])
        return pa.array([(Reason.WRONG_SCHEMA.value, detail, truck, kind, *nothing)], arrow_type)


def _row(topic: str | None, payload: bytes | None, received_ms: int, limits: Limits) -> tuple[Any, ...]:
    record = decode_message(topic, payload, received_ms or 0, limits)
    place = split_topic(topic or "")
    truck, kind = place if place is not None else (None, None)
    nothing = (None,) * len(KINDS)
    if isinstance(record, Rejected):
        # A kind that nobody knows is in the topic still; in a table it would be a type of traffic.
        known = kind if kind in KINDS else None
        return (record.reason.value, record.detail, truck, known, None, None, *nothing)
    assert kind is not None
    values = (_VALUES[kind](record) if name == kind else None for name in KINDS)
    return (None, None, truck, kind, record.id, record.at * 1000, *values)


def _position(record: Record) -> tuple[Any, ...]:
    assert isinstance(record, Position)
    track = [(each.seconds_ago, each.lat, each.lon, each.speed_kmh) for each in record.track]
    fix = (record.lat, record.lon, record.heading_deg, record.speed_kmh, record.odometer_km)
    return (*fix, record.road, track)


def _vehicle(record: Record) -> tuple[Any, ...]:
    assert isinstance(record, Vehicle)
    return (
        record.engine_rpm,
        record.engine_temperature_c,
        record.oil_pressure_bar,
        record.fuel_l,
        record.fuel_rate_l_h,
        record.load_kg,
        record.battery_v,
        record.brake_bar,
        [(each.pressure_bar, each.temperature_c) for each in record.tyres],
        record.samples,
        record.faults,
    )


def _tachograph(record: Record) -> tuple[Any, ...]:
    assert isinstance(record, Tachograph)
    return (record.driver, record.driven_s, record.rested_s, len(record.data), zlib.crc32(record.data))


def _update(record: Record) -> tuple[Any, ...]:
    assert isinstance(record, Update)
    head = (record.file, record.version, record.piece, record.pieces)
    return (*head, len(record.data), zlib.crc32(record.data))


_VALUES: Final[Mapping[str, Callable[[Record], tuple[Any, ...]]]] = {
    "position": _position,
    "vehicle": _vehicle,
    "tachograph": _tachograph,
    "update": _update,
}
