"""A broker in memory with real streams on a real disk: the writer's thread, and a test that pumps."""

import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polybus.broker.limits import Limits
from polybus.store.folder import DataFolder
from polybus.store.streams.files import Files
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.writer import StreamSet
from tests.session.harness import World

PATIENCE_S = 30.0
EVERYTHING = StreamRule("all", ("#",))


class Disk(Files):
    """Can be full."""

    def __init__(self) -> None:
        self.error = 0
        self.writes = 0

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        self.writes += 1
        if self.error:
            os.write(fd, bytes(pieces[0])[:7])
            raise OSError(self.error, os.strerror(self.error))
        super().append(fd, pieces)

    def fill(self) -> None:
        self.error = errno.ENOSPC


class Gate(Files):
    """Writes of records wait until the gate is open."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.open_gate.set()

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        assert self.open_gate.wait(10)
        super().append(fd, pieces)


class KeptWorld(World):
    def __init__(self, streams: StreamSet, limits: Limits | None = None) -> None:
        super().__init__(limits, journal=streams)
        self.streams = streams
        self._posted: queue.Queue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.Queue()
        self.broker.subscriptions.log_of = streams.log_of
        streams.on_failed = self.broker.commit_failed
        streams.on_room = lambda: self.broker.unstall(self.now)
        streams.start(lambda call, *arguments: self._posted.put((call, arguments)))

    def pump(self) -> None:
        """What the event loop would do now."""
        self.settle()
        while not self._posted.empty():
            call, arguments = self._posted.get()
            call(*arguments)
            self.settle()

    def first_posted(self) -> None:
        """What the writer says comes before the tick."""
        call, arguments = self._posted.get(timeout=PATIENCE_S)
        call(*arguments)

    def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true"
            self.pump()
            time.sleep(0.001)

    def until_safe(self) -> None:
        """Everything taken so far is written, and its acknowledgements are out."""
        done: list[bool] = []
        self.settle()
        self.streams.commit(lambda: done.append(True))
        self.until(lambda: done, "a commit")
        self.pump()


@contextlib.contextmanager
def keeping(
    path: Path,
    *rules: StreamRule,
    files: Files | None = None,
    limits: Limits | None = None,
    is_synced: bool = False,
) -> Iterator[KeptWorld]:
    with DataFolder(path) as folder:
        streams = StreamSet(folder, rules or (EVERYTHING,), files=files, is_synced=is_synced)
        world = KeptWorld(streams, limits)
        try:
            yield world
        finally:
            streams.close()
