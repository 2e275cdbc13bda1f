"""kill -9 of the driver while it works: what comes after is as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from polybus.pipeline.jobs.run import run_once
from polybus.pipeline.settings import Settings
from tests.pipeline.jobs.feed import Feed, write_settings
from tests.pipeline.jobs.test_run import check_books

START_TIMEOUT_S = 300.0
pytestmark = pytest.mark.timeout(900)


def test_a_killed_driver_loses_and_doubles_nothing(spark, tmp_path):
    """In the middle of its second batch; then, in another life, when it has nothing to do; `test_run` has the
    other moments, made by hand."""
    feed = Feed(tmp_path, parts=4)
    feed.write(3)
    settings = feed.settings()
    lake = tmp_path / "lake"
    kill_when(settings, tmp_path, lambda: (lake / "bronze/messages/batch=1").exists())
    assert len(list((lake / "books/messages").glob("*.json"))) < 3
    kill_when(settings, tmp_path, lambda: (lake / "checkpoints/messages/commits/2").exists())
    assert len(list((lake / "books/messages").glob("*.json"))) == 3
    feed.write()
    check_books(run_once(spark, settings), feed)


def kill_when(settings: Settings, folder: Path, condition: Callable[[], bool]) -> None:
    file = write_settings(settings, folder)
    # A group of its own: Spark's Java and Python processes must end with it.
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs.driver", str(file)], start_new_session=True
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert driver.poll() is None, "the driver ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
