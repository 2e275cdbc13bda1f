"""Starting the brokers under test, each on a free port of 127.0.0.1, and ending them by process id."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import loadgen

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0

# Everything that would make Mosquitto slower or drop messages is off; it writes nothing to disk.
MOSQUITTO_CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
persistence false
log_dest none
"""


Command = Callable[[int, Path], list[str]]
"""What starts a broker, of its port and a folder of its own."""


class BrokerError(Exception):
    """A broker is not installed, did not start, or died."""


@dataclass(frozen=True)
class Broker:
    """A running broker."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """The broker's process and its descendants."""
        return process_tree(self.process.pid)

    def watch(self) -> str:
        """The same as the load generator's --watch wants it."""
        return ",".join(map(str, self.pids()))

    def memory_bytes(self) -> int:
        """Anonymous memory, pages shared between the broker's processes counted once."""
        return sum(anonymous_bytes(pid) for pid in self.pids())


def process_tree(root: int) -> list[int]:
    """`root` and all its descendants, from /proc."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Pss_Anon":
            return int(rest.split()[0]) * 1024
    raise BrokerError("this kernel does not tell Pss_Anon in /proc/PID/smaps_rollup (needs Linux 5.9)")


def version(name: str) -> str:
    """What the broker calls itself."""
    if name == "polybus":
        return f"{importlib.metadata.version('polybus')} {revision()}".strip()
    if name == "mosquitto":
        help_text = subprocess.run([mosquitto(), "-h"], capture_output=True, text=True, check=False).stdout
        return help_text.split("\n", 1)[0].removeprefix("mosquitto version ")
    return ""


def revision() -> str:
    """The commit under test, with "-dirty" if the sources differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
        return done.stdout.strip()
    return ""


def fingerprint() -> str:
    """Of the sources of Polybus: two that are equal mean that nobody edited them in between."""
    digest = hashlib.sha256()
    spec = importlib.util.find_spec("polybus")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                digest.update(path.read_bytes())
    return digest.hexdigest()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def mosquitto() -> str:
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise BrokerError("mosquitto is not installed (Debian: apt install mosquitto)")
    return program


def mosquitto_command(port: int, folder: Path) -> list[str]:
    config = folder / "mosquitto.conf"
    config.write_text(MOSQUITTO_CONFIG.format(port=port))
    return [mosquitto(), "-c", str(config)]


def polybus_program() -> list[str]:
    script = Path(sys.executable).with_name("polybus")
    return [str(script)] if script.exists() else [sys.executable, "-m", "polybus"]


def polybus_serve(data: Path | None = None) -> list[str]:
    """With its state in the folder `data`, or in memory."""
    keeping = ["--memory"] if data is None else ["--data-dir", str(data)]
    return [*polybus_program(), "serve", *keeping, "--log-level", "warn"]


def polybus_command(port: int, folder: Path) -> list[str]:
    del folder
    return [*polybus_serve(), "--mqtt-port", str(port), "--tbus-port", "0"]


def tbus_command(bulk: str) -> Callable[[int, Path], list[str]]:
    """Polybus again, with `port` for TBus."""

    def command(port: int, folder: Path) -> list[str]:
        config = folder / "polybus.toml"
        config.write_text(f'[tbus]\nbulk = "{bulk}"\n')
        return [*polybus_serve(), "--config", str(config), "--mqtt-port", "0", "--tbus-port", str(port)]

    return command


STREAM_CONFIG = """\
[store]
sync = "{sync}"
[http]
port = 0
[[stream]]
name = "all"
filters = ["#"]
partitions = {partitions}
compression = "{compression}"
max_bytes = 2147483648
"""


def stream_command(
    sync: str = "normal", partitions: int = 1, compression: str = "lz4"
) -> Callable[[int, Path], list[str]]:
    """Polybus with a stream of everything that is published."""

    def command(port: int, folder: Path) -> list[str]:
        config = folder / "polybus.toml"
        config.write_text(STREAM_CONFIG.format(sync=sync, partitions=partitions, compression=compression))
        serve = polybus_serve(folder / "data")
        return [*serve, "--config", str(config), "--mqtt-port", str(port), "--tbus-port", "0"]

    return command


def idle_peer(mode: str) -> Callable[[int, Path], list[str]]:
    """A peer that does next to nothing, see `loadgen/peer.cpp`: it shows what the generator can do."""
    return lambda port, folder: loadgen.arguments("peer", {"port": port, "mode": mode})


COMMANDS: Mapping[str, Command] = {
    "mosquitto": mosquitto_command,
    "polybus": polybus_command,
    "relay": idle_peer("relay"),
    "lossy": idle_peer("lossy"),
    "discard": idle_peer("discard"),
    "blast": idle_peer("blast"),
    "stream": stream_command(),
    "stream-4": stream_command(partitions=4),
    "stream-plain": stream_command(compression="none"),
    "stream-synced": stream_command(sync="full"),
    "tbus-off": tbus_command("off"),
    "tbus-fixed": tbus_command("fixed"),
    "tbus-adaptive": tbus_command("adaptive"),
}


@contextlib.contextmanager
def running(name: str, commands: Mapping[str, Command] = COMMANDS) -> Iterator[Broker]:
    """A broker that accepts connections, for as long as the block lasts; raises BrokerError."""
    with tempfile.TemporaryDirectory(prefix="polybus-bench-") as folder:
        port = free_port()
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                commands[name](port, Path(folder)), stdout=output, stderr=output, cwd=folder
            )
        try:
            await_listener(name, process, port, log)
            yield Broker(name, port, process)
        finally:
            stop(process)


def await_listener(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BrokerError(f"{name} ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise BrokerError(f"{name} does not listen on port {port} after {START_TIMEOUT_S:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask once, then insist."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
