"""What every benchmark leaves behind: grids and verdicts, on the terminal, in Markdown and in JSON."""

import json
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

NOTHING = "–"
"""In place of a figure that was not measured."""


@dataclass(frozen=True)
class Grid:
    title: str
    columns: list[str]
    cells: list[list[str]]

    def rich(self) -> Table:
        table = Table(title=self.title, title_justify="left", pad_edge=False)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
        for line in self.cells:
            table.add_row(*(colour(cell) for cell in line))
        return table

    def markdown(self) -> str:
        rule = ["---", *["---:" for _ in self.columns[1:]]]
        lines = [self.columns, rule, *self.cells]
        return f"## {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Verdict:
    aim: str
    found: str
    is_met: bool | None
    """None when it was not measured."""

    def cells(self) -> list[str]:
        word = {True: "met", False: "NOT MET", None: NOTHING}[self.is_met]
        return [self.aim, self.found, word]


class Page(ABC):
    """One run of a benchmark."""

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def grids(self) -> list[Grid]: ...

    @abstractmethod
    def figures(self) -> Mapping[str, object]:
        """What was measured, for a program to read."""

    @abstractmethod
    def notes(self) -> list[str]:
        """What must not be: such figures are not to be trusted."""

    def verdicts(self) -> list[Verdict]:
        return []

    def remarks(self) -> list[str]:
        """What a reader should know, without being a fault of a broker."""
        return []

    def all_grids(self) -> list[Grid]:
        verdicts = self.verdicts()
        aims = (
            [Grid("Aims", ["aim", "found", ""], [verdict.cells() for verdict in verdicts])] if verdicts else []
        )
        return [*self.grids(), *aims]

    def markdown(self) -> str:
        parts = [
            f"# {self.title}",
            f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
            *(grid.markdown() for grid in self.all_grids()),
            *(f"- {note}" for note in [*self.remarks(), *self.notes()]),
        ]
        return "\n\n".join(parts) + "\n"

    def json(self) -> str:
        whole = {
            "machine": {
                "cores": os.cpu_count(),
                "kernel": platform.release(),
                "python": platform.python_version(),
            },
            **self.figures(),
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
            "notes": [*self.remarks(), *self.notes()],
        }
        return json.dumps(whole, indent=1, ensure_ascii=False)

    def show(self, console: Console) -> None:
        for grid in self.all_grids():
            console.print(grid.rich())
        for note in [*self.remarks(), *self.notes()]:
            console.print(f"[yellow]{note}", highlight=False)

    def save(self, folder: Path, stem: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{stem}.md"
        page.write_text(self.markdown())
        page.with_suffix(".json").write_text(self.json())
        return page


def short(value: float) -> str:
    """1234567 → 1.23 M, 12345 → 12.3 k, 123.4 → 123."""
    for factor, letter in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return (
                f"{value / factor:.3g}{letter}"
                if abs(value) < 100 * factor
                else f"{value / factor:.0f}{letter}"
            )
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f}" if microseconds < 100_000 else f"{microseconds / 1000:.0f}"


def title_of(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}".strip() for name, version in versions.items())


def colour(cell: str) -> str:
    return {"met": "[green]met", "NOT MET": "[red]NOT MET", "unclear": "[yellow]unclear"}.get(cell, cell)
