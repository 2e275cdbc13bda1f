"""The examples of docs/client.md run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.brokers import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
EXPECTED = [
    "42",
    "hello world\nno service is subscribed to this topic",
    "sensors/kitchen/temperature 21.5",
    "Closed(error=None)",
    "42",
]


def _examples(is_mqtt: bool) -> list[tuple[str, str]]:
    pairs = zip(EXAMPLES, EXPECTED, strict=True)
    return [(example, expected) for example, expected in pairs if ("mqtt://" in example) is is_mqtt]


def _run(code: str, expected: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert expected in done.stdout


@pytest.mark.parametrize(("example", "expected"), _examples(is_mqtt=True))
def test_example(broker: Broker, example: str, expected: str) -> None:
    assert "mqtt://127.0.0.1:1883" in example
    _run(example.replace("mqtt://127.0.0.1:1883", broker.url()), expected)


@pytest.mark.parametrize(("example", "expected"), _examples(is_mqtt=False))
def test_tbus_example(polybus_broker: Broker, example: str, expected: str) -> None:
    assert "5035" in example
    _run(example.replace("5035", str(polybus_broker.ports["tbus"])), expected)
