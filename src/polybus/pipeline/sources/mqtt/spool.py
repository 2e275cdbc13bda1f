"""The spool: a folder that holds messages between the broker and Spark.

    spool.json             who it is (`SpoolIdentity`)
    lock                   held by the one process that writes
    00000000000000000000.seg, 00000000000000041200.seg, …   named by their first row

Rows are numbered from 0 and no number is used twice: the newest segment is never deleted, and its name
and content say what comes next. `SpoolWriter` appends and deletes; `read_rows` may run in any process that
sees the folder, and needs no lock, for bytes that were once safe do not change.
"""

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec
import pyarrow as pa

from polybus.errors import PolybusError
from polybus.pipeline.sources.mqtt.frames import (
    HEADER_BYTES,
    MAGIC,
    Damage,
    Frame,
    Scan,
    decode_header,
    encode_frame,
    is_intact,
    scan,
)
from polybus.pipeline.sources.mqtt.schema import SPOOL_SCHEMA

SEGMENTS: Final = 16
"""A spool at its limit has about so many: each can be deleted when all of it was read."""
MAX_SEGMENT_BYTES: Final = 64 << 20


class SpoolError(PolybusError):
    """A spool that cannot be used. The text names the file and the remedy."""


class SpoolBusy(SpoolError):
    """Another process writes to it."""


class RowsGone(SpoolError):
    """Rows that are not in the spool any more, or never were."""


class SpoolNotShared(SpoolError):
    """An executor on another machine does not see it."""


class SpoolIdentity(msgspec.Struct, frozen=True):
    """`id` tells a spool from one that stood in the same folder before; `filters` is what its session
    at the broker has subscribed to."""

    id: str
    filters: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        return zlib.crc32(self.id.encode())


class _Segment:
    def __init__(self, path: Path, first: int, next_row: int, size_bytes: int) -> None:
        self.path = path
        self.first = first
        self.next = next_row
        self.size_bytes = size_bytes


