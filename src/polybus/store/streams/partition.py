"""One partition of a stream: a row of segments, the last of which is written.

One thread writes (`write`, `tend`, `drop`); any thread reads (`span`, `offset_at`, the facts). What is
written is told to readers by `next`, after it is in the file and there for good (`mark`).

Offsets are never given twice. A crash of the process loses nothing that was written, but one of the
machine may, unless every group is synced; and a segment may be found damaged at its end. So `reserved`
always says an offset that was not reached yet, and who cannot be sure goes on from there (`recovery`).
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from polybus.store.folder import StoreError
from polybus.store.streams import format as segments
from polybus.store.streams.files import Files, boot_id
from polybus.store.streams.format import Batch, Records
from polybus.store.streams.ipc import Compression
from polybus.store.streams.mark import Mark, read_mark
from polybus.store.streams.recovery import (
    RESERVED_FILE,
    Reserved,
    cut_away,
    encode_reserved,
    find_cut,
    load_all,
    next_offset,
    read_reserved,
)
from polybus.store.streams.retention import SegmentFacts, must_roll
from polybus.store.streams.segment import Segment, read_batch

log = logging.getLogger("polybus.streams")

RESERVE: Final = 1 << 20
"""Offsets reserved at a time."""
MOST_BATCHES: Final = 8192
"""In a segment, so that its index stays small."""
MOST_SEGMENTS: Final = 64
"""In one span: each is a file to open."""


class Shape(NamedTuple):
    """How segments are cut and written."""

    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 3600.0
    compression: Compression = "none"
    is_synced: bool = False
    """Each group is on the disk before it is acknowledged; else it is in the system's hands."""


class Gone(StoreError):
    """Retention has dropped this offset."""

    def __init__(self, offset: int, first: int) -> None:
        super().__init__(f"offset {offset} was dropped by retention; the first one there is {first}")
        self.first = first


