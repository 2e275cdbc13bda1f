import json

import pytest

from bench.loadgen import Sample
from bench.report import Report, Row, short, times
from bench.scenarios import NO_WORSE, SIX_KILOBYTES, Aim, Metric, at_least


@pytest.mark.parametrize(
    ("aim", "base", "candidate", "expected"),
    [
        (at_least(5), 100.0, 500.0, True),
        (at_least(5), 100.0, 499.0, False),
        (at_least(5), None, 499.0, None),
        (NO_WORSE, 100.0, 100.0, True),
        (NO_WORSE, 100.0, 101.0, False),
        (SIX_KILOBYTES, None, 6000.0, True),
        (SIX_KILOBYTES, 100.0, 6001.0, False),
    ],
)
def test_an_aim_limits_the_ratio_or_the_value(
    aim: Aim, base: float | None, candidate: float, expected: bool | None
) -> None:
    assert aim.is_met(base, candidate) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3.21, "3.21"), (123.4, "123"), (1712.0, "1.71 k"), (151_234.0, "151 k"), (4_470_000.0, "4.47 M")],
)
def test_figures_are_short(value: float, expected: str) -> None:
    assert short(value) == expected


def sample(rate: float, missing: float = 0) -> Sample:
    return {"rate": rate, "count": rate, "seconds": 1.0, "missing": missing, "watched_cpu_s": 1.0}


def row(candidate: list[float], missing: float = 0) -> Row:
    samples = {
        "slow": [sample(90), sample(100), sample(130)],
        "fast": [sample(rate, missing) for rate in candidate],
    }
    return Row("1to1", Metric("rate", "msg/s", aim=at_least(5)), samples)


def test_ratios_are_those_of_medians() -> None:
    measured = row([100, 500, 900])
    assert measured.ratio("slow", "fast") == 5.0
    assert measured.verdict("slow", "fast") == "met"
    assert row([499, 499, 499]).verdict("slow", "fast") == "NOT MET"


@pytest.mark.parametrize(
    ("share", "rate", "verdict", "shown"),
    [
        ({"slow": 0.5, "fast": 0.5}, 500.0, "met", "5.00×"),
        ({"slow": 0.5, "fast": 0.95}, 500.0, "met", "≥ 5.00×"),
        ({"slow": 0.5, "fast": 0.95}, 400.0, "unclear", "≥ 4.00×"),
        ({"slow": 0.95, "fast": 0.5}, 500.0, "unclear", "≤ 5.00×"),
        ({"slow": 0.95, "fast": 0.5}, 400.0, "NOT MET", "≤ 4.00×"),
    ],
)
def test_a_rate_of_a_busy_generator_is_a_lower_bound(
    share: dict[str, float], rate: float, verdict: str, shown: str
) -> None:
    samples: dict[str, list[Sample]] = {
        label: [{**sample(value), "generator_cpu_s": share[label]}]
        for label, value in (("slow", 100), ("fast", rate))
    }
    measured = Row("1to1", Metric("rate", "msg/s", aim=at_least(5)), samples)
    assert measured.verdict("slow", "fast") == verdict
    assert times(measured, "slow", "fast") == shown


def test_waiting_for_a_core_counts_as_wanting_it() -> None:
    busy_sample = {**sample(100), "generator_cpu_s": 0.5, "generator_wait_s": 0.45}
    assert Row("1to1", Metric("rate", "msg/s"), {"slow": [busy_sample]}).is_lower_bound("slow")


@pytest.mark.parametrize(("wait_s", "is_said"), [(0.01, False), (0.3, True)])
def test_a_busy_machine_is_said_to_be_one(wait_s: float, is_said: bool) -> None:
    measured = Row("1to1", Metric("rate", "msg/s"), {"slow": [{**sample(100), "watched_wait_s": wait_s}]})
    report = Report(["slow"], {"slow": "1"}, rows=[measured])
    assert bool(report.remarks()) is is_said
    assert ("waited 30%" in report.markdown()) is is_said
    assert not report.notes()


def test_one_broker_alone_has_no_ratio_and_no_verdict() -> None:
    measured = row([500])
    assert measured.ratio("fast", "fast") is None
    assert measured.verdict("fast", "fast") == "–"


def test_lost_messages_are_named_in_every_form_of_the_report() -> None:
    report = Report(["slow", "fast"], {"slow": "1", "fast": "2"}, rows=[row([500], missing=3)])
    (note,) = report.notes()
    assert "1to1, fast: 3 messages missing" in note
    assert note in report.markdown()
    assert json.loads(report.json())["notes"] == [note]


def test_markdown_has_a_line_per_row() -> None:
    text = Report(["slow", "fast"], {"slow": "1", "fast": "2"}, rows=[row([500]), row([400])]).markdown()
    lines = [line for line in text.splitlines() if line.startswith("| 1to1 |")]
    assert len(lines) == 2
    assert "5.00×" in lines[0]
    assert "NOT MET" in lines[1]
