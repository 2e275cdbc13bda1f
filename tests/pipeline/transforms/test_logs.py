import json
from datetime import UTC, datetime

import pytest
from pyspark.testing import assertDataFrameEqual

from polybus.errors import UsageError
from polybus.pipeline.schemas import EVENTS, TABLES
from polybus.pipeline.transforms import logs


def line(ts, event, level, **fields):
    return json.dumps({"ts": ts, "event": event, "level": level, **fields}).encode()


GOOD = [
    line(
        "2026-05-04T06:00:00.000123Z",
        "client connected",
        "INFO",
        client_id="Ann",
        peer="127.0.0.1:9",
        protocol="mqtt",
        version=5,
    ),
    line(
        "2026-05-04T07:00:00Z",
        "request timed out",
        "INFO",
        client_id="ann",
        topic="solve",
        request=17,
        requester="ann",
        packet_id=4,
        duration_s=1.5,
        reason="no answer in time",
    ),
    line("2026-05-05T00:00:01Z", "not authorized", "WARN", client_id="bob", topic="secret", unknown="field"),
]
BAD = {
    "empty": b"",
    "huge": b"{" + b" " * logs.MAX_LINE_BYTES,
    "not UTF-8": b'{"ts":"2026-05-04T06:00:00Z","event":"\xff","level":"INFO"}',
    "not JSON": b'{"ts":"2026-05-04T06:00',
    "wrong schema": line("yesterday", "client connected", "INFO"),
}


def lines(spark, given):
    return spark.createDataFrame([("f", number, each) for number, each in enumerate(given)], EVENTS)


def test_events_become_rows_that_say_all(spark):
    parsed = logs.parse_events(lines(spark, GOOD))
    time = datetime(2026, 5, 4, 6, 0, 0, 123, tzinfo=UTC)
    first = logs.log(parsed).where("position = 0")
    text = "client connected client_id=Ann peer=127.0.0.1:9 protocol=mqtt version=5"
    expected = [("f", 0, time, "INFO", "client connected", "Ann", *[None] * 8, text, time.date())]
    assertDataFrameEqual(first, spark.createDataFrame(expected, TABLES["log"].schema))
    second = logs.log(parsed).where("position = 1").first()
    assert (second["request"], second["requester"], second["packet_id"], second["duration_s"]) == (
        17,
        "ann",
        4,
        1.5,
    )
    assert logs.rejected_events(parsed).count() == 0


def test_what_is_no_event_is_set_aside_with_its_reason(spark):
    parsed = logs.parse_events(
        lines(spark, [*BAD.values(), b"[1]", b'"text"', b"{}", line("2026-05-04T06:00:00Z", "x", "LOUD")])
    )
    rows = logs.rejected_events(parsed).orderBy("position").collect()
    assert [row["reason"] for row in rows[: len(BAD)]] == list(BAD)
    assert len(rows) == len(BAD) + 4
    assert all(row["detail"] for row in rows)
    assert logs.log(parsed).count() == 0


@pytest.mark.parametrize(
    ("words", "options", "found"),
    [
        ([], {}, [0, 1, 2]),
        (["ANN"], {}, [0, 1]),
        (["ann", "solve"], {}, [1]),
        (["topic=secret"], {}, [2]),
        (["100%"], {}, []),
        ([], {"level": "warn"}, [2]),
        ([], {"since": datetime(2026, 5, 4, 6, 30, tzinfo=UTC)}, [1, 2]),
        ([], {"until": datetime(2026, 5, 4, 7, 0, tzinfo=UTC)}, [0]),
        (
            ["ann"],
            {"since": datetime(2026, 5, 4, 6, 30, tzinfo=UTC), "until": datetime(2026, 5, 5, tzinfo=UTC)},
            [1],
        ),
    ],
)
def test_a_search_finds_what_has_every_word(spark, words, options, found):
    log = logs.log(logs.parse_events(lines(spark, GOOD)))
    assert [row["position"] for row in logs.search(log, words, **options).collect()] == found


def test_an_unknown_level_is_refused(spark):
    with pytest.raises(UsageError, match="'loud' is none of TRACE, DEBUG"):
        logs.search(logs.log(logs.parse_events(lines(spark, GOOD))), level="loud")
