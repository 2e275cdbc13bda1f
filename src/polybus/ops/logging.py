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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from polybus.errors import ConfigError
from polybus.ops.config import LogFormat, LogLevel
from polybus.ops.tables import reason_of

TRACE: Final = 5

LEVELS: Final[Mapping[LogLevel, int]] = {
    "ALL": 1,
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "NONE": logging.CRITICAL + 1,
}
_NAMES: Final = {number: name for name, number in LEVELS.items()}

_SECRETS: Final = frozenset({"password", "secret", "token", "private_key", "authentication_data"})
"""Fields whose value is never written, should a caller pass it by mistake."""

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
            f"{_timestamp(record)} {_level_name(record):<5} {record.name}: {_escaped(record.getMessage())}"
            + "".join(f" {name}={_as_word(value)}" for name, value in _fields(record).items())
        )
        # Indented, so that no line of a traceback can pass for a record.
        return line + "".join(f"\n    {_escaped(part)}" for part in _traceback(self, record).splitlines())


class JsonFormatter(logging.Formatter):
    """One object a line: `ts`, `level`, `logger`, `event`; `fields` and `traceback` if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": _timestamp(record),
            "level": _level_name(record),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if fields := _fields(record):
            entry["fields"] = fields
        if traceback := _traceback(self, record):
            entry["traceback"] = traceback
        return json.dumps(entry, ensure_ascii=True, default=_as_text)


def configure(level: LogLevel, format: LogFormat, file: Path | None = None) -> None:
    """Send the logs of the whole process to `file`, or to standard error. May be called again.

    Raises `ConfigError` if the file cannot be written; then nothing has changed.
    """
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            # Opened anew when it was moved away, so that any log rotation works.
            handler = logging.handlers.WatchedFileHandler(file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(
                f"server.log_file: {file} cannot be written: {reason_of(error)}; choose another file"
            ) from error
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.set_name(_HANDLER_NAME)
    root = logging.getLogger()
    for previous in [each for each in root.handlers if each.get_name() == _HANDLER_NAME]:
        root.removeHandler(previous)
        previous.close()
    root.addHandler(handler)
    logging.getLogger("polybus").setLevel(LEVELS[level])
    # Of other libraries only what is wrong: at DEBUG they would log every frame.
    root.setLevel(max(LEVELS[level], logging.WARNING))
    logging.raiseExceptions = False  # a full disk or a closed pipe must not fill standard error


def _timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _level_name(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return {name: "***" if name in _SECRETS else value for name, value in fields.items()}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _as_text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _as_word(value: object) -> str:
    text = _as_text(value)
    if _BARE_WORD.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(quoted)}"'


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
