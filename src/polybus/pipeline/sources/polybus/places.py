"""Where a stream is read: at a broker by HTTP, or in its data folder. Runs on the driver and on executors."""

import base64
import http.client
import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from polybus.errors import PolybusError, UsageError
from polybus.pipeline.sources.polybus.offsets import Facts, Held
from polybus.pipeline.sources.polybus.options import PolybusOptions
from polybus.store.folder import StoreError
from polybus.store.streams.partition import (
    Damaged,
    Gone,
    find_span,
    find_time,
    load_segments,
    numbered_folders,
)
from polybus.store.streams.reader import read_stream, trimmed
from polybus.store.streams.segment import Segment, read_batch
from polybus.store.streams.stream import known_id

logger = logging.getLogger("polybus.pipeline.streams")

RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 60.0


class StreamRefused(UsageError):
    """The broker will not give what was asked for: no such stream, no right to read it."""


class Unreachable(PolybusError):
    """The broker could not be reached, or broke off, for as long as `retryTimeout`."""


class _Passing(Exception):
    """Something that may be over in a moment."""


_PASSING: Final = (OSError, http.client.HTTPException, StoreError, _Passing)


class Place(Protocol):
    def facts(self) -> Facts:
        """What there is now."""

    def offset_at(self, partition: int, time_us: int) -> int:
        """Of the first record that came then or later; the next one to come if there is none."""

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """All records there are of this range, once each, in order. Raises Gone, Damaged."""


@contextmanager
def open_place(options: PolybusOptions) -> Iterator[Place]:
    if options.folder is not None:
        yield FolderPlace(options.folder, options.stream)
    else:
        with closing(HttpPlace(options)) as place:
            yield place


class HttpPlace:
    """Raises StreamRefused, Unreachable."""

    def __init__(self, options: PolybusOptions) -> None:
        assert options.url is not None
        parts = urlsplit(options.url)
        self.name = f"{options.url}/streams/{options.stream}"
        self.retry_timeout_s = options.retry_timeout_s
        self._path = f"{parts.path}/streams/{options.stream}"
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=REQUEST_TIMEOUT_S)
        self._headers: dict[str, str] = {}
        if options.user is not None:
            login = f"{options.user}:{options.password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"

    def close(self) -> None:
        self._connection.close()

    def facts(self) -> Facts:
        told = self._json("")
        held = {
            each["partition"]: Held(each["first_offset"], each["next_offset"]) for each in told["partitions"]
        }
        return Facts(held, str(told.get("id", "")))

    def offset_at(self, partition: int, time_us: int) -> int:
        return int(self._json(f"/{partition}/offset?{urlencode({'time': max(time_us, 0)})}")["offset"])

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Goes on where it was when the connection breaks, so nothing comes twice."""
        at = start
        retries = _Retries(self)
        while at < end:
            before = at
            try:
                response = self._get(f"/{partition}?{urlencode({'from': at, 'to': end})}")
                for batch in read_stream(response.read):
                    retries.succeeded()
                    wanted = trimmed(batch, at, end)
                    at = max(at, batch.column(0)[-1].as_py() + 1)
                    yield wanted
            except (Gone, Damaged):
                self._connection.close()
                raise
            except _PASSING as error:
                self._connection.close()
                retries.failed(error)
            else:
                response.read()  # to the end, so that the connection can be used again
                if at == before:
                    return  # no records in what is left: offsets that were never used

    def _json(self, path: str) -> dict[str, Any]:
        retries = _Retries(self)
        while True:
            try:
                found = json.loads(self._get(path).read())
            except (*_PASSING, ValueError) as error:
                self._connection.close()
                retries.failed(error)
            else:
                assert isinstance(found, dict)
                return found

    def _get(self, path: str) -> http.client.HTTPResponse:
        """Raises what `_problem` finds, or one of `_PASSING`."""
        self._connection.request("GET", self._path + path, headers=self._headers)
        response = self._connection.getresponse()
        if response.status != http.client.OK:
            raise self._problem(response.status, response.read())
        return response

    def _problem(self, status: int, body: bytes) -> Exception:
        try:
            facts = json.loads(body)
            text = str(facts["error"])
        except (ValueError, KeyError, TypeError):
            facts, text = {}, f"HTTP status {status}"
        if status == http.client.GONE and "first_offset" in facts:
            return Gone(-1, int(facts["first_offset"]))
        if "damaged_from" in facts:
            return Damaged(int(facts["damaged_from"]), int(facts["damaged_to"]))
        if status == http.client.UNAUTHORIZED:
            return StreamRefused(f"{self.name}: {text}; give the options user and password")
        if status < http.client.INTERNAL_SERVER_ERROR:
            return StreamRefused(f"{self.name}: {text}")
        return _Passing(text)


class _Retries:
    """A broker that is started again is back in a moment."""

    def __init__(self, place: HttpPlace) -> None:
        self._place = place
        self._began: float | None = None
        self._delay_s = RETRY_FIRST_S

    def succeeded(self) -> None:
        self._began, self._delay_s = None, RETRY_FIRST_S

    def failed(self, error: Exception) -> None:
        """Returns when it is time to try again. Raises Unreachable."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
            logger.warning("%s: %s; trying again", self._place.name, error)
        if now - self._began >= self._place.retry_timeout_s:
            raise Unreachable(
                f"{self._place.name} cannot be read: {error}; tried for {self._place.retry_timeout_s:g} s"
            ) from error
        time.sleep(self._delay_s)
        self._delay_s = min(self._delay_s * 2, RETRY_MOST_S)


class FolderPlace:
    """Raises StoreError."""

    def __init__(self, folder: Path, stream: str) -> None:
        self._folder = folder / "streams" / stream

    def facts(self) -> Facts:
        try:
            found = numbered_folders(self._folder)
        except OSError as error:
            known = sorted(path.name for path in self._folder.parent.glob("*/") if path.is_dir())
            told = f"there are {', '.join(known)}" if known else "there is none"
            raise StoreError(f"there is no stream in {self._folder}: {error.strerror}; {told}") from error
        rows = {int(path.name): load_segments(path) for path in found}
        held = {number: Held(row[0].first, row[-1].next) for number, row in rows.items() if row}
        return Facts(held, known_id(self._folder) or "")

    def offset_at(self, partition: int, time_us: int) -> int:
        row = self._segments(partition)
        return find_time(row, time_us, row[-1].next)

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        at = start
        while at < end:
            before = at
            for extent in find_span(self._segments(partition), at, end):
                for each in extent.batches:
                    try:
                        batch = read_batch(extent.segment.path, each)
                    except FileNotFoundError:
                        raise Gone(at, self._segments(partition)[0].first) from None
                    wanted = trimmed(batch, at, end)
                    at = max(at, each.next)
                    yield wanted
            if at == before:
                return

    def _segments(self, partition: int) -> list[Segment]:
        row = load_segments(self._folder / str(partition))
        if not row:
            raise StoreError(f"there are no segments in {self._folder / str(partition)}")
        return row