class Damaged(StoreError):
    """The records at this offset can not be read any more."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"records from offset {start} to {end} (exclusive) are damaged on the disk")
        self.start = start
        self.end = end


class Extent(NamedTuple):
    """Neighbouring batches in one file."""

    segment: Segment
    batches: Sequence[Batch]

    @property
    def at(self) -> int:
        return self.batches[0].at

    @property
    def end(self) -> int:
        return self.batches[-1].end


class Partition:
    def __init__(
        self,
        folder: Path,
        number: int,
        shape: Shape | None = None,
        files: Files | None = None,
        committed: int | None = None,
    ) -> None:
        """Opens what is there, or begins. `committed` is the last commit that the state has, if anyone knows.
        Raises StoreError or OSError."""
        self.folder = folder
        self.number = number
        self.shape = shape or Shape()
        self._files = files or Files()
        self._fd = -1
        self._reserved = 0
        self.segments: tuple[Segment, ...] = ()
        self._files.make_folder(folder)
        found = load_all(folder)
        self._tell_damages(found)
        noted, mark, boot = read_reserved(folder), read_mark(folder), boot_id()
        self.written = next_offset(found, noted, mark, boot)
        """The next offset, for the writer."""
        cut = find_cut(found, noted, mark, committed, boot)
        self.segments = tuple(found)
        last = found[-1] if found else None
        if last is not None and _goes_on(last, self.written) and (cut is None or last.first == self.written):
            self._write_on(last)
        else:
            self._begin()
        if cut is not None:
            self.segments = cut_away(self.segments, cut, self._files)
        self._reserve()
        self.mark = Mark(folder, self.written, self._files)

    # -- what readers ask ---------------------------------------------------------------------

    @property
    def next(self) -> int:
        """Behind the last record that is there for good."""
        return self.mark.offset

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def size_bytes(self) -> int:
        return sum(segment.file_bytes for segment in self.segments)

    def times(self) -> tuple[int, int] | None:
        """Of the oldest and the newest record, in microseconds; None: there is none."""
        return times_of(self.segments)

    def span(self, start: int, stop: int) -> list[Extent]:
        """Where the batches are that hold [start, stop). Raises Gone, Damaged.

        It ends before `stop` where something is damaged, or where too many files would be needed.
        """
        return find_span(self.segments, start, min(stop, self.next))

    def offset_at(self, time: int) -> int:
        """Of the first record that came at this time or later; `next` if there is none yet."""
        reached = self.next
        return min(find_time(self.segments, time, reached), reached)

    def facts(self) -> list[SegmentFacts]:
        """Of the segments that may be dropped."""
        row = [segment for segment in self.segments[:-1] if segment.next <= self.next]
        return [SegmentFacts(self.number, s.first, s.file_bytes, s.max_time) for s in row]

    # -- writing --------------------------------------------------------------------------------

    def append(self, records: Records, commit: int = 0) -> None:
        """Write records that begin with offset `written` and belong to this commit (`mark`). Raises OSError,
        and then nothing was written."""
        self.write(*segments.encode_batch(records, self.shape.compression, commit), commit)

    def write(self, batch: Batch, data: Sequence[bytes | memoryview], commit: int) -> None:
        """The same of records that are encoded. Between them and the last ones offsets may be missing."""
        if self._fd < 0:
            self._reopen()
        if batch.first != self.written or self.segments[-1].is_sealed:
            self._go_on_at(batch.first)
        if self._reserved < batch.next:
            self._reserve()
        active = self.segments[-1]
        try:
            self._files.append(self._fd, data)
            if self.shape.is_synced:
                self._files.sync(self._fd)
        except BaseException:
            self._take_back(active)
            raise
        active.note(batch._replace(at=active.size_bytes))
        self.written = active.next
        self.mark.written(active.next, commit)

    def tend(self, now_us: int) -> None:
        """Begin a new segment if it is time. Raises OSError."""
        active, shape = self.segments[-1], self.shape
        if self._fd >= 0 and must_roll(
            active.size_bytes,
            active.count(),
            (now_us - active.min_time) / 1_000_000,
            segment_bytes=shape.segment_bytes,
            segment_age_s=shape.segment_age_s,
            max_batches=MOST_BATCHES,
        ):
            self._seal(active)
            self._begin()

    def drop(self, first: int) -> None:
        """Delete the segment that begins with this offset."""
        gone = next(segment for segment in self.segments if segment.first == first)
        self.segments = tuple(segment for segment in self.segments if segment is not gone)
        gone.path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Raises OSError if it cannot be written."""
        self._files.probe(self.folder)

    def close(self) -> None:
        self.mark.close()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)
                self._reserve(is_clean=True)
            os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        path = self.folder / f"{self.written:020}.arrow"
        fd = self._files.create(path, segments.SCHEMA_BYTES)
        try:
            if self.shape.is_synced:
                self._files.sync_folder(self.folder)
        except BaseException:
            os.close(fd)
            path.unlink()  # the next try makes it again, and never over a file that is there
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        segment = Segment(path, self.written)
        segment.begin(len(segments.SCHEMA_BYTES))
        self.segments = (*self.segments, segment)

    def _go_on_at(self, offset: int) -> None:
        """In a new segment: a gap is between segments, never within one. Raises OSError."""
        assert offset >= self.written, f"{offset} was given before, {self.written} is next"
        active = self.segments[-1]
        if active.count() and not active.is_sealed:
            self._seal(active)
        before, self.written = self.written, offset
        try:
            self._reserve()
            self._begin()
        except BaseException:
            self.written = before
            raise

    def _reopen(self) -> None:
        """The last write could not be taken back: try again. Raises OSError."""
        active = self.segments[-1]
        fd = self._files.open(active.path)
        try:
            self._files.truncate(fd, active.size_bytes)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _write_on(self, segment: Segment) -> None:
        self._fd = self._files.open(segment.path)
        if segment.is_cut:
            lost = segment.file_bytes - segment.size_bytes
            fields = {"file": str(segment.path), "bytes": lost, "next_offset": segment.next}
            log.warning("a batch that was not finished is cut off", extra={"fields": fields})
            self._files.truncate(self._fd, segment.size_bytes)
            segment.is_cut = False
        segment.begin(segment.size_bytes)

    def _take_back(self, active: Segment) -> None:
        try:
            self._files.truncate(self._fd, active.size_bytes)
        except OSError:
            os.close(self._fd)
            self._fd = -1

    def _seal(self, active: Segment) -> None:
        if active.is_sealed:
            return
        index = segments.encode_index(active.index())
        try:
            self._files.append(self._fd, [index])
            if self.shape.is_synced:
                self._files.sync(self._fd)
        except BaseException:
            self._take_back(active)
            raise
        active.sealed(active.size_bytes + len(index))

    # -- offsets --------------------------------------------------------------------------------------

    def _reserve(self, *, is_clean: bool = False) -> None:
        bound = self.written if is_clean else self.written + RESERVE
        noted = Reserved(bound, boot_id(), is_clean, self.shape.is_synced)
        self._files.replace(self.folder / RESERVED_FILE, encode_reserved(noted))
        self._reserved = 0 if is_clean else bound

    def _tell_damages(self, found: Sequence[Segment]) -> None:
        for damage in (damage for segment in found for damage in segment.damages):
            fields = {"stream": self.folder.parent.name, "partition": self.number, "at": damage.at}
            log.error(f"records are damaged: {damage.reason}", extra={"fields": fields})


