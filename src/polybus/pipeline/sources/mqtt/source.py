"""`format("mqtt")`: the classes that Spark calls.

An offset is `{"spool": id, "row": n}`: everything before row `n` of that spool. Rows are numbered by the
spool and not by the broker, for MQTT has no numbers.
"""

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
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
from polybus.pipeline.sources.mqtt.options import MqttOptions
from polybus.pipeline.sources.mqtt.receiver import Receiver
from polybus.pipeline.sources.mqtt.schema import SPARK_SCHEMA, with_offsets
from polybus.pipeline.sources.mqtt.spool import (
    RowsGone,
    SpoolBusy,
    SpoolWriter,
    check_shared,
    read_rows,
)

logger = logging.getLogger("polybus.pipeline.mqtt")

BUSY_TIMEOUT_S: Final = 30.0
"""How long a query waits for its own earlier life to let go of the spool."""


class SpoolRange(InputPartition):
    """Rows of a spool that one task reads."""

    def __init__(self, folder: Path, spool_id: str, start: int, end: int) -> None:
        super().__init__(None)
        self.folder = folder
        self.spool_id = spool_id
        self.start = start
        self.end = end
        self.driver = socket.gethostname()

    def read(self) -> Iterator[pa.RecordBatch]:
        check_shared(self.folder, self.driver, socket.gethostname())
        rows = read_rows(self.folder, self.spool_id, self.start, self.end)
        return joined(with_offsets(batch, first) for first, batch in rows)


class MqttSource(DataSource):
    """Made where the query is written, then pickled; it holds options only."""

    @classmethod
    def name(cls) -> str:
        return "mqtt"

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> "MqttBatchReader":
        return MqttBatchReader(MqttOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "MqttStreamReader":
        return MqttStreamReader(MqttOptions.parse(self.options))


class Intake:
    """A spool being filled."""

    def __init__(self, options: MqttOptions) -> None:
        self.spool = _open_spool(options)
        self.receiver = Receiver(options, self.spool)
        try:
            self.receiver.start()
        except BaseException:
            self.spool.close()
            raise

    def discard(self, before: int) -> None:
        self.spool.discard(before)
        self.receiver.has_room()

    def stop(self) -> None:
        self.receiver.stop()
        self.spool.close()


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark makes several: one in a process of the driver that lives as long as the query, and one more in
    each process that plans or reads. Only the first is ever asked for offsets, so only there a receiver
    starts."""

    def __init__(self, options: MqttOptions) -> None:
        self._options = options
        self._intake: Intake | None = None
        self._target: int | None = None

    def initialOffset(self) -> dict[str, str | int]:
        """Runs on the driver, once in the life of a checkpoint."""
        spool = self._started().spool
        return {"spool": spool.identity.id, "row": spool.first}

    def prepareForTriggerAvailableNow(self) -> None:
        """Runs on the driver, once: takes in what waits at the broker."""
        intake = self._started()
        intake.receiver.wait_quiet(self._options.quiet_s, self._options.batch_timeout_s)
        self._target = intake.spool.next

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, str | int], limit: ReadLimit) -> dict[str, str | int]:
        """Runs on the driver, once per batch."""
        intake = self._started()
        intake.receiver.check()
        spool = intake.spool
        row = self._checked_start(start, spool)
        if spool.is_full:
            # Spark asks for more only when everything before `start` is written and logged. It would tell us
            # by `commit` together with the next batch, and there is no next batch while there is no room.
            intake.discard(row)
        end = spool.next if self._target is None else max(min(spool.next, self._target), row)
        if isinstance(limit, ReadMaxRows):
            end = min(end, row + limit.max_rows)
        return {"spool": spool.identity.id, "row": end}

    def reportLatestOffset(self) -> dict[str, str | int] | None:
        """Runs on the driver; what query progress shows as the latest offset."""
        if self._intake is None:
            return None
        spool, receiver = self._intake.spool, self._intake.receiver
        return {
            "spool": spool.identity.id,
            "row": spool.next,
            "spoolBytes": spool.size_bytes,
            "sessionsLost": receiver.sessions_lost,
        }

    def partitions(self, start: dict[str, str | int], end: dict[str, str | int]) -> list[InputPartition]:
        """Runs on the driver, once per batch; after a restart, first for the batch that was cut short."""
        spool_id, last = str(end["spool"]), int(end["row"])
        # Another spool at the start: `latestOffset` has said what was lost, and this one begins anew.
        first = int(start["row"]) if start["spool"] == spool_id else self._started().spool.first
        if not self._options.fails_on_loss:
            first = min(max(first, self._started().spool.first), last)
        pieces = split_range(first, last, self._options.rows_per_task)
        return [SpoolRange(self._options.spool, spool_id, a, b) for a, b in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on executors, once per task."""
        assert isinstance(partition, SpoolRange)
        return partition.read()

    def commit(self, end: dict[str, str | int]) -> None:
        """Runs on the driver, when the batch after the one that ends here is planned."""
        intake = self._started()
        if end["spool"] == intake.spool.identity.id:
            intake.discard(int(end["row"]))

    def stop(self) -> None:
        """Runs on the driver at the end of the query, if the end is orderly."""
        if self._intake is not None:
            self._intake.stop()
            self._intake = None

    def _started(self) -> Intake:
        if self._intake is None:
            self._intake = Intake(self._options)
        return self._intake

    def _checked_start(self, start: dict[str, str | int], spool: SpoolWriter) -> int:
        """Where to go on. Raises RowsGone if rows are missing and that must not pass."""
        row = int(start["row"])
        if start["spool"] != spool.identity.id:
            self._lost(
                f"the spool in {spool.folder} is not the one that this query read before ({start['spool']}); "
                f"what the former held from row {row} on is lost to this query"
            )
            return spool.first
        if row > spool.next:
            self._lost(
                f"the spool {spool.folder} ends before row {spool.next}, but this query has read to row {row}: "
                "it is an older copy"
            )
            return spool.next
        if row < spool.first:
            self._lost(f"rows {row} to {spool.first - 1} are not in the spool {spool.folder} any more")
            return spool.first
        return row

    def _lost(self, text: str) -> None:
        if self._options.fails_on_loss:
            raise RowsGone(f'{text}; to go on without them, set .option("failOnDataLoss", "false")')
        logger.warning("%s; going on without them", text)


class MqttBatchReader(DataSourceReader):
    """Takes in what waits at the broker, and reads all that is in the spool."""

    def __init__(self, options: MqttOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver, once per action."""
        options = self._options
        intake = Intake(options)
        try:
            intake.receiver.wait_quiet(options.quiet_s, options.batch_timeout_s)
            intake.discard(options.discard_before)
            first, last = max(intake.spool.first, options.discard_before), intake.spool.next
            pieces = split_range(first, last, options.rows_per_task) or [(last, last)]
            return [SpoolRange(options.spool, intake.spool.identity.id, a, b) for a, b in pieces]
        finally:
            intake.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on executors, once per task."""
        assert isinstance(partition, SpoolRange)
        return partition.read()


def _open_spool(options: MqttOptions) -> SpoolWriter:
    """A query that was killed leaves a process behind for a moment: wait for it."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return SpoolWriter(options.spool, limit_bytes=options.spool_limit_bytes)
        except SpoolBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
