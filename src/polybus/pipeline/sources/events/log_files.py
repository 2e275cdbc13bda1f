"""Which bytes of which files are new: files that grow at the end, are moved away and begun anew.

A file is known by a fingerprint of its first line, which has a time in microseconds and so is like no other's:
it stays the same when the file is renamed, and is another one when the name gets a new file. Only
whole lines count; a line that is being written is read when it is whole.
"""

import glob
import hashlib
import os
from collections.abc import Mapping
from typing import BinaryIO, Final, NamedTuple

FINGERPRINT_BYTES: Final = 4096
MOST_GONE: Final = 100
_BLOCK: Final = 1 << 16


class LogFile(NamedTuple):
    path: str
    fingerprint: str
    end: int
    """Behind the last whole line."""


class Range(NamedTuple):
    path: str
    fingerprint: str
    start: int
    end: int


def find_files(pattern: str) -> list[LogFile]:
    """Those with at least one whole line, oldest first. One that goes away meanwhile is left out."""
    found: list[tuple[int, LogFile]] = []
    for path in glob.glob(pattern):
        try:
            with open(path, "rb") as file:
                fingerprint = _fingerprint(file.readline(FINGERPRINT_BYTES))
                if fingerprint is not None:
                    status = os.fstat(file.fileno())
                    end = _last_line_end(file.fileno(), status.st_size)
                    found.append((status.st_mtime_ns, LogFile(path, fingerprint, end)))
        except (FileNotFoundError, IsADirectoryError):
            continue
    return [file for _, file in sorted(found)]


def new_ranges(
    files: list[LogFile], known: Mapping[str, int], limit_bytes: int
) -> tuple[list[Range], dict[str, int]]:
    """What to read next, at most about `limit_bytes` (a line may be longer), and what is known then.

    A file that is gone may come back, if only because it was renamed just when names were looked up: the last
    `MOST_GONE` of them are remembered, oldest first, so that an offset does not grow for ever.
    """
    ranges: list[Range] = []
    there = {file.fingerprint for file in files}
    gone = [(name, end) for name, end in known.items() if name not in there]
    then: dict[str, int] = dict(gone[-MOST_GONE:])
    left = limit_bytes
    for file in files:
        start = known.get(file.fingerprint, 0)
        end = file.end
        if end - start > left:
            end = _line_end_after(file.path, start + max(left, 0), file.end) if left > 0 else start
        if end > start:
            ranges.append(Range(file.path, file.fingerprint, start, end))
            left -= end - start
        # A copy beside it has the same first line, and may be shorter.
        then[file.fingerprint] = max(start, end, then.get(file.fingerprint, 0))
    return ranges, then


def open_range(piece: Range, pattern: str) -> BinaryIO:
    """The file of a range, wherever it is by now: between plan and read it may have been moved, and its name
    have been given to another. Raises FileNotFoundError."""
    for path in (piece.path, *glob.glob(pattern), *glob.glob(f"{piece.path}*")):
        try:
            file = open(path, "rb")  # noqa: SIM115 # the caller closes it
        except (FileNotFoundError, IsADirectoryError):
            continue
        if _fingerprint(file.readline(FINGERPRINT_BYTES)) == piece.fingerprint:
            return file
        file.close()
    raise FileNotFoundError(f"no file of {pattern} begins as {piece.path} did")


def cut(piece: Range, size: int) -> list[Range]:
    """Into pieces of about `size` bytes that end with a line, for several readers."""
    pieces: list[Range] = []
    start = piece.start
    while start < piece.end:
        end = piece.end if piece.end - start <= size else _line_end_after(piece.path, start + size, piece.end)
        pieces.append(Range(piece.path, piece.fingerprint, start, end))
        start = end
    return pieces


def _fingerprint(line: bytes) -> str | None:
    is_whole = line.endswith(b"\n") or len(line) == FINGERPRINT_BYTES
    return hashlib.blake2b(line, digest_size=12).hexdigest() if is_whole else None


def _last_line_end(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _line_end_after(path: str, position: int, end: int) -> int:
    """The first end of a line at or behind `position`; `end` is one."""
    with open(path, "rb") as file:
        file.seek(max(0, position - 1))
        while file.tell() < end:
            begin = file.tell()
            at = file.read(min(_BLOCK, end - begin)).find(b"\n")
            if at >= 0:
                return begin + at + 1
    return end
