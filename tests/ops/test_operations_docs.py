"""What the documentation says about events is what the bus emits."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from polybus.broker import events
from polybus.broker.events import Event
from polybus.ops.config import load
from polybus.ops.log_records import LEVELS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
EVENTS = {name: value for name, value in vars(events).items() if isinstance(value, Event)}
NAMES = {number: name for name, number in LEVELS.items()}


def rows(header: str) -> list[list[str]]:
    """The cells of the table under this header."""
    lines = PAGE.split(f"{header}\n", 1)[1].splitlines()[1:]
    table = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def documented_events() -> dict[str, tuple[str, set[str]]]:
    """Level and fields by name."""
    table = {
        name.strip("`"): (level, fields) for name, level, fields, _ in rows("| event | level | fields | |")
    }
    same = table["request received"][1]
    return {
        name: (level, set(re.findall(r"`(\w+)`", fields.replace("the same", same))))
        for name, (level, fields) in table.items()
    }


def documented_fields() -> set[str]:
    return {name.strip("`") for name, _ in rows("| field | |")}


def calls_of_emit() -> Iterator[tuple[str | None, set[str]]]:
    """The event's name in `broker.events` (None: it comes from elsewhere) and the fields it is given."""
    for path in (ROOT / "src" / "polybus").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] != "emit":
                continue
            first = ast.unparse(node.args[0]).split(".")[-1] if node.args else ""
            if node.keywords and (first in EVENTS or first == "event"):
                yield (first if first in EVENTS else None), {keyword.arg or "" for keyword in node.keywords}


def test_every_event_is_there_with_its_level() -> None:
    expected = {event.name: NAMES[event.level] for event in EVENTS.values()}
    assert {name: level for name, (level, _) in documented_events().items()} == expected


def test_every_field_is_explained() -> None:
    assert set().union(*(fields for _, fields in documented_events().values())) == documented_fields()


def test_no_event_says_more_than_is_written() -> None:
    documented = documented_events()
    calls = list(calls_of_emit())
    assert len(calls) > 10
    for name, fields in calls:
        known = documented_fields() if name is None else documented[EVENTS[name].name][1]
        assert fields <= known, name


def test_every_level_is_explained() -> None:
    explained = [name for cell, _ in rows("| level | what it adds |") for name in re.findall("[A-Z]+", cell)]
    assert explained == list(LEVELS)


def test_what_it_shows_loads(tmp_path: Path) -> None:
    path = tmp_path / "bus.toml"
    path.write_text("\n".join(re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)))
    config = load(path)
    assert config.server.event_file == tmp_path / "events.jsonl"
    assert len(config.acl) == 2
