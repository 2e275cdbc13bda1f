import json

import pytest

from bench.durable.__main__ import restarts_of, versions_of
from bench.durable.measure import Results
from bench.durable.report import Report, latency_verdict, restart_verdict, throughput_verdict
from bench.durable.streams import parse
from bench.loadgen import Sample


def sample(rate: float = 1000, **others: float) -> Sample:
    latencies = {f"{name}_us": 500.0 for name in ("p50", "p99", "puback_p50", "puback_p99", "puback_max")}
    usage = {"watched_cpu_s": 0.1, "watched_wait_s": 0.0, "generator_cpu_s": 0.1, "generator_wait_s": 0.0}
    return {"rate": rate, "count": rate, "seconds": 1.0, **latencies, **usage, **others}


def restarted(first_s: float = 3.0, queued: int = 1_000_000, **others: float) -> Sample:
    times = {"ready_s": 2.5, "empty_s": 0.4, "first_s": first_s, "kept_bytes": 9e7}
    counts = {"queued": queued, "missing": 0, "repeated": 0, "disordered": 0}
    return {**times, **counts, "queue_rate": 90_000.0, "drain_rate": 200_000.0, **others}


@pytest.mark.parametrize(
    ("throughput", "expected"),
    [
        ({}, None),
        ({"mosquitto": [60_000]}, None),
        ({"mosquitto": [60_000], "normal": [90_000]}, True),
        ({"mosquitto": [60_000], "normal": [89_000]}, False),
        ({"mosquitto": [60_000, 50_000, 10_000], "normal": [80_000, 70_000, 90_000]}, True),
    ],
)
def test_medians_are_compared_with_mosquitto(throughput: dict[str, list[float]], expected: bool | None) -> None:
    found = {name: [sample(rate) for rate in rates] for name, rates in throughput.items()}
    results = Results(throughput={"alike": found})
    assert throughput_verdict(results).is_met is expected
    assert throughput_verdict(Results(throughput={"mixed": found})).is_met is None


@pytest.mark.parametrize(("limited", "is_met"), [("mosquitto", None), ("normal", True)])
def test_a_rate_of_the_generator_is_a_lower_bound(limited: str, is_met: bool | None) -> None:
    found = {"mosquitto": [sample(10)], "normal": [sample(20)]}
    found[limited] = [{**found[limited][0], "generator_cpu_s": 0.95}]
    assert throughput_verdict(Results(throughput={"alike": found})).is_met is is_met


@pytest.mark.parametrize(("p99_us", "expected"), [(9_999.0, True), (10_000.0, False)])
def test_the_median_p99_is_judged(p99_us: float, expected: bool) -> None:
    runs = [sample(puback_p99_us=value) for value in (1.0, p99_us, 50_000.0)]
    assert latency_verdict(Results(latency={"normal": runs})).is_met is expected
    assert latency_verdict(Results(latency={"full": runs})).is_met is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (restarted(), True),
        (restarted(first_s=10.1), False),
        (restarted(missing=1), False),
        (restarted(queued=50_000), None),
        (restarted(first_s=10.1, queued=50_000), False),
    ],
)
def test_a_restart_is_judged_with_a_million(found: Sample, expected: bool | None) -> None:
    both = {"alike": {"normal, kill -9": restarted(first_s=1.0)}, "mixed": {"normal, kill -9": found}}
    assert restart_verdict(Results(restarts=both)).is_met is expected
    assert restart_verdict(Results()).is_met is None


def test_the_tables() -> None:
    results = Results(
        throughput={
            "alike": {
                "mosquitto": [sample(50_000)],
                "memory": [sample(200_000)],
                "normal": [sample(100_000)],
            },
            "mixed": {"mosquitto": [sample(40_000)], "normal": [sample(50_000)]},
        },
        latency={"normal": [sample()]},
        restarts={"alike": {"normal, kill -9": restarted()}},
    )
    report = Report({"mosquitto": "2", "polybus": "1"}, results)
    text = report.markdown()
    assert "| normal | 100 k | 2.00× | 0.50× | 1 µs | 10% |" in text
    assert "| mosquitto | 50 k | – | 0.25× |" in text
    assert "| normal | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 | 100 µs |" in text
    assert "| normal, kill -9 | 1,000,000 | 90 k | 90 | 2.50 | 0.40 | 3.00 | 200 k | 0 | 0 |" in text
    assert "| 2.00×; mixed 1.25× | met |" in text
    assert text.count("| met |") == 3
    assert report.notes() == []
    assert json.loads(report.json())["verdicts"][0]["is_met"] is True


def test_rates_of_streams_are_read_from_what_is_printed() -> None:
    text = "append, runs: 1.50 M records/s\nread: 12.25 M records/s\nsomething else: 3\n"
    assert parse(text) == {"append, runs": 1.5e6, "read": 12.25e6}
    assert "| append, runs | 1.5 M |" in Report({}, Results(streams=parse(text))).markdown()


def test_what_is_missing_is_named() -> None:
    results = Results(
        throughput={"mixed": {"normal": [sample(missing=2)]}},
        latency={"full": [sample(unacknowledged=3)]},
        restarts={"alike": {"normal, kill -9": restarted(disordered=1)}},
        failures=["it failed"],
    )
    assert Report({}, results).notes() == [
        "it failed",
        "throughput mixed normal: 2 messages missing",
        "latency full: 3 messages unacknowledged",
        "restart alike normal, kill -9: 1 messages disordered",
    ]


def test_a_busy_machine_is_told() -> None:
    results = Results(throughput={"alike": {"memory": [sample(watched_wait_s=0.3)]}})
    assert "waited 30%" in Report({}, results).remarks()[-1]


def test_the_peers_decide_what_is_started_again() -> None:
    assert restarts_of(["mosquitto", "memory"]) == ["mosquitto, stopped"]
    assert restarts_of(["normal", "full"]) == ["normal, kill -9", "full, kill -9"]
    assert versions_of(["mosquitto"]) == ["mosquitto"]
    assert versions_of(["mosquitto", "full"]) == ["mosquitto", "polybus"]
