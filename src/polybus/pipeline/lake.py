"""The tables on disk.

    <root>/bronze/messages/batch=12/part-….parquet       appended, a folder a batch
    <root>/silver/records/batch=12/fate=kept/kind=position/…
    <root>/gold/cap_use/day=2026-05-04/…                  replaced, a folder a day
    <root>/books/messages/0000000012.json                 what batch 12 brought; it is complete if this exists
    <root>/checkpoints/…                                  Spark's own

A batch's folders appear whole (`files`), in the order bronze, silver, books. A batch that is done twice,
because the process ended in between, finds its folders and leaves them: the same offsets give the same rows.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from polybus.errors import PolybusError, UsageError
from polybus.pipeline.files import Files
from polybus.pipeline.schemas import TABLES, Table
from polybus.pipeline.views import VIEWS

Book = Mapping[str, Any]
BATCH: Final = "batch"


class Stopping(PolybusError):
    """A batch came when the pipeline was about to end."""


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
        self._books: dict[str, dict[int, Book]] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._is_stopping = threading.Event()

    # --- reading ----------------------------------------------------------------------------------

    def read(self, name: str) -> DataFrame:
        """Everything of complete batches."""
        table = table_named(name)
        if table.view_of:
            return VIEWS[name](self.read(table.view_of))
        if not any("=" in each for each in self.files.names(self.path(name))):
            return self.spark.createDataFrame([], table.schema)
        frame = self.spark.read.schema(_stored(table)).parquet(self.path(name))
        if table.job == "days":
            return frame.select(*table.schema.names)
        done = max(self.books(table.job), default=-1)
        return frame.where(F.col(BATCH) <= done).select(*table.schema.names)

    def read_batches(self, name: str, batches: Iterable[int]) -> DataFrame:
        """Of these batches only, complete or not; without listing the others."""
        table = table_named(name)
        if table.view_of:
            return VIEWS[name](self.read_batches(table.view_of, batches))
        paths = [self._batch(name, batch) for batch in batches]
        there = [path for path in paths if self.files.exists(path)]
        if not there:
            return self.spark.createDataFrame([], table.schema)
        reader = self.spark.read.schema(_stored(table)).option("basePath", self.path(name))
        return reader.parquet(*there).select(*table.schema.names)

    def stream(self, name: str, *, max_files: int, **folders: str) -> DataFrame:
        """Every batch of an appended table, each once; of its folders those with these values.

        Not by the table's root: Spark would find out anew for every batch which columns are folders, and gets
        lost when a query began before there were any.
        """
        table = table_named(name)
        assert tuple(folders) == table.folders, f"{name} has folders by {table.folders}"
        inner = "".join(f"/{column}={value}" for column, value in folders.items())
        schema = StructType([field for field in table.schema.fields if field.name not in folders])
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", max_files)
        rows = reader.parquet(f"{self.path(name)}/{BATCH}=*{inner}")
        return rows.withColumns({column: F.lit(value) for column, value in folders.items()})

    def path(self, name: str) -> str:
        return self.files.at(table_named(name).layer, name)

    # --- appending --------------------------------------------------------------------------------

    def has_batch(self, name: str, batch: int) -> bool:
        return self.files.exists(self._batch(name, batch))

    def batches(self, name: str) -> list[int]:
        prefix = f"{BATCH}="
        names = self.files.names(self.path(name))
        return sorted(int(each.removeprefix(prefix)) for each in names if each.startswith(prefix))

    def append(self, name: str, batch: int, rows: DataFrame) -> None:
        table = table_named(name)
        target = self._batch(name, batch)
        if self.files.exists(target):
            return
        writing = f"{self.path(name)}/.writing-{batch}"
        rows = rows.select(*[F.col(each.name).cast(each.dataType) for each in table.schema.fields])
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static")
        (writer.partitionBy(*table.folders) if table.folders else writer).parquet(writing)
        self.files.move(writing, target)

    def drop(self, name: str) -> None:
        """An appended table that is to be made anew, with its books."""
        job = table_named(name).job
        self.files.delete(self.path(name))
        self.files.delete(self.files.at("books", job))
        self._books.pop(job, None)

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
            target, fresh, old = f"{path}/day={day}", f"{writing}/day={day}", f"{path}/.old-{day}"
            if self.files.exists(target):
                self.files.delete(old)
                self.files.move(target, old)
            if self.files.exists(fresh):
                self.files.move(fresh, target)
            self.files.delete(old)
        self.files.delete(writing)

    # --- books ------------------------------------------------------------------------------------

    def books(self, job: str) -> Mapping[int, Book]:
        """By batch. Read once: nobody else writes them."""
        if job not in self._books:
            folder = self.files.at("books", job)
            self._books[job] = {
                int(name.removesuffix(".json")): json.loads(self.files.read_text(f"{folder}/{name}"))
                for name in self.files.names(folder)
                if name.endswith(".json") and not name.startswith(".")
            }
        return self._books[job]

    def write_book(self, job: str, batch: int, book: Book) -> None:
        """The last step of a batch. Raises `PolybusError` if what came is not what became of it."""
        parts = sum(book["fates"].values())
        if parts != book["rows"]:
            raise PolybusError(
                f"the books of {job}, batch {batch}, do not balance: {book['rows']} rows came, "
                f"{parts} have a fate ({dict(book['fates'])})"
            )
        self.books(job)
        self.files.write_text(self.files.at("books", job, f"{batch:010d}.json"), json.dumps(book))
        self._books[job][batch] = book

    # --- taking turns -----------------------------------------------------------------------------

    @contextmanager
    def batch_of(self, job: str) -> Iterator[None]:
        """Around everything that a batch writes. Raises `Stopping` if the pipeline is about to end: Spark must
        not think that the batch was done."""
        lock = self._turns.setdefault(job, threading.Lock())
        while not lock.acquire(timeout=0.05):
            if self._is_stopping.is_set():
                raise Stopping(f"{job}: the pipeline ends; the batch is for the next run")
        try:
            if self._is_stopping.is_set():
                raise Stopping(f"{job}: the pipeline ends; the batch is for the next run")
            yield
        finally:
            lock.release()

    @contextmanager
    def nobody_writing(self) -> Iterator[None]:
        """For stopping queries: batches under way come to their end before, and none begins meanwhile. Spark
        would interrupt its own side only, and Python's would go on writing."""
        self._is_stopping.set()
        with ExitStack() as stack:
            for lock in self._turns.values():
                stack.enter_context(lock)
            yield

    # --- life -------------------------------------------------------------------------------------

    def recover(self) -> None:
        """At the start: what an earlier life left half done is gone or put back."""
        for name in TABLES:
            path = self.path(name)
            for leftover in list(self.files.leftovers(path)):
                self.files.delete(leftover)
            for each in self.files.names(path):
                if each.startswith(".old-"):
                    target = f"{path}/day={each.removeprefix('.old-')}"
                    if self.files.exists(target):
                        self.files.delete(f"{path}/{each}")
                    else:
                        self.files.move(f"{path}/{each}", target)

    def _batch(self, name: str, batch: int) -> str:
        return f"{self.path(name)}/{BATCH}={batch}"


def _stored(table: Table) -> StructType:
    """With what stands in the names of folders."""
    return (
        table.schema
        if table.job == "days"
        else StructType([*table.schema.fields, StructField(BATCH, IntegerType())])
    )
