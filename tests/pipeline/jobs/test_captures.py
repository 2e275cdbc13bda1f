"""Capture files through the whole pipeline: every packet once, whatever happens (PL-02, PL-04)."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from polybus.cli.pipeline import book_lines
from polybus.errors import ConfigError, PolybusError, UsageError
from polybus.pipeline.jobs.captures import CaptureIntake, look, obstacle
from polybus.pipeline.jobs.captures_gold import refresh_captures
from polybus.pipeline.jobs.compaction import compact
from polybus.pipeline.jobs.run import run_continuously, run_once
from polybus.pipeline.lake import Lake
from polybus.pipeline.runs import parse_runs
from polybus.pipeline.settings import Captures, Settings
from polybus.wire.mqtt import codec as mqtt
from polybus.wire.mqtt import packets as m
from tests.pipeline.jobs.feed import write_settings
from tests.pipeline.pcap.captures import START_NS, Packet, Talk, ethernet, ipv4, pcap, tcp, udp

pytestmark = pytest.mark.timeout(600)  # a Spark job a batch; the machine may be busy

PORT, SIZE = 18830, 50
LONG_AGO_NS = 1_700_000_000_000_000_000


def conversation(count: int, topic: str = "fleet/t1/vehicle") -> list[Packet]:
    """A publisher at QoS 1; its second message goes over the wire twice."""
    talk = Talk(port=PORT)
    talk.open()
    talk.add(True, mqtt.encode(m.Connect("me", m.V311), m.V311))
    talk.add(False, mqtt.encode(m.ConnAck(), m.V311))
    for number in range(1, count + 1):
        at = talk.place(True)
        data = mqtt.encode(m.Publish(topic, b"a" * SIZE, qos=1, packet_id=number), m.V311)
        talk.add(True, data)
        if number == 2:
            talk.add(True, data, seq=at)
        talk.add(False, mqtt.encode(m.PubAck(number), m.V311))
    talk.close()
    return talk.packets


def oddities() -> list[Packet]:
    """A header that is cut short, one that is not IP, a datagram in two fragments, half of another one."""
    whole = udp(b"x" * 2000, dport=5683)
    parts = [
        ipv4(whole[:1480], 17, ident=3, flags=1),
        ipv4(whole[1480:], 17, ident=3, offset=1480),
        ipv4(whole[:1480], 17, ident=4, flags=1),
    ]
    bodies = [ethernet(ipv4(tcp()[:12], 6)), ethernet(b"arp", 0x0806), *map(ethernet, parts)]
    return [Packet(body, START_NS + number * 1_000_000) for number, body in enumerate(bodies)]


def put(folder: Path, name: str, data: bytes) -> Path:
    """A capture that was finished long ago."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def settings_in(folder: Path, **captures: object) -> Settings:
    return Settings(
        folder=str(folder / "lake"),
        captures=msgspec.convert({"path": str(folder / "in"), **captures}, Captures),
        spark={"spark.sql.shuffle.partitions": "2"},
    )


def run_line(scenario: str, capture: str, messages: int) -> str:
    run = {"scenario": scenario, "protocol": "mqtt", "loss_percent": 4, "payload_bytes": SIZE}
    return json.dumps({**run, "messages": messages, "port": PORT, "capture": capture})


def packets_by_file(lake: Lake) -> dict[str, int]:
    rows = lake.read("packets").where("number is not null").groupBy("file").count().collect()
    return {Path(row["file"]).name: row["count"] for row in rows}


@pytest.fixture(scope="module")
def filled(spark, tmp_path_factory):
    """Two runs: on one capture; then on two more, one of them full of oddities and cut off at its end."""
    folder = tmp_path_factory.mktemp("captures")
    put(folder / "in", "a.pcap", pcap(conversation(5)))
    runs = folder / "runs.jsonl"
    runs.write_text(run_line("r1", "a.pcap", 5) + "\n")
    settings = settings_in(folder, runs=str(runs))
    run_once(spark, settings)
    put(folder / "in", "b.pcap", pcap(conversation(3, "elsewhere")))
    put(folder / "in", "odd.pcap", pcap(oddities()) + b"\x01")
    runs.write_text("\n".join([run_line("r1", "a.pcap", 5), "", run_line("r2", "b.pcap", 4)]))
    return folder, settings, run_once(spark, settings)


