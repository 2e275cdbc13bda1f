from datetime import UTC, datetime, timedelta

from pyspark.testing import assertDataFrameEqual

from polybus.pipeline.schemas import TABLES
from polybus.pipeline.transforms.caps import cap_use
from polybus.pipeline.transforms.clients import client_traffic
from polybus.pipeline.transforms.fleet_traffic import traffic_by_type
from polybus.pipeline.transforms.positions import truck_days

SIX = datetime(2026, 5, 4, 6, 0, tzinfo=UTC)
DAY = SIX.date()


def ledger(spark, *rows):
    """Each: minutes after six, truck, kind, payload, protocol, and fate if it is not kept."""
    schema = TABLES["ledger"].schema
    full = []
    for number, (minutes, truck, kind, payload, protocol, *fate) in enumerate(rows):
        time = SIX + timedelta(minutes=minutes)
        values = {
            **dict.fromkeys(("received", "time", "at"), time),
            **dict.fromkeys(("client_id", "truck"), truck),
            "partition": 0,
            "offset": number,
            "topic": f"fleet/{truck}/{kind}",
            "kind": kind,
            "id": str(number),
            "fate": fate[0] if fate else "kept",
            "qos": 1,
            "payload_bytes": payload,
            "protocol_bytes": protocol,
        }
        full.append(tuple(values[name] for name in schema.names))
    return spark.createDataFrame(full, schema)


def test_cap_use_says_when_it_was_and_when_it_will_be_used_up(spark):
    rows = ledger(
        spark,
        (0, "fast", "update", 600, 0),
        (60, "fast", "update", 390, 10),  # reaches 1000 here
        (120, "fast", "update", 100, 0),
        (0, "even", "vehicle", 90, 10),
        (60, "even", "vehicle", 90, 10, "duplicate"),  # 200 an hour: 800 more take four hours
        (0, "slow", "vehicle", 10, 0),
        (60, "slow", "vehicle", 10, 0),  # would take days
        (0, "once", "vehicle", 10, 0),  # no pace at all
        (24 * 60, "fast", "vehicle", 1, 0),
    )

    def at(hours):
        return SIX + timedelta(hours=hours)

    expected = [
        (DAY, "fast", 1100, 1000, 1.1, 550.0, SIX, at(2), at(1), None),
        (DAY, "even", 200, 1000, 0.2, 200.0, SIX, at(1), None, at(5)),
        (DAY, "slow", 20, 1000, 0.02, 20.0, SIX, at(1), None, None),
        (DAY, "once", 10, 1000, 0.01, None, SIX, SIX, None, None),
        (DAY + timedelta(days=1), "fast", 1, 1000, 0.001, None, at(24), at(24), None, None),
    ]
    schema = TABLES["cap_use"].schema
    assertDataFrameEqual(cap_use(rows, 1000).select(*schema.names), spark.createDataFrame(expected, schema))


def test_traffic_by_type_counts_copies_as_overhead(spark):
    rows = ledger(
        spark,
        (0, "t1", "position", 100, 10),
        (1, "t1", "position", 100, 10, "duplicate"),
        (2, "t1", "vehicle", 770, 10, "rejected"),
        (3, "t1", None, 0, 0, "rejected"),
    )
    expected = [
        (DAY, "position", 2, 100, 100, 20, 0.22, 1.2),
        (DAY, "vehicle", 1, 770, 0, 10, 0.78, 10 / 770),
        (DAY, "other", 1, 0, 0, 0, 0.0, None),
    ]
    assertDataFrameEqual(
        traffic_by_type(rows), spark.createDataFrame(expected, TABLES["traffic_by_type"].schema)
    )


def test_client_traffic_is_by_minute_client_and_topic(spark):
    rows = ledger(
        spark,
        (0, "t1", "position", 100, 10),
        (0.9, "t1", "position", 50, 10),
        (1, "t1", "position", 1, 1),
        (0, "t2", "position", 7, 1),
    )
    expected = [
        (DAY, SIX, "t1", "fleet/t1/position", 2, 150, 20),
        (DAY, SIX + timedelta(minutes=1), "t1", "fleet/t1/position", 1, 1, 1),
        (DAY, SIX, "t2", "fleet/t2/position", 1, 7, 1),
    ]
    assertDataFrameEqual(client_traffic(rows), spark.createDataFrame(expected, TABLES["client_traffic"].schema))


def test_a_truck_is_where_it_was_last(spark):
    schema = TABLES["position"].schema

    def row(minutes, lat, km, speed):
        at = SIX + timedelta(minutes=minutes)
        return ("t1", str(minutes), at, at, 0, int(minutes), lat, 13.0, 90.0, speed, km, "E6", [])

    rows = spark.createDataFrame([row(10, 58.2, 1020.0, 50.0), row(0, 58.0, 1000.0, 80.0)], schema)
    expected = [(DAY, "t1", 2, SIX, SIX + timedelta(minutes=10), 58.2, 13.0, 90.0, 50.0, "E6", 20.0, 80.0)]
    assertDataFrameEqual(truck_days(rows), spark.createDataFrame(expected, TABLES["truck_days"].schema))
