"""The load generator against peers whose faults are known. Needs g++, as the benchmark itself does."""

import shutil

import pytest

from bench import brokers, loadgen
from bench.loadgen import LoadgenError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the load generator is compiled with g++")

SHORT = {"warmup": 0.05, "seconds": 0.1}
PATTERNS: dict[str, dict[str, float | str]] = {
    "1to1": {},
    "single": {"batch": 1},
    "mixed": {"topics": 16, "mixed-sizes": 1},
    "fan out": {"subscribers": 5, "outstanding": 512},
    "fan in": {"publishers": 5, "outstanding": 128},
    "pairs": {"publishers": 5, "subscribers": 5, "pattern": "pairs", "topics": 3, "outstanding": 128},
    "scatter": {"subscribers": 8, "topics": 8, "pattern": "scatter", "mixed-sizes": 1},
    "large": {"payload": 10_000, "outstanding": 256},
}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_message_of_a_faithful_peer_is_counted(pattern: str, qos: int) -> None:
    with brokers.running("relay") as relay:
        found = loadgen.run("throughput", port=relay.port, qos=qos, **SHORT, **PATTERNS[pattern])
    assert found["count"] > 0
    assert (found["missing"], found["disordered"]) == (0, 0)


@pytest.mark.parametrize("qos", [0, 1])
def test_loss_is_noticed(qos: int) -> None:
    with brokers.running("lossy") as lossy:
        found = loadgen.run("throughput", port=lossy.port, qos=qos, **SHORT)
    assert found["missing"] > 0
    assert found["disordered"] > 0


@pytest.mark.parametrize(
    ("peer", "options"),
    [("discard", {"subscribers": 0}), ("blast", {"publishers": 0})],
    ids=["publish", "receive"],
)
def test_each_side_runs_alone(peer: str, options: dict[str, float]) -> None:
    with brokers.running(peer) as broker:
        assert loadgen.run("throughput", port=broker.port, **SHORT, **options)["count"] > 0


def test_latency_and_connects() -> None:
    with brokers.running("relay") as relay:
        latency = loadgen.run("latency", port=relay.port, **SHORT)
        connects = loadgen.run("connects", port=relay.port, **SHORT)
    assert 0 < latency["p50_us"] <= latency["p99_us"] <= latency["max_us"]
    assert latency["missing"] == 0
    assert connects["count"] > 0


def test_held_connections_are_there_until_the_block_ends() -> None:
    with brokers.running("relay") as relay, loadgen.holding(port=relay.port, connections=10):
        assert loadgen.run("throughput", port=relay.port, **SHORT)["missing"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"qos": 3}, "--qos must be"),
        ({"colour": 1}, "unknown option --colour"),
        ({"payload": 3}, "--payload must be"),
        ({"pattern": "star"}, "--pattern must be"),
        ({"pattern": "scatter", "topics": 3}, "scatter needs"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, float], reason: str) -> None:
    with pytest.raises(LoadgenError, match=reason):
        loadgen.run("throughput", port=1, **options)


def test_the_cpu_time_of_a_watched_process_is_reported() -> None:
    with brokers.running("relay") as relay:
        found = loadgen.run("throughput", port=relay.port, watch=relay.watch(), **SHORT)
    assert 0 < found["watched_cpu_s"] < 2 * found["seconds"]
