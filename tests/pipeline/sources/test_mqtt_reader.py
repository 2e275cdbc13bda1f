"""The reader of `format("mqtt")` without Spark: its calls as Spark makes them, against real brokers."""

import json
import logging
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from polybus.pipeline.sources.mqtt import receiver
from polybus.pipeline.sources.mqtt import source as mqtt_source
from polybus.pipeline.sources.mqtt.receiver import ReceiverFailed
from polybus.pipeline.sources.mqtt.schema import ARROW_SCHEMA
from polybus.pipeline.sources.mqtt.source import MqttSource, MqttStreamReader
from polybus.pipeline.sources.mqtt.spool import RowsGone, SpoolBusy, SpoolWriter
from polybus.pipeline.sources.options import OptionError
from tests.client.brokers import PASSWORD, USER, Broker, running_broker, unique
from tests.client.certificates import Certificates
from tests.e2e.processes import eventually
from tests.pipeline.sources.mosquitto import publishing, running_mosquitto

Row = dict[str, object]


def options_of(url: str, spool: Path, topics: str, **more: object) -> dict[str, str]:
    given = {
        "url": url,
        "spool": str(spool),
        "topics": topics,
        "clientId": unique("spark"),
        "connectTimeout": "20",
    }
    return {**given, **{name: str(value) for name, value in more.items()}}


@contextmanager
def reading(options: dict[str, str]) -> Iterator[MqttStreamReader]:
    source = MqttSource(options)
    reader = pickle.loads(pickle.dumps(source)).streamReader(source.schema())
    try:
        yield reader
    finally:
        reader.stop()


def rows(reader: MqttStreamReader, start: dict[str, str | int], end: dict[str, str | int]) -> list[Row]:
    """As Spark reads a batch, each task from a pickled partition and a reader of its own."""
    found: list[Row] = []
    for partition in reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
        task = MqttStreamReader(reader._options)
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.equals(ARROW_SCHEMA)
            found += batch.to_pylist()
    return found


def payloads(found: list[Row]) -> list[object]:
    return [row["payload"] for row in found]


def until_row(reader: MqttStreamReader, start: dict[str, str | int], row: int) -> dict[str, str | int]:
    eventually(lambda: int(reader.latestOffset(start, ReadAllAvailable())["row"]) >= row)
    return reader.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_become_rows(broker: Broker, tmp_path: Path, version: str, qos: int) -> None:
    topic = unique("trucks/")
    options = options_of(
        broker.url(), tmp_path, f"{topic}/+/position,{topic}/alarms/#", version=version, qos=qos
    )
    expected = [b"", b"\xff\x00", b"%d" % qos, b"x" * 300_000]
    with reading(options) as reader, publishing(broker.ports["tcp"]) as publisher:
        start = reader.initialOffset()
        publisher.send(f"{topic}/7/position", expected[:3], qos)
        publisher.wait()
        publisher.send(f"{topic}/alarms/a/b", expected[3:], qos)
        publisher.send(f"{topic}/7/speed", [b"not wanted"], qos)
        found = rows(reader, start, until_row(reader, start, 4))
    assert payloads(found) == expected
    assert [row["offset"] for row in found] == [0, 1, 2, 3]
    assert {row["qos"] for row in found} == {qos}
    assert [row["topic"] for row in found] == [f"{topic}/7/position"] * 3 + [f"{topic}/alarms/a/b"]


