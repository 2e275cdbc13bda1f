"""Rows of a DataFrame for people, for programs and for spreadsheets."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from polybus.pipeline.times import in_utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["table", "json", "csv"]
COLUMN_ROOM = 3
"""What a column takes beside its text: padding and a line."""


def print_rows(frame: "DataFrame", rows: int, format: Format) -> None:
    found = (frame.limit(rows) if rows else frame).collect()
    columns = frame.columns
    match format:
        case "json":
            import msgspec

            for row in found:
                values = {name: _plain(value) for name, value in zip(columns, row, strict=True)}
                sys.stdout.write(msgspec.json.encode(values).decode() + "\n")
        case "csv":
            import csv

            writer = csv.writer(sys.stdout)
            writer.writerow(columns)
            writer.writerows([_csv(value) for value in row] for row in found)
        case "table":
            _print_grid(columns, [[_shown(value) for value in row] for row in found])


def _print_grid(columns: list[str], cells: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, header_style="bold")
    for number, name in enumerate(columns):
        is_number = bool(cells) and all(_is_number(row[number]) for row in cells)
        grid.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        grid.add_row(*[_escaped(cell) for cell in row])
    # Piped to a file a table is as wide as it is.
    widths = [max(map(len, column)) + COLUMN_ROOM for column in zip(columns, *cells, strict=True)]
    Console(width=None if sys.stdout.isatty() else max(80, sum(widths) + COLUMN_ROOM)).print(grid)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _is_number(text: str) -> bool:
    return text == "" or text.replace(",", "").replace(".", "", 1).lstrip("-").isdecimal()


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case datetime():
            time = in_utc(value).replace(tzinfo=None)
            return time.isoformat(sep=" ", timespec="milliseconds" if time.microsecond else "seconds")
        case bytes() | bytearray():
            return bytes(value[:40]).decode(errors="replace")
        case _:
            return str(value)


def _csv(value: Any) -> object:
    """All of it, for programs: what people are shown is rounded and cut."""
    import msgspec

    match value:
        case None:
            return ""
        case bool() | list() | tuple() | dict():
            return msgspec.json.encode(_plain(value)).decode()
        case datetime():
            return in_utc(value).isoformat().replace("+00:00", "Z")
        case _:
            return _plain(value)


def _plain(value: Any) -> Any:
    match value:
        case bytearray() | bytes():
            return bytes(value).decode(errors="backslashreplace")
        case list():
            return [_plain(each) for each in value]
        case tuple() if hasattr(value, "asDict"):
            return value.asDict(recursive=True)
        case datetime():
            return in_utc(value)
        case _:
            return value
