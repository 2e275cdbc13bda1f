"""Brokers with and without a memory that outlives them, and how one of them is ended and started again."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench import brokers
from bench.brokers import BrokerError, Command
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V311, Connect

READY_TIMEOUT_S = 180.0
POLL_S = 0.005

# Room for millions of messages that wait for one session, in a broker that otherwise runs with its defaults.
POLYBUS_CONFIG = """\
[limits]
queued_messages_per_session = 100000000
queued_bytes_per_session = 17179869184
memory_bytes = 17179869184
"""

# Mosquitto writes its state when it is told to stop: the kindest way to restart it.
SAVING = """\
persistence true
persistence_location {folder}/
autosave_interval 0
"""


def memory_command(port: int, folder: Path) -> list[str]:
    return polybus_command(port, folder, POLYBUS_CONFIG, "--memory")


def durable_command(sync: str) -> Command:
    def command(port: int, folder: Path) -> list[str]:
        config = f'{POLYBUS_CONFIG}\n[store]\nsync = "{sync}"\n'
        return polybus_command(port, folder, config, "--data-dir", str(folder / "data"))

    return command


def polybus_command(port: int, folder: Path, config: str, *flags: str) -> list[str]:
    path = folder / "polybus.toml"
    path.write_text(config)
    # Not `brokers.polybus_serve`, which may say where state is to be kept: that is the question here.
    serve = [sys.executable, "-m", "polybus", "serve", "--log-level", "warn"]
    return [*serve, "--config", str(path), "--mqtt-port", str(port), "--tbus-port", "0", *flags]


def saving_mosquitto_command(port: int, folder: Path) -> list[str]:
    command = brokers.mosquitto_command(port, folder)
    config = folder / "mosquitto.conf"
    text = config.read_text().replace("persistence false\n", SAVING.format(folder=folder))
    config.write_text(f"{text}user root\n")  # started by root it would give up its folder with root
    return command


CONTENDERS: Mapping[str, Command] = {
    "mosquitto": brokers.mosquitto_command,
    "memory": memory_command,
    "normal": durable_command("normal"),
    "full": durable_command("full"),
}
RESTARTED: Mapping[str, Command] = {
    "mosquitto, stopped": saving_mosquitto_command,
    "normal, kill -9": durable_command("normal"),
    "full, kill -9": durable_command("full"),
}
MEANINGS: Mapping[str, str] = {
    "mosquitto": "Mosquitto without any persistence",
    "memory": "Polybus without a data folder",
    "normal": 'Polybus with sync = "normal": survives kill -9',
    "full": 'Polybus with sync = "full": survives a power loss too',
}


class Mortal:
    """A broker that is ended and started again, in the same folder and at the same port."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.port = brokers.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[float, float]:
        """When the process was started, and when it let a first client in; both of the monotonic clock."""
        command = RESTARTED[self.name](self.port, self.folder)
        log = self.folder / "log"
        began = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder)
        while time.monotonic() < began + READY_TIMEOUT_S:
            if self._process.poll() is not None:
                raise BrokerError(
                    f"{self.name} ended with status {self._process.returncode}:\n{log.read_text()[-2000:]}"
                )
            if self.lets_in():
                return began, time.monotonic()
            time.sleep(POLL_S)
        raise BrokerError(f"{self.name} lets nobody in after {READY_TIMEOUT_S:.0f} s")

    def lets_in(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe,
        ):
            probe.settimeout(READY_TIMEOUT_S)
            probe.sendall(encode(Connect("bench-probe"), V311))
            return probe.recv(4) == b"\x20\x02\x00\x00"
        return False

    def end(self) -> None:
        """As its name says."""
        assert self._process is not None
        if self.name.endswith("kill -9"):
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait(READY_TIMEOUT_S)
        self._process = None

    def kept_bytes(self) -> int:
        """Everything in its folder but its log."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "log"]
        return sum(path.stat().st_size for path in files)

    def close(self) -> None:
        if self._process is not None:
            brokers.stop(self._process)


@contextlib.contextmanager
def mortal(name: str) -> Iterator[Mortal]:
    with tempfile.TemporaryDirectory(prefix="polybus-bench-") as folder:
        broker = Mortal(name, Path(folder))
        try:
            yield broker
        finally:
            broker.close()
