"""All jobs together: once, until what is there is done, or for as long as it is wanted."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polybus.errors import PolybusError, UsageError
from polybus.pipeline.geography import Map, parse_map
from polybus.pipeline.jobs.captures import JOB as CAPTURES
from polybus.pipeline.jobs.captures import CaptureIntake
from polybus.pipeline.jobs.captures_gold import check_captures, refresh_captures
from polybus.pipeline.jobs.compaction import compact
from polybus.pipeline.jobs.days import refresh_days
from polybus.pipeline.jobs.events import event_intake, event_stream
from polybus.pipeline.jobs.geofences import start_geofences
from polybus.pipeline.jobs.intake import Trigger
from polybus.pipeline.jobs.messages import message_intake, message_stream
from polybus.pipeline.lake import Lake
from polybus.pipeline.settings import Settings

logger = logging.getLogger("polybus.pipeline")

POLL_S: Final = 0.2
MAX_SAID: Final = 600
CAUSE: Final = "Caused by: "
PYTHON_ERROR: Final = re.compile(r"\w*(Error|Exception): .")
"""The last line of a traceback, of a class that Python itself has."""

Tell = Callable[[str, int, int], None]
"""Is called with a job's name, its batches and its rows so far."""


class PipelineFailed(PolybusError):
    """A job ended with an error that is not ours; the text is the cause's."""


def run_once(spark: SparkSession, settings: Settings, tell: Tell = lambda *_: None) -> Lake:
    """Takes in what is there now, and makes of it what can be made. A second call goes on where it ended."""
    with _prepared(spark, settings) as (lake, map):
        captures = _capture_intake(lake, settings)
        for queries in _stages(lake, settings, map, lambda writer: writer.trigger(availableNow=True)):
            with _stopping(lake, queries):
                while any(query.isActive for query in queries):
                    _report(lake, tell)
                    time.sleep(POLL_S)
                for query in queries:
                    _check(lake, query)
        if captures is not None:
            captures.wait_at_rest()
            _take_captures(captures)
        _refresh(lake, settings, tell)
        _report(lake, tell)
        return lake


def run_continuously(
    spark: SparkSession,
    settings: Settings,
    is_wanted: Callable[[], bool],
    tell: Tell = lambda *_: None,
    *,
    refresh_at_end: bool = True,
) -> Lake:
    """Until `is_wanted` says no; then batches under way come to their end, and the tables by day are made anew
    once more."""
    every = f"{settings.trigger_s:g} seconds"
    with _prepared(spark, settings) as (lake, map):
        captures = _capture_intake(lake, settings)
        queries = [
            query
            for stage in _stages(lake, settings, map, lambda writer: writer.trigger(processingTime=every))
            for query in stage
        ]
        with _stopping(lake, queries):
            refresh_at = time.monotonic() + settings.refresh_s
            while is_wanted():
                for query in queries:
                    _check(lake, query)
                _report(lake, tell)
                if time.monotonic() >= refresh_at:
                    if captures is not None:
                        _take_captures(captures, is_wanted)
                    _refresh(lake, settings, tell)
                    refresh_at = time.monotonic() + settings.refresh_s
                time.sleep(POLL_S)
        if refresh_at_end:
            _refresh(lake, settings, tell)
        _report(lake, tell)
        return lake


@contextmanager
def _prepared(spark: SparkSession, settings: Settings) -> Iterator[tuple[Lake, Map]]:
    if settings.messages is None and settings.events is None and settings.captures is None:
        raise UsageError(
            "there is nothing to read: the configuration needs [messages] (format and options of a source), "
            "[events] (path of the broker's event file) or [captures] (path of capture files)"
        )
    lake = Lake(spark, settings.folder)
    with lake.turns.only_writer():
        lake.recover()
        yield lake, load_map(settings)


def _refresh(lake: Lake, settings: Settings, tell: Tell) -> None:
    refresh_days(lake, settings.fleet, lambda name: tell(name, 0, 0))
    if settings.captures is not None:
        for name in refresh_captures(lake, settings.captures):
            tell(name, 0, 0)
    if settings.merge_batches:
        try:
            compact(lake, fan_in=settings.merge_batches)
        except (PolybusError, Py4JJavaError, PySparkException) as error:
            # Nothing is lost, and the next time may be better: not worth the end of a run.
            logger.warning("folders could not be made into larger ones: %s", str(error).partition("\n")[0])


def load_map(settings: Settings) -> Map:
    if settings.fleet.map is None:
        return Map()
    file = Path(settings.fleet.map)
    try:
        return parse_map(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"fleet.map: {file} cannot be read: {error}") from error


def _stages(lake: Lake, settings: Settings, map: Map, trigger: Trigger) -> Iterator[list[StreamingQuery]]:
    """What feeds before what is fed: geofences read what messages wrote."""
    first: list[StreamingQuery] = []
    if settings.messages is not None:
        messages = message_intake(lake, settings.fleet, settings.messages)
        messages.prepare()
        first.append(messages.start(message_stream(lake.spark, settings.messages), trigger))
    if settings.events is not None:
        events = event_intake(lake)
        events.prepare()
        first.append(events.start(event_stream(lake.spark, settings.events), trigger))
    yield first
    if settings.messages is not None and map.geofences:
        yield [start_geofences(lake, map, settings.fleet.settle_s, trigger)]


def _capture_intake(lake: Lake, settings: Settings) -> CaptureIntake | None:
    """Raises `UsageError` for what would come to light only when there are captures."""
    if settings.captures is None:
        return None
    check_captures(settings.captures)
    return CaptureIntake(lake, settings.captures)


def _take_captures(captures: CaptureIntake, is_wanted: Callable[[], bool] = lambda: True) -> None:
    try:
        captures.prepare()
        captures.take(is_wanted)
    except (Py4JJavaError, PySparkException) as error:
        raise PipelineFailed(f"{CAPTURES}: {_said(error)}") from error


def _report(lake: Lake, tell: Tell) -> None:
    for job in ("messages", "events", "geofences", "captures"):
        tell(job, *lake.book_keeping.totals(job))


@contextmanager
def _stopping(lake: Lake, queries: list[StreamingQuery]) -> Iterator[None]:
    try:
        yield
    finally:
        active = [query for query in queries if query.isActive]
        if active:
            with lake.turns.nobody_writing():
                for query in active:
                    query.stop()


def _check(lake: Lake, query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        cause = lake.turns.failures.get(query.name, error)
        raise PipelineFailed(f"{query.name}: {_said(cause)}") from cause


def _said(error: BaseException) -> str:
    """Spark wraps what happened in what came of it. An error of ours says what a user can mend; else the first
    cause of all does, a full disk for example."""
    if isinstance(error, PolybusError):
        return str(error)[:MAX_SAID]
    text = f"{error}\n{getattr(error, '_stackTrace', '') or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("polybus.")]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    python = [line for line in lines if PYTHON_ERROR.match(line)]
    plain = [] if isinstance(error, PySparkException | Py4JJavaError) else [f"{type(error).__name__}: {error}"]
    return (ours or causes or python or plain or lines[:1] or [type(error).__name__])[-1][:MAX_SAID]
