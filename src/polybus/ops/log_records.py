"""What all logs have in common: the levels of TB-16, and how a record's parts are told."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from polybus.broker import events
from polybus.ops.config import LogLevel

TRACE: Final = events.TRACE

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


def level_name(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    if _SECRETS.isdisjoint(fields):
        return fields
    return {name: "***" if name in _SECRETS else value for name, value in fields.items()}


def as_text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
