"""A world whose broker keeps its state in a real file, and can be killed: what was committed is what is left.

world = LastingWorld(tmp_path)
...
world = world.kill()      # the process is gone, and another one has read the file
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polybus.broker.commits import LAZY_S
from polybus.broker.ledger import Batch, Ledger
from polybus.broker.limits import Limits
from polybus.broker.restore import Restored, restore
from polybus.store.durable import ENCODINGS
from polybus.store.state import STATE_FILE, StateFile
from tests.broker.bus import Bus

WALL = 1_700_000_000.0
"""From the world's clock to the wall clock."""


class Disk:
    """A journal that writes when the test says so: as the writer's thread does, one batch at a time."""

    def __init__(self, file: StateFile, ledger: Ledger) -> None:
        self.file = file
        self.ledger = ledger
        self.is_slow = False
        """Batches wait for `write`."""
        self.batches = 0
        self._batch: Batch | None = None
        self._being_written: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_writing(self) -> bool:
        return self._batch is not None

    def commit(self, done: Callable[[], None]) -> None:
        if not self.ledger.is_dirty:
            done()
            return
        self._waiting.append(done)
        if self.is_writing:
            return
        self._being_written, self._waiting = self._waiting, []
        batch = self.ledger.take()
        if batch.is_empty():
            self._finish()
            return
        self._batch = batch
        if not self.is_slow:
            self.write()

    def write(self) -> None:
        """What is under way reaches the disk."""
        if self._batch is not None:
            self.write_silently()
            self._batch = None
            self._finish()

    def write_silently(self) -> None:
        """It does, but nobody hears of it: the process is killed in between."""
        if self._batch is not None:
            self.file.apply(self._batch)
            self.batches += 1

    def _finish(self) -> None:
        done, self._being_written = self._being_written, []
        for each in done:
            each()


class LastingWorld(Bus):
    def __init__(
        self, folder: Path, limits: Limits | None = None, *, now: float = 1_000.0, **settings: Any
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.file = StateFile(folder / STATE_FILE)
        ledger = Ledger(is_durable=True)
        ledger.offset = WALL
        self.disk = Disk(self.file, ledger)
        super().__init__(limits, journal=self.disk, ledger=ledger, **settings)
        self.now = now
        self.restored: Restored = restore(self.broker, self.file.begin(WALL + now), ENCODINGS, now=now)
        self.broker.run_timers(now)
        self.settle()

    def flush(self) -> None:
        """Let all that is under way, or waits for its turn, reach the disk."""
        self.advance(2 * LAZY_S)  # what nobody waits for may wait a little
        while self.disk.is_writing:
            self.disk.write()
            self.settle()

    def stamp(self) -> None:
        """As the server does every second."""
        self.broker.ledger.stamp(self.now)
        self.go()

    def kill(self, downtime_s: float = 0.0) -> "LastingWorld":
        """What is not in the file by now never was."""
        self.file.close()
        return LastingWorld(self.folder, self.broker.limits, now=self.now + downtime_s, **self.settings)
