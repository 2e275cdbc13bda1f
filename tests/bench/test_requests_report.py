import json

import pytest

from bench.loadgen import Sample
from bench.requests.measure import Results, is_sustained, typical
from bench.requests.report import (
    Report,
    Verdict,
    bytes_verdict,
    p50_verdict,
    pairs_verdict,
    storm_verdict,
    stream_bytes,
    wire_bytes,
)

MODES = ["off", "fixed", "adaptive"]


def sample(rate: float = 1000, **others: float) -> Sample:
    latencies = {f"{name}_us": 500.0 for name in ("mean", "p50", "p90", "p99", "max", "lag_p99")}
    traffic = {
        f"{side}_{key}": 10_000.0
        for side in ("requester", "service")
        for key in ("tcp_sent_bytes", "tcp_received_bytes", "segments_out", "segments_in")
    }
    for side in ("requester", "service"):
        traffic |= {f"{side}_messages_out": 1000.0, f"{side}_messages_in": 1000.0}
    counts: dict[str, float] = dict.fromkeys(
        ("timed_out", "errors", "lost", "unsent", "unexpected", "wrong"), 0
    )
    usage = {"watched_cpu_s": 0.1, "watched_wait_s": 0.0, "generator_cpu_s": 0.1, "generator_wait_s": 0.0}
    whole = {"rate": rate, "seconds": 1.0, "sent": rate, "answered": rate, "traffic_s": 1.0}
    return {**whole, "traffic_requests": 1000.0, **counts, **latencies, **traffic, **usage, **others}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (sample(1000), True),
        (sample(901), True),
        (sample(880), False),
        (sample(1000, timed_out=1), False),
        (sample(1000, unsent=1), False),
    ],
)
def test_a_rate_is_sustained_when_all_are_answered_in_time(found: Sample, expected: bool) -> None:
    assert is_sustained(found, 1000) is expected


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({}, None),
        ({64: sample(64), 8192: sample(8192)}, True),
        ({64: sample(64)}, None),
        ({64: sample(64, p50_us=2000.0), 8192: sample(8192)}, False),
        ({8192: sample(5000)}, False),
        ({8192: sample(8192), 16384: sample(16384, p50_us=9000.0)}, True),
    ],
    ids=["nothing", "met", "not all measured", "slow", "not kept up", "beyond the aim"],
)
def test_latency_is_judged_up_to_its_rate(rates: dict[int, Sample], expected: bool | None) -> None:
    results = Results(rates={rate: {"adaptive": found} for rate, found in rates.items()})
    assert p50_verdict(results).is_met is expected


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ({}, None),
        ({200: {}}, None),
        ({1000: {"adaptive": {}}}, True),
        ({1000: {"off": {"timed_out": 1}}}, False),
    ],
)
def test_many_pairs_may_lose_nothing(
    pairs: dict[int, dict[str, dict[str, float]]], expected: bool | None
) -> None:
    found = {
        count: {mode: sample(**changes) for mode, changes in by_mode.items()}
        for count, by_mode in pairs.items()
    }
    assert pairs_verdict(Results(pairs=found)).is_met is expected


def test_bytes_are_counted_with_and_without_the_headers_of_segments() -> None:
    few = sample(**{f"{side}_segments_{way}": 0 for side in ("requester", "service") for way in ("out", "in")})
    assert stream_bytes(few) == wire_bytes(few) == 40
    assert wire_bytes(sample()) == 40 + 66 * 40
    results = Results(rates={1024: {"fixed": {**few, "rate": 1024}, "adaptive": sample(1024)}})
    assert bytes_verdict(results, "", stream_bytes).is_met is True
    assert bytes_verdict(results, "", wire_bytes).is_met is False
    slow = Results(rates={512: results.rates[1024], 2048: results.rates[1024]})
    assert bytes_verdict(slow, "", wire_bytes).is_met is None


@pytest.mark.parametrize(("with_us", "expected"), [([150, 200, 900], True), ([150, 201, 900], False)])
def test_the_median_storm_counts(with_us: list[float], expected: bool) -> None:
    storms = [sample(before_p99_us=100.0, with_p99_us=value) for value in with_us]
    assert storm_verdict(Results(storms=storms)).is_met is expected
    assert storm_verdict(Results()) == Verdict(storm_verdict(Results()).aim, "–", None)


def test_the_tables_stand_beside_those_of_the_document() -> None:
    results = Results(
        rates={
            128: {mode: sample(128) for mode in MODES},
            8192: {"off": sample(8192), "adaptive": sample(3000, timed_out=7)},
        },
        pairs={200: {"adaptive": sample()}},
        ceilings={("off", 256): sample(40_000)},
        failures=["something failed"],
    )
    results.rate_runs = [(8192, "adaptive", results.rates[8192]["adaptive"])]
    report = Report("1", MODES, results)
    text = report.markdown()
    assert "| 128 | 52.02 | 38.37 | 29.90 | 1.84 | 0.50 | 0.50 | 0.50 |" in text
    assert "| 8,192 | 98.59 | 39.00 | 92.87 | 2.86 | 0.50 | – | 0.50 (3 k/s) |" in text
    assert "| 200 | its C++ bulking | 4.40 |" in text
    assert "8,192/s adaptive: 7 of 3,000 requests had no answer (7 timed out)" in text
    assert report.notes() == ["something failed"]
    assert json.loads(report.json())["rates"]["128"]["off"]["p50_us"] == 500


def test_the_run_with_the_middle_p50_is_the_typical_one() -> None:
    runs = [sample(p50_us=value) for value in (9.0, 1.0, 5.0)]
    assert typical(runs) is runs[2]


def test_wrong_and_missing_replies_are_named() -> None:
    report = Report("1", MODES, Results(rate_runs=[(64, "off", sample(lost=1, wrong=2, unexpected=3))]))
    assert report.notes() == [
        "64/s off: 1 requests without any reply",
        "64/s off: 3 replies to no request",
        "64/s off: 2 answers with another payload",
    ]
