"""All of it with a real bus: trucks publish, the stream keeps, Spark reads, and the books agree."""

import asyncio
import json
import re

import msgspec
import pytest

from polybus.fleet.roads import as_geojson, make_country
from polybus.fleet.schedule import Plan, sendings
from polybus.fleet.sender import Sender
from polybus.pipeline.jobs.run import run_once
from polybus.pipeline.settings import Events, Fleet, Messages, Settings
from tests.fleet.bus import running_bus

BUS = """
[server]
event_file = "events.jsonl"
data_dir = "store"
[[stream]]
name = "fleet"
filters = ["fleet/#"]
partitions = 2
[http]
port = 0
"""
PLAN = Plan(make_country(5), 4, 5, 1_777_874_400_000, 1800.0, damaged_share=0.01)
pytestmark = pytest.mark.timeout(600)


def test_what_was_published_is_in_the_tables(spark, tmp_path):
    with running_bus(tmp_path, BUS) as bus:
        (tmp_path / "map.geojson").write_text(json.dumps(as_geojson(PLAN.country)))
        found = re.search(r"(http://\S+)/streams", bus.log)
        assert found
        settings = Settings(
            folder=str(tmp_path / "lake"),
            messages=Messages("polybus", {"url": found[1], "stream": "fleet", "maxRowsPerBatch": 1000}),
            events=Events(str(tmp_path / "events.jsonl*")),
            fleet=Fleet(map=str(tmp_path / "map.geojson"), max_clock_error_s=10 * 366 * 86_400.0),
        )
        first = msgspec.structs.replace(PLAN, duration_s=600.0)
        totals = [asyncio.run(Sender(first, bus.url("mqtt"), 200.0).run())]
        run_once(spark, settings)
        second = msgspec.structs.replace(PLAN, start_ms=PLAN.start_ms + 600_000)
        totals.append(asyncio.run(Sender(second, bus.url("mqtt"), 600.0).run()))
        lake = run_once(spark, settings)
    published = sum(total.messages.total() for total in totals)
    assert published == sum(1 for plan in (first, second) for _ in sendings(plan))
    assert lake.read("messages").count() == published
    fates = {row["fate"]: row["count"] for row in lake.read("ledger").groupBy("fate").count().collect()}
    assert sum(fates.values()) == published
    assert fates["kept"] == sum(
        lake.read(kind).count() for kind in ("position", "vehicle", "tachograph", "update")
    )
    asked = sum(total.ends.total() for total in totals)
    outcomes = {row["outcome"]: row["requests"] for row in lake.read("request_outcomes").collect()}
    assert sum(outcomes.values()) == asked
    assert outcomes["answered"] == sum(total.ends["answered"] for total in totals)
    connected = lake.read("log").where("event = 'client connected'")
    assert {row["client_id"] for row in connected.collect()} == {
        "dispatch",
        *(f"truck-00{number}" for number in range(1, 5)),
    }
