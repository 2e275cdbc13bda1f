"""What was tried while packets were captured (LB-03): one line of JSON a run."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from polybus.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=0)]


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In the order of `overhead.RUNS`, which says what each means."""

    scenario: str
    protocol: str
    loss_percent: float
    payload_bytes: Count
    messages: Count
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    started: datetime | None = None
    ended: datetime | None = None
    capture: str = ""
    error: str | None = None


def parse_runs(text: str, name: str) -> list[Run]:
    """Empty lines are left out. Raises `UsageError` that names the file, the line and what is wrong."""
    runs: list[Run] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            run = msgspec.json.decode(line, type=Run)
        except msgspec.DecodeError as error:  # ValidationError is one, too
            raise UsageError(f"captures.runs: {name}, line {number}: {error}") from error
        if not run.capture:
            raise UsageError(f"captures.runs: {name}, line {number}: say the file of the capture, as capture")
        before = seen.setdefault(run.scenario, number)
        if before != number:
            raise UsageError(
                f"captures.runs: {name}, line {number}: there is a scenario {run.scenario!r} in line {before}; "
                "each has a name of its own"
            )
        runs.append(run)
    return runs


def load_runs(file: Path) -> list[Run]:
    try:
        return parse_runs(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"captures.runs: {file} cannot be read: {error}") from error
