"""The load generator: a small C++ program, compiled when first needed.

It shares the machine with the broker it measures, so it must use little of it; that is why it is not
Python. `run` starts it for one measurement and gives back what it printed.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
TIMEOUT_S = 60
FLAGS = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror"]

Sample = Mapping[str, float]


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
    with (BUILD / "loadgen.lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(compiler, sources, program)
    return program


def _build(compiler: str, sources: list[Path], program: Path) -> None:
    with tempfile.TemporaryDirectory(dir=BUILD) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [Path(folder, f"{source.stem}.o") for source in sources]
        jobs = [
            [compiler, *FLAGS, "-c", str(source), "-o", str(made)]
            for source, made in zip(sources, objects, strict=True)
        ]
        list(pool.map(compile_one, jobs))
        unfinished = Path(folder, program.name)
        compile_one([compiler, *map(str, objects), "-o", str(unfinished)])
        unfinished.rename(program)
    for old in BUILD.glob("loadgen-*"):
        if old != program:
            old.unlink()


def compile_one(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadgenError(f"the load generator does not compile:\n{done.stderr}")


def arguments(command: str, options: Mapping[str, float | str]) -> list[str]:
    words = [str(build()), command]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def run(command: str, **options: float | str) -> Sample:
    """One measurement: `run("throughput", port=1883, qos=1)`; raises LoadgenError with the reason."""
    words = arguments(command, options)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LoadgenError(f"no result after {TIMEOUT_S} s: {' '.join(words[1:])}") from None
    if done.returncode != 0:
        raise LoadgenError(f"{done.stderr.strip()} ({' '.join(words[1:])})")
    sample: Sample = json.loads(done.stdout)
    return sample


@contextlib.contextmanager
def holding(**options: float | str) -> Iterator[None]:
    """Idle connections, as `loadgen hold` makes them, for as long as the block lasts."""
    words = arguments("hold", options)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise LoadgenError(f"the broker did not take all of them: {' '.join(words[1:])}")
            yield
        finally:
            process.stdin.close()
