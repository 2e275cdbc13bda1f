"""The sources in a real Spark session: found by name, read as a batch and as a stream, went on with."""

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from polybus.pipeline.sources.mqtt.schema import SPARK_SCHEMA as MQTT_SCHEMA
from polybus.pipeline.sources.polybus.schema import SPARK_SCHEMA as POLYBUS_SCHEMA
from tests.client.brokers import unique
from tests.pipeline.sources.log_server import serving_log
from tests.pipeline.sources.mosquitto import publishing, running_mosquitto

pytestmark = pytest.mark.timeout(600)  # seconds on an idle machine, minutes on a busy one


def drain(rows: DataFrame, folder: Path, table: str = "table") -> list[dict[str, object]]:
    """Read all that is there into a Parquet table; returns the reports of its batches."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / table))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [dict(each) for each in query.recentProgress]


def payloads(spark: SparkSession, path: Path) -> list[bytes]:
    return sorted(bytes(row.payload) for row in spark.read.parquet(str(path)).select("payload").collect())


def test_a_stream_of_polybus(spark: SparkSession, tmp_path: Path) -> None:
    with serving_log(tmp_path / "data", partitions=2, password="open sesame") as log:
        for first in range(0, 1000, 50):
            log.write([b"%04d" % n for n in range(first, first + 50)], partition=first // 50 % 2)
        log.write([b"", b"\xff\x00", b"x" * 10_000_000], partition=1, time_us=4_000_000_000_000_000)
        expected = sorted([b"%04d" % n for n in range(1000)] + [b"", b"\xff\x00", b"x" * 10_000_000])
        login = {**log.options, "user": "reader", "password": "open sesame"}

        batch = spark.read.format("polybus").options(**login).load()
        assert batch.schema == POLYBUS_SCHEMA
        with redirect_stdout(io.StringIO()) as plan:
            batch.explain(True)
        assert "sesame" not in plan.getvalue()
        assert sorted(bytes(row.payload) for row in batch.select("payload").collect()) == expected

        rows = spark.readStream.format("polybus").options(**login, maxRowsPerBatch="300").load()
        reports = drain(rows, tmp_path)
        assert [each["numInputRows"] for each in reports] == [300, 300, 300, 103]
        assert "sesame" not in str(reports)
        assert payloads(spark, tmp_path / "table") == expected

        log.write([b"later"])
        assert [each["numInputRows"] for each in drain(rows, tmp_path)] == [1]
        assert payloads(spark, tmp_path / "table") == sorted([*expected, b"later"])
        in_checkpoint = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
        assert not any(b"sesame" in path.read_bytes() for path in in_checkpoint)

        # A checkpoint that is lost: all of it is read again, under the same offsets, so a key removes it.
        shutil.rmtree(tmp_path / "checkpoint")
        drain(rows, tmp_path, "second")
        both = spark.read.parquet(str(tmp_path / "table"), str(tmp_path / "second"))
        assert both.count() == 2 * 1004
        assert both.dropDuplicates(["partition", "offset"]).count() == 1004


def test_a_loss_fails_the_query_with_words(spark: SparkSession, tmp_path: Path) -> None:
    with serving_log(tmp_path / "data") as log:
        rows = spark.readStream.format("polybus").options(**log.options).load()
        log.write([b"%050d" % n for n in range(100)])
        drain(rows, tmp_path)
        for first in range(100, 1000, 100):
            log.write([b"%050d" % n for n in range(first, first + 100)])
        while (first := log.drop_oldest()) < 300:
            pass
        with pytest.raises(StreamingQueryException, match=f"offsets 100 to {first - 1} of partition 0"):
            drain(rows, tmp_path)
        forgiving = spark.readStream.format("polybus").options(**log.options, failOnDataLoss="false").load()
        (report,) = drain(forgiving, tmp_path)
        assert f'"skipped": {first - 100}' in str(report["sources"])
        assert report["numInputRows"] == 1000 - first


def test_a_wrong_option_fails_with_words(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"unknown option strem.*there are .*stream"):
        spark.read.format("polybus").options(strem="x").load().count()


def test_a_broker_of_mqtt(spark: SparkSession, tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = {
            "url": mosquitto.url,
            "clientId": unique("spark"),
            "topics": "trucks/+/position",
            "spool": str(tmp_path / "spool"),
            "quiet": "0.5",
        }
        rows = spark.readStream.format("mqtt").options(**options, maxRowsPerBatch="400").load()
        assert rows.schema == MQTT_SCHEMA
        drain(rows, tmp_path)  # its session is there now, and keeps what is published
        sent = [b"%04d" % n for n in range(1000)] + [b"", b"\xff\x00", b"x" * 10_000_000]
        publisher.send("trucks/1/position", sent)
        publisher.wait()
        reports = drain(rows, tmp_path)
        assert [each["numInputRows"] for each in reports] == [400, 400, 203]
        assert payloads(spark, tmp_path / "table") == sorted(sent)
        publisher.send("trucks/1/position", [b"later"])
        publisher.wait()
        drain(rows, tmp_path)
        assert payloads(spark, tmp_path / "table") == sorted([*sent, b"later"])
        # A checkpoint that is lost: what the spool still holds is read again, under the same numbers.
        shutil.rmtree(tmp_path / "checkpoint")
        drain(rows, tmp_path, "second")
        second = spark.read.parquet(str(tmp_path / "second"))
        assert b"later" in payloads(spark, tmp_path / "second")
        both = spark.read.parquet(str(tmp_path / "table")).unionByName(second)
        assert both.dropDuplicates(["offset"]).count() == 1004
        batch = spark.read.format("mqtt").options(**options).load()
        assert b"later" in [bytes(row.payload) for row in batch.collect()]
