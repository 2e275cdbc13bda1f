"""Kill a broker again and again while clients keep books, then compare them."""

import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.e2e.crash.brokers import KINDS
from tests.e2e.crash.moments import Moment
from tests.e2e.crash.run import Outcome, Plan, run


def main(
    rounds: Annotated[int, typer.Option(min=0, help="How often the broker is killed.")] = 30,
    seed: Annotated[int | None, typer.Option(help="Repeat a run; without it, chosen by chance.")] = None,
    broker: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "polybus",
    sync: Annotated[str, typer.Option(help="Polybus: [store] sync, normal or full.")] = "normal",
    keep: Annotated[
        Path | None, typer.Option(help="Use this folder for its data and its log, and keep it.")
    ] = None,
) -> None:
    """Kill -9 a broker again and again while real clients keep books, then compare them (OP-01).

    Examples:

    python -m tests.e2e.crash --rounds 30 --seed 7

    python -m tests.e2e.crash --broker mosquitto     what a broker that writes snapshots loses

    The seed decides when the broker dies and what clients do, but not how the machine schedules them: a repeated
    run is alike and not the same. The exit status is 1 if something was lost, or came wrong.
    """
    if broker not in KINDS:
        raise typer.BadParameter(f"--broker: no {broker!r}; there are {', '.join(KINDS)}")
    if sync not in ("normal", "full"):
        raise typer.BadParameter(f"--sync: no {sync!r}; there are normal, full")
    plan = Plan(broker, rounds, secrets.randbelow(1_000_000) if seed is None else seed, sync)
    console = Console(width=None if Console().is_terminal else 120)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="polybus-crash-") as spare:
        folder = keep or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = watch(plan, folder, console)
    console.print(outcome.verdict.table(outcome.title))
    for fault in outcome.verdict.faults():
        console.print(f"[red]{fault}", highlight=False)
    console.print(
        f"{time.monotonic() - began:.0f} s; again: --broker {broker} --rounds {rounds} --seed {plan.seed}"
    )
    if not outcome.verdict.is_good:
        sys.exit(1)


def watch(plan: Plan, folder: Path, console: Console) -> Outcome:
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"seed {plan.seed}", total=plan.rounds)

        def killed(moment: Moment) -> None:
            progress.update(task, advance=1, description=f"killed {moment}")

        return run(plan, folder, killed)


if __name__ == "__main__":
    typer.run(main)
