"""What Spark takes at most: a source that yields the same Arrow batches from memory, and ways to run both.

Its tasks and batches are as many and as large as those of the source beside it.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from polybus.pipeline.sources.batches import split_range

PAYLOAD_BYTES: Final = 64


class CeilingSource(DataSource):
    """Options: `rows`, `tasks`, `batch` (an Arrow file with one prepared batch), `maxRowsPerBatch`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(prepared(self.options["batch"]).schema)

    def reader(self, schema: StructType) -> "CeilingReader":
        return CeilingReader(self.options)

    def streamReader(self, schema: StructType) -> "CeilingStreamReader":
        return CeilingStreamReader(self.options)


class CeilingReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> list[InputPartition]:
        rows, tasks = int(self._options["rows"]), int(self._options["tasks"])
        return [InputPartition(end - start) for start, end in split_range(0, rows, -(-rows // tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeat(prepared(self._options["batch"]), partition.value)


class CeilingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options  # names in any case

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        return None

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = int(self._options.get("maxRowsPerBatch", "0"))
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        rows = int(self._options["rows"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else rows
        return {"row": min(start["row"] + most, rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        rows, tasks = end["row"] - start["row"], int(self._options["tasks"])
        return [InputPartition(b - a) for a, b in split_range(0, rows, max(-(-rows // tasks), 1))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeat(prepared(self._options["batch"]), partition.value)


def prepare(batch: pa.RecordBatch, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def prepared(path: str) -> pa.RecordBatch:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).get_batch(0)


def repeat(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    while rows > 0:
        yield batch if rows >= len(batch) else batch.slice(0, rows)
        rows -= len(batch)


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("polybus bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CeilingSource)
    return spark


def noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def parquet(rows: DataFrame, target: Path) -> None:
    rows.write.mode("overwrite").parquet(str(target))


def batch_times(rows: DataFrame, folder: Path) -> list[float]:
    """Seconds that each micro-batch took, to Parquet; the first, which starts the processes, left out."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress][1:]
