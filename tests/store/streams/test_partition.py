"""A partition on a real disk: what is found again after any end, and offsets that are never used twice."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from polybus.store.folder import StoreError
from polybus.store.streams import partition as partitions
from polybus.store.streams.files import Files
from polybus.store.streams.format import scan
from polybus.store.streams.mark import MARK_FILE
from polybus.store.streams.partition import Damaged, Extent, Gone, Partition, Shape
from polybus.store.streams.segment import read_batch, read_index
from tests.store.streams.records import batch, payloads, read_files

TINY = Shape(segment_bytes=2500)


def fill(partition: Partition, *groups: Sequence[bytes], time: int = 1_000_000) -> None:
    for group in groups:
        partition.append(batch(partition.next, group, time))
        partition.tend(time)


def abandon(partition: Partition) -> None:
    """As a crash leaves it: nothing is noted, only the kernel closes files."""
    partition.mark.close()
    os.close(partition._fd)
    partition._fd = -1


def offsets(extents: list[Extent]) -> list[int]:
    return [o for e in extents for b in e.batches for o in read_batch(e.segment.path, b).column(0).to_pylist()]


def test_what_is_written_is_found_again(tmp_path: Path) -> None:
    partition = Partition(tmp_path, 0, TINY)
    fill(partition, *([b"%d" % n, b"x"] for n in range(8)))
    assert len(partition.segments) > 3
    assert (partition.first, partition.next) == (0, 16)
    partition.close()
    again = Partition(tmp_path, 0, TINY)
    assert (again.first, again.next) == (0, 16)
    assert offsets(again.span(0, 16)) == list(range(16))
    fill(again, [b"more"])
    again.close()
    assert [record["offset"] for record in read_files(tmp_path)] == list(range(17))


@pytest.mark.parametrize("written", [0, 3])
def test_offsets_that_are_missing_are_between_segments(tmp_path: Path, written: int) -> None:
    """As after batches that could not be written, behind which others were on their way."""
    partition = Partition(tmp_path, 0)
    if written:
        fill(partition, [b"%d" % n for n in range(written)])
    partition.append(batch(10, [b"10", b"11"]))
    partition.append(batch(12, [b"12"]))
    assert (partition.next, partition.written) == (13, 13)
    assert offsets(partition.span(0, 13)) == [*range(written), 10, 11, 12]
    assert [segment.path.name for segment in partition.segments] == [f"{0:020}.arrow", f"{10:020}.arrow"]
    abandon(partition)
    again = Partition(tmp_path, 0)
    assert again.next == 13
    assert offsets(again.span(0, 13)) == [*range(written), 10, 11, 12]
    again.close()


@pytest.mark.parametrize("first", [2, 10])
def test_a_segment_that_could_not_be_begun_is_begun_later(tmp_path: Path, first: int) -> None:
    """The one before it is full: nothing may be written behind its index."""

    class NoNewFiles(Files):
        is_full = False

        def create(self, path: Path, data: bytes) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no room")
            return super().create(path, data)

    files = NoNewFiles()
    partition = Partition(tmp_path, 0, files=files)
    fill(partition, [b"0", b"1"])
    files.is_full = True
    with pytest.raises(OSError, match="no room"):
        partition.append(batch(10, [b"10"]))
    assert partition.written == 2
    files.is_full = False
    partition.append(batch(first, [b"later"]))
    assert offsets(partition.span(0, first + 1)) == [0, 1, first]
    partition.close()
    again = Partition(tmp_path, 0)
    assert offsets(again.span(0, first + 1)) == [0, 1, first]
    again.close()
    assert payloads(read_files(tmp_path)) == [b"0", b"1", b"later"]


class NoNewFiles(Files):
    """There is room in those that are there, but none for another one."""

    def __init__(self) -> None:
        self.error = 0

    def create(self, path: Path, data: bytes) -> int:
        self._fail()
        return super().create(path, data)

    def replace(self, path: Path, data: bytes) -> None:
        self._fail()
        super().replace(path, data)

    def _fail(self) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("following", [3, 20])
@pytest.mark.parametrize("tries", [1, 2])
def test_a_segment_that_ended_is_not_written_on_if_there_is_no_next_one(
    tmp_path: Path, following: int, tries: int
) -> None:
    """Behind its end nobody would find what was acknowledged."""
    files = NoNewFiles()
    partition = Partition(tmp_path, 0, files=files)
    fill(partition, [b"0", b"1", b"2"])
    files.error = errno.ENOSPC
    for _ in range(tries):
        with pytest.raises(OSError, match="No space"):
            partition.append(batch(10, [b"10"]))
    files.error = 0
    partition.append(batch(following, [b"a", b"b"]))
    expected = [0, 1, 2, following, following + 1]
    assert offsets(partition.span(0, partition.next)) == expected
    assert [record["offset"] for record in read_files(tmp_path)] == expected
    assert [read_index(segment.path) is not None for segment in partition.segments] == [True, False]
    abandon(partition)
    again = Partition(tmp_path, 0)
    assert offsets(again.span(0, again.next)) == expected
    again.close()


def test_a_new_segment_whose_name_was_not_synced_is_begun_again(tmp_path: Path) -> None:
    class Unsure(Files):
        is_bad = False

        def sync_folder(self, path: Path) -> None:
            if self.is_bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().sync_folder(path)

    files = Unsure()
    partition = Partition(tmp_path, 0, TINY._replace(is_synced=True), files)
    files.is_bad = True
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            fill(partition, *([b"%d" % n] for n in range(8)))
    files.is_bad = False
    written = partition.next
    fill(partition, [b"more"])
    assert len(partition.segments) == 2
    assert offsets(partition.span(0, partition.next)) == list(range(written + 1))
    partition.close()
    assert [record["offset"] for record in read_files(tmp_path)] == list(range(written + 1))


def test_offsets_are_not_given_again_by_mistake(tmp_path: Path) -> None:
    partition = Partition(tmp_path, 0)
    fill(partition, [b"1", b"2"])
    with pytest.raises(AssertionError, match="given before"):
        partition.append(batch(1, [b"again"]))
    partition.close()
    assert payloads(read_files(tmp_path)) == [b"1", b"2"]


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0, TINY)
    fill(partition, [b"1"], [b"2"], [b"3"])
    partition.close()
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    files = list((tmp_path / "p").iterdir())
    assert len(files) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_cut_at_every_byte_of_the_last_batch(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0)
    fill(partition, [b"a", b"b"], [b"c"])
    abandon(partition)
    path = partition.segments[0].path
    data = path.read_bytes()
    last = scan(data).batches[-1]
    for size in range(last.at, len(data)):
        path.write_bytes(data[:size])
        (tmp_path / "p" / MARK_FILE).write_text(f"{2:020}\n")  # who did not get to the end told nobody
        recovered = Partition(tmp_path / "p", 0)
        assert recovered.next == 2, size
        assert path.stat().st_size == last.at, size
        abandon(recovered)
    recovered = Partition(tmp_path / "p", 0)
    fill(recovered, [b"again"])
    recovered.close()
    assert payloads(read_files(tmp_path / "p")) == [b"a", b"b", b"again"]


def test_a_flipped_bit_is_reported_kept_and_its_offsets_are_not_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    partition = Partition(tmp_path / "p", 0)
    fill(partition, [b"a", b"b"], [b"c"], [b"d"])
    abandon(partition)
    path = partition.segments[0].path
    data = bytearray(path.read_bytes())
    victim = scan(bytes(data)).batches[-1]
    data[victim.end - 20] ^= 4
    path.write_bytes(data)
    recovered = Partition(tmp_path / "p", 0)
    assert "records are damaged" in caplog.text
    assert path.read_bytes() == bytes(data), "never overwritten"
    assert recovered.next > 4
    first_new = recovered.next
    fill(recovered, [b"new"])
    assert offsets(recovered.span(0, 3)) == [0, 1, 2]
    assert offsets(recovered.span(0, 10**9)) == [0, 1, 2], "ends where the damage begins"
    for start in (3, 4, first_new - 1):
        with pytest.raises(Damaged) as damaged:
            recovered.span(start, 10**9)
        assert damaged.value.end == first_new
    assert offsets(recovered.span(first_new, 10**9)) == [first_new]
    recovered.close()
    assert Partition(tmp_path / "p", 0).next == first_new + 1


def test_damage_in_the_middle_costs_only_its_own_batch(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0, TINY)
    fill(partition, *([b"%d" % n] for n in range(9)))
    partition.close()
    path = partition.segments[0].path
    data = bytearray(path.read_bytes())
    victim = scan(bytes(data)).batches[0]
    data[victim.end - 20] ^= 1
    path.write_bytes(data)
    recovered = Partition(tmp_path / "p", 0, TINY)
    assert recovered.next == 9
    with pytest.raises(Damaged) as damaged:
        recovered.span(0, 9)
    assert (damaged.value.start, damaged.value.end) == (0, 1)
    assert offsets(recovered.span(1, 9)) == list(range(1, 9))


def test_after_the_machine_went_down_offsets_go_on_where_none_can_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition(tmp_path / "p", 0)
    fill(partition, [b"a"], [b"b"])
    abandon(partition)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "p", copy)
    assert Partition(tmp_path / "p", 0).next == 2, "a process that ended loses nothing"
    monkeypatch.setattr(partitions, "boot_id", lambda: "another")
    recovered = Partition(copy, 0)
    assert recovered.next == partitions.RESERVE
    fill(recovered, [b"c"])
    assert offsets(recovered.span(0, 10**9)) == [0, 1, partitions.RESERVE]


def test_offsets_go_on_after_everything_was_dropped(tmp_path: Path) -> None:
    partition = Partition(tmp_path, 0, TINY)
    while len(partition.segments) < 3:
        fill(partition, [b"x"] * 3)
    reached = partition.next
    for each in partition.facts():
        partition.drop(each.first)
    assert partition.first == partition.next == reached
    partition.close()
    again = Partition(tmp_path, 0, TINY)
    assert again.next == reached
    with pytest.raises(Gone) as gone:
        again.span(0, reached)
    assert gone.value.first == reached


@pytest.mark.parametrize("content", [b"", b"precious notes", bytes(5000)])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"{0:020}.arrow"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"0\.arrow is not a segment of a stream"):
        Partition(tmp_path, 0)
    assert path.read_bytes() == content


def test_a_file_with_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.arrow").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"notes\.arrow is not named as a segment"):
        Partition(tmp_path, 0)


def test_segments_that_overlap_are_refused(tmp_path: Path) -> None:
    partition = Partition(tmp_path, 0)
    fill(partition, [b"1", b"2", b"3"])
    partition.close()
    shutil.copy(tmp_path / f"{0:020}.arrow", tmp_path / f"{1:020}.arrow")
    with pytest.raises(StoreError):
        Partition(tmp_path, 0)


def test_a_note_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    partition = Partition(tmp_path, 0)
    partition.close()
    (tmp_path / "reserved").write_text("{")
    with pytest.raises(StoreError, match="reserved cannot be read"):
        Partition(tmp_path, 0)


def test_the_offset_of_a_time(tmp_path: Path) -> None:
    partition = Partition(tmp_path, 0, TINY)
    for number, time in enumerate([10, 20, 20, 30, 5, 40]):
        fill(partition, [b"%d" % number], time=time)
    for time, offset in [(0, 0), (10, 0), (11, 1), (20, 1), (21, 3), (31, 5), (40, 5), (41, 6)]:
        assert partition.offset_at(time) == offset, time
    assert partition.times() == (10, 40)


class FullDisk(Files):
    """Takes so many bytes more, and then no more, as a disk does: in the middle of a write."""

    def __init__(self) -> None:
        self.room: int | None = None

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        if self.room is not None:
            for each in pieces:
                taken = bytes(each)[: self.room]
                os.write(fd, taken)
                self.room -= len(taken)
                if len(taken) < len(each):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        super().append(fd, pieces)


@pytest.mark.parametrize("room", [0, 1, 500, 1000])
def test_a_full_disk_leaves_what_was_there_and_takes_up_again(tmp_path: Path, room: int) -> None:
    files = FullDisk()
    partition = Partition(tmp_path, 0, files=files)
    fill(partition, [b"a"])
    files.room = room
    with pytest.raises(OSError, match="No space"):
        fill(partition, [b"b" * 2000])
    assert partition.next == 1
    assert offsets(partition.span(0, 5)) == [0]
    files.room = None
    fill(partition, [b"c"])
    partition.close()
    assert payloads(read_files(tmp_path)) == [b"a", b"c"]
    assert Partition(tmp_path, 0).next == 2


@pytest.mark.parametrize("before", [0, 1])
def test_a_write_that_cannot_be_taken_back_is_taken_back_later(tmp_path: Path, before: int) -> None:
    class Worse(FullDisk):
        is_bad = False

        def truncate(self, fd: int, size: int) -> None:
            if self.is_bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().truncate(fd, size)

    files = Worse()
    partition = Partition(tmp_path, 0, files=files)
    fill(partition, *([[b"a"]] * before))
    files.room, files.is_bad = 700, True
    with pytest.raises(OSError, match="No space"):
        fill(partition, [b"b" * 2000])
    with pytest.raises(OSError, match="Input/output"):
        fill(partition, [b"b"])
    files.room, files.is_bad = None, False
    fill(partition, [b"c"])
    assert offsets(partition.span(0, 5)) == list(range(before + 1))
    partition.close()
    assert payloads(read_files(tmp_path)) == [b"a"] * before + [b"c"]


def test_the_reserve_grows_before_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "RESERVE", 4)
    partition = Partition(tmp_path, 0)
    for _ in range(20):
        fill(partition, [b"a", b"b", b"c"])
        assert json.loads((tmp_path / "reserved").read_text())["offset"] >= partition.next


class Noting(Files):
    """What is done to files, in its order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        self.calls.append("append")
        super().append(fd, pieces)

    def sync(self, fd: int) -> None:
        self.calls.append("sync")
        super().sync(fd)

    def sync_folder(self, path: Path) -> None:
        self.calls.append("sync_folder")
        super().sync_folder(path)


