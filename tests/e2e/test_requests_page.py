"""The examples of docs/requests.md, run as a newcomer would: saved, started, and typed at the prompt."""

import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

from polybus.ops.config import load
from tests.e2e.paho_peers import connected
from tests.e2e.processes import PATIENCE_S, Program, Served, eventually

PAGE = (Path(__file__).parents[2] / "docs" / "requests.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
LATE_S = 3.0
"""How much later than its request the late service of the page appears."""


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == {"service.py", "ask.py", "calls", "waiting"}


def of(bus: Served, example: str) -> str:
    """The example for this bus."""
    assert '"127.0.0.1", 1883' in EXAMPLES[example]
    return EXAMPLES[example].replace('"127.0.0.1", 1883', f'"127.0.0.1", {bus.port}')


def type_in(bus: Served, folder: Path, example: str) -> tuple[str, str]:
    """What the example's lines print at the prompt of `python -i ask.py`, and what the page shows."""
    path = folder / "ask.py"
    path.write_text(of(bus, "ask.py"))
    lines = EXAMPLES[example].splitlines(keepends=True)
    typed = "".join(line.removeprefix(">>> ") for line in lines if line.startswith(">>> "))
    done = subprocess.run(
        [sys.executable, "-i", str(path)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Error" not in done.stderr, done.stderr
    return done.stdout, "".join(line for line in lines if not line.startswith(">>> "))


def wait_until_served(bus: Served, topic: str) -> None:
    with connected(bus) as probe:
        eventually(lambda: probe.ask(topic, "0", timeout_s=1)[0] != "not-delivered")


def service(bus: Served, folder: Path, name: str) -> Program:
    """What the page says to start for this service."""
    (command,) = re.findall(rf"`((?:python service.py|mosquitto_sub) [^`]*\b{name}\b[^`]*)`", PAGE)
    path = folder / "service.py"
    path.write_text(of(bus, "service.py"))
    program, *arguments = shlex.split(command)
    if program == "mosquitto_sub":
        return Program([program, "-p", str(bus.port), *arguments], folder)
    assert arguments == ["service.py", name]
    return Program([sys.executable, str(path), name], folder)


def test_calls(bus: Served, tmp_path: Path) -> None:
    with service(bus, tmp_path, "triple") as tripler:
        wait_until_served(bus, "triple")
        printed, shown = type_in(bus, tmp_path, "calls")
        assert printed == shown
        assert tripler.output == ""


def test_waiting(bus: Served, tmp_path: Path) -> None:
    with service(bus, tmp_path, "never/answers") as lazy:
        wait_until_served(bus, "never/answers")
        results: list[tuple[str, str]] = []
        typing = threading.Thread(target=lambda: results.append(type_in(bus, tmp_path, "waiting")))
        typing.start()
        time.sleep(LATE_S)  # what is shown is that it may come so late
        with service(bus, tmp_path, "late/service"):
            typing.join(PATIENCE_S)
        ((printed, shown),) = results
        assert printed == shown
        assert "14" in lazy.output


def test_the_configuration_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "bus.toml"
    path.write_text("\n".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)))
    config = load(path)
    assert (config.requests.strategy, config.requests.timeout_s) == ("round_robin", 30)
    (rule,) = config.service_rules()
    assert (rule.filter, rule.strategy, rule.concurrency, rule.answer_within_s) == (
        "solvers/#",
        "fastest",
        4,
        10,
    )
