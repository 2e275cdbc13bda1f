"""Many small folders become few large ones, while batches come and others read (PL-02).

A merge is written where nothing reads it, counted against the books, and appears by one rename: from then on
it stands for what it was made from (`folders`), which is then deleted. Whenever the process ends, a reader
finds the one or the other: what is half written is no folder of the table, and what is half deleted does not
count any more. The books of batches stay as they are.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from polybus.errors import PolybusError
from polybus.pipeline.folders import FAN_IN, MOST_BYTES, Folder, folder_name, plan_merges
from polybus.pipeline.jobs.geofences import unread_by_geofences
from polybus.pipeline.lake import COVERS_FILE, MERGED, Lake, table_named
from polybus.pipeline.schemas import TABLES

APPENDED: Final = tuple(name for name, table in TABLES.items() if table.is_appended)
Tell = Callable[[str, int, int], None]
"""Is called with a table's name, and how many folders became how many."""


def compact(
    lake: Lake, *, fan_in: int | None = FAN_IN, most_bytes: int = MOST_BYTES, tell: Tell = lambda *_: None
) -> None:
    """Runs on the driver. `fan_in`: so many of a size become one; None: all that may."""
    for name in APPENDED:
        size = partial(_size, lake, name)
        merges = plan_merges(mergeable(lake, name), size, fan_in=fan_in, most_bytes=most_bytes)
        for folders in merges:
            try:
                merge(lake, name, folders)
            except BaseException:
                lake.files.delete(_writing(lake, name))  # it may be the disk that is full
                raise
        if merges:
            tell(name, sum(map(len, merges)), len(merges))
    for job in sorted({TABLES[name].job for name in APPENDED}):
        lake.book_keeping.pack(job)


def mergeable(lake: Lake, name: str) -> list[Folder]:
    """Neighbours from the beginning on that are complete, and that nobody still has to read file by file."""
    books = lake.books(table_named(name).job)
    return list(_until(lake.folders(name)[0], max(books, default=-1), unread_by_geofences(lake, name)))


def _until(folders: Sequence[Folder], done: int, unread: Callable[[Folder], bool]) -> Iterator[Folder]:
    for folder in folders:
        if folder.last > done or unread(folder):
            return
        yield folder


def merge(lake: Lake, name: str, folders: Sequence[Folder]) -> None:
    """Raises `PolybusError` if the rows are not those of the books; then all is left as it is."""
    table, root = table_named(name), lake.path(name)
    first, last = folders[0].first, folders[-1].last
    writing = _writing(lake, name)
    rows = lake.rows_of(name, folders)
    # A file for each value of the folder columns, or one: that is what this is for.
    lake.write_rows(name, rows.repartition(*table.folders) if table.folders else rows.coalesce(1), writing)
    written = lake.spark.read.schema(table.schema).parquet(writing).count()
    books = lake.books(table.job)
    # Of a job whose tables have not all a row for each that came, the book says how many.
    expected = sum(
        books[batch].get("tables", {}).get(name, books[batch]["rows"]) for batch in range(first, last + 1)
    )
    if written != expected:
        raise PolybusError(
            f"{name}: batches {first} to {last} have {written} rows, but {expected} by their books; "
            f"they are left as they are: look into {root}"
        )
    newest_ms = _newest_ms(lake, f"{root}/{folders[-1].name}")
    for file in lake.files.files_below(writing):
        folder, _, part = file.rpartition("/")
        # Who streams a table goes by the names of files and their times: these rows are neither new nor newest.
        lake.files.move(file, f"{folder}/{MERGED}{part}")
        lake.files.set_modified(f"{folder}/{MERGED}{part}", newest_ms)
    lake.files.write_text(f"{writing}/{COVERS_FILE}", json.dumps({"first": first}))
    into = folder_name(last, 1 + max(each.level for each in folders))
    with lake.turns.between_batches(table.job):  # they read what is replaced now
        lake.files.move(writing, f"{root}/{into}")
        for each in folders:
            lake.files.delete(f"{root}/{each.name}")


def _writing(lake: Lake, name: str) -> str:
    return f"{lake.path(name)}/.writing-merge"


def _size(lake: Lake, name: str, folder: Folder) -> int:
    return lake.files.size_bytes(f"{lake.path(name)}/{folder.name}")


def _newest_ms(lake: Lake, path: str) -> int:
    return max(map(lake.files.modified_ms, lake.files.files_below(path) or [path]))
