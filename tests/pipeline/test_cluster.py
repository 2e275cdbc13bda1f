"""A real standalone cluster: a master, two workers, the wheel in an environment of its own, the same job."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tomli_w

from polybus.pipeline.lake import Lake
from tests.pipeline.jobs.feed import PLAN, Feed
from tests.pipeline.jobs.test_run import check_books

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
pytestmark = pytest.mark.timeout(TIMEOUT_S + 120)


def test_the_same_job_runs_on_a_cluster(spark, tmp_path):
    feed = Feed(tmp_path, parts=2, plan=msgspec.structs.replace(PLAN, duration_s=1800.0))
    feed.write()
    settings = msgspec.structs.replace(
        feed.settings(), spark={"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    )
    file = tmp_path / "pipeline.toml"
    document = msgspec.to_builtins(settings)
    file.write_text(tomli_w.dumps({key: value for key, value in document.items() if value is not None}))
    work = tmp_path / "cluster"
    command = [sys.executable, ROOT / "scripts" / "spark-cluster", "--folder", work, "--"]
    command += ["python", "-m", "polybus", "pipeline", "run", "--config", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_books(Lake(spark, settings.folder), feed)
    assert f"{len(feed.sent):,} messages = " in done.stdout
    # Both workers had executors, and those the Python that has nothing but the wheel.
    for worker in range(2):
        assert list(work.glob(f"work-{worker}/app-*/*/stderr")), f"worker {worker} had nothing to do"
    (installed,) = (work / "venv").glob("lib/python*/site-packages/polybus/pipeline")
    assert (installed / "jobs" / "run.py").exists()
    assert (installed / "log4j2.properties").exists()
