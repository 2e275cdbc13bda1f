"""Events for programs: every one of them, one flat object a line, and never at the cost of the bus."""

import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polybus.broker import events
from polybus.broker.events import Event, emit
from polybus.errors import ConfigError
from polybus.ops import event_file
from polybus.ops.config import LogLevel
from polybus.ops.log_records import LEVELS
from polybus.ops.logging import configure
from tests.ops.logs import restored_logging
from tests.ops.test_logging import EVIL

EVENTS = [value for value in vars(events).values() if isinstance(value, Event)]


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    with restored_logging():
        yield


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "bus.log"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def told(log: Path) -> list[dict[str, Any]]:
    """What the log says about the file."""
    return [entry for entry in lines(log) if entry["logger"] == "polybus.ops"]


def test_a_line_is_flat(log: Path, file: Path) -> None:
    configure("INFO", "json", log, file)
    emit(
        events.REQUEST_TIMED_OUT,
        client_id="c",
        topic="a/b",
        request=7,
        requester="c",
        packet_id=1,
        duration_s=0.25,
        reason="no answer in time",
        count=None,
    )
    (entry,) = lines(file)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("ts"))
    assert entry == {
        "event": "request timed out",
        "level": "INFO",
        "client_id": "c",
        "topic": "a/b",
        "request": 7,
        "requester": "c",
        "packet_id": 1,
        "duration_s": 0.25,
        "reason": "no answer in time",
    }


@pytest.mark.parametrize("level", LEVELS)
def test_it_takes_every_event_and_the_log_those_of_its_level(log: Path, file: Path, level: LogLevel) -> None:
    configure(level, "json", log, file)
    for event in EVENTS:
        assert events.are_wanted(event)
        emit(event, client_id="c")
    logging.getLogger("polybus.net").debug("not an event")
    assert [entry["event"] for entry in lines(file)] == [event.name for event in EVENTS]
    logged = [entry["event"] for entry in lines(log) if entry["logger"] == "polybus.events"]
    assert logged == [event.name for event in EVENTS if event.level >= LEVELS[level]]
    assert any(entry["event"] == "not an event" for entry in lines(log)) is (LEVELS[level] <= logging.DEBUG)
    levels = {LEVELS[entry["level"]] for entry in lines(file)}  # type: ignore[index]
    assert levels == {event.level for event in EVENTS}


def test_without_it_events_cost_nothing_below_the_level(log: Path, file: Path) -> None:
    configure("INFO", "json", log, file)
    configure("INFO", "json", log)
    assert not events.are_wanted(events.MESSAGE_RECEIVED)
    emit(events.CLIENT_CONNECTED, client_id="c")
    assert file.read_text() == ""
    assert [entry["fields"] for entry in lines(log)] == [{"client_id": "c"}]


@pytest.mark.parametrize("evil", EVIL, ids=ascii)
def test_clients_can_neither_forge_a_line_nor_steer_a_terminal(log: Path, file: Path, evil: str) -> None:
    configure("NONE", "text", log, file)
    emit(events.CLIENT_CONNECTED, client_id=evil)
    text = file.read_text()
    assert text[:-1].isprintable()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["client_id"] == evil


def test_secrets_are_not_written(log: Path, file: Path) -> None:
    configure("ALL", "text", log, file)
    emit(events.NOT_AUTHENTICATED, client_id="c", password="hunter2", token=b"hunter2")
    assert "hunter2" not in file.read_text() + log.read_text()
    assert lines(file)[0]["password"] == "***"


def test_whatever_it_is_given_becomes_a_line(log: Path, file: Path) -> None:
    configure("NONE", "text", log, file)
    emit(events.NOT_AUTHORIZED, reason=ValueError("bad"), path=file, pair=("a", 1), flag=True, name="grün")
    assert lines(file)[0]["reason"] == "bad"
    assert lines(file)[0]["path"] == str(file)
    assert lines(file)[0]["name"] == "grün"


def test_a_file_moved_away_is_opened_anew(log: Path, file: Path) -> None:
    configure("INFO", "text", log, file)
    emit(events.CLIENT_CONNECTED, client_id="before")
    old = file.rename(file.with_suffix(".old"))
    emit(events.CLIENT_CONNECTED, client_id="after")
    assert [entry["client_id"] for entry in lines(file)] == ["after"]
    assert [entry["client_id"] for entry in lines(old)] == ["before"]


def test_configuring_again_goes_on_with_the_file(log: Path, file: Path) -> None:
    for number in range(3):
        configure("INFO", "text", log, file)
        emit(events.CLIENT_CONNECTED, client_id=str(number))
    assert [entry["client_id"] for entry in lines(file)] == ["0", "1", "2"]


def test_a_file_that_cannot_be_opened_changes_nothing(tmp_path: Path, log: Path, file: Path) -> None:
    configure("INFO", "text", log, file)
    with pytest.raises(ConfigError, match=r"server\.event_file: .* cannot be written: Is a directory"):
        configure("ERROR", "json", tmp_path / "other.log", tmp_path)
    with pytest.raises(ConfigError, match=r"server\.log_file"):
        configure("ERROR", "json", tmp_path, tmp_path / "other.jsonl")
    emit(events.CLIENT_CONNECTED, client_id="c")
    assert lines(file)[0]["client_id"] == "c"
    assert "client connected" in log.read_text()


def test_a_full_disk_costs_events_and_nothing_else(log: Path) -> None:
    configure("INFO", "json", log, Path("/dev/full"))
    for _ in range(5):
        emit(events.MESSAGE_STORED, topic="t")
    (entry,) = told(log)
    assert (entry["event"], entry["level"]) == ("events cannot be written", "ERROR")
    assert entry["fields"] == {"file": "/dev/full", "error": os.strerror(errno.ENOSPC), "lost": 1}


def test_a_folder_that_goes_and_comes_back(tmp_path: Path, log: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "events.jsonl"
    configure("INFO", "json", log, file)
    away = folder.rename(tmp_path / "away")
    for number in range(3):
        emit(events.MESSAGE_STORED, count=number)
    assert not lines(away / file.name)
    away.rename(folder)
    emit(events.MESSAGE_STORED, count=3)
    assert [entry["count"] for entry in lines(file)] == [3]
    lost, again = told(log)
    assert (lost["event"], again["event"]) == ("events cannot be written", "events are written again")
    assert again["fields"]["lost"] == 3


def test_half_a_line_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch, log: Path, file: Path) -> None:
    configure("INFO", "json", log, file)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(event_file.os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        emit(events.MESSAGE_STORED, count=1)
    emit(events.MESSAGE_STORED, count=2)
    half, whole = file.read_text().splitlines()
    assert len(half) == 9
    assert json.loads(whole)["count"] == 2
    assert len(told(log)) == 2
