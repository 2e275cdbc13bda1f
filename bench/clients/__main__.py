"""`python -m bench.clients`: the client libraries beside paho-mqtt, libmosquitto and the document's figures."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import brokers
from bench.__main__ import RESULTS, raise_file_limit
from bench.brokers import BrokerError
from bench.clients.measure import (
    FULL,
    LIBRARIES,
    PUBLISHERS,
    QUICK,
    Effort,
    Programs,
    Results,
    Session,
    build_libmosquitto,
)
from bench.clients.report import Report
from bench.cpp import build_cpp
from bench.loadgen import LoadgenError
from bench.requests.__main__ import chosen

PARTS = ("publish", "pipelined", "rates", "pairs")


def main(
    quick: Annotated[bool, typer.Option(help="A glance in half a minute: one short round.")] = False,
    only: Annotated[str, typer.Option(help=f"Parts of the whole: {', '.join(PARTS)}.")] = ",".join(PARTS),
    json: Annotated[Path | None, typer.Option(help="Write the results to this file as well.")] = None,
) -> None:
    """The Python and the C++ client, beside paho-mqtt and libmosquitto publishing to Mosquitto in the same run.

    - publish: small messages without acknowledgement, counted when the broker has read them

    - pipelined: one requester with many requests under way, one service

    - rates, pairs: the two experiments of the document that defined TBus

    Results go to bench/results/ too. The exit status is 1 if a measurement failed or a request had no answer.
    """
    parts = chosen(only, PARTS, "--only")
    effort = QUICK if quick else FULL
    raise_file_limit()
    console = Console(width=None if Console().is_terminal else 160)
    started = time.monotonic()
    results = Results()
    try:
        programs = Programs(build_cpp("polybus-client-bench"), build_libmosquitto())
        run_parts(parts, programs, effort, results, console)
    except (BrokerError, LoadgenError) as error:
        console.print(f"[red]{error}")
        raise typer.Exit(1) from None
    report = Report(brokers.version("polybus"), results)
    report.show(console)
    page = report.save(RESULTS, time.strftime("%Y%m%d-%H%M%S-clients"))
    if json is not None:
        json.write_text(report.json())
    console.print(f"{time.monotonic() - started:.0f} s; kept in {page.with_suffix('')}.md and .json")
    if report.notes():
        raise typer.Exit(1)


def run_parts(parts: list[str], programs: Programs, effort: Effort, results: Results, console: Console) -> None:
    runs = {
        "publish": effort.rounds * len(PUBLISHERS),
        "pipelined": effort.rounds * len(LIBRARIES),
        "rates": len(effort.rates) * len(LIBRARIES),
        "pairs": len(LIBRARIES),
    }
    columns = (TextColumn("{task.description:40}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=sum(runs[part] for part in parts))
        session = Session(
            programs, effort, results, lambda label: progress.update(task, advance=1, description=label)
        )
        if "publish" in parts:
            session.run_publishers(PUBLISHERS)
        if "pipelined" in parts:
            session.run_pipelined(LIBRARIES)
        if "rates" in parts:
            session.run_rates(LIBRARIES)
        if "pairs" in parts:
            session.run_pairs(LIBRARIES)


if __name__ == "__main__":
    typer.run(main)
