"""`loadgen requests` against a real broker: what was sent is what came back. Never how fast."""

import shutil
from collections.abc import Iterator

import pytest

from bench import brokers, loadgen
from bench.brokers import Broker
from bench.loadgen import LoadgenError, Sample

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the load generator is compiled with g++")

MODES = ("off", "fixed", "adaptive")
SHORT = {"warmup": 0.05, "seconds": 0.3}


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def broker(mode: str) -> Iterator[Broker]:
    with brokers.running(f"tbus-{mode}") as broker:
        yield broker


def assert_all_accounted_for(found: Sample) -> None:
    assert found["sent"] == found["answered"] + found["timed_out"] + found["errors"] + found["lost"]
    assert found["errors"] == sum(value for key, value in found.items() if key.startswith("state_"))
    assert (found["lost"], found["unexpected"], found["wrong"]) == (0, 0, 0)


def assert_all_answered(found: Sample) -> None:
    assert_all_accounted_for(found)
    assert found["sent"] == found["answered"] > 0
    assert found["unsent"] == 0


def test_a_schedule_of_requests_is_kept_and_answered(broker: Broker, mode: str) -> None:
    found = loadgen.run("requests", port=broker.port, bulk=mode, rate=500, **SHORT)
    assert_all_answered(found)
    assert found["count"] == found["lag_count"] == 500 * SHORT["seconds"]
    assert 0 < found["p50_us"] <= found["p90_us"] <= found["p99_us"] <= found["max_us"]


def test_both_sides_count_bytes_and_segments(broker: Broker, mode: str) -> None:
    found = loadgen.run("requests", port=broker.port, bulk=mode, rate=500, **SHORT)
    for side in ("requester", "service"):
        for way in ("out", "in"):
            assert found[f"{side}_messages_{way}"] > 0
            assert found[f"{side}_segments_{way}"] >= found[f"{side}_data_segments_{way}"] > 0
        assert found[f"{side}_tcp_sent_bytes"] > 0
        assert found[f"{side}_tcp_received_bytes"] > 0
    assert found["requester_messages_out"] == found["traffic_requests"]


def test_a_window_of_requests_goes_around(broker: Broker, mode: str) -> None:
    options = {"rate": 0, "window": 64, "concurrency": 64}
    found = loadgen.run("requests", port=broker.port, bulk=mode, **SHORT, **options)
    assert_all_answered(found)
    gathers = mode != "off"
    for side in ("requester", "service"):
        assert (found[f"{side}_bulks_out"] > 0) is gathers
        assert (found[f"{side}_bulks_in"] > 0) is gathers


def test_pairs_have_topics_of_their_own(broker: Broker, mode: str) -> None:
    found = loadgen.run("requests", port=broker.port, bulk=mode, pairs=20, rate=20, **SHORT)
    assert_all_answered(found)
    assert 0 < found["count"] <= 20 * 20 * SHORT["seconds"]  # fewer if the generator had to wait for a core


def test_clients_of_a_storm_are_let_in_while_pairs_talk(broker: Broker, mode: str) -> None:
    found = loadgen.run("requests", port=broker.port, bulk=mode, pairs=10, rate=20, storm=50, **SHORT)
    assert_all_answered(found)
    assert (found["storm_accepted"], found["storm_refused"]) == (50, 0)
    assert 0 < found["before_count"] <= found["count"]


def test_a_storm_may_go_elsewhere(broker: Broker, mode: str) -> None:
    with brokers.running("discard") as bystander:
        options = {"pairs": 2, "rate": 20, "storm": 20, "storm_port": bystander.port}
        found = loadgen.run("requests", port=broker.port, bulk=mode, **SHORT, **options)
    assert_all_answered(found)
    assert found["storm_accepted"] == 20


def test_requests_that_the_broker_gives_up_are_counted() -> None:
    """One at a time and 50 ms for each: most have to wait in the broker, longer than they may live."""
    with brokers.running("tbus-fixed") as broker:
        options = {"rate": 400, "concurrency": 1, "timeout": 1}
        found = loadgen.run("requests", port=broker.port, bulk="fixed", warmup=0.05, seconds=0.8, **options)
    assert_all_accounted_for(found)
    assert found["timed_out"] > 0
    assert found["answered"] > 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bulk": "sometimes"}, "--bulk must be"),
        ({"pairs": 0}, "--pairs must be"),
        ({"rate": -1}, "--rate must not"),
        ({"window": 70_000}, "--window must be"),
        ({"concurrency": 0}, "--concurrency must be"),
        ({"storm-port": 70_000}, "--storm-port must be"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, float | str], reason: str) -> None:
    with pytest.raises(LoadgenError, match=reason):
        loadgen.run("requests", port=1, **options)


def test_a_broker_that_is_not_there_is_an_error_and_no_hang() -> None:
    with pytest.raises(LoadgenError, match="refused"):
        loadgen.run("requests", port=brokers.free_port(), **SHORT)
