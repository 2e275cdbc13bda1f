"""From the publish of a message to its row in the table `messages`: a bus, a publisher, the pipeline."""

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Final, Self

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import polybus
from bench.pipeline.bus import NAME, serving
from polybus.pipeline.jobs.run import run_continuously
from polybus.pipeline.session import build_session
from polybus.pipeline.settings import Messages, Settings

PER_S: Final = 200
SECONDS, QUICK_SECONDS = 40, 15
WARM_UP_BATCHES: Final = 4
TRIGGERS_S: Final = (1.0, 5.0)


class Task:
    """`step` again and again in a thread, until the end."""

    def __init__(self) -> None:
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._is_ending.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            self.step()


class Watcher(Task):
    """Notes when each batch was there to be read."""

    def __init__(self, table: Path) -> None:
        super().__init__()
        self._table = table
        self.seen: dict[str, float] = {}

    def step(self) -> None:
        now = time.time()
        for folder in self._table.glob("batch=*"):
            self.seen.setdefault(folder.name, now)
        time.sleep(0.005)


class Publisher(Task):
    """The time in each payload; some every tenth of a second."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.sent = 0

    def _run(self) -> None:
        with polybus.connect_blocking(self._url) as self._bus:
            super()._run()

    def step(self) -> None:
        for number in range(PER_S // 10):
            self._bus.publish(f"bench/{number}", repr(time.time()), qos=1)
            self.sent += 1
        time.sleep(0.1)


def run(console: Console, quick: bool) -> None:
    table = Table(f"from publish to bronze, {PER_S} messages/s, QoS 1", "messages", "p50", "p99", "most")
    spark = build_session("polybus bench", "local[2]")
    try:
        for trigger_s in TRIGGERS_S:
            delays = measure(spark, trigger_s, QUICK_SECONDS if quick else SECONDS)
            cells = [statistics.median(delays), delays[len(delays) * 99 // 100], delays[-1]]
            name = f"a batch every {trigger_s:g} s"
            table.add_row(name, f"{len(delays):,}", *[f"{each:.2f} s" for each in cells])
    finally:
        spark.stop()
    console.print(table)


def measure(spark: SparkSession, trigger_s: float, seconds: int) -> list[float]:
    """Seconds, sorted, of what was published after the first batches, which warm Java up."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as (mqtt_url, http_url):
        settings = Settings(
            folder=f"{name}/lake",
            messages=Messages("polybus", {"url": http_url, "stream": NAME}),
            trigger_s=trigger_s,
            refresh_s=1e6,
            merge_batches=0,
        )
        table = Path(name, "lake/bronze/messages")
        with Watcher(table) as watcher, Publisher(mqtt_url) as publisher:
            begins: list[float] = []

            def is_wanted() -> bool:
                if not begins:
                    begins.extend([time.time()] if len(watcher.seen) >= WARM_UP_BATCHES else [])
                elif time.time() > begins[0] + seconds:
                    publisher.end()
                    return rows_in(table) < publisher.sent
                return True

            run_continuously(spark, settings, is_wanted, refresh_at_end=False)
        delays = []
        for batch, seen in watcher.seen.items():
            for file in (table / batch).glob("*.parquet"):
                times = [float(each) for each in pq.read_table(file, columns=["payload"])[0].to_pylist()]
                delays += [seen - each for each in times if each > begins[0]]
        return sorted(delays)


def rows_in(table: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in table.glob("batch=*/*.parquet"))
