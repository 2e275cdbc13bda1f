"""`polybus stream`: look at streams, read them, export them. From a running bus, or from its folder.

Records go to standard output or a file; everything else to standard error.
"""

import base64
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TypeAlias

import msgspec
import typer

from polybus.errors import ConfigError, UsageError
from polybus.store.folder import StoreError
from polybus.store.streams.start import format_time, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from polybus.store.streams.partition import Damaged
    from polybus.store.streams.reader import Source, StreamFacts

DEFAULT_URL: Final = "http://127.0.0.1:8035"

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="POLYBUS_HTTP_URL", help=f"Of a running bus. (default: {DEFAULT_URL})"),
]
FolderOption = Annotated[
    Path | None,
    typer.Option("--folder", "--data-dir", "-d", metavar="FOLDER", help="A data folder, instead of a bus."),
]
UserOption = Annotated[str | None, typer.Option("--user", "-u")]
PasswordOption = Annotated[str | None, typer.Option("--password", "-P", envvar="POLYBUS_PASSWORD")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the stream.")]
PartitionOption = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="START", help="An offset, or a time: 2030-01-31T12:00:00Z.")
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="END", help="The same; exclusive.")]
SkipOption = Annotated[
    bool, typer.Option("--skip-damaged", help="Go on behind records that are damaged, and say so.")
]


class Format(StrEnum):
    JSONL = "jsonl"
    ARROW = "arrow"
    PARQUET = "parquet"


Chosen: TypeAlias = list[tuple[int, int, int]]
"""Partitions, each with the offsets to begin and to end at."""


def register(app: typer.Typer) -> None:
    """Add `stream` to the command line."""
    stream = typer.Typer(help="Read what streams have kept.", no_args_is_help=True)
    for command in (ls, read, export):
        stream.command()(command)
    app.add_typer(stream, name="stream")


def ls(
    url: UrlOption = None, folder: FolderOption = None, user: UserOption = None, password: PasswordOption = None
) -> None:
    """List streams and their partitions: offsets, times, sizes.

    Examples:

    [green]polybus stream ls[/green]                     of the bus on this machine

    [green]polybus stream ls --folder data[/green]       from its files, running or not
    """
    with _errors_in_one_line():
        found = _source(url, folder, user, password).streams()
    if not found:
        typer.echo("no streams", err=True)
    for stream in found:
        typer.echo(f"{stream.name}  {' '.join(stream.filters)}")
        for each in stream.partitions:
            span = f"{each.first}..{each.next}"
            times = f"{format_time(each.times[0])} to {format_time(each.times[1])}" if each.times else "empty"
            typer.echo(f"  {each.number:>3}  {span:<24} {each.size_bytes:>12} bytes  {times}")


def read(
    name: NameArgument,
    url: UrlOption = None,
    folder: FolderOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many records.")] = None,
    skip_damaged: SkipOption = False,
    user: UserOption = None,
    password: PasswordOption = None,
) -> None:
    """Print records as JSON lines, partition after partition, each in its order.

    A payload that is not UTF-8 text comes as payload_base64 instead of payload.

    Examples:

    [green]polybus stream read fleet[/green]

    [green]polybus stream read fleet --from 2030-01-31T12:00:00Z -n 10[/green]

    [green]polybus stream read fleet --folder data -p 0 --from 1000 --to 2000[/green]
    """
    with _errors_in_one_line(), contextlib.suppress(BrokenPipeError):
        source = _source(url, folder, user, password)
        chosen = _choose(source, source.stream(name), partition, start, end)
        left = limit if limit is not None else sys.maxsize
        for number, batch in _batches(source, name, chosen, skip_damaged):
            taken = batch.slice(0, left)
            left -= len(taken)
            sys.stdout.buffer.write(json_lines(number, taken))
            sys.stdout.buffer.flush()
            if not left:
                break
        return
    # Whoever read us has enough; what Python would still flush has nowhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def export(
    name: NameArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Ends with .jsonl, .arrow or .parquet.")],
    url: UrlOption = None,
    folder: FolderOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    format: Annotated[Format | None, typer.Option("--format", "-f", help="Instead of by FILE.")] = None,
    skip_damaged: SkipOption = False,
    user: UserOption = None,
    password: PasswordOption = None,
) -> None:
    """Write records to a file: JSON lines, an Arrow stream or Parquet. Shows how far it is.

    The file appears when it is complete. Its records have a column `partition` too.

    Examples:

    [green]polybus stream export fleet fleet.parquet[/green]

    [green]polybus stream export fleet day.arrow --from 2030-01-31T00:00:00Z --to 2030-02-01T00:00:00Z[/green]
    """
    with _errors_in_one_line():
        kind = format or _format_of(file)
        source = _source(url, folder, user, password)
        chosen = _choose(source, source.stream(name), partition, start, end)
        unfinished = file.with_name(file.name + ".part")
        try:
            with unfinished.open("wb") as out, _writer(kind, out) as write, _progress(chosen) as advance:
                for number, batch in _batches(source, name, chosen, skip_damaged):
                    write(number, batch)
                    advance(len(batch))
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)


