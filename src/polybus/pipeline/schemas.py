"""Every table: its columns, its layer, who writes it and from what. Docs, commands and jobs read this.

bronze is what came, silver is what it means, gold is what people ask. `docs/pipeline.md` has the picture.

Tables that come of the same messages are views of one that is stored: `records` has every message once, with
what it says and what became of it, in folders by fate and kind. So a batch is one write, all of it or
nothing, and a view reads its own folders and columns only.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import ArrayType, ByteType, StructField, StructType

from polybus.pipeline.schemas_captures import CAPTURE_TABLES
from polybus.pipeline.tables import BOOL, BYTES, DAY, DOUBLE, INT, LONG, TEXT, TIME, Table, columns

PAIR: Final = columns(name=TEXT, value=TEXT)

MESSAGES: Final = columns(
    partition=INT,
    offset=LONG,
    time=TIME,
    topic=TEXT,
    payload=BYTES,
    qos=ByteType(),
    retain=BOOL,
    client_id=TEXT,
    user_properties=ArrayType(PAIR),
    priority=BOOL,
)
EVENTS: Final = columns(file=TEXT, position=LONG, line=BYTES)

_KEPT: Final = {"truck": TEXT, "id": TEXT, "at": TIME, "received": TIME, "partition": INT, "offset": LONG}
_ORIGIN: Final = {"partition": INT, "offset": LONG, "received": TIME, "topic": TEXT, "client_id": TEXT}

POSITION: Final = columns(
    lat=DOUBLE,
    lon=DOUBLE,
    heading_deg=DOUBLE,
    speed_kmh=DOUBLE,
    odometer_km=DOUBLE,
    road=TEXT,
    track=ArrayType(columns(seconds_ago=DOUBLE, lat=DOUBLE, lon=DOUBLE, speed_kmh=DOUBLE)),
)
VEHICLE: Final = columns(
    engine_rpm=DOUBLE,
    engine_temperature_c=DOUBLE,
    oil_pressure_bar=DOUBLE,
    fuel_l=DOUBLE,
    fuel_rate_l_h=DOUBLE,
    load_kg=DOUBLE,
    battery_v=DOUBLE,
    brake_bar=DOUBLE,
    tyres=ArrayType(columns(pressure_bar=DOUBLE, temperature_c=DOUBLE)),
    samples=ArrayType(ArrayType(DOUBLE)),
    faults=ArrayType(TEXT),
)
TACHOGRAPH: Final = columns(driver=TEXT, driven_s=LONG, rested_s=LONG, data_bytes=LONG, data_crc32=LONG)
UPDATE: Final = columns(file=TEXT, version=TEXT, piece=LONG, pieces=LONG, data_bytes=LONG, data_crc32=LONG)

KINDS: Final[Mapping[str, StructType]] = {
    "position": POSITION,
    "vehicle": VEHICLE,
    "tachograph": TACHOGRAPH,
    "update": UPDATE,
}
"""What is decoded of each kind of record, beside its head. Files stay in bronze; here are their sums."""


RECORDS: Final = StructType(
    [
        *columns(
            **_ORIGIN,
            qos=ByteType(),
            payload_bytes=LONG,
            protocol_bytes=LONG,
            truck=TEXT,
            id=TEXT,
            at=TIME,
            reason=TEXT,
            detail=TEXT,
            head=BYTES,
            watermark=TIME,
        ).fields,
        *(StructField(kind, schema) for kind, schema in KINDS.items()),
        StructField("fate", TEXT),
        StructField("kind", TEXT),
    ]
)
LOG_LINES: Final = columns(
    file=TEXT,
    position=LONG,
    ts=TIME,
    level=TEXT,
    event=TEXT,
    client_id=TEXT,
    topic=TEXT,
    request=LONG,
    requester=TEXT,
    packet_id=LONG,
    service=TEXT,
    duration_s=DOUBLE,
    payload_bytes=LONG,
    reason=TEXT,
    text=TEXT,
    why=TEXT,
    detail=TEXT,
    head=BYTES,
    fate=TEXT,
    day=DAY,
)

LOG_COLUMNS: Final = tuple(name for name in LOG_LINES.names if name not in ("why", "detail", "head", "fate"))


def _record(kind: str) -> StructType:
    return StructType([*columns(**_KEPT).fields, *KINDS[kind].fields])


TABLES: Final[Mapping[str, Table]] = {
    "messages": Table("bronze", "messages", "every message as it came", MESSAGES),
    "events": Table("bronze", "events", "every line of the broker's event file as it came", EVENTS),
    "records": Table(
        "silver",
        "messages",
        "every message decoded and judged: what the next seven are views of",
        RECORDS,
        ("messages",),
        folders=("fate", "kind"),
    ),
    "ledger": Table(
        "silver",
        "messages",
        "every message once: whose, of what kind, how many bytes, and what became of it",
        columns(
            **_ORIGIN,
            truck=TEXT,
            kind=TEXT,
            id=TEXT,
            at=TIME,
            time=TIME,
            fate=TEXT,
            qos=ByteType(),
            payload_bytes=LONG,
            protocol_bytes=LONG,
        ),
        ("records",),
        view_of="records",
    ),
    "position": Table(
        "silver", "messages", "where trucks were", _record("position"), ("records",), view_of="records"
    ),
    "vehicle": Table(
        "silver", "messages", "how trucks were", _record("vehicle"), ("records",), view_of="records"
    ),
    "tachograph": Table(
        "silver", "messages", "tachograph files", _record("tachograph"), ("records",), view_of="records"
    ),
    "update": Table(
        "silver", "messages", "pieces of software updates", _record("update"), ("records",), view_of="records"
    ),
    "rejected": Table(
        "silver",
        "messages",
        "what could not be decoded, and why",
        columns(**_ORIGIN, reason=TEXT, detail=TEXT, payload_bytes=LONG, head=BYTES),
        ("records",),
        view_of="records",
    ),
    "duplicates": Table(
        "silver",
        "messages",
        "copies of records that were there before",
        columns(**_ORIGIN, truck=TEXT, kind=TEXT, id=TEXT, at=TIME),
        ("records",),
        view_of="records",
    ),
    "late": Table(
        "silver",
        "messages",
        "records older than the watermark, with all they say as JSON",
        columns(**_ORIGIN, truck=TEXT, kind=TEXT, id=TEXT, at=TIME, watermark=TIME, record=TEXT),
        ("records",),
        view_of="records",
    ),
    "log_lines": Table(
        "silver",
        "events",
        "every line of the event file as an event, or with why it is none: the next two are views of it",
        LOG_LINES,
        ("events",),
        folders=("fate", "day"),
    ),
    "log": Table(
        "silver",
        "events",
        "the broker's events, to be searched",
        columns(**{name: LOG_LINES[name].dataType for name in LOG_COLUMNS}),
        ("log_lines",),
        view_of="log_lines",
    ),
    "rejected_events": Table(
        "silver",
        "events",
        "lines of the event file that are no events, and why",
        columns(file=TEXT, position=LONG, reason=TEXT, detail=TEXT, head=BYTES),
        ("log_lines",),
        view_of="log_lines",
    ),
    "requests": Table(
        "silver",
        "days",
        "a row a request: who asked whom, when, how it ended and how long it took",
        columns(
            day=DAY,
            begin=TIME,
            end=TIME,
            request=LONG,
            requester=TEXT,
            packet_id=LONG,
            topic=TEXT,
            service_name=TEXT,
            service=TEXT,
            outcome=TEXT,
            duration_s=DOUBLE,
            waited=BOOL,
            deliveries=LONG,
            reason=TEXT,
        ),
        ("log",),
    ),
    "client_traffic": Table(
        "gold",
        "days",
        "bytes by client and topic, a minute a row",
        columns(
            day=DAY,
            minute=TIME,
            client_id=TEXT,
            topic=TEXT,
            messages=LONG,
            payload_bytes=LONG,
            protocol_bytes=LONG,
        ),
        ("ledger",),
    ),
    "traffic_by_type": Table(
        "gold",
        "days",
        "table 2-1: delivered and protocol bytes by type of traffic",
        columns(
            day=DAY,
            kind=TEXT,
            messages=LONG,
            delivered_bytes=LONG,
            repeated_bytes=LONG,
            protocol_bytes=LONG,
            share_of_total=DOUBLE,
            overhead=DOUBLE,
        ),
        ("ledger",),
    ),
    "cap_use": Table(
        "gold",
        "days",
        "what each truck used of its daily data cap, and when it will be, or was, used up",
        columns(
            day=DAY,
            truck=TEXT,
            used_bytes=LONG,
            cap_bytes=LONG,
            used_share=DOUBLE,
            bytes_per_hour=DOUBLE,
            first=TIME,
            last=TIME,
            exhausted_at=TIME,
            projected_at=TIME,
        ),
        ("ledger",),
    ),
    "truck_days": Table(
        "gold",
        "days",
        "each truck's day: where it is now, how far it came",
        columns(
            day=DAY,
            truck=TEXT,
            positions=LONG,
            first=TIME,
            last=TIME,
            lat=DOUBLE,
            lon=DOUBLE,
            heading_deg=DOUBLE,
            speed_kmh=DOUBLE,
            road=TEXT,
            driven_km=DOUBLE,
            top_speed_kmh=DOUBLE,
        ),
        ("position",),
    ),
    "geofence_events": Table(
        "gold",
        "geofences",
        "when trucks entered and left the zones of the map",
        columns(truck=TEXT, at=TIME, geofence=TEXT, event=TEXT, lat=DOUBLE, lon=DOUBLE, stayed_s=DOUBLE),
        ("position",),
    ),
    "request_latency": Table(
        "gold",
        "days",
        "how long answers took, by service and hour",
        columns(
            day=DAY,
            hour=TIME,
            service_name=TEXT,
            answered=LONG,
            p50_s=DOUBLE,
            p90_s=DOUBLE,
            p99_s=DOUBLE,
            max_s=DOUBLE,
        ),
        ("requests",),
    ),
    "request_outcomes": Table(
        "gold",
        "days",
        "how requests ended, by service",
        columns(day=DAY, service_name=TEXT, outcome=TEXT, requests=LONG, share=DOUBLE),
        ("requests",),
    ),
    **CAPTURE_TABLES,
}
