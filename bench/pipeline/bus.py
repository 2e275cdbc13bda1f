"""A bus with a stream, in a process of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME: Final = "bench"
PARTITIONS: Final = 2
CONFIG: Final = f"""
[server]
data_dir = "data"
[http]
port = 0
[[stream]]
name = "{NAME}"
filters = ["bench/#"]
partitions = {PARTITIONS}
"""


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Its addresses for MQTT and for streams."""
    (folder / "polybus.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "polybus", "serve", "--config", str(folder / "polybus.toml")]
    command += ["--mqtt-port", "0", "--tbus-port", "0"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while "is ready" not in log.read_text():
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.02)
        yield _found(r"(mqtt://\S+)", log), _found(r"(http://\S+)/streams", log)
    finally:
        process.terminate()
        process.wait()


def _found(pattern: str, log: Path) -> str:
    found = re.search(pattern, log.read_text())
    if found is None:
        raise RuntimeError(f"the bus does not say where it listens:\n{log.read_text()}")
    return found[1]
