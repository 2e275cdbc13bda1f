import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.testing import assertDataFrameEqual

from polybus.fleet.decoding import Limits, Reason
from polybus.fleet.records import Position, Tachograph, Update, Vehicle, encode_record
from polybus.pipeline.schemas import MESSAGES, TABLES
from polybus.pipeline.transforms import fleet

NOW = datetime(2026, 5, 4, 6, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
LIMITS = Limits(max_payload_bytes=5000)


def position(id="a", truck="t1", minutes=0, **changes):
    return Position(
        **{
            "id": id,
            "truck": truck,
            "at": NOW_MS + minutes * 60_000,
            "lat": 58.0,
            "lon": 13.0,
            "heading_deg": 90.0,
            "speed_kmh": 80.0,
            "odometer_km": 1000.0,
        }
        | changes
    )


def messages(spark, *sent):
    """Each is a record, or a topic and a payload; they come a second apart."""
    rows = []
    for number, each in enumerate(sent):
        topic, payload = (
            each if isinstance(each, tuple) else (f"fleet/{each.truck}/position", encode_record(each))
        )
        rows.append((0, number, NOW + timedelta(seconds=number), topic, payload, 1, False, "client", [], False))
    return spark.createDataFrame(rows, MESSAGES)


def judged(spark, sent, seen=(), watermark=None):
    before = spark.createDataFrame(list(seen), "truck string, kind string, id string")
    return fleet.judge(fleet.decode(messages(spark, *sent), LIMITS), before, watermark)


def fates(records):
    return [
        (row["offset"], row["fate"]) for row in records.orderBy("offset").select("offset", "fate").collect()
    ]


def test_every_message_gets_the_one_fate_it_should(spark):
    sent = [
        position("a"),
        position("a"),  # a copy in the same batch
        position("b"),  # seen before
        position("a", truck="t2"),  # another truck's own a
        ("fleet/t1/position", b""),
        position("old", minutes=-90),
        position("old", minutes=-90),  # late too: whether it is a copy can no longer be told
        position("c", minutes=-60),  # at the watermark is in time
        ("fleet/t1/position", encode_record(position("d"), "msgpack")),
        ("fleet/t1/position", encode_record(position("d"))),  # the same record in another encoding
    ]
    found = judged(spark, sent, [("t1", "position", "b"), ("t1", "vehicle", "c")], NOW - timedelta(minutes=60))
    expected = [
        "kept",
        "duplicate",
        "duplicate",
        "kept",
        "rejected",
        "late",
        "late",
        "kept",
        "kept",
        "duplicate",
    ]
    assert fates(found) == list(enumerate(expected))


def test_a_late_copy_does_not_make_the_kept_one_the_second(spark):
    """The same id with two times: the first is late, the second is the first good one."""
    found = judged(spark, [position("a", minutes=-90), position("a")], watermark=NOW - timedelta(minutes=60))
    assert fates(found) == [(0, "late"), (1, "kept")]


def test_bad_records_are_set_aside_with_their_reason(spark):
    good = msgspec.to_builtins(position())
    bad = {
        Reason.EMPTY: b"",
        Reason.HUGE: b" " * 5001,
        Reason.NOT_UTF8: b'{"v":"\xff"}',
        Reason.NOT_JSON: b"{",
        Reason.NOT_MSGPACK: b"\x81",
        Reason.WRONG_SCHEMA: msgspec.json.encode({**good, "lat": "north"}),
        Reason.UNKNOWN_VERSION: msgspec.json.encode({**good, "v": 2}),
        Reason.WRONG_TRUCK: msgspec.json.encode({**good, "truck": "t2"}),
        Reason.CLOCK_OFF: msgspec.json.encode({**good, "at": 0}),
    }
    found = fleet.rejected(
        judged(
            spark, [*(("fleet/t1/position", payload) for payload in bad.values()), ("fleet/t1/weather", b"{}")]
        )
    ).orderBy("offset")
    rows = found.collect()
    assert [row["reason"] for row in rows] == [*bad, Reason.UNKNOWN_TYPE]
    assert set(bad) | {Reason.UNKNOWN_TYPE} == set(Reason)
    assert [row["payload_bytes"] for row in rows[:-1]] == [len(payload) for payload in bad.values()]
    assert all(
        bytes(row["head"]) == payload[:1000] for row, payload in zip(rows[:-1], bad.values(), strict=True)
    )
    assert found.columns == TABLES["rejected"].schema.names


EXTREMES = st.one_of(
    st.sampled_from(
        [2**53, 2**63 - 1, 2**63, 2**64 - 1, -1, 1e308, "", "x" * 201, "\0", None, [], {}, [[1.0]]]
    ),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    st.sampled_from(
        [
            position(),
            Tachograph(id="a", truck="t1", at=NOW_MS, driver="d", driven_s=1, rested_s=1, data=b""),
            Update(id="a", truck="t1", at=NOW_MS, file="f", version="1", piece=0, pieces=1, data=b""),
        ]
    ),
    st.data(),
)
def test_any_value_of_any_field_becomes_a_row(record, data):
    fields = msgspec.to_builtins(record)
    fields |= {data.draw(st.sampled_from(sorted(fields))): data.draw(EXTREMES)}
    topic = f"fleet/t1/{type(record).__name__.lower()}"
    rows = [(topic, json.dumps(fields).encode(), NOW_MS)]
    assert len(fleet.decoded_rows(rows, LIMITS)) == 1


def test_records_become_rows_of_their_kind(spark):
    head = {"truck": "t1", "at": NOW_MS}
    sent = [
        position("a", road="E6", track=[(2.0, 58.5, 13.5, 70.0)]),
        (
            "fleet/t1/vehicle",
            encode_record(
                Vehicle(
                    id="b",
                    **head,
                    engine_rpm=1200.0,
                    engine_temperature_c=86.5,
                    oil_pressure_bar=4.0,
                    fuel_l=300.0,
                    fuel_rate_l_h=20.0,
                    load_kg=18000.0,
                    battery_v=27.5,
                    tyres=[(8.5, 38.0)],
                    samples=[[1.0, 2.0, 3.0]],
                    faults=["P0128"],
                )
            ),
        ),
        (
            "fleet/t1/tachograph",
            encode_record(Tachograph(id="c", **head, driver="x", driven_s=60, rested_s=0, data=b"123456789")),
        ),
        (
            "fleet/t1/update",
            encode_record(
                Update(id="d", **head, file="f", version="1", piece=0, pieces=2, data=b"123456789"), "msgpack"
            ),
        ),
    ]
    records = judged(spark, sent).cache()
    crc = 0xCBF43926  # of 123456789, as everyone knows
    expected = {
        "position": (
            "t1",
            "a",
            NOW,
            NOW,
            0,
            0,
            58.0,
            13.0,
            90.0,
            80.0,
            1000.0,
            "E6",
            [(2.0, 58.5, 13.5, 70.0)],
        ),
        "vehicle": (
            "t1",
            "b",
            NOW,
            NOW + timedelta(seconds=1),
            0,
            1,
            1200.0,
            86.5,
            4.0,
            300.0,
            20.0,
            18000.0,
            27.5,
            0.0,
            [(8.5, 38.0)],
            [[1.0, 2.0, 3.0]],
            ["P0128"],
        ),
        "tachograph": ("t1", "c", NOW, NOW + timedelta(seconds=2), 0, 2, "x", 60, 0, 9, crc),
        "update": ("t1", "d", NOW, NOW + timedelta(seconds=3), 0, 3, "f", "1", 0, 2, 9, crc),
    }
    for kind, row in expected.items():
        assertDataFrameEqual(fleet.of_kind(records, kind), spark.createDataFrame([row], TABLES[kind].schema))
    records.unpersist()


def test_the_ledger_has_all_of_them_and_a_time_for_each(spark):
    records = judged(spark, [position("a", minutes=-5), ("fleet/t1/position", b"")])
    rows = fleet.ledger(records).orderBy("offset").collect()
    assert [(row["fate"], row["kind"], row["payload_bytes"]) for row in rows] == [
        ("kept", "position", len(encode_record(position("a", minutes=-5)))),
        ("rejected", "position", 0),
    ]
    assert [row["time"].replace(tzinfo=UTC) for row in rows] == [
        NOW - timedelta(minutes=5),
        NOW + timedelta(seconds=1),
    ]


def test_late_ones_keep_all_they_say(spark):
    watermark = NOW - timedelta(minutes=60)
    records = judged(spark, [position("a", minutes=-90, road="E6")], watermark=watermark)
    (row,) = fleet.late(records).collect()
    assert '"road":"E6"' in row["record"]
    assert row["watermark"].replace(tzinfo=UTC) == watermark


@pytest.mark.parametrize("name", ["duplicates"])
def test_copies_say_whose_they_are(spark, name):
    rows = fleet.duplicates(judged(spark, [position("a"), position("a")]))
    expected = [(0, 1, NOW + timedelta(seconds=1), "fleet/t1/position", "client", "t1", "position", "a", NOW)]
    assertDataFrameEqual(rows, spark.createDataFrame(expected, TABLES[name].schema))


def test_a_row_that_no_column_holds_is_set_aside_alone():
    """Whatever the decoder lets through: the others of its batch are kept."""
    kind = to_arrow_type(fleet.DECODED, timezone="UTC")
    good = (None, None, "t1", "tachograph", "a", 0, None, None, ("d", 1, 2, 3, 4), None)
    bad = (None, None, "t1", "tachograph", "b", 0, None, None, ("d", 2**70, 2, 3, 4), None)
    rows = fleet._column([good, bad, good], kind).to_pylist()
    assert [row["id"] for row in rows] == ["a", None, "a"]
    assert (rows[1]["reason"], rows[1]["truck"]) == ("wrong schema", "t1")
    assert "does not fit the table" in rows[1]["detail"]
