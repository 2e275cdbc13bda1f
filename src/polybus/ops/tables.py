"""Typed tables out of TOML, and plain words for what is wrong with them.

A `Reader` collects problems instead of stopping at the first; `finish` raises them together, one
line each: file, key, what is wrong, what would be right.
"""

import difflib
import json
import os
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from polybus.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

_IN_WORDS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "a path in quotes",
    tuple[str, ...]: "a list of texts in quotes",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Raises `ConfigError` for a file that is missing, unreadable or not TOML."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text: bad byte at offset {error.start}; save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


class Reader:
    """Reads the tables of one file. Relative paths in it start from `base`."""

    def __init__(self, file: str, base: Path, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.problems: list[str] = []
        self._file = file
        self._base = base
        self._ranges = ranges

    def problem(self, key: str, text: str) -> None:
        self.problems.append(f"{self._file}: {key}: {text}")

    def finish(self) -> None:
        if self.problems:
            raise ConfigError("\n".join(self.problems))

    def resolved(self, path: str) -> Path:
        return self._base / os.path.expanduser(path)  # unlike Path's, leaves `~nobody` as it is

    def table(self, key: str, content: object, struct: type[T], elsewhere: Mapping[str, str]) -> T | None:
        """None when something in it is wrong. `elsewhere` tells where misplaced keys belong."""
        if not isinstance(content, dict):
            self.problem(key, f"expected a table, written as [{key}], got {_shown(content)}")
            return None
        known = {field.encode_name: field for field in msgspec.structs.fields(struct)}
        found_problems = len(self.problems)
        values: dict[str, Any] = {}
        for name, value in content.items():
            if name in known:
                values[known[name].name] = self._value(f"{key}.{name}", value, known[name].type)
            else:
                self.unknown(f"{key}.{name}", name, known, elsewhere)
        for name, field in known.items():
            if field.required and name not in content:
                self.problem(f"{key}.{name}", f"is missing; give {in_words(field.type)}")
        return struct(**values) if len(self.problems) == found_problems else None

    def tables(
        self, key: str, content: object, struct: type[T], elsewhere: Mapping[str, str]
    ) -> list[T | None]:
        """One entry for each table of an array, in its order."""
        if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
            self.problem(key, f"expected a list of tables, each written as [[{key}]], got {_shown(content)}")
            return []
        return [self.table(f"{key}[{index}]", entry, struct, elsewhere) for index, entry in enumerate(content)]

    def unknown(self, key: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> None:
        near = nearest(name, known)
        if near is None and name in elsewhere:
            near = elsewhere[name]
        remedy = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
        self.problem(key, f"unknown key; {remedy}")

    def _value(self, key: str, value: object, wanted: Any) -> Any:
        limits = self._ranges.get(re.sub(r"\[\d+\]", "", key))
        try:
            converted = msgspec.convert(value, wanted, dec_hook=self._path)
        except msgspec.ValidationError:
            converted = None
        if converted is None or (limits and not limits[0] <= converted <= limits[1]):
            expected = in_words(wanted) + (f" from {limits[0]} to {limits[1]}" if limits else "")
            near = nearest(value, _choices(wanted)) if isinstance(value, str) else None
            hint = f"; did you mean {_shown(near)}?" if near else ""
            self.problem(key, f"expected {expected}, got {_shown(value)}{hint}")
        return converted

    def _path(self, wanted: type, value: object) -> Path:
        if wanted is not Path or not isinstance(value, str) or not value or "\0" in value:
            raise ValueError
        return self.resolved(value)


def check_readable(reader: Reader, key: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        reader.problem(key, f"{path} cannot be read: {reason_of(error)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def _choices(wanted: object) -> tuple[str, ...]:
    return get_args(wanted) if get_origin(wanted) is Literal else ()


def in_words(wanted: object) -> str:
    if get_origin(wanted) in (Union, types.UnionType):  # only `X | None` occurs, and TOML has no None
        return in_words(get_args(wanted)[0])
    if choices := _choices(wanted):
        return "one of " + ", ".join(map(_shown, choices))
    return _IN_WORDS[wanted]


def _shown(value: object) -> str:
    match value:
        case str():
            return json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=True)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return "a date or time"
