from datetime import UTC, datetime, timedelta

from pyspark.testing import assertDataFrameEqual

from polybus.pipeline.schemas import TABLES
from polybus.pipeline.transforms import requests

START = datetime(2026, 5, 4, 6, 0, tzinfo=UTC)
LOG = TABLES["log"].schema
SPANS = TABLES["requests"].schema


def log(spark, *events):
    """Each: second, event, and fields."""
    rows = []
    for number, (second, event, fields) in enumerate(events):
        ts = START + timedelta(seconds=second)
        row = {
            "file": "f",
            "position": number,
            "ts": ts,
            "level": "DEBUG",
            "event": event,
            "day": ts.date(),
            **fields,
        }
        rows.append(tuple(row.get(name) for name in LOG.names))
    return spark.createDataFrame(rows, LOG)


def step(second, event, request, client="ann", topic="fleet/t1/ping", **more):
    return (
        second,
        event,
        {
            "request": request,
            "requester": "ann",
            "packet_id": request,
            "client_id": client,
            "topic": topic,
            **more,
        },
    )


def story(spark):
    return log(
        spark,
        step(0, "request received", 1),
        step(0.001, "request delivered", 1, "t1"),
        step(0.01, "answer received", 1, "t1"),
        step(0.011, "answer delivered", 1, "t1", duration_s=0.011),
        step(1, "request received", 2, topic="solve"),
        step(1, "request stored", 2, topic="solve"),
        step(2, "request restored", 2, "s1", topic="solve"),
        step(3, "request delivered", 2, "s2", topic="solve"),  # s1 went away
        step(
            4, "request timed out", 2, topic="solve", service="s2", duration_s=3.0, reason="no answer in time"
        ),
        step(5, "request received", 3),
        (6, "client connected", {"client_id": "x"}),
        # The bus was started anew, and counts from 1.
        step(100, "request received", 1),
        step(100.5, "request not delivered", 1, duration_s=0.5, reason="no service"),
        # Its begin was before what we have.
        step(101, "answer delivered", 9, "t9", duration_s=9.0),
    )


def test_a_request_is_a_row_however_it_went(spark):
    def at(second):
        return START + timedelta(seconds=second)

    day = START.date()
    expected = [
        (
            day,
            at(0),
            at(0.011),
            1,
            "ann",
            1,
            "fleet/t1/ping",
            "fleet/+/ping",
            "t1",
            "answered",
            0.011,
            False,
            1,
            None,
        ),
        (
            day,
            at(1),
            at(4),
            2,
            "ann",
            2,
            "solve",
            "solve",
            "s2",
            "timed out",
            3.0,
            True,
            2,
            "no answer in time",
        ),
        (
            day,
            at(5),
            None,
            3,
            "ann",
            3,
            "fleet/t1/ping",
            "fleet/+/ping",
            None,
            "unfinished",
            None,
            False,
            0,
            None,
        ),
        (
            day,
            at(100),
            at(100.5),
            1,
            "ann",
            1,
            "fleet/t1/ping",
            "fleet/+/ping",
            None,
            "not delivered",
            0.5,
            False,
            0,
            "no service",
        ),
    ]
    found = requests.spans(story(spark)).select(*SPANS.names)
    assertDataFrameEqual(found, spark.createDataFrame(expected, SPANS))


def test_outcomes_add_up(spark):
    found = requests.outcomes(requests.spans(story(spark)))
    expected = [
        (START.date(), "fleet/+/ping", "answered", 1, 1 / 3),
        (START.date(), "fleet/+/ping", "unfinished", 1, 1 / 3),
        (START.date(), "fleet/+/ping", "not delivered", 1, 1 / 3),
        (START.date(), "solve", "timed out", 1, 1.0),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, TABLES["request_outcomes"].schema))


def test_latency_is_of_answers_by_hour(spark):
    events = []
    for number in range(1, 101):
        events += [
            step(number, "request received", number),
            step(number + number / 1000, "answer delivered", number, duration_s=number / 1000),
        ]
    events += [step(3601, "request received", 200), step(3602, "answer delivered", 200, duration_s=1.0)]
    found = requests.latency(requests.spans(log(spark, *events)))
    expected = [
        (START.date(), START, "fleet/+/ping", 100, 0.0505, 0.0901, 0.09901, 0.1),
        (START.date(), START + timedelta(hours=1), "fleet/+/ping", 1, 1.0, 1.0, 1.0, 1.0),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, TABLES["request_latency"].schema), rtol=1e-9)
