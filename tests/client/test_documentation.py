"""The examples of docs/client.md run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.brokers import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("example", "expected"),
    list(zip(EXAMPLES, ["sensors/kitchen/temperature 21.5", "Closed(error=None)"], strict=True)),
)
def test_example(broker: Broker, example: str, expected: str) -> None:
    assert "mqtt://127.0.0.1:1883" in example
    code = example.replace("mqtt://127.0.0.1:1883", broker.url())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert expected in done.stdout