def test_what_mqtt_5_adds(broker: Broker, tmp_path: Path) -> None:
    topic = unique("t")
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType, properties.ResponseTopic, properties.CorrelationData = (
        "text/plain",
        "answers",
        b"\x01",
    )
    properties.UserProperty = [("a", "1"), ("a", "2")]
    options = options_of(broker.url(), tmp_path, topic)
    with reading(options) as reader, publishing(broker.ports["tcp"]) as publisher:
        start = reader.initialOffset()
        publisher.send(topic, [b"x"], retain=True, properties=properties)
        (row,) = rows(reader, start, until_row(reader, start, 1))
    assert (row["content_type"], row["response_topic"], row["correlation_data"]) == (
        "text/plain",
        "answers",
        b"\x01",
    )
    assert row["user_properties"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    assert row["retain"] is True


def test_a_shared_subscription_shares(broker: Broker, tmp_path: Path) -> None:
    topic = unique("jobs")
    sent = [b"%d" % n for n in range(60)]
    with ExitStack() as stack:
        readers = [
            stack.enter_context(reading(options_of(broker.url(), tmp_path / name, f"$share/spark/{topic}/#")))
            for name in ("one", "other")
        ]
        starts = [reader.initialOffset() for reader in readers]
        publisher = stack.enter_context(publishing(broker.ports["tcp"]))
        publisher.send(f"{topic}/x", sent)

        def found() -> list[list[object]]:
            ends = [r.latestOffset(s, ReadAllAvailable()) for r, s in zip(readers, starts, strict=True)]
            return [payloads(rows(r, s, e)) for r, s, e in zip(readers, starts, ends, strict=True)]

        eventually(lambda: sum(map(len, found())) >= len(sent))
        one, other = found()
    assert sorted([*one, *other]) == sorted(sent)  # type: ignore[type-var]
    assert one
    assert other


def test_tls_and_a_password(guarded_broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = unique("t")
    authority = guarded_broker.certificates.cert("ca")
    tls = {"caFile": authority, "user": USER}
    with caplog.at_level(logging.DEBUG):
        options = options_of(guarded_broker.url("tls"), tmp_path / "a", topic, **tls, password=PASSWORD)
        with (
            reading(options) as reader,
            publishing(guarded_broker.ports["tcp"], user=USER, password=PASSWORD) as publisher,
        ):
            start = reader.initialOffset()
            publisher.send(topic, [b"secret"])
            end = until_row(reader, start, 1)
            assert payloads(rows(reader, start, end)) == [b"secret"]
            assert PASSWORD not in repr(reader._options)
        wrong = options_of(guarded_broker.url("tls"), tmp_path / "b", topic, **tls, password="wr0ng")
        with (
            reading(wrong) as reader,
            pytest.raises(ReceiverFailed, match=r"user name or password|not authorized"),
        ):
            reader.initialOffset()
    assert "wr0ng" not in caplog.text


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    options = options_of("mqtt://127.0.0.1:1", tmp_path, "t", connectTimeout="0.3")
    with reading(options) as reader, pytest.raises(ReceiverFailed, match=r"127\.0\.0\.1:1.*refused"):
        reader.initialOffset()


def test_a_huge_message(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        huge = b"\xf0" * 10_000_000
        with reading(options_of(mosquitto.url, tmp_path / "spool", "t")) as reader:
            start = reader.initialOffset()
            publisher.send("t", [b"before", huge, b"after"])
            assert payloads(rows(reader, start, until_row(reader, start, 3))) == [b"before", huge, b"after"]


# --- at least once --------------------------------------------------------------------------------


def test_messages_wait_for_a_reader_that_is_away(tmp_path: Path) -> None:
    sent = [b"%d" % n for n in range(3000)]
    options = options_of("", tmp_path / "spool", "t/#")
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options["url"] = mosquitto.url
        with reading(options) as reader:
            start = reader.initialOffset()
        publisher.send("t/a", sent)
        publisher.wait()
        with reading(options) as reader:
            reader.prepareForTriggerAvailableNow()
            publisher.send("t/a", [b"later"])
            publisher.wait()
            end = reader.latestOffset(start, ReadAllAvailable())
            assert payloads(rows(reader, start, end)) == sent
            assert reader.latestOffset(end, ReadAllAvailable()) == end


READ_FOR_EVER = """
import sys, time
from pyspark.sql.streaming.datasource import ReadAllAvailable
from polybus.pipeline.sources.mqtt.options import MqttOptions
from polybus.pipeline.sources.mqtt.source import MqttStreamReader
import json
reader = MqttStreamReader(MqttOptions.parse(json.loads(sys.argv[1])))
offset = reader.initialOffset()
while True:
    offset = reader.latestOffset(offset, ReadAllAvailable())
    print(offset["row"], flush=True)
    time.sleep(0.002)
"""


def test_a_reader_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """Killed while messages stream in: what was acknowledged is in the spool, the rest comes again."""
    sent = [b"%d" % n for n in range(6000)]
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t")
        with reading(options) as reader:
            start = reader.initialOffset()
        publisher.send("t", sent)
        for part in (1, 2, 3):
            victim = subprocess.Popen(
                [sys.executable, "-c", READ_FOR_EVER, json.dumps(options)], stdout=subprocess.PIPE, text=True
            )
            assert victim.stdout is not None
            while int(victim.stdout.readline()) < part * 1000:
                pass
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            victim.stdout.close()
        publisher.wait()
        with reading(options) as reader:
            reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(start, ReadAllAvailable())
            found = rows(reader, start, end)
    assert [row["offset"] for row in found] == list(range(len(found)))
    assert set(payloads(found)) == set(sent)
    assert (
        max(Counter(payloads(found)).values()) <= 4
    )  # again comes only what was under way at one of three kills


def test_a_broker_that_is_stopped_and_one_that_is_killed(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t")
        with reading(options) as reader:
            start = reader.initialOffset()
            publisher.send("t", [b"%d" % n for n in range(1000)])
            mosquitto.stop()
            mosquitto.start()
            publisher.wait()
            seen: set[object] = set()

            def has_all(count: int) -> bool:
                end = reader.latestOffset(start, ReadAllAvailable())
                seen.update(payloads(rows(reader, start, end)))
                return len(seen) >= count

            eventually(lambda: has_all(1000))
            # All is in the spool. Killed, it has forgotten the session, and is told again what is wanted.
            mosquitto.stop(signal.SIGKILL)
            mosquitto.start()
            eventually(lambda: _is_connected(reader))
            publisher.send("t", [b"%d" % n for n in range(1000, 1500)])
            publisher.wait()
            eventually(lambda: has_all(1500))
    assert seen == {b"%d" % n for n in range(1500)}


def _is_connected(reader: MqttStreamReader) -> bool:
    assert reader._intake is not None
    driver = reader._intake.receiver._driver
    return driver is not None and driver.is_connected


# --- the spool and Spark --------------------------------------------------------------------------


def test_a_full_spool_stops_acknowledging_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more than fits goes through, and Spark's `commit` never comes: asking for more is enough. The last
    group before it was full may be as large as what waits in memory."""
    monkeypatch.setattr(receiver, "MAX_WAITING_BYTES", 200_000)
    sent = [b"%01000d" % n for n in range(1500)]
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t", spoolLimit="200k", receiveMaximum=50)
        with reading(options) as reader:
            offset = reader.initialOffset()
            publisher.send("t", sent)
            publisher.wait()
            found: list[object] = []
            most = 0

            def take() -> bool:
                nonlocal offset, most
                assert reader._intake is not None
                most = max(most, reader._intake.spool.size_bytes)
                end = reader.latestOffset(offset, ReadAllAvailable())
                found.extend(payloads(rows(reader, offset, end)))
                offset = end
                return len(found) >= len(sent)

            eventually(lambda: reader._intake is not None and reader._intake.spool.is_full)
            eventually(take)
    assert found == sent
    assert most < 1_000_000


def test_a_stop_during_a_write_acknowledges_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the spool does not come again."""
    sent = [b"%d" % n for n in range(20)]
    append = SpoolWriter.append
    writing = threading.Event()
    written: list[int] = []
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t")
        with reading(options) as reader:
            start = reader.initialOffset()
        publisher.send("t", sent)
        publisher.wait()
        with reading(options) as reader:

            def append_when_it_ends(spool: SpoolWriter, batches: Iterable[pa.RecordBatch]) -> None:
                writing.set()
                eventually(is_ending)
                append(spool, batches)
                written.append(spool.next)

            def is_ending() -> bool:
                ending = reader._intake and reader._intake.receiver._ending
                return ending is not None and ending.done()

            monkeypatch.setattr(SpoolWriter, "append", append_when_it_ends)
            reader._started()
            assert writing.wait(60)
        assert len(written) == 1
        monkeypatch.undo()
        with reading(options) as reader:
            reader.prepareForTriggerAvailableNow()
            found = rows(reader, start, reader.latestOffset(start, ReadAllAvailable()))
    assert payloads(found) == sent


def test_commit_deletes_and_a_late_one_does_no_harm(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t", spoolLimit="400k")
        with reading(options) as reader:
            start = reader.initialOffset()
            publisher.send("t", [b"%01000d" % n for n in range(100)])
            first = until_row(reader, start, 100)
            publisher.send("t", [b"%01000d" % n for n in range(100, 200)])
            second = until_row(reader, first, 200)
            reader.commit(first)
            assert len(rows(reader, first, second)) == 100
            assert reader._intake is not None
            assert 0 < reader._intake.spool.first <= 100
        # Stopped without another commit: the last batch can still be read again.
        with reading(options) as reader:
            assert len(rows(reader, first, second)) == 100
            reader.commit(second)
            assert reader.latestOffset(second, ReadMaxRows(5)) == second


def test_another_spool_in_the_same_place(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t")
        with reading(options) as reader:
            reader.initialOffset()
            publisher.send("t", [b"new"])
            former: dict[str, str | int] = {"spool": "former", "row": 70}
            eventually(lambda: (reader.reportLatestOffset() or {}).get("row") == 1)
            with pytest.raises(RowsGone, match=r"from row 70 on.*failOnDataLoss"):
                reader.latestOffset(former, ReadAllAvailable())
        with reading({**options, "failOnDataLoss": "false"}) as reader:
            end = reader.latestOffset(former, ReadAllAvailable())
            assert payloads(rows(reader, former, end)) == [b"new"]
        with reading(options) as reader:
            future = {**end, "row": 99}
            with pytest.raises(RowsGone, match="older copy"):
                reader.latestOffset(future, ReadAllAvailable())


def test_one_query_for_a_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_source, "BUSY_TIMEOUT_S", 0.2)
    with running_mosquitto(tmp_path / "broker") as mosquitto:
        options = options_of(mosquitto.url, tmp_path / "spool", "t")
        with reading(options) as one, reading(options) as other:
            one.initialOffset()
            with pytest.raises(SpoolBusy, match="another query"):
                other.initialOffset()


def test_a_client_id_that_somebody_else_uses_ends_the_query(tmp_path: Path, certificates: Certificates) -> None:
    """Where the broker says so; Mosquitto 2.0 just closes, and the two go on taking turns."""
    with running_broker("polybus", tmp_path, certificates) as broker:
        options = options_of(broker.url(), tmp_path / "one", "t")
        with reading(options) as one, reading({**options, "spool": str(tmp_path / "other")}) as other:
            start = one.initialOffset()
            other.initialOffset()

            def is_told() -> bool:
                try:
                    one.latestOffset(start, ReadAllAvailable())
                except ReceiverFailed as error:
                    return "session taken over" in str(error)
                return False

            eventually(is_told)


def test_topics_that_are_not_wanted_any_more(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "a,b")
        with reading(options) as reader:
            start = reader.initialOffset()
        with reading({**options, "topics": "b,c"}) as reader:
            reader.initialOffset()
            publisher.send("a", [b"a"])
            publisher.wait()
            publisher.send("c", [b"c"])
            assert payloads(rows(reader, start, until_row(reader, start, 1))) == [b"c"]


def test_retained_messages_come_once(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        publisher.send("t", [b"kept"], retain=True)
        publisher.wait()
        options = options_of(mosquitto.url, tmp_path / "spool", "t")
        with reading(options) as reader:
            start = reader.initialOffset()
            until_row(reader, start, 1)
        with reading(options) as reader:
            reader.initialOffset()
            publisher.send("t", [b"new"])
            assert payloads(rows(reader, start, until_row(reader, start, 2))) == [b"kept", b"new"]


def test_what_waits_as_a_batch(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path / "broker") as mosquitto, publishing(mosquitto.port) as publisher:
        options = options_of(mosquitto.url, tmp_path / "spool", "t", quiet="0.5")

        def read(**more: str) -> list[Row]:
            source = MqttSource({**options, **more})
            reader = source.reader(source.schema())
            return [
                row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()
            ]

        assert read() == []
        publisher.send("t", [b"%d" % n for n in range(500)])
        publisher.wait()
        assert payloads(read()) == [b"%d" % n for n in range(500)]
        publisher.send("t", [b"500"])
        publisher.wait()
        assert payloads(read(discardBefore="499")) == [b"499", b"500"]


# --- what cannot be right -------------------------------------------------------------------------

RIGHT = {"url": "mqtt://h", "clientId": "c", "topics": "t", "spool": "/tmp/s"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": ""}, "url is missing"),
        ({"clientId": ""}, "clientId is missing"),
        ({"topics": " , "}, "names no topic filter"),
        ({"topics": "a/#/b"}, "topics"),
        ({"spool": ""}, "spool is missing"),
        ({"url": "http://h"}, "mqtt://"),
        ({"url": "mqtt://u:p@h"}, "options user and password"),
        ({"qos": "0"}, "from 1 to 2"),
        ({"version": "4"}, "5, 5.0, 3.1.1"),
        ({"password": "x"}, "needs the option user"),
        ({"caFile": "/none"}, "TLS settings need mqtts://"),
        ({"url": "mqtts://h", "caFile": "/none"}, "/none"),
        ({"url": "mqtts://h", "keyFile": "/none"}, "certificate"),
        ({"spoolLimit": "1k"}, "at least 65536 bytes"),
        ({"spoolLimit": "big"}, "512m"),
        ({"receiveMaximum": "70000"}, "65535"),
        ({"version": "3.1.1", "retained": "never"}, "needs version 5"),
        ({"topic": "x"}, "unknown option topic"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    source = MqttSource({**RIGHT, **given})
    with pytest.raises(OptionError, match="mqtt: ") as caught:
        source.streamReader(source.schema())
    assert said in str(caught.value)
