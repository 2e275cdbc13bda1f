"""Logs at the levels of TB-16 on the standard `logging` package, as text or as JSON lines.

Any module logs without knowing this one:

    log = logging.getLogger(__name__)
    log.info("client connected", extra={"fields": {"client_id": client_id, "peer": peer}})

The message is a constant that names the event; whatever came from outside goes into `fields`.
What a client wrote can neither end a line nor steer a terminal: control characters are escaped.
A call below the level costs one dictionary lookup, and the `extra` it was given; guard a call on
the path of every message with `log.isEnabledFor`.
"""

import json
import logging
import logging.handlers
import re
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from polybus.broker import events
from polybus.errors import ConfigError
from polybus.ops.config import LogFormat, LogLevel
from polybus.ops.event_file import EventFile
from polybus.ops.flood import FloodFilter
from polybus.ops.log_records import LEVELS, TRACE, as_text, fields_of, level_name
from polybus.ops.tables import reason_of

_HANDLER_NAME: Final = "polybus"

# Controls (C0, DEL, C1), line and paragraph separators, text-direction controls, lone surrogates.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BARE_WORD: Final = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII but for " = and backslash


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO  polybus.net: client connected client_id=a peer=127.0.0.1:5``"""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{_timestamp(record)} {level_name(record):<5} {record.name}: {_escaped(record.getMessage())}"
            + "".join(f" {name}={_as_word(value)}" for name, value in fields_of(record).items())
        )
        # Indented, so that no line of a traceback can pass for a record.
        return line + "".join(f"\n    {_escaped(part)}" for part in _traceback(self, record).splitlines())


class JsonFormatter(logging.Formatter):
    """One object a line: `ts`, `level`, `logger`, `event`; `fields` and `traceback` if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": _timestamp(record),
            "level": level_name(record),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if fields := fields_of(record):
            entry["fields"] = fields
        if traceback := _traceback(self, record):
            entry["traceback"] = traceback
        return json.dumps(entry, ensure_ascii=True, default=as_text)


def configure(
    level: LogLevel, format: LogFormat, file: Path | None = None, event_file: Path | None = None
) -> None:
    """Send the logs of the whole process to `file`, or to standard error; events to `event_file` too.

    May be called again. Raises `ConfigError` if a file cannot be written; then nothing has changed.
    """
    handler = _log_handler(file)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.setLevel(LEVELS[level])
    handler.addFilter(FloodFilter())
    try:
        event_handler = _event_handler(event_file)
    except ConfigError:
        handler.close()
        raise
    root = logging.getLogger()
    _replace(root, handler)
    _replace(events.log, event_handler)
    logging.getLogger("polybus").setLevel(LEVELS[level])
    # The file takes every event; what the log shows of them is the log handler's business.
    events.log.setLevel(TRACE if event_handler else logging.NOTSET)
    # Of other libraries only what is wrong: at DEBUG they would log every frame.
    root.setLevel(max(LEVELS[level], logging.WARNING))
    logging.raiseExceptions = False  # a full disk or a closed pipe must not fill standard error


def leave_out_unused() -> None:
    """Who called and in which thread stands in no log of ours, and finding out is half of the cost of
    a record. For the whole process, so for programs of our own only."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _log_handler(file: Path | None) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        # Opened anew when it was moved away, so that any log rotation works.
        return logging.handlers.WatchedFileHandler(file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _cannot_write("log_file", file, error) from error


def _event_handler(file: Path | None) -> logging.Handler | None:
    try:
        return EventFile(file) if file else None
    except OSError as error:
        raise _cannot_write("event_file", file, error) from error


def _cannot_write(key: str, file: Path | None, error: OSError) -> ConfigError:
    return ConfigError(f"server.{key}: {file} cannot be written: {reason_of(error)}; choose another file")


def _replace(logger: logging.Logger, handler: logging.Handler | None) -> None:
    for previous in [each for each in logger.handlers if each.get_name() == _HANDLER_NAME]:
        logger.removeHandler(previous)
        previous.close()
    if handler is not None:
        handler.set_name(_HANDLER_NAME)
        logger.addHandler(handler)


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_whole_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(maxsize=4)
def _whole_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _as_word(value: object) -> str:
    text = as_text(value)
    if _BARE_WORD.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(quoted)}"'


def _escaped(text: str) -> str:
    if text.isprintable():  # nothing unsafe is
        return text
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
