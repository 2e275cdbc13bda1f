"""tcpdump beside real brokers and clients: what the tables say is what the clients did (LB-03, PL-03)."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from polybus.pipeline.jobs.run import run_once
from polybus.pipeline.settings import Captures, Settings
from polybus.pipeline.sources.pcap.batches import read_batches
from polybus.pipeline.sources.pcap.source import map_file
from polybus.pipeline.transforms.frames import conversations, frames
from polybus.pipeline.transforms.overhead import RUNS, header_bytes, overhead_by_run
from polybus.wire.tbus.packets import Publish
from tests.client.brokers import running_broker
from tests.client.certificates import Certificates
from tests.e2e.paho_peers import connected
from tests.e2e.processes import Served
from tests.e2e.tbus_peer import TbusPeer
from tests.net.conftest import certificates
from tests.pipeline.pcap.recording import TCPDUMP, Recording

__all__ = ["certificates"]

# Spark starts processes by the dozen: on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(600)

TOPIC = "scania/truck/test/system/sensor"
MESSAGES, SIZE = 30, 100


def publish_with_mosquitto(port: int) -> None:
    program = shutil.which("mosquitto_pub")
    assert program is not None, "Debian's mosquitto-clients is not installed"
    lines = "".join("m" * SIZE + "\n" for _ in range(MESSAGES))
    command = [program, "-p", str(port), "-q", "1", "-t", TOPIC, "-l"]
    subprocess.run(command, input=lines.encode(), check=True, timeout=60)


def talk_tbus(port: int) -> None:
    service, client = TbusPeer(port, "service"), TbusPeer(port, "client")
    service.connect()
    client.connect()
    service.subscribe("ask")
    for _ in range(3):
        client.request("ask", b"q" * 10)
        service.answer(service.given(), b"a" * 20)
        client.receive()
    client.send_bulk(*(Publish(TOPIC, b"t" * SIZE) for _ in range(MESSAGES)))
    for peer in (client, service):
        peer.leave()
        peer.close()


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[tuple[Path, dict[str, int]]]:
    """A capture with MQTT 5 and TBus to Polybus and MQTT 3.1.1 to Mosquitto, and the ports of each."""
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "real.pcap"
    (folder / "mosquitto").mkdir()
    (folder / "bus").mkdir()
    with (
        running_broker("mosquitto", folder / "mosquitto", certificates) as mosquitto,
        Served(folder / "bus", certificates, kinds=("tcp", "tbus")) as bus,
    ):
        ports = {"polybus": bus.ports["tcp"], "tbus": bus.ports["tbus"], "mosquitto": mosquitto.ports["tcp"]}
        with Recording(path, list(ports.values())) as recording:
            with connected(bus, "5") as subscriber, connected(bus, "5") as publisher:
                subscriber.subscribe(TOPIC, 1)
                for size in [SIZE] * MESSAGES + [1]:
                    publisher.publish(TOPIC, b"p" * size)
                    subscriber.get()
            publish_with_mosquitto(ports["mosquitto"])
            talk_tbus(ports["tbus"])
            recording.until(MESSAGES, b"m" * SIZE)
            recording.until(MESSAGES, b"t" * SIZE)
        yield path, ports


def test_real_traffic(spark: SparkSession, recorded: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    path, ports = recorded
    stored = str(tmp_path / "packets.parquet")
    spark.read.format("pcap").load(str(path)).write.parquet(stored)
    packets = spark.read.parquet(stored)
    conversations(packets).write.parquet(str(tmp_path / "read.parquet"))
    read = spark.read.parquet(str(tmp_path / "read.parquet"))

    everything = read.collect()
    assert [row.reason for row in everything if row.kind in ("rejected", "gap")] == []
    found = [row for row in everything if row.kind == "frame"]
    for stream in (row for row in everything if row.kind == "stream"):
        mine = [f for f in found if (f.connection, f.direction) == (stream.connection, stream.direction)]
        assert stream.sent_bytes == sum(frame.frame_bytes for frame in mine) + stream.duplicate_bytes
    protocols = {row.server_port: row.protocol for row in found}
    assert protocols == {ports["polybus"]: "mqtt", ports["mosquitto"]: "mqtt", ports["tbus"]: "tbus"}

    counts = Counter((row.server_port, row.direction, row.type) for row in found)
    polybus, mosquitto, tbus = ports["polybus"], ports["mosquitto"], ports["tbus"]
    assert counts[polybus, "to_server", "PUBLISH"] == counts[polybus, "to_client", "PUBLISH"] == MESSAGES + 1
    assert counts[polybus, "to_server", "PUBACK"] == counts[polybus, "to_client", "PUBACK"] == MESSAGES + 1
    assert counts[polybus, "to_server", "CONNECT"] == 2
    assert counts[mosquitto, "to_server", "PUBLISH"] == counts[mosquitto, "to_client", "PUBACK"] == MESSAGES
    assert counts[tbus, "to_server", "BULK"] == 1
    assert counts[tbus, "to_server", "PUBLISH"] == MESSAGES
    assert counts[tbus, "to_server", "REQUEST"] == counts[tbus, "to_client", "REQUEST"] == 3
    assert counts[tbus, "to_server", "RESPONSE"] == counts[tbus, "to_client", "RESPONSE"] == 3
    about = {row.topic for row in found if row.type in ("PUBLISH", "PUBACK")}
    assert about == {TOPIC}
    assert {row.topic for row in found if row.type == "RESPONSE"} == {"ask"}
    published = sum(r.payload_bytes for r in found if r.server_port == mosquitto and r.direction == "to_server")
    assert published == MESSAGES * SIZE

    runs = spark.createDataFrame(
        [("m", "mqtt", 0.0, SIZE, MESSAGES, mosquitto, None, None, "real.pcap", None)], RUNS
    )
    (row,) = overhead_by_run(packets, runs, read).collect()
    packets_of_file = pa.Table.from_batches(read_batches(map_file(str(path)), str(path))).to_pylist()
    assert [packet["error"] for packet in packets_of_file if packet["error"]] == []
    mine = [p for p in packets_of_file if mosquitto in (p["src_port"], p["dst_port"])]
    assert row.status == "ok"
    assert row.total_bytes == sum(packet["original_length"] for packet in mine)
    assert row.packets_to_server == sum(packet["dst_port"] == mosquitto for packet in mine)
    assert row.packets_to_server + row.packets_to_client == len(mine)
    assert row.published_bytes == row.application_bytes == MESSAGES * SIZE
    assert row.overhead_percent == pytest.approx((row.total_bytes / (MESSAGES * SIZE) - 1) * 100)
    assert sum(r.packets for r in everything if r.kind == "stream") == len(packets_of_file)

    # Figure 4-1: with TCP's time stamps, 14 + 20 + 32 bytes below the application's; MQTT 5 has one more
    # than the 37 of 3.1.1 with this topic: fixed header 2, topic 33, packet id 2, property length 1.
    headers = {(h.protocol, h.message): h.asDict() for h in header_bytes(packets, frames(read)).collect()}
    names = ("link_bytes", "network_bytes", "transport_bytes", "application_bytes")
    assert [headers["mqtt", "publish"][name] for name in names] == [14, 20, 32, 38]
    assert headers["mqtt", "acknowledgement"]["application_bytes"] == 4


def test_a_recording_as_a_job(
    spark: SparkSession, recorded: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    """What tcpdump wrote, as `polybus pipeline run` takes it: the books balance."""
    path, ports = recorded
    run = {"scenario": "m", "protocol": "mqtt", "loss_percent": 0, "payload_bytes": SIZE, "messages": MESSAGES}
    (tmp_path / "runs.jsonl").write_text(json.dumps({**run, "port": ports["mosquitto"], "capture": path.name}))
    captures = Captures(str(path), runs=str(tmp_path / "runs.jsonl"), types={"Sensors": "scania/#"}, settle_s=0)
    lake = run_once(spark, Settings(folder=str(tmp_path / "lake"), captures=captures))
    count = sum(batch.num_rows for batch in read_batches(map_file(str(path)), str(path)))
    (book,) = lake.books("captures").values()
    assert book["fates"] == {"read": count, "fragments": 0, "rejected": 0, "other": 0}
    assert lake.read("packets").count() == count
    by_port = {row.server_port: row.protocol for row in lake.read("frames").collect()}
    assert by_port == {ports["polybus"]: "mqtt", ports["mosquitto"]: "mqtt", ports["tbus"]: "tbus"}
    (cell,) = lake.read("overhead").collect()
    assert (cell.runs, cell.failed, cell.application_bytes) == (1, 0, MESSAGES * SIZE)
    traffic = {row.traffic_type: row for row in lake.read("capture_traffic").collect()}
    # Mosquitto, TBus and both ways through Polybus, where there is one more of one byte.
    assert traffic["Sensors"].delivered_bytes == 4 * MESSAGES * SIZE + 2


def test_the_arrow_reader_agrees_with_tcpdump(recorded: tuple[Path, dict[str, int]]) -> None:
    """tcpdump reads its own file back: as many packets, with the same addresses, ports and sizes."""
    path, _ = recorded
    assert TCPDUMP is not None
    command = [TCPDUMP, "-r", str(path), "-nn", "-tt", "-S", "-q"]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    table = pa.Table.from_batches(read_batches(map_file(str(path)), str(path)))
    assert table.num_rows == len(lines)
    for row, line in zip(table.to_pylist(), lines, strict=True):
        parts: list[Any] = line.split()
        seconds, micros = divmod(row["time_ns"] // 1000, 10**6)
        assert parts[0] == f"{seconds}.{micros:06}"
        assert parts[2] == f"{row['src']}.{row['src_port']}"
        assert parts[4] == f"{row['dst']}.{row['dst_port']}:"
        assert parts[-1] == str(row["payload_length"])
