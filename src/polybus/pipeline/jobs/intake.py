"""A source → a bronze table → what is made of each batch of it, once (PL-02).

Spark's checkpoint says which offsets a batch has; `lake` says what of it is on disk. Between them nothing is
lost or doubled, whenever the process ends:

- before bronze is there: the batch is read again from the source;
- between bronze and the books: it is made anew from bronze, not from the source;
- after the books: there is nothing to do;
- and if the checkpoint is lost, reading begins at the source's beginning, and what bronze has is left out.
"""

import json
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from polybus.pipeline.books import Book
from polybus.pipeline.lake import Lake

Process = Callable[[DataFrame, int], Book]
Trigger = Callable[[DataStreamWriter], DataStreamWriter]
BASE_FILE: Final = "polybus.json"
"""In the checkpoint's folder, so that it goes with it."""


class Intake:
    """Runs on the driver. `place` are the two columns that say where a row stands in the source: the part,
    and the number in it, which only grows."""

    def __init__(self, lake: Lake, job: str, bronze: str, place: tuple[str, str], process: Process) -> None:
        self._lake = lake
        self._job = job
        self._bronze = bronze
        self._place = place
        self._process = process
        self._checkpoint = lake.files.at("checkpoints", job)
        self._base = 0
        self._known: dict[str | int, int] = {}
        """The last number in each part that bronze has from before the checkpoint began."""

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
            # Behind the books too: bronze may have been deleted with the checkpoint, to take all in again.
            used = {*self._lake.batches(self._bronze), *self._lake.books(self._job)}
            self._base = max(used, default=-1) + 1
            files.write_text(base_file, json.dumps({"base": self._base}))
        if self._base:
            part, number = self._place
            before = self._lake.read_batches(self._bronze, range(self._base))
            self._known = dict(map(tuple, before.groupBy(part).agg(F.max(number)).collect()))

    def start(self, stream: DataFrame, trigger: Trigger) -> StreamingQuery:
        writer = stream.writeStream.queryName(self._job).option("checkpointLocation", self._checkpoint)
        return trigger(writer.foreachBatch(self._take)).start()

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        """Runs on the driver, once per batch, and again for one that did not come to its end."""
        batch = self._base + batch_id
        with self._lake.turns.batch_of(self._job):
            if batch in self._lake.books(self._job):
                return
            if not self._lake.has_batch(self._bronze, batch):
                self._lake.append(self._bronze, batch, self._unknown(rows))
            self._finish(batch)

    def _finish(self, batch: int) -> None:
        book = self._process(self._lake.read_batches(self._bronze, [batch]), batch)
        self._lake.write_book(self._job, batch, book)

    def _unknown(self, rows: DataFrame) -> DataFrame:
        if not self._known:
            return rows
        part, number = self._place
        known = F.create_map(*[F.lit(each) for pair in self._known.items() for each in pair])
        return rows.where(F.col(number) > F.coalesce(F.try_element_at(known, F.col(part)), F.lit(-1)))
