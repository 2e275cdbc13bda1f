"""`polybus fleet`: simulated trucks on a real bus."""

import asyncio
import json
import logging
import math
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from polybus.cli.durations import parse_duration
from polybus.errors import UsageError

if TYPE_CHECKING:
    from polybus.fleet.sender import Sender, Totals

REFRESH_S: Final = 0.2
MAX_TRUCKS: Final = 5000


def register(app: typer.Typer) -> None:
    app.command("fleet")(fleet)


def fleet(
    url: Annotated[
        str,
        typer.Option("--url", "-L", envvar="POLYBUS_URL", help="The bus: mqtt://, mqtts://, ws://, tbus://, …"),
    ] = "mqtt://127.0.0.1:1883",
    trucks: Annotated[int, typer.Option(min=1, max=MAX_TRUCKS, help="How many.")] = 10,
    duration: Annotated[str, typer.Option(metavar="TIME", help="Of the trucks: 90s, 15m, 8h, 2d.")] = "1h",
    speed: Annotated[float, typer.Option(help="Times as fast as real time; 60: an hour takes a minute.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed, the same country and trips.")] = 1,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="ISO", help="When the trucks' time begins. (default: so that it ends about when we do)"
        ),
    ] = None,
    encoding: Annotated[Literal["json", "msgpack"], typer.Option(help="Of the records.")] = "json",
    updates: Annotated[
        float, typer.Option(min=0, help="Software updates per truck and day, 10 MB each.")
    ] = 0.05,
    damaged: Annotated[float, typer.Option(min=0, max=1, help="Share of records that arrive damaged.")] = 0.0,
    calls: Annotated[
        bool, typer.Option("--calls/--no-calls", help="The office asks trucks how they are.")
    ] = True,
    print_map: Annotated[
        bool, typer.Option("--map", help="Print the country as GeoJSON, with geofences, and send nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the totals as JSON.")] = False,
) -> None:
    """Simulate trucks that send vehicle data (1 kB, 10 a minute), positions (1 kB, 1 a minute), tachograph
    files (100 kB, 4 an hour) and get software updates (10 MB, seldom).

    They drive along roads between the cities of a country that comes from the seed, and lose coverage on the
    way: then messages wait, come late, out of order, and sometimes twice. MQTT sends at QoS 1.

    Examples:

    [green]polybus fleet[/green]                                          10 trucks for an hour, in real time

    [green]polybus fleet --trucks 50 --duration 8h --speed 240[/green]    a working day in two minutes

    [green]polybus fleet --url tbus://127.0.0.1:5035 --seed 7[/green]     over TBus, in another country

    [green]polybus fleet --seed 7 --map > map.geojson[/green]             where seed 7 drives
    """
    from polybus.cli.main import errors_in_one_line

    with errors_in_one_line():
        from polybus.fleet.roads import as_geojson, make_country
        from polybus.fleet.schedule import Plan
        from polybus.fleet.sender import Sender

        country = make_country(seed)
        if print_map:
            typer.echo(json.dumps(as_geojson(country)))
            return
        if not (math.isfinite(speed) and speed > 0):
            raise UsageError(f"--speed {speed} is not more than 0")
        duration_s = parse_duration(duration, "--duration")
        plan = Plan(
            country,
            trucks,
            seed,
            _start_ms(start, duration_s, speed),
            duration_s,
            encoding=encoding,
            updates_per_truck_day=updates,
            damaged_share=damaged,
        )
        totals = _run(Sender(plan, url, speed, has_calls=calls))
    _report(totals, as_json=as_json)


def _start_ms(text: str | None, duration_s: float, speed: float) -> int:
    if text is None:
        return int((time.time() - duration_s + duration_s / speed) * 1000)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--start {text!r} is no time: write 2026-05-04T06:00:00Z") from error
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _run(sender: "Sender") -> "Totals":
    from polybus.errors import PolybusError

    async def run() -> "Totals":
        task = asyncio.create_task(_show(sender.totals))
        try:
            return await sender.run()
        finally:
            task.cancel()

    # Trucks fail to answer on purpose; the client would tell of each.
    logging.getLogger("polybus.client").setLevel(logging.CRITICAL)
    try:
        return asyncio.run(run())
    except ExceptionGroup as group:
        # Many trucks notice the same thing.
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, (PolybusError, OSError)):
            raise first from group
        raise
    except KeyboardInterrupt:
        typer.echo("polybus: stopped", err=True)
        raise typer.Exit(130) from None


async def _show(totals: "Totals") -> None:
    """A bar on standard error while it runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("fleet"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("fleet", total=totals.planned_s, said="")
        while True:
            said = f"{totals.messages.total():,} messages, {totals.payload_bytes / 1e6:,.1f} MB"
            if totals.behind_s > 1:
                said += f", {totals.behind_s:.0f} s behind: try less --speed"
            progress.update(bar, completed=totals.now_s, said=said)
            await asyncio.sleep(REFRESH_S)


def _report(totals: "Totals", *, as_json: bool) -> None:
    if as_json:
        said = {
            "messages": dict(totals.messages),
            "copies": totals.copies,
            "payload_bytes": totals.payload_bytes,
            "calls": dict(totals.ends),
        }
        typer.echo(json.dumps(said))
        return
    for kind, count in totals.messages.most_common():
        typer.echo(f"{count:>9,}  {kind}")
    typer.echo(f"{totals.messages.total():>9,}  messages, {totals.payload_bytes / 1e6:,.1f} MB")
    typer.echo(f"{totals.copies:>9,}  of them sent twice")
    for end, count in totals.ends.most_common():
        typer.echo(f"{count:>9,}  calls: {end}")
