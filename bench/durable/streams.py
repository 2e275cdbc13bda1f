"""How fast streams are written and read, as `bench.streams` measures it; nothing where there is none."""

import importlib.util
import re
import subprocess
import sys

from bench.loadgen import LoadgenError

TIMEOUT_S = 120
_LINE = re.compile(r"^(?P<what>.+): (?P<millions>[\d.]+) M records/s$")


def is_there() -> bool:
    return importlib.util.find_spec("bench.streams") is not None


def rates(*, is_quick: bool) -> dict[str, float]:
    """What was measured -> records per second; raises LoadgenError."""
    command = [sys.executable, "-m", "bench.streams", "--only", "append", *(["--quick"] if is_quick else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LoadgenError(f"no result after {TIMEOUT_S} s: {' '.join(command[1:])}") from None
    found = parse(done.stdout)
    if done.returncode != 0 or not found:
        raise LoadgenError(f"{(done.stderr or done.stdout).strip()[-500:]} ({' '.join(command[1:])})")
    return found


def parse(text: str) -> dict[str, float]:
    matches = map(_LINE.match, text.splitlines())
    return {match["what"]: float(match["millions"]) * 1e6 for match in matches if match}
