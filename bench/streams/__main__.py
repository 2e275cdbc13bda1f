"""`python -m bench.streams`: the bus with a stream of everything beside the same bus without, in one run."""

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench import brokers, loadgen, measure
from bench.brokers import BrokerError
from bench.loadgen import LoadgenError
from bench.measure import FULL, QUICK, Effort, Probe
from bench.scenarios import PATTERNS
from polybus.broker.message import Message, Run
from polybus.session.mqtt.encoding import MQTT_311
from polybus.store.folder import DataFolder
from polybus.store.streams.reader import FolderSource
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.writer import MOST_WAITING_BYTES, StreamSet
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V311, Publish

SCENARIOS: dict[str, dict[str, float | str]] = {
    "1to1, QoS 0, alike": {**PATTERNS["1to1"], "qos": 0, "batch": 64},
    "1to1, QoS 0, mixed": {**PATTERNS["1to1"], "qos": 0, "topics": 16, "mixed_sizes": 1},
    "1to1, QoS 0, 1 kB": {**PATTERNS["1to1"], "qos": 0, "payload": 1000, "outstanding": 2048},
    "1to1, QoS 1, window": {**PATTERNS["1to1"], "qos": 1, "batch": 64},
}
AIM = 0.7
RUN = 256
RECORDS = 2_000_000


def main(
    quick: Annotated[bool, typer.Option(help="Short runs.")] = False,
    contender: Annotated[
        list[str] | None,
        typer.Option("--with", help="Of bench.brokers: stream, stream-plain, stream-4, …"),
    ] = None,
    only: Annotated[str, typer.Option(help="A part of a scenario's name, append or read.")] = "",
    runs: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Deliveries/s without and with capture, as ratios of one run; then how fast streams are written and
    read. `most` is the ratio if nobody ever waited: bus and load generator share the cores of this machine, and
    what keeping costs is taken from both."""
    effort = QUICK if quick else FULL
    console = Console(width=None if Console().is_terminal else 140)
    try:
        loadgen.build()
        table = throughput(effort, contender or ["stream"], runs, only)
        if table.row_count:
            console.print(table)
    except (BrokerError, LoadgenError) as error:
        console.print(f"[red]{error}")
        raise typer.Exit(1) from None
    for name, rates in files(quick).items() if only in ("", "append", "read") else ():
        console.print(f"{name}: {rates / 1e6:.2f} M records/s")


def throughput(effort: Effort, contenders: list[str], runs: int, only: str) -> Table:
    columns = ("scenario", "without", *contenders, "ratios", "aim", "CPU ns each", "most")
    table = Table(*columns, title="deliveries/s, median")
    for name, options in SCENARIOS.items():
        if only not in name:
            continue
        probe: Probe = measure.throughput(**options)
        with ExitStack() as stack:
            running = {label: stack.enter_context(brokers.running(label)) for label in ("polybus", *contenders)}
            samples = measure.alternate(running, probe, effort, runs, lambda label: None)
        rates = {label: statistics.median(s["rate"] for s in found) for label, found in samples.items()}
        ratios = [rates[label] / rates["polybus"] for label in contenders]
        met = "yes" if ratios[0] >= AIM else "no"
        shown = [f"{rate / 1e3:,.0f} k" for rate in rates.values()]
        costs = [cost_ns(found, "watched_cpu_s") for found in samples.values()]
        load = cost_ns([each for found in samples.values() for each in found], "generator_cpu_s")
        most = [min(1.0, costs[0] * (os.cpu_count() or 1) / (cost + load)) for cost in costs[1:]]
        table.add_row(
            name,
            *shown,
            " ".join(f"{r:.2f}" for r in ratios),
            f"≥ {AIM:g}: {met}",
            f"{' '.join(f'{cost:.0f}' for cost in costs)}, load {load:.0f}",
            " ".join(f"{ratio:.2f}" for ratio in most),
        )
    return table


def cost_ns(samples: Sequence[Mapping[str, float]], of: str) -> float:
    """CPU for each delivery, which says more than the rate when others use the machine, too."""
    return statistics.median(sample[of] / sample["count"] * 1e9 for sample in samples)


def files(quick: bool) -> dict[str, float]:
    """Records per second of this process alone: runs of alike packets, mixed packets, messages, and reading."""
    records = RECORDS // 4 if quick else RECORDS
    alike = b"".join(encode(Publish("sensors/a", b"x" * 64), V311) for _ in range(RUN))
    mixed = b"".join(encode(Publish(f"sensors/{n % 16}", b"x" * (32 + n % 64)), V311) for n in range(RUN))
    items: dict[str, tuple[Run | Message, int, int]] = {
        "append, runs of alike packets": (
            Run(alike, RUN, MQTT_311, "bench", size=len(alike) // RUN),
            RUN,
            records,
        ),
        "append, runs of mixed packets": (Run(mixed, RUN, MQTT_311, "bench"), RUN, records // 4),
        "append, single messages": (Message("sensors/a", b"x" * 64, 1, origin="bench"), 1, records // 10),
    }
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="polybus-bench-") as folder:
        for number, (name, (item, count, total)) in enumerate(items.items()):
            place = Path(folder, str(number))
            found[name] = total / timed(lambda: append(place, item, total // count))  # noqa: B023 (called at once)
        found["read from files, checksums checked"] = records / timed(lambda: read(Path(folder, "0"), records))
    return found


def append(place: Path, item: Run | Message, times: int) -> None:
    with DataFolder(place) as folder:
        streams = StreamSet(folder, [StreamRule("all", ("#",))])
        posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        streams.start(lambda call, *arguments: posted.put(functools.partial(call, *arguments)))
        log = streams.log_of("sensors/a")
        assert log is not None
        for _ in range(times):
            if not log.append(item):  # as a publisher is stopped
                while streams.waiting_bytes() > MOST_WAITING_BYTES // 2:
                    posted.get()()
            while not posted.empty():
                posted.get()()
        streams.close()


def read(place: Path, records: int) -> None:
    found = sum(len(batch) for batch in FolderSource(place).batches("all"))
    if found != records // RUN * RUN:
        raise BrokerError(f"{found} records were read, {records} written")


def timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    typer.run(main)
