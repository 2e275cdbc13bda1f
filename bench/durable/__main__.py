"""`python -m bench.durable`: what it costs to forget nothing, beside brokers that do."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import brokers, loadgen
from bench.__main__ import RESULTS
from bench.brokers import BrokerError
from bench.durable import streams
from bench.durable.contenders import CONTENDERS, RESTARTED
from bench.durable.measure import FULL, LOADS, QUICK, SHAPES, Effort, Results, Session
from bench.durable.report import Report
from bench.loadgen import LoadgenError
from bench.requests.__main__ import chosen

PARTS = ("throughput", "latency", "restart", "streams")


def main(
    quick: Annotated[bool, typer.Option(help="A glance in half a minute.")] = False,
    only: Annotated[str, typer.Option(help=f"Parts of the whole: {', '.join(PARTS)}.")] = ",".join(PARTS),
    peers: Annotated[str, typer.Option(help=f"Of {', '.join(CONTENDERS)}.")] = ",".join(CONTENDERS),
    queued: Annotated[int, typer.Option(help="Messages that wait at a restart; 0: as usual.", min=0)] = 0,
    runs: Annotated[int, typer.Option(help="Rounds of the first two parts; 0: as usual.", min=0)] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the results to this file as well.")] = None,
) -> None:
    """Durable sessions beside Polybus in memory and Mosquitto without persistence.

    Examples:

    python -m bench.durable                              everything, two to three minutes

    python -m bench.durable --quick                      a glance

    python -m bench.durable --only restart --queued 100000

    python -m bench.durable --only throughput --peers memory,normal --runs 9

    Results go to bench/results/ too. The exit status is 1 if a measurement failed or a message is missing; an
    aim that is not met does not change it.
    """
    parts = chosen(only, PARTS, "--only")
    names = chosen(peers, tuple(CONTENDERS), "--peers")
    base = QUICK if quick else FULL
    effort = replace(base, runs=runs or base.runs, queued=queued or base.queued)
    console = Console(width=None if Console().is_terminal else 160)
    started = time.monotonic()
    results = Results()
    try:
        loadgen.build()
        sources = brokers.fingerprint()
        versions = {name: brokers.version(name) for name in versions_of(names)}
        run_parts(parts, names, effort, results, console)
        if brokers.fingerprint() != sources:
            results.failures.append("the sources changed during the run: its rows are not of one broker")
    except (BrokerError, LoadgenError) as error:
        console.print(f"[red]{error}")
        raise typer.Exit(1) from None
    report = Report(versions, results)
    report.show(console)
    page = report.save(RESULTS, time.strftime("%Y%m%d-%H%M%S-durable"))
    if json is not None:
        json.write_text(report.json())
    console.print(f"{time.monotonic() - started:.0f} s; kept in {page.with_suffix('')}.md and .json")
    if report.notes():
        raise typer.Exit(1)


def versions_of(names: list[str]) -> list[str]:
    """The programs behind the contenders."""
    return [*(["mosquitto"] if "mosquitto" in names else []), *(["polybus"] if names != ["mosquitto"] else [])]


def restarts_of(names: list[str]) -> list[str]:
    """Those of the chosen brokers that have something left after their end."""
    return [name for name in RESTARTED if name.split(",")[0] in names]


def run_parts(parts: list[str], names: list[str], effort: Effort, results: Results, console: Console) -> None:
    restarts = restarts_of(names)
    steps = {
        "throughput": effort.runs * len(names) * len(LOADS),
        "latency": effort.runs * len(names),
        "restart": len(restarts) * len(SHAPES),
        "streams": int(streams.is_there()),
    }
    columns = (TextColumn("{task.description:32}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=sum(steps[part] for part in parts))
        session = Session(effort, results, lambda label: progress.update(task, advance=1, description=label))
        if "throughput" in parts:
            session.run_throughput(names)
        if "latency" in parts:
            session.run_latency(names)
        if "restart" in parts:
            for name in restarts:
                session.run_restart(name)
        if "streams" in parts and streams.is_there():
            session.run_streams(is_quick=effort.queued < FULL.queued)


if __name__ == "__main__":
    typer.run(main)
