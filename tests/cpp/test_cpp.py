"""The C++ client builds, passes its tests with and without sanitizers, and can be found by other projects."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "cpp" / "check"


@pytest.mark.timeout(1_200)  # it is compiled three times
@pytest.mark.parametrize("step", ["test", "asan", "tsan", "install"])
def test_check(step: str) -> None:
    broker = Path(sys.executable).with_name("polybus")
    done = subprocess.run(
        [CHECK, step],
        env=os.environ | {"POLYBUS_BIN": str(broker)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_page_shows_the_examples_as_they_are() -> None:
    page = (ROOT / "docs" / "cpp-client.md").read_text()
    shown = re.findall(r"<!-- example: (\S+) -->\n```cpp\n(.*?)```", page, re.S)
    assert [name for name, _ in shown] == ["service.cpp", "requester.cpp"]
    for name, code in shown:
        whole = (ROOT / "cpp" / "examples" / name).read_text()
        assert whole.endswith(f"\n\n{code}"), name
