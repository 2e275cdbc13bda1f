"""Folders that become one: every row is seen once, at every moment and whatever ends in between (PL-02)."""

import json
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from polybus.errors import PolybusError, UsageError
from polybus.pipeline.books import Books
from polybus.pipeline.files import Files
from polybus.pipeline.jobs.compaction import compact, merge, mergeable
from polybus.pipeline.lake import Lake
from polybus.pipeline.schemas import LOG_LINES
from polybus.pipeline.turns import LakeBusy

pytestmark = pytest.mark.timeout(600)
BATCHES, ROWS = 5, 3
TIME = datetime(2026, 5, 4, tzinfo=UTC)


def fill(lake: Lake) -> None:
    """Two tables of the same job of events, one of them with folders below."""
    for batch in range(BATCHES):
        places = range(batch * ROWS, batch * ROWS + ROWS)
        lines = [("f", place, b"%d" % place) for place in places]
        lake.append(
            "events", batch, lake.spark.createDataFrame(lines, "file string, position long, line binary")
        )
        log = [
            {
                "file": "f",
                "position": place,
                "text": str(place),
                "fate": "kept" if place % 2 else "rejected",
                "day": TIME.date() if place % 2 else None,
            }
            for place in places
        ]
        lake.append("log_lines", batch, lake.spark.createDataFrame(log, LOG_LINES))
        lake.write_book("events", batch, {"rows": ROWS, "fates": {"kept": ROWS}, "days": []})


@pytest.fixture(scope="module")
def filled(spark, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lake") / "lake"
    fill(Lake(spark, str(folder)))
    return folder


@pytest.fixture
def folder(filled, tmp_path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "lake"))


def places(lake: Lake, name: str) -> list[int]:
    return sorted(row[0] for row in lake.read(name).select("position").collect())


ALL = list(range(BATCHES * ROWS))


def names(folder: Path, table: str) -> list[str]:
    return sorted(path.name for path in (folder / table).iterdir() if not path.name.startswith("."))


def test_few_folders_hold_what_many_held(spark, folder):
    lake = Lake(spark, str(folder))
    before = {name: lake.read(name).collect() for name in ("events", "log_lines")}
    told = []
    compact(lake, fan_in=4, tell=lambda *each: told.append(each))
    assert told == [("events", 4, 1), ("log_lines", 4, 1)]
    assert names(folder, "bronze/events") == ["batch=03", "batch=4"]
    compact(lake, fan_in=None)
    assert names(folder, "bronze/events") == names(folder, "silver/log_lines") == ["batch=004"]
    for name, rows in before.items():
        assert sorted(lake.read(name).collect()) == sorted(rows)
    assert lake.batches("events") == [4]
    assert [row[1] for row in sorted(lake.read_batches("events", [3]).collect())] == ALL
    # Whoever reads the folder without us sees the same: all are numbers, and each row is there once.
    plain = spark.read.parquet(str(folder / "bronze/events"))
    assert sorted(tuple(row) for row in plain.collect()) == sorted((*row, 4) for row in before["events"])
    # A file for each value of the folders, not one for each batch.
    assert len(list((folder / "silver/log_lines").rglob("*.parquet"))) == 2
    assert dict(lake.books("events")) == dict(Lake(spark, str(folder)).books("events"))
    assert len(lake.books("events")) == BATCHES


def test_a_batch_that_is_not_complete_is_left_alone(spark, folder):
    (folder / "books/events/0000000003.json").unlink()
    (folder / "books/events/0000000004.json").unlink()
    lake = Lake(spark, str(folder))
    compact(lake, fan_in=None)
    assert names(folder, "bronze/events") == ["batch=02", "batch=3", "batch=4"]
    assert places(lake, "events") == ALL[: 3 * ROWS]


def test_rows_that_are_not_those_of_the_books_are_left_alone(spark, folder):
    shutil.rmtree(folder / "bronze/events/batch=2")
    (folder / "bronze/events/batch=2").mkdir()
    lake = Lake(spark, str(folder))
    with pytest.raises(PolybusError, match="events: batches 0 to 4 have 12 rows, but 15 by their books"):
        compact(lake, fan_in=None)
    assert names(folder, "bronze/events") == [f"batch={batch}" for batch in range(BATCHES)]
    assert not (folder / "bronze/events/.writing-merge").exists()