def load_segments(folder: Path) -> list[Segment]:
    """For those who read the folder of a bus, running or not: as far as its records are there for good.

    Raises StoreError.
    """
    mark = read_mark(folder)
    found = load_all(folder)
    if mark is None:
        return found
    shown = [segment for segment in found if segment is found[0] or segment.first <= mark]
    for segment in shown:
        segment.hide(mark)
    return shown


def find_span(row: Sequence[Segment], start: int, stop: int) -> list[Extent]:
    if start < row[0].first:
        raise Gone(start, row[0].first)
    extents: list[Extent] = []
    reached = start
    for number, segment in enumerate(row):
        is_last = number + 1 == len(row)
        end = segment.next if is_last or not segment.damages else row[number + 1].first
        if end <= start or segment.first >= stop:
            continue
        batches = segment.index()
        low = segments.find(batches, start)
        high = segments.find(batches, stop - 1) + 1
        hole = _first_damage(segment, batches, start)
        if hole is not None and hole[0] < stop:
            if reached >= hole[0] or not (chosen := [b for b in batches[low:high] if b.next <= hole[0]]):
                if not extents:
                    following = segment.next if is_last else row[number + 1].first
                    raise Damaged(max(start, hole[0]), hole[1] if hole[1] is not None else following)
                return extents
            return [*extents, Extent(segment, chosen)]
        if chosen := list(batches[low:high]):
            extents.append(Extent(segment, chosen))
            reached = chosen[-1].next
        if len(extents) >= MOST_SEGMENTS:
            break
    return extents


def _first_damage(segment: Segment, batches: Sequence[Batch], start: int) -> tuple[int, int | None] | None:
    """Offsets of the first damage that ends behind `start`; without an end: to the end of the segment."""
    for damage in segment.damages:
        before = [batch.next for batch in batches if batch.at < damage.at]
        after = [batch.first for batch in batches if batch.at > damage.at]
        low = before[-1] if before else segment.first
        high = after[0] if after else None
        if high is None or high > start:
            return low, high
    return None


def find_time(row: Sequence[Segment], time: int, otherwise: int) -> int:
    for segment in row:
        if segment.max_time < time:
            continue
        for batch in list(segment.index()):
            if batch.max_time < time:
                continue
            records = read_batch(segment.path, batch)
            offsets, times = records.column(0).to_pylist(), records.column(1).cast(pa.int64()).to_pylist()
            return int(next(offset for offset, each in zip(offsets, times, strict=True) if each >= time))
    return otherwise


def times_of(row: Sequence[Segment]) -> tuple[int, int] | None:
    held = [segment for segment in row if segment.max_time]
    return (held[0].min_time, max(segment.max_time for segment in held)) if held else None


def _goes_on(segment: Segment, offset: int) -> bool:
    """It can be written on, from this offset."""
    return not segment.is_sealed and not segment.damages and segment.next == offset


def numbered_folders(folder: Path) -> list[Path]:
    """The partitions of a stream's folder, in their order."""
    found = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))
