"""What was found of requests: tables and verdicts."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.loadgen import Sample
from bench.page import NOTHING, Grid, Page, Verdict, milliseconds, short
from bench.report import BUSY_MACHINE, GENERATOR_BOUND
from bench.requests import document
from bench.requests.measure import BYTES_FROM_RATE, PAIR_RATE, Results, is_sustained, unanswered

P50_LIMIT_MS = 2.0
P50_UP_TO_RATE = 8192
MANY_PAIRS = 1000
BYTES_LIMIT = 1.1
STORM_LIMIT = 2.0


@dataclass(frozen=True)
class Report(Page):
    version: str
    modes: Sequence[str]
    results: Results

    @property
    def title(self) -> str:
        return f"TBus requests, Polybus {self.version}"

    def grids(self) -> list[Grid]:
        found = self.results
        grids = []
        if found.rates:
            grids += [means_grid(found, self.modes), percentiles_grid(found, self.modes)]
        if any(rate >= BYTES_FROM_RATE for rate in found.rates):
            grids.append(bytes_grid(found, self.modes))
        if found.pairs:
            grids.append(pairs_grid(found))
        if found.storms or found.controls:
            grids.append(storm_grid(found))
        if found.ceilings:
            grids.append(ceiling_grid(found))
        return grids

    def verdicts(self) -> list[Verdict]:
        found = self.results
        return [
            p50_verdict(found),
            pairs_verdict(found),
            bytes_verdict(found, "stream bytes", stream_bytes),
            bytes_verdict(found, f"with {document.SEGMENT_OVERHEAD_BYTES} B a segment", wire_bytes),
            storm_verdict(found),
        ]

    def notes(self) -> list[str]:
        notes = list(self.results.failures)
        for label, sample in self.results.samples():
            for key, meaning in (
                ("lost", "requests without any reply"),
                ("unexpected", "replies to no request"),
                ("wrong", "answers with another payload"),
                ("storm_refused", "clients of the storm refused"),
            ):
                if sample.get(key, 0):
                    notes.append(f"{label}: {sample[key]:,.0f} {meaning}")
        return notes

    def remarks(self) -> list[str]:
        remarks = [
            f"{label}: {unanswered(sample):,.0f} of {sample['sent'] + sample['unsent']:,.0f} requests had no "
            f"answer ({endings(sample)})"
            for label, sample in self.results.samples()
            if unanswered(sample)
        ]
        share = self.waiting_share()
        if share >= BUSY_MACHINE:
            remarks.append(
                f"The machine was busy with other work: the broker waited {share:.0%} of the time for a core. "
                "Latencies and rates are off; bytes are not."
            )
        return remarks

    def waiting_share(self) -> float:
        shares = [sample["watched_wait_s"] / sample["traffic_s"] for _, sample in self.results.samples()]
        return statistics.median(shares) if shares else 0.0

    def figures(self) -> Mapping[str, object]:
        found = self.results
        return {
            "version": self.version,
            "rates": found.rates,
            "rate_runs": [
                {"rate": rate, "mode": mode, "sample": sample} for rate, mode, sample in found.rate_runs
            ],
            "pairs": found.pairs,
            "storms": found.storms,
            "storms_at_a_bystander": found.controls,
            "ceilings": {f"{mode} {window}": sample for (mode, window), sample in found.ceilings.items()},
            "waiting_share": self.waiting_share(),
        }


def p50_verdict(found: Results) -> Verdict:
    aim = f"p50 under {P50_LIMIT_MS:g} ms up to {P50_UP_TO_RATE:,}/s, adaptive"
    measured = {
        rate: by_mode["adaptive"]
        for rate, by_mode in found.rates.items()
        if rate <= P50_UP_TO_RATE and "adaptive" in by_mode
    }
    if not measured:
        return Verdict(aim, NOTHING, None)
    worst = max(measured, key=lambda rate: measured[rate]["p50_us"])
    text = f"at most {milliseconds(measured[worst]['p50_us'])} ms, at {worst:,}/s"
    overrun = [rate for rate, sample in measured.items() if not is_sustained(sample, rate)]
    if overrun:
        return Verdict(aim, f"{text}; {overrun[0]:,}/s was too fast", False)
    if measured[worst]["p50_us"] >= P50_LIMIT_MS * 1000:
        return Verdict(aim, text, False)
    return Verdict(aim, text, True if P50_UP_TO_RATE in measured else None)


def pairs_verdict(found: Results) -> Verdict:
    aim = f"no timeouts with {MANY_PAIRS:,} pairs"
    many = [
        sample for pairs, by_mode in found.pairs.items() if pairs >= MANY_PAIRS for sample in by_mode.values()
    ]
    if not many:
        return Verdict(aim, NOTHING, None)
    failed, sent = sum(map(unanswered, many)), sum(sample["sent"] for sample in many)
    return Verdict(aim, f"{failed:,.0f} of {sent:,.0f} requests", failed == 0)


def bytes_verdict(found: Results, what: str, measure: Callable[[Sample], float]) -> Verdict:
    aim = f"adaptive's bytes at most {BYTES_LIMIT - 1:.0%} above fixed's from {BYTES_FROM_RATE:,}/s, {what}"
    ratios = {
        rate: measure(by_mode["adaptive"]) / measure(by_mode["fixed"])
        for rate, by_mode in found.rates.items()
        if rate >= BYTES_FROM_RATE
        and {"adaptive", "fixed"} <= by_mode.keys()
        and all(is_sustained(by_mode[mode], rate) for mode in ("adaptive", "fixed"))
    }
    if not ratios:
        return Verdict(aim, NOTHING, None)
    worst = max(ratios, key=lambda rate: ratios[rate])
    return Verdict(aim, f"at most {ratios[worst]:.2f}×, at {worst:,}/s", ratios[worst] <= BYTES_LIMIT)


def storm_verdict(found: Results) -> Verdict:
    aim = f"p99 in the second of a storm at most {STORM_LIMIT:g}× the p99 before it"
    if not found.storms:
        return Verdict(aim, NOTHING, None)
    ratio = statistics.median(map(storm_ratio, found.storms))
    text = f"{ratio:.2f}×"
    if found.controls:
        text += f"; {statistics.median(map(storm_ratio, found.controls)):.2f}× at a bystander"
    return Verdict(aim, text, ratio <= STORM_LIMIT)


def storm_ratio(sample: Sample) -> float:
    return sample["with_p99_us"] / sample["before_p99_us"]


def means_grid(found: Results, modes: Sequence[str]) -> Grid:
    cells = [
        [
            f"{rate:,}",
            *(document.ONE_PAIR[rate].cells() if rate in document.ONE_PAIR else [NOTHING] * 4),
            *(latency_cell(by_mode.get(mode), rate, "mean_us") for mode in modes),
        ]
        for rate, by_mode in found.rates.items()
    ]
    columns = ["requests/s", *(f"its {name}" for name in document.COLUMNS), *modes]
    return Grid("One pair: mean latency in ms, beside the document's table 5.8", columns, cells)


def percentiles_grid(found: Results, modes: Sequence[str]) -> Grid:
    columns = ["requests/s"]
    for mode in modes:
        columns += [f"{mode} p50", "p99", "CPU"]
    columns.append("generator late p99")
    cells = []
    for rate, by_mode in found.rates.items():
        line = [f"{rate:,}"]
        for mode in modes:
            sample = by_mode.get(mode)
            p99 = NOTHING if sample is None else milliseconds(sample["p99_us"])
            line += [latency_cell(sample, rate, "p50_us"), p99, cpu_us(sample)]
        lag_us = max((sample["lag_p99_us"] for sample in by_mode.values()), default=0)
        cells.append([*line, milliseconds(lag_us)])
    return Grid("One pair: percentiles in ms, broker's CPU per request", columns, cells)


def bytes_grid(found: Results, modes: Sequence[str]) -> Grid:
    headings = ["stream", f"+{document.SEGMENT_OVERHEAD_BYTES} B a segment"]
    columns = ["requests/s"]
    for heading in headings:
        columns += [f"{heading}: {modes[0]}", *modes[1:], "adaptive ÷ fixed"]
    columns += [f"segments: {modes[0]}", *modes[1:]]
    cells = []
    for rate, by_mode in found.rates.items():
        if rate < BYTES_FROM_RATE:
            continue
        line = [f"{rate:,}"]
        for measure in (stream_bytes, wire_bytes):
            line += [f"{measure(by_mode[mode]):.1f}" if mode in by_mode else NOTHING for mode in modes]
            line.append(
                f"{measure(by_mode['adaptive']) / measure(by_mode['fixed']):.2f}×"
                if {"adaptive", "fixed"} <= by_mode.keys()
                else NOTHING
            )
        line += [f"{segments(by_mode[mode]):.2f}" if mode in by_mode else NOTHING for mode in modes]
        cells.append(line)
    return Grid("One pair: bytes and TCP segments per request, all four ways together", columns, cells)


def pairs_grid(found: Results) -> Grid:
    columns = ["pairs", "", "mean ms", "p50", "p99", "max", "no answer", "CPU", "generator"]
    cells = []
    for pairs, by_mode in found.pairs.items():
        if pairs == 200:
            for name, mean in zip(document.COLUMNS, document.TWO_HUNDRED_PAIRS.cells(), strict=True):
                cells.append([f"{pairs:,}", f"its {name}", mean, *[NOTHING] * 6])
        for mode, sample in by_mode.items():
            latencies = [milliseconds(sample[f"{name}_us"]) for name in ("mean", "p50", "p99", "max")]
            failed = f"{unanswered(sample):,.0f} of {sample['sent']:,.0f}"
            cells.append([f"{pairs:,}", mode, *latencies, failed, cpu_us(sample), generator(sample)])
    return Grid(f"Pairs at {PAIR_RATE:g} requests/s each, beside the document's table 5.9", columns, cells)


def storm_grid(found: Results) -> Grid:
    columns = [
        "storm at",
        "runs",
        "p99 before",
        "p99 with",
        "ratio",
        "p50 meanwhile",
        "max",
        "it took ms",
        "refused",
    ]
    cells = []
    for name, samples in (("the broker", found.storms), ("a bystander", found.controls)):
        if not samples:
            continue
        ratios = sorted(map(storm_ratio, samples))
        cells.append(
            [
                name,
                f"{len(samples)}",
                middle(samples, "before_p99_us"),
                middle(samples, "with_p99_us"),
                f"{statistics.median(ratios):.2f}× ({ratios[0]:.2f}–{ratios[-1]:.2f})",
                middle(samples, "during_p50_us"),
                middle(samples, "during_max_us"),
                f"{statistics.median(sample['storm_ms'] for sample in samples):.0f}",
                f"{sum(sample['storm_refused'] for sample in samples):.0f}",
            ]
        )
    return Grid("Clients that connect all at once while pairs talk: medians, in ms", columns, cells)


def ceiling_grid(found: Results) -> Grid:
    columns = ["bulking", "window", "requests/s", "p50 ms", "p99", "CPU", "generator"]
    cells = [
        [
            mode,
            f"{window:,}",
            f"{'≥ ' if generator_share(sample) >= GENERATOR_BOUND else ''}{short(sample['rate'])}",
            milliseconds(sample["p50_us"]),
            milliseconds(sample["p99_us"]),
            cpu_us(sample),
            generator(sample),
        ]
        for (mode, window), sample in found.ceilings.items()
    ]
    return Grid("One pair as fast as it goes, with a window of unanswered requests", columns, cells)


def endings(sample: Sample) -> str:
    names = {
        "timed_out": "timed out",
        "state_6": "canceled",
        "state_10": "deleted from storage",
        "state_12": "not delivered",
        "state_13": "error",
        "lost": "nothing came",
        "unsent": "never sent, all packet ids were in use",
    }
    return ", ".join(f"{sample[key]:,.0f} {name}" for key, name in names.items() if sample.get(key))


def stream_bytes(sample: Sample) -> float:
    """Per request: on the way to the broker and from it, of both clients."""
    return per_message(sample, "tcp_sent_bytes", "tcp_received_bytes")


def segments(sample: Sample) -> float:
    return per_message(sample, "segments_out", "segments_in")


def wire_bytes(sample: Sample) -> float:
    return stream_bytes(sample) + document.SEGMENT_OVERHEAD_BYTES * segments(sample)


def per_message(sample: Sample, way_out: str, way_in: str) -> float:
    """Each way by its own count of messages: a bulk on its way when counting ends belongs to one way only."""
    return sum(
        sample[f"{side}_{key}"] / max(sample[f"{side}_messages_{way}"], 1)
        for side in ("requester", "service")
        for way, key in (("out", way_out), ("in", way_in))
    )


def middle(samples: Sequence[Sample], key: str) -> str:
    return milliseconds(statistics.median(sample[key] for sample in samples))


def latency_cell(sample: Sample | None, rate: float, key: str) -> str:
    if sample is None:
        return NOTHING
    if not is_sustained(sample, rate):
        return f"{milliseconds(sample[key])} ({short(sample['rate'])}/s)"
    return milliseconds(sample[key])


def cpu_us(sample: Sample | None) -> str:
    if sample is None or not sample["traffic_requests"]:
        return NOTHING
    return f"{sample['watched_cpu_s'] / sample['traffic_requests'] * 1e6:.0f} µs"


def generator_share(sample: Sample) -> float:
    """Of a core: what all processes of the generator used, and what they waited for while others had it."""
    return (sample["generator_cpu_s"] + sample["generator_wait_s"]) / sample["traffic_s"]


def generator(sample: Sample) -> str:
    return f"{sample['generator_cpu_s'] / sample['traffic_s']:.0%}"