class Ended(BaseException):
    """The process ends here."""


class FilesThatEnd(Files):
    """Before its nth change nothing happens any more."""

    def __init__(self, files: Files, changes: int) -> None:
        self.__dict__.update(files.__dict__)
        self._left = changes

    def _count(self) -> None:
        if not self._left:
            raise Ended
        self._left -= 1

    def move(self, source: str, target: str) -> None:
        self._count()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._count()
        super().delete(path)

    def set_modified(self, path: str, time_ms: int) -> None:
        self._count()
        super().set_modified(path, time_ms)


def test_at_every_step_every_row_is_there_once(spark, filled, tmp_path):
    """Another process reads at each moment, and goes on after each end."""
    steps, is_whole = 0, False
    while not is_whole:
        folder = Path(shutil.copytree(filled, tmp_path / f"{steps}"))
        lake = Lake(spark, str(folder))
        lake.files = FilesThatEnd(lake.files, steps)
        try:
            merge(lake, "events", mergeable(lake, "events"))
            is_whole = True
        except Ended:
            steps += 1
        after = Lake(spark, str(folder))
        assert places(after, "events") == ALL, steps
        after.recover()
        there = set(names(folder, "bronze/events"))
        assert there in ({f"batch={batch}" for batch in range(BATCHES)}, {f"batch=0{BATCHES - 1}"}), steps
        assert not [path for path in (folder / "bronze/events").iterdir() if path.name.startswith(".w")]
    assert steps >= BATCHES + 3


def test_a_killed_process_leaves_one_truth(spark, folder):
    """`kill -9` when some of what was merged is deleted."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.jobs.killed_compaction", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert names(folder, "bronze/events") == ["batch=04", "batch=2", "batch=3", "batch=4"]
    assert places(Lake(spark, str(folder)), "events") == ALL
    lake = Lake(spark, str(folder))
    with lake.turns.only_writer():  # the lock went with the process
        lake.recover()
        compact(lake, fan_in=None)
    assert names(folder, "bronze/events") == ["batch=04"]
    assert names(folder, "silver/log_lines") == ["batch=04"]
    assert places(lake, "events") == places(lake, "log_lines") == ALL


def test_tables_of_a_later_version_are_left_alone(spark, folder):
    lake = Lake(spark, str(folder))
    lake.recover()
    assert json.loads((folder / "lake.json").read_text()) == {"format": 1}
    (folder / ".lake.json.crc").unlink(missing_ok=True)
    (folder / "lake.json").write_text('{"format": 2}')
    with pytest.raises(UsageError, match="are of format 2, and this version knows 1"):
        Lake(spark, str(folder)).recover()


def test_one_pipeline_at_a_time(spark, folder):
    first, second = Lake(spark, str(folder)), Lake(spark, str(folder))
    said = pytest.raises(LakeBusy, match="another pipeline writes to")
    with first.turns.only_writer(), said, second.turns.only_writer():
        pass
    with second.turns.only_writer():
        pass


def test_books_of_a_thousand_batches_are_one_file(spark, tmp_path):
    files = Files(spark, str(tmp_path))
    books = Books(files, pack=4)
    for batch in range(10):
        books.write("messages", batch, {"rows": batch, "fates": {"kept": batch}})
    books.pack("messages")
    there = {path.name for path in (tmp_path / "books/messages").glob("0*.json")}
    assert there == {
        "0000000000-0000000003.json",
        "0000000004-0000000007.json",
        "0000000008.json",
        "0000000009.json",
    }
    # One that ended after it had written the second file, before it deleted what is in it.
    (tmp_path / "books/messages/0000000005.json").write_text(json.dumps({"rows": 5, "fates": {"kept": 5}}))
    again = Books(files, pack=4)
    assert dict(again.of("messages")) == dict(books.of("messages"))
    assert again.totals("messages") == books.totals("messages") == (10, 45)
    again.pack("messages")
    assert not (tmp_path / "books/messages/0000000005.json").exists()
    assert Books(files, pack=4).totals("messages") == (10, 45)
