"""A source → a bronze table → what is made of each batch of it, once (PL-02).

Spark's checkpoint says which offsets a batch has; `lake` says what of it is on disk. Between them nothing is
lost or doubled, whenever the process ends:

- before bronze is there: the batch is read again from the source;
- between bronze and the books: it is made anew from bronze, not from the source;
- after the books: there is nothing to do, if it is the batch that they tell of;
- and if the checkpoint is lost, reading begins at the source's beginning, and what bronze has is left out.
"""

import json
from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from polybus.errors import PolybusError
from polybus.pipeline.books import Book
from polybus.pipeline.lake import Lake
from polybus.pipeline.schemas import TABLES

Process = Callable[[DataFrame, int], Book]
Trigger = Callable[[DataStreamWriter], DataStreamWriter]
BASE_FILE: Final = "polybus.json"
"""In the checkpoint's folder, so that it goes with it."""


class CheckpointMismatch(PolybusError):
    """The checkpoint counts batches otherwise than the tables do."""


class Intake:
    """Runs on the driver. `place` are the two columns that say where a row stands in the source: the part,
    and the number in it, which only grows. A source that was begun anew has the same numbers: it is told by
    `source_id`, which asks for the source's id ("": it has none), or else by `time`, the column that says when
    a row came, if there is one."""

    def __init__(
        self,
        lake: Lake,
        job: str,
        bronze: str,
        place: tuple[str, str],
        process: Process,
        time: str | None = None,
        source_id: Callable[[], str] = lambda: "",
    ) -> None:
        self._lake = lake
        self._job = job
        self._bronze = bronze
        self._place = place
        self._time = time
        self._process = process
        self._checkpoint = lake.files.at("checkpoints", job)
        self._base = 0
        self._source_id = source_id
        self._sources_file = lake.files.at("books", f"{job}.sources.json")
        self._sources: dict[int, str] = {}
        """Batch → the id of the source from it on."""
        self._known: dict[str, int] = {}
        """The last number in each part that bronze has of this source from before the checkpoint began."""
        self._known_by_time: list[Row] = []
        """The same of batches whose source is not known, and the last time."""

    def prepare(self) -> None:
        """Before the stream starts: finish what an earlier life began, and find out where to go on."""
        for batch in self._lake.batches(self._bronze):
            if batch not in self._lake.books(self._job):
                self._finish(batch)
        base_file = f"{self._checkpoint}/{BASE_FILE}"
        files = self._lake.files
        if files.exists(base_file):
            self._base = int(json.loads(files.read_text(base_file))["base"])
        else:
            # Bronze may have been deleted with the checkpoint, to take all in again: no number is used twice.
            used = {*self._lake.books(self._job)}
            for name, table in TABLES.items():
                if table.job == self._job and not table.view_of:
                    used.update(self._lake.batches(name))
            self._base = max(used, default=-1) + 1
            files.write_text(base_file, json.dumps({"base": self._base}))
        if files.exists(self._sources_file):
            noted = json.loads(files.read_text(self._sources_file))
            self._sources = {int(batch): source for batch, source in noted.items()}
        if self._base:
            self._find_known(self._source_id())

    def start(self, stream: DataFrame, trigger: Trigger) -> StreamingQuery:
        writer = stream.writeStream.queryName(self._job).option("checkpointLocation", self._checkpoint)
        return trigger(writer.foreachBatch(self._take)).start()

    def _find_known(self, source: str) -> None:
        """What came before the checkpoint began and may come again."""
        part, number = self._place
        first_noted = min(self._sources, default=self._base) if source else self._base
        books = self._lake.books(self._job)
        for batch in range(first_noted, self._base):
            if batch in books and self._source_of(batch) == source:
                for name, (_, last) in books[batch]["places"].items():
                    self._known[name] = max(last, self._known.get(name, last))
        newest = F.unix_micros(F.max(self._time)) if self._time else F.lit(None)
        before = self._lake.read_batches(self._bronze, range(min(first_noted, self._base)))
        self._known_by_time = before.groupBy(part).agg(F.max(number), newest).collect()

    def _source_of(self, batch: int) -> str:
        """Empty: it was not noted."""
        since = max((each for each in self._sources if each <= batch), default=None)
        return "" if since is None else self._sources[since]

    def _note_source(self, batch: int) -> None:
        """Before anything of the batch is written."""
        source = self._source_id()
        if source and self._source_of(batch) != source:
            self._sources[batch] = source
            self._lake.files.write_text(self._sources_file, json.dumps(self._sources))

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        """Runs on the driver, once per batch, and again for one that did not come to its end."""
        batch = self._base + batch_id
        with self._lake.turns.batch_of(self._job):
            if batch in self._lake.books(self._job):
                self._check_same(self._unknown(rows), batch)
                return
            if not self._lake.has_batch(self._bronze, batch):
                self._note_source(batch)
                self._lake.append(self._bronze, batch, self._unknown(rows))
            self._finish(batch)

    def _finish(self, batch: int) -> None:
        bronze = self._lake.read_batches(self._bronze, [batch])
        places, count = self._places(bronze)
        book = {"rows": count, "places": places, **self._process(bronze, batch)}
        self._lake.write_book(self._job, batch, book)

    def _places(self, rows: DataFrame) -> tuple[dict[str, list[int]], int]:
        """First and last number of each part, and how many rows there are in all."""
        part, number = self._place
        found = rows.groupBy(part).agg(F.min(number), F.max(number), F.count("*")).collect()
        return {str(each[0]): [each[1], each[2]] for each in found}, sum(each[3] for each in found)

    def _check_same(self, rows: DataFrame, batch: int) -> None:
        """Raises `CheckpointMismatch`: without this, rows of a batch whose number was used before are lost."""
        expected = self._lake.books(self._job)[batch].get("places")
        if expected is not None and self._places(rows)[0] != expected:
            raise CheckpointMismatch(
                f"batch {batch} of {self._job} is not what the tables have as batch {batch}: the checkpoint "
                f"{self._checkpoint} is older than the tables, or of another source. Delete that folder and "
                "start again: what the tables have is left out, all else is taken in"
            )

    def _unknown(self, rows: DataFrame) -> DataFrame:
        number = F.col(self._place[1])
        if self._known:
            rows = _unless(rows, number <= self._of_part(self._known))
        if self._known_by_time:
            is_known = number <= self._of_part({str(row[0]): row[1] for row in self._known_by_time})
            if self._time:
                newest = self._of_part({str(row[0]): row[2] for row in self._known_by_time})
                is_known &= F.unix_micros(self._time) <= newest
            rows = _unless(rows, is_known)
        return rows

    def _of_part(self, known: dict[str, int]) -> Column:
        """Of the row's part; null for a part that is not known."""
        pairs = F.create_map(*[F.lit(each) for pair in known.items() for each in pair])
        return F.try_element_at(pairs, F.col(self._place[0]).cast("string"))


def _unless(rows: DataFrame, condition: Column) -> DataFrame:
    return rows.where(~F.coalesce(condition, F.lit(False)))
