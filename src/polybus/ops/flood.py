"""A log for people must stay readable, and its disk from filling, while someone misbehaves a thousand times a
second. Of each warning so many a second are shown; how many were left out is told when the next line is due.
The event file is for programs and keeps all of them."""

import logging
from typing import Final

WINDOW_S: Final = 1.0
SHOWN_A_WINDOW: Final = 20
MAX_NAMES: Final = 256
"""Of messages that are counted. They are constants of the code; past this, somebody logs what is none."""


class FloodFilter(logging.Filter):
    """Never reads a clock: a record brings its time."""

    def __init__(self) -> None:
        super().__init__()
        self._began_at = float("-inf")
        self._counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        left_out = self._open_window(record.created)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "left_out_before": left_out}
        if record.levelno != logging.WARNING:
            return True
        name = record.msg if record.msg in self._counts or len(self._counts) < MAX_NAMES else ""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return count <= SHOWN_A_WINDOW

    def _open_window(self, now: float) -> str:
        """What the last window left out, if it is over: "connection refused ×1234"."""
        if self._began_at <= now < self._began_at + WINDOW_S:
            return ""
        left_out = {name: count - SHOWN_A_WINDOW for name, count in self._counts.items()}
        self._began_at = now
        self._counts.clear()
        return ", ".join(f"{name or 'others'} ×{count}" for name, count in left_out.items() if count > 0)
