"""`python -m tests.conformance`: how much of MQTT 3.1.1 and 5.0 is covered by tests that pass."""

import argparse
import contextlib
import io
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .coverage import Coverage, measure
from .recorder import Recorder


def main() -> int:
    options = _arguments()
    recorder, log = _collect(options.paths, run=not options.collect_only)
    coverages = measure(recorder, ran=not options.collect_only)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(coverages), indent=2).decode())
    elif options.missing:
        _print_missing(coverages)
    else:
        _print_tables(coverages, ran=not options.collect_only)
    for error in recorder.errors:
        print(error, file=sys.stderr)
    if recorder.errors:
        print(log, file=sys.stderr)
    whole = not any(c.unknown or c.in_state("missing", "failing") for c in coverages)
    return 0 if whole and not recorder.errors else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "paths", nargs="*", default=[str(Path(__file__).parent)], help="where the tests are (default: here)"
    )
    parser.add_argument("--collect-only", action="store_true", help="count the tests there are; run none")
    parser.add_argument("--missing", action="store_true", help="only the statements without a passing test")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    return parser.parse_args()


def _collect(paths: list[str], *, run: bool) -> tuple[Recorder, str]:
    """Let pytest collect, and run, the marked tests; its own output is returned, not shown."""
    recorder = Recorder()
    log = io.StringIO()
    flags = ["-q", "-m", "conformance", "-p", "no:cacheprovider", "--tb=short"]
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        pytest.main([*paths, *flags, *([] if run else ["--collect-only"])], plugins=[recorder])
    return recorder, log.getvalue()


def _print_missing(coverages: list[Coverage]) -> None:
    for coverage in coverages:
        for line in coverage.in_state("missing", "failing", "exempt"):
            print(f"{coverage.title}\t{line.rule}\t{line.state}\t{line.reason}")


def _print_tables(coverages: list[Coverage], *, ran: bool) -> None:
    console = Console()
    summary = Table(title="Conformance: statements that bind a server" + ("" if ran else " (tests not run)"))
    for column in ("version", "statements", "bind a server", "covered", "exempt", "failing", "no test"):
        summary.add_column(column, justify="left" if column == "version" else "right")
    for c in coverages:
        counts = [len(c.in_state(state)) for state in ("exempt", "failing", "missing")]
        summary.add_row(c.title, str(c.statements), str(c.binding), str(c.covered), *map(str, counts))
    console.print(summary)
    for c in coverages:
        lines = c.in_state("exempt", "failing", "missing")
        if lines:
            table = Table(title=f"{c.title}: not covered")
            for column in ("statement", "", "what it says", "reason"):
                table.add_column(column, overflow="fold")
            for line in lines:
                table.add_row(line.rule, line.state, escape(line.says), escape(line.reason))
            console.print(table)
        for rule in c.unknown:
            console.print(f"{c.title} has no {rule}, but a test cites it", style="bold red")


if __name__ == "__main__":
    sys.exit(main())
