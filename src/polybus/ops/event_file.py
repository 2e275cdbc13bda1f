"""The events of the bus for programs: one flat JSON object a line, every event whatever the log level.

    {"ts":"2026-01-31T12:00:00.000000Z","event":"message stored","level":"DEBUG","topic":"a/b",…}

A line is one write to the system, so that lines of a broker that was killed are whole, and so that
`tail -f` shows what has happened. A file that was moved away is opened anew. A full disk costs
events, never the broker: how many were lost stands in the log.
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from polybus.ops.log_records import as_text, fields_of, level_name

log = logging.getLogger("polybus.ops")

REMIND_S: Final = 60.0
"""Between two log lines about a file that cannot be written."""

_encode: Final = msgspec.json.Encoder(enc_hook=as_text).encode


class EventFile(logging.Handler):
    """Raises `OSError` if the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = os.path.abspath(path)
        self._descriptor = -1
        self._identity = (0, 0)
        self._second = -1
        self._second_text = ""
        self._is_torn = False
        """The last line got only half of its way; the next begins with an end of line."""
        self.lost = 0
        """Events that could not be written since the last one that could."""
        self._remind_at = 0.0
        self._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
            if self._was_moved():
                self._open()
            self._write(line)
        except OSError as error:
            self._lose(error, record.created)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        super().close()

    # -- lines -----------------------------------------------------------------------------------

    def _line(self, record: logging.LogRecord) -> bytes:
        entry: dict[str, Any] = {
            "ts": self._timestamp(record.created),
            "event": record.msg,
            "level": level_name(record),
            **fields_of(record),
        }
        try:
            line = _encode(entry)
        except UnicodeEncodeError:  # half a surrogate pair
            line = b"\x7f"
        # What a client wrote can neither end a line nor steer a terminal: all but ASCII is escaped.
        if not line.isascii() or b"\x7f" in line:
            line = json.dumps(entry, ensure_ascii=True, default=as_text).encode()
        return line

    def _timestamp(self, created: float) -> str:
        second = int(created)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{int((created - second) * 1e6):06d}Z"

    # -- the file --------------------------------------------------------------------------------

    def _was_moved(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self._identity = (found.st_dev, found.st_ino)
        self._is_torn = False

    def _write(self, line: bytes) -> None:
        data = b"\n" + line + b"\n" if self._is_torn else line + b"\n"
        written = os.write(self._descriptor, data)
        self._is_torn = written < len(data)
        if self._is_torn:
            raise OSError("a line was written in part; the disk is full or over its quota")
        if self.lost:
            lost, self.lost, self._remind_at = self.lost, 0, 0.0
            log.warning("events are written again", extra={"fields": {"file": self._path, "lost": lost}})

    def _lose(self, error: OSError, now: float) -> None:
        self.lost += 1
        if now >= self._remind_at:
            self._remind_at = now + REMIND_S
            fields = {"file": self._path, "error": error.strerror or str(error), "lost": self.lost}
            log.error("events cannot be written", extra={"fields": fields})
