"""What is run, in which order and how often. Contenders take turns; a figure is the median of its rounds."""

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import brokers, loadgen
from bench.brokers import Broker
from bench.loadgen import LoadgenError, Sample

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = HERE.parent / "build"
TOPIC = "bench/clients"
SIZE_BYTES = 64
PAIR_RATE = 10.0
PYTHON, CPP, PAHO, LIBMOSQUITTO = "Polybus, Python", "Polybus, C++", "paho-mqtt", "libmosquitto"
PUBLISHERS = (PAHO, PYTHON, LIBMOSQUITTO, CPP)
LIBRARIES = (PYTHON, CPP)

OnRun = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    rounds: int
    seconds: float
    rates: tuple[int, ...]
    pairs: int
    window: int = 512


FULL = Effort(rounds=5, seconds=3.0, rates=(64, 256, 1024, 4096, 8192), pairs=200)
QUICK = Effort(rounds=1, seconds=1.0, rates=(64, 1024), pairs=200)


@dataclass
class Results:
    published: dict[str, list[Sample]] = field(default_factory=dict)
    pipelined: dict[str, list[Sample]] = field(default_factory=dict)
    rates: dict[int, dict[str, list[Sample]]] = field(default_factory=dict)
    pairs: dict[str, list[Sample]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def median(samples: Sequence[Sample], key: str) -> float:
    return statistics.median(sample[key] for sample in samples)


class Programs:
    """How each client is started; the two that are compiled are built at first use."""

    def __init__(self, cpp: Path, libmosquitto: Path) -> None:
        self._cpp = str(cpp)
        self._libmosquitto = str(libmosquitto)

    def publisher(self, client: str, port: int, seconds: float) -> list[str]:
        given = [str(port), TOPIC, str(SIZE_BYTES), str(seconds)]
        if client == PAHO:
            return [*_python("paho_publish"), *given]
        if client == LIBMOSQUITTO:
            return [self._libmosquitto, *given]
        if client == PYTHON:
            return [*_python("polybus_publish"), *given]
        return [
            self._cpp, "publish", "--port", str(port), "--topic", TOPIC, "--size", str(SIZE_BYTES),
            "--seconds", str(seconds),
        ]  # fmt: skip

    def service(self, client: str, port: int, count: int, concurrency: int) -> list[str]:
        if client == PYTHON:
            return [*_python("polybus_service"), str(port), TOPIC, str(count), str(concurrency)]
        return [
            self._cpp, "service", "--port", str(port), "--topic", TOPIC, "--pairs", str(count),
            "--concurrency", str(concurrency),
        ]  # fmt: skip

    def requester(
        self, client: str, port: int, count: int, seconds: float, rate: float, window: int
    ) -> list[str]:
        if client == PYTHON:
            numbers = [str(count), str(seconds), str(rate), str(window)]
            return [*_python("polybus_requests"), str(port), TOPIC, *numbers]
        return [
            self._cpp, "requests", "--port", str(port), "--topic", TOPIC, "--pairs", str(count),
            "--seconds", str(seconds), "--rate", str(rate), "--window", str(window),
        ]  # fmt: skip


class Session:
    def __init__(self, programs: Programs, effort: Effort, results: Results, on_run: OnRun) -> None:
        self.programs = programs
        self.effort = effort
        self.results = results
        self.on_run = on_run

    def run_publishers(self, clients: Sequence[str]) -> None:
        """Each to the broker it is made for, with nobody subscribed: what counts is the client."""
        with brokers.running("mosquitto") as mosquitto, brokers.running("tbus-adaptive") as polybus:
            for _ in range(self.effort.rounds):
                for client in clients:
                    broker = polybus if client in LIBRARIES else mosquitto
                    self._note(
                        self.results.published,
                        client,
                        f"publish, {client}",
                        self.programs.publisher(client, broker.port, self.effort.seconds),
                    )

    def run_pipelined(self, clients: Sequence[str]) -> None:
        """One requester with many requests under way, one service."""
        with brokers.running("tbus-adaptive") as polybus:
            for _ in range(self.effort.rounds):
                for client in clients:
                    self._pair(self.results.pipelined, client, polybus, "as fast as it goes", rate=0)

    def run_rates(self, clients: Sequence[str]) -> None:
        with brokers.running("tbus-adaptive") as polybus:
            for rate in self.effort.rates:
                found = self.results.rates.setdefault(rate, {})
                for client in clients:
                    self._pair(found, client, polybus, f"{rate:,}/s", rate=rate)

    def run_pairs(self, clients: Sequence[str]) -> None:
        with brokers.running("tbus-adaptive") as polybus:
            for client in clients:
                label = f"{self.effort.pairs} pairs"
                self._pair(self.results.pairs, client, polybus, label, rate=PAIR_RATE, count=self.effort.pairs)

    def _pair(
        self,
        found: dict[str, list[Sample]],
        client: str,
        broker: Broker,
        label: str,
        *,
        rate: float,
        count: int = 1,
    ) -> None:
        effort = self.effort
        concurrency = min(65_535, 4 * effort.window)
        requester = self.programs.requester(client, broker.port, count, effort.seconds, rate, effort.window)
        with _serving(self.programs.service(client, broker.port, count, concurrency)):
            self._note(found, client, f"{label}, {client}", requester)

    def _note(self, found: dict[str, list[Sample]], client: str, label: str, command: list[str]) -> None:
        """One measurement; one that fails is noted, and the others go on."""
        self.on_run(label)
        try:
            found.setdefault(client, []).append(_run(command))
        except LoadgenError as error:
            self.results.failures.append(f"{label} failed: {error}")


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"bench.clients.{module}"]


def _run(command: list[str]) -> Sample:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=loadgen.TIMEOUT_S, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise LoadgenError(f"no result after {loadgen.TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise LoadgenError(done.stderr.strip()[-500:] or f"exit status {done.returncode}")
    sample: Sample = json.loads(done.stdout)
    return sample


@contextlib.contextmanager
def _serving(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:  # which closes its standard input, and waits for it to end
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise LoadgenError(f"{command[0]} did not become ready")
        yield


def build_libmosquitto() -> Path:
    source = HERE / "libmosquitto_publish.c"
    program = BUILD / "libmosquitto-publish"
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    compiler = shutil.which("gcc")
    if compiler is None:
        raise LoadgenError("gcc is needed to compile the libmosquitto publisher (Debian: apt install gcc)")
    BUILD.mkdir(exist_ok=True)
    flags = ["-std=c17", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]
    loadgen.compile_one([compiler, *flags, str(source), "-o", str(program), "-lmosquitto"])
    return program
