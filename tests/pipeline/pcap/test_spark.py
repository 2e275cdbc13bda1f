"""The source and the tables in a real Spark session, from captures of our own making, where truth is known."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from polybus.errors import UsageError
from polybus.pipeline.sources.pcap.batches import SCHEMA, read_batches
from polybus.pipeline.sources.pcap.options import read_options
from polybus.pipeline.sources.pcap.source import PcapReader, map_file
from polybus.pipeline.transforms.frames import books, conversations, frames, gaps, rejected, streams
from polybus.pipeline.transforms.overhead import RUNS, header_bytes, overhead, overhead_by_run
from polybus.pipeline.transforms.traffic import topic_pattern, traffic_by_type
from polybus.wire.mqtt import codec as mqtt
from polybus.wire.mqtt import packets as m
from tests.pipeline.pcap.captures import (
    START_NS,
    Packet,
    Talk,
    enhanced,
    ethernet,
    interface,
    ipv4,
    pcap,
    record,
    section,
    tcp,
    udp,
)
from tests.pipeline.pcap.test_frames import CONTENT, HEADER, PUBLISH, amqp, method, sn

# Spark starts processes by the dozen: on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(600)

PORT, SN_PORT, AMQP_PORT = 18830, 18840, 56720
TOPIC = "scania/truck/test/system/sensor"


def collect(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def file_name(row: dict[str, Any]) -> str:
    return str(row["file"]).rsplit("/", 1)[1]


# --- the source ---


def test_the_source_reads_files_in_parts_and_names_what_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    packets = [
        Packet(ethernet(ipv4(udp(b"x" * (i % 90), sport=i % 60000), 17)), START_NS + i * 1_000_000)
        for i in range(3000)
    ]
    (tmp_path / "a.pcap").write_bytes(pcap(packets, exponent=9))
    (tmp_path / "b.pcapng").write_bytes(
        section(">") + interface(order=">") + b"".join(enhanced(p, order=">") for p in packets)
    )
    damaged = pcap(packets[:100]) + b"\xff" * 500 + b"".join(record(p) for p in packets[100:]) + b"\0\0\0"
    (tmp_path / "c.pcap").write_bytes(damaged)
    (tmp_path / "d.pcap").write_bytes(b"no capture at all")
    found = spark.read.format("pcap").option("splitBytes", "150k").load(str(tmp_path))
    assert to_arrow_schema(found.schema, timezone="UTC").equals(SCHEMA)
    rows = collect(
        found.select(
            "file", "number", "time_ns", "src_port", "payload", "error", F.spark_partition_id().alias("part")
        )
    )
    expected = [
        (row["file"], row["number"], row["time_ns"], row["src_port"], row["payload"], row["error"])
        for path in sorted(tmp_path.iterdir())
        for batch in read_batches(map_file(str(path)), str(path))
        for row in batch.to_pylist()
    ]
    assert [tuple(row.values())[:6] for row in rows] == expected
    assert len({row["part"] for row in rows}) >= 7
    errors = [row["error"] for row in rows if row["number"] is None]
    assert len(errors) == 3
    assert [row["number"] for row in rows if row["file"].endswith("c.pcap") and row["number"]] == list(
        range(1, 3001)
    )


def test_options_reach_the_source_and_bad_ones_are_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Packet(ethernet(ipv4(udp(b"x"), 17)))]))
    assert "payload" not in spark.read.format("pcap").option("payload", "false").load(str(path)).columns
    with pytest.raises(AnalysisException, match="there is no option 'paylod'; there are path, payload"):
        spark.read.format("pcap").option("paylod", "false").load(str(path))
    with pytest.raises(UsageError, match="names no file"):
        PcapReader(read_options({"path": str(tmp_path / "*.cap")})).partitions()


# --- tables ---


def lossy_mqtt(count: int, size: int, seed: int) -> tuple[list[Packet], int]:
    """A QoS 1 publisher some of whose packets are sent again; and how many were."""
    rng = random.Random(seed)
    talk = Talk(port=PORT)
    talk.open()
    talk.add(True, mqtt.encode(m.Connect("me", m.V311), m.V311))
    talk.add(False, mqtt.encode(m.ConnAck(), m.V311))
    again = 0
    for number in range(1, count + 1):
        at = talk.place(True)
        data = mqtt.encode(m.Publish(TOPIC, b"a" * size, qos=1, packet_id=number), m.V311)
        talk.add(True, data)
        if rng.random() < 0.3:
            talk.add(True, data, seq=at)
            again += 1
        talk.add(False, mqtt.encode(m.PubAck(number), m.V311))
    talk.close()
    return talk.packets, again


def sn_run(count: int, size: int) -> list[Packet]:
    """MQTT-SN with long messages in IP fragments; the first is sent twice."""
    packets: list[Packet] = []

    def send(payload: bytes, to_server: bool, ident: int) -> None:
        ports = {"sport": 40001, "dport": SN_PORT} if to_server else {"sport": SN_PORT, "dport": 40001}
        src, dst = ("10.0.0.1", "10.0.0.2") if to_server else ("10.0.0.2", "10.0.0.1")
        whole = udp(payload, **ports)
        for at in range(0, len(whole), 1480):
            more = at + 1480 < len(whole)
            body = ipv4(whole[at : at + 1480], 17, src=src, dst=dst, ident=ident, flags=more, offset=at)
            packets.append(Packet(ethernet(body), START_NS + len(packets) * 1_000_000))

    send(sn(4, b"\x04\x01\x00\x3cme"), True, 1)
    send(sn(5, b"\0"), False, 1)
    for number in range(1, count + 1):
        for flags in (0x21, 0xA1)[: 2 if number == 1 else 1]:
            body = bytes([flags]) + b"\0\x01" + number.to_bytes(2, "big") + b"a" * size
            send(sn(0x0C, body, is_long=len(body) > 250), True, 100 * number + flags)
        send(sn(0x0D, b"\0\x01" + number.to_bytes(2, "big") + b"\0"), False, number + 1)
    return packets


def amqp_one_byte() -> list[Packet]:
    talk = Talk(port=AMQP_PORT)
    talk.open()
    talk.add(True, HEADER)
    talk.add(True, PUBLISH + CONTENT + amqp(3, b"a"))
    talk.add(False, method(60, 80, bytes(7) + b"\x01\0"))
    return talk.packets


@pytest.fixture(scope="module")
def captured(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Captures, their packets as a stored table, and what conversations make of them."""
    folder = tmp_path_factory.mktemp("captures")
    files: dict[str, list[Packet]] = {}
    files["mqtt_a.pcap"], again_a = lossy_mqtt(40, 100, 1)
    files["mqtt_b.pcap"], again_b = lossy_mqtt(40, 100, 2)
    files["sn.pcap"] = sn_run(5, 3000)
    files["sn_one.pcap"] = sn_run(1, 1)
    files["amqp.pcap"] = amqp_one_byte()
    for name, packets in files.items():
        (folder / name).write_bytes(pcap(packets, exponent=9))
    odd = [Packet(ethernet(ipv4(tcp()[:12], 6))), Packet(ethernet(b"arp", 0x0806)), files["sn.pcap"][2]]
    odd.append(Packet(ethernet(ipv4(b"z" * 80, 17, ident=4, offset=1480))))
    (folder / "odd.pcap").write_bytes(pcap(odd) + b"\x01")
    stored = str(folder / "packets.parquet")
    spark.read.format("pcap").load(str(folder)).write.parquet(stored)
    packets_table = spark.read.parquet(stored)
    read_path = str(folder / "read.parquet")
    conversations(packets_table, {SN_PORT: "mqtt-sn"}).write.parquet(read_path)
    return {
        "files": files,
        "again": {"mqtt_a.pcap": again_a, "mqtt_b.pcap": again_b},
        "packets": packets_table,
        "read": spark.read.parquet(read_path),
    }


