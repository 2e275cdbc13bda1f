"""The state file and its folder: what is accepted, refused and left alone, and what comes back."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from polybus.broker.ledger import Batch, Extra
from polybus.errors import ConfigError
from polybus.store import schema
from polybus.store.folder import DataFolder
from polybus.store.state import STATE_FILE, StateFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STATE_FILE


def refusal(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        StateFile(path)
    assert path.read_bytes() == before, "a file that is refused is left as it is"
    assert str(path) in str(caught.value)
    return str(caught.value)


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: list(db.execute(f"SELECT * FROM {name} ORDER BY 1, 2")) for name in tables}
    db.close()
    return {name: rows for name, rows in found.items() if rows}


class TestFile:
    def test_everything_that_is_put_there_comes_back(self, path: Path) -> None:
        file = StateFile(path)
        extra = Extra(True, (1, 2), ("group", "a/ü"))
        file.apply(
            Batch(
                rows=[[7, 1, 3, 0, 1, 1, 0, 0, None], [8, 1, 3, 0, 1, 2, 9, 4, extra]],
                pieces=[(3, b"piece"), (4, b"\0\xff" * 100_000), (5, b"x")],
                sessions=[(1, b"one"), (2, b"two")],
                received=[(1, b"ids"), (2, b"")],
                subscriptions=[(1, "a/ü", b"s"), (1, "b", b"t"), (2, "a/ü", b"u")],
                retained=[("a/ü", b"r"), ("gone", None)],
                stored=[(1, b"m")],
                requests=[(1 << 40, b"q")],
                alive_at=17.5,
            )
        )
        image = file.begin(0.0)
        assert (image.starts, image.alive_at) == (1, 17.5)
        assert list(image.sessions) == [(1, b"one"), (2, b"two")]
        assert list(image.received) == [(1, b"ids")]
        assert sorted(image.subscriptions) == [(1, "a/ü", b"s"), (1, "b", b"t"), (2, "a/ü", b"u")]
        assert dict(image.pieces) == {3: b"piece", 4: b"\0\xff" * 100_000, 5: b"x"}
        assert list(image.queued) == [(7, 1, 3, 0, 1, 1, 0, 0, None)]
        assert list(image.sent) == [(8, 1, 3, 0, 1, 2, 9, 4, '[true,[1,2],["group","a/ü"],[]]')]
        assert list(image.retained) == [b"r"]
        assert list(image.stored) == [(1, b"m")]
        assert list(image.requests) == [(1 << 40, b"q")]
        file.close()

    def test_changes_and_ends(self, path: Path) -> None:
        file = StateFile(path)
        file.apply(
            Batch(
                rows=[[n, 1, 1, 0, 1, 1, 0, 0, None] for n in range(1, 5)],
                pieces=[(1, b"a"), (2, b"b")],
                sessions=[(1, b"one"), (2, b"two")],
                received=[(1, b"ids"), (2, b"ids")],
                subscriptions=[(1, "a", b"s"), (1, "b", b"t")],
                retained=[("a", b"r"), ("b", b"r")],
                stored=[(1, b"m"), (2, b"m")],
                requests=[(1, b"q"), (2, b"q")],
            )
        )
        file.apply(
            Batch(
                gone_rows=[1, 4],
                rows=[[4, 1, 1, 0, 3, 1, 0, 0, None]],  # a row may be replaced under its number
                sent=[(2, 77, 5), (3, 78, 6)],
                released=[3],
                gone_pieces=[2],
                sessions=[(1, b"changed")],
                gone_sessions=[2],
                received=[(1, b"")],
                subscriptions=[(1, "a", None)],
                retained=[("a", None), ("b", b"changed")],
                gone_stored=[1],
                gone_requests=[2],
            )
        )
        file.close()
        found = content(path)
        assert found.pop("deliveries") == [
            (2, 1, 1, 0, 1, 1, 77, 5, None),
            (3, 1, 0, 0, 1, 1, 78, 6, None),
            (4, 1, 1, 0, 3, 1, 0, 0, None),
        ]
        assert found == {
            "pieces": [(1, b"a")],
            "sessions": [(1, b"changed")],
            "subscriptions": [(1, "b", b"t")],
            "retained": [("b", b"changed")],
            "stored": [(2, b"m")],
            "requests": [(1, b"q")],
        }

    def test_a_batch_is_written_as_a_whole_or_not_at_all(self, path: Path) -> None:
        def fail() -> None:
            raise sqlite3.OperationalError("disk I/O error")

        StateFile(path).close()
        file = StateFile(path, before_commit=fail)
        with pytest.raises(sqlite3.OperationalError):
            file.apply(Batch(sessions=[(1, b"one")], stored=[(1, b"m")]))
        file.close()
        assert content(path) == {}

    def test_more_than_fits_into_one_value(self, path: Path) -> None:
        file = StateFile(path)
        file._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
        numbers = range(1, 3001)
        rows = [[n, 1, n, 0, 1, 1, 0, 0, None] for n in numbers]
        batch = Batch(
            pieces=[(n, b"%0100d" % n) for n in numbers],
            rows=rows,
            retained=[(f"{'long/' * 100}{n}", b"%d" % n) for n in range(300)],
            subscriptions=[(1, f"{'long/' * 100}{n}", b"%d" % n) for n in range(300)],
            sessions=[(1, b"s" * 40_000), (2, b"s" * 40_000)],
        )
        file.apply(batch)
        image = file.begin(0.0)
        assert list(image.pieces) == batch.pieces
        assert [list(row) for row in image.queued] == rows
        assert sorted(image.retained) == sorted(record for _, record in batch.retained)
        assert sorted(image.subscriptions) == sorted(batch.subscriptions)
        assert list(image.sessions) == batch.sessions
        file.apply(
            Batch(
                gone_rows=[*numbers],
                gone_pieces=[*numbers],
                retained=[(topic, None) for topic, _ in batch.retained],
                subscriptions=[(1, path, None) for _, path, _ in batch.subscriptions],
            )
        )
        image = file.begin(0.0)
        assert not any(map(list, (image.pieces, image.queued, image.retained, image.subscriptions)))
        file.close()

    def test_starts_are_counted(self, path: Path) -> None:
        for starts in (1, 2, 3):
            file = StateFile(path)
            assert file.begin(0.0).starts == starts
            file.close()

    def test_only_its_owner_may_read_it(self, path: Path) -> None:
        old = os.umask(0)
        try:
            file = StateFile(path)
            file.apply(Batch(sessions=[(1, b"one")]))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        finally:
            os.umask(old)
            file.close()
        assert len(modes) == 3  # with SQLite's log and its index
        assert set(modes.values()) == {0o600}

    @pytest.mark.parametrize(("sync", "level"), [("normal", 1), ("full", 2)])
    def test_sync(self, path: Path, sync: str, level: int) -> None:
        file = StateFile(path, sync)  # type: ignore[arg-type]
        assert file._db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert file._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        file.close()


class TestRefusals:
    def test_no_database_at_all(self, path: Path) -> None:
        path.write_bytes(b"this is no database, it is a letter to my aunt\n" * 100)
        assert "not a database" in refusal(path)

    def test_of_another_program(self, path: Path) -> None:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE cookies (name)")
        db.close()
        assert "another program" in refusal(path)

    def test_of_a_newer_polybus(self, path: Path) -> None:
        StateFile(path).close()
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        db.close()
        text = refusal(path)
        assert f"schema {schema.VERSION + 1}" in text
        assert "newer" in text

    @pytest.mark.parametrize("place", ["front", "middle", "end"])
    def test_damaged(self, path: Path, place: str) -> None:
        file = StateFile(path)
        file.apply(Batch(pieces=[(n, b"x" * 1000) for n in range(1, 200)]))
        file.close()
        data = bytearray(path.read_bytes())
        at = {"front": 100, "middle": len(data) // 8192 * 4096, "end": len(data) - 4096}[place]
        data[at : at + 4000] = b"\xa5" * 4000
        path.write_bytes(data)
        text = refusal(path)
        assert "damaged" in text or "cannot be read" in text
        assert "backup" in text

    def test_cut_short(self, path: Path) -> None:
        file = StateFile(path)
        file.apply(Batch(pieces=[(n, b"x" * 1000) for n in range(1, 200)]))
        file.close()
        os.truncate(path, path.stat().st_size // 8192 * 4096)
        assert "left as it is" in refusal(path)

    def test_a_log_that_was_cut_short_ends_with_its_last_whole_commit(self, path: Path, tmp_path: Path) -> None:
        file = StateFile(path)
        for number in range(1, 11):
            file.apply(Batch(sessions=[(number, b"x" * 3000)]))
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for each in tmp_path.iterdir():
            if each.is_file():
                shutil.copy(each, crashed)
        file.close()
        log = crashed / f"{STATE_FILE}-wal"
        os.truncate(log, log.stat().st_size - 100)
        file = StateFile(crashed / STATE_FILE)
        assert [number for number, _ in file.begin(0.0).sessions] == list(range(1, 10))
        file.close()


class TestMigration:
    def test_an_older_file_becomes_one_of_today(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A version that does not exist yet: what is there now must survive it."""
        file = StateFile(path)
        file.apply(Batch(sessions=[(1, b"one")]))
        file.close()
        add = "ALTER TABLE sessions ADD COLUMN colour TEXT DEFAULT 'red';"
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, add))
        monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
        monkeypatch.setattr("polybus.store.state.VERSION", schema.VERSION)
        StateFile(path).close()
        assert content(path)["sessions"] == [(1, b"one", "red")]
        StateFile(path).close()  # once is enough
        with sqlite3.connect(path) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        db.close()

    def test_one_that_fails_changes_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = StateFile(path)
        file.apply(Batch(sessions=[(1, b"one")]))
        file.close()
        broken = "ALTER TABLE sessions ADD COLUMN colour TEXT; ALTER TABLE nowhere ADD COLUMN x;"
        with monkeypatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
            patch.setattr(schema, "VERSION", schema.VERSION + 1)
            patch.setattr("polybus.store.state.VERSION", schema.VERSION)
            with pytest.raises(ConfigError, match="nowhere"):
                StateFile(path)
        StateFile(path).close()
        assert content(path)["sessions"] == [(1, b"one")]


