"""The durable journal: takes what changed from the ledger and writes it, in a thread of its own.

One batch is written at a time. What changes meanwhile gathers in the ledger, where much of it cancels out,
and becomes the next batch: so the slower the disk, the larger the groups. A batch that cannot be written is
tried again until it can; `on_trouble` is told why, and with an empty text when it is over. So it is if the
files are not in their place any more: that is looked at after a batch, and once a second if there is none.

Where messages are logged too, their logs come first: a batch may say that a QoS 2 message was received, and
what was received is not taken a second time. So it must be in its log by then; and it counts there when the
batch is written, so that a crash in between leaves neither.
"""

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from polybus.broker.journal import Journal, MemoryJournal
from polybus.broker.ledger import Batch, Ledger
from polybus.store.folder import FileMoved
from polybus.store.state import StateFile

log = logging.getLogger("polybus.store")

RETRY_S: Final = 1.0
LOOK_S: Final = 1.0
"""Between two looks at files that are not written to."""
REMIND_S: Final = 60.0
"""Between two log lines about the same lasting trouble."""


REFUSED: Final = "durable state cannot be written, new durable work is refused"
MOVED: Final = (
    "files of the durable state were moved or removed: what is written now would be lost, so new durable work"
    " is refused; bring them back, or start the bus again, which then begins with what is in their place"
)


class Logs(Journal, Protocol):
    """What must have everything before the state has."""

    def committed(self, commit: int) -> None:
        """What belongs to this commit (`Ledger.logged`) is there for good. In any thread."""


class NoLogs(MemoryJournal):
    def committed(self, commit: int) -> None:
        pass


class StateWriter:
    """A `Journal`. All but the thread itself happens on the event loop's thread, to which `call` brings."""

    def __init__(
        self,
        file: StateFile,
        ledger: Ledger,
        call: Callable[[Callable[[], None]], object],
        *,
        before: Logs | None = None,
        on_trouble: Callable[[str], None] = lambda why: None,
        retry_s: float = RETRY_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._call = call
        self._before = before or NoLogs()
        self._on_trouble = on_trouble
        self._retry_s = retry_s
        self._look_s = look_s
        self._trouble = ""
        self._remind_at = 0.0
        self._is_writing = False
        self._being_written: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []
        self._settling: list[Callable[[], None]] = []
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._alone = 0
        """The last commit that the state has no part in."""
        self._held_back: Batch | None = None
        self._unwritten: Batch | None = None
        self._thread = threading.Thread(target=self._run, name="polybus-state", daemon=True)
        self._thread.start()

    def commit(self, done: Callable[[], None]) -> None:
        if self._is_closing.is_set():
            return  # nobody is there to be told
        if not self._ledger.is_dirty:
            # If its link waits for a batch that is being written, so does what was held.
            self._before.commit(done)
            return
        self._waiting.append(done)
        if self._is_writing:
            return
        waiting, self._waiting = self._waiting, []
        batch = self._ledger.take()
        if batch.is_empty():  # all of it cancelled out
            for each in waiting:
                self._before.commit(each)
            return
        if batch.changes_nothing() and not self._file.is_synced:
            # Only a log has something new, and a mark of its own, which outlives the process as this file does.
            self._alone = batch.logged
            self._before.commit(partial(self._logged_alone, batch.logged, waiting))
            return
        self._being_written = waiting
        self._is_writing = True
        self._held_back = batch
        self._before.commit(partial(self._hand_over, batch))

    def _logged_alone(self, commit: int, done: list[Callable[[], None]]) -> None:
        self._before.committed(commit)
        for each in done:
            each()

    def settle(self, done: Callable[[], None]) -> None:
        """Call `done` when nothing is under way any more. For what changed since, ask for a commit."""
        self._settling.append(done)
        if not self._is_writing:
            self._settled()

    def _settled(self) -> None:
        settling, self._settling = self._settling, []
        for each in settling:
            self._before.commit(each)

    def _hand_over(self, batch: Batch) -> None:
        """To the thread: what must be safe before it is."""
        if self._held_back is batch:
            self._held_back = None
            self._batches.put(batch)

    def close(self) -> None:
        """Write the rest, and end. Blocks. What comes before this has written all of its own by then. Raises
        sqlite3.Error if the disk does not take it, FileMoved if nobody would find it."""
        self._is_closing.set()
        self._batches.put(None)
        self._thread.join()
        held_back, self._held_back = self._held_back, None
        if self._alone:
            self._before.committed(self._alone)
        try:
            for batch in (self._unwritten, held_back, self._ledger.take()):
                if batch is not None:
                    self._apply(batch)
        finally:
            self._file.close()

    # -- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            while not self._is_written(batch):
                if self._is_closing.wait(self._retry_s):
                    self._unwritten = batch
                    return
            self._call(self._written)

    def _next(self) -> Batch | None:
        is_missed = False
        while True:
            try:
                return self._batches.get(timeout=self._look_s)
            except queue.Empty:
                if self._fails(self._file.check_places):
                    is_missed = True
                elif is_missed:
                    is_missed = False
                    self._call(self._recovered)

    def _is_written(self, batch: Batch) -> bool:
        return not self._fails(partial(self._apply, batch))

    def _fails(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # whatever it is: if this thread ended, nobody would be answered any more
            if not isinstance(error, sqlite3.Error | FileMoved):
                log.exception("internal error while writing durable state")
            self._call(partial(self._failed, str(error), is_fatal=isinstance(error, FileMoved)))
            return True
        return False

    def _apply(self, batch: Batch) -> None:
        self._file.apply(batch)
        if batch.logged:
            self._before.committed(batch.logged)

    # -- back on the loop -----------------------------------------------------------------------------

    def _recovered(self) -> None:
        if self._trouble:
            self._trouble = ""
            log.error("durable state can be written again")
            self._on_trouble("")

    def _written(self) -> None:
        self._is_writing = False
        self._recovered()
        done, self._being_written = self._being_written, []
        for each in done:
            each()
        if not self._waiting:
            self._settled()

    def _failed(self, why: str, *, is_fatal: bool = False) -> None:
        now = time.monotonic()
        if not self._trouble or now >= self._remind_at:
            self._remind_at = now + REMIND_S
            fields = {"file": str(self._file.path), "error": why}
            if is_fatal:
                log.critical(MOVED, extra={"fields": fields})
            else:
                log.error(REFUSED, extra={"fields": fields})
        if self._trouble != why:
            self._trouble = why
            self._on_trouble(why)
