"""What is run, in which order and for how long. Brokers of all modes stand side by side and take turns."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench import brokers, loadgen
from bench.brokers import Broker
from bench.loadgen import LoadgenError, Sample
from bench.requests import document

MODES = ("off", "fixed", "adaptive")
PAIR_RATE = 10.0
BYTES_FROM_RATE = 1024
SUSTAINED = 0.95
EDGE_S = 0.05  # answers come in lumps as long as the document's window, and the counted time may cut one
STORM_MODE = "adaptive"
# What is compared is bulking. A service that takes few requests at once would hold back the fixed window
# most: it answers nothing for 50 ms, and meanwhile the broker has to store what comes.
NO_LIMIT = 65535

OnRun = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured, and how long."""

    rates: tuple[int, ...]
    pairs: tuple[int, ...]
    seconds: float
    least_requests: int  # low rates run longer, until this many were sent
    rounds: int  # of the rates that aims are about; the one with the middle p50 is shown
    pairs_s: float
    storm_s: float
    storms: int
    windows: tuple[int, ...]
    ceiling_s: float

    def seconds_at(self, rate: int) -> float:
        return max(self.seconds, min(5.0, self.least_requests / rate))

    def rounds_at(self, rate: int) -> int:
        return self.rounds if rate >= BYTES_FROM_RATE else 1


FULL = Effort(
    rates=tuple(document.ONE_PAIR),
    pairs=(200, 1000),
    seconds=1.5,
    least_requests=20,
    rounds=3,
    pairs_s=3.0,
    storm_s=3.0,
    storms=7,
    windows=(256, 4096),
    ceiling_s=1.5,
)
QUICK = Effort(
    rates=(64, 1024, 8192),
    pairs=(200, 1000),
    seconds=0.6,
    least_requests=0,
    rounds=1,
    pairs_s=1.0,
    storm_s=2.0,
    storms=1,
    windows=(256,),
    ceiling_s=0.8,
)


@dataclass
class Results:
    rates: dict[int, dict[str, Sample]] = field(default_factory=dict)
    rate_runs: list[tuple[int, str, Sample]] = field(default_factory=list)
    """All of them, of which `rates` has the typical ones."""
    pairs: dict[int, dict[str, Sample]] = field(default_factory=dict)
    storms: list[Sample] = field(default_factory=list)
    controls: list[Sample] = field(default_factory=list)
    """The same storm at a bystander: what it costs to have its work on the same machine."""
    ceilings: dict[tuple[str, int], Sample] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def samples(self) -> Iterator[tuple[str, Sample]]:
        yield from ((f"{rate:,}/s {mode}", sample) for rate, mode, sample in self.rate_runs)
        for pairs, by_mode in self.pairs.items():
            yield from ((f"{pairs:,} pairs {mode}", sample) for mode, sample in by_mode.items())
        yield from (("storm", sample) for sample in self.storms)
        yield from (("storm at a bystander", sample) for sample in self.controls)
        yield from ((f"ceiling {mode} {window}", sample) for (mode, window), sample in self.ceilings.items())


def unanswered(sample: Sample) -> float:
    return sample["timed_out"] + sample["errors"] + sample["lost"] + sample["unsent"]


def is_sustained(sample: Sample, rate: float) -> bool:
    """Whether all were answered, and as fast as they were due."""
    due = rate * sample["seconds"]
    answered = sample["rate"] * sample["seconds"]
    return unanswered(sample) == 0 and answered >= SUSTAINED * due - rate * EDGE_S - 2


def typical(samples: Sequence[Sample]) -> Sample:
    """The one in the middle: a noisy moment of the machine does not decide."""
    return sorted(samples, key=lambda sample: sample["p50_us"])[len(samples) // 2]


class Session:
    """All measurements against brokers that run for as long as the session."""

    def __init__(self, tbus: Mapping[str, Broker], effort: Effort, results: Results, on_run: OnRun) -> None:
        self.tbus = tbus
        self.effort = effort
        self.results = results
        self.on_run = on_run

    def run(self, mode: str, label: str, **options: float | str) -> Sample | None:
        """One measurement; one that fails is noted, and the others go on."""
        self.on_run(f"{label} {mode}")
        broker = self.tbus[mode]
        try:
            return loadgen.run("requests", port=broker.port, watch=broker.watch(), bulk=mode, **options)
        except LoadgenError as error:
            self.results.failures.append(f"{label} {mode} failed: {error}")
            return None

    def run_rates(self, rates: Sequence[int]) -> None:
        """One pair, faster and faster; a mode that cannot keep up is not asked for more."""
        modes = list(self.tbus)
        for rate in rates:
            runs: dict[str, list[Sample]] = {mode: [] for mode in modes}
            seconds = self.effort.seconds_at(rate)
            for _ in range(self.effort.rounds_at(rate)):
                for mode in modes:
                    sample = self.run(mode, f"{rate:,}/s", rate=rate, seconds=seconds, concurrency=NO_LIMIT)
                    if sample is not None:
                        runs[mode].append(sample)
            self.results.rate_runs += [(rate, mode, sample) for mode in modes for sample in runs[mode]]
            for mode, samples in runs.items():
                if samples:
                    self.results.rates.setdefault(rate, {})[mode] = typical(samples)
                if not samples or not is_sustained(typical(samples), rate):
                    modes.remove(mode)

    def run_pairs(self, counts: Sequence[int], modes: Sequence[str]) -> None:
        for pairs in counts:
            for mode in modes:
                sample = self.run(
                    mode, f"{pairs:,} pairs", pairs=pairs, rate=PAIR_RATE, seconds=self.effort.pairs_s
                )
                if sample is not None:
                    self.results.pairs.setdefault(pairs, {})[mode] = sample

    def run_storms(self, pairs: int, clients: int) -> None:
        """At the broker and at a bystander in turn; anyone who says "welcome" will do as the latter."""
        options: dict[str, float | str] = {
            "pairs": pairs,
            "rate": PAIR_RATE,
            "seconds": self.effort.storm_s,
            "storm": clients,
        }
        mode = STORM_MODE if STORM_MODE in self.tbus else next(iter(self.tbus))
        with brokers.running("discard") as bystander:
            for _ in range(self.effort.storms):
                storm = self.run(mode, "storm", **options)
                if storm is not None:
                    self.results.storms.append(storm)
                control = self.run(mode, "storm at a bystander", storm_port=bystander.port, **options)
                if control is not None:
                    self.results.controls.append(control)

    def run_ceilings(self) -> None:
        for mode in self.tbus:
            for window in self.effort.windows:
                options: dict[str, float | str] = {"rate": 0, "window": window, "concurrency": NO_LIMIT}
                sample = self.run(mode, f"ceiling, window {window:,}", seconds=self.effort.ceiling_s, **options)
                if sample is not None:
                    self.results.ceilings[mode, window] = sample


@contextlib.contextmanager
def tbus_brokers(modes: Sequence[str]) -> Iterator[dict[str, Broker]]:
    with contextlib.ExitStack() as stack:
        yield {mode: stack.enter_context(brokers.running(f"tbus-{mode}")) for mode in modes}
