"""The C++ client builds, passes its tests with and without sanitizers, and can be found by other projects."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "cpp" / "check"


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