def test_conversations_become_frames_and_the_books_balance(captured: dict[str, Any]) -> None:
    read = captured["read"]
    found = collect(frames(read))
    counts = Counter((file_name(row), row["type"]) for row in found)
    assert counts["mqtt_a.pcap", "PUBLISH"] == counts["mqtt_a.pcap", "PUBACK"] == 40
    assert counts["sn.pcap", "PUBLISH"] == 6
    assert counts["amqp.pcap", "ContentBody"] == 1
    assert {row["topic"] for row in found if file_name(row) == "mqtt_a.pcap" and row["type"] == "PUBACK"} == {
        TOPIC
    }
    assert sum(row["is_repeat"] for row in found) == 2
    assert gaps(read).count() == 0
    assert {row["difference"] for row in collect(books(read))} == {0}
    again = {
        file_name(row): row["retransmissions"]
        for row in collect(streams(read))
        if row["direction"] == "to_server"
    }
    assert {file: again[file] for file in captured["again"]} == captured["again"]


def test_what_cannot_be_read_is_rejected_with_its_reason(captured: dict[str, Any]) -> None:
    reasons = {(row["packet"], row["reason"]) for row in collect(rejected(captured["read"]))}
    assert reasons == {
        (1, "the TCP or UDP header is cut short"),
        (3, "the last fragment is missing: there are 1480 bytes"),
        (4, "a fragment is missing: byte 1480 follows byte 0"),
        (None, next(reason for number, reason in reasons if number is None)),
    }
    assert any(
        number is None and "the file ends inside a record header" in reason for number, reason in reasons
    )


