"""The broker under test: a process and a data folder of its own, killed and started again on the same port."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.brokers import mosquitto
from tests.e2e.crash.doomed import DOOM
from tests.e2e.processes import PATIENCE_S, POLYBUS
from tests.ports import own_port

# As durable as Mosquitto gets: it writes its whole state anew a second after each change.
MOSQUITTO_CONFIG = """\
listener {mqtt_port} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
persistence true
persistence_location {data}/
autosave_interval 1
log_dest stderr
log_type error
log_type warning
"""

# Nothing may be dropped for lack of room: what is missing is then lost.
POLYBUS_CONFIG = """\
[mqtt]
sys_interval_s = 0

[limits]
stored_messages = 1000000
stored_bytes = 1073741824
queued_messages_per_session = 10000000
queued_bytes_per_session = 8589934592
memory_bytes = 17179869184
"""


class BrokerDied(AssertionError):
    """It ended by itself, or does not start."""


@dataclass(frozen=True)
class Setting:
    folder: Path
    mqtt_port: int
    tbus_port: int
    sync: str
    extra: str = ""
    """More lines for Polybus's configuration."""

    @property
    def data(self) -> Path:
        return self.folder / "data"


DOOMED_POLYBUS = [sys.executable, "-m", "tests.e2e.crash.doomed"]


def _polybus(
    setting: Setting, *flags: str, more: str = "", program: Sequence[str] = tuple(POLYBUS)
) -> list[str]:
    config = setting.folder / "polybus.toml"
    config.write_text(POLYBUS_CONFIG + more + setting.extra)
    ports = ["--mqtt-port", str(setting.mqtt_port), "--tbus-port", str(setting.tbus_port)]
    return [*program, "serve", "--config", str(config), "--log-level", "warn", *ports, *flags]


def durable_polybus(setting: Setting, program: Sequence[str] = tuple(POLYBUS)) -> list[str]:
    more = f'\n[server]\ndata_dir = "{setting.data}"\n\n[store]\nsync = "{setting.sync}"\n'
    return _polybus(setting, more=more, program=program)


def doomed_polybus(setting: Setting) -> list[str]:
    return durable_polybus(setting, DOOMED_POLYBUS)


def forgetful_polybus(setting: Setting) -> list[str]:
    return _polybus(setting, "--memory")


def snapshotting_mosquitto(setting: Setting) -> list[str]:
    setting.data.mkdir(exist_ok=True)
    config = setting.folder / "mosquitto.conf"
    config.write_text(MOSQUITTO_CONFIG.format(mqtt_port=setting.mqtt_port, data=setting.data))
    # Started by root it would give up root, and with it its folder.
    config.write_text(config.read_text() + ("user root\n" if os.geteuid() == 0 else ""))
    return [mosquitto(), "-c", str(config)]


KINDS: dict[str, Callable[[Setting], list[str]]] = {
    "polybus": durable_polybus,
    "polybus-doomed": doomed_polybus,
    "polybus-memory": forgetful_polybus,
    "mosquitto": snapshotting_mosquitto,
}


class BrokerProcess:
    def __init__(self, kind: str, setting: Setting) -> None:
        self.kind = kind
        self.setting = setting
        self.lives = 0
        self.kills = 0
        self._log = setting.folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_polybus(self) -> bool:
        return self.kind.startswith("polybus")

    def start(self) -> None:
        assert self._process is None, "the last one is still there"
        command = KINDS[self.kind](self.setting)
        with self._log.open("ab") as log:
            # Where it was started decides what it can import, not where it works.
            environment = os.environ | {"PYTHONPATH": os.getcwd()}
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.setting.folder, env=environment
            )
        self.lives += 1

    def await_listener(self, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            self.check_alive()
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.setting.mqtt_port), 1),
            ):
                return
            if time.monotonic() > deadline:
                raise BrokerDied(f"{self.kind} does not listen after {patience_s:.0f} s: {self.log[-2000:]}")
            time.sleep(0.005)

    def kill(self) -> None:
        """`kill -9`. Does nothing to one that was killed already."""
        self.check_alive()
        if self._process is not None and self.kills < self.lives:
            self._process.send_signal(signal.SIGKILL)
            self.kills = self.lives

    def doom(self) -> None:
        """Of `polybus-doomed`: it dies between the next record and its commit."""
        (self.setting.data / DOOM).touch()

    @property
    def is_dead(self) -> bool:
        self.check_alive()
        return self._process is None or self._process.poll() is not None

    def bury(self) -> None:
        """Wait until the kernel has taken back its sockets and locks."""
        if self._process is not None:
            self._process.wait(PATIENCE_S)
            self._process = None

    def stop(self) -> None:
        """In peace, or not; whatever state it is in."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def check_alive(self) -> None:
        if self._process is not None and self._process.poll() not in (None, -signal.SIGKILL):
            status = self._process.returncode
            raise BrokerDied(f"{self.kind} ended by itself with status {status}: {self.log[-2000:]}")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def complaints(self) -> list[str]:
        """Lines of its log that say that something is wrong with it."""
        if not self.is_polybus:
            return []
        return [line for line in self.log.splitlines() if re.search(r"Traceback|^\S+ (ERROR|FATAL)", line)]


@contextlib.contextmanager
def broker_in(folder: Path, kind: str, sync: str = "normal", extra: str = "") -> Iterator[BrokerProcess]:
    """Not started yet; ended with the block."""
    broker = BrokerProcess(kind, Setting(folder, own_port(), own_port(), sync, extra))
    try:
        yield broker
    finally:
        broker.stop()
