"""Rows of results: one figure for every contender, and what becomes of it on the page."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.loadgen import Sample
from bench.page import NOTHING, Grid, Page, short, title_of
from bench.scenarios import Metric

GENERATOR_BOUND = 0.9
"""From this share of a core on, a rate may be the generator's and not the broker's: a lower bound."""
BUSY_MACHINE = 0.05
"""A broker that waits longer than this share of the time for a core is not the only one at work."""


@dataclass(frozen=True)
class Row:
    """One figure for every contender; the first is the base of the ratio, the last the candidate."""

    name: str
    metric: Metric
    samples: dict[str, list[Sample]]
    ceiling: Sample | None = None

    def values(self, label: str) -> list[float]:
        return [sample[self.metric.key] for sample in self.samples.get(label, [])]

    def median(self, label: str) -> float | None:
        values = self.values(label)
        return statistics.median(values) if values else None

    def ratio(self, base: str, candidate: str) -> float | None:
        below, above = self.median(base), self.median(candidate)
        return above / below if below and above is not None and base != candidate else None

    def verdict(self, base: str, candidate: str) -> str:
        value = self.median(candidate)
        if self.metric.aim is None or value is None:
            return NOTHING
        is_met = self.metric.aim.is_met(self.median(base) if base != candidate else None, value)
        if is_met is None:
            return NOTHING
        if self.is_lower_bound(base if is_met else candidate) and base != candidate:
            return "unclear"
        return "met" if is_met else "NOT MET"

    def is_lower_bound(self, label: str) -> bool:
        share = generator_share(self.samples.get(label, []))
        return share is not None and share >= GENERATOR_BOUND

    def faults(self) -> list[str]:
        """Messages that were lost or came in another order: such a figure is not to be trusted."""
        found = []
        for label, samples in self.samples.items():
            for key in ("missing", "disordered"):
                count = sum(sample.get(key, 0) for sample in samples)
                if count:
                    found.append(f"{self.name}, {label}: {count:,.0f} messages {key}")
        return found


@dataclass
class Report(Page):
    contenders: Sequence[str]
    versions: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    idle_rows: list[Row] = field(default_factory=list)
    ceilings: list[tuple[str, str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return title_of(self.versions)

    def notes(self) -> list[str]:
        return [*self.failures, *(fault for row in [*self.rows, *self.idle_rows] for fault in row.faults())]

    def waiting_share(self) -> float:
        """How much of the time brokers were ready to run and had no core: the noise of the machine."""
        shares = [
            sample["watched_wait_s"] / sample["seconds"]
            for row in [*self.rows, *self.idle_rows]
            for samples in row.samples.values()
            for sample in samples
            if "watched_wait_s" in sample
        ]
        return statistics.median(shares) if shares else 0.0

    def remarks(self) -> list[str]:
        share = self.waiting_share()
        if share < BUSY_MACHINE:
            return []
        return [
            f"The machine was busy with other work: brokers waited {share:.0%} of the time for a core. "
            "Rates and latencies are off; rely on CPU per delivery, or run again."
        ]

    def grids(self) -> list[Grid]:
        grids = []
        if self.rows:
            grids.append(main_grid(self.rows, self.contenders))
        if self.idle_rows:
            grids.append(idle_grid(self.idle_rows))
        if self.ceilings:
            cells = [[name, meaning, short(rate)] for name, meaning, rate in self.ceilings]
            grids.append(Grid("The generator alone", ["sink", "what", "msg/s"], cells))
        return grids

    def figures(self) -> Mapping[str, object]:
        rows = [
            {
                "name": row.name,
                "key": row.metric.key,
                "unit": row.metric.unit,
                "aim": row.metric.aim.text if row.metric.aim else None,
                "median": {label: row.median(label) for label in row.samples},
                "samples": row.samples,
                "ceiling": row.ceiling,
            }
            for row in [*self.rows, *self.idle_rows]
        ]
        return {
            "versions": self.versions,
            "rows": rows,
            "sink": [{"name": name, "rate": rate} for name, _, rate in self.ceilings],
            "waiting_share": self.waiting_share(),
        }


def main_grid(rows: Sequence[Row], contenders: Sequence[str]) -> Grid:
    base, candidate = contenders[0], contenders[-1]
    columns = [
        "scenario",
        *contenders,
        "ratio",
        "aim",
        "",
        "relay",
        *(f"CPU {name}" for name in contenders),
        "generator",
    ]
    cells = [
        [
            row.name,
            *(figure(row, label) for label in contenders),
            times(row, base, candidate),
            row.metric.aim.text if row.metric.aim else NOTHING,
            row.verdict(base, candidate),
            short(row.ceiling[row.metric.key]) if row.ceiling else NOTHING,
            *(cpu_us(row.samples.get(label, [])) for label in contenders),
            " / ".join(busy(row.samples.get(label, [])) for label in contenders),
        ]
        for row in rows
    ]
    return Grid(f"{candidate} beside {base}" if base != candidate else base, columns, cells)


def idle_grid(rows: Sequence[Row]) -> Grid:
    cells = []
    for row in rows:
        shown = times(row, "bare", "loaded")
        aim = row.metric.aim.text if row.metric.aim else NOTHING
        verdict = row.verdict("bare", "loaded")
        cpu = [cpu_us(row.samples.get(label, [])) for label in ("bare", "loaded")]
        cells.append([row.name, figure(row, "bare"), figure(row, "loaded"), shown, aim, verdict, *cpu])
    columns = ["scenario", "bare", "loaded", "ratio", "aim", "", "CPU bare", "CPU loaded"]
    return Grid("The same broker with 100,000 idle subscriptions and 100,000 retained messages", columns, cells)


def figure(row: Row, label: str) -> str:
    """Median and half the range, in per cent of it."""
    median, values = row.median(label), row.values(label)
    if median is None:
        return NOTHING
    spread = f" ±{(max(values) - min(values)) / 2 / median:.0%}" if len(values) > 1 and median else ""
    return f"{'≥ ' if row.is_lower_bound(label) else ''}{short(median)}{spread}"


def cpu_us(samples: Sequence[Sample]) -> str:
    """The broker's CPU microseconds per delivery: the same as seconds per million."""
    used = [sample["watched_cpu_s"] / sample["count"] * 1e6 for sample in samples if sample.get("count")]
    return f"{statistics.median(used):.3g} µs" if used else NOTHING


def generator_share(samples: Sequence[Sample]) -> float | None:
    """How much of a core the generator wanted: what it used, and what it waited for while others used it."""
    shares = [
        (s["generator_cpu_s"] + s.get("generator_wait_s", 0)) / s["seconds"]
        for s in samples
        if "generator_cpu_s" in s
    ]
    return statistics.median(shares) if shares else None


def busy(samples: Sequence[Sample]) -> str:
    share = generator_share(samples)
    return NOTHING if share is None else f"{share:.0%}"


def times(row: Row, base: str, candidate: str) -> str:
    """The ratio, with what is known of it when one of its sides is a lower bound."""
    ratio = row.ratio(base, candidate)
    if ratio is None:
        return NOTHING
    bounds = {(False, False): "", (False, True): "≥ ", (True, False): "≤ ", (True, True): "~ "}
    return f"{bounds[row.is_lower_bound(base), row.is_lower_bound(candidate)]}{ratio:.2f}×"
