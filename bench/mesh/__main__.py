"""`python -m bench.mesh`: what it costs to cross from one broker to another, beside one broker alone."""

import contextlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from bench import loadgen
from bench.brokers import START_TIMEOUT_S, BrokerError, polybus_program, polybus_serve, revision
from bench.loadgen import Sample

STOP_S = 10


@dataclass(frozen=True)
class Node:
    mqtt: int
    tbus: int
    process: subprocess.Popen[str]


@dataclass(frozen=True)
class Row:
    name: str
    command: str
    options: dict[str, float | str]
    protocol: str = "mqtt"


ROWS = (
    Row("QoS 0, batches of 64", "throughput", {"qos": 0}),
    Row(
        "QoS 0, batches of 64, 10 subscribers", "throughput", {"qos": 0, "subscribers": 10, "outstanding": 512}
    ),
    Row("QoS 1, window 100", "throughput", {"qos": 1, "window": 100}),
    Row("requests over TBus, 256 at a time", "requests", {"rate": 0, "window": 256}, "tbus"),
    Row("requests over TBus, 1 at a time", "requests", {"rate": 0, "window": 1}, "tbus"),
)


@contextlib.contextmanager
def running(neighbor: Node | None = None) -> Iterator[Node]:
    """A broker in memory, in a network with `neighbor`."""
    command = [*polybus_serve(), "--mqtt-port", "0", "--tbus-port", "0"]
    if neighbor is not None:
        command += ["--neighbor-ip", "127.0.0.1", "--neighbor-port", str(neighbor.tbus)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if "is ready" not in process.stdout.readline():
            raise BrokerError("polybus did not start")
        ports = [urlsplit(process.stdout.readline().strip()).port for _ in range(2)]
        yield Node(ports[0] or 0, ports[1] or 0, process)
    finally:
        process.terminate()
        process.communicate(timeout=STOP_S)


def wait_until_linked(node: Node) -> None:
    url = f"mqtt://127.0.0.1:{node.mqtt}"
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        asked = subprocess.run(
            [*polybus_program(), "ctl", "neighbors", "--url", url], capture_output=True, text=True, check=False
        )
        if ", linked:" in asked.stdout:
            return
    raise BrokerError("the brokers did not find each other")


def measure(row: Row, here: Node, there: Node, seconds: float) -> Sample:
    """Publishers and requesters `here`, subscribers and services `there`."""
    port, other = (here.mqtt, there.mqtt) if row.protocol == "mqtt" else (here.tbus, there.tbus)
    far = "sub_port" if row.command == "throughput" else "service_port"
    pids = ",".join(str(pid) for pid in {here.process.pid, there.process.pid})
    options: dict[str, float | str] = {**row.options, "port": port, "watch": pids, "seconds": seconds}
    if other != port:
        options[far] = other
    return loadgen.run(row.command, **options)


def main(
    quick: Annotated[bool, typer.Option(help="A glance: one short run of each.")] = False,
    runs: Annotated[int, typer.Option(help="Runs of each, in turn; the median is shown.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds of counting.", min=0.1)] = 1.5,
) -> None:
    """Messages and requests that cross a link of two brokers, beside the same load at one of them.

    Both are in the same run, in turn. On two cores the load generator and two brokers share what the load
    generator and one broker have alone.

    Example: python -m bench.mesh --quick
    """
    if quick:
        runs, seconds = 1, 0.5
    table = Table(title=f"across a link, beside one broker (polybus {revision()})")
    for heading in ("", "one broker", "two brokers", "ratio", "CPU one", "CPU two", "missing"):
        table.add_column(heading, justify="left" if not heading else "right")
    with running() as here, running(here) as there, Console().status("measuring"):
        wait_until_linked(here)
        for row in ROWS:
            alone: list[Sample] = []
            across: list[Sample] = []
            for _ in range(runs):
                alone.append(measure(row, here, here, seconds))
                across.append(measure(row, here, there, seconds))
            one, two = median(alone, rate_of), median(across, rate_of)
            table.add_row(
                row.name,
                f"{one:,.0f}/s",
                f"{two:,.0f}/s",
                f"{two / one:.2f}×",
                f"{median(alone, cpu_us):.2f} µs",
                f"{median(across, cpu_us):.2f} µs",
                str(sum(int(sample.get("missing", 0)) for sample in across)),
            )
    Console(width=120).print(table)


def median(samples: list[Sample], figure: Callable[[Sample], float]) -> float:
    return statistics.median(map(figure, samples))


def rate_of(sample: Sample) -> float:
    return float(sample["rate"])


def cpu_us(sample: Sample) -> float:
    """Of all brokers together, for each message or request that arrived."""
    return 1e6 * float(sample["watched_cpu_s"]) / max(1.0, float(sample["count"]))


if __name__ == "__main__":
    typer.run(main)
