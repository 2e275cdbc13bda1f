"""The spool on a disk: numbers that are never used twice, deletions, limits, crashes, a full disk."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from polybus.client.message import Message
from polybus.pipeline.sources.mqtt.schema import Arrival, to_batch, with_offsets
from polybus.pipeline.sources.mqtt.source import SpoolRange
from polybus.pipeline.sources.mqtt.spool import (
    RowsGone,
    SpoolBusy,
    SpoolError,
    SpoolNotShared,
    SpoolWriter,
    check_shared,
    read_rows,
    segment_paths,
)
from polybus.wire.mqtt.packets import Properties

LIMIT = 1 << 20


def rows(*payloads: bytes) -> pa.RecordBatch:
    return to_batch([Arrival(1_000_000, Message("t/a", payload, 1)) for payload in payloads])


def payloads(folder: Path, spool: SpoolWriter, start: int, end: int) -> list[bytes]:
    return [
        payload
        for _, batch in read_rows(folder, spool.identity.id, start, end)
        for payload in batch["payload"].to_pylist()
    ]


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
        spool.append([rows(b"0", b"1", b"2"), rows(b"3")])
        spool.append([rows(b"4", b"")])
        assert (spool.first, spool.next) == (0, 6)
        assert payloads(tmp_path, spool, 0, 6) == [b"0", b"1", b"2", b"3", b"4", b""]
        assert payloads(tmp_path, spool, 1, 5) == [b"1", b"2", b"3", b"4"]
        assert payloads(tmp_path, spool, 2, 2) == []


def test_every_column_comes_back(tmp_path: Path) -> None:
    properties = Properties(
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"\0\xff",
        user_properties=(("a", "ä"), ("a", "")),
    )
    arrivals = [
        Arrival(-1, Message("ü/" + "x" * 1000, bytes(range(256)), 2, True, properties)),
        Arrival(4_000_000_000_000_000, Message("t", b"")),
    ]
    with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
        spool.append([to_batch(arrivals)])
        ((first, batch),) = read_rows(tmp_path, spool.identity.id, 0, 2)
    one, other = with_offsets(batch, first).to_pylist()
    assert one["user_properties"] == [{"name": "a", "value": "ä"}, {"name": "a", "value": ""}]
    assert (one["topic"], one["payload"], one["qos"], one["retain"]) == (
        "ü/" + "x" * 1000, bytes(range(256)), 2, True,
    )  # fmt: skip
    assert (one["content_type"], one["response_topic"], one["correlation_data"]) == (
        "text/plain",
        "r",
        b"\0\xff",
    )
    assert (one["offset"], other["offset"]) == (0, 1)
    assert other["time"].year == 2096
    assert (other["content_type"], other["user_properties"]) == (None, [])


def test_numbers_go_on_after_everything_was_deleted(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=64 << 10) as spool:
        for _ in range(40):
            spool.append([rows(b"x" * 1000, b"y" * 1000)])
        spool.discard(spool.next)
        assert spool.first == spool.next == 80
        assert spool.size_bytes < 4096
    with SpoolWriter(tmp_path, limit_bytes=64 << 10) as spool:
        spool.append([rows(b"after")])
        assert payloads(tmp_path, spool, 80, 81) == [b"after"]
        with pytest.raises(RowsGone, match="79"):
            payloads(tmp_path, spool, 79, 81)


def test_only_what_was_read_is_deleted(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=64 << 10) as spool:
        for number in range(60):
            spool.append([rows(b"%01000d" % number)])
        assert len(list(segment_paths(tmp_path))) > 3
        spool.discard(30)
        assert 0 < spool.first <= 30
        assert [int(each) for each in payloads(tmp_path, spool, 30, 60)] == list(range(30, 60))


def test_a_reader_keeps_a_segment_that_is_deleted_under_it(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=64 << 10) as spool:
        spool.append([rows(b"a")])
        spool.append([rows(b"b" * 5000)])
        reading = read_rows(tmp_path, spool.identity.id, 0, 2)
        _, one = next(reading)
        spool.discard(2)
        assert one["payload"].to_pylist() == [b"a"]
        assert next(reading)[1]["payload"].to_pylist() == [b"b" * 5000]


def test_full_and_free_again(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=64 << 10) as spool:
        while not spool.is_full:
            spool.append([rows(b"x" * 1000)])
        spool.discard(spool.next // 2)
        assert not spool.is_full
    with SpoolWriter(tmp_path, limit_bytes=4096) as spool:
        assert spool.is_full


@pytest.mark.parametrize("size", [1, 7, 40, 41, 200])
def test_what_a_crash_left_goes(tmp_path: Path, size: int) -> None:
    with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
        spool.append([rows(b"safe")])
    ((path, _),) = segment_paths(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[8 : 8 + size])
    with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
        assert spool.next == 1
        spool.append([rows(b"more")])
        assert payloads(tmp_path, spool, 0, 2) == [b"safe", b"more"]


def test_a_segment_that_was_just_begun(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
        spool.append([rows(b"safe")])
    for size in (0, 3):
        (tmp_path / f"{1:020d}.seg").write_bytes(b"PBSPOOL1"[:size])
        with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
            assert spool.next == 1
            assert payloads(tmp_path, spool, 0, 1) == [b"safe"]
        (tmp_path / f"{1:020d}.seg").unlink()


def test_damage_is_told_and_nothing_is_overwritten(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
        for payload in (b"first", b"second", b"third"):
            spool.append([rows(payload)])
        ((path, _),) = segment_paths(tmp_path)
        data = bytearray(path.read_bytes())
        data[data.index(b"second")] ^= 1
        path.write_bytes(data)
        with pytest.raises(SpoolError, match=f"{path.name} is damaged at byte"):
            payloads(tmp_path, spool, 0, 3)
        assert payloads(tmp_path, spool, 2, 3) == [b"third"]
    with pytest.raises(SpoolError, match=f"{path.name} is damaged at byte .* were acknowledged"):
        SpoolWriter(tmp_path, limit_bytes=LIMIT)
    assert path.read_bytes() == data


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, limit_bytes=LIMIT), pytest.raises(SpoolBusy, match="another query"):
        SpoolWriter(tmp_path, limit_bytes=LIMIT)
    SpoolWriter(tmp_path, limit_bytes=LIMIT).close()


def test_a_spool_that_was_replaced_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    with (
        SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool,
        pytest.raises(RowsGone, match="not the spool other"),
    ):
        list(read_rows(tmp_path, "other", 0, spool.next))


def test_segments_without_an_identity_are_not_touched(tmp_path: Path) -> None:
    SpoolWriter(tmp_path, limit_bytes=LIMIT).close()
    (tmp_path / "spool.json").unlink()
    with pytest.raises(SpoolError, match=r"no spool\.json"):
        SpoolWriter(tmp_path, limit_bytes=LIMIT)


def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "spool"
    with SpoolWriter(folder, limit_bytes=LIMIT) as spool:
        spool.append([rows(b"x")])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path: Path) -> None:
    """The group that did not fit is not there, what was safe still is, and room lets it go on."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
            spool.append([rows(b"safe")])
            with pytest.raises(OSError, match="No space"):
                spool.append([rows(b"x" * 400_000)])
            with pytest.raises(SpoolError, match="failed before"):
                spool.append([rows(b"small")])
        with SpoolWriter(tmp_path, limit_bytes=LIMIT) as spool:
            assert spool.next == 1
            spool.append([rows(b"small")])
            assert payloads(tmp_path, spool, 0, 2) == [b"safe", b"small"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from polybus.client.message import Message
from polybus.pipeline.sources.mqtt.schema import Arrival, to_batch
from polybus.pipeline.sources.mqtt.spool import SpoolWriter
spool = SpoolWriter(Path(sys.argv[1]), limit_bytes=1 << 30)
while True:
    spool.append([to_batch([Arrival(0, Message("t", b"%d" % (spool.next + n))) for n in range(3)])])
    print(spool.next, flush=True)
"""


def test_kill_at_any_moment(tmp_path: Path) -> None:
    """Whatever was told to be safe is there afterwards, under the same number."""
    promised = 0
    for goal in (1, 5, 50):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(goal):
            promised = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        promised = max([promised, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        with SpoolWriter(tmp_path, limit_bytes=1 << 30) as spool:
            assert spool.next >= promised
            assert payloads(tmp_path, spool, 0, spool.next) == [b"%d" % n for n in range(spool.next)]


def test_a_spool_that_another_machine_does_not_see_is_told(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path / "spool", limit_bytes=1 << 20):
        check_shared(tmp_path / "spool", "driver", "worker-1")
    folder = tmp_path / "elsewhere"
    with pytest.raises(SpoolNotShared, match=rf"no spool in {folder} on worker-1.*it is on driver.*NFS"):
        check_shared(folder, "driver", "worker-1")
    check_shared(folder, "driver", "driver")  # it is gone, which is another thing to say


def test_a_task_on_another_machine_says_that_the_spool_is_not_shared(tmp_path: Path) -> None:
    """As Spark carries it there: pickled."""
    task = SpoolRange(tmp_path / "nowhere", "id", 0, 5)
    task.driver = "some-driver"
    with pytest.raises(SpoolNotShared, match="some-driver"):
        list(pickle.loads(pickle.dumps(task)).read())
