"""Kept sessions and backlogs in the load generator, and a restart of a real broker. Never how fast."""

import shutil
from collections.abc import Iterator

import pytest

from bench import brokers, loadgen
from bench.brokers import Broker
from bench.durable.contenders import CONTENDERS, RESTARTED, mortal
from bench.durable.measure import SHAPES, Effort, Results, Session, restart
from bench.loadgen import LoadgenError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the load generator is compiled with g++")

SHORT = {"warmup": 0.05, "seconds": 0.2}
COUNT = 5_000


@pytest.fixture(scope="module", params=list(CONTENDERS))
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with brokers.running(request.param, CONTENDERS) as broker:
        yield broker


@pytest.mark.parametrize("qos", [1, 2])
def test_everything_comes_to_a_kept_session(broker: Broker, qos: int) -> None:
    found = loadgen.run("throughput", port=broker.port, qos=qos, kept=1, **SHORT)
    assert found["count"] > 0
    assert (found["missing"], found["disordered"]) == (0, 0)


def test_every_puback_is_timed(broker: Broker) -> None:
    found = loadgen.run("latency", port=broker.port, qos=1, kept=1, **SHORT)
    assert found["puback_count"] == found["count"] > 0
    assert 0 < found["puback_p50_us"] <= found["puback_p99_us"] <= found["puback_max_us"]
    assert (found["missing"], found["unacknowledged"]) == (0, 0)


def test_at_qos_0_there_is_no_puback_to_time() -> None:
    with brokers.running("relay") as relay:
        found = loadgen.run("latency", port=relay.port, **SHORT)
    assert (found["puback_count"], found["unacknowledged"]) == (0, 0)


def test_what_was_queued_is_there_for_who_comes(broker: Broker) -> None:
    assert loadgen.run("queue", port=broker.port, count=COUNT, window=200)["count"] == COUNT
    found = loadgen.run("drain", port=broker.port, count=COUNT)
    assert (found["count"], found["missing"], found["repeated"], found["disordered"]) == (COUNT, 0, 0, 0)
    assert found["first_at_s"] <= found["last_at_s"]


def test_runs_leave_no_session_behind(broker: Broker) -> None:
    for command, options in (("throughput", SHORT), ("latency", SHORT)):
        loadgen.run(command, port=broker.port, qos=1, kept=1, **options)
    loadgen.run("queue", port=broker.port, count=10)
    loadgen.run("drain", port=broker.port, count=10)
    with pytest.raises(LoadgenError, match="forgotten the session"):
        loadgen.run("drain", port=broker.port, count=10)


def test_messages_that_are_not_there_are_missing(broker: Broker) -> None:
    loadgen.run("queue", port=broker.port, count=10)
    found = loadgen.run("drain", port=broker.port, count=12, patience=0.3)
    assert (found["count"], found["missing"]) == (10, 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RESTARTED)
def test_a_restart_loses_nothing(name: str, shape: str) -> None:
    found = restart(name, COUNT, SHAPES[shape])
    assert (found["missing"], found["disordered"], found["queued"]) == (0, 0, COUNT)
    assert 0 < found["ready_s"] <= found["first_s"]
    assert found["kept_bytes"] > COUNT * 64


def test_a_broker_that_does_not_start_is_an_error() -> None:
    with mortal(next(iter(RESTARTED))) as broker:
        (broker.folder / "mosquitto.conf").mkdir()
        with pytest.raises(OSError, match="directory"):
            broker.start()


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        ("queue", {"payload": 3}, "--payload must be"),
        ("queue", {"topics": 65}, "--topics must be"),
        ("queue", {"window": 0}, "--window must be"),
        ("queue", {"window": 70_000}, "--window must be"),
        ("latency", {"qos": 2}, "--qos must be 0 or 1"),
    ],
)
def test_a_bad_option_is_refused_by_name(command: str, options: dict[str, float], reason: str) -> None:
    with pytest.raises(LoadgenError, match=reason):
        loadgen.run(command, port=1, **options)


def test_a_session_measures_all_contenders_in_turn() -> None:
    results, order = Results(), []
    effort = Effort(runs=2, warmup_s=0.05, seconds=0.1, latency_s=0.1, queued=100)
    session = Session(effort, results, order.append)
    session.run_throughput(["mosquitto", "memory"])
    session.run_latency(["memory"])
    session.run_restart("mosquitto, stopped")
    assert order[:4] == ["throughput alike mosquitto", "throughput alike memory"] * 2
    for by_name in results.throughput.values():
        assert {name: len(samples) for name, samples in by_name.items()} == {"mosquitto": 2, "memory": 2}
    assert [label for label, _ in results.samples()][-4:] == [
        "latency memory",
        "latency memory",
        "restart alike mosquitto, stopped",
        "restart mixed mosquitto, stopped",
    ]
    assert results.failures == []
