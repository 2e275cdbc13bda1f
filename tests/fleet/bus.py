"""The real bus as a process, for tests of what is built on it."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 30.0


class RunningBus:
    def __init__(self, folder: Path, configuration: str = "") -> None:
        self.folder = folder
        (folder / "polybus.toml").write_text(configuration)
        self._log = folder / "bus.log"
        command = [sys.executable, "-m", "polybus", "serve", "--config", "polybus.toml"]
        command += ["--mqtt-port", "0", "--tbus-port", "0", "--log-level", "WARN"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        deadline = time.monotonic() + START_TIMEOUT_S
        while "tbus://" not in self.log or "mqtt://" not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def url(self, scheme: str) -> str:
        found = re.search(rf"{scheme}://[\d.]+:\d+", self.log)
        assert found, self.log
        return found[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@contextmanager
def running_bus(folder: Path, configuration: str = "") -> Iterator[RunningBus]:
    bus = RunningBus(folder, configuration)
    try:
        yield bus
    finally:
        bus.stop()
