"""A real bus, its folder, and a disk that is really full."""

import contextlib
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import StartBus
from tests.e2e.paho_peers import connected
from tests.e2e.processes import PATIENCE_S, polybus, run
from tests.store.streams.records import payloads, read_files

CONFIG = """
[server]
data_dir = "{folder}"
[http]
port = 0
[[stream]]
name = "kept"
filters = ["kept/#"]
segment_bytes = 100000
"""
LISTENER = "[[listener]]\nport = 0\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or run("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", place).returncode:
        pytest.skip("only root may mount; tests/store/streams/test_disk_faults.py fills a disk without")
    yield place
    run("umount", "-l", place)


def test_a_full_disk_refuses_what_it_cannot_keep_and_the_rest_goes_on(
    start_bus: StartBus, small_disk: Path
) -> None:
    bus = start_bus(CONFIG.format(folder=small_disk), data=small_disk)
    codes: queue.Queue[int] = queue.Queue()
    acknowledged: list[bytes] = []
    with connected(bus) as peer, connected(bus) as other:
        peer.client.on_publish = lambda _c, _u, _mid, code, _said: codes.put(code.value)
        other.subscribe("free/#", 1)
        code = 0
        for number in range(1000):
            payload = b"%d " % number + b"x" * 10_000
            peer.client.publish("kept/a", payload, 1)
            # The first to fail loses its connection; paho comes back, sends it again and is refused.
            code = codes.get(timeout=PATIENCE_S)
            if code:
                break
            acknowledged.append(payload)
        assert code == 0x97
        other.publish("free/a", b"goes on")
        assert other.get().payload == b"goes on"
        assert "No space left on device" in bus.log
        assert "Traceback" not in bus.log
    listed = polybus("stream", "ls", "--folder", small_disk)
    assert listed.returncode == 0, listed.stderr
    bus.__exit__()
    assert payloads(read_files(small_disk)) == acknowledged
    assert acknowledged


def test_a_start_on_a_full_disk_says_where_and_what_is_needed(
    start_bus: StartBus, small_disk: Path, tmp_path: Path
) -> None:
    bus = start_bus(CONFIG.format(folder=small_disk), data=small_disk)
    bus.__exit__()
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", 0) as filler:
        while True:
            filler.write(bytes(4096))
    config = tmp_path / "polybus.toml"
    config.write_text(LISTENER + CONFIG.format(folder=small_disk))
    started = polybus("serve", "--config", config)
    assert started.returncode == 2
    assert f"{small_disk} has 0 kB left, and a start needs some 128 kB: make room" in started.stderr
    assert "begin anew" not in started.stderr
    assert "Traceback" not in started.stderr
    (small_disk / "filler").unlink()
    start_bus(CONFIG.format(folder=small_disk), data=small_disk)


def test_a_second_bus_is_refused_with_one_clear_line(start_bus: StartBus, tmp_path: Path) -> None:
    bus = start_bus(CONFIG.format(folder=tmp_path / "data"), data=tmp_path / "data")
    config = tmp_path / "second.toml"
    config.write_text(LISTENER + CONFIG.format(folder=tmp_path / "data"))
    second = polybus("serve", "--config", config)
    assert second.returncode == 2
    assert f"is in use by another broker (process {bus.process.pid})" in second.stderr
    assert str(tmp_path / "data") in second.stderr
    assert "Traceback" not in second.stderr
    bus.check_health()


def test_a_foreign_file_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    place = tmp_path / "data/streams/kept/0"
    place.mkdir(parents=True)
    (place / f"{0:020}.arrow").write_text("precious")
    config = tmp_path / "bus.toml"
    config.write_text(LISTENER + CONFIG.format(folder="data"))
    done = polybus("serve", "--config", config)
    assert done.returncode == 1
    assert f"{place}/{0:020}.arrow is not a segment of a stream" in done.stderr
    assert (place / f"{0:020}.arrow").read_text() == "precious"


def test_without_arrow_the_extra_is_named(tmp_path: Path) -> None:
    config = tmp_path / "bus.toml"
    config.write_text(LISTENER + CONFIG.format(folder="data"))
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from polybus.cli.main import app; app(sys.argv[1:], prog_name='polybus')"
    )
    for arguments in (["serve", "--config", str(config)], ["stream", "ls", "--folder", str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 2, done.stderr
        assert "pip install 'polybus[streams]'" in done.stderr
        assert "Traceback" not in done.stderr
