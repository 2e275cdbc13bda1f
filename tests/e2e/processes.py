"""A bus and its peers as processes of their own."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.client.certificates import Certificates
from tests.ports import own_port

PATIENCE_S = 30.0
"""How long anything may take on a busy machine before a test fails."""
LONG = os.environ.get("POLYBUS_LONG") == "1"
"""Have floods last as long as the requirements say, rather than as long as CI can wait."""
EVERY_KIND = ("tcp", "tls", "websocket", "wss", "unix")
POLYBUS = [sys.executable, "-m", "polybus"]
_numbers = itertools.count(1)


def unique(prefix: str = "t") -> str:
    """A topic or client id that no other test of this run uses."""
    return f"{prefix}{next(_numbers)}x{os.getpid()}"


def eventually(condition: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until it holds; `what` explains the failure."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Served:
    """`polybus serve` with a listener of each kind, every one on a port of the kernel's choice."""

    def __init__(
        self,
        folder: Path,
        certificates: Certificates,
        text: str = "",
        kinds: tuple[str, ...] = ("tcp",),
        data: Path | None = None,
    ) -> None:
        self.folder = folder
        self.certificates = certificates
        self.config_path = folder / "polybus.toml"
        self.data_path = data or folder / "data"
        self.ports = {kind: own_port() for kind in kinds if kind != "unix"}
        # A socket's path may have 107 bytes, and pytest's folders are long.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="pb"))
        self.socket_path = self._socket_folder / "s"
        self._kinds = kinds
        self.write_config(text)

    def write_config(self, text: str) -> None:
        tls = (
            f'certificate = "{self.certificates.cert("server")}"\n'
            f'private_key = "{self.certificates.key("server")}"\n'
        )
        places = {kind: f"port = {port}\n" for kind, port in self.ports.items()}
        places["unix"] = f'path = "{self.socket_path}"\n'
        keys = {"tls": tls, "wss": tls}
        listeners = [
            f"[[listener]]\n{_kind(kind)}\n{places[kind]}{keys.get(kind, '')}\n" for kind in self._kinds
        ]
        self.config_path.write_text("".join(listeners) + text)

    def __enter__(self) -> Self:
        self._stdout = self.folder / "stdout.txt"
        self._stderr = self.folder / "stderr.txt"
        command = [*POLYBUS, "serve", "--config", str(self.config_path), "--data-dir", str(self.data_path)]
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        try:
            eventually(self._is_ready, lambda: self.log)
        except BaseException:
            self.__exit__()
            raise
        urls = self.stdout.splitlines()[1:]
        self.http_url = next((url.strip() for url in urls if url.strip().startswith("http:")), "")
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        return "is ready" in self.stdout and self.stdout.count("\n") > len(self._kinds)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def log(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def port(self) -> int:
        return self.ports["tcp"]

    @property
    def authority(self) -> str:
        return str(self.certificates.cert("ca"))

    def url(self, kind: str = "tcp") -> str:
        schemes = {"tcp": "mqtt", "tls": "mqtts", "websocket": "ws", "wss": "wss"}
        if kind == "unix":
            return f"mqtt+unix://{self.socket_path}"
        return f"{schemes[kind]}://127.0.0.1:{self.ports[kind]}"

    def kill(self) -> None:
        """Without a chance to say or write anything more."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def reload(self) -> None:
        """SIGHUP, and wait until the log says how it went."""
        before = len(re.findall("configuration (?:not )?reloaded", self.log))
        self.signal(signal.SIGHUP)
        eventually(
            lambda: len(re.findall("configuration (?:not )?reloaded", self.log)) > before, lambda: self.log
        )

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def check_health(self) -> None:
        assert self.process.poll() is None, self.log
        assert "Traceback" not in self.log, self.log
        assert not re.search(r"^\S+ (ERROR|FATAL)", self.log, re.M), self.log


def _kind(kind: str) -> str:
    return 'protocol = "tbus"' if kind == "tbus" else f'kind = "{kind}"'


class Program:
    """A process whose output grows while we watch; it ends at the latest with its `with`."""

    def __init__(self, command: list[str], folder: Path, stdin: str | None = None) -> None:
        self._path = folder / f"{unique('output')}.txt"
        self._command = command
        self._stdin = stdin

    def __enter__(self) -> Self:
        with self._path.open("wb") as output:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )
        assert self.process.stdin is not None
        if self._stdin is not None:
            self.process.stdin.write(self._stdin.encode())
        self.process.stdin.close()
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        eventually(lambda: text in self.output or self.process.poll() is not None, lambda: self.output)
        assert text in self.output, f"{self._command} ended: {self.output}"

    def wait(self) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(PATIENCE_S)
        raise AssertionError(f"{self._command} does not end: {self.output}")


def run(*command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S
    )


def polybus(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run(*POLYBUS, *arguments, stdin=stdin)
