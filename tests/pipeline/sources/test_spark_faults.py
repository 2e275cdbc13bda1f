"""`kill -9` of everything in turn, while messages keep coming; then the books are compared.

One story, for a Spark driver takes long to start: the driver is killed during a batch and between two, an
executor during a batch, and both brokers while queries run. Whatever happened, the table of `polybus` holds
every acknowledged message once, and that of `mqtt` at least once.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polybus.pipeline.sources.mqtt.options import MqttOptions
from polybus.pipeline.sources.mqtt.source import MqttStreamReader
from tests.pipeline.sources.bus import StreamingBus, running_bus
from tests.pipeline.sources.mosquitto import Mosquitto, Publisher, publishing, running_mosquitto
from tests.store.streams.records import read_files

pytestmark = pytest.mark.timeout(1800)
PATIENCE_S = 300.0
CLUSTER = "local-cluster[2,1,600]"


def until(condition: Callable[[], object], driver: "Driver | None" = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if driver is not None:
            driver.tend()
        assert time.monotonic() < deadline, driver.log if driver else "too slow"
        time.sleep(0.005)


class Driver:
    """`tests.pipeline.sources.driver` in a process group of its own."""

    def __init__(self, folder: Path, master: str, queries: list[dict[str, object]]) -> None:
        self._log_path = folder / "driver.log"
        asked = json.dumps({"master": master, "queries": queries})
        self._command = [sys.executable, "-m", "tests.pipeline.sources.driver", asked]
        self._lives = 0
        self._start()

    def _start(self) -> None:
        self._lives += 1
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")[-5000:]

    def tend(self) -> None:
        """Spark gives a Python process ten seconds to start and ends the query if that is not enough, as on a
        busy machine: then whoever runs drivers starts another."""
        if self.process.poll() is not None:
            is_machine_busy = "failed to connect back" in self._log_path.read_text(errors="replace")
            assert is_machine_busy, self.log
            assert self._lives < 4, self.log
            self._start()

    def kill(self) -> None:
        """The driver, its JVM and, in a cluster, its executors; their Python workers see a closed pipe."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def executors(self) -> list[int]:
        """Processes that run tasks, of this driver's group."""
        found = []
        for path in Path("/proc").iterdir():
            if not path.name.isdigit():
                continue
            try:
                is_ours = os.getpgid(int(path.name)) == self.process.pid
                if is_ours and b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found


@contextmanager
def driving(folder: Path, master: str, queries: list[dict[str, object]]) -> Iterator[Driver]:
    driver = Driver(folder, master, queries)
    try:
        yield driver
    finally:
        if driver.process.poll() is None:
            driver.kill()


class Checkpoint:
    """What a query has planned and finished, as its files say."""

    def __init__(self, path: Path) -> None:
        self._path = path / "checkpoint"

    def planned(self) -> int:
        return self._newest("offsets")

    def finished(self) -> int:
        return self._newest("commits")

    def is_in_a_batch(self) -> bool:
        return self.planned() > self.finished()

    def _newest(self, name: str) -> int:
        try:
            return max((int(each) for each in os.listdir(self._path / name) if each.isdigit()), default=-1)
        except FileNotFoundError:
            return -1


class Chatter:
    """Publishes numbers, some every few milliseconds, until it is told to stop."""

    def __init__(self, publisher: Publisher, topic: str) -> None:
        self._publisher = publisher
        self._topic = topic
        self._is_ending = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """A hundred a second: enough for a batch at any time, and packet ids for ten minutes."""
        while not self._is_ending.wait(0.05) and self._count < 60_000:
            numbers = range(self._count, self._count + 5)
            self._publisher.send(
                f"{self._topic}/{self._count // 5 % 7}", [b"%d" % number for number in numbers]
            )
            self._count += 5

    def stop(self) -> list[bytes]:
        """Everything that was published; all of it is acknowledged."""
        self._is_ending.set()
        self._thread.join()
        self._publisher.wait()
        return self._publisher.acknowledged


