"""`polybus pub` and `polybus sub` as a user runs them, against real brokers."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import polybus
from polybus.client import Message
from tests.client.brokers import KINDS, PASSWORD, USER, Broker, running_broker, unique
from tests.client.certificates import Certificates

PATIENCE_S = 20.0
QUIET = {name: value for name, value in os.environ.items() if not name.startswith("POLYBUS_")}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Broker]:
    with running_broker(request.param, tmp_path_factory.mktemp("broker"), certificates) as broker:
        yield broker


def start(command: str, *arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "polybus", command, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**QUIET, "COLUMNS": "200", **environment},
    )


def run(
    command: str, *arguments: object, stdin: bytes = b"", code: int = 0, **environment: str
) -> tuple[bytes, str]:
    """Standard output and standard error of a command that has to end with `code`."""
    process = start(command, *arguments, **environment)
    output, errors = process.communicate(stdin, timeout=PATIENCE_S)
    assert process.returncode == code, (process.returncode, output, errors.decode())
    return output, errors.decode()


def published(
    broker: Broker, topic: str, *arguments: object, stdin: bytes = b"", count: int = 1
) -> list[Message]:
    """What arrives while `polybus pub` runs."""

    async def watch() -> list[Message]:
        async with polybus.connect(broker.url()) as bus, bus.subscribe(topic, qos=2) as messages:
            arguments_and_url = ("-t", topic, *arguments, "--url", broker.url())
            await asyncio.to_thread(run, "pub", *arguments_and_url, stdin=stdin)
            return [await messages.get(5) for _ in range(count)]

    return asyncio.run(watch())


def retain(broker: Broker, messages: dict[str, bytes], **properties: object) -> None:
    async def publish() -> None:
        async with polybus.connect(broker.url()) as bus:
            for topic, payload in messages.items():
                await bus.publish(topic, payload, qos=1, retain=True, **properties)  # type: ignore[arg-type]

    asyncio.run(publish())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- pub --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_pub_a_message(broker: Broker, qos: int, version: str) -> None:
    [message] = published(broker, unique("t"), "-m", "grüß", "-q", qos, "--version", version)
    assert (message.text, message.qos, message.retain) == ("grüß", qos, False)


def test_pub_by_host_and_port(broker: Broker) -> None:
    topic = unique("t")
    run("pub", "-h", "127.0.0.1", "-p", broker.ports["tcp"], "-t", topic, "-m", "x", "-r", "-q", 1)
    assert run("sub", "--url", broker.url(), "-t", topic, "-C", 1)[0] == b"x\n"


def test_pub_a_file_and_standard_input(broker: Broker, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 1000
    file = tmp_path / "payload"
    file.write_bytes(payload)
    assert published(broker, unique("t"), "-f", file)[0].payload == payload
    assert published(broker, unique("t"), "-f", "-", stdin=payload)[0].payload == payload


@pytest.mark.parametrize("qos", [0, 1])
def test_pub_lines_in_order(broker: Broker, qos: int) -> None:
    lines = [b"line %d" % n for n in range(500)]
    stdin = b"\n\n".join(lines)  # blank lines are left out, and the last line may be unfinished
    got = published(broker, unique("t"), "-l", "-q", qos, stdin=stdin, count=500)
    assert [message.payload for message in got] == lines


def test_pub_repeatedly(broker: Broker) -> None:
    arguments = ("-m", "again", "--repeat", 3, "--repeat-delay", 0.01)
    assert [message.text for message in published(broker, unique("t"), *arguments, count=3)] == ["again"] * 3


def test_pub_nothing_clears_what_was_retained(broker: Broker) -> None:
    topic = unique("t")
    retain(broker, {topic: b"kept"})
    run("pub", "--url", broker.url(), "-t", topic, "-n", "-r", "-q", 1)
    assert run("sub", "--url", broker.url(), "-t", topic, "-W", 0.3, code=27)[0] == b""


def test_pub_with_properties(broker: Broker) -> None:
    [message] = published(
        broker,
        unique("t"),
        *("-m", "x", "--property", "content-type=text/plain", "--property", "message_expiry_s=60"),
        *("--property", "correlation_data=7", "--user-property", "a=b=c", "--user-property", "d="),
    )
    assert message.properties.content_type == "text/plain"
    assert message.properties.correlation_data == b"7"
    assert message.properties.message_expiry_s is not None
    assert message.properties.user_properties == (("a", "b=c"), ("d", ""))


def test_pub_with_a_will(broker: Broker) -> None:
    topic = unique("t")

    async def watch() -> list[str]:
        async with polybus.connect(broker.url()) as bus, bus.subscribe(f"{topic}/#", qos=1) as messages:
            will = ("--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", 1)
            process = start("pub", "--url", broker.url(), "-t", f"{topic}/line", "-l", *will)
            assert process.stdin is not None
            process.stdin.write(b"here\n")
            process.stdin.flush()
            here = await messages.get(PATIENCE_S)
            process.kill()
            process.communicate()
            return [here.text, (await messages.get(PATIENCE_S)).text]

    assert asyncio.run(watch()) == ["here", "gone"]


def test_pub_over_tls(broker: Broker, certificates: Certificates) -> None:
    cert, key = certificates.cert, certificates.key
    identity = ("--cafile", cert("ca"), "--cert", cert("client"), "--key", key("client"))
    run("pub", "-p", broker.ports["mutual"], *identity, "-t", "t", "-m", "x", "-q", 1)
    run("pub", "-p", broker.ports["tls"], "--insecure", "-t", "t", "-m", "x", "-q", 1)
    _, errors = run("pub", "--url", broker.url("tls"), "-t", "t", "-m", "x", code=1)
    assert errors.startswith("polybus: 127.0.0.1:")
    assert "not trusted" in errors


# --- sub --------------------------------------------------------------------------------------------


def test_sub_shows_topics(broker: Broker) -> None:
    topic = unique("t")
    retain(broker, {f"{topic}/a": b"1", f"{topic}/b": b"2"})
    arguments = ("--url", broker.url(), "-t", f"{topic}/a", "-t", f"{topic}/b", "-C", 2)
    assert sorted(run("sub", *arguments, "-v")[0].splitlines()) == [
        b"%s/a 1" % topic.encode(),
        b"%s/b 2" % topic.encode(),
    ]
    assert sorted(run("sub", *arguments, "-N")[0]) == [ord("1"), ord("2")]


@pytest.mark.parametrize(("payload", "encoding"), [(b"gr\xc3\xbc\xc3\x9f", "utf-8"), (b"\xff\x00", "base64")])
def test_sub_as_json(broker: Broker, payload: bytes, encoding: str) -> None:
    topic = unique("t")
    retain(broker, {topic: payload}, content_type="x/y", correlation_data=b"\x01")
    output, _ = run("sub", "--url", broker.url(), "-t", topic, "-C", 1, "--json", "-q", 1)
    told = json.loads(output)
    shown = payload.decode() if encoding == "utf-8" else base64.b64encode(payload).decode()
    assert told.pop("time")
    assert told == {
        "topic": topic,
        "qos": 1,
        "retain": True,
        "payload": shown,
        "encoding": encoding,
        "properties": {"content_type": "x/y", "correlation_data": "AQ=="},
    }


def test_sub_gives_up_with_27(broker: Broker) -> None:
    output, errors = run("sub", "--url", broker.url(), "-t", unique("t"), "-W", 0.2, code=27)
    assert (output, errors) == (b"", "")


@pytest.mark.parametrize(("flag", "expected"), [("--retained-only", b"old\n"), ("-R", b"new\n")])
def test_sub_tells_retained_from_live(broker: Broker, flag: str, expected: bytes) -> None:
    topic = unique("t")
    retain(broker, {f"{topic}/old": b"old"})
    process = start("sub", "--url", broker.url(), "-t", f"{topic}/#", flag, "-C", 1)

    async def publish_until_it_ends() -> None:
        async with polybus.connect(broker.url()) as bus:
            while process.poll() is None:
                await bus.publish(f"{topic}/new", "new")
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(publish_until_it_ends(), PATIENCE_S))
    assert process.communicate()[0] == expected


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_sub_keeps_a_session(broker: Broker, version: str) -> None:
    topic = unique("t")
    arguments = (
        "--url",
        broker.url(),
        "-t",
        topic,
        "-q",
        1,
        "--id",
        unique("c"),
        "--keep",
        "--version",
        version,
    )
    run("sub", *arguments, "-W", 0.5, code=27)
    run("pub", "--url", broker.url(), "-t", topic, "-l", "-q", 1, stdin=b"1\n2\n3\n")
    # What was not printed was not acknowledged, and comes the next time.
    assert run("sub", *arguments, "-C", 1)[0] == b"1\n"
    assert run("sub", *arguments, "-C", 2)[0] == b"2\n3\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sub_is_interrupted_quietly(broker: Broker, number: signal.Signals) -> None:
    topic = unique("t")
    retain(broker, {topic: b"ready"})
    will = ("--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-retain")
    process = start("sub", "--url", broker.url(), "-t", topic, *will)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (130, b"", b"")
    # It said goodbye: no will.
    run("sub", "--url", broker.url(), "-t", f"{topic}/will", "-W", 0.2, code=27)


def test_sub_ends_quietly_with_its_reader(broker: Broker) -> None:
    topic = unique("t")
    process = start("sub", "--url", broker.url(), "-t", topic)

    async def publish_until_it_ends() -> None:
        async with polybus.connect(broker.url()) as bus:
            while process.poll() is None:
                await bus.publish(topic, "x")
                await asyncio.sleep(0.01)

    assert process.stdout is not None
    process.stdout.close()
    asyncio.run(asyncio.wait_for(publish_until_it_ends(), PATIENCE_S))
    assert process.stderr is not None
    assert (process.returncode, process.stderr.read()) == (0, b"")
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


# --- errors and help --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pub", "-t", "t"], 2, "exactly one of -m TEXT, -f FILE, -l (lines) or -n (empty)"),
        (["pub", "-t", "t", "-m", "x", "-n"], 2, "exactly one of"),
        (["pub", "-t", "t", "-l", "--repeat", "2"], 2, "--repeat"),
        (["pub", "-t", "t", "-f", "/nowhere/x"], 2, "cannot read /nowhere/x: No such file"),
        (["pub", "-t", "t", "-m", "x", "--property", "colour=red"], 2, "colour"),
        (["pub", "-t", "t", "-m", "x", "--property", "message_expiry_s=soon"], 2, "not a number"),
        (["pub", "-t", "t", "-m", "x", "--user-property", "x"], 2, "NAME=VALUE"),
        (["pub", "-t", "t", "-m", "x", "--url", "mqtt://127.0.0.1", "-p", "1"], 2, "--url"),
        (["pub", "-t", "t", "-m", "x", "--url", "amqp://127.0.0.1"], 2, "mqtt://"),
        (["pub", "-t", "t", "-m", "x", "--url", "mqtt://127.0.0.1:1"], 1, "Start one with: polybus serve"),
        (["pub", "-t", "t", "-m", "x", "--cafile", "/nowhere/ca"], 2, "/nowhere/ca"),
        (["pub", "-t", "t", "-m", "x", "--will-qos", "1"], 2, "--will-topic"),
        (["sub", "-t", "t", "--keep"], 2, "--id"),
        (["sub", "-t", "t", "-R", "--retained-only"], 2, "nothing to print"),
        (["sub", "-t", "t", "-P", "x", "--version", "3.1.1"], 2, "user_name"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, text: str) -> None:
    output, errors = run(arguments[0], *arguments[1:], code=code)
    assert output == b""
    assert errors.count("\n") == 1
    assert errors.startswith("polybus: ")
    assert text in errors


def test_refused_topic_is_one_line(broker: Broker) -> None:
    _, errors = run("pub", "--url", broker.url(), "-t", "a/#", "-m", "x", code=2)
    assert errors.count("\n") == 1
    _, errors = run("sub", "--url", broker.url(), "-t", "a/#/b", code=2)
    assert errors.count("\n") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_login(kind: str, tmp_path: Path, certificates: Certificates) -> None:
    with running_broker(kind, tmp_path, certificates, wants_login=True) as broker:
        arguments = ("--url", broker.url(), "-t", "t", "-m", "x", "-q", 1)
        run("pub", *arguments, "-u", USER, "-P", PASSWORD)
        run("pub", *arguments, "-u", USER, POLYBUS_PASSWORD=PASSWORD)
        run("pub", *arguments[2:], "-u", USER, "-P", PASSWORD, POLYBUS_URL=broker.url())
        _, errors = run("pub", *arguments, "-u", USER, "-P", "wrong", code=1)
        assert "refused" in errors
        assert errors.count("\n") == 1


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_help_teaches_by_example(command: str) -> None:
    output, _ = run(command, "--help")
    assert b"Examples:" in output
    assert f"polybus {command} -t".encode() in output
