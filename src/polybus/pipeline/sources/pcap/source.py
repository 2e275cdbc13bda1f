"""The data source `pcap` for Spark (PL-02)."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from polybus.pipeline.sources.pcap.batches import read_batches
from polybus.pipeline.sources.pcap.fields import COLUMNS
from polybus.pipeline.sources.pcap.formats import NotACapture
from polybus.pipeline.sources.pcap.options import Options, find_files, read_options
from polybus.pipeline.sources.pcap.walk import Cut, cuts


@dataclass
class Range(InputPartition):
    """A part of a file, or all of it where there is no cut."""

    file: str
    cut: Cut | None = None
    stop: int | None = None


class PcapDataSource(DataSource):
    """Packets of pcap and pcapng files, one a row.

    Options: `path` (a file, pattern or folder, several with commas), `payload` (true), `columns` (all),
    `rowsPerBatch` (10000), `splitBytes` (64m: larger files are read in parts).
    """

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> str:
        """Runs on the driver, once a query. Raises UsageError for options that cannot be used."""
        names = read_options(self.options).columns
        return ", ".join(f"{name} {COLUMNS[name]}" for name in names)

    def reader(self, schema: StructType) -> "PcapReader":
        """Runs on the driver, once a query."""
        return PcapReader(read_options(self.options))


class PcapReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[Range]:
        """Runs on the driver, once a query. Looks for the files, and walks through large ones."""
        ranges: list[Range] = []
        for file in find_files(self._options.paths):
            ranges += _ranges(file, self._options.split_bytes)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor, once a partition."""
        assert isinstance(partition, Range)
        yield from read_batches(
            map_file(partition.file),
            partition.file,
            cut=partition.cut,
            stop=partition.stop,
            rows=self._options.rows_per_batch,
            columns=self._options.columns,
        )


def map_file(path: str) -> npt.NDArray[np.uint8]:
    """A file as an array, read as it is touched. A capture that still grows ends where it ended now."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return np.zeros(0, np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _ranges(file: str, split_bytes: int) -> list[Range]:
    if os.path.getsize(file) <= split_bytes:
        return [Range(file)]
    data = map_file(file)
    try:
        return [Range(file, cut, stop) for cut, stop in cuts(data.data, data.size, split_bytes)]
    except NotACapture:
        return [Range(file)]  # an executor says why, in a row