class Story:
    def __init__(self, folder: Path, bus: StreamingBus, mosquitto: Mosquitto) -> None:
        self._folder = folder
        self._bus = bus
        self._mosquitto = mosquitto
        polybus = {"url": bus.url, "stream": "fleet", "maxRowsPerBatch": "2000", "rowsPerTask": "500"}
        self._mqtt_options = {
            "url": mosquitto.url,
            "clientId": "spark-faults",
            "topics": "fleet/#",
            "spool": str(folder / "spool"),
            "rowsPerTask": "500",
        }
        self.queries: list[dict[str, object]] = [
            {"format": "polybus", "options": polybus, "path": str(folder / "polybus")},
            {"format": "mqtt", "options": self._mqtt_options, "path": str(folder / "mqtt")},
        ]
        self._polybus, self._mqtt = Checkpoint(folder / "polybus"), Checkpoint(folder / "mqtt")

    def begin_session(self) -> None:
        """From here on Mosquitto keeps what is published."""
        reader = MqttStreamReader(MqttOptions.parse(self._mqtt_options))
        reader.initialOffset()
        reader.stop()

    def kill_drivers(self) -> None:
        """One during a batch of each query, and one when both have nothing under way."""
        with driving(self._folder, "local[2]", self.queries) as driver:
            until(lambda: self._polybus.finished() >= 1 and self._mqtt.finished() >= 1, driver)
            until(lambda: self._polybus.is_in_a_batch() and self._mqtt.is_in_a_batch(), driver)
            driver.kill()
        with driving(self._folder, "local[2]", self.queries) as driver:
            goal = self._polybus.planned() + 1, self._mqtt.planned() + 1
            until(lambda: self._polybus.finished() >= goal[0] and self._mqtt.finished() >= goal[1], driver)
            until(lambda: not self._polybus.is_in_a_batch(), driver)
            driver.kill()

    def kill_an_executor(self, driver: Driver) -> None:
        goal = self._polybus.planned() + 1
        until(lambda: self._polybus.finished() >= goal and len(driver.executors()) == 2, driver)
        until(self._polybus.is_in_a_batch, driver)
        victim = driver.executors()[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in driver.executors(), driver)
        self._go_on(driver)

    def kill_bus(self, driver: Driver) -> None:
        until(self._polybus.is_in_a_batch, driver)
        self._bus.stop(signal.SIGKILL)
        self._bus.start()
        self._go_on(driver)

    def stop_mosquitto(self, driver: Driver) -> None:
        """In an orderly way, so that it writes down what it holds; what it forgets when killed is its own loss
        (`test_mqtt_reader` kills it when it holds nothing)."""
        until(self._mqtt.is_in_a_batch, driver)
        self._mosquitto.stop()
        self._mosquitto.start()
        self._go_on(driver)

    def _go_on(self, driver: Driver) -> None:
        goal = self._polybus.planned() + 1, self._mqtt.planned() + 1
        until(lambda: self._polybus.finished() >= goal[0] and self._mqtt.finished() >= goal[1], driver)

    def rows(self, spark: SparkSession, name: str) -> set[bytes]:
        found = spark.read.parquet(str(self._folder / name / "table")).select("payload").collect()
        return {bytes(row.payload) for row in found}


def test_every_message_is_in_its_table(spark: SparkSession, tmp_path: Path) -> None:
    with (
        running_mosquitto(tmp_path / "mosquitto") as mosquitto,
        running_bus(tmp_path / "bus") as bus,
        publishing(bus.port) as to_bus,
        publishing(mosquitto.port) as to_mosquitto,
    ):
        story = Story(tmp_path, bus, mosquitto)
        story.begin_session()
        chatters = [Chatter(to_bus, "fleet"), Chatter(to_mosquitto, "fleet")]
        story.kill_drivers()
        with driving(tmp_path, CLUSTER, story.queries) as driver:
            story.kill_an_executor(driver)
            story.kill_bus(driver)
            story.stop_mosquitto(driver)
            sent_to_bus, sent_to_mosquitto = [chatter.stop() for chatter in chatters]
            until(lambda: story.rows(spark, "polybus") >= set(sent_to_bus), driver)
            until(lambda: story.rows(spark, "mqtt") >= set(sent_to_mosquitto), driver)
    # The books. A publisher that was cut off sends again, so the log may hold a message twice (QoS 1); the
    # table holds what the log holds, once each.
    logged = Counter(
        (partition, record["offset"], record["payload"])
        for partition in (0, 1)
        for record in read_files(bus.stream_folder / str(partition))
    )
    table = spark.read.parquet(str(tmp_path / "polybus" / "table")).select("partition", "offset", "payload")
    assert Counter((row[0], row[1], bytes(row[2])) for row in table.collect()) == logged
    assert {payload for _, _, payload in logged} == set(sent_to_bus)
    assert story.rows(spark, "mqtt") == set(sent_to_mosquitto)
    spooled = spark.read.parquet(str(tmp_path / "mqtt" / "table"))
    assert spooled.count() == spooled.dropDuplicates(["offset"]).count()
