"""`python -m bench.pipeline`: rows a second of each source, beside ceilings and peers of the same run."""

from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.pipeline import delay, mqtt, pcap, polybus

PARTS: Final[dict[str, Callable[[Console, bool], None]]] = {
    "polybus": polybus.run,
    "mqtt": mqtt.run,
    "pcap": pcap.run,
    "delay": delay.run,
}


def main(
    quick: Annotated[bool, typer.Option(help="Small inputs, few runs: a glance, not a result.")] = False,
    only: Annotated[str, typer.Option(help=f"Parts of the whole: {', '.join(PARTS)}.")] = ",".join(PARTS),
) -> None:
    """Rows a second of each source, beside ceilings and peers of the same run."""
    console = Console(width=None if Console().is_terminal else 120)
    wanted = [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in PARTS:
            raise typer.BadParameter(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    for name in wanted:
        PARTS[name](console, quick)


if __name__ == "__main__":
    typer.run(main)
