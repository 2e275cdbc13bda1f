"""Packets a second: dpkt, our reader, the source in Spark, and what Spark takes at most.

The ceiling is a source that yields the very same Arrow batches from memory: what is above it is Spark's.
"""

import os
import random
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import dpkt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from bench.pipeline.measure import Taken, best
from polybus.pipeline.sources.pcap.batches import read_batches
from polybus.pipeline.sources.pcap.fields import COLUMNS
from polybus.pipeline.sources.pcap.source import map_file
from polybus.pipeline.sources.pcap.walk import cuts

FULL, QUICK = 2_000_000, 400_000
DPKT_PACKETS: Final = 100_000
FEW: Final = "time,src,dst,src_port,dst_port,payload_length"
LIKE_DPKT: Final = (
    "time,src_mac,dst_mac,src,dst,protocol,ttl,src_port,dst_port,tcp_seq,tcp_ack,tcp_flags,tcp_window,payload"
)
"""What `read_with_dpkt` takes out of a packet."""
ROWS: Final = 10_000


def run(console: Console, quick: bool) -> None:
    count = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.pcap"
        write_capture(path, count)
        size = path.stat().st_size
        console.print(f"{count:,} packets, {size / 1e6:.0f} MB, {os.cpu_count()} cores")
        table = Table("", "packets/s", "× dpkt", "packets per CPU second", "× dpkt")
        peer = best(lambda: read_with_dpkt(path, DPKT_PACKETS), 3)
        base = Taken(peer.wall_s / DPKT_PACKETS, peer.cpu_s / DPKT_PACKETS)
        table.add_row("dpkt", f"{1 / base.wall_s:,.0f}", "1.0", f"{1 / base.cpu_s:,.0f}", "1.0")

        def add(name: str, work: Callable[[], object], runs: int = 1 if quick else 3) -> None:
            taken = best(work, runs)
            wall, cpu = count / taken.wall_s, count / taken.cpu_s
            cells = [f"{wall:,.0f}", f"{base.wall_s * wall:.1f}", f"{cpu:,.0f}", f"{base.cpu_s * cpu:.1f}"]
            table.add_row(name, *(cells if cpu else [*cells[:2], "?", "?"]))

        everything, few = tuple(COLUMNS), tuple(FEW.split(","))
        add("finding records, as the driver does", lambda: walk(path), 3)
        add("reader to Arrow", lambda: read_with_ours(path, everything), 3)
        add("reader to Arrow, without payload", lambda: read_with_ours(path, everything[:-2]), 3)
        add("reader to Arrow, few columns", lambda: read_with_ours(path, few), 3)
        spark = session()
        try:
            spark.dataSource.register(CeilingSource)
            split = str(max(size // 8, 1 << 20))

            def source(**options: str) -> DataFrame:
                return spark.read.format("pcap").option("splitBytes", split).options(**options).load(str(path))

            def ceiling(columns: str) -> DataFrame:
                reader = spark.read.format("ceiling").option("path", str(path)).option("rows", str(count))
                return reader.option("columns", columns).load()

            for _ in range(2):  # starts the processes that the others use again, and lets Java warm up
                noop(source())
                noop(ceiling(",".join(COLUMNS)))
            add("Spark to noop", lambda: noop(source()))
            add("  its ceiling", lambda: noop(ceiling(",".join(COLUMNS))))
            add("Spark to noop, without payload", lambda: noop(source(payload="false")))
            add("Spark to noop, dpkt's columns", lambda: noop(source(columns=LIKE_DPKT)))
            add("Spark to noop, few columns", lambda: noop(source(columns=FEW)))
            add("  its ceiling", lambda: noop(ceiling(FEW)))
            target = str(Path(folder) / "out")
            add("Spark to Parquet", lambda: source().write.mode("overwrite").parquet(target), 1)
        finally:
            spark.stop()
        console.print(table)


def write_capture(path: Path, count: int) -> None:
    """Traffic between a thousand clients and a broker: half of it acknowledgements, half with a payload."""
    rng = random.Random(1)
    some = []
    for _ in range(5000):
        payload = rng.randbytes(rng.choice([0, 0, 4, 100, 1000]))
        client = f"10.0.{rng.randrange(4)}.{rng.randrange(250)}"
        addresses = bytes(map(int, client.split("."))) + bytes([10, 9, 9, 9])
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 52 + len(payload), 1, 0x4000, 64, 6, 0) + addresses
        tcp = struct.pack(">HHIIHHHH", 40000, 1883, rng.randrange(1 << 32), 0, 0x8018, 501, 0, 0) + bytes(12)
        some.append(bytes(12) + b"\x08\x00" + ip + tcp + payload)
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))
        for index in range(0, count, len(some)):
            parts: list[bytes] = []
            for offset, packet in enumerate(some[: count - index]):
                micros = (index + offset) * 10
                head = struct.pack(
                    "<IIII", 1_700_000_000 + micros // 10**6, micros % 10**6, len(packet), len(packet)
                )
                parts += (head, packet)
            file.write(b"".join(parts))


def read_with_dpkt(path: Path, count: int) -> int:
    """The fields that a row has, as far as dpkt offers them by name."""
    rows: list[tuple[Any, ...]] = []
    with path.open("rb") as file:
        for when, data in dpkt.pcap.Reader(file):
            frame = dpkt.ethernet.Ethernet(data)
            ip = frame.data
            tcp = ip.data
            head = (when, frame.src, frame.dst, ip.src, ip.dst, ip.p, ip.ttl, tcp.sport, tcp.dport)
            rows.append((*head, tcp.seq, tcp.ack, tcp.flags, tcp.win, tcp.data))
            if len(rows) == count:
                break
    return len(rows)


def walk(path: Path) -> None:
    data = map_file(str(path))
    cuts(data.data, data.size, 64 << 20)


def read_with_ours(path: Path, columns: tuple[str, ...]) -> int:
    return sum(batch.num_rows for batch in read_batches(map_file(str(path)), str(path), columns=columns))


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


class CeilingSource(DataSource):
    """Yields one batch of the capture again and again, until there were as many rows as packets."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return ", ".join(f"{name} {COLUMNS[name]}" for name in self.options["columns"].split(","))

    def reader(self, schema: StructType) -> "CeilingReader":
        return CeilingReader(
            self.options["path"], int(self.options["rows"]), tuple(self.options["columns"].split(","))
        )


class CeilingReader(DataSourceReader):
    def __init__(self, path: str, rows: int, columns: tuple[str, ...]) -> None:
        self._path, self._rows, self._columns = path, rows, columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(index) for index in range(8)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = next(read_batches(map_file(self._path), self._path, rows=ROWS, columns=self._columns))
        for _ in range(self._rows // 8 // ROWS):
            yield batch
