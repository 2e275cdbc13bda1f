"""The `polybus` source beside its ceiling: by HTTP from a broker process, and straight from its folder."""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench.pipeline.bus import NAME, PARTITIONS, serving
from bench.pipeline.ceiling import PAYLOAD_BYTES, batch_times, noop, parquet, prepare, session
from bench.pipeline.measure import Taken, shares_of, side_by_side
from polybus.pipeline.sources.polybus.schema import with_partition
from polybus.pipeline.sources.polybus.source import PolybusSource
from polybus.store.streams.columns import build
from polybus.store.streams.files import Files
from polybus.store.streams.format import SCHEMA
from polybus.store.streams.pieces import Piece
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.stream import Stream

BATCH_ROWS: Final = 16_384
SIZES, QUICK_SIZES = (1_000_000, 3_000_000, 10_000_000), (400_000,)
MICRO_BATCH: Final = 100_000


def run(console: Console, quick: bool) -> None:
    sizes = QUICK_SIZES if quick else SIZES
    runs = 2 if quick else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_stream(folder / "data", max(sizes))
        prepare(with_partition(batch(0), 0), folder / "batch.arrow")
        with serving(folder) as (_, url):
            _without_spark(console, {"url": url}, "HTTP")
        _without_spark(console, {"folder": str(folder / "data")}, "folder")
        spark = session()
        try:
            with serving(folder) as (_, url):
                places = {"url": {"url": url}, "folder": {"folder": str(folder / "data")}}
                shares = ("of ceiling", "by CPU")
                table = Table("polybus, rows/s", "rows", "ceiling", "HTTP", *shares, "folder", *shares)
                for rows in sizes:
                    ends = f'{{"0": {rows // 2}, "1": {rows // 2}}}'
                    ceiling = (
                        spark.read.format("ceiling")
                        .options(rows=str(rows), tasks=str(PARTITIONS), batch=str(folder / "batch.arrow"))
                        .load()
                    )
                    sources = {
                        place: spark.read.format("polybus")
                        .options(**options, stream=NAME, endingOffsets=ends, rowsPerTask=str(rows))
                        .load()
                        for place, options in places.items()
                    }
                    frames = {"ceiling": ceiling, **sources}
                    if rows == min(sizes):
                        for frame in frames.values():
                            noop(frame)  # starts the processes that the others use again
                    to_noop = {key: lambda f=frame: noop(f) for key, frame in frames.items()}
                    to_parquet = {
                        key: lambda f=frame, k=key: parquet(f, folder / f"out-{k}")
                        for key, frame in frames.items()
                    }
                    for label, works in (("to noop", to_noop), ("to Parquet", to_parquet)):
                        taken = side_by_side(works, runs)
                        table.add_row(label, f"{rows:,}", *_cells(taken, rows))
                console.print(table)
                _micro_batches(console, spark, folder, places["url"], max(sizes), 4 if quick else 10)
        finally:
            spark.stop()


def _without_spark(console: Console, place: dict[str, str], name: str) -> None:
    """What the reader itself costs, by this process's CPU: a busy machine does not change it."""
    source = PolybusSource({**place, "stream": NAME})
    reader = source.reader(source.schema())
    rows, began = 0, time.process_time()
    for task in reader.partitions():
        rows += sum(map(len, reader.read(task)))
    console.print(
        f"polybus, {name}: the reader alone {rows / (time.process_time() - began):,.0f} rows per CPU second"
    )


def _cells(taken: dict[str, Taken], rows: int) -> list[str]:
    cells = [f"{rows / taken['ceiling'].wall_s:,.0f}"]
    for place in ("url", "folder"):
        cells += [f"{rows / taken[place].wall_s:,.0f}", *shares_of(taken["ceiling"], taken[place])]
    return cells


def _micro_batches(
    console: Console, spark: SparkSession, folder: Path, place: dict[str, str], rows: int, count: int
) -> None:
    """Of the last records of the stream, so many batches."""
    limit = {"maxRowsPerBatch": str(MICRO_BATCH)}
    start = (rows - MICRO_BATCH * count) // PARTITIONS
    starting = json.dumps({str(partition): start for partition in range(PARTITIONS)})
    source = (
        spark.readStream.format("polybus")
        .options(**place, **limit, stream=NAME, startingOffsets=starting)
        .load()
    )
    ceiling = (
        spark.readStream.format("ceiling")
        .options(
            **limit, rows=str(MICRO_BATCH * count), tasks=str(PARTITIONS), batch=str(folder / "batch.arrow")
        )
        .load()
    )
    times = {"ceiling": batch_times(ceiling, folder / "c"), "polybus": batch_times(source, folder / "s")}
    medians = {name: statistics.median(each[:count]) for name, each in times.items()}
    console.print(
        f"a micro-batch of {MICRO_BATCH:,} messages to Parquet, median of {count - 1}: "
        f"polybus {medians['polybus']:.2f} s, ceiling {medians['ceiling']:.2f} s, "
        f"ratio {medians['polybus'] / medians['ceiling']:.2f}"
    )


def batch(first: int) -> pa.RecordBatch:
    """As the broker's writer makes them: a thousand topics, payloads of 64 bytes."""
    rows = np.arange(first, first + BATCH_ROWS)
    topics = pa.array([f"trucks/{n % 1000}/position" for n in range(BATCH_ROWS)])
    payloads = pa.array([b"%0*d" % (PAYLOAD_BYTES, n) for n in range(BATCH_ROWS)], pa.binary())
    columns = [
        pa.array(rows, pa.int64()),
        pa.array(1_700_000_000_000_000 + rows * 10, pa.timestamp("us", "UTC")),
        topics,
        payloads,
        pa.array(np.ones(BATCH_ROWS, np.int8)),
        pa.array(np.zeros(BATCH_ROWS, bool)),
        pa.array(["truck"] * BATCH_ROWS),
        pa.array([[]] * BATCH_ROWS, SCHEMA.field("user_properties").type),
        pa.array(np.zeros(BATCH_ROWS, bool)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write_stream(data_folder: Path, rows: int) -> None:
    """With the broker's own code, without its sockets."""
    rule = StreamRule(NAME, ("bench/#",), partitions=PARTITIONS)
    place = data_folder / "streams" / NAME
    place.parent.mkdir(parents=True)
    stream = Stream(place, rule, is_synced=False, files=Files())
    template = batch(0)
    times = template.column("time").cast(pa.int64())
    values = zip(*(each.to_pylist() for each in (template["topic"], template["payload"], times)), strict=True)
    pieces = [
        Piece(topic.encode(), 1, payload, 0, len(payload), 0, time, b"truck", qos=1)
        for topic, payload, time in values
    ]
    for partition in stream.partitions:
        while partition.next < rows // PARTITIONS:
            partition.append(build(pieces, partition.next))
            partition.tend(0)
    stream.close()
