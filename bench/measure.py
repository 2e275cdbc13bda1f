"""How each kind of figure is taken from a running broker.

A probe is a function (broker, effort) → sample; it may run several times against the same broker, in turn
with the same probe against another.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench import loadgen
from bench.brokers import Broker
from bench.loadgen import Sample

Probe = Callable[[Broker, "Effort"], Sample]

SETTLE_INTERVAL_S = 0.5
SETTLE_TIMEOUT_S = 8.0
SETTLED_WITHIN = 0.005


@dataclass(frozen=True)
class Effort:
    """How long everything is measured."""

    runs: int
    seconds: float
    warmup_s: float
    latency_s: float
    connections: int


FULL = Effort(runs=3, seconds=1.3, warmup_s=0.3, latency_s=4.0, connections=5000)
QUICK = Effort(runs=1, seconds=0.3, warmup_s=0.1, latency_s=1.5, connections=2000)


def throughput(**options: float | str) -> Probe:
    """Deliveries per second, with the options of `loadgen throughput`."""

    def probe(broker: Broker, effort: Effort) -> Sample:
        return loadgen.run(
            "throughput",
            port=broker.port,
            watch=broker.watch(),
            warmup=effort.warmup_s,
            seconds=effort.seconds,
            **options,
        )

    return probe


def latency(broker: Broker, effort: Effort) -> Sample:
    """Percentiles of the way from publisher to subscriber at 1,000 msg/s."""
    return loadgen.run(
        "latency", port=broker.port, watch=broker.watch(), warmup=effort.warmup_s, seconds=effort.latency_s
    )


def connects(broker: Broker, effort: Effort) -> Sample:
    """Connections made per second, 100 at a time."""
    return loadgen.run(
        "connects", port=broker.port, watch=broker.watch(), warmup=effort.warmup_s, seconds=effort.seconds
    )


def memory(broker: Broker, effort: Effort) -> Sample:
    """What a broker grows by for each idle connection with one subscription."""
    with loadgen.holding(port=broker.port, connections=50):
        pass  # what is made once, at first use, is not to be counted
    before = settled_memory_bytes(broker)
    with loadgen.holding(port=broker.port, connections=effort.connections):
        after = settled_memory_bytes(broker)
    return {"bytes": (after - before) / effort.connections, "before_bytes": before, "after_bytes": after}


def settled_memory_bytes(broker: Broker) -> int:
    """The broker's memory when it has stopped changing, or after some seconds."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    last = broker.memory_bytes()
    while time.monotonic() < deadline:
        time.sleep(SETTLE_INTERVAL_S)
        now = broker.memory_bytes()
        if abs(now - last) <= SETTLED_WITHIN * now:
            return now
        last = now
    return last


def alternate(
    contenders: Mapping[str, Broker], probe: Probe, effort: Effort, runs: int, on_run: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """Probe the contenders in turn (A B A B), so that a noisy minute hits all of them."""
    samples: dict[str, list[Sample]] = {label: [] for label in contenders}
    for _ in range(runs):
        for label, broker in contenders.items():
            samples[label].append(probe(broker, effort))
            on_run(label)
    return samples
