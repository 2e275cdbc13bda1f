"""Programs of `cpp/`, compiled when first needed, for benchmarks and end-to-end tests."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from bench.loadgen import BUILD, LoadgenError

SOURCES = Path(__file__).parent.parent / "cpp"
FOLDER = BUILD / "cpp"


def build_cpp(target: str) -> Path:
    """The program, after an incremental build; raises LoadgenError with what the compiler said."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise LoadgenError("cmake is needed to build the C++ client (Debian: apt install cmake g++)")
    jobs = str(os.cpu_count() or 1)
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "cpp.lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run([cmake, "-S", str(SOURCES), "-B", str(FOLDER), "-DCMAKE_BUILD_TYPE=Release"])
        _run([cmake, "--build", str(FOLDER), "--target", target, "--parallel", jobs])
    for program in (FOLDER / target, *FOLDER.glob(f"*/{target}")):
        if program.is_file():
            return program
    raise LoadgenError(f"the build of cpp/ has made no program {target}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadgenError(f"the C++ client does not build:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
