"""The tables on disk.

    <root>/bronze/messages/batch=12/part-….parquet       appended, a folder a batch
    <root>/bronze/messages/batch=011/merged-….parquet    those up to 11, made into one (`folders`, `compaction`)
    <root>/silver/records/batch=12/fate=kept/kind=position/…
    <root>/gold/cap_use/day=2026-05-04/…                  replaced, a folder a day
    <root>/gold/overhead/whole/…                          replaced, all of it
    <root>/books/messages/0000000012.json                 what batch 12 brought; it is complete if this exists
    <root>/checkpoints/…                                  Spark's own
    <root>/.writer                                        is locked while a pipeline writes here

A batch's folders appear whole (`files`), in the order bronze, silver, books. A batch that is done twice,
because the process ended in between, finds its folders and leaves them: the same offsets give the same rows.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from polybus.errors import UsageError
from polybus.pipeline.books import Book, Books
from polybus.pipeline.files import Files
from polybus.pipeline.folders import BATCH, Folder, folder_name, in_force, parse_name
from polybus.pipeline.schemas import TABLES
from polybus.pipeline.tables import Table
from polybus.pipeline.turns import Turns
from polybus.pipeline.views import VIEWS

COVERS_FILE: Final = "_covers.json"
"""In a folder made of others: from which batch on."""
MERGED: Final = "merged-"
WHOLE: Final = "whole"
OLD: Final = ".old-"
FORMAT_FILE: Final = "lake.json"
FORMAT: Final = 1


class NoSuchTable(UsageError):
    """The text names those there are."""


def table_named(name: str) -> Table:
    if name not in TABLES:
        raise NoSuchTable(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]


class Lake:
    """Runs on the driver. One pipeline at a time writes to a root."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.files = Files(spark, root)
        self.book_keeping = Books(self.files)
        self._covers: dict[str, int] = {}
        """By path; what is written there never changes."""
        self.turns = Turns(self.files.local_root())

    # --- reading ----------------------------------------------------------------------------------

    def read(self, name: str) -> DataFrame:
        """Everything of complete batches."""
        table = table_named(name)
        if table.view_of:
            return VIEWS[name](self.read(table.view_of))
        if table.job == "whole":
            if not self.files.exists(f"{self.path(name)}/{WHOLE}"):
                return self.spark.createDataFrame([], table.schema)
            return self.spark.read.schema(table.schema).parquet(f"{self.path(name)}/{WHOLE}")
        if table.job == "days":
            if not any("=" in each for each in self.files.names(self.path(name))):
                return self.spark.createDataFrame([], table.schema)
            return self.spark.read.schema(table.schema).parquet(self.path(name)).select(*table.schema.names)
        folders, _ = self.folders(name)  # before the books: they only grow
        done = max(self.books(table.job), default=-1)
        return self.rows_of(name, [each for each in folders if each.level or each.last <= done])

    def read_batches(self, name: str, batches: Iterable[int]) -> DataFrame:
        """Of these batches, complete or not; and of those that became one with them."""
        table = table_named(name)
        if table.view_of:
            return VIEWS[name](self.read_batches(table.view_of, batches))
        wanted = sorted(batches)
        if len(wanted) == 1 and self.has_batch(name, wanted[0]):
            return self.rows_of(name, [Folder(folder_name(wanted[0], 0), wanted[0], wanted[0])])
        folders, _ = self.folders(name)
        return self.rows_of(name, [each for each in folders if _has_any(each, wanted)])

    def folders(self, name: str) -> tuple[list[Folder], list[Folder]]:
        """Those of an appended table that count, and those that others stand for."""
        path = self.path(name)
        names = self.files.names(path)
        # Another process may be replacing some, and a list that is made meanwhile may have neither the new
        # folder nor the old ones. The next one has the new one then, for it comes before the old ones go.
        while (again := self.files.names(path)) != names:
            names = again
        found = []
        for each in names:
            parsed = parse_name(each)
            if parsed is not None:
                last, level = parsed
                found.append(Folder(each, self._first_of(f"{path}/{each}") if level else last, last, level))
        return in_force(found)

    def rows_of(self, name: str, folders: Sequence[Folder]) -> DataFrame:
        table = table_named(name)
        if not folders:
            return self.spark.createDataFrame([], table.schema)
        reader = self.spark.read.schema(_stored(table)).option("basePath", self.path(name))
        return reader.parquet(*[f"{self.path(name)}/{each.name}" for each in folders]).select(
            *table.schema.names
        )

    def stream(self, name: str, *, max_files: int, merged: Sequence[str] = (), **folders: str) -> DataFrame:
        """Every batch of an appended table, each once; of its folders those with these values. `merged` are
        those made of others that are to be read too: what is merged later was read before.

        Not by the table's root: Spark would find out anew for every batch which columns are folders, and gets
        lost when a query began before there were any.
        """
        table = table_named(name)
        assert tuple(folders) == table.folders, f"{name} has folders by {table.folders}"
        inner = "".join(f"/{column}={value}" for column, value in folders.items())
        schema = StructType([field for field in table.schema.fields if field.name not in folders])
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", max_files)
        names = [f"{BATCH}=*{inner}/part-*", *[f"{each}{inner}/{MERGED}*" for each in merged]]
        rows = reader.parquet(f"{self.path(name)}/{{{','.join(names)}}}")
        return rows.withColumns({column: F.lit(value) for column, value in folders.items()})

    def path(self, name: str) -> str:
        return self.files.at(table_named(name).layer, name)

    # --- appending --------------------------------------------------------------------------------

    def has_batch(self, name: str, batch: int) -> bool:
        return self.files.exists(self._batch(name, batch))

    def batches(self, name: str) -> list[int]:
        return [folder.last for folder in self.folders(name)[0]]

    def append(self, name: str, batch: int, rows: DataFrame) -> None:
        target = self._batch(name, batch)
        if self.files.exists(target):
            return
        writing = f"{self.path(name)}/.writing-{batch}"
        self.write_rows(name, rows, writing)
        self.files.move(writing, target)

    def write_rows(self, name: str, rows: DataFrame, target: str) -> None:
        table = table_named(name)
        rows = rows.select(*[F.col(each.name).cast(each.dataType) for each in table.schema.fields])
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static")
        (writer.partitionBy(*table.folders) if table.folders else writer).parquet(target)

    def drop(self, name: str) -> None:
        """An appended table that is to be made anew, with its books."""
        self.files.delete(self.path(name))
        self._covers.clear()
        self.book_keeping.drop(table_named(name).job)

    # --- replacing --------------------------------------------------------------------------------

    def replace_days(self, name: str, rows: DataFrame, days: Sequence[date]) -> None:
        """`rows` are all there is of `days`; a day of which there is nothing loses its folder."""
        table = table_named(name)
        path, writing = self.path(name), f"{self.path(name)}/.writing-days"
        rows = rows.select(*[F.col(each.name).cast(each.dataType) for each in table.schema.fields])
        rows = rows.where(F.col("day").isin(list(days))).repartition(1)
        rows.write.mode("overwrite").option("partitionOverwriteMode", "static").partitionBy("day").parquet(
            writing
        )
        for day in days:
            self._swap(f"{path}/day={day}", f"{writing}/day={day}", f"{path}/{OLD}{day}")
        self.files.delete(writing)

    def replace(self, name: str, rows: DataFrame) -> None:
        """`rows` are all there is."""
        path, writing = self.path(name), f"{self.path(name)}/.writing-{WHOLE}"
        self.write_rows(name, rows.coalesce(1), writing)
        self._swap(f"{path}/{WHOLE}", writing, f"{path}/{OLD}{WHOLE}")

    def _swap(self, target: str, fresh: str, old: str) -> None:
        """Whenever it ends in between, `recover` finds the one or the other."""
        if self.files.exists(target):
            self.files.delete(old)
            self.files.move(target, old)
        if self.files.exists(fresh):
            self.files.move(fresh, target)
        self.files.delete(old)

    # --- books ------------------------------------------------------------------------------------

    def books(self, job: str) -> Mapping[int, Book]:
        """By batch."""
        return self.book_keeping.of(job)

    def write_book(self, job: str, batch: int, book: Book) -> None:
        """The last step of a batch. Raises `PolybusError` if what came is not what became of it."""
        self.book_keeping.write(job, batch, book)

    # --- life -------------------------------------------------------------------------------------

    def check_format(self) -> None:
        """Raises `UsageError` for tables that a later version has written."""
        file = self.files.at(FORMAT_FILE)
        found = json.loads(self.files.read_text(file))["format"] if self.files.exists(file) else FORMAT
        if found > FORMAT:
            raise UsageError(
                f"the tables in {self.files.root} are of format {found}, and this version knows {FORMAT}: "
                "use the version that wrote them, or another folder"
            )

    def recover(self) -> None:
        """At the start: what an earlier life left half done is gone or put back."""
        self.check_format()
        if not self.files.exists(self.files.at(FORMAT_FILE)):
            self.files.write_text(self.files.at(FORMAT_FILE), json.dumps({"format": FORMAT}))
        for name in TABLES:
            path = self.path(name)
            for leftover in list(self.files.leftovers(path)):
                self.files.delete(leftover)
            if TABLES[name].is_appended:
                for folder in self.folders(name)[1]:
                    self.files.delete(f"{path}/{folder.name}")
            for each in self.files.names(path):
                if each.startswith(OLD):
                    what = each.removeprefix(OLD)
                    target = f"{path}/{what if what == WHOLE else f'day={what}'}"
                    if self.files.exists(target):
                        self.files.delete(f"{path}/{each}")
                    else:
                        self.files.move(f"{path}/{each}", target)

    def _batch(self, name: str, batch: int) -> str:
        return f"{self.path(name)}/{folder_name(batch, 0)}"

    def _first_of(self, path: str) -> int:
        if path not in self._covers:
            self._covers[path] = int(json.loads(self.files.read_text(f"{path}/{COVERS_FILE}"))["first"])
        return self._covers[path]


def _has_any(folder: Folder, batches: Sequence[int]) -> bool:
    """`batches` are sorted."""
    at = bisect_left(batches, folder.first)
    return at < len(batches) and batches[at] <= folder.last


def _stored(table: Table) -> StructType:
    """With what stands in the names of folders."""
    return StructType([*table.schema.fields, StructField(BATCH, IntegerType())])
