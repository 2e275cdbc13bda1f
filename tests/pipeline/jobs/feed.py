"""A fleet's messages as files with the columns of a stream, as the bus would have kept them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from pyspark.sql.pandas.types import to_arrow_schema

from polybus.fleet.decoding import Limits, Rejected, decode_message
from polybus.fleet.roads import as_geojson, make_country
from polybus.fleet.schedule import Plan, Sending, sendings
from polybus.pipeline.schemas import MESSAGES
from polybus.pipeline.settings import Fleet, Messages, Settings
from tests.pipeline.sources.mosquitto import publishing

START_MS = 1_777_874_400_000  # 2026-05-04 06:00 UTC
PLAN = Plan(make_country(7), 3, 7, START_MS, 2 * 3600.0, damaged_share=0.01)
SCHEMA = to_arrow_schema(MESSAGES, timezone="UTC")
PARTITIONS = 2


class Feed:
    """`parts` files, one a batch. Knows what has to come of them."""

    def __init__(self, folder: Path, parts: int, plan: Plan = PLAN) -> None:
        self.folder = folder
        self.sent = list(sendings(plan))
        size = -(-len(self.sent) // parts)
        self._parts = [self.sent[begin : begin + size] for begin in range(0, len(self.sent), size)]
        self._offsets: Counter[int] = Counter()
        self._written = 0
        self.later_s = 0
        """So long after the plan's time messages arrive."""
        (folder / "in").mkdir(parents=True)
        (folder / "map.geojson").write_text(json.dumps(as_geojson(plan.country)))

    def settings(self, **fleet: float) -> Settings:
        options: dict[str, str | int | float | bool] = {
            "path": str(self.folder / "in"),
            "maxFilesPerTrigger": 1,
        }
        return Settings(
            folder=str(self.folder / "lake"),
            messages=Messages("parquet", options),
            fleet=Fleet(map=str(self.folder / "map.geojson"), **fleet),  # type: ignore[arg-type] # any of its numbers
            spark={"spark.sql.shuffle.partitions": "2"},
        )

    def settings_of(self, format: str, options: dict[str, str | int | float | bool]) -> Settings:
        """For messages that `publish` sends: they arrive by the clock, not by the plan."""
        return msgspec.structs.replace(
            self.settings(max_clock_error_s=10 * 366 * 86_400.0), messages=Messages(format, options)
        )

    def publish(self, port: int, parts: int | None = None) -> None:
        """The next parts to a broker; all that are left if no number is given. Returns when they are
        acknowledged."""
        last = len(self._parts) if parts is None else self._written + parts
        send(port, chain.from_iterable(self._parts[self._written : last]))
        self._written = last

    def write(self, parts: int | None = None) -> None:
        """The next files; all that are left if no number is given."""
        last = len(self._parts) if parts is None else self._written + parts
        for number in range(self._written, last):
            self._write(number, self._parts[number])
        self._written = last

    def _write(self, number: int, sent: Sequence[Sending]) -> None:
        rows = []
        for each in sent:
            partition = sum(each.topic.encode()) % PARTITIONS
            arrival_s = each.send_s + self.later_s
            time = datetime.fromtimestamp((START_MS + int(arrival_s * 1000)) / 1000, UTC)
            row = (
                partition,
                self._offsets[partition],
                time,
                each.topic,
                each.payload,
                1,
                False,
                each.sender,
                [],
                False,
            )
            self._offsets[partition] += 1
            rows.append(dict(zip(SCHEMA.names, row, strict=True)))
        # Appears whole: Spark's file source takes what it sees.
        target = self.folder / "in" / f"{number:04d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), target.with_name(f".{target.name}"))
        target.with_name(f".{target.name}").rename(target)

    def expected(self) -> tuple[set[tuple[str, str]], int, int]:
        """Truck and id of the records, and how many are rejected and double, if nothing is late."""
        records: set[tuple[str, str]] = set()
        rejected = double = 0
        for each in self.sent:
            record = decode_message(each.topic, each.payload, START_MS, Limits())
            if isinstance(record, Rejected):
                rejected += 1
            elif (record.truck, record.id) in records:
                double += 1
            else:
                records.add((record.truck, record.id))
        return records, rejected, double


def send(port: int, sent: Iterable[Sending]) -> None:
    """To a broker. Returns when all is acknowledged."""
    with publishing(port) as publisher:
        for each in sent:
            publisher.send(each.topic, [each.payload])
        publisher.wait()


def write_settings(settings: Settings, folder: Path) -> Path:
    file = folder / "pipeline.toml"
    file.write_text(tomli_w.dumps(_without_none(msgspec.to_builtins(settings))))
    return file


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """TOML has no word for it."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
