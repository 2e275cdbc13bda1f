"""The commands' errors, without Spark; and what they print, in one real run."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from polybus.cli.durations import parse_duration
from polybus.cli.main import app
from polybus.errors import UsageError


def run(*arguments, **environment):
    return CliRunner().invoke(app, ["pipeline", *arguments], env=environment)


def test_without_a_name_the_tables_are_listed():
    said = run("show").stdout
    assert "cap_use" in said
    assert "bronze" in said


def test_a_table_that_is_not_there_names_those_that_are():
    done = run("show", "caps")
    assert done.exit_code == 2
    assert "there is no table 'caps'; there are messages, events, records" in done.stderr


@pytest.mark.parametrize(
    ("home", "said"),
    [
        ("/nowhere", "Spark needs Java 17 or newer and there is none"),
        ("old", "is Java 11: name another one's folder in JAVA_HOME"),
        ("broken", "does not run"),
    ],
)
def test_a_java_that_will_not_do_is_named(tmp_path, home, said):
    for name, script in (("old", "echo 'openjdk version \"11.0.2\"' >&2"), ("broken", "exit 1")):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    done = run("show", "cap_use", JAVA_HOME=str(tmp_path / home))
    assert done.exit_code == 1
    assert said in done.stderr


def test_without_the_extra_it_is_named(tmp_path):
    """A Python that finds no pyspark: ours, told to look away."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pyspark' else find(name, *more)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "polybus", "pipeline", "show", "cap_use"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "install the extra, pip install 'polybus[spark]'" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("folder = 3", "folder: Expected `str`, got `int`"),
        ("[fleet]\ncap_bytes = 0", "fleet.cap_bytes: Expected `int` >= 1"),
        ("colour = 'red'", "top level: Object contains unknown field `colour`"),
        ("folder =", "is not TOML"),
    ],
)
def test_a_wrong_configuration_names_file_and_key(tmp_path, text, said):
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    done = run("run", "--config", str(file))
    assert done.exit_code == 2
    assert str(file) in done.stderr
    assert said in done.stderr


def test_a_folder_without_tables_is_named(tmp_path):
    done = run("show", "cap_use", "--folder", str(tmp_path / "none"))
    assert done.exit_code == 2
    assert f"there are no tables in {tmp_path / 'none'} yet: polybus pipeline run makes them" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_time_that_is_none_is_said():
    done = run("search", "x", "--since", "yesterday")
    assert done.exit_code == 2
    assert "--since 'yesterday' is no time: write 15m, 1h, 2d or 2026-05-04T06:00" in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("8h", 28_800), ("2d", 172_800)]
)
def test_durations(text, seconds):
    assert parse_duration(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1 hour", "soon"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="--x"):
        parse_duration(text, "--x")


def test_the_command_line_does_not_load_spark():
    script = "import sys, polybus.cli.main; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
