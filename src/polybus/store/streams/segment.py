"""One segment file, for reading: what is in it and where. Any thread may read any segment."""

import mmap
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from polybus.store.folder import StoreError
from polybus.store.streams import format as segments
from polybus.store.streams.format import Batch, Damage, NotASegment

NAME: Final = re.compile(r"(\d{20})\.arrow")
MOST_INDEXES: Final = 256
"""Indexes of full segments kept in memory."""


class Segment:
    """`next` and `size_bytes` grow while it is written; a batch is in the index before they say so."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.next = first
        self.size_bytes = 0
        """To where it may be read: the end of its last batch."""
        self.file_bytes = 0
        self.min_time = 0
        self.max_time = 0
        self.is_sealed = False
        self.is_cut = False
        self.damages: tuple[Damage, ...] = ()
        self._is_verified = False
        self._batches: list[Batch] | None = None
        self._lock = threading.Lock()

    def note(self, batch: Batch) -> None:
        """A batch was written. Only the writer calls this."""
        assert self._batches is not None
        self._batches.append(batch)
        self._sum_up(batch)

    def begin(self, size_bytes: int) -> None:
        """It is new, or about to be written on."""
        if self._batches is None:
            self._batches = []
        self.size_bytes = self.file_bytes = size_bytes
        self._is_verified = True

    def sealed(self, file_bytes: int) -> None:
        self.is_sealed = True
        self.file_bytes = file_bytes
        _remember(self)

    def index(self) -> Sequence[Batch]:
        """Its good batches. The first call reads all of the file and checks every checksum."""
        batches = self._batches
        if batches is None:
            with self._lock:
                batches = self._batches
                if batches is None:
                    batches = self._read(verify=not self._is_verified)
                    self._batches = batches
                    _remember(self)
        return batches

    def hide(self, mark: int) -> None:
        """Leave out what is behind this offset. For readers, of segments that nobody writes."""
        if self.next <= mark:
            return
        shown = [batch for batch in self.index() if batch.next <= mark]
        self.next, self.size_bytes = self.first, len(segments.SCHEMA_BYTES)
        self.min_time = self.max_time = 0
        if shown:
            self._sum_up(*shown)
        self._batches = shown
        self.is_sealed = False  # its index must not be asked again

    def count(self) -> int:
        return len(self.index())

    def forget(self) -> None:
        if self.is_sealed:
            self._batches = None

    def _read(self, *, verify: bool) -> list[Batch]:
        bad = {damage.at for damage in self.damages}
        if not verify and self.is_sealed:
            found = read_index(self.path)
            if found is not None:
                return [batch for batch in found if batch.at not in bad]
        scan = scan_file(self.path, verify=True)
        self._is_verified = True
        self.damages = scan.damages
        return list(scan.batches)

    def _sum_up(self, *batches: Batch) -> None:
        for batch in batches:
            self.min_time = min(self.min_time or batch.min_time, batch.min_time)
            self.max_time = max(self.max_time, batch.max_time)
        self.size_bytes = batches[-1].end
        self.file_bytes = max(self.file_bytes, self.size_bytes)
        self.next = batches[-1].next  # last: who reads this may read all before it

    @classmethod
    def load(cls, path: Path) -> "Segment":
        """One that is there. Raises StoreError for a file that is not one of ours."""
        name = NAME.fullmatch(path.name)
        if name is None:
            raise StoreError(f"{path} is not named as a segment is; move it away")
        segment = cls(path, int(name[1]))
        segment.file_bytes = path.stat().st_size
        batches = read_index(path)
        if batches is not None:
            segment.is_sealed = True
        else:
            scan = scan_file(path)
            batches = scan.batches
            segment.size_bytes = scan.end
            segment.is_cut, segment.is_sealed = scan.is_cut, scan.is_sealed
            segment.damages = scan.damages
            segment._is_verified = True
            segment._batches = list(batches)
        if batches:
            if batches[0].first < segment.first:
                raise StoreError(
                    f"{path} begins with offset {batches[0].first}, not with that of its name;"
                    " give it back the name it had"
                )
            segment._sum_up(*batches)
        return segment


def read_index(path: Path) -> tuple[Batch, ...] | None:
    """What a full segment says of itself; None: it does not, or not as it was written."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - segments.TRAILER_BYTES))
        index_size = segments.index_size(file.read())
        if index_size is None or index_size > size:
            return None
        file.seek(size - index_size)
        batches = segments.decode_index(file.read())
    expected = size - index_size - len(segments.END_OF_STREAM)
    return batches if batches and batches[-1].end == expected else None


def scan_file(path: Path, *, verify: bool = True) -> segments.Scan:
    """Raises StoreError for a file that is not one of ours."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise NotASegment("it is empty")
            return segments.scan(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)), verify=verify)
    except NotASegment as error:
        raise StoreError(f"{path} is not a segment of a stream: {error}; move it away") from error


def read_batch(path: Path, batch: Batch) -> pa.RecordBatch:
    """Decode one batch, checked. Raises StoreError."""
    with path.open("rb") as file:
        return decode(os.pread(file.fileno(), batch.size, batch.at), batch, str(path))


def decode(data: bytes, batch: Batch, where: str) -> pa.RecordBatch:
    """The same of bytes that were read elsewhere."""
    if not segments.is_intact(data, batch._replace(at=0)):
        raise StoreError(f"{where}: the batch at byte {batch.at} (offset {batch.first}) is damaged")
    return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), segments.SCHEMA)


_remembered: "OrderedDict[int, Segment]" = OrderedDict()
_remembered_lock = threading.Lock()


def _remember(segment: Segment) -> None:
    with _remembered_lock:
        _remembered[id(segment)] = segment
        _remembered.move_to_end(id(segment))
        while len(_remembered) > MOST_INDEXES:
            _remembered.popitem(last=False)[1].forget()
