"""`polybus stream` on real files and a real bus."""

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from polybus.broker.access import Access, Verdict
from polybus.net.http import HttpServer
from polybus.net.http_streams import StreamPages
from polybus.store.folder import DataFolder
from polybus.store.streams.files import Files
from polybus.store.streams.format import scan
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.start import format_time
from polybus.store.streams.stream import Stream
from tests.e2e.processes import polybus
from tests.store.streams.records import batch, read_files

RULE = StreamRule("fleet", ("trucks/#",), partitions=2, segment_bytes=4096)
TIMES = [1_800_000_000_000_000 + 1_000_000 * n for n in range(10)]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A folder with ten records in each of two partitions; the bus that wrote them still runs."""
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(tmp_path / "data"))
        stream = Stream(folder.folder("streams") / "fleet", RULE, is_synced=False, files=Files())
        stack.callback(stream.close)
        for partition in stream.partitions:
            for number, time in enumerate(TIMES):
                payload = b"%d" % number if number else b"\xff\x00"
                partition.append(batch(partition.next, [payload], time))
                partition.tend(time)
        pages = StreamPages({"fleet": stream}, Access, lambda credentials: Verdict(True))
        server = HttpServer("127.0.0.1", 0, pages.answer)
        server.start()
        stack.callback(server.close)
        (tmp_path / "url").write_text(server.url)
        yield tmp_path / "data"


@pytest.fixture(params=["folder", "url"])
def source(request: pytest.FixtureRequest, data: Path) -> list[str]:
    if request.param == "folder":
        return ["--folder", str(data)]
    return ["--url", (data.parent / "url").read_text()]


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_ls(source: list[str]) -> None:
    done = polybus("stream", "ls", *source)
    assert done.returncode == 0, done.stderr
    assert "fleet  trucks/#" in done.stdout
    assert done.stdout.count("0..10 ") == 2
    assert format_time(TIMES[0]) in done.stdout


def test_read_gives_what_the_files_hold(data: Path, source: list[str]) -> None:
    done = polybus("stream", "read", "fleet", *source)
    assert done.returncode == 0, done.stderr
    read = lines(done.stdout)
    assert [(r["partition"], r["offset"]) for r in read] == [(p, n) for p in (0, 1) for n in range(10)]
    files = [r for p in "01" for r in read_files(data / "streams/fleet" / p)]
    for record, expected in zip(read, files, strict=True):
        assert record["topic"] == expected["topic"]
        assert record["client_id"] == expected["client_id"]
        assert (
            str(record.get("payload", "")).encode() == expected["payload"] or record["payload_base64"] == "/wA="
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "3", "--to", "5"], [3, 4]),
        (["--from", "8"], [8, 9]),
        (["--from", "10"], []),
        (["--from", format_time(TIMES[7])], [7, 8, 9]),
        (["--from", format_time(TIMES[2]), "--to", format_time(TIMES[4])], [2, 3]),
        (["-n", "4"], [0, 1, 2, 3]),
    ],
)
def test_a_part_of_it(source: list[str], options: list[str], expected: list[int]) -> None:
    done = polybus("stream", "read", "fleet", "-p", "1", *options, *source)
    assert done.returncode == 0, done.stderr
    assert [(r["partition"], r["offset"]) for r in lines(done.stdout)] == [(1, n) for n in expected]


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "parquet"])
def test_export(tmp_path: Path, source: list[str], kind: str) -> None:
    file = tmp_path / f"out.{kind}"
    done = polybus("stream", "export", "fleet", file, *source)
    assert done.returncode == 0, done.stderr
    if kind == "jsonl":
        found = [(r["partition"], r["offset"]) for r in lines(file.read_text())]
    else:
        table = (
            pyarrow.ipc.open_stream(io.BytesIO(file.read_bytes())).read_all()
            if kind == "arrow"
            else pyarrow.parquet.read_table(file)
        )
        found = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        assert table["time"].cast(pa.int64()).to_pylist() == TIMES * 2
    assert found == [(p, n) for p in (0, 1) for n in range(10)]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["read", "nothing"], "no stream 'nothing'"),
        (["read", "fleet", "-p", "7"], "no partition 7"),
        (["read", "fleet", "--from", "noon"], "neither an offset nor a time"),
        (["read", "fleet", "--from", "2030-01-01T00:00:00"], "neither an offset nor a time"),
        (["export", "fleet", "out.csv"], "end its name with .jsonl, .arrow or .parquet"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(source: list[str], arguments: list[str], text: str) -> None:
    done = polybus("stream", *arguments, *source)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_place_without_streams(tmp_path: Path) -> None:
    done = polybus("stream", "ls", "--data-dir", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "not a data folder" in done.stderr
    done = polybus("stream", "ls", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "no bus answers at http://127.0.0.1:9" in done.stderr
    done = polybus("stream", "ls", "--url", "mqtt://127.0.0.1")
    assert done.returncode == 2
    assert "write http://host:port" in done.stderr


def test_what_retention_dropped(data: Path, source: list[str]) -> None:
    first = min((data / "streams/fleet/0").glob("*.arrow"))
    kept = sorted((data / "streams/fleet/0").glob("*.arrow"))[1]
    begins = int(kept.stem)
    if source[0] == "url":
        pytest.skip("the bus itself drops")
    first.unlink()
    done = polybus("stream", "read", "fleet", "-p", "0", "--from", "0", "--folder", data)
    assert done.returncode == 2
    assert f"begin there: --from {begins}" in done.stderr


def test_damage_is_told_and_skipped_if_wanted(data: Path, source: list[str]) -> None:
    victim = min((data / "streams/fleet/0").glob("*.arrow"))
    content = bytearray(victim.read_bytes())
    bad = scan(bytes(content)).batches[1]
    content[bad.end - 20] ^= 1
    victim.write_bytes(content)
    done = polybus("stream", "read", "fleet", "-p", "0", *source)
    assert done.returncode == 1
    assert "--skip-damaged" in done.stderr
    assert [r["offset"] for r in lines(done.stdout)] == [0]
    done = polybus("stream", "read", "fleet", "-p", "0", "--skip-damaged", *source)
    assert done.returncode == 0, done.stderr
    assert "left out: records from offset 1 to 2" in done.stderr
    assert [r["offset"] for r in lines(done.stdout)] == [0, 2, 3, 4, 5, 6, 7, 8, 9]
