"""The load generator: a small C++ program, compiled when first needed.

It shares the machine with the broker it measures, so it must use little of it; that is why it is not
Python. `run` starts it for one measurement and gives back what it printed.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
FLAGS = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror"]


class LoadgenError(Exception):
    """The load generator could not be built, or a measurement with it failed."""


def build() -> Path:
    """Compile the sources unless a program made from the same sources is there; raises LoadgenError."""
    sources = sorted(HERE.glob("*.cpp"))
    text = b"".join(path.read_bytes() for path in [*sources, *sorted(HERE.glob("*.hpp"))])
    program = BUILD / f"loadgen-{hashlib.sha256(text).hexdigest()[:12]}"
    if program.exists():
        return program
    compiler = shutil.which("g++")
    if compiler is None:
        raise LoadgenError("g++ is needed to compile the load generator (Debian: apt install g++)")
    BUILD.mkdir(exist_ok=True)
    for old in BUILD.glob("loadgen-*"):
        old.unlink()
    unfinished = program.with_suffix(".new")
    command = [compiler, *FLAGS, *map(str, sources), "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadgenError(f"the load generator does not compile:\n{done.stderr}")
    unfinished.rename(program)
    return program


def run(command: str, *, timeout_s: float = 60, **options: object) -> dict[str, float]:
    """One measurement: `run("throughput", port=1883, qos=1)`; raises LoadgenError with the reason."""
    arguments = [str(build()), command]
    for name, value in options.items():
        arguments += [f"--{name}", str(value)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise LoadgenError(f"no result after {timeout_s:.0f} s: {' '.join(arguments[1:])}") from None
    if done.returncode != 0:
        raise LoadgenError(f"{done.stderr.strip()} ({' '.join(arguments[1:])})")
    result: dict[str, float] = json.loads(done.stdout)
    return result
