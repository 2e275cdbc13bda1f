"""A flood of warnings costs a few lines of the log and none of the event file (TB-16)."""

import logging
from pathlib import Path

from polybus.broker import events
from polybus.ops.flood import MAX_NAMES, SHOWN_A_WINDOW, FloodFilter
from polybus.ops.logging import configure
from tests.ops.logs import restored_logging


def record(name: str, at: float, level: int = logging.WARNING) -> logging.LogRecord:
    made = logging.LogRecord("polybus.events", level, "", 0, name, None, None)
    made.created = at
    return made


def test_of_each_warning_so_many_a_second_are_shown() -> None:
    flood = FloodFilter()
    shown = [flood.filter(record("connection refused", 10.0 + i / 1000)) for i in range(100)]
    assert shown == [True] * SHOWN_A_WINDOW + [False] * (100 - SHOWN_A_WINDOW)
    assert flood.filter(record("not authorized", 10.5)), "another warning has a count of its own"


def test_the_next_second_tells_what_was_left_out() -> None:
    flood = FloodFilter()
    for _ in range(SHOWN_A_WINDOW + 7):
        flood.filter(record("connection refused", 10.0))
    following = record("client connected", 11.0, logging.INFO)
    assert flood.filter(following)
    assert following.fields == {"left_out_before": "connection refused ×7"}  # type: ignore[attr-defined]
    later = record("client connected", 12.5, logging.INFO)
    assert flood.filter(later)
    assert not hasattr(later, "fields"), "it is told once"


def test_errors_and_what_people_asked_to_see_are_always_shown() -> None:
    flood = FloodFilter()
    for level in (logging.DEBUG, logging.INFO, logging.ERROR):
        assert all(flood.filter(record("x", 10.0, level)) for _ in range(100))


def test_a_clock_that_was_set_back_opens_a_new_window() -> None:
    flood = FloodFilter()
    for _ in range(50):
        flood.filter(record("x", 1000.0))
    assert flood.filter(record("x", 10.0))


def test_names_without_end_take_no_memory_without_end() -> None:
    flood = FloodFilter()
    for i in range(10 * MAX_NAMES):
        flood.filter(record(f"warning {i}", 10.0))
    assert len(flood._counts) <= MAX_NAMES + 1


def test_the_event_file_keeps_what_the_log_leaves_out(tmp_path: Path) -> None:
    with restored_logging():
        configure("WARN", "text", tmp_path / "log", tmp_path / "events")
        for i in range(500):
            events.emit(events.ANSWER_REJECTED, client_id=f"c{i}")
        assert (tmp_path / "events").read_text().count("answer rejected") == 500
        assert (tmp_path / "log").read_text().count("answer rejected") < 500
