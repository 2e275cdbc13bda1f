"""The README's tour as a newcomer follows it: its files are written, compiled and run as they stand there."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cpp import FOLDER, build_cpp
from tests.client.certificates import Certificates
from tests.e2e.processes import PATIENCE_S, Served, run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
TOUR = dict(re.findall(r"<!-- tour: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))

pytestmark = pytest.mark.timeout(900)  # the C++ client may have to be compiled


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with Served(tmp_path_factory.mktemp("bus"), certificates, "", ("tbus",)) as served:
        yield served
        served.check_health()


@pytest.fixture(scope="module")
def programs(bus: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """How each program of the tour is started. All that is changed is where the bus is."""
    folder = tmp_path_factory.mktemp("tour")
    port = str(bus.ports["tbus"])
    for name in ("service.py", "ask.py", "service.cpp", "ask.cpp"):
        here = TOUR[name].replace(":5035", f":{port}")
        here = re.sub(r'(\.client_id = "\w+")', rf"\1, .port = {port}", here)
        assert port in here
        (folder / name).write_text(here)
    build_cpp("polybus-peer")  # and with it the library
    _, *compilations = TOUR["build"].splitlines()
    for command in compilations:
        words = [word.replace("cpp/build/plain", str(FOLDER)) for word in shlex.split(command)]
        words = [
            str(folder / word) if (word in ("service", "ask") or word.endswith(".cpp")) else word
            for word in words
        ]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return {
        "Python service": [sys.executable, str(folder / "service.py")],
        "Python": [sys.executable, str(folder / "ask.py")],
        "C++ service": [str(folder / "service")],
        "C++": [str(folder / "ask")],
    }


@pytest.fixture(params=["Python", "C++"])
def serving(programs: dict[str, list[str]], bus: Served, request: pytest.FixtureRequest) -> Iterator[str]:
    service = subprocess.Popen(programs[f"{request.param} service"], stdin=subprocess.PIPE)
    yield request.param
    service.kill()
    service.communicate(timeout=PATIENCE_S)


def test_python_asks(serving: str, programs: dict[str, list[str]]) -> None:
    done = run(*programs["Python"])
    first, second = done.stdout.splitlines()
    assert first == "42", done.stderr
    reasons = {"Python": "invalid literal for int() with base 10: 'fourteen'", "C++": "stoi"}
    assert second == f"request to 'triple': {reasons[serving]}"


def test_cpp_asks(serving: str, programs: dict[str, list[str]]) -> None:
    done = run(*programs["C++"])
    assert done.stdout == "42\n", done.stderr


def test_the_shell_asks(serving: str, bus: Served) -> None:
    command = re.search(r"`\.venv/bin/polybus (request triple 14)`", PAGE)
    assert command is not None
    url = f"tbus://127.0.0.1:{bus.ports['tbus']}"
    done = run(sys.executable, "-m", "polybus", *shlex.split(command[1]), "--url", url)
    assert done.stdout == "42\n", done.stderr


def test_what_the_tour_builds_is_a_target() -> None:
    build, *_ = TOUR["build"].splitlines()
    assert build.startswith("make cpp ARGS=build")
    assert "cpp: " in (ROOT / "Makefile").read_text()
