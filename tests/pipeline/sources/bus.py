"""`polybus serve` with a stream, on ports that stay the same when it is killed and started again."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import POLYBUS, eventually
from tests.ports import own_port

CONFIG = """
[[listener]]
port = {port}
[server]
data_dir = "data"
[http]
port = {http_port}
[[stream]]
name = "fleet"
filters = ["fleet/#"]
partitions = 2
segment_bytes = 65536
max_bytes = {max_bytes}
"""


class StreamingBus:
    def __init__(self, folder: Path) -> None:
        self.port, self._http_port = own_port(), own_port()
        self.url = f"http://127.0.0.1:{self._http_port}"
        self.stream_folder = folder / "data" / "streams" / "fleet"
        self._config = folder / "polybus.toml"
        self.keep(0)
        self._log = folder / "bus.log"
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, max_bytes: int) -> None:
        """From the next start on; 0: all."""
        text = CONFIG.format(port=self.port, http_port=self._http_port, max_bytes=max_bytes)
        self._config.write_text(text)

    def start(self) -> None:
        with self._log.open("wb") as log:
            command = [*POLYBUS, "serve", "--config", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(lambda: b"is ready" in self._log.read_bytes(), self._log.read_text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None


@contextmanager
def running_bus(folder: Path) -> Iterator[StreamingBus]:
    folder.mkdir(parents=True, exist_ok=True)
    bus = StreamingBus(folder)
    try:
        bus.start()
        yield bus
    finally:
        bus.stop()
