"""The whole pipeline with real brokers that fail: published = bronze = silver + rejected (PL-04)."""

import signal
import threading
import time

import msgspec
import pytest

from polybus.pipeline.jobs.run import PipelineFailed, run_once
from tests.e2e.processes import eventually
from tests.pipeline.jobs.feed import PLAN, Feed, send
from tests.pipeline.jobs.test_run import check_books
from tests.pipeline.sources.bus import running_bus
from tests.pipeline.sources.mosquitto import running_mosquitto

pytestmark = pytest.mark.timeout(600)
HALF_AN_HOUR = msgspec.structs.replace(PLAN, duration_s=1800.0)
PATIENCE_S = 300.0


@pytest.fixture
def bus(tmp_path):
    with running_bus(tmp_path / "bus") as bus:
        yield bus


def stream_of(bus, **options):
    return {"url": bus.url, "stream": "fleet", **options}


def test_a_bus_that_is_killed_during_a_batch(spark, bus, tmp_path):
    feed = Feed(tmp_path / "feed", parts=1, plan=HALF_AN_HOUR)
    feed.publish(bus.port)
    settings = feed.settings_of("polybus", stream_of(bus, maxRowsPerBatch=len(feed.sent) // 4 + 1))
    lakes = []
    running = threading.Thread(target=lambda: lakes.append(run_once(spark, settings)))
    running.start()
    offsets = feed.folder / "lake/checkpoints/messages/offsets"
    deadline = time.monotonic() + PATIENCE_S
    while not (offsets / "1").exists():  # planned, and nothing of it is read yet
        assert running.is_alive(), "the run ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    bus.stop(signal.SIGKILL)
    assert not (feed.folder / "lake/books/messages/0000000003.json").exists()
    bus.start()
    running.join(PATIENCE_S)
    assert lakes, "the run failed"
    check_books(lakes[0], feed)
    assert len(lakes[0].books("messages")) == 4


def test_a_bus_that_starts_again_and_drops_what_was_read(spark, bus, tmp_path):
    """When it drops what was not read the run says which offsets are missing."""
    feed = Feed(tmp_path / "feed", parts=10, plan=HALF_AN_HOUR)
    feed.publish(bus.port, 9)
    settings = feed.settings_of("polybus", stream_of(bus))
    run_once(spark, settings)
    restart_keeping(bus, 250_000)
    feed.publish(bus.port)
    eventually(lambda: max(first_offsets(bus)) > 0, lambda: "retention dropped nothing")
    check_books(run_once(spark, settings), feed)

    before = first_offsets(bus)
    send(bus.port, feed.sent)
    eventually(lambda: first_offsets(bus) != before, lambda: "retention dropped nothing more")
    with pytest.raises(PipelineFailed, match=r"offsets \d+ to \d+ of partition \d were dropped by retention"):
        run_once(spark, settings)


def restart_keeping(bus, max_bytes):
    bus.stop()
    bus.keep(max_bytes)
    bus.start()


def first_offsets(bus):
    partitions = sorted(bus.stream_folder.glob("[0-9]"))
    return [min(int(path.stem) for path in folder.glob("*.arrow")) for folder in partitions]


def test_any_broker_at_least_once_and_copies_are_removed(spark, tmp_path):
    """`mqtt` from Mosquitto: what a publisher sends twice, as one does that was cut off, is in bronze twice."""
    feed = Feed(tmp_path / "feed", parts=4, plan=HALF_AN_HOUR)
    with running_mosquitto(tmp_path / "mosquitto") as mosquitto:
        options = {
            "url": mosquitto.url,
            "clientId": "pipeline",
            "topics": "fleet/#",
            "spool": str(tmp_path / "spool"),
        }
        settings = feed.settings_of("mqtt", options)
        run_once(spark, settings)  # from here on Mosquitto keeps what is published
        feed.publish(mosquitto.port, 2)
        run_once(spark, settings)
        again = feed.sent[:50]
        send(mosquitto.port, again)
        mosquitto.stop()
        mosquitto.start()
        feed.publish(mosquitto.port)
        lake = run_once(spark, settings)
    feed.sent += again
    check_books(lake, feed)
