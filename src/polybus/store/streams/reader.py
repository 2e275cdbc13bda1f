"""Streams for those who read them: from the data folder, or from a running bus. Every checksum is checked.

    source = FolderSource(Path("data"))                  # or UrlSource("http://127.0.0.1:8035")
    for batch in source.batches("fleet", partition=0):
        ...                                              # pyarrow.RecordBatch

Reading a folder needs no lock and disturbs nobody: what a bus is just writing is not seen until it is whole.
"""

import base64
import json
import mmap
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from polybus.errors import UsageError
from polybus.store.folder import StoreError
from polybus.store.streams import format as segments
from polybus.store.streams.partition import (
    Damaged,
    Extent,
    Gone,
    find_span,
    find_time,
    load_segments,
    numbered_folders,
    times_of,
)
from polybus.store.streams.segment import Segment
from polybus.store.streams.start import parse_time

HTTP_TIMEOUT_S: Final = 60.0


class PartitionFacts(NamedTuple):
    number: int
    first: int
    next: int
    times: tuple[int, int] | None
    size_bytes: int


class StreamFacts(NamedTuple):
    name: str
    filters: tuple[str, ...]
    partitions: tuple[PartitionFacts, ...]
    id: str = ""
    """Tells it from another one that had its name before; empty: the bus is too old to say."""


