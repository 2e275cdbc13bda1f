"""The options of a source, read with errors that name the option and what would be right."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from polybus.errors import UsageError

_TRUTH: Final[Mapping[str, bool]] = {"true": True, "false": False}
_UNITS: Final[Mapping[str, int]] = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionError(UsageError):
    """An option of a data source that cannot be used."""


class Options:
    """`given` as Spark hands it over: names in any case, values as text. Raises OptionError."""

    def __init__(self, source: str, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._source = source
        self._given = {name.lower(): value for name, value in given.items()}
        names = sorted(known)
        unknown = self._given.keys() - {name.lower() for name in names}
        if unknown:
            raise OptionError(
                f"{source}: unknown option {', '.join(sorted(unknown))}; there are {', '.join(names)}"
            )

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name.lower(), default)

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(
                f'{self._source}: the option {name} is missing, for example .option("{name}", "{example}")'
            )
        return value

    def integer(self, name: str, default: int, *, low: int = 0, high: int = 2**63 - 1) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d{1,19}", value.strip()) or not low <= int(value) <= high:
            raise self.wrong(name, value, f"a whole number from {low} to {high}")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"\d+(\.\d+)?", value.strip()):
            raise self.wrong(name, value, "a number of seconds, for example 2.5")
        return float(value)

    def size_bytes(self, name: str, default: int, *, low: int = 1) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)b?", value.strip().lower())
        if match is None or int(match[1]) * _UNITS[match[2]] < low:
            raise self.wrong(name, value, f"a size of at least {low} bytes, for example 512m")
        return int(match[1]) * _UNITS[match[2]]

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in _TRUTH:
            raise self.wrong(name, value, "true or false")
        return _TRUTH[value.strip().lower()]

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        value = self.text(name, default)
        assert value is not None
        if value not in choices:
            raise self.wrong(name, value, f"one of {', '.join(choices)}")
        return value

    def password(self) -> str | None:
        """Of the option password, or the first line of the file that passwordFile names."""
        password, path = self.text("password"), self.text("passwordFile")
        if password is not None and path is not None:
            raise OptionError(f"{self._source}: give the option password or passwordFile, not both")
        if (password is not None or path is not None) and self.text("user") is None:
            raise OptionError(f"{self._source}: a password needs the option user")
        if path is None:
            return password
        try:
            return Path(path).read_text().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"{self._source}: the option passwordFile: cannot read {path}: {error}"
            ) from error

    def wrong(self, name: str, value: str, right: str) -> OptionError:
        return OptionError(f"{self._source}: the option {name} is {value!r}; it must be {right}")
