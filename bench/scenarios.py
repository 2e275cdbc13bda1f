"""What is measured, and what is aimed at."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench import measure
from bench.measure import Probe

IDLE_SUBSCRIPTIONS = {"connections": 100, "filters": 1000}
IDLE_RETAINED = 100_000


@dataclass(frozen=True)
class Aim:
    """A limit for the ratio candidate / base, or for the candidate's value itself."""

    of: Literal["ratio", "value"]
    is_upper: bool
    limit: float
    text: str

    def is_met(self, base: float | None, candidate: float) -> bool | None:
        """None when there is nothing to compare with."""
        if self.of == "ratio" and not base:
            return None
        found = candidate / base if self.of == "ratio" and base else candidate
        return found <= self.limit if self.is_upper else found >= self.limit


@dataclass(frozen=True)
class Metric:
    """One figure of a sample."""

    key: str
    unit: str
    label: str = ""
    aim: Aim | None = None


@dataclass(frozen=True)
class Scenario:
    name: str
    meaning: str
    probe: Probe
    metrics: tuple[Metric, ...]
    has_ceiling: bool = False  # whether the relay can run it too
    is_repeatable: bool = True  # whether the same broker can be probed again


def at_least(ratio: float) -> Aim:
    return Aim("ratio", False, ratio, f"≥ {ratio:g}×")


NO_WORSE = Aim("ratio", True, 1.0, "≤ 1×")
SIX_KILOBYTES = Aim("value", True, 6000, "≤ 6 kB")
UNMOVED = Aim("ratio", False, 0.9, "≥ 0.9×")

# Messages per publisher sent and not yet delivered: enough for a broker to work in batches, and little
# enough (some megabytes in all) that none has a reason to drop.
PATTERNS: dict[str, dict[str, float | str]] = {
    "1to1": {"publishers": 1, "subscribers": 1, "outstanding": 4096},
    "1to100": {"publishers": 1, "subscribers": 100, "outstanding": 512},
    "100to1": {"publishers": 100, "subscribers": 1, "outstanding": 128},
    "100pairs": {"publishers": 100, "subscribers": 100, "pattern": "pairs", "outstanding": 128},
}
WRITES = {"batch": 64, "single": 1}  # packets a write
A_WRITE = {"batch": "64 packets a write", "single": "one packet a write"}
AIMS = {
    (0, "batch"): at_least(5),
    (1, "batch"): at_least(4),
    (0, "single"): at_least(2),
    (1, "single"): at_least(2),
}
# A publisher that repeats one topic and one size is the best case of a broker that handles runs of packets
# together. Here neighbours differ in topic and in size, though all go to the same subscribers …
MIXED = tuple((qos, pattern) for qos in (0, 1) for pattern in PATTERNS)
# … and here neighbours never go to the same subscriber.
SCATTER: dict[str, float | str] = {
    "publishers": 1,
    "subscribers": 64,
    "topics": 64,
    "pattern": "scatter",
    "mixed_sizes": 1,
    "outstanding": 4096,
}


def deliveries(name: str, meaning: str, aim: Aim | None, **options: float | str) -> Scenario:
    metric = Metric("rate", "msg/s", aim=aim)
    return Scenario(name, meaning, measure.throughput(**options), (metric,), has_ceiling=True)


def throughput_scenarios() -> Iterator[Scenario]:
    for write, batch in WRITES.items():
        for qos in (0, 1):
            for pattern, options in PATTERNS.items():
                meaning = f"{pattern}, QoS {qos}, 64 B, {A_WRITE[write]}"
                yield deliveries(
                    f"{pattern}-qos{qos}-{write}", meaning, AIMS[qos, write], qos=qos, batch=batch, **options
                )
        yield deliveries(
            f"1to1-qos2-{write}",
            f"1to1, QoS 2, 64 B, {A_WRITE[write]}",
            None,
            qos=2,
            batch=batch,
            **PATTERNS["1to1"],
        )
    for qos, pattern in MIXED:
        meaning = f"{pattern}, QoS {qos}, 32 to 96 B, 16 topics a publisher in turn, 64 packets a write"
        options = {**PATTERNS[pattern], "topics": 16, "mixed_sizes": 1}
        yield deliveries(f"{pattern}-qos{qos}-mixed", meaning, AIMS[qos, "batch"], qos=qos, **options)
    for qos in (0, 1):
        meaning = f"1 publisher, QoS {qos}, 32 to 96 B, 64 topics in turn, each with a subscriber of its own"
        yield deliveries(f"1to64-qos{qos}-scatter", meaning, AIMS[qos, "batch"], qos=qos, **SCATTER)
    for label, payload, outstanding in (("1kB", 1000, 2048), ("10kB", 10_000, 256)):
        yield deliveries(
            f"1to1-qos0-{label}",
            f"1to1, QoS 0, {label}",
            at_least(5),
            payload=payload,
            outstanding=outstanding,
        )


SCENARIOS: tuple[Scenario, ...] = (
    *throughput_scenarios(),
    Scenario(
        "latency-1000",
        "1to1, QoS 0, 64 B, 1,000 msg/s",
        measure.latency,
        (Metric("p50_us", "µs", "p50"), Metric("p99_us", "µs", "p99", NO_WORSE)),
        has_ceiling=True,
    ),
    Scenario(
        "connects",
        "TCP, CONNECT, CONNACK; 100 at a time",
        measure.connects,
        (Metric("rate", "conn/s"),),
        True,
    ),
    Scenario(
        "memory-idle",
        "per idle connection with one subscription",
        measure.memory,
        (Metric("bytes", "B/conn", aim=SIX_KILOBYTES),),
        is_repeatable=False,
    ),
)

# The same broker with and without 100,000 subscriptions and 100,000 retained messages that do not match.
IDLE_COST: tuple[Scenario, ...] = tuple(
    deliveries(f"idle-cost-qos{qos}", f"1to1, QoS {qos}, batch", UNMOVED, qos=qos, **PATTERNS["1to1"])
    for qos in (0, 1)
)


@dataclass(frozen=True)
class Ceiling:
    """What one side of the generator can do against a peer that does next to nothing."""

    name: str
    meaning: str
    peer: str
    probe: Probe


CEILINGS: tuple[Ceiling, ...] = (
    *(
        Ceiling(
            f"sink-publish-qos{qos}-{write}",
            f"1 publisher, QoS {qos}, {A_WRITE[write]}, to a peer that {does}",
            "discard",
            measure.throughput(subscribers=0, qos=qos, batch=batch),
        )
        for qos, does in ((0, "reads and discards"), (1, "acknowledges and discards"))
        for write, batch in WRITES.items()
    ),
    *(
        Ceiling(
            f"sink-receive-qos{qos}",
            f"1 subscriber, QoS {qos}, from a peer that only sends",
            "blast",
            measure.throughput(publishers=0, qos=qos),
        )
        for qos in (0, 1)
    ),
)
