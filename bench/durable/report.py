"""What was found of durable state: tables and verdicts."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.durable.contenders import MEANINGS
from bench.durable.measure import ALIKE, LATENCY_RATE, WINDOW, Results
from bench.loadgen import Sample
from bench.page import NOTHING, Grid, Page, Verdict, milliseconds, short, title_of
from bench.report import BUSY_MACHINE, GENERATOR_BOUND, busy, cpu_us, generator_share

BASE, MEMORY, DEFAULT = "mosquitto", "memory", "normal"
RATIO_AIM = 1.5
P99_AIM_MS = 10.0
RESTART_AIM_S = 10.0
RESTART_AIM_QUEUED = 1_000_000
DEFAULT_RESTART = "normal, kill -9"


@dataclass(frozen=True)
class Report(Page):
    versions: Mapping[str, str]
    results: Results

    @property
    def title(self) -> str:
        return f"Durable state: {title_of(self.versions)}"

    def grids(self) -> list[Grid]:
        found = self.results
        grids = []
        grids += [throughput_grid(shape, by_name) for shape, by_name in found.throughput.items() if by_name]
        if found.latency:
            grids.append(latency_grid(found.latency))
        grids += [restart_grid(shape, by_name) for shape, by_name in found.restarts.items()]
        if found.streams:
            cells = [[what, short(rate)] for what, rate in found.streams.items()]
            grids.append(Grid("Streams, one process alone", ["what", "records/s"], cells))
        return grids

    def verdicts(self) -> list[Verdict]:
        return [judge(self.results) for judge in (throughput_verdict, latency_verdict, restart_verdict)]

    def notes(self) -> list[str]:
        notes = list(self.results.failures)
        for label, sample in self.results.samples():
            faults = [key for key in ("missing", "disordered", "unacknowledged") if sample.get(key, 0)]
            notes += [f"{label}: {sample[key]:,.0f} messages {key}" for key in faults]
        return notes

    def remarks(self) -> list[str]:
        remarks = [f"{name}: {meaning}" for name, meaning in MEANINGS.items() if name in self.names()]
        share = self.waiting_share()
        if share >= BUSY_MACHINE:
            remarks.append(
                f"The machine was busy with other work: brokers waited {share:.0%} of the time for a core. "
                "Rates and latencies are off; rely on CPU per delivery, or run again."
            )
        return remarks

    def names(self) -> set[str]:
        found = self.results
        return {name for by_name in (*found.throughput.values(), found.latency) for name in by_name}

    def waiting_share(self) -> float:
        samples = [sample for _, sample in self.results.samples() if "watched_wait_s" in sample]
        return statistics.median(s["watched_wait_s"] / s["seconds"] for s in samples) if samples else 0.0

    def figures(self) -> Mapping[str, object]:
        found = self.results
        return {
            "versions": self.versions,
            "throughput": found.throughput,
            "latency": found.latency,
            "restarts": found.restarts,
            "streams": found.streams,
            "waiting_share": self.waiting_share(),
        }


def throughput_verdict(found: Results) -> Verdict:
    aim = f"at least {RATIO_AIM:g}× Mosquitto without persistence, sync = normal"
    rates = found.throughput.get(ALIKE, {})
    ratio = ratio_of(rates, DEFAULT, BASE)
    if ratio is None:
        return Verdict(aim, NOTHING, None)
    text = f"{ratio:.2f}×"
    for shape, others in found.throughput.items():
        if shape != ALIKE and (other := ratio_of(others, DEFAULT, BASE)) is not None:
            text += f"; {shape} {other:.2f}×"
    is_met = ratio >= RATIO_AIM
    # A rate that is the generator's is a lower bound: of ours it can only hide success, of Mosquitto's failure.
    if is_bound(rates[BASE if is_met else DEFAULT]):
        return Verdict(aim, f"{text}, limited by the generator", None)
    return Verdict(aim, text, is_met)


def latency_verdict(found: Results) -> Verdict:
    aim = f"PUBACK p99 under {P99_AIM_MS:g} ms at {LATENCY_RATE:,} msg/s, sync = normal"
    samples = found.latency.get(DEFAULT, [])
    if not samples:
        return Verdict(aim, NOTHING, None)
    p99_us = median(samples, "puback_p99_us")
    return Verdict(aim, f"{milliseconds(p99_us)} ms", p99_us < P99_AIM_MS * 1000)


def restart_verdict(found: Results) -> Verdict:
    aim = f"first delivery within {RESTART_AIM_S:g} s of a restart with {RESTART_AIM_QUEUED:,} queued"
    samples = [by_name[DEFAULT_RESTART] for by_name in found.restarts.values() if DEFAULT_RESTART in by_name]
    if not samples:
        return Verdict(aim, NOTHING, None)
    slowest = max(samples, key=lambda sample: sample["first_s"])
    text = f"{slowest['first_s']:.1f} s with {slowest['queued']:,.0f}"
    if missing := sum(sample["missing"] for sample in samples):
        return Verdict(aim, f"{text}, and {missing:,.0f} are missing", False)
    if slowest["first_s"] > RESTART_AIM_S:
        return Verdict(aim, text, False)
    return Verdict(aim, text, True if slowest["queued"] >= RESTART_AIM_QUEUED else None)


def throughput_grid(shape: str, found: Mapping[str, Sequence[Sample]]) -> Grid:
    columns = ["broker", "msg/s", "÷ mosquitto", "÷ memory", "CPU", "generator"]
    cells = [
        [
            name,
            rate(samples),
            times(ratio_of(found, name, BASE)),
            times(ratio_of(found, name, MEMORY)),
            cpu_us(samples),
            busy(samples),
        ]
        for name, samples in found.items()
    ]
    return Grid(
        f"One to one, QoS 1 unless it says otherwise, window {WINDOW}, to a kept session: {shape}",
        columns,
        cells,
    )


def latency_grid(found: Mapping[str, Sequence[Sample]]) -> Grid:
    columns = ["broker", "PUBACK p50", "p99", "max", "delivery p50", "p99", "CPU"]
    keys = ("puback_p50_us", "puback_p99_us", "puback_max_us", "p50_us", "p99_us")
    cells = [
        [name, *(milliseconds(median(samples, key)) for key in keys), cpu_us(samples)]
        for name, samples in found.items()
    ]
    return Grid(f"To a kept session at {LATENCY_RATE:,} msg/s, in ms: medians of the runs", columns, cells)


def restart_grid(shape: str, found: Mapping[str, Sample]) -> Grid:
    columns = [
        "broker, how it ended",
        "queued",
        "queued/s",
        "kept MB",
        "ready s",
        "empty s",
        "first delivery s",
        "delivered/s",
        "missing",
        "repeated",
    ]
    cells = [
        [
            name,
            f"{sample['queued']:,.0f}",
            short(sample["queue_rate"]),
            f"{sample['kept_bytes'] / 1e6:.0f}",
            f"{sample['ready_s']:.2f}",
            f"{sample['empty_s']:.2f}",
            f"{sample['first_s']:.2f}",
            short(sample["drain_rate"]),
            f"{sample['missing']:,.0f}",
            f"{sample['repeated']:,.0f}",
        ]
        for name, sample in found.items()
    ]
    return Grid(f"Started again with messages that wait for one session: {shape}", columns, cells)


def median(samples: Sequence[Sample], key: str) -> float:
    return statistics.median(sample[key] for sample in samples)


def ratio_of(found: Mapping[str, Sequence[Sample]], name: str, base: str) -> float | None:
    if not found.get(name) or not found.get(base) or name == base:
        return None
    below = median(found[base], "rate")
    return median(found[name], "rate") / below if below else None


def times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}×"


def is_bound(samples: Sequence[Sample]) -> bool:
    return (generator_share(samples) or 0.0) >= GENERATOR_BOUND


def rate(samples: Sequence[Sample]) -> str:
    """Median and half the range, in per cent of it."""
    rates = [sample["rate"] for sample in samples]
    middle = statistics.median(rates)
    spread = f" ±{(max(rates) - min(rates)) / 2 / middle:.0%}" if len(rates) > 1 and middle else ""
    return f"{'≥ ' if is_bound(samples) else ''}{short(middle)}{spread}"
