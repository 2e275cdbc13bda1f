"""`python -m bench`: start the brokers side by side, measure them in turn, print a table of ratios."""

import contextlib
import fnmatch
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import brokers, loadgen, measure
from bench.brokers import Broker, BrokerError
from bench.loadgen import LoadgenError, Sample
from bench.measure import Effort
from bench.report import Report, Row
from bench.scenarios import (
    CEILINGS,
    IDLE_COST,
    IDLE_RETAINED,
    IDLE_SUBSCRIPTIONS,
    SCENARIOS,
    Ceiling,
    Scenario,
)

RESULTS = Path(__file__).parent / "results"
CEILING_S = 0.5

OnRun = Callable[[str], None]


def main(
    quick: Annotated[bool, typer.Option(help="Short runs, once each: a glance, not a result.")] = False,
    only: Annotated[
        str, typer.Option(help="Scenarios whose name contains or matches this (qos1, '1to*').")
    ] = "",
    peers: Annotated[
        str, typer.Option(help="Brokers; the first is the base of the ratios.")
    ] = "mosquitto,polybus",
    runs: Annotated[int, typer.Option(help="Runs per scenario and broker; 0 is the usual number.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the results to this file as well.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only say which scenarios there are.")] = False,
) -> None:
    """Measure Polybus beside its peers. Results go to bench/results/ too."""
    if list_:
        everything: list[Scenario | Ceiling] = [*SCENARIOS, *IDLE_COST, *CEILINGS]
        for item in everything:
            print(f"{item.name:28}{item.meaning}")
        return
    effort = measure.QUICK if quick else measure.FULL
    if runs:
        effort = replace(effort, runs=runs)
    names = known_peers(peers)
    raise_file_limit()
    console = Console(width=None if Console().is_terminal else 160)
    started = time.monotonic()
    try:
        loadgen.build()
        report = Report(names, {name: brokers.version(name) for name in names})
        sources = brokers.fingerprint()
        run_all(report, effort, only, console)
        if "polybus" in names and brokers.fingerprint() != sources:
            report.failures.append("the sources changed during the run: its rows are not of one broker")
    except (BrokerError, LoadgenError) as error:
        console.print(f"[red]{error}")
        raise typer.Exit(1) from None
    report.show(console)
    page = report.save(RESULTS, time.strftime("%Y%m%d-%H%M%S"))
    if json is not None:
        json.write_text(report.json())
    console.print(f"{time.monotonic() - started:.0f} s; kept in {page.with_suffix('')}.md and .json")
    if report.notes():
        raise typer.Exit(1)


def known_peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in brokers.COMMANDS:
            raise typer.BadParameter(f"--peers: no broker {name!r}; there are {', '.join(brokers.COMMANDS)}")
    if not names:
        raise typer.BadParameter("--peers: name at least one broker")
    return names


def is_wanted(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch.fnmatch(name, pattern)


def raise_file_limit() -> None:
    """Brokers inherit the limit, and 5,000 connections need more than the usual 1,024 files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_all(report: Report, effort: Effort, only: str, console: Console) -> None:
    scenarios = [scenario for scenario in SCENARIOS if is_wanted(scenario.name, only)]
    idle = [scenario for scenario in IDLE_COST if is_wanted(scenario.name, only)]
    ceilings = [ceiling for ceiling in CEILINGS if is_wanted(ceiling.name, only)]
    total = len(ceilings) + 2 * len(idle) * effort.runs * len(report.contenders)
    total += sum(
        runs_of(scenario, effort) * len(report.contenders) + scenario.has_ceiling for scenario in scenarios
    )

    columns = (TextColumn("{task.description:40}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total)

        def step(name: str) -> OnRun:
            progress.update(task, description=name)
            return lambda label: progress.update(task, advance=1, description=f"{name} {label}")

        def attempt(name: str, work: Callable[[OnRun], None]) -> None:
            try:
                work(step(name))
            except LoadgenError as error:
                report.failures.append(f"{name} failed: {error}")

        for ceiling in ceilings:
            attempt(ceiling.name, partial(run_ceiling, report, ceiling, effort))
        for scenario in scenarios:
            attempt(scenario.name, partial(run_scenario, report, scenario, effort))
        for peer in report.contenders if idle else ():
            attempt(f"idle-cost {peer}", partial(run_idle, report, peer, idle, effort))


def runs_of(scenario: Scenario, effort: Effort) -> int:
    return effort.runs if scenario.is_repeatable else 1


def run_scenario(report: Report, scenario: Scenario, effort: Effort, on_run: OnRun) -> None:
    """All contenders in turn, each freshly started for this scenario."""
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Broker] = {
            name: stack.enter_context(brokers.running(name)) for name in report.contenders
        }
        samples = measure.alternate(contenders, scenario.probe, effort, runs_of(scenario, effort), on_run)
    ceiling: Sample | None = None
    if scenario.has_ceiling:
        with brokers.running("relay") as relay:
            ceiling = scenario.probe(relay, shortened(effort))
        on_run("relay")
    for metric in scenario.metrics:
        name = f"{scenario.name} {metric.label or metric.unit}"
        report.rows.append(Row(name, metric, samples, ceiling))


def run_idle(report: Report, peer: str, scenarios: Sequence[Scenario], effort: Effort, on_run: OnRun) -> None:
    """Two brokers of one kind, one of them with much that is idle."""
    with (
        brokers.running(peer) as bare,
        brokers.running(peer) as loaded,
        loadgen.holding(port=loaded.port, retained=IDLE_RETAINED, **IDLE_SUBSCRIPTIONS),
    ):
        contenders = {"bare": bare, "loaded": loaded}
        for scenario in scenarios:
            samples = measure.alternate(contenders, scenario.probe, effort, effort.runs, on_run)
            report.idle_rows.append(Row(f"{scenario.name} {peer}", scenario.metrics[0], samples))


def run_ceiling(report: Report, ceiling: Ceiling, effort: Effort, on_run: OnRun) -> None:
    with brokers.running(ceiling.peer) as peer:
        sample = ceiling.probe(peer, shortened(effort))
    report.ceilings.append((ceiling.name, ceiling.meaning, sample["rate"]))
    on_run(ceiling.peer)


def shortened(effort: Effort) -> Effort:
    """A ceiling is an order of magnitude; half a second is enough for it."""
    return replace(effort, seconds=min(effort.seconds, CEILING_S), latency_s=min(effort.latency_s, 1.0))


if __name__ == "__main__":
    typer.run(main)
