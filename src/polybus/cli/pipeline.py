"""`polybus pipeline`: run it, look at its tables, search its log. Spark is imported when a command runs."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from polybus.cli.durations import parse_duration
from polybus.cli.rows import Format, print_rows
from polybus.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from polybus.pipeline.lake import Lake
    from polybus.pipeline.settings import Settings

T = TypeVar("T")
LOOKS: Final = 3
REPLACED: Final = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFoundException")
"""What Spark says when a file was there a moment ago."""
DEFAULT_CONFIG: Final = Path("pipeline.toml")
JOBS: Final = {
    "messages": "messages",
    "events": "events",
    "geofences": "geofence events",
    "captures": "packets",
}
"""And what their rows are."""

app = typer.Typer(
    help="From messages and events to tables, on Spark. Needs the extra polybus\\[spark] and Java 17.",
    no_args_is_help=True,
)
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="TOML file. (default: pipeline.toml, if it is there)"),
]
FolderOption = Annotated[
    str | None,
    typer.Option("--folder", metavar="FOLDER", help="Where the tables are, instead of the file's word."),
]
MasterOption = Annotated[
    str, typer.Option(help="local[*], local[4], spark://host:7077, yarn, …", envvar="POLYBUS_SPARK_MASTER")
]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How rows are printed.")]


def register(main: typer.Typer) -> None:
    main.add_typer(app, name="pipeline")


@app.command()
def run(
    config: ConfigOption = None,
    folder: FolderOption = None,
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="End when what is there is done, or go on until Ctrl-C.")
    ] = True,
    master: MasterOption = "local[*]",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what Spark prints.")] = False,
) -> None:
    """Take in what is new and bring the tables up to date.

    Goes on where the last run ended, however that ended. The configuration says where messages and events
    come from; docs/pipeline.md explains it.

    Examples:

    [green]polybus pipeline run --config pipeline.toml[/green]                 once

    [green]polybus pipeline run --continuous[/green]                           until Ctrl-C

    [green]polybus pipeline run --master spark://10.0.0.5:7077[/green]         on a cluster
    """
    with _opened(config, folder, master, verbose=verbose, is_short=False) as (spark, settings):
        from polybus.pipeline.jobs.run import run_continuously, run_once

        with _Progress() as progress:
            if once:
                lake = run_once(spark, settings, progress.tell)
            else:
                stopped = threading.Event()
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda *_: stopped.set())
                lake = run_continuously(spark, settings, lambda: not stopped.is_set(), progress.tell)
        for line in book_lines(lake):
            typer.echo(line)


@app.command()
def show(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Without it: which there are.")] = None,
    config: ConfigOption = None,
    folder: FolderOption = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="At most; 0: all.")] = 20,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows for which this holds.")] = None,
    order: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="By this column; -COLUMN: backwards.")
    ] = None,
    format: FormatOption = "table",
    master: MasterOption = "local[*]",
) -> None:
    """Print a table, or say which there are.

    Examples:

    [green]polybus pipeline show[/green]                                              the tables

    [green]polybus pipeline show cap_use --order -used_share[/green]                  who uses most

    [green]polybus pipeline show rejected --where "reason = 'clock off'" -f json[/green]
    """
    if table is None:
        with _errors():
            _list_tables()
        return
    with _errors():
        _check_table(table)
    with _opened(config, folder, master) as (spark, settings):
        lake = _lake(spark, settings)
        _steady(lambda: print_rows(_chosen(lake.read(table), where, order), rows, format))


@app.command()
def search(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Words that the event has, all of them, in any case.")
    ] = "",
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Not older: 15m, 1h, 2d, or ISO.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Older than: 15m, 1h, 2d, or ISO.")] = None,
    level: Annotated[
        str | None, typer.Option(help="This or worse: TRACE, DEBUG, INFO, WARN, ERROR, FATAL.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="The last so many; 0: all.")] = 50,
    config: ConfigOption = None,
    folder: FolderOption = None,
    format: FormatOption = "table",
    master: MasterOption = "local[*]",
) -> None:
    """Search the broker's log.

    Examples:

    [green]polybus pipeline search "timed out" --since 1h[/green]

    [green]polybus pipeline search truck-007 --level WARN[/green]

    [green]polybus pipeline search --since 2026-05-04T06:00 --until 2026-05-04T07:00 -f json[/green]
    """
    with _errors():
        now = datetime.now(UTC)
        begin, end = _time(since, "--since", now), _time(until, "--until", now)
    with _opened(config, folder, master) as (spark, settings):
        from pyspark.sql import functions as F

        from polybus.pipeline.transforms import logs

        lake = _lake(spark, settings)

        def find() -> None:
            found = logs.search(lake.read("log"), text.split(), level=level, since=begin, until=end)
            found = found.select("ts", "level", "text")
            if rows:  # the last ones, in order of time
                found = found.orderBy(F.desc("ts")).limit(rows).orderBy("ts")
            print_rows(found, 0, format)

        _steady(find)


@app.command()
def compact(
    config: ConfigOption = None,
    folder: FolderOption = None,
    master: MasterOption = "local[*]",
) -> None:
    """Make few large folders of the many small ones that batches wrote.

    A run does this too, sixteen at a time (merge_batches); this takes all that are complete. It may be ended at
    any moment, and others may read meanwhile. Not while a pipeline runs on the same tables.

    Example: [green]polybus pipeline compact --config pipeline.toml[/green]
    """
    with _opened(config, folder, master) as (spark, settings):
        from polybus.pipeline.jobs.compaction import compact

        lake = _lake(spark, settings)
        with lake.turns.only_writer():
            lake.recover()
            changed = []
            compact(lake, fan_in=None, tell=lambda *told: changed.append(told))
        for name, before, after in changed:
            typer.echo(f"{name}: {before:,} folders became {after:,}")
        if not changed:
            typer.echo("there is nothing that could be made larger")


@app.command()
def plots(
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the PNG files go.")] = Path("plots"),
    config: ConfigOption = None,
    folder: FolderOption = None,
    master: MasterOption = "local[*]",
) -> None:
    """Draw the gold tables: traffic by type, data-cap use, request latency, a map of positions.

    Example: [green]polybus pipeline plots reports[/green]
    """
    with _opened(config, folder, master) as (spark, settings):
        from polybus.pipeline.jobs.run import load_map
        from polybus.pipeline.plots import draw_all

        lake, map = _lake(spark, settings), load_map(settings)
        for file in _steady(lambda: draw_all(lake, map, target)):
            typer.echo(file)


# --- what they share ------------------------------------------------------------------------------


@contextmanager
def _errors() -> Iterator[None]:
    from polybus.cli.main import errors_in_one_line

    with errors_in_one_line():
        yield


@contextmanager
def _opened(
    config: Path | None, folder: str | None, master: str, *, verbose: bool = False, is_short: bool = True
) -> "Iterator[tuple[SparkSession, Settings]]":
    import msgspec

    from polybus.pipeline.session import SHORT_LIVED, build_session, check_spark
    from polybus.pipeline.settings import load_settings

    with _errors():
        if config is None and DEFAULT_CONFIG.exists():
            config = DEFAULT_CONFIG
        settings = load_settings(config)
        if folder is not None:
            settings = msgspec.structs.replace(settings, folder=folder)
        check_spark()
        if is_short and "://" not in settings.folder and not Path(settings.folder).is_dir():
            raise _no_tables(settings.folder)
        log_file = None if verbose else _log_file(settings.folder)
        spark_settings = {**(SHORT_LIVED if is_short else {}), **settings.spark}
        spark = build_session("polybus pipeline", master, spark_settings, log_file)
        try:
            yield spark, settings
        except Exception as error:
            raise _ours(error) from error
        finally:
            spark.stop()


def _log_file(folder: str) -> Path:
    """Beside the tables, unless they are on another machine."""
    return Path("polybus-spark.log") if "://" in folder else Path(folder) / "spark.log"


def _ours(error: Exception) -> Exception:
    """What a user can mend, in one line; anything else as it is."""
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, (AnalysisException, ParseException)):
        return UsageError(str(error).split("\n")[0])
    return error


def _lake(spark: "SparkSession", settings: "Settings") -> "Lake":
    from polybus.pipeline.lake import Lake

    lake = Lake(spark, settings.folder)
    if not lake.files.names(lake.files.at("books")):
        raise _no_tables(settings.folder)
    lake.check_format()
    return lake


def _steady(work: Callable[[], T]) -> T:
    """A running pipeline makes one folder of several, and days anew: who is about to read the old ones has to
    look again. `work` reads everything before it shows anything."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for _ in range(LOOKS - 1):
        try:
            return work()
        except (Py4JError, PySparkException) as error:
            if not any(mark in str(error) for mark in REPLACED):
                raise
    return work()


