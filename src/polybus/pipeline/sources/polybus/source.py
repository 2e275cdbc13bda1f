"""`format("polybus")`: the classes that Spark calls.

All offsets come from the broker. What a reader remembers is only the target of a query that stops when it
has read all that was there (AvailableNow), and that is asked for anew at every start.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from polybus.pipeline.sources.batches import joined, split_range
from polybus.pipeline.sources.options import OptionError
from polybus.pipeline.sources.polybus.offsets import (
    DataLoss,
    Facts,
    Held,
    Offset,
    Piece,
    as_offset,
    parse_positions,
    pieces,
    plan,
)
from polybus.pipeline.sources.polybus.options import TIMESTAMP, PolybusOptions
from polybus.pipeline.sources.polybus.places import Place, open_place
from polybus.pipeline.sources.polybus.schema import SPARK_SCHEMA, with_partition
from polybus.store.streams.partition import Damaged, Gone
from polybus.store.streams.start import parse_time

logger = logging.getLogger("polybus.pipeline.streams")

HOW_TO_GO_ON: Final = 'to go on without them, set .option("failOnDataLoss", "false")'


class PolybusSource(DataSource):
    """Made where the query is written, then pickled; it holds options only."""

    @classmethod
    def name(cls) -> str:
        return "polybus"

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> "PolybusBatchReader":
        return PolybusBatchReader(PolybusOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "PolybusStreamReader":
        options = PolybusOptions.parse(self.options)
        if options.ending != "latest":
            raise OptionError("polybus: endingOffsets is for spark.read; a stream has no end")
        return PolybusStreamReader(options)


class PieceOfStream(InputPartition):
    """What one task reads."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)


class PolybusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: PolybusOptions) -> None:
        self._options = options
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        """Runs on the driver, once in the life of a checkpoint."""
        with open_place(self._options) as place:
            facts = place.facts()
            starting = positions(place, facts.held, "startingOffsets", self._options.starting)
            return as_offset(starting, id=facts.id)

    def prepareForTriggerAvailableNow(self) -> None:
        """Runs on the driver, once."""
        self._target = self.reportLatestOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Runs on the driver, once per batch."""
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        planned = plan(start, self._facts(), max_rows=max_rows, until=self._target)
        self._note_loss(planned.lost)
        return planned.offset

    def reportLatestOffset(self) -> Offset:
        """Runs on the driver, for progress reports: how far the stream is."""
        return as_offset({partition: each.next for partition, each in self._facts().held.items()})

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Runs on the driver, once per batch; after a restart, first for the batch that was cut short."""
        found, lost = pieces(start, end, self._facts())
        self._note_loss(lost)
        return _tasks(found, self._options.rows_per_task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on executors, once per task."""
        return read_piece(self._options, partition.value)

    def _facts(self) -> Facts:
        with open_place(self._options) as place:
            return place.facts()

    def _note_loss(self, lost: tuple[str, ...]) -> None:
        if lost:
            note_loss(self._options, "; ".join(lost))


class PolybusBatchReader(DataSourceReader):
    def __init__(self, options: PolybusOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver, once per action."""
        options = self._options
        with open_place(options) as place:
            facts = place.facts()
            held = facts.held
            start = positions(place, held, "startingOffsets", options.starting)
            end = positions(place, held, "endingOffsets", options.ending)
        for partition, stop in end.items():
            if stop > held[partition].next:
                raise OptionError(
                    f"polybus: endingOffsets names offset {stop} of partition {partition}, which was not"
                    f" reached yet: the next one is {held[partition].next}"
                )
            if start[partition] > stop:
                raise OptionError(
                    f"polybus: in partition {partition} startingOffsets ({start[partition]}) is behind"
                    f" endingOffsets ({stop})"
                )
        found, lost = pieces(as_offset(start), as_offset(end), facts)
        if lost:
            note_loss(options, "; ".join(lost))
        nothing = [PieceOfStream(Piece(0, 0, 0))]  # Spark reads a partition of its own making if there is none
        return _tasks(found, options.rows_per_task) or list[InputPartition](nothing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on executors, once per task."""
        return read_piece(self._options, partition.value)


def positions(place: Place, held: Mapping[int, Held], name: str, text: str) -> dict[int, int]:
    """What earliest, latest, a time or explicit offsets mean now. Raises OptionError."""
    if text == "earliest":
        return {partition: each.first for partition, each in held.items()}
    if text == "latest":
        return {partition: each.next for partition, each in held.items()}
    if text.startswith(TIMESTAMP):
        time_us = parse_time(text.removeprefix(TIMESTAMP))
        return {partition: place.offset_at(partition, time_us) for partition in held}
    return parse_positions(name, text, held)


def read_piece(options: PolybusOptions, piece: Piece) -> Iterator[pa.RecordBatch]:
    return joined(with_partition(batch, piece.partition) for batch in _records(options, piece))


def note_loss(options: PolybusOptions, text: str) -> None:
    """Raises DataLoss, unless the query is to go on without."""
    if options.fails_on_loss:
        raise DataLoss(f"stream {options.stream}: {text}; {HOW_TO_GO_ON}")
    logger.warning("stream %s: %s; going on without them", options.stream, text)


def _records(options: PolybusOptions, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Those of the piece; retention and damage may have been quicker than the plan."""
    partition, at, end = piece
    with open_place(options) as place:
        while at < end:
            try:
                for batch in place.records(partition, at, end):
                    if len(batch):
                        at = batch.column(0)[-1].as_py() + 1
                        yield batch
                return
            except Gone as gone:
                following, why = min(gone.first, end), "were dropped by retention"
            except Damaged as damaged:
                following, why = min(damaged.end, end), "are damaged"
            note_loss(options, f"offsets {at} to {following - 1} of partition {partition} {why}")
            at = max(following, at + 1)


def _tasks(found: list[Piece], rows_per_task: int) -> list[InputPartition]:
    return [
        PieceOfStream(Piece(each.partition, start, end))
        for each in found
        for start, end in split_range(each.start, each.end, rows_per_task)
    ]
