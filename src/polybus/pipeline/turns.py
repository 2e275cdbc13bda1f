"""Who may write to the tables now: one pipeline at a time, and in it one batch of a job at a time."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from polybus.errors import PolybusError, UsageError

LOCK_FILE: Final = ".writer"


class Stopping(PolybusError):
    """A batch came when the pipeline was about to end."""


class LakeBusy(UsageError):
    """Another pipeline writes to these tables."""


class Turns:
    """`root`: where the tables are, if that is a folder of this machine."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._jobs: dict[str, threading.Lock] = {}
        self._is_stopping = threading.Event()
        self.failures: dict[str, Exception] = {}
        """What ended a batch of a job: of an error in Python Spark passes on little."""

    @contextmanager
    def batch_of(self, job: str) -> Iterator[None]:
        """Around everything that a batch writes. Raises `Stopping` if the pipeline is about to end: Spark must
        not think that the batch was done."""
        lock = self._jobs.setdefault(job, threading.Lock())
        while not lock.acquire(timeout=0.05):
            if self._is_stopping.is_set():
                raise Stopping(f"{job}: the pipeline ends; the batch is for the next run")
        try:
            if self._is_stopping.is_set():
                raise Stopping(f"{job}: the pipeline ends; the batch is for the next run")
            yield
        except Exception as error:
            self.failures[job] = error
            raise
        finally:
            lock.release()

    @contextmanager
    def between_batches(self, job: str) -> Iterator[None]:
        """While this lasts no batch of the job reads or writes."""
        with self._jobs.setdefault(job, threading.Lock()):
            yield

    @contextmanager
    def nobody_writing(self) -> Iterator[None]:
        """For stopping queries: batches under way come to their end before, and none begins meanwhile. Spark
        would interrupt its own side only, and Python's would go on writing."""
        self._is_stopping.set()
        with ExitStack() as stack:
            # Who makes a lock only now finds out that it is too late, for it looks after it has it.
            for lock in tuple(self._jobs.values()):
                stack.enter_context(lock)
            yield

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Raises `LakeBusy`. The kernel lets go of the lock with the process, however it ends. Where there is
        no such lock, as on HDFS, the operator has to see that there is one pipeline."""
        if self._root is None:
            yield
            return
        self._root.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._claim(lock)
            yield
        finally:
            os.close(lock)

    def _claim(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LakeBusy(
                f"another pipeline writes to {self._root}: wait for it, end it, or name another folder"
            ) from error
