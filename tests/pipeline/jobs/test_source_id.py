"""A stream that was deleted and begun anew, under tables that have the old one (PL-02)."""

import json
import shutil
from pathlib import Path

import pytest

from polybus.pipeline.jobs.run import PipelineFailed, run_once
from polybus.pipeline.settings import Messages, Settings
from tests.pipeline.sources.log_server import serving_log

pytestmark = pytest.mark.timeout(600)  # a Spark job a batch; the machine may be busy


def write(folder: Path, payloads: list[bytes], time_us: int) -> str:
    """The stream's id."""
    with serving_log(folder) as log:
        log.write(payloads, time_us=time_us)
        return log.stream.id


def test_a_stream_that_was_begun_anew_is_taken_in_beside_the_old_one(spark, tmp_path):
    """Its offsets are the same and its times earlier, for the clock was set back; only its id is another."""
    bus, lake_folder = tmp_path / "bus", tmp_path / "lake"
    messages = Messages("polybus", {"folder": str(bus), "stream": "fleet", "failOnDataLoss": True})
    settings = Settings(folder=str(lake_folder), messages=messages)

    def payloads() -> list[bytes]:
        return sorted(bytes(row["payload"]) for row in run_once(spark, settings).read("messages").collect())

    old, new = [b"old %d" % number for number in range(6)], [b"new %d" % number for number in range(9)]
    old_id = write(bus, old[:5], 2_000_000)
    assert payloads() == old[:5]
    shutil.rmtree(lake_folder / "checkpoints")
    write(bus, old[5:], 1_000_000)  # an earlier time, and a later offset
    assert payloads() == old
    shutil.rmtree(bus)
    new_id = write(bus, new, 1_500_000)
    with pytest.raises(PipelineFailed, match="the stream was begun anew"):
        payloads()
    shutil.rmtree(lake_folder / "checkpoints/messages")
    assert payloads() == sorted(old + new)
    shutil.rmtree(lake_folder / "checkpoints/messages")
    assert payloads() == sorted(old + new)  # this one is known
    noted = json.loads((lake_folder / "books/messages.sources.json").read_text())
    assert list(noted.values()) == [old_id, new_id]


def test_tables_of_before_know_no_id_and_go_by_the_time(spark, tmp_path):
    bus, lake_folder = tmp_path / "bus", tmp_path / "lake"
    settings = Settings(
        folder=str(lake_folder), messages=Messages("polybus", {"folder": str(bus), "stream": "fleet"})
    )
    write(bus, [b"a", b"b"], 1_000_000)
    run_once(spark, settings)
    (lake_folder / "books/messages.sources.json").unlink()
    (lake_folder / "books/.messages.sources.json.crc").unlink(missing_ok=True)
    shutil.rmtree(lake_folder / "checkpoints")
    write(bus, [b"c"], 2_000_000)
    found = run_once(spark, settings).read("messages")
    assert sorted(bytes(row["payload"]) for row in found.collect()) == [b"a", b"b", b"c"]