class Source(Protocol):
    def streams(self) -> list[StreamFacts]: ...

    def stream(self, name: str) -> StreamFacts:
        """Raises UsageError if there is no such stream."""

    def batches(
        self,
        name: str,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        on_damage: Callable[[Damaged], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Records with offsets in [start, stop), in their order.

        Raises Gone, StoreError, and Damaged, unless `on_damage` is told instead and reading goes on behind it.
        """

    def offset_at(self, name: str, partition: int, time: int) -> int:
        """Of the first record at this time (microseconds since 1970) or later."""


class FolderSource:
    def __init__(self, folder: Path) -> None:
        """`folder` is a data folder. Raises UsageError."""
        self._folder = folder / "streams"
        if not self._folder.is_dir():
            raise UsageError(f"{folder} is not a data folder with streams: there is no {self._folder}")

    def streams(self) -> list[StreamFacts]:
        return [self.stream(path.name) for path in sorted(self._folder.iterdir()) if path.is_dir()]

    def stream(self, name: str) -> StreamFacts:
        try:
            told = json.loads((self._folder / name / "stream.json").read_text())
        except OSError:
            there = ", ".join(sorted(path.name for path in self._folder.iterdir())) or "none"
            raise UsageError(f"there is no stream {name!r} in {self._folder}; there are: {there}") from None
        except ValueError as error:
            raise StoreError(f"{self._folder / name / 'stream.json'} cannot be read: {error}") from error
        facts = []
        for folder in numbered_folders(self._folder / name):
            row = self._row(name, int(folder.name))
            size = sum(segment.file_bytes for segment in row)
            facts.append(PartitionFacts(int(folder.name), row[0].first, row[-1].next, times_of(row), size))
        return StreamFacts(name, tuple(told["filters"]), tuple(facts), str(told.get("id", "")))

    def batches(
        self,
        name: str,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        on_damage: Callable[[Damaged], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        row = self._row(name, partition)
        position = row[0].first if start is None else start
        end = row[-1].next if stop is None else min(stop, row[-1].next)
        while position < end:
            try:
                extents = find_span(row, position, end)
            except Damaged as damaged:
                if on_damage is None:
                    raise
                on_damage(damaged)
                position = damaged.end
                continue
            if not extents:
                return
            for extent in extents:
                for batch in _read_extent(extent):
                    yield trimmed(batch, position, end)
            position = extents[-1].batches[-1].next

    def offset_at(self, name: str, partition: int, time: int) -> int:
        row = self._row(name, partition)
        return find_time(row, time, row[-1].next)

    def _row(self, name: str, partition: int) -> list[Segment]:
        try:
            row = load_segments(self._folder / name / str(partition))
        except FileNotFoundError:
            row = []
        if not row:
            raise UsageError(f"stream {name!r} in {self._folder} has no partition {partition}")
        return row


class UrlSource:
    def __init__(self, url: str, user: str | None = None, password: str | None = None) -> None:
        """`url` is where the bus serves HTTP. Raises UsageError."""
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise UsageError(f"{url!r} is no address of a bus; write http://host:port")
        user, password = user or place.username, password or place.password
        host = f"[{place.hostname}]" if ":" in place.hostname else place.hostname
        self._base = f"{place.scheme}://{host}{f':{place.port}' if place.port else ''}/streams"
        self._headers: dict[str, str] = {}
        if user is not None:
            shown = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {shown}"

    def streams(self) -> list[StreamFacts]:
        return [self.stream(each["name"]) for each in self._json("")["streams"]]

    def stream(self, name: str) -> StreamFacts:
        told = self._json(f"/{quote(name, safe='')}")
        facts = []
        for each in told["partitions"]:
            times = None
            if each["first_time"]:
                times = parse_time(each["first_time"]), parse_time(each["last_time"])
            facts.append(
                PartitionFacts(
                    each["partition"], each["first_offset"], each["next_offset"], times, each["size_bytes"]
                )
            )
        return StreamFacts(name, tuple(told["filters"]), tuple(facts), str(told.get("id", "")))

    def batches(
        self,
        name: str,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        on_damage: Callable[[Damaged], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        facts = self.stream(name).partitions
        if partition >= len(facts):
            raise UsageError(f"stream {name!r} has no partition {partition}, only 0 to {len(facts) - 1}")
        position = facts[partition].first if start is None else start
        end = facts[partition].next if stop is None else min(stop, facts[partition].next)
        while position < end:
            query = urlencode({"from": position, "to": end})
            try:
                with self._get(f"/{quote(name, safe='')}/{partition}?{query}") as response:
                    for batch in read_stream(response.read):
                        yield trimmed(batch, position, end)
                    reached = int(response.headers["Polybus-Next-Offset"])
            except Damaged as damaged:  # found by the bus, or by ourselves
                if on_damage is None:
                    raise
                on_damage(damaged)
                reached = damaged.end
            if reached <= position:
                return
            position = reached

    def offset_at(self, name: str, partition: int, time: int) -> int:
        return int(self._json(f"/{quote(name, safe='')}/{partition}/offset?time={time}")["offset"])

    def _json(self, path: str) -> dict[str, Any]:
        with self._get(path) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(self._base + path, headers=self._headers)
        try:
            return urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise _problem(error) from None
        except urllib.error.URLError as error:
            raise StoreError(f"no bus answers at {self._base}: {error.reason}") from error


def read_stream(read: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """The batches of an answer, each checked. `read` gives so many bytes, fewer only at the end.

    Raises Damaged for one that is not as it was written, and StoreError for what is no such answer.
    """
    head = read(8)
    schema = head + read(_size_of(head))
    try:
        segments.check_schema(schema)
    except segments.NotASegment as error:
        raise StoreError(f"the answer is no stream: {error}") from error
    while (head := read(8)) != segments.END_OF_STREAM:
        head += read(_size_of(head))
        try:
            batch = segments.decode_header(head, 0)
        except segments.NotASegment as error:
            raise StoreError(f"the answer was damaged on its way: {error}") from error
        if batch is None:
            raise StoreError("the answer ended early")
        message = head + read(batch.size - len(head))
        if len(message) < batch.size:
            raise StoreError("the answer ended early")
        if not segments.is_intact(message, batch):
            raise Damaged(batch.first, batch.next)
        yield pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(message)), segments.SCHEMA)


def trimmed(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """Without records outside [start, stop). Offsets in a batch follow one another."""
    first = batch.column(0)[0].as_py()
    low, high = max(0, start - first), min(len(batch), stop - first)
    return batch if low == 0 and high == len(batch) else batch.slice(low, max(0, high - low))


def _read_extent(extent: Extent) -> Iterator[pa.RecordBatch]:
    try:
        with extent.segment.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), extent.end, prot=mmap.PROT_READ)
    except FileNotFoundError:
        raise Gone(extent.batches[0].first, extent.batches[-1].next) from None
    whole = pa.py_buffer(mapped)  # keeps the mapping as long as a batch is in use
    for batch in extent.batches:
        message = pa.ipc.read_message(whole.slice(batch.at, batch.size))
        yield pa.ipc.read_record_batch(message, segments.SCHEMA)


def _size_of(head: bytes) -> int:
    if len(head) < 8:
        raise StoreError("the answer ended early")
    return int.from_bytes(head[4:8], "little")


def _problem(error: urllib.error.HTTPError) -> Exception:
    try:
        told = json.loads(error.read())
        text = str(told["error"])
    except (ValueError, KeyError, TypeError):
        return StoreError(f"{error.url} answered {error.code} {error.reason}; is that a bus?")
    match error.code:
        case 410:
            return GoneFromBus(text, told["first_offset"])
        case 500 if "damaged_to" in told:
            return Damaged(told["damaged_from"], told["damaged_to"])
        case 500 | 503:
            return StoreError(text)
    return UsageError(text)


class GoneFromBus(Gone):
    def __init__(self, text: str, first: int) -> None:
        StoreError.__init__(self, text)
        self.first = first