def test_every_packet_is_there_once_and_has_a_fate(filled):
    _, _, lake = filled
    a, b, odd = conversation(5), conversation(3), oddities()
    assert packets_by_file(lake) == {"a.pcap": len(a), "b.pcap": len(b), "odd.pcap": len(odd)}
    books = lake.books("captures")
    assert [book["fates"] for book in books.values()] == [
        {"read": len(a), "fragments": 0, "rejected": 0, "other": 0},
        # Cut short and not IP; two whole fragments and a lost one; and the byte behind the last record.
        {"read": len(b), "fragments": 3, "rejected": 2, "other": 1},
    ]
    assert sum(book["rows"] for book in books.values()) == lake.read("packets").count()
    (said,) = book_lines(lake)
    assert (
        said == f"{len(a) + len(b) + 6} packets = {len(a) + len(b)} read + 3 fragments + 2 rejected + 1 other"
    )
    assert [book["bytes"]["difference"] for book in books.values()] == [0, 0]
    assert books[0]["bytes"]["duplicate_bytes"] > SIZE
    reasons = {row["reason"] for row in lake.read("rejected_frames").collect()}
    assert "the TCP or UDP header is cut short" in reasons
    assert any("fragment is missing" in reason for reason in reasons)


def test_frames_and_traffic(filled):
    _, _, lake = filled
    published = lake.read("frames").where("type = 'PUBLISH'")
    assert {(row["topic"], row["count"]) for row in published.groupBy("topic").count().collect()} == {
        ("fleet/t1/vehicle", 5),
        ("elsewhere", 3),
    }
    assert lake.read("frame_streams").groupBy().sum("retransmissions").first()[0] == 2
    assert lake.read("frame_gaps").count() == 0
    traffic = {row["traffic_type"]: row for row in lake.read("capture_traffic").collect()}
    assert (traffic["Vehicle data"]["frames"], traffic["Vehicle data"]["delivered_bytes"]) == (10, 5 * SIZE)
    total = lake.read("frames").groupBy().sum("frame_bytes").first()[0]
    assert traffic["Total"]["protocol_bytes"] == total


def test_overhead_of_runs(filled):
    _, _, lake = filled
    by_run = {row["scenario"]: row for row in lake.read("overhead_by_run").collect()}
    assert by_run["r1"]["status"] == "ok"
    assert by_run["r1"]["total_bytes"] == sum(len(packet.data) for packet in conversation(5))
    assert by_run["r2"]["status"] == f"failed: {3 * SIZE} of {4 * SIZE} bytes were published"
    (cell,) = lake.read("overhead").collect()
    assert (cell["runs"], cell["failed"], cell["total_bytes"]) == (2, 1, by_run["r1"]["total_bytes"])


def test_every_table_has_the_columns_it_says(filled):
    from polybus.pipeline.schemas_captures import CAPTURE_TABLES

    _, _, lake = filled
    for name, table in CAPTURE_TABLES.items():
        assert lake.read(name).schema.simpleString() == table.schema.simpleString(), name


def test_a_file_is_taken_once_and_one_that_changed_is_told(spark, filled, caplog):
    folder, settings, before = filled
    changed = folder / "in" / "b.pcap"
    original = changed.read_bytes()
    with changed.open("ab") as file:
        file.write(pcap(conversation(1))[24:])
    os.utime(changed, ns=(LONG_AGO_NS, LONG_AGO_NS))
    with caplog.at_level(logging.WARNING):
        lake = run_once(spark, settings)
    assert "b.pcap has changed since it was taken in as part of batch 1" in caplog.text
    assert "a.pcap" not in caplog.text
    assert packets_by_file(lake) == packets_by_file(before)
    put(folder / "in", "b.pcap", original)
    caplog.clear()
    assert len(run_once(spark, settings).books("captures")) == 2
    assert "has changed" not in caplog.text


