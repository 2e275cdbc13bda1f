"""Real brokers as processes, with the same listeners each: Mosquitto and Polybus itself."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.client.certificates import Certificates
from tests.ports import own_port

KINDS = ["mosquitto", "polybus"]
USER, PASSWORD = "alice", "secret"
START_TIMEOUT_S = 20.0
_unique = itertools.count(1)


class Broker:
    """Listeners: tcp, tls, mutual (wants a client certificate), ws, wss, unix; Polybus has tbus, tbuss
    and tbus+unix too. `settings` are added to Polybus's configuration."""

    def __init__(
        self, kind: str, folder: Path, certificates: Certificates, *, wants_login: bool, settings: str = ""
    ) -> None:
        self.kind = kind
        self.certificates = certificates
        self._folder = folder
        self._wants_login = wants_login
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        names = ["tcp", "tls", "mutual", "ws", "wss", *(["tbus", "tbuss"] if kind == "polybus" else [])]
        self.ports = {name: own_port() for name in names}
        # A socket's path may have 107 bytes, and pytest's folders are long.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="pb"))
        self.socket_path = self._socket_folder / "s"
        self.tbus_socket_path = self._socket_folder / "t"
        write = self._write_mosquitto if kind == "mosquitto" else self._write_polybus
        self._command = write()

    def url(self, listener: str = "tcp") -> str:
        if listener == "unix":
            return f"mqtt+unix://{self.socket_path}"
        if listener == "tbus+unix":
            return f"tbus+unix://{self.tbus_socket_path}"
        scheme = {"tcp": "mqtt", "tls": "mqtts", "mutual": "mqtts"}.get(listener, listener)
        return f"{scheme}://127.0.0.1:{self.ports[listener]}"

    def start(self) -> None:
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(_listens(port) for port in self.ports.values()):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self._process = None

    def pause(self) -> None:
        """It is there, takes bytes as far as the kernel does, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    @property
    def log(self) -> str:
        return (self._folder / "log.txt").read_text(errors="replace")

    def _write_mosquitto(self) -> list[str]:
        cert, key = self.certificates.cert, self.certificates.key
        tls = f"cafile {cert('ca')}\ncertfile {cert('server')}\nkeyfile {key('server')}"
        lines = [
            f"allow_anonymous {str(not self._wants_login).lower()}",
            f"listener {self.ports['tcp']} 127.0.0.1",
            f"listener {self.ports['tls']} 127.0.0.1\n{tls}",
            f"listener {self.ports['mutual']} 127.0.0.1\n{tls}\nrequire_certificate true",
            f"listener {self.ports['ws']} 127.0.0.1\nprotocol websockets",
            f"listener {self.ports['wss']} 127.0.0.1\nprotocol websockets\n{tls}",
            f"listener 0 {self.socket_path}",
        ]
        if os.geteuid() == 0:
            lines.insert(0, "user root")  # else it would give up root, and could not read our files
        if self._wants_login:
            users = self._folder / "users"
            subprocess.run(["mosquitto_passwd", "-b", "-c", users, USER, PASSWORD], check=True)
            lines.insert(0, f"password_file {users}")
        config = self._folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "Debian's mosquitto is not installed"
        return [program, "-c", str(config)]

    def _write_polybus(self) -> list[str]:
        cert, key = self.certificates.cert, self.certificates.key
        tls = f'certificate = "{cert("server")}"\nprivate_key = "{key("server")}"'
        listeners = [
            f'kind = "tcp"\nport = {self.ports["tcp"]}',
            f'kind = "tls"\nport = {self.ports["tls"]}\n{tls}',
            f'kind = "tls"\nport = {self.ports["mutual"]}\n{tls}\nclient_ca = "{cert("ca")}"'
            "\nrequire_client_certificate = true",
            f'kind = "websocket"\nport = {self.ports["ws"]}',
            f'kind = "wss"\nport = {self.ports["wss"]}\n{tls}',
            f'kind = "unix"\npath = "{self.socket_path}"',
            f'protocol = "tbus"\nport = {self.ports["tbus"]}',
            f'protocol = "tbus"\nkind = "tls"\nport = {self.ports["tbuss"]}\n{tls}',
            f'protocol = "tbus"\nkind = "unix"\npath = "{self.tbus_socket_path}"',
        ]
        text = "".join(f"[[listener]]\n{listener}\n" for listener in listeners)
        if self._wants_login:
            users = self._folder / "users"
            subprocess.run(
                [sys.executable, "-m", "polybus", "passwd", users, USER, "--stdin"],
                input=PASSWORD.encode(),
                check=True,
            )
            text += f'[auth]\npassword_file = "{users}"\n'
        text += self._settings
        config = self._folder / "polybus.toml"
        config.write_text(text)
        return [sys.executable, "-m", "polybus", "serve", "--memory", "--config", str(config)]


@contextmanager
def running_broker(
    kind: str, folder: Path, certificates: Certificates, *, wants_login: bool = False, settings: str = ""
) -> Iterator[Broker]:
    broker = Broker(kind, folder, certificates, wants_login=wants_login, settings=settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def unique(prefix: str) -> str:
    """A topic or client id that no other test of this run uses."""
    return f"{prefix}{next(_unique)}x{os.getpid()}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
