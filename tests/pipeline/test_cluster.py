"""A real standalone cluster: a master, two workers, the wheel in an environment of its own, the same job."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from polybus.pipeline.lake import Lake
from tests.pipeline.jobs.feed import PLAN, Feed, write_settings
from tests.pipeline.jobs.test_run import check_books
from tests.pipeline.sources.bus import running_bus

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
pytestmark = pytest.mark.timeout(TIMEOUT_S + 120)


def test_the_same_job_runs_on_a_cluster(spark, tmp_path):
    """From a real bus; and an executor is killed in the middle of a batch: its tasks are done again."""
    feed = Feed(tmp_path, parts=1, plan=msgspec.structs.replace(PLAN, duration_s=1800.0))
    work = tmp_path / "cluster"
    with running_bus(tmp_path / "bus") as bus:
        feed.publish(bus.port)
        options = {"url": bus.url, "stream": "fleet", "maxRowsPerBatch": len(feed.sent) // 3 + 1}
        settings = msgspec.structs.replace(
            feed.settings_of("polybus", options),
            spark={"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"},
        )
        file = write_settings(settings, tmp_path)
        command = [sys.executable, ROOT / "scripts" / "spark-cluster", "--folder", work, "--"]
        command += ["python", "-m", "polybus", "pipeline", "run", "--config", file]
        with (tmp_path / "said").open("wb") as said:
            running = subprocess.Popen(command, stdout=said, stderr=said, cwd=tmp_path)
        try:
            victim = kill_an_executor(running, work, tmp_path)
            running.wait(TIMEOUT_S)
        finally:
            if running.poll() is None:
                running.terminate()  # it ends its cluster
                running.wait(60)
    output = told(tmp_path)
    assert running.returncode == 0, output
    check_books(Lake(spark, settings.folder), feed)
    assert f"{len(feed.sent):,} messages = " in output
    # Both workers had executors, the one that was killed was replaced, and they had the Python that has nothing
    # but the wheel.
    for worker in range(2):
        assert executors(work, worker), f"worker {worker} had nothing to do"
    assert len(executors(work, victim)) > 1
    (installed,) = (work / "venv").glob("lib/python*/site-packages/polybus/pipeline")
    assert (installed / "jobs" / "run.py").exists()
    assert (installed / "log4j2.properties").exists()


def executors(work: Path, worker: int) -> list[Path]:
    return list(work.glob(f"work-{worker}/app-*/*/stderr"))


def told(folder: Path) -> str:
    log = folder / "lake/spark.log"
    return (folder / "said").read_text() + (log.read_text(errors="replace")[-5000:] if log.exists() else "")


def kill_an_executor(running: "subprocess.Popen[bytes]", work: Path, folder: Path) -> int:
    """While the second batch is written. Returns the worker whose executor it was."""
    deadline = time.monotonic() + TIMEOUT_S
    while not list(folder.glob("lake/*/*/.writing-1")):
        assert running.poll() is None, f"the run ended by itself: {told(folder)}"
        assert time.monotonic() < deadline, f"no batch: {told(folder)}"
        time.sleep(0.005)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # one that just ended
            place = (process / "cwd").resolve()
            is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
            if is_executor and place.is_relative_to(work):
                os.kill(int(process.name), signal.SIGKILL)
                return int(place.relative_to(work).parts[0].removeprefix("work-"))
    pytest.fail("there is no executor")
