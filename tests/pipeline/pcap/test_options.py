from pathlib import Path

import pytest

from polybus.errors import UsageError
from polybus.pipeline.sources.pcap.fields import COLUMNS
from polybus.pipeline.sources.pcap.options import find_files, read_options


def test_defaults() -> None:
    options = read_options({"path": "a.pcap"})
    assert options.paths == ("a.pcap",)
    assert options.columns == tuple(COLUMNS)
    assert (options.rows_per_batch, options.split_bytes) == (10_000, 64 << 20)


def test_names_are_known_in_any_case() -> None:
    options = read_options({"path": "a,b ", "rowsperbatch": "5", "SPLITBYTES": "2m", "payload": "False"})
    assert options.paths == ("a", "b")
    assert (options.rows_per_batch, options.split_bytes) == (5, 2 << 20)
    assert "payload" not in options.columns


def test_chosen_columns() -> None:
    assert read_options({"path": "a", "columns": "time, src"}).columns == ("time", "src")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "say which files"),
        ({"path": "a", "payloads": "1"}, "there is no option 'payloads'; there are path, payload,"),
        ({"path": "a", "payload": "yes"}, "payload is true or false, not 'yes'"),
        ({"path": "a", "rowsPerBatch": "0"}, "rowsPerBatch is a number from 1 to"),
        ({"path": "a", "rowsPerBatch": "many"}, "rowsPerBatch is a number from 1 to"),
        ({"path": "a", "splitBytes": "-5"}, "splitBytes is a number from"),
        ({"path": "a", "splitBytes": "m"}, "splitBytes is a number from"),
        ({"path": "a", "splitBytes": ""}, "splitBytes is a number from"),
        ({"path": "a", "columns": "time,sauce"}, "there is no column 'sauce'; there are file,"),
    ],
)
def test_bad_options_are_named_with_what_would_be_right(given: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_options(given)


def test_files_patterns_and_folders(tmp_path: Path) -> None:
    for name in ("a.pcap", "b.pcapng", "c.txt", "deep/d.pcap"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    names = [str(tmp_path / name) for name in ("a.pcap", "b.pcapng", "c.txt", "deep/d.pcap")]
    assert find_files((str(tmp_path),)) == names[:2]
    assert find_files((str(tmp_path / "*.pcap"), str(tmp_path / "a.pcap"))) == names[:1]
    assert find_files((str(tmp_path / "**/*.pcap"),)) == [names[0], names[3]]
    assert find_files((f"file://{tmp_path}/c.txt",)) == [names[2]]


def test_a_folder_has_rotated_captures_too(tmp_path: Path) -> None:
    """As `tcpdump -C 1 -w x.pcap` names them."""
    for name in ("A.PCAP", "x.pcap", "x.pcap1", "x.pcap12", "x.pcap.gz", "x.pcapx", "x1"):
        (tmp_path / name).write_bytes(b"")
    found = [Path(name).name for name in find_files((str(tmp_path),))]
    assert found == ["A.PCAP", "x.pcap", "x.pcap1", "x.pcap12"]


@pytest.mark.parametrize(
    ("path", "text"), [("/nowhere/*.pcap", "names no file"), ("hdfs://host/a.pcap", "is not a local path")]
)
def test_paths_that_lead_nowhere(path: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        find_files((path,))
