"""What is logged must be safe before the state that says it was received (OP-01).

Otherwise a crash between the two loses it: its publisher sends it again, and is told that it was received.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from polybus.broker.ledger import Ledger
from polybus.broker.message import Message
from polybus.store.state import StateFile, Sync
from polybus.store.writer import StateWriter

PATIENCE_S = 30.0


class Slow:
    """A journal that is done when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.commits: list[int] = []

    def commit(self, done: Callable[[], None]) -> None:
        self.asked.append(done)

    def committed(self, commit: int) -> None:
        self.commits.append(commit)


class Stores:
    def __init__(self, folder: Path, sync: Sync = "normal") -> None:
        self.path = folder / "state.sqlite"
        self.logs = Slow()
        self.ledger = Ledger(is_durable=True)
        self.done: list[str] = []
        self._posted: list[Callable[[], None]] = []
        self.writer = StateWriter(
            StateFile(self.path, sync), self.ledger, self._posted.append, before=self.logs
        )

    def change(self, topic: str) -> None:
        self.ledger.retained_changed(topic, Message(topic, b"x", 1, True))
        self.writer.commit(lambda: self.done.append(topic))

    def until_posted(self) -> None:
        """What the thread says, on the loop."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._posted:
            assert time.monotonic() < deadline, "nothing was written"
            time.sleep(0.001)
        self._posted.pop()()

    def kept(self) -> list[str]:
        """What is in the file."""
        with closing(sqlite3.connect(self.path)) as file:
            return [topic for (topic,) in file.execute("SELECT topic FROM retained ORDER BY topic")]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_nothing_is_written_before_the_logs_have_theirs(stores: Stores) -> None:
    stores.change("a")
    assert len(stores.logs.asked) == 1
    assert stores.done == []
    assert stores.writer._batches.empty()
    assert stores.kept() == []
    stores.writer.close()


def test_without_a_change_the_logs_alone_decide(stores: Stores) -> None:
    stores.writer.commit(lambda: stores.done.append("nothing"))
    assert stores.done == []
    stores.logs.asked.pop()()
    assert stores.done == ["nothing"]
    stores.writer.close()


def test_what_was_held_back_is_written_at_the_end(stores: Stores) -> None:
    stores.change("a")
    stores.change("b")
    stores.writer.close()
    stores.logs.asked[0]()  # too late: nobody minds
    assert stores.kept() == ["a", "b"]


def test_what_is_logged_counts_after_the_commit_that_it_belongs_to(stores: Stores) -> None:
    assert stores.ledger.logged() == 1
    stores.change("a")
    assert stores.ledger.logged() == 2, "another commit: the first is under way"
    assert stores.logs.commits == []
    stores.logs.asked.pop()()
    stores.until_posted()
    assert stores.logs.commits == [1]
    assert StateFile(stores.path, "normal").logged() == 1
    stores.writer.close()
    assert stores.logs.commits == [1, 2]
    assert StateFile(stores.path, "normal").logged() == 2


def test_what_is_logged_alone_needs_no_state(stores: Stores) -> None:
    """Nothing of it changed: the log's own mark outlives the process."""
    stores.ledger.logged()
    stores.writer.commit(lambda: stores.done.append("logged"))
    assert (stores.logs.commits, stores.done) == ([], [])
    stores.logs.asked.pop()()
    assert (stores.logs.commits, stores.done) == ([1], ["logged"])
    assert stores.writer._batches.empty()
    stores.writer.close()


def test_with_sync_the_state_has_every_commit(tmp_path: Path) -> None:
    """Nobody syncs a mark."""
    stores = Stores(tmp_path, "full")
    stores.ledger.logged()
    stores.writer.commit(lambda: stores.done.append("logged"))
    stores.logs.asked.pop()()
    assert (stores.logs.commits, stores.done) == ([], [])
    stores.until_posted()
    assert (stores.logs.commits, stores.done) == ([1], ["logged"])
    assert StateFile(stores.path, "full").logged() == 1
    stores.writer.close()


def test_at_the_end_what_was_logged_alone_counts_too(stores: Stores) -> None:
    stores.ledger.logged()
    stores.writer.commit(lambda: stores.done.append("logged"))
    stores.writer.close()
    assert stores.logs.commits == [1]


def test_settled_means_that_nothing_is_under_way(stores: Stores) -> None:
    stores.change("a")
    stores.writer.settle(lambda: stores.done.append("settled"))
    stores.logs.asked.pop()()
    stores.until_posted()
    assert stores.done == ["a"]
    stores.logs.asked.pop()()
    assert stores.done == ["a", "settled"]
    stores.writer.close()