@pytest.mark.parametrize("is_synced", [True, False])
def test_each_group_is_synced_if_that_is_wanted(tmp_path: Path, is_synced: bool) -> None:
    files = Noting()
    partition = Partition(tmp_path, 0, Shape(segment_bytes=1, is_synced=is_synced), files)
    files.calls.clear()
    partition.append(batch(0, [b"a"]))
    assert files.calls == (["append", "sync"] if is_synced else ["append"])
    files.calls.clear()
    partition.tend(1_000_000)
    sealed_and_begun = ["append", "sync", "append", "sync_folder"] if is_synced else ["append", "append"]
    assert files.calls == sealed_and_begun
    partition.close()


def test_after_a_clean_end_offsets_go_on_whatever_happened_to_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition(tmp_path, 0)
    fill(partition, [b"a"], [b"b"])
    synced: list[int] = []
    segment = partition._fd
    monkeypatch.setattr(os, "fdatasync", synced.append)
    partition.close()
    partition.close()
    assert synced == [segment], "else nobody could say that it was clean"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(segment)
    monkeypatch.setattr(partitions, "boot_id", lambda: "another")
    again = Partition(tmp_path, 0)
    assert again.next == 2
    again.close()


@pytest.mark.parametrize("how", ["skip", "tend"])
def test_a_segment_that_cannot_be_begun_costs_nothing(tmp_path: Path, how: str) -> None:
    """The one before it is full or done with; records go on behind it all the same."""

    class NoMore(Files):
        is_bad = False

        def create(self, path: Path, data: bytes) -> int:
            if self.is_bad:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().create(path, data)

    files = NoMore()
    partition = Partition(tmp_path, 0, Shape(segment_bytes=1) if how == "tend" else None, files)
    partition.append(batch(0, [b"a", b"b"]))
    files.is_bad = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            partition.tend(1_000_000) if how == "tend" else partition.append(batch(10, [b"lost"]))
        assert (partition.written, partition.next) == (2, 2)
    files.is_bad = False
    partition.append(batch(2, [b"c"]))
    assert offsets(partition.span(0, 9)) == [0, 1, 2]
    assert partition.segments[0].path.stat().st_size == partition.segments[0].file_bytes
    assert [segment.first for segment in partition.segments] == [0, 2]
    abandon(partition)
    again = Partition(tmp_path, 0)
    assert again.next == 3
    assert offsets(again.span(0, 9)) == [0, 1, 2]
    again.close()
    assert payloads(read_files(tmp_path)) == [b"a", b"b", b"c"]


def test_a_segment_that_cannot_be_sealed_is_written_on(tmp_path: Path) -> None:
    files = FullDisk()
    partition = Partition(tmp_path, 0, Shape(segment_bytes=1), files)
    partition.append(batch(0, [b"a"]))
    files.room = 10
    with pytest.raises(OSError, match="No space"):
        partition.tend(1_000_000)
    files.room = None
    partition.append(batch(1, [b"b"]))
    partition.tend(1_000_000)
    assert [segment.first for segment in partition.segments] == [0, 2]
    assert offsets(partition.span(0, 9)) == [0, 1]
    partition.close()
    assert payloads(read_files(tmp_path)) == [b"a", b"b"]
