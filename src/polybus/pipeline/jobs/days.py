"""Tables that are made anew a day at a time, when something new of that day has come: they are right for late
and repeated batches too, and a day costs the same however many there are."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.pipeline.books import Book
from polybus.pipeline.lake import Lake
from polybus.pipeline.settings import Fleet
from polybus.pipeline.transforms import caps, clients, fleet_traffic, positions, requests

DONE_FILE: Final = "days.json"
Progress = Callable[[str], None]


def refresh_days(lake: Lake, settings: Fleet, tell: Progress = lambda _: None) -> list[str]:
    """Returns the names of the tables that changed. What was interrupted is done again."""
    done_file = lake.files.at("books", DONE_FILE)
    done = json.loads(lake.files.read_text(done_file)) if lake.files.exists(done_file) else {}
    changed: list[str] = []
    now: dict[str, int] = dict(done)
    for job, makers in _BY_JOB.items():
        books = dict(lake.books(job))  # batches come meanwhile: those are for the next time
        days = sorted(
            {
                date.fromisoformat(day)
                for batch, book in books.items()
                if batch > done.get(job, -1)
                for day in book["days"]
            }
        )
        now[job] = max(books, default=-1)
        if days:
            for name, rows, wanted in makers(lake, books, settings, days):
                tell(name)
                lake.replace_days(name, rows, wanted)
                changed.append(name)
    if now != done:
        lake.files.write_text(done_file, json.dumps(now))
    return changed


Made = Iterator[tuple[str, DataFrame, Sequence[date]]]


def _from_messages(lake: Lake, books: Mapping[int, Book], settings: Fleet, days: Sequence[date]) -> Made:
    batches = _with_any(books, days)
    ledger = _of_days(lake.read_batches("ledger", batches), "time", days).persist()
    try:
        yield "client_traffic", clients.client_traffic(ledger), days
        yield "traffic_by_type", fleet_traffic.traffic_by_type(ledger), days
        yield "cap_use", caps.cap_use(ledger, settings.cap_bytes), days
    finally:
        ledger.unpersist()
    position = _of_days(lake.read_batches("position", batches), "at", days)
    yield "truck_days", positions.truck_days(position), days


def _from_events(lake: Lake, books: Mapping[int, Book], settings: Fleet, days: Sequence[date]) -> Made:
    # A request may end on the day after it began, or have begun on the day before what is new.
    begun = sorted({*days, *(day - timedelta(days=1) for day in days)})
    ended = sorted({*begun, *(day + timedelta(days=1) for day in begun)})
    log = lake.read_batches("log", _with_any(books, ended)).where(F.col("day").isin(ended))
    yield "requests", requests.spans(log), begun
    spans = lake.read("requests").where(F.col("day").isin(begun))
    yield "request_latency", requests.latency(spans), begun
    yield "request_outcomes", requests.outcomes(spans), begun


_BY_JOB: Final[Mapping[str, Callable[[Lake, Mapping[int, Book], Fleet, Sequence[date]], Made]]] = {
    "messages": _from_messages,
    "events": _from_events,
}


def _of_days(rows: DataFrame, time: str, days: Sequence[date]) -> DataFrame:
    return rows.where(F.to_date(time).isin(list(days)))


def _with_any(books: Mapping[int, Book], days: Sequence[date]) -> list[int]:
    """Batches that brought something of these days: the others need not be read."""
    wanted = {str(day) for day in days}
    return [batch for batch, book in books.items() if not wanted.isdisjoint(book["days"])]
