"""The classes that Spark calls. An offset is `{fingerprint: bytes read}`; nothing else is remembered.

Reads every line once, in the files that the pattern finds. Executors must see the same paths as the driver.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from polybus.errors import PolybusError, UsageError
from polybus.pipeline.schemas import EVENTS
from polybus.pipeline.sources.events.log_files import Range, cut, find_files, new_ranges, open_range

PIECE_BYTES: Final = 8 << 20
"""What one task reads."""
BATCH_BYTES: Final = 256 << 20
ROWS: Final = 10_000
OPTIONS: Final = ("path", "maxBytesPerBatch")


class EventsSource(DataSource):
    """Options: `path`, a file or a pattern that also finds what was rotated away (`events.jsonl*`), and
    `maxBytesPerBatch`. Made where the query is written, then pickled."""

    @classmethod
    def name(cls) -> str:
        return "polybus_events"

    def schema(self) -> StructType:
        return EVENTS

    def reader(self, schema: StructType) -> "EventsReader":
        return EventsReader(*_options(self.options))

    def streamReader(self, schema: StructType) -> "EventsStreamReader":
        return EventsStreamReader(*_options(self.options))


class LinesPartition(InputPartition):
    def __init__(self, piece: Range, pattern: str) -> None:
        super().__init__(None)
        self.piece = piece
        self.pattern = pattern


class EventsReader(DataSourceReader):
    def __init__(self, pattern: str, limit_bytes: int) -> None:
        self._pattern = pattern

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver, once."""
        ranges, _ = new_ranges(find_files(self._pattern), {}, 1 << 62)
        return _partitions(ranges, self._pattern)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor, once a partition."""
        assert isinstance(partition, LinesPartition)
        return read_lines(partition.piece, partition.pattern)


class EventsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, pattern: str, limit_bytes: int) -> None:
        self._pattern = pattern
        self._limit_bytes = limit_bytes
        self._ends: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Runs on the driver, once in the life of a checkpoint."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        """Runs on the driver, once: what is there now is what is read."""
        self._ends = {file.fingerprint: file.end for file in find_files(self._pattern)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Runs on the driver, once per batch."""
        files = find_files(self._pattern)
        if self._ends is not None:
            ends = self._ends
            files = [
                file._replace(end=min(file.end, ends[file.fingerprint]))
                for file in files
                if file.fingerprint in ends
            ]
        return new_ranges(files, start, self._limit_bytes)[1]

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Runs on the driver, once per batch, and again for a batch that is repeated."""
        paths = {file.fingerprint: file.path for file in find_files(self._pattern)}
        ranges = []
        for fingerprint, until in end.items():
            begin = start.get(fingerprint, 0)
            if until <= begin:
                continue
            if fingerprint not in paths:
                raise _gone(begin, until, self._pattern)
            ranges.append(Range(paths[fingerprint], fingerprint, begin, until))
        return _partitions(ranges, self._pattern)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor, once a partition."""
        assert isinstance(partition, LinesPartition)
        return read_lines(partition.piece, partition.pattern)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing here depends on it."""


def read_lines(piece: Range, pattern: str) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(EVENTS)
    try:
        with open_range(piece, pattern) as file:
            file.seek(piece.start)
            data = file.read(piece.end - piece.start)
    except FileNotFoundError as error:
        raise _gone(piece.start, piece.end, pattern) from error
    position = piece.start
    lines: list[bytes] = []
    positions: list[int] = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        positions.append(position)
        lines.append(line)
        position += len(line) + 1
        if len(lines) == ROWS:
            yield _batch(schema, piece.fingerprint, positions, lines)
            positions, lines = [], []
    if lines:
        yield _batch(schema, piece.fingerprint, positions, lines)


def _gone(start: int, end: int, pattern: str) -> PolybusError:
    return PolybusError(
        f"bytes {start} to {end} of an event file are to be read and the file is gone from {pattern}: put it "
        "back, and keep rotated files until the pipeline has read them"
    )


def _batch(schema: pa.Schema, fingerprint: str, positions: list[int], lines: list[bytes]) -> pa.RecordBatch:
    columns = [
        pa.array([fingerprint] * len(lines), schema.field("file").type),
        pa.array(positions, schema.field("position").type),
        pa.array(lines, schema.field("line").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _partitions(ranges: list[Range], pattern: str) -> list[InputPartition]:
    return [LinesPartition(piece, pattern) for each in ranges for piece in cut(each, PIECE_BYTES)]


def _options(given: Mapping[str, str]) -> tuple[str, int]:
    known = {name.lower(): name for name in OPTIONS}
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise UsageError(f"polybus_events: unknown option {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
    path = options.get("path", "")
    if not path:
        raise UsageError(
            'polybus_events: the option path is missing, for example .option("path", "events.jsonl*")'
        )
    limit = options.get("maxbytesperbatch", str(BATCH_BYTES))
    if not limit.isdecimal() or int(limit) < 1:
        raise UsageError(
            f"polybus_events: the option maxBytesPerBatch is {limit!r}; it must be a number of at least 1"
        )
    return os.path.abspath(path.removeprefix("file://")), int(limit)
