"""What stands in the log, and what must not."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from polybus.errors import ConfigError
from polybus.ops.config import LogFormat, LogLevel
from polybus.ops.log_records import LEVELS, TRACE
from polybus.ops.logging import configure
from tests.ops.logs import restored_logging

log = logging.getLogger("polybus.test")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    with restored_logging():
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bus.log"


def log_at_every_level() -> None:
    for name, number in LEVELS.items():
        if name not in ("ALL", "NONE"):
            log.log(number, "%s event", name)


def test_the_configuration_knows_the_same_levels() -> None:
    assert tuple(LEVELS) == get_args(LogLevel)


@pytest.mark.parametrize(
    ("level", "logged"),
    [
        ("ALL", ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"]),
        ("TRACE", ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"]),
        ("DEBUG", ["DEBUG", "INFO", "WARN", "ERROR", "FATAL"]),
        ("INFO", ["INFO", "WARN", "ERROR", "FATAL"]),
        ("WARN", ["WARN", "ERROR", "FATAL"]),
        ("ERROR", ["ERROR", "FATAL"]),
        ("FATAL", ["FATAL"]),
        ("NONE", []),
    ],
)
def test_levels(file: Path, level: LogLevel, logged: list[str]) -> None:
    configure(level, "json", file)
    log_at_every_level()
    assert [json.loads(line)["level"] for line in file.read_text().splitlines()] == logged


def test_text_line(file: Path) -> None:
    configure("INFO", "text", file)
    log.warning("slow client", extra={"fields": {"client_id": "c 1", "bytes": 5, "topic": "a/b"}})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARN  polybus\.test: slow client"
        r' client_id="c 1" bytes=5 topic=a/b\n',
        file.read_text(),
    )


def test_json_line(file: Path) -> None:
    configure("INFO", "json", file)
    log.info(
        "client connected", extra={"fields": {"client_id": "c", "clean": True, "path": file, "raw": b"\xff"}}
    )
    log.info("plain")
    first, second = map(json.loads, file.read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("ts"))
    assert first == {
        "level": "INFO",
        "logger": "polybus.test",
        "event": "client connected",
        "fields": {"client_id": "c", "clean": True, "path": str(file), "raw": "\\xff"},
    }
    assert "fields" not in second


EVIL = [
    "a\n2026-01-01T00:00:00.000Z INFO  polybus: all is well",
    "a\r\nb",
    "\x1b[2J\x1b]0;title\x07",
    "\x00\x7f\x85\x9b31m",
    "line\u2028separator\u2029",
    "\u202edesrever",
    "\ud800",
]


@pytest.mark.parametrize("format", get_args(LogFormat))
@pytest.mark.parametrize("evil", EVIL, ids=ascii)
def test_clients_can_neither_forge_a_line_nor_steer_a_terminal(
    file: Path, format: LogFormat, evil: str
) -> None:
    configure("INFO", format, file)
    log.info("client %s connected", evil, extra={"fields": {"client_id": evil}})
    text = file.read_text()
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    assert len(text.splitlines()) == 1
    if format == "json":
        assert json.loads(text)["fields"]["client_id"] == evil


def test_quotes_and_backslashes_stay_unambiguous(file: Path) -> None:
    configure("INFO", "text", file)
    log.info("x", extra={"fields": {"a": 'say "hi" b=1', "b": r"\n", "c": "", "d": "k=v"}})
    assert file.read_text().endswith(r'x a="say \"hi\" b=1" b="\\n" c="" d="k=v"' + "\n")


@pytest.mark.parametrize("format", get_args(LogFormat))
def test_secrets_are_not_written(file: Path, format: LogFormat) -> None:
    configure("INFO", format, file)
    log.info("login", extra={"fields": {"user": "ann", "password": "hunter2", "token": b"hunter2"}})
    assert "hunter2" not in file.read_text()
    assert "ann" in file.read_text()


def test_a_traceback_stays_with_its_record(file: Path) -> None:
    for format in get_args(LogFormat):
        configure("INFO", format, file)
        try:
            raise ValueError("bad\n2026-01-01T00:00:00.000Z INFO  polybus: forged\x1b")
        except ValueError:
            log.exception("failed")
    *text, last = file.read_text().splitlines()
    assert text[0].endswith("ERROR polybus.test: failed")
    assert all(line.startswith("    ") for line in text[1:])
    assert any("forged\\x1b" in line for line in text)
    assert "forged\x1b" in json.loads(last)["traceback"]


def test_other_libraries_are_heard_only_when_something_is_wrong(file: Path) -> None:
    configure("ALL", "text", file)
    logging.getLogger("elsewhere").info("chatter")
    logging.getLogger("elsewhere").warning("trouble")
    assert "chatter" not in file.read_text()
    assert "trouble" in file.read_text()


def test_configuring_again_replaces(tmp_path: Path) -> None:
    configure("INFO", "text", tmp_path / "one")
    configure("ERROR", "text", tmp_path / "two")
    log.error("once")
    assert (tmp_path / "one").read_text() == ""
    assert (tmp_path / "two").read_text().count("once") == 1


def test_a_file_moved_away_is_opened_anew(file: Path) -> None:
    configure("INFO", "text", file)
    log.info("before")
    file.rename(file.with_suffix(".old"))
    log.info("after")
    assert "after" in file.read_text()
    assert "before" not in file.read_text()


def test_without_a_file_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", "text")
    log.info("here")
    output = capsys.readouterr()
    assert "here" in output.err
    assert output.out == ""


def test_a_file_that_cannot_be_opened_changes_nothing(tmp_path: Path, file: Path) -> None:
    configure("INFO", "text", file)
    with pytest.raises(ConfigError, match=r"server\.log_file: .* cannot be written: Is a directory"):
        configure("INFO", "text", tmp_path)
    log.info("still here")
    assert "still here" in file.read_text()


def test_a_closed_sink_is_not_the_callers_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure("INFO", "text")
    log.info("into the void")


def test_what_is_below_the_level_is_not_formatted(file: Path) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    configure("INFO", "text", file)
    log.log(TRACE, "packet %s", Costly())
    assert file.read_text() == ""
