"""`polybus request`, `polybus serve-echo`, and `pub` and `sub` over TBus, as a user runs them (TB-17)."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator

import pytest

import polybus
from polybus.client import Message
from tests.cli.test_messages import PATIENCE_S, run, start
from tests.client.certificates import Certificates
from tests.e2e.processes import Served, unique

PROTOCOLS = ("tcp", "tbus")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with Served(tmp_path_factory.mktemp("bus"), certificates, "", PROTOCOLS) as served:
        yield served
        served.check_health()


def where(bus: Served, protocol: str) -> list[str]:
    return ["-p", str(bus.ports[protocol]), *(["--tbus"] if protocol == "tbus" else [])]


class Serving:
    """A `polybus serve-echo` that is ready."""

    def __init__(self, *arguments: object) -> None:
        self.process = start("serve-echo", *arguments)
        assert self.process.stderr is not None
        assert self.process.stderr.readline().startswith(b"polybus: serving ")

    def end(self) -> bytes:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        self.process.wait(PATIENCE_S)
        return output

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("asks", PROTOCOLS)
@pytest.mark.parametrize("serves", PROTOCOLS)
def test_a_call_from_one_terminal_to_another(bus: Served, asks: str, serves: str) -> None:
    topic = unique()
    with Serving(topic, *where(bus, serves)) as service:
        assert run("request", topic, "hello", *where(bus, asks))[0] == b"hello\n"
        assert run("request", topic, "-", "-N", *where(bus, asks), stdin=b"\0\xff\n")[0] == b"\0\xff\n"
        assert run("request", topic, *where(bus, asks))[0] == b"\n"
        assert service.end() == f"{topic} hello\n{topic} ".encode() + b"\0\xff\n\n" + f"{topic} \n".encode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ends_without_an_answer(bus: Served, protocol: str) -> None:
    topic = unique()
    place = where(bus, protocol)
    _, errors = run("request", topic, "x", "--no-wait", *place, code=1)
    assert errors == f"polybus: request to '{topic}': no service is subscribed to this topic\n"
    _, errors = run("request", topic, "x", "-T", "1", *place, code=27)
    assert errors == f"polybus: request to '{topic}': no service took it in time\n"
    with Serving(topic, "--fail", "out of\x1b[2J paper", *place):
        _, errors = run("request", topic, "x", *place, code=1)
        assert errors == f"polybus: request to '{topic}': out of[2J paper\n"


def test_a_request_waits_for_its_service(bus: Served) -> None:
    topic = unique()
    asking = start("request", topic, "early", "-T", "20", *where(bus, "tbus"))
    with Serving(topic, *where(bus, "tcp")):
        output, errors = asking.communicate(timeout=PATIENCE_S)
    assert (output, errors, asking.returncode) == (b"early\n", b"", 0)


def test_an_interrupted_request_is_canceled(bus: Served) -> None:
    topic = unique()
    with Serving(topic, "--delay", "600", *where(bus, "tbus")) as service:
        asking = start("request", topic, "x", "-T", "60", *where(bus, "tbus"))
        assert service.process.stdout is not None
        assert service.process.stdout.readline() == f"{topic} x\n".encode()
        asking.send_signal(signal.SIGTERM)
        assert asking.wait(PATIENCE_S) == 130
        asking.communicate()
        again = start("request", topic, "y", "-T", "60", *where(bus, "tbus"))  # the service is free again
        assert service.process.stdout.readline() == f"{topic} y\n".encode()
        again.kill()
        again.communicate()


def test_serve_echo_ends_after_so_many(bus: Served) -> None:
    topic = unique()
    with Serving(topic, "-C", "2", "--quiet", *where(bus, "tbus")) as service:
        for _ in range(2):
            run("request", topic, "x", *where(bus, "tbus"))
        assert service.process.wait(PATIENCE_S) == 0


def test_pub_and_sub_over_tbus(bus: Served) -> None:
    topic = unique()
    run("pub", "-t", topic, "-m", "waited", "--waiting", "20", *where(bus, "tbus"))
    output, _ = run("sub", "-t", f"{topic}/#", "-v", "-C", "1", *where(bus, "tbus"))
    assert output == f"{topic} waited\n".encode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_priority_reaches_the_subscriber(bus: Served, protocol: str) -> None:
    topic = unique()

    async def receive() -> Message:
        url = f"tbus://127.0.0.1:{bus.ports['tbus']}"
        async with polybus.connect(url) as client, client.subscribe(topic) as messages:
            await asyncio.to_thread(run, "pub", "-t", topic, "-m", "!", "--priority", *where(bus, protocol))
            return await messages.get(PATIENCE_S)

    message = asyncio.run(receive())
    assert (message.payload, message.priority) == (b"!", True)


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("pub", ["-t", "a", "-m", "b", "--tbus", "-q", "1"], "qos"),
        ("pub", ["-t", "a", "-m", "b", "--tbus", "-r"], "retain"),
        ("pub", ["-t", "a", "-m", "b", "--tbus", "-V", "3.1.1"], "version"),
        ("pub", ["-t", "a", "-m", "b", "-V", "3.1.1", "--priority"], "priority"),
        ("pub", ["-t", "a", "-m", "b", "--tbus", "--will-topic", "w"], "will"),
        ("sub", ["-t", "a", "--tbus", "--url", "tbus://127.0.0.1"], "--tbus"),
        ("request", ["a+b/#", "x", "--tbus"], "topic"),
        ("request", [], "TOPIC"),
        ("serve-echo", ["a/#/b", "--tbus"], "#"),
        ("serve-echo", ["a", "-c", "0"], "concurrency"),
    ],
)
def test_bad_use(bus: Served, command: str, arguments: list[str], words: str) -> None:
    place = (
        ["-p", str(bus.ports["tbus" if "--tbus" in arguments else "tcp"])] if "--url" not in arguments else []
    )
    output, errors = run(command, *arguments, *place, code=2)
    assert output == b""
    assert words in errors


def test_nobody_there() -> None:
    _, errors = run("request", "a", "b", "--url", "tbus://127.0.0.1:1", code=1)
    assert "connection refused" in errors
    assert subprocess.list2cmdline(["polybus", "serve"]) in errors