class TestFirstStart:
    def test_one_that_was_broken_off_can_be_made_again(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:  # as far as it may have come before its first transaction
            db.execute("PRAGMA journal_mode = WAL")
        assert path.stat().st_size
        file = StateFile(path)
        file.apply(Batch(sessions=[(1, b"one")]))
        file.close()
        assert content(path)["sessions"] == [(1, b"one")]

    def test_a_database_with_tables_is_somebody_elses(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE theirs (x)")
        before = path.read_bytes()
        with pytest.raises(ConfigError, match="another program"):
            StateFile(path)
        assert path.read_bytes() == before


class TestFolder:
    def test_it_is_created_for_its_owner_only(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            folder = DataFolder(tmp_path / "a" / "b")
        finally:
            os.umask(old)
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder.path / "lock").stat().st_mode) == 0o600
        folder.close()

    def test_one_broker_at_a_time(self, tmp_path: Path) -> None:
        script = (
            "import sys, pathlib\n"
            "from polybus.store.folder import DataFolder\n"
            f"DataFolder(pathlib.Path({str(tmp_path)!r}))\n"
            "print('locked', flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            with pytest.raises(ConfigError) as caught:
                DataFolder(tmp_path)
            assert str(tmp_path) in str(caught.value)
            assert f"process {other.pid}" in str(caught.value)
            other.kill()
            other.wait()
        DataFolder(tmp_path).close()  # a lock dies with its process

    def test_a_place_where_nothing_can_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="--memory"):
            DataFolder(tmp_path / "file" / "data")