def _no_tables(folder: str) -> UsageError:
    return UsageError(f"there are no tables in {folder} yet: polybus pipeline run makes them")


def _check_table(name: str) -> None:
    from polybus.pipeline.session import check_spark

    check_spark()
    from polybus.pipeline.lake import table_named

    table_named(name)


def _list_tables() -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from polybus.pipeline.session import check_spark

    check_spark()
    from polybus.pipeline.schemas import TABLES

    grid = Grid("layer", "table", "what it has", box=None)
    for name, table in TABLES.items():
        grid.add_row(table.layer, name, table.about)
    Console().print(grid)


def _chosen(frame: "DataFrame", where: str | None, order: str | None) -> "DataFrame":
    from pyspark.sql import functions as F

    if where:
        frame = frame.where(where)
    if order:
        name = order.removeprefix("-")
        if name not in frame.columns:
            raise UsageError(
                f"--order {order}: there is no column {name!r}; there are {', '.join(frame.columns)}"
            )
        frame = frame.orderBy(F.desc(name) if order.startswith("-") else F.asc(name))
    return frame


def _time(text: str | None, option: str, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return now - timedelta(seconds=parse_duration(text, option))
    except UsageError:
        raise UsageError(f"{option} {text!r} is no time: write 15m, 1h, 2d or 2026-05-04T06:00") from None


def book_lines(lake: "Lake") -> list[str]:
    """What came and what became of it: the two are equal, or the run would have failed."""
    lines = []
    for job, what in JOBS.items():
        books = list(lake.books(job).values())
        if not books:
            continue
        fates: dict[str, int] = {}
        for book in books:
            for fate, count in book["fates"].items():
                fates[fate] = fates.get(fate, 0) + count
        said = " + ".join(f"{count:,} {fate}" for fate, count in fates.items())
        lines.append(f"{sum(book['rows'] for book in books):,} {what} = {said}")
    return lines


class _Progress:
    """A line that says how far it is, on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(file=sys.stderr)
        self._status = self._console.status("starting")
        self._rows: dict[str, tuple[int, int]] = {}
        self._now = ""

    def __enter__(self) -> "_Progress":
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def tell(self, name: str, batches: int, rows: int) -> None:
        if batches or name in self._rows:
            self._rows[name] = (batches, rows)
            self._now = ""
        elif not rows and name not in JOBS:
            self._now = f"making {name}"
        said = [f"{job}: {rows:,} rows in {batches} batches" for job, (batches, rows) in self._rows.items()]
        self._status.update(
            " · ".join([*said, *([self._now] if self._now else [])]) or "waiting for the first batch"
        )