def runs(spark: SparkSession) -> DataFrame:
    rows = [
        ("m1", "mqtt", 4.0, 100, 40, PORT, None, None, "mqtt_a.pcap", None),
        ("m2", "mqtt", 4.0, 100, 40, PORT, None, None, "mqtt_b.pcap", None),
        ("m3", "mqtt", 4.0, 100, 99, PORT + 1, None, None, "mqtt_b.pcap", None),
        ("a1", "amqp", 0.0, 1, 0, AMQP_PORT, None, None, "amqp.pcap", None),
        ("m4", "mqtt", 30.0, 100, 40, PORT, None, None, "mqtt_z.pcap", "the broker did not answer"),
        ("s1", "mqtt-sn", 0.0, 3000, 5, SN_PORT, None, None, "sn.pcap", None),
        ("s2", "mqtt-sn", 0.0, 3000, 6, SN_PORT, None, None, "sn_one.pcap", None),
        ("o1", "mqtt-sn", 9.0, 3000, 1, SN_PORT, None, None, "odd.pcap", None),
    ]
    return spark.createDataFrame(rows, RUNS)


def test_overhead(spark: SparkSession, captured: dict[str, Any]) -> None:
    by_run = overhead_by_run(captured["packets"], runs(spark), captured["read"]).localCheckpoint()
    found = {row["scenario"]: row for row in collect(by_run)}
    assert set(found) == {"m1", "m2", "m3", "m4", "s1", "s2", "o1", "a1"}
    for scenario, file, messages, size in [("m1", "mqtt_a.pcap", 40, 100), ("s1", "sn.pcap", 5, 3000)]:
        packets: list[Packet] = captured["files"][file]
        row = found[scenario]
        total = sum(len(packet.data) for packet in packets)
        application = messages * size
        to_server = sum(packet.data[26:30] == bytes([10, 0, 0, 1]) for packet in packets)
        assert row["status"] == "ok"
        assert (row["total_bytes"], row["application_bytes"], row["published_bytes"]) == (
            total,
            application,
            application,
        )
        assert (row["packets_to_server"], row["packets_to_client"]) == (to_server, len(packets) - to_server)
        assert row["bytes_to_server"] + row["bytes_to_client"] == total
        assert row["overhead_percent"] == pytest.approx((total - application) * 100 / application)
        assert row["execution_s"] == pytest.approx((packets[-1].time_ns - packets[0].time_ns) / 1e9, abs=1e-5)
    assert found["m1"]["retransmissions"] == captured["again"]["mqtt_a.pcap"]
    assert (found["s1"]["repeats"], found["s1"]["retransmissions"]) == (1, 0)
    assert found["m3"]["status"] == f"failed: no packets of port {PORT + 1} in mqtt_b.pcap"
    assert found["m4"]["status"] == "failed: the broker did not answer"
    assert found["s2"]["status"] == "failed: 1 of 18000 bytes were published"
    assert found["a1"]["status"] == "failed: 1 bytes were published, and the run was to have 0"
    assert found["o1"]["status"].startswith("failed: the capture is damaged: bytes ")

    cells = {(row["protocol"], row["loss_percent"]): row for row in collect(overhead(by_run))}
    mqtt_cell = cells["mqtt", 4.0]
    assert (mqtt_cell["runs"], mqtt_cell["failed"]) == (3, 1)
    assert mqtt_cell["total_bytes"] == (found["m1"]["total_bytes"] + found["m2"]["total_bytes"]) / 2
    assert (cells["mqtt", 30.0]["failed"], cells["mqtt", 30.0]["overhead_percent"]) == (1, None)
    assert cells["mqtt", 30.0]["why"] == "failed: the broker did not answer"


