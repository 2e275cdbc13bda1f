"""Files of the durable state that are moved, removed or replaced under a running broker: it notices (OP-01)."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polybus.broker.ledger import Batch, Ledger
from polybus.broker.message import Message
from polybus.store.folder import DataFolder, FileMoved
from polybus.store.state import STATE_FILE, StateFile
from polybus.store.writer import StateWriter
from tests.store.test_trouble import FaultyDisk, Loop

FILES = (STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm", "lock")
SLOW = 3600.0


class Store:
    """A folder, its file and its writer."""

    def __init__(self, path: Path, look_s: float) -> None:
        self.path = path
        self.folder = DataFolder(path)
        self.file = StateFile(path / STATE_FILE, beside=[self.folder.lock_place()], look_s=0.0)
        self.loop = Loop()
        self.ledger = Ledger(is_durable=True)
        self.troubles: list[str] = []
        self.done: list[bytes] = []
        self.writer = StateWriter(
            self.file,
            self.ledger,
            self.loop.calls.put,
            on_trouble=self.troubles.append,
            retry_s=0.001,
            look_s=look_s,
        )

    def commit(self, payload: bytes) -> None:
        self.ledger.retained_changed("t", Message("t", payload, origin="p"))
        self.writer.commit(lambda: self.done.append(payload))

    def run_until(self, condition: Callable[[], bool]) -> None:
        self.loop.run_until(condition)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[float], Store]]:
    opened: list[Store] = []

    def open_it(look_s: float = SLOW) -> Store:
        opened.append(Store(tmp_path / "data", look_s))
        return opened[-1]

    yield open_it
    for store in opened:
        store.folder.close()


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_then_is_not_acknowledged(
    open_store: Callable[[], Store], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    store.commit(b"1")
    store.run_until(lambda: store.done == [b"1"])
    path, away = store.path / name, store.path / "away"
    path.rename(away)
    store.commit(b"2")
    store.run_until(lambda: bool(store.troubles or store.done[1:]))
    assert store.done == [b"1"]
    assert f"{path} was removed while it is in use" in store.troubles[0]
    assert [r.levelname for r in caplog.records if "moved or removed" in r.getMessage()] == ["CRITICAL"]
    shutil.copyfile(away, path)  # looks the same, but is not where we write
    store.run_until(lambda: "replaced" in store.troubles[-1] or bool(store.done[1:]))
    assert store.done == [b"1"]
    away.replace(path)
    store.run_until(lambda: store.done == [b"1", b"2"])
    assert store.troubles[-1] == ""
    store.writer.close()
    again = StateFile(store.path / STATE_FILE)
    assert len(list(again.begin(0.0).retained)) == 1
    again.close()


def test_the_whole_folder(open_store: Callable[[], Store]) -> None:
    store = open_store()
    store.path.rename(store.path.with_name("elsewhere"))
    store.commit(b"1")
    store.run_until(lambda: bool(store.troubles or store.done))
    assert store.done == []
    assert "was removed" in store.troubles[0]
    with pytest.raises(FileMoved, match="was removed"):
        store.writer.close()


def test_it_is_noticed_when_nothing_is_written(open_store: Callable[[float], Store]) -> None:
    store = open_store(0.001)
    path, away = store.path / STATE_FILE, store.path / "away"
    path.rename(away)
    store.run_until(lambda: bool(store.troubles))
    assert "was removed" in store.troubles[0]
    away.rename(path)
    store.run_until(lambda: store.troubles[-1] == "")
    store.commit(b"1")
    store.run_until(lambda: store.done == [b"1"])
    store.writer.close()


def test_removed_while_it_is_written(tmp_path: Path) -> None:
    """Between the beginning of a transaction and its end."""
    path = tmp_path / STATE_FILE
    file = StateFile(path, before_commit=path.unlink, look_s=0.0)
    ledger = Ledger(is_durable=True)
    ledger.retained_changed("t", Message("t", b"1", origin="p"))
    with pytest.raises(FileMoved, match=r"state\.sqlite was removed"):
        file.apply(ledger.take())
    file.close()


def test_nothing_more_is_written_then(tmp_path: Path) -> None:
    """Without its lock the folder may be another broker's by now, with the same files."""
    disk = FaultyDisk()
    with DataFolder(tmp_path) as folder:
        file = StateFile(tmp_path / STATE_FILE, before_commit=disk, beside=[folder.lock_place()], look_s=0.0)
        (tmp_path / "lock").unlink()
        for _ in range(3):
            with pytest.raises(FileMoved, match="lock was removed"):
                file.apply(Batch(alive_at=1.0))
        file.close()
    assert disk.attempts == 1
