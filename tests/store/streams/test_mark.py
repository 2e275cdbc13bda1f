"""Records count with the commit that they belong to: seen after it, gone at a start without it (OP-01)."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from polybus.broker.message import Message
from polybus.store.folder import DataFolder, StoreError
from polybus.store.streams import partition as partitions
from polybus.store.streams.files import Files
from polybus.store.streams.mark import MARK_FILE, read_mark
from polybus.store.streams.partition import Partition, Shape, load_segments
from polybus.store.streams.reader import FolderSource
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.writer import StreamSet
from tests.store.streams.records import batch, payloads, read_files
from tests.store.streams.test_partition import abandon

TINY = Shape(segment_bytes=2500)


def append(partition: Partition, group: Sequence[bytes], commit: int = 0) -> None:
    partition.append(batch(partition.written, group), commit)
    partition.tend(1_000_000)


def reopened(partition: Partition, committed: int | None, shape: Shape | None = None) -> Partition:
    """After a crash; `committed` is what the state has."""
    abandon(partition)
    return Partition(partition.folder, 0, shape or partition.shape, committed=committed)


def kept(partition: Partition) -> list[object]:
    return payloads(read_files(partition.folder))


def test_nothing_is_seen_before_its_commit(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0)
    append(partition, [b"free"])
    assert partition.next == 1
    append(partition, [b"one", b"uno"], 1)
    append(partition, [b"two"], 2)
    append(partition, [b"behind"])
    assert (partition.next, partition.written) == (1, 5)
    assert [extent.batches[-1].next for extent in partition.span(0, 99)] == [1]
    assert partition.mark.committed(1)
    assert partition.next == 3
    assert not partition.mark.committed(1)
    assert partition.mark.committed(2)
    assert partition.next == 5, "what belongs to none was waiting behind"
    append(partition, [b"at once"])
    assert partition.next == 6
    partition.close()


def test_a_time_is_not_found_before_its_commit(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0)
    partition.append(batch(0, [b"a"], 10), 0)
    partition.append(batch(1, [b"b"], 20), 1)
    partition.append(batch(2, [b"c"], 30), 1)
    assert partition.offset_at(30) == 1
    partition.mark.committed(1)
    assert partition.offset_at(30) == 2
    partition.close()


def test_who_reads_the_folder_sees_as_far_as_the_mark(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "streams" / "all" / "0", 0, TINY)
    (tmp_path / "streams" / "all" / "stream.json").write_text('{"filters": ["#"]}')
    for number in range(6):
        append(partition, [b"%d" % number] * 3, number)
    assert len(partition.segments) > 3, "in full segments too"
    source = FolderSource(tmp_path)
    for committed in range(6):
        partition.mark.committed(committed)
        rows = [row for found in source.batches("all") for row in found.column("payload").to_pylist()]
        assert rows == [b"%d" % number for number in range(committed + 1) for _ in range(3)]
        assert source.stream("all").partitions[0].next == len(rows) == load_segments(partition.folder)[-1].next
    partition.close()


def test_what_was_not_committed_is_gone_and_its_offsets_stay_unused(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0)
    append(partition, [b"kept"], 1)
    partition.mark.committed(1)
    append(partition, [b"committed, but nobody was told"], 2)
    append(partition, [b"lost", b"lost"], 3)
    append(partition, [b"lost with them"])
    partition = reopened(partition, committed=2)
    assert kept(partition) == [b"kept", b"committed, but nobody was told"]
    assert (partition.next, partition.written) == (5, 5)
    append(partition, [b"again"], 3)
    partition.mark.committed(3)
    partition.close()
    assert [(r["offset"], r["payload"]) for r in read_files(partition.folder)][2:] == [(5, b"again")]


def test_a_cut_through_full_segments(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0, TINY)
    for number in range(1, 8):
        append(partition, [b"%d" % number], number)
    assert len(partition.segments) > 3
    partition = reopened(partition, committed=2)
    assert kept(partition) == [b"1", b"2"]
    append(partition, [b"8"], 3)
    partition.mark.committed(3)
    partition = reopened(partition, committed=3)
    assert kept(partition) == [b"1", b"2", b"8"]
    assert [extent.batches[0].first for extent in partition.span(0, 99)] == [0, 7]
    partition.close()


class FailingFiles(Files):
    def __init__(self, call: str) -> None:
        self._call = call

    def truncate(self, fd: int, size: int) -> None:
        self._fail("truncate")
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._fail("sync")
        super().sync(fd)

    def replace(self, path: Path, data: bytes) -> None:
        self._fail(path.name)
        super().replace(path, data)

    def _fail(self, call: str) -> None:
        if call == self._call:
            raise OSError(errno.EIO, "broken off")


@pytest.mark.parametrize("call", ["truncate", "sync", "reserved", MARK_FILE])
def test_a_start_that_is_broken_off_can_be_made_again(tmp_path: Path, call: str) -> None:
    partition = Partition(tmp_path / "p", 0, TINY)
    for number in range(1, 6):
        append(partition, [b"%d" % number], number)
    abandon(partition)
    with pytest.raises(OSError, match="broken off"):
        Partition(tmp_path / "p", 0, TINY, FailingFiles(call), committed=1)
    partition = Partition(tmp_path / "p", 0, TINY, committed=1)
    assert kept(partition) == [b"1"]
    assert partition.next == 5
    partition.close()


def test_a_state_that_is_older_than_the_log_costs_nothing_that_was_seen(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0)
    for number in range(1, 6):
        append(partition, [b"%d" % number], number)
    partition.mark.committed(4)
    partition = reopened(partition, committed=1)  # a backup
    assert kept(partition) == [b"1", b"2", b"3", b"4"]
    partition.close()


@pytest.mark.parametrize("why", ["state is new", "no mark", "power cut"])
def test_what_nobody_can_decide_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    partition = Partition(tmp_path / "p", 0)
    append(partition, [b"a"], 7)
    if why == "no mark":
        (partition.folder / MARK_FILE).unlink()
    if why == "power cut":
        monkeypatch.setattr(partitions, "boot_id", lambda: "another")
    partition = reopened(partition, committed=None if why == "state is new" else 3)
    assert kept(partition) == [b"a"]
    assert partition.next >= 1
    partition.close()


def test_with_sync_the_state_is_believed_after_a_power_cut_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition(tmp_path / "p", 0, Shape(is_synced=True))
    append(partition, [b"a"], 7)
    append(partition, [b"b"], 8)
    monkeypatch.setattr(partitions, "boot_id", lambda: "another")
    partition = reopened(partition, committed=7)
    assert kept(partition) == [b"a"]
    partition.close()


def test_offsets_that_were_seen_are_not_used_again_if_their_records_are_lost(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "p", 0)
    append(partition, [b"a"])
    size = partition.segments[-1].size_bytes
    append(partition, [b"b", b"c"])
    path = partition.segments[-1].path
    path.write_bytes(path.read_bytes()[:size])
    partition = reopened(partition, committed=None)
    assert partition.next == 3
    partition.close()


@pytest.mark.parametrize("content", [b"", b"7", b"x" * 21])
def test_a_mark_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MARK_FILE).write_bytes(content)
    with pytest.raises(StoreError, match="mark is no mark of 20 digits; move it away"):
        read_mark(tmp_path)


def test_batches_never_belong_to_two_commits(tmp_path: Path) -> None:
    with DataFolder(tmp_path) as folder:
        streams = StreamSet(folder, [StreamRule("all", ("#",), partitions=2)])
        log = streams.log_of("a")
        assert log is not None
        for number, commit in enumerate((0, 1, 0, 1, 2, 0, 2, 3)):
            log.append(Message("a", b"%d" % number, 1 if commit else 0), commit)
        streams.start(lambda call, *arguments: None)
        streams.finish()  # all of it is one group
        found = [partition for partition in streams.streams["all"].partitions if partition.written]
        seen = [found[0].next]
        for commit in (1, 2, 3):
            streams.committed(commit)
            seen.append(found[0].next)
        streams.close()
    assert len(found) == 1
    assert seen == [0, 4, 7, 8]


def test_the_first_record_of_all_may_belong_to_a_commit(tmp_path: Path) -> None:
    with DataFolder(tmp_path) as folder:
        streams = StreamSet(folder, [StreamRule("all", ("#",))])
        log = streams.log_of("a")
        assert log is not None
        log.append(Message("a", b"x", 1), 1)
        streams.start(lambda call, *arguments: None)
        streams.finish()
        partition = streams.streams["all"].partitions[0]
        assert (log.refusal, partition.written, partition.next) == (None, 1, 0)
        streams.committed(1)
        assert partition.next == 1
        streams.close()
