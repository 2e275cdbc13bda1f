"""kill -9 of the driver while it works: what comes after is as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest
import tomli_w

from polybus.pipeline.jobs.run import run_once
from tests.pipeline.jobs.feed import Feed
from tests.pipeline.jobs.test_run import check_books

START_TIMEOUT_S = 300.0
pytestmark = pytest.mark.timeout(900)


def test_a_killed_driver_loses_and_doubles_nothing(spark, tmp_path):
    """In the middle of its second batch; `test_run` has the other moments, made by hand."""
    feed = Feed(tmp_path, parts=4)
    feed.write()
    settings = feed.settings()
    file = tmp_path / "pipeline.toml"
    document = msgspec.to_builtins(settings)
    file.write_text(tomli_w.dumps({key: value for key, value in document.items() if value is not None}))
    # A group of its own: Spark's Java and Python processes must end with it.
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs.driver", str(file)], start_new_session=True
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (tmp_path / "lake/bronze/messages/batch=1").exists():
            assert driver.poll() is None, "the driver ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert len(list((tmp_path / "lake" / "books/messages").glob("*.json"))) < 4
    check_books(run_once(spark, settings), feed)
