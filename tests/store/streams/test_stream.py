"""A stream as a whole: who it is, and what is said if it cannot be opened."""

import errno
import json
import shutil
import stat
from pathlib import Path

import pytest

from polybus.store.folder import DataFolder, StoreError
from polybus.store.streams.files import Files
from polybus.store.streams.reader import FolderSource
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.writer import StreamSet

RULE = StreamRule("fleet", ("trucks/#",), partitions=3)


def open_and_close(path: Path, rule: StreamRule = RULE, files: Files | None = None) -> str:
    """Its id."""
    with DataFolder(path) as folder:
        streams = StreamSet(folder, [rule], files=files)
        identity = streams.streams[rule.name].id
        streams.close()
    return identity


def test_a_stream_keeps_its_id_and_another_one_of_its_name_has_another(tmp_path: Path) -> None:
    first = open_and_close(tmp_path)
    assert len(first) == 16
    assert open_and_close(tmp_path, StreamRule("fleet", ("other/#",), partitions=4)) == first
    assert FolderSource(tmp_path).stream("fleet").id == first
    shutil.rmtree(tmp_path / "streams" / "fleet")
    assert open_and_close(tmp_path) != first


def test_a_stream_of_an_older_bus_gets_an_id(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    path = tmp_path / "streams" / "fleet" / "stream.json"
    told = json.loads(path.read_text())
    del told["id"]
    path.write_text(json.dumps(told))
    assert FolderSource(tmp_path).stream("fleet").id == ""
    assert open_and_close(tmp_path) == FolderSource(tmp_path).stream("fleet").id != ""


def test_a_description_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    (tmp_path / "streams" / "fleet" / "stream.json").write_text("[")
    with pytest.raises(StoreError, match=r"stream\.json cannot be read .* move it away"):
        open_and_close(tmp_path)


def test_only_the_owner_may_look_into_its_folders(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(folders) == 2 + RULE.partitions
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


class Failing(Files):
    def __init__(self, code: int) -> None:
        self._code = code

    def replace(self, path: Path, data: bytes) -> None:
        raise OSError(self._code, "as it may be")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "a start needs some 192 kB there: make room"),
        (errno.EDQUOT, "a start needs some 192 kB there: make room"),
        (errno.EROFS, "see to it that it can be written"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named_with_what_is_needed(
    tmp_path: Path, code: int, remedy: str
) -> None:
    place = tmp_path / "streams" / "fleet"
    expected = (
        f"stream fleet cannot be opened in {place}: as it may be; {remedy}, or choose another data folder"
    )
    with pytest.raises(StoreError) as caught:
        open_and_close(tmp_path, files=Failing(code))
    assert str(caught.value).startswith(expected)
    assert open_and_close(tmp_path)
