"""`polybus ctl`: what it asks the bus, and what it makes of every end of its request."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from polybus.cli import control
from polybus.cli.control import NoAnswer, memory_limit
from polybus.cli.main import printable
from polybus.client import Bus, ClientError, RequestFailed, RequestTimeout
from polybus.wire.mqtt.packets import Packet, Properties, PubAck, Publish, ReasonCode
from tests.cli.test_messages import run
from tests.client.brokers import running_broker
from tests.client.certificates import Certificates
from tests.client.fake_broker import FakeBroker

STORAGE = {"messages": {"limit": 500, "used": 3}, "bytes": {"limit": 1000, "used": 7}}

Answer = Callable[[Publish], list[Packet]]


def answering(status: str | None, payload: bytes, *, correlation_data: bytes | None = None) -> Answer:
    def answer(packet: Publish) -> list[Packet]:
        asked = packet.properties
        properties = Properties(
            correlation_data=asked.correlation_data if correlation_data is None else correlation_data,
            user_properties=() if status is None else (("other", "x"), ("polybus-status", status)),
        )
        assert asked.response_topic is not None
        return [PubAck(packet.packet_id or 1), Publish(asked.response_topic, payload, properties=properties)]

    return answer


class FakeConnection:
    """Stands in for `cli.messages.Connection`."""

    def __init__(self, answer: Answer) -> None:
        self.broker = FakeBroker()
        self.broker.answers[Publish] = answer  # type: ignore[assignment]

    def bus(self, **options: Any) -> Bus:
        return self.broker.bus(reconnect=None)

    @property
    def asked(self) -> list[tuple[str, bytes]]:
        return [(p.topic, p.payload) for p in self.broker.got(Publish) if isinstance(p, Publish)]


def ask(answer: Answer, messages: int | None = None, size: int | None = None) -> FakeConnection:
    connection = FakeConnection(answer)
    assert asyncio.run(memory_limit(connection, messages, size)) == 0  # type: ignore[arg-type]
    return connection


@pytest.mark.parametrize(
    ("messages", "size", "asked"),
    [
        (None, None, [("$memoryLimit", b"")]),
        (1024, None, [("$memoryLimit", b"1024")]),
        (0, None, [("$memoryLimit", b"0")]),
        (None, 5000, [("$memoryLimit/bytes", b"5000"), ("$memoryLimit", b"")]),
        (7, 0, [("$memoryLimit/bytes", b"0"), ("$memoryLimit", b"7")]),
    ],
)
def test_what_is_asked(
    messages: int | None,
    size: int | None,
    asked: list[tuple[str, bytes]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    connection = ask(answering("answered", json.dumps(STORAGE).encode()), messages, size)
    assert connection.asked == asked
    assert capsys.readouterr().out == "messages: 3 of 500\nbytes: 7 of 1000\n"
    for packet in connection.broker.got(Publish):
        assert isinstance(packet, Publish)
        assert packet.qos == 1
        assert packet.properties.message_expiry_s == 5
        assert packet.properties.correlation_data
        assert packet.properties.user_properties == (("polybus-request", "managed"),)


@pytest.mark.parametrize("status", ["error", "timed-out", "not-delivered", "canceled", "deleted"])
def test_every_other_end_is_an_error(status: str) -> None:
    with pytest.raises(RequestFailed, match=r"request to '\$memoryLimit': a limit is"):
        ask(answering(status, b"a limit is a whole number"))


def test_an_end_without_a_text_says_how_it_ended() -> None:
    with pytest.raises(RequestFailed, match=r"request to '\$memoryLimit': \S"):
        ask(answering("canceled", b""))


def test_an_answer_to_someone_elses_request_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWER_WITHIN_S", 0.05)
    with pytest.raises(RequestTimeout):
        ask(answering("answered", json.dumps(STORAGE).encode(), correlation_data=b"another's"))


def test_what_someone_else_wrote_cannot_steer_the_terminal() -> None:
    assert printable("a limit\x1b[2J is\u202e a number") == "a limit[2J is a number"


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"messages": 1, "bytes": 2}', b"\xff"])
def test_an_answer_that_cannot_be_read(payload: bytes) -> None:
    with pytest.raises(NoAnswer, match="cannot be read"):
        ask(answering("answered", payload))


def test_a_bus_that_knows_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWER_WITHIN_S", 0.05)
    with pytest.raises(RequestTimeout, match="is it a Polybus"):
        ask(lambda packet: [PubAck(packet.packet_id or 1)])


def test_not_allowed() -> None:
    with pytest.raises(ClientError, match="memoryLimit"):
        ask(lambda packet: [PubAck(packet.packet_id or 1, ReasonCode.NOT_AUTHORIZED)])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["many"], 2),
        (["-1"], 2),
        (["--bytes", "x"], 2),
        (["--version", "3.1.1"], 2),
        (["--will-topic", "t"], 2),
        (["--url", "mqtt://127.0.0.1:1"], 1),
    ],
)
def test_bad_use(arguments: list[str], code: int) -> None:
    output, errors = run("ctl", "memory-limit", *arguments, code=code)
    assert output == b""
    assert errors


def test_a_running_bus(tmp_path_factory: pytest.TempPathFactory) -> None:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with running_broker("polybus", tmp_path_factory.mktemp("broker"), certificates) as broker:

        def tell(*arguments: object, code: int = 0) -> list[str]:
            output, errors = run("ctl", "memory-limit", *arguments, "--url", broker.url(), code=code)
            return (output.decode() + errors).splitlines()

        assert tell() == ["messages: 0 of 500", "bytes: 0 of 67108864"]
        assert tell(1024) == ["messages: 0 of 1024", "bytes: 0 of 67108864"]
        assert tell(7, "--bytes", 1000) == ["messages: 0 of 7", "bytes: 0 of 1000"]
        assert tell() == ["messages: 0 of 7", "bytes: 0 of 1000"]
        (line,) = tell(10**15, code=1)
        assert line.startswith("polybus: request to '$memoryLimit': a limit is a whole number")
