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

from tests.e2e.crash.brokers import KINDS, BrokerDied
from tests.e2e.crash.cases import CASES, LOGGED, PLAIN_MQTT, run_case
from tests.e2e.crash.cast import Outcome
from tests.e2e.crash.moments import Moment
from tests.e2e.crash.run import Plan, run


def main(
    rounds: Annotated[int, typer.Option(min=0, help="How often the broker is killed.")] = 30,
    seed: Annotated[int | None, typer.Option(help="Repeat a run; without it, chosen by chance.")] = None,
    broker: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "polybus",
    case: Annotated[
        str, typer.Option(help=f"Instead of random kills, one of {', '.join(CASES)}, or all of them: all.")
    ] = "",
    count: Annotated[int, typer.Option(min=100, help="Messages of a case.")] = 20_000,
    sync: Annotated[str, typer.Option(help="Polybus: [store] sync, normal or full.")] = "normal",
    stream: Annotated[bool, typer.Option(help="Polybus: a stream gets everything as well.")] = True,
    keep: Annotated[
        Path | None, typer.Option(help="Use this folder for its data and its log, and keep it.")
    ] = None,
) -> None:
    """Kill -9 a broker again and again while real clients keep books, then compare them (OP-01).

    Examples:

    python -m tests.e2e.crash --rounds 30 --seed 7

    python -m tests.e2e.crash --broker mosquitto     what a broker that writes snapshots loses

    python -m tests.e2e.crash --case offline         a session is away; killed at the publisher's last PUBACK

    The seed decides when the broker dies and what clients do, but not how the machine schedules them: a
    repeated run is alike and not the same. The exit status is 1 if something was lost, or came wrong.
    """
    if broker not in KINDS:
        raise typer.BadParameter(f"--broker: no {broker!r}; there are {', '.join(KINDS)}")
    if sync not in ("normal", "full"):
        raise typer.BadParameter(f"--sync: no {sync!r}; there are normal, full")
    console = Console(width=None if Console().is_terminal else 120)
    if case:
        results = [play(name, broker, count, sync, console) for name in known(case, broker)]
        sys.exit(0 if all(results) else 1)
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    plan = Plan(broker, rounds, chosen, sync, wants_stream=stream)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="polybus-crash-") as spare:
        folder = keep or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = watch(plan, folder, console)
    show(outcome, console)
    console.print(
        f"{time.monotonic() - began:.0f} s; again: --broker {broker} --rounds {rounds} --seed {plan.seed}"
    )
    if not outcome.verdict.is_good:
        sys.exit(1)


def known(case: str, broker: str) -> list[str]:
    if case not in (*CASES, "all"):
        raise typer.BadParameter(f"--case: no {case!r}; there are {', '.join(CASES)}, all")
    names = list(CASES) if case == "all" else [case]
    possible = [name for name in names if broker.startswith("polybus") or name in PLAIN_MQTT]
    if not possible:
        raise typer.BadParameter(
            f"--case: {case} needs Polybus; {broker} can do {', '.join(sorted(PLAIN_MQTT))}"
        )
    return possible


def play(name: str, broker: str, count: int, sync: str, console: Console) -> bool:
    with tempfile.TemporaryDirectory(prefix="polybus-crash-") as folder:
        chosen = "polybus-doomed" if name in LOGGED else broker
        outcome = run_case(name, chosen, Path(folder), count=count, sync=sync)
    show(outcome, console)
    return outcome.verdict.is_good


def show(outcome: Outcome, console: Console) -> None:
    console.print(outcome.verdict.table(outcome.title))
    for fault in outcome.verdict.faults():
        console.print(f"[red]{fault}", highlight=False)


def watch(plan: Plan, folder: Path, console: Console) -> Outcome:
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"seed {plan.seed}", total=plan.rounds)

        def killed(moment: Moment) -> None:
            progress.update(task, advance=1, description=f"killed {moment}")

        return run(plan, folder, killed)


if __name__ == "__main__":
    try:
        typer.run(main)
    except BrokerDied as died:
        sys.exit(str(died))
