"""The data folder: private, and of one broker at a time."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from polybus.store.folder import DataFolder, StoreError


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with DataFolder(tmp_path / "a" / "data") as folder:
        inside = folder.folder("x", "y")
        for path in (folder.path, inside, inside.parent):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder.path / "lock").stat().st_mode) == 0o600


def test_a_second_broker_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from polybus.store.folder import DataFolder\n"
        "folder = DataFolder(Path(sys.argv[1])); print('has it', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"has it\n"
        with pytest.raises(StoreError) as refused:
            DataFolder(tmp_path)
        assert str(tmp_path) in str(refused.value)
        assert f"process {other.pid}" in str(refused.value)
        other.kill()
    DataFolder(tmp_path).close()


def test_it_can_be_had_again_after_its_end(tmp_path: Path) -> None:
    for _ in range(2):
        with DataFolder(tmp_path), pytest.raises(StoreError, match=f"process {os.getpid()}"):
            DataFolder(tmp_path)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StoreError, match="cannot be used"):
        DataFolder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