@pytest.mark.parametrize("keeps_notes", [True, False])
def test_a_batch_that_was_cut_short_is_finished_from_bronze(spark, filled, tmp_path, keeps_notes):
    """As if the process had ended after bronze. Read again, its files would be one batch more."""
    folder, settings, _ = filled
    shutil.copytree(folder / "lake", tmp_path / "lake")
    (tmp_path / "lake/books/captures/0000000001.json").unlink()
    (tmp_path / "lake/books/captures/.0000000001.json.crc").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "lake/silver/conversations/batch=1")
    (tmp_path / "lake/silver/conversations/.writing-1").mkdir()
    if not keeps_notes:
        shutil.rmtree(tmp_path / "lake/checkpoints")
    lake = run_once(spark, msgspec.structs.replace(settings, folder=str(tmp_path / "lake")))
    before, after = (Lake(spark, root).books("captures") for root in (settings.folder, str(tmp_path / "lake")))
    assert after == before
    assert packets_by_file(lake)["b.pcap"] == len(conversation(3))
    assert lake.read("frames").where("topic = 'elsewhere' and type = 'PUBLISH'").count() == 3


def test_a_killed_job_loses_and_doubles_nothing(spark, tmp_path):
    """`kill -9` when all is written and not yet named: silver of a batch; then bronze of the next one."""
    first = put(tmp_path / "in", "a.pcap", pcap(conversation(5)))
    put(tmp_path / "in", "b.pcap", pcap(conversation(3, "elsewhere")))
    settings = settings_in(tmp_path, max_bytes_per_batch=1)
    bronze, silver = (tmp_path / "lake" / each for each in ("bronze/packets", "silver/conversations"))
    books = tmp_path / "lake/books/captures"
    kill_before(settings, tmp_path, "conversations/batch=0")
    assert (bronze / "batch=0").exists()
    assert (silver / ".writing-0").exists()
    assert not (silver / "batch=0").exists()
    assert not books.exists()
    first.unlink()  # what is in bronze is not read again
    kill_before(settings, tmp_path, "packets/batch=1")
    assert [path.name for path in books.glob("*.json")] == ["0000000000.json"]
    assert (bronze / ".writing-1").exists()
    assert not (bronze / "batch=1").exists()
    lake = run_once(spark, settings)
    assert packets_by_file(lake) == {"a.pcap": len(conversation(5)), "b.pcap": len(conversation(3))}
    assert lake.read("frames").where("type = 'PUBLISH'").count() == 8
    assert sorted(lake.books("captures")) == [0, 1]
    assert not [path for path in (*bronze.iterdir(), *silver.iterdir()) if path.name.startswith(".writing")]


def kill_before(settings: Settings, folder: Path, name: str) -> None:
    file = write_settings(settings, folder)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.jobs.killed_captures", str(file), name],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def test_tables_of_few_folders_are_the_same_tables(spark, filled, tmp_path):
    """A book says how many rows each table of it has."""
    folder, _, before = filled
    shutil.copytree(folder / "lake", tmp_path / "lake")
    lake = Lake(spark, str(tmp_path / "lake"))
    compact(lake, fan_in=None)
    for name in ("packets", "conversations"):
        assert len(lake.folders(name)[0]) == 1, name
        assert lake.read(name).count() == before.read(name).count() > 0, name


def test_what_is_being_written_is_left_for_later(spark, tmp_path):
    """A continuous run: the file is there from the begin and is taken when it is at rest."""
    path = put(tmp_path / "in", "a.pcap", b"")
    path.write_bytes(pcap(conversation(2)))
    os.utime(path, (4e9, 4e9))  # written to in what is the future for long
    (tmp_path / "in" / "notes.txt").write_text("no capture")
    settings = msgspec.structs.replace(settings_in(tmp_path), refresh_s=0.1)
    looks = 0

    def is_wanted():
        nonlocal looks
        looks += 1
        if looks == 5:
            assert not (tmp_path / "lake/bronze/packets").exists()
            os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
        return not (tmp_path / "lake/books/captures/0000000000.json").exists()

    lake = run_continuously(spark, settings, is_wanted)
    assert packets_by_file(lake) == {"a.pcap": len(conversation(2))}
    assert lake.read("capture_traffic").count() > 0


