"""What is run, in which order and for how long. The contenders stand side by side and take turns."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench import brokers, loadgen
from bench.brokers import Broker, BrokerError
from bench.durable import streams
from bench.durable.contenders import CONTENDERS, mortal
from bench.loadgen import LoadgenError, Sample

LATENCY_RATE = 1000
WINDOW = 100
ALIKE = "alike"
SHAPES: Mapping[str, Mapping[str, float]] = {ALIKE: {}, "mixed": {"topics": 16, "mixed_sizes": 1}}
"""Neighbouring messages of one topic and size, which Polybus handles as one, and others, which it cannot."""

LOADS: Mapping[str, Mapping[str, float]] = {**SHAPES, "alike, at QoS 2": {"qos": 2}}
"""Of the throughput."""

OnRun = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured, and how long."""

    runs: int
    warmup_s: float
    seconds: float
    latency_s: float
    queued: int


FULL = Effort(runs=5, warmup_s=0.3, seconds=1.3, latency_s=4.0, queued=1_000_000)
QUICK = Effort(runs=1, warmup_s=0.1, seconds=0.4, latency_s=1.0, queued=20_000)


@dataclass
class Results:
    throughput: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    """Shape -> broker -> one for each round."""
    latency: dict[str, list[Sample]] = field(default_factory=dict)
    restarts: dict[str, dict[str, Sample]] = field(default_factory=dict)
    """Shape -> broker."""
    streams: dict[str, float] = field(default_factory=dict)
    """What -> records per second."""
    failures: list[str] = field(default_factory=list)

    def samples(self) -> Iterator[tuple[str, Sample]]:
        for shape, by_name in self.throughput.items():
            for name, samples in by_name.items():
                yield from ((f"throughput {shape} {name}", sample) for sample in samples)
        for name, samples in self.latency.items():
            yield from ((f"latency {name}", sample) for sample in samples)
        for shape, restarts in self.restarts.items():
            yield from ((f"restart {shape} {name}", sample) for name, sample in restarts.items())


class Session:
    def __init__(self, effort: Effort, results: Results, on_run: OnRun) -> None:
        self.effort = effort
        self.results = results
        self.on_run = on_run

    def run_throughput(self, names: Sequence[str]) -> None:
        """From one to one, as fast as it goes, to a session that the broker keeps."""
        effort = self.effort
        options = {"qos": 1, "window": WINDOW, "warmup": effort.warmup_s, "seconds": effort.seconds}
        for shape, differences in LOADS.items():
            found = self.results.throughput.setdefault(shape, {})
            self._alternate("throughput", f"throughput {shape}", names, found, {**options, **differences})

    def run_latency(self, names: Sequence[str]) -> None:
        """The same at a rate that leaves everyone time."""
        effort = self.effort
        options = {"qos": 1, "rate": LATENCY_RATE, "warmup": effort.warmup_s, "seconds": effort.latency_s}
        self._alternate("latency", "latency", names, self.results.latency, options)

    def run_restart(self, name: str) -> None:
        """Many messages wait for one session; the broker ends, and is started again."""
        for shape, differences in SHAPES.items():
            label = f"restart {shape} {name}"
            self.on_run(label)
            try:
                sample = restart(name, self.effort.queued, differences)
                self.results.restarts.setdefault(shape, {})[name] = sample
            except (LoadgenError, BrokerError) as error:
                self.results.failures.append(f"{label} failed: {error}")

    def run_streams(self, *, is_quick: bool) -> None:
        self.on_run("streams")
        try:
            self.results.streams = streams.rates(is_quick=is_quick)
        except LoadgenError as error:
            self.results.failures.append(f"streams failed: {error}")

    def _alternate(
        self,
        command: str,
        label: str,
        names: Sequence[str],
        found: dict[str, list[Sample]],
        options: Mapping[str, float],
    ) -> None:
        with running_all(names) as contenders:
            for _ in range(self.effort.runs):
                for name, broker in contenders.items():
                    self.on_run(f"{label} {name}")
                    try:
                        sample = loadgen.run(command, port=broker.port, watch=broker.watch(), kept=1, **options)
                    except LoadgenError as error:
                        self.results.failures.append(f"{label} {name} failed: {error}")
                        continue
                    found.setdefault(name, []).append(sample)


@contextlib.contextmanager
def running_all(names: Sequence[str]) -> Iterator[dict[str, Broker]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(brokers.running(name, CONTENDERS)) for name in names}


def restart(name: str, count: int, shape: Mapping[str, float]) -> Sample:
    """Times in seconds from the start of the second process; raises LoadgenError or BrokerError."""
    with mortal(name) as broker:
        empty_from, empty_until = broker.start()
        queued = loadgen.run("queue", port=broker.port, count=count, **shape)
        broker.end()
        kept = broker.kept_bytes()
        began, ready = broker.start()
        topics = shape.get("topics", 1)
        drained = loadgen.run("drain", port=broker.port, count=count, topics=topics)
        return {
            "queued": count,
            "queue_rate": queued["rate"],
            "empty_s": empty_until - empty_from,
            "ready_s": ready - began,
            "first_s": drained["first_at_s"] - began,
            "drain_rate": drained["rate"],
            "kept_bytes": kept,
            **{key: drained[key] for key in ("missing", "repeated", "disordered")},
        }
