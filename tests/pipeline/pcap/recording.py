"""tcpdump beside real brokers and real clients."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests.e2e.processes import eventually

TCPDUMP = shutil.which("tcpdump", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


class Recording:
    """Everything on loopback that has one of the ports, from the time it is entered to the time it is left."""

    def __init__(self, path: Path, ports: list[int], *, extra: tuple[str, ...] = ()) -> None:
        self.path = path
        self._log = path.with_suffix(".log")
        self._command = [
            TCPDUMP or "tcpdump",
            # In immediate mode the kernel has a slot of the snap length for each packet: enough of them, and
            # a busy machine loses none.
            *("-i", "lo", "-U", "--immediate-mode", "-s", "9000", "-B", "65536", "-Z", "root", "-w", str(path)),
            *extra,
            " or ".join(f"port {port}" for port in ports),
        ]

    def __enter__(self) -> Self:
        if os.geteuid():
            pytest.skip("capturing packets needs root")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            eventually(self._listens, self._log.read_text)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return "listening on" in self._log.read_text()

    def until(self, count: int, pattern: bytes) -> None:
        """Wait until the file holds that pattern so many times: tcpdump writes what came a little before."""
        eventually(lambda: self.path.read_bytes().count(pattern) >= count, self._log.read_text)

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        text = self._log.read_text()
        if not error or error[0] is None:
            assert "0 packets dropped by kernel" in text, text