def test_files_that_cannot_be_taken_do_not_hinder_the_others(spark, tmp_path, caplog):
    """Spark would fail at each of them, and with it the run, and the next one too."""
    put(tmp_path / "in", "a.pcap", pcap(conversation(2)))
    obstacles = {
        os.fsdecode(b"latin-\xfc.pcap"): "is not UTF-8",
        "a,b.pcap": "has a comma",
        "space.pcap ": "has a space at the end",
        "tomorrow.pcap": "was written in the future",
    }
    for name in obstacles:
        put(tmp_path / "in", name, pcap(conversation(1)))
    os.utime(tmp_path / "in" / "tomorrow.pcap", (4e9, 4e9))
    settings = settings_in(tmp_path, max_bytes_per_batch=1)
    assert settings.captures is not None
    lake = Lake(spark, settings.folder)
    intake = CaptureIntake(lake, msgspec.structs.replace(settings.captures, path=str(tmp_path / "in/*")))
    gone, changed = (put(tmp_path / "in", f"{name}.pcap", pcap(conversation(1))) for name in "xy")

    def is_wanted():
        """Is asked before a batch."""
        gone.unlink(missing_ok=True)
        changed.write_bytes(b"begun anew")
        return True

    with caplog.at_level(logging.WARNING):
        intake.take(is_wanted)
    assert packets_by_file(lake) == {"a.pcap": len(conversation(2))}
    said = [record.getMessage() for record in caplog.records if record.name == "polybus.pipeline"]
    assert len(said) == len(obstacles)
    for name, text in obstacles.items():
        assert any(name in each and text in each for each in said), name


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = put(tmp_path / "in", "a.pcap", pcap(conversation(1)))
    path.chmod(0)
    settings = settings_in(tmp_path)
    assert settings.captures is not None
    user = os.geteuid()
    there = look(settings.captures.path)
    if user == 0:  # who may read everything
        os.seteuid(65534)
    try:
        assert "cannot be read: Permission denied" in str(obstacle(str(path), there[str(path)]))
    finally:
        os.seteuid(user)
    path.chmod(0o600)
    assert obstacle(str(path), there[str(path)]) is None


def test_the_order_of_types_matters(filled):
    """The first that matches counts."""
    _, settings, lake = filled
    before = settings.captures
    after = msgspec.structs.replace(before, types=dict(reversed(before.types.items())))
    assert next(refresh_captures(lake, before), None) is None
    assert next(refresh_captures(lake, after), None) == "capture_traffic"


def test_nothing_there_yet_is_no_error(spark, tmp_path):
    lake = run_once(spark, settings_in(tmp_path))
    assert lake.read("frames").count() == lake.read("overhead").count() == 0


def test_wrong_settings_are_named(spark, tmp_path):
    with pytest.raises(ConfigError, match=r"captures\.ports: 'http' is no port"):
        run_once(spark, settings_in(tmp_path, ports={"http": "mqtt"}))
    with pytest.raises(UsageError, match="carrier-pigeon"):
        run_once(spark, settings_in(tmp_path, ports={"5": "carrier-pigeon"}))
    with pytest.raises(UsageError, match=r"captures\.runs: .*none\.jsonl cannot be read"):
        run_once(spark, settings_in(tmp_path, runs=str(tmp_path / "none.jsonl")))
    with pytest.raises(UsageError, match="'a#' is no topic filter"):
        run_once(spark, settings_in(tmp_path, types={"All": "a#"}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "runs, line 1: "),
        ('\n{"scenario": 1}', "runs, line 2: .*scenario"),
        (run_line("a", "", 1), "line 1: say the file of the capture"),
        (
            run_line("a", "x.pcap", 1) + "\n" + run_line("a", "y.pcap", 1),
            "line 2: there is a scenario 'a' in line 1",
        ),
        (run_line("a", "x.pcap", 1).replace("18830", "0"), "line 1: .*port"),
    ],
)
def test_runs_that_cannot_be_read_are_named(text, said):
    with pytest.raises(UsageError, match=said):
        parse_runs(text, "runs")


def test_books_that_do_not_balance_end_the_run(spark, tmp_path, monkeypatch):
    """A packet that nobody tells of."""
    from polybus.pipeline.jobs import captures

    put(tmp_path / "in", "a.pcap", pcap(conversation(2)))
    right = captures.conversations
    monkeypatch.setattr(
        captures,
        "conversations",
        lambda *given: right(*given).where("kind != 'stream' or direction = 'to_server'"),
    )
    with pytest.raises(PolybusError, match="do not balance"):
        run_once(spark, settings_in(tmp_path))
    assert not Lake(spark, str(tmp_path / "lake")).books("captures")
