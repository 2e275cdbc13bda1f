"""The promises of the set-up that a fresh machine depends on."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")
]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_are_names_and_versions_only() -> None:
    assert PINS
    assert [pin for pin in PINS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", pin)] == []


def test_everything_we_ask_for_is_pinned_once() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["test"], *extras["spark"], "setuptools", "py-spy"]
    # The test extra takes in another extra by our own name; what that one wants is in the list.
    wanted.remove("polybus[spark]")
    pinned = [normalized(pin.split("==")[0]) for pin in PINS]
    assert {normalized(re.split(r"[<>=\[ ]", each)[0]) for each in wanted} - set(pinned) == set()
    assert len(pinned) == len(set(pinned))


def test_the_bus_alone_is_a_small_install() -> None:
    heavy = {"pyspark", "pyarrow", "pandas", "matplotlib", "pytest", "mypy"}
    assert heavy.isdisjoint(normalized(re.split(r"[<>=]", each)[0]) for each in PROJECT["dependencies"])


def test_help_names_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "run", "test", "check", "bench", "conformance", "fuzz", "help"):
        assert f"make {target} " in shown


@pytest.mark.parametrize("script", [".ci/run", "scripts/system-packages"])
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def test_a_missing_package_is_named_to_those_who_may_not_install(tmp_path: Path) -> None:
    fake_id = tmp_path / "id"
    fake_id.write_text("#!/bin/sh\necho 1000\n")
    fake_id.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts/system-packages", "no-such-package"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Missing system packages: no-such-package" in done.stderr
    assert "apt-get install" in done.stderr


def test_an_old_python_is_refused_with_the_way_out(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={old}", f"VENV={tmp_path}/venv", "setup"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Polybus needs Python 3.11 or newer" in done.stderr
    assert "Python 3.8.1" in done.stderr
    assert "make PYTHON=" in done.stderr
