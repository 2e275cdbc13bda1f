"""Tables of all captures together, made anew when there is a new one, or other runs or types to count by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame

from polybus.pipeline.jobs.captures import JOB
from polybus.pipeline.lake import Lake
from polybus.pipeline.runs import Run, load_runs
from polybus.pipeline.settings import Captures
from polybus.pipeline.transforms import overhead
from polybus.pipeline.transforms.frames_protocols import check_ports
from polybus.pipeline.transforms.traffic import topic_pattern, traffic_by_type

DONE_FILE: Final = "captures.json"


def check_captures(settings: Captures) -> None:
    """Raises `UsageError` for runs, ports or types that cannot be used."""
    check_ports(settings.protocols())
    for topic_filter in settings.types.values():
        topic_pattern(topic_filter)
    _runs(settings)


def refresh_captures(lake: Lake, settings: Captures) -> Iterator[str]:
    """The names of the tables, each before it is made. What was interrupted is done again."""
    runs = _runs(settings)
    last = max(lake.books(JOB), default=-1)
    types = [
        list(each) for each in settings.types.items()
    ]  # the first that matches counts: their order matters
    now = {"batch": last, "types": types, "runs": msgspec.to_builtins(runs)}
    done_file = lake.files.at("books", DONE_FILE)
    if last < 0 or (lake.files.exists(done_file) and json.loads(lake.files.read_text(done_file)) == now):
        return
    frames = lake.read("frames")
    yield "capture_traffic"
    lake.replace("capture_traffic", traffic_by_type(frames, list(settings.types.items())))
    yield "header_bytes"
    lake.replace("header_bytes", overhead.header_bytes(lake.read("packets"), frames))
    if runs is not None:
        tried = lake.spark.createDataFrame([msgspec.structs.astuple(run) for run in runs], overhead.RUNS)
        yield "overhead_by_run"
        lake.replace("overhead_by_run", _by_run(lake, tried))
        yield "overhead"
        lake.replace("overhead", overhead.overhead(lake.read("overhead_by_run")))
    lake.files.write_text(done_file, json.dumps(now))


def _runs(settings: Captures) -> list[Run] | None:
    return None if settings.runs is None else load_runs(Path(settings.runs))


def _by_run(lake: Lake, runs: DataFrame) -> DataFrame:
    return overhead.overhead_by_run(lake.read("packets"), runs, lake.read("conversations"))