def test_runs_that_cannot_be_told_apart_are_refused(spark: SparkSession, captured: dict[str, Any]) -> None:
    row = ("a", "mqtt", 0.0, 1, 1, 5, None, None, "x.pcap", None)
    for rows, text in [
        ([row, ("b", *row[1:])], "runs a and b have the same capture and port"),
        ([("a", "mqtt", 0.0, 1, 1, None, None, None, "x.pcap", None)], "run a: say its capture and the port"),
    ]:
        with pytest.raises(UsageError, match=text):
            overhead_by_run(captured["packets"], spark.createDataFrame(rows, RUNS), captured["read"])


def test_header_bytes_of_a_message_of_one_byte(captured: dict[str, Any]) -> None:
    """Figure 4-1: for MQTT-SN the application's header has 7 octets."""
    found = {
        (row["protocol"], row["message"]): row
        for row in collect(header_bytes(captured["packets"], frames(captured["read"])))
    }
    names = ("link_bytes", "network_bytes", "transport_bytes", "application_bytes", "header_bytes")
    assert [found["mqtt-sn", "publish"][name] for name in names] == [14, 20, 8, 7, 49]
    assert [found["mqtt-sn", "acknowledgement"][name] for name in names] == [14, 20, 8, 7, 49]
    assert [found["amqp", "publish"][name] for name in names[:3]] == [14, 20, 20]
    assert found["amqp", "publish"]["application_bytes"] == len(PUBLISH + CONTENT) + 8
    assert found["amqp", "publish"]["types"] == "Basic.Publish ContentBody ContentHeader"
    assert found["mqtt", "acknowledgement"]["application_bytes"] == 4


def test_traffic_by_type(captured: dict[str, Any]) -> None:
    """Table 2-1: delivered and protocol bytes; acknowledgements count where what they acknowledge does."""
    types = [("Vehicle data", "scania/truck/#"), ("Position data", "+/positions"), ("OTA updates", "ota/#")]
    with_topic = frames(captured["read"]).where(F.col("protocol") == "mqtt")
    found = collect(traffic_by_type(with_topic, types))
    rows = {row["traffic_type"]: row for row in found}
    assert [row["traffic_type"] for row in found] == [
        "Registration",
        "Vehicle data",
        "Position data",
        "OTA updates",
        "Total",
    ]
    publish = len(mqtt.encode(m.Publish(TOPIC, b"a" * 100, qos=1, packet_id=1), m.V311))
    vehicle = rows["Vehicle data"]
    assert (vehicle["frames"], vehicle["delivered_bytes"], vehicle["protocol_bytes"]) == (
        160,
        8000,
        80 * (publish + 4),
    )
    registration = rows["Registration"]
    connect = len(mqtt.encode(m.Connect("me", m.V311), m.V311)) + len(mqtt.encode(m.ConnAck(), m.V311))
    assert (registration["delivered_bytes"], registration["protocol_bytes"]) == (0, 2 * connect)
    assert (rows["OTA updates"]["frames"], rows["OTA updates"]["percent_of_total"]) == (0, 0.0)
    total = rows["Total"]
    assert total["protocol_bytes"] == sum(row["protocol_bytes"] for row in found[:-1])
    assert total["percent_of_total"] == 100.0
    assert sum(row["percent_of_total"] for row in found[:-1]) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("topic_filter", "yes", "no"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "xa/b"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/b", "a/b/d/c"]),
        ("a/#", ["a", "a/b", "a/b/c"], ["b", "ab"]),
        ("#", ["a", "a/b"], []),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_topic_filters_as_patterns(topic_filter: str, yes: list[str], no: list[str]) -> None:
    pattern = re.compile(topic_pattern(topic_filter))
    assert all(pattern.search(topic) for topic in yes)
    assert not any(pattern.search(topic) for topic in no)


@pytest.mark.parametrize("topic_filter", ["", "a+/b", "a/#/b", "a#"])
def test_what_is_no_topic_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(UsageError, match="is no topic filter"):
        topic_pattern(topic_filter)
