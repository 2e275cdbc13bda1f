"""What `polybus pipeline show` prints, on a machine that is not in UTC."""

import csv
import io
import json
import time

import pytest

from polybus.cli.rows import print_rows

QUERY = """
    SELECT timestamp'2026-11-15T23:30:00Z' AS at, 5199982L AS used, 57.70887012345D AS lat, true AS done,
        array(1, 2) AS some, CAST(NULL AS STRING) AS nothing, CAST(repeat('x', 50) AS BINARY) AS head
"""


@pytest.fixture(autouse=True)
def tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def printed(spark, capsys, format):
    print_rows(spark.sql(QUERY), 0, format)
    return capsys.readouterr().out


def test_people_see_utc(spark, capsys):
    said = printed(spark, capsys, "table")
    assert "2026-11-15 23:30:00" in said
    assert "5,199,982" in said


def test_programs_get_utc_and_all_digits(spark, capsys):
    row = json.loads(printed(spark, capsys, "json"))
    assert row["at"] == "2026-11-15T23:30:00Z"
    assert (row["used"], row["lat"], row["nothing"]) == (5199982, 57.70887012345, None)
    (row,) = csv.DictReader(io.StringIO(printed(spark, capsys, "csv")))
    assert row == {
        "at": "2026-11-15T23:30:00Z",
        "used": "5199982",
        "lat": "57.70887012345",
        "done": "true",
        "some": "[1,2]",
        "nothing": "",
        "head": "x" * 50,
    }
