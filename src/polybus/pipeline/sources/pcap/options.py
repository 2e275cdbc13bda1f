"""What one may ask of the source, and which files a path means."""

import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from polybus.errors import UsageError
from polybus.pipeline.sources.pcap.fields import COLUMNS

SUFFIXES: Final = (".pcap", ".pcapng", ".cap", ".dmp")
_ROTATED: Final = re.compile(rf"({'|'.join(map(re.escape, SUFFIXES))})\d*", re.IGNORECASE)
"""tcpdump -C and -W count behind the suffix: x.pcap, x.pcap1, x.pcap2."""
_KNOWN: Final = ("path", "payload", "rowsPerBatch", "splitBytes", "columns")
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Options:
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    rows_per_batch: int
    split_bytes: int


def read_options(given: Mapping[str, str]) -> Options:
    """Raises UsageError for an option that is unknown, missing or cannot be used."""
    # Spark hands over names in whatever case they were written, or in lower case.
    known = {name.lower(): name for name in _KNOWN}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in known:
            options[known[name.lower()]] = value
        elif name.lower() != "paths":
            raise UsageError(f"pcap: there is no option {name!r}; there are {', '.join(_KNOWN)}")
    if not options.get("path"):
        raise UsageError('pcap: say which files: .load("captures/*.pcap") or .option("path", ...)')
    columns = _columns(options.get("columns", ""))
    if not _boolean("payload", options.get("payload", "true")):
        columns = tuple(name for name in columns if name != "payload")
    return Options(
        paths=tuple(part.strip() for part in options["path"].split(",") if part.strip()),
        columns=columns,
        rows_per_batch=_whole("rowsPerBatch", options.get("rowsPerBatch", "10000"), 1, 1_000_000),
        split_bytes=_whole("splitBytes", options.get("splitBytes", "64m"), 1 << 10, 1 << 40),
    )


def find_files(paths: tuple[str, ...]) -> list[str]:
    """The files that paths, patterns and folders mean, each once. Raises UsageError if there is none."""
    files: dict[str, None] = {}
    for path in paths:
        names = matching_files(path)
        if not names:
            raise UsageError(
                f"pcap: {path} names no file; it may be a file, a pattern such as captures/*.pcap, or a folder"
                f" with files that end in {', '.join(SUFFIXES)}"
            )
        files.update(dict.fromkeys(names))
    return list(files)


def matching_files(path: str) -> list[str]:
    """Whole paths of the files that a path, a pattern or a folder means; there may be none."""
    local = _local(path)
    if Path(local).is_dir():
        names = [str(p) for p in sorted(Path(local).iterdir()) if _ROTATED.fullmatch(p.suffix) and p.is_file()]
    elif Path(local).is_file():
        names = [local]
    else:
        names = [name for name in sorted(glob.glob(local, recursive=True)) if Path(name).is_file()]
    return [str(Path(name).absolute()) for name in names]


def _local(path: str) -> str:
    parts = urlsplit(path)
    if parts.scheme == "file":
        return unquote(parts.path)
    if len(parts.scheme) > 1:
        raise UsageError(
            f"pcap: {path} is not a local path; captures are read from disks that driver and executors share"
        )
    return path


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in COLUMNS:
            raise UsageError(f"pcap: there is no column {name!r}; there are {', '.join(COLUMNS)}")
    return names or tuple(COLUMNS)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"pcap: {name} is true or false, not {text!r}")
    return text.lower() == "true"


def _whole(name: str, text: str, least: int, most: int) -> int:
    unit = _UNITS.get(text[-1:].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    value = int(digits) * unit if digits.isdecimal() and digits.isascii() else -1
    if not least <= value <= most:
        raise UsageError(
            f"pcap: {name} is a number from {least} to {most} (k, m and g may follow), not {text!r}"
        )
    return value
