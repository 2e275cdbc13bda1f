"""Positions → when trucks entered and left geofences.

Positions come out of order (a truck that was away sends what waited), so they are held back until the truck
has sent one that is `settle_s` newer, and are then judged in order of time. One that comes when later
ones were judged already cannot change what was told: it becomes an event `behind`, and is not used.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from polybus.pipeline.geography import Geofence, fences_at
from polybus.pipeline.schemas import TABLES
from polybus.pipeline.tables import TEXT, columns

ENTER, LEAVE, BEHIND = "enter", "leave", "behind"
GEOFENCE_EVENTS: Final[StructType] = TABLES["geofence_events"].schema


class Fix(msgspec.Struct, frozen=True, array_like=True, order=True):
    at_us: int
    lat: float
    lon: float


class Visits(msgspec.Struct):
    """What is known of a truck."""

    newest_us: int | None = None
    judged_us: int | None = None
    """Everything up to here was judged."""
    inside: dict[str, int] = {}
    """Since when, by geofence."""
    held: list[Fix] = []


class Event(NamedTuple):
    fix: Fix
    geofence: str | None
    event: str
    stayed_s: float | None = None


def visit(state: Visits, fixes: Sequence[Fix], fences: Sequence[Geofence], settle_us: int) -> list[Event]:
    """Takes in what is new, in any order; changes `state` and returns what can be told now."""
    events: list[Event] = []
    for fix in fixes:
        if state.judged_us is not None and fix.at_us <= state.judged_us:
            events.append(Event(fix, None, BEHIND))
        else:
            state.held.append(fix)
            state.newest_us = max(fix.at_us, state.newest_us or fix.at_us)
    if state.newest_us is None:
        return events
    horizon = state.newest_us - settle_us
    ready = sorted(fix for fix in state.held if fix.at_us <= horizon)
    state.held = [fix for fix in state.held if fix.at_us > horizon]
    state.judged_us = max(horizon, state.judged_us or horizon)
    for fix in ready:
        now = fences_at(fences, fix.lat, fix.lon)
        for name in sorted(state.inside.keys() - now):
            since_us = state.inside.pop(name)
            events.append(Event(fix, name, LEAVE, (fix.at_us - since_us) / 1e6))
        for name in sorted(now - state.inside.keys()):
            state.inside[name] = fix.at_us
            events.append(Event(fix, name, ENTER))
    return events


def geofence_events(position: DataFrame, fences: Sequence[Geofence], settle_s: float) -> DataFrame:
    """`position` is a stream; its checkpoint has what is known of each truck."""
    grouped = position.select("truck", "at", "lat", "lon").groupBy("truck")
    return grouped.transformWithStateInPandas(
        statefulProcessor=_Watcher(tuple(fences), int(settle_s * 1e6)),
        outputStructType=GEOFENCE_EVENTS,
        outputMode="Append",
        timeMode="None",
    )


class _Watcher(StatefulProcessor):
    """Runs on executors: `handleInputRows` once per batch for each truck that sent something."""

    def __init__(self, fences: Sequence[Geofence], settle_us: int) -> None:
        self._fences = fences
        self._settle_us = settle_us

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("visits", columns(json=TEXT))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        kept = self._state.get()
        state = msgspec.json.decode(kept[0], type=Visits) if kept is not None else Visits()
        fixes = [
            Fix(at.value // 1000, lat, lon)
            for frame in rows
            for at, lat, lon in zip(frame["at"], frame["lat"], frame["lon"], strict=True)
        ]
        events = visit(state, fixes, self._fences, self._settle_us)
        self._state.update((msgspec.json.encode(state).decode(),))
        if events:
            yield _frame(key[0], events)

    def close(self) -> None:
        pass


def _frame(truck: str, events: Sequence[Event]) -> pd.DataFrame:
    rows = [
        (
            truck,
            pd.Timestamp(each.fix.at_us, unit="us", tz="UTC"),
            each.geofence,
            each.event,
            each.fix.lat,
            each.fix.lon,
            each.stayed_s,
        )
        for each in events
    ]
    return pd.DataFrame(rows, columns=GEOFENCE_EVENTS.names).astype({"stayed_s": "float64"})