def json_lines(partition: int, batch: "pa.RecordBatch") -> bytes:
    """The records of a batch, one object a line."""
    import pyarrow as pa

    times = batch.column("time").cast(pa.int64()).to_pylist()
    lines = []
    for record, time in zip(batch.to_pylist(), times, strict=True):
        payload: bytes = record["payload"]
        try:
            shown = {"payload": payload.decode()}
        except UnicodeDecodeError:
            shown = {"payload_base64": base64.b64encode(payload).decode()}
        line = {
            "partition": partition,
            "offset": record["offset"],
            "time": format_time(time),
            "topic": record["topic"],
            **shown,
            "qos": record["qos"],
            "retain": record["retain"],
            "client_id": record["client_id"],
            "user_properties": [[pair["name"], pair["value"]] for pair in record["user_properties"]],
            "priority": record["priority"],
        }
        lines.append(msgspec.json.encode(line))
    return b"\n".join([*lines, b""])


def _source(url: str | None, folder: Path | None, user: str | None, password: str | None) -> "Source":
    try:
        from polybus.store.streams.reader import FolderSource, UrlSource
    except ImportError as error:
        raise ConfigError(
            f"streams need {error.name}, which is not installed; install the extra:"
            " pip install 'polybus[streams]'"
        ) from error
    if folder is None:
        return UrlSource(url or DEFAULT_URL, user, password)
    if url is not None and "POLYBUS_HTTP_URL" not in os.environ:
        raise UsageError("--folder and --url are two places; name one")
    return FolderSource(folder)


def _choose(
    source: "Source", stream: "StreamFacts", numbers: list[int] | None, start: str | None, end: str | None
) -> Chosen:
    chosen: Chosen = []
    for number in numbers or range(len(stream.partitions)):
        if number >= len(stream.partitions):
            last = len(stream.partitions) - 1
            raise UsageError(f"stream {stream.name} has no partition {number}, only 0 to {last}")
        facts = stream.partitions[number]
        first = facts.first if start is None else _offset(source, stream.name, number, start, "--from")
        stop = facts.next if end is None else _offset(source, stream.name, number, end, "--to")
        chosen.append((number, first, min(stop, facts.next)))
    return chosen


def _offset(source: "Source", name: str, partition: int, text: str, option: str) -> int:
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        time = parse_time(text)
    except UsageError:
        raise UsageError(
            f"{option}: {text!r} is neither an offset nor a time; write 1000, or 2030-01-31T12:00:00Z"
        ) from None
    return source.offset_at(name, partition, time)


def _batches(
    source: "Source", name: str, chosen: Chosen, skip_damaged: bool
) -> "Iterator[tuple[int, pa.RecordBatch]]":
    def tell(damaged: "Damaged") -> None:
        typer.echo(f"polybus: left out: {damaged}", err=True)

    for number, start, stop in chosen:
        for batch in source.batches(name, number, start, stop, on_damage=tell if skip_damaged else None):
            yield number, batch


def _format_of(file: Path) -> Format:
    try:
        return Format(file.suffix.lstrip("."))
    except ValueError:
        raise UsageError(f"{file}: end its name with .jsonl, .arrow or .parquet, or give --format") from None


@contextlib.contextmanager
def _writer(kind: Format, out: BinaryIO) -> "Iterator[Callable[[int, pa.RecordBatch], None]]":
    import pyarrow as pa

    from polybus.store.streams.format import SCHEMA

    schema = SCHEMA.insert(0, pa.field("partition", pa.int32(), nullable=False))

    def with_partition(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.repeat(pa.scalar(number, pa.int32()), len(batch)), *batch.columns], schema=schema
        )

    match kind:
        case Format.JSONL:
            yield lambda number, batch: void(out.write(json_lines(number, batch)))
        case Format.ARROW:
            with pa.ipc.new_stream(out, schema) as stream:
                yield lambda number, batch: stream.write_batch(with_partition(number, batch))
        case Format.PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetWriter(out, schema) as table:
                yield lambda number, batch: table.write_batch(with_partition(number, batch))


@contextlib.contextmanager
def _progress(chosen: Chosen) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing else where."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (BarColumn(), MofNCompleteColumn(), "records", TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("export", total=sum(max(0, stop - start) for _, start, stop in chosen))
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """With what helps against records that are gone, or damaged."""
    from polybus.cli.main import errors_in_one_line

    with errors_in_one_line():
        try:
            yield
        except StoreError as error:
            first = getattr(error, "first", None)
            if first is not None:
                raise UsageError(f"{error}; begin there: --from {first}") from error
            if hasattr(error, "end"):
                raise StoreError(f"{error}; --skip-damaged goes on behind them") from error
            raise


def void(_: object) -> None: ...
