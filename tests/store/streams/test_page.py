"""What docs/streams.md shows works, and what it says of the files is so."""

import re
from pathlib import Path

import pytest

from polybus.store.streams.format import SCHEMA
from polybus.store.streams.rule import StreamRule
from tests.store.streams.kept import keeping
from tests.store.streams.records import segment

PAGE = (Path(__file__).parents[3] / "docs/streams.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with keeping(tmp_path / "data", StreamRule("fleet", ("trucks/#",), partitions=1)) as world:
        alice = world.connect("alice")
        for number in range(1500):
            alice.publish(f"trucks/{number}", b"x")
        world.until_safe()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pyarrow_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[0], {})
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(int(rows) for rows, _ in shown) == 1500
    assert shown[0][1] == "trucks/0"


def test_the_reader(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[1], {})
    assert sum(map(int, capsys.readouterr().out.split())) == 500


def test_the_columns() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\w\[\]µ, ()`]+) \|", PAGE.split("## Old records")[0], flags=re.M)
    assert [name for name, _ in rows] == SCHEMA.names


def test_the_seal() -> None:
    digits = [int(d) for d in re.findall(r"^\| (\d+)(?:, 16)? \|", PAGE.split("## The files")[1], flags=re.M)]
    assert sum(digits) + 16 == 88
    found = re.search(rb"polybus-batch-1:([0-9a-f]{88})", segment(3, first=5))
    assert found is not None
    assert int(found[1][32:48], 16) == 5
    assert int(found[1][48:56], 16) == 3
