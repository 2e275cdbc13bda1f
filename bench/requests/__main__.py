"""`python -m bench.requests`: requests over TBus beside the figures of the document that defined it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import brokers, loadgen
from bench.__main__ import RESULTS, raise_file_limit
from bench.brokers import BrokerError
from bench.loadgen import LoadgenError
from bench.requests.measure import FULL, MODES, QUICK, STORM_MODE, Effort, Results, Session, tbus_brokers
from bench.requests.report import Report

PARTS = ("rates", "pairs", "storm", "ceiling")


def main(
    quick: Annotated[bool, typer.Option(help="A glance in half a minute: three rates, short runs.")] = False,
    rates: Annotated[
        str, typer.Option(help="Requests per second of the one pair, in rising order: 64,1024,8192.")
    ] = "",
    pairs: Annotated[
        str, typer.Option(help="Numbers of pairs; each sends 10 requests/s. The first has the storm.")
    ] = "",
    modes: Annotated[str, typer.Option(help="How clients and broker bulk: off, fixed, adaptive.")] = ",".join(
        MODES
    ),
    only: Annotated[str, typer.Option(help=f"Parts of the whole: {', '.join(PARTS)}.")] = ",".join(PARTS),
    storm: Annotated[int, typer.Option(help="Clients that connect all at once.", min=1)] = 500,
    runs: Annotated[int, typer.Option(help="Storms; 0 is the usual number.", min=0)] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the results to this file as well.")] = None,
) -> None:
    """Requests over TBus, beside tables 5.8 and 5.9 of the document that defined it.

    A requester sends by a schedule that waits for nothing, a service sends back what it got; latency counts
    from the time in the schedule. Modes of bulking:

    - off: every message by itself

    - fixed: the document's rule, dense messages are gathered for 50 ms

    - adaptive: what is ready together leaves together

    Examples:

    python -m bench.requests                        everything, five minutes

    python -m bench.requests --quick                a glance

    python -m bench.requests --only rates --rates 64,1024    two rates

    python -m bench.requests --only storm --runs 9           more storms

    python -m bench.requests --only ceiling --modes adaptive

    Results go to bench/results/ too. The exit status is 1 if a measurement failed or a reply was wrong or
    missing; an aim that is not met does not change it.
    """
    parts = chosen(only, PARTS, "--only")
    wanted = chosen(modes, MODES, "--modes")
    effort = effort_of(QUICK if quick else FULL, rates, pairs, runs)
    raise_file_limit()
    console = Console(width=None if Console().is_terminal else 160)
    started = time.monotonic()
    results = Results()
    try:
        loadgen.build()
        sources = brokers.fingerprint()
        version = brokers.version("polybus")
        run_parts(parts, wanted, effort, storm, results, console, is_quick=quick)
        if brokers.fingerprint() != sources:
            results.failures.append("the sources changed during the run: its rows are not of one broker")
    except (BrokerError, LoadgenError) as error:
        console.print(f"[red]{error}")
        raise typer.Exit(1) from None
    report = Report(version, wanted, results)
    report.show(console)
    page = report.save(RESULTS, time.strftime("%Y%m%d-%H%M%S-requests"))
    if json is not None:
        json.write_text(report.json())
    console.print(f"{time.monotonic() - started:.0f} s; kept in {page.with_suffix('')}.md and .json")
    if report.notes():
        raise typer.Exit(1)


def chosen(text: str, known: tuple[str, ...], option: str) -> list[str]:
    """The names given, in the order of those known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{option}: no {name!r}; there are {', '.join(known)}")
    if not names:
        raise typer.BadParameter(f"{option}: name at least one of {', '.join(known)}")
    return [name for name in known if name in names]


def numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        found = tuple(int(item) for item in text.split(",") if item.strip())
    except ValueError:
        raise typer.BadParameter(f"{option}: {text!r} is no list of whole numbers such as 64,1024") from None
    if any(number < 1 for number in found):
        raise typer.BadParameter(f"{option}: all must be at least 1")
    return found


def effort_of(base: Effort, rates: str, pairs: str, runs: int) -> Effort:
    return replace(
        base,
        rates=numbers(rates, "--rates") or base.rates,
        pairs=numbers(pairs, "--pairs") or base.pairs,
        storms=runs or base.storms,
    )


def run_parts(
    parts: list[str],
    modes: list[str],
    effort: Effort,
    storm: int,
    results: Results,
    console: Console,
    *,
    is_quick: bool,
) -> None:
    # A glance at pairs needs one mode: at 10 requests/s none of them has anything to gather.
    pair_modes = [STORM_MODE] if is_quick and STORM_MODE in modes else modes
    runs = {
        "rates": sum(map(effort.rounds_at, effort.rates)) * len(modes),
        "pairs": len(effort.pairs) * len(pair_modes),
        "storm": 2 * effort.storms,
        "ceiling": len(effort.windows) * len(modes),
    }
    columns = (TextColumn("{task.description:32}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with (
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress,
        tbus_brokers(modes) as tbus,
    ):
        task = progress.add_task("starting", total=sum(runs[part] for part in parts))
        session = Session(
            tbus, effort, results, lambda label: progress.update(task, advance=1, description=label)
        )
        if "rates" in parts:
            session.run_rates(effort.rates)
        if "pairs" in parts:
            session.run_pairs(effort.pairs, pair_modes)
        if "storm" in parts:
            session.run_storms(effort.pairs[0], storm)
        if "ceiling" in parts:
            session.run_ceilings()


if __name__ == "__main__":
    typer.run(main)