class SpoolWriter:
    """Holds the folder's lock until `close`. Safe to use from several threads.

    Raises SpoolBusy if another process has it, SpoolError if what is in it cannot be used, OSError if
    the disk fails: then nothing of the group that was being written may be acknowledged.
    """

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._segment_bytes = min(MAX_SEGMENT_BYTES, max(limit_bytes // SEGMENTS, 4096))
        self._mutex = threading.Lock()
        self._file = -1
        self._is_broken = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolError(f"the spool folder {folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise SpoolBusy(
                f"the spool {folder} is in use by another query; each needs a spool and a client id of its own"
            ) from error
        try:
            self.identity = self._read_or_make_identity()
            self._segments = self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    # --- what is in it ----------------------------------------------------------------------------

    @property
    def first(self) -> int:
        return self._segments[0].first

    @property
    def next(self) -> int:
        """The row that will be written next: everything before it is on the disk."""
        return self._segments[-1].next

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self._limit_bytes

    # --- changes ----------------------------------------------------------------------------------

    def append(self, batches: Iterable[pa.RecordBatch]) -> None:
        """When this returns, the rows are safe."""
        with self._mutex:
            if self._is_broken:
                raise SpoolError(f"the spool {self.folder} failed before; start the query again")
            segment = self._segments[-1]
            synced, row = segment.size_bytes, segment.next
            pieces: list[bytes | memoryview] = []
            for batch in batches:
                body = memoryview(batch.serialize())
                pieces += encode_frame(body, rows=len(batch), first=row, synced=synced, seed=self.identity.seed)
                row += len(batch)
            try:
                written = _write_all(self._file, pieces)
                os.fsync(self._file)
            except OSError:
                # What a failed fsync left is unknown [PostgreSQL, 2018]: only a new look can tell.
                self._is_broken = True
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, synced)
                raise
            segment.size_bytes, segment.next = synced + written, row
            if segment.size_bytes >= self._segment_bytes:
                self._begin_segment()

    def discard(self, before: int) -> None:
        """Rows below `before` are safe elsewhere: delete the segments that hold nothing else."""
        with self._mutex:
            newest = self._segments[-1]
            is_worth_it = self.is_full or newest.size_bytes >= self._segment_bytes // 2
            if before >= newest.next > newest.first and is_worth_it and not self._is_broken:
                self._begin_segment()
            while len(self._segments) > 1 and self._segments[0].next <= before:
                self._segments[0].path.unlink(missing_ok=True)
                del self._segments[0]

    def subscribed(self, filters: Sequence[str]) -> None:
        """Remember what the session has subscribed to."""
        self.identity = SpoolIdentity(self.identity.id, tuple(filters))
        _replace(self.folder / "spool.json", msgspec.json.encode(self.identity))

    def close(self) -> None:
        with self._mutex:
            self._is_broken = True
            for descriptor in (self._file, self._lock):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- beginnings -------------------------------------------------------------------------------

    def _read_or_make_identity(self) -> SpoolIdentity:
        identity = read_identity(self.folder)
        if identity is None:
            orphans = list(segment_paths(self.folder))
            if orphans:
                raise SpoolError(
                    f"the spool {self.folder} has segments but no spool.json; restore it, or use another folder"
                )
            identity = SpoolIdentity(secrets.token_hex(16))
            _replace(self.folder / "spool.json", msgspec.json.encode(identity))
        return identity

    def _recover(self) -> list[_Segment]:
        paths = list(segment_paths(self.folder))
        if not paths:
            self._segments = []
            self._begin_segment(0)
            return self._segments
        segments = [
            _Segment(path, first, following, path.stat().st_size)
            for (path, first), (_, following) in itertools.pairwise(paths)
        ]
        path, first = paths[-1]
        try:
            found = scan_segment(path, first, self.identity.seed)
        except Damage as damage:
            raise SpoolError(
                f"the spool's segment {path} is {damage}; messages in it were acknowledged to the broker: "
                "restore it, or move the spool away and take the loss"
            ) from damage
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        end = found.end
        os.ftruncate(self._file, end if end >= len(MAGIC) else 0)
        if end < len(MAGIC):
            end = _write_all(self._file, [MAGIC])
        os.fsync(self._file)
        segments.append(_Segment(path, first, found.frames[-1].next if found.frames else first, end))
        return segments

    def _begin_segment(self, first: int | None = None) -> None:
        first = self._segments[-1].next if first is None else first
        path = self.folder / f"{first:020d}.seg"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = _write_all(file, [MAGIC])
            os.fsync(file)
            _sync_folder(self.folder)
        except OSError:
            os.close(file)
            self._is_broken = True
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._segments.append(_Segment(path, first, first, size))


# --- reading, in any process ----------------------------------------------------------------------


def read_identity(folder: Path) -> SpoolIdentity | None:
    """None: there is no spool in this folder. Raises SpoolError."""
    try:
        return msgspec.json.decode((folder / "spool.json").read_bytes(), type=SpoolIdentity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise SpoolError(f"{folder / 'spool.json'} cannot be read: {error}") from error


def segment_paths(folder: Path) -> Iterator[tuple[Path, int]]:
    """Segments and their first rows, in order."""
    for name in sorted(os.listdir(folder)):
        if name.endswith(".seg") and name[:-4].isdigit():
            yield folder / name, int(name[:-4])


def scan_segment(path: Path, first: int, seed: int) -> Scan:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return Scan((), 0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            return scan(view, first, seed)


def check_shared(folder: Path, driver: str, here: str) -> None:
    """Before reading, on an executor. `driver` and `here` are names of machines. Raises SpoolNotShared."""
    if read_identity(folder) is None and here != driver:
        raise SpoolNotShared(
            f"mqtt: there is no spool in {folder} on {here}, where a task runs; it is on {driver}, where the "
            "driver runs. On a cluster the option spool must name a folder that all machines share at the same "
            "path, such as one on NFS; the checkpoint needs one too"
        )


def read_rows(folder: Path, spool_id: str, start: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows from `start` until before `end`, each batch with the number of its first row.

    Raises RowsGone if not all of them are there, SpoolError if they are not what was written.
    """
    identity = read_identity(folder)
    if identity is None or identity.id != spool_id:
        raise RowsGone(
            f"{folder} is not the spool {spool_id} that this query reads; it must be visible, at the same "
            "path, to the driver and to every executor, and must not be replaced"
        )
    paths = list(segment_paths(folder))
    row = start
    for index, (path, first) in enumerate(paths):
        following = paths[index + 1][1] if index + 1 < len(paths) else None
        if first >= end or (following is not None and following <= row):
            continue
        if first > row:
            break
        for batch_first, batch in _read_segment(path, row, end, identity.seed):
            yield batch_first, batch
            row = batch_first + len(batch)
    if row < end:
        raise RowsGone(f"rows {row} to {end - 1} are not in the spool {folder} any more")


def _read_segment(path: Path, start: int, end: int, seed: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    try:
        source = pa.memory_map(str(path))
    except FileNotFoundError as error:
        raise RowsGone(f"the segment {path} was deleted while it was read") from error
    with source:
        buffer = source.read_buffer()
    data = memoryview(buffer)
    at = len(MAGIC)
    while at < len(data):
        frame = decode_header(data, at)
        if frame is None:
            raise SpoolError(f"the spool's segment {path} is damaged at byte {at}: no frame begins there")
        if frame.first >= end:
            return
        if frame.next > start:
            yield _read_frame(path, buffer, data, frame, start, end, seed)
        at = frame.end


def _read_frame(
    path: Path, buffer: pa.Buffer, data: memoryview, frame: Frame, start: int, end: int, seed: int
) -> tuple[int, pa.RecordBatch]:
    if not is_intact(data, frame, seed):
        raise SpoolError(
            f"the spool's segment {path} is damaged at byte {frame.at}: its checksum does not match"
        )
    body = buffer.slice(frame.at + HEADER_BYTES, frame.size)
    batch = pa.ipc.read_record_batch(body, SPOOL_SCHEMA)
    skipped = max(start - frame.first, 0)
    kept = batch.slice(skipped, min(end, frame.next) - frame.first - skipped)
    return frame.first + skipped, kept


# --- files ----------------------------------------------------------------------------------------


def _write_all(file: int, pieces: Sequence[bytes | memoryview]) -> int:
    data = b"".join(pieces)
    view, written = memoryview(data), 0
    while written < len(view):
        written += os.write(file, view[written:])
    return written


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    beside = path.with_suffix(".new")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(file, [content])
        os.fsync(file)
    finally:
        os.close(file)
    beside.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
