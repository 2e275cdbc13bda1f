"""Streams over HTTP: what there is, and its records as Arrow. Runs in the threads of `net.http`.

Records are sent as they are in the segment files, whole batches at a time, and never decoded here.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from polybus.broker.access import Access, Credentials, Verdict
from polybus.errors import UsageError
from polybus.net.http import Answer, FilePart, Part, Request, as_json, problem
from polybus.store.folder import StoreError
from polybus.store.streams.format import END_OF_STREAM, SCHEMA_BYTES
from polybus.store.streams.partition import Damaged, Extent, Gone, Partition
from polybus.store.streams.start import format_time, parse_time
from polybus.store.streams.stream import Stream

ARROW: Final = "application/vnd.apache.arrow.stream"
PATHS: Final = (
    "/streams",
    "/streams/{name}",
    "/streams/{name}/{partition}?from=&to=",
    "/streams/{name}/{partition}/offset?time=",
)
_LARGEST: Final = (1 << 63) - 1
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="polybus", charset="UTF-8"'}


class BadQuery(UsageError):
    """A query that cannot be answered."""


class StreamPages:
    """`answer` is called in any thread; `judge` asks for a verdict and waits for it."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        access: Callable[[], Access],
        judge: Callable[[Credentials], Verdict],
    ) -> None:
        self._streams = streams
        self._access = access
        self._judge = judge

    def answer(self, request: Request) -> Answer:
        verdict = self._judge(_credentials(request))
        if verdict.busy:
            return problem(503, verdict.reason, headers={"Retry-After": "1"})
        if not verdict.allowed:
            return problem(401, verdict.reason or "not authorized", headers=_CHALLENGE)
        match request.path:
            case ("streams",):
                seen = [s for name, s in self._streams.items() if self._may_read(verdict.user, name)]
                return _unless_known(request, as_json({"streams": [_stream_facts(s) for s in seen]}))
            case ("streams", name, *rest):
                return self._about(request, verdict, name, rest)
        return problem(404, "there is nothing here", paths=PATHS)

    def _may_read(self, user: str | None, name: str) -> bool:
        """The same rule as for its replay by MQTT."""
        authorizer = self._access().authorizer
        return authorizer is None or authorizer.may_subscribe(user, "", f"$stream/{name}/#")

    def _about(self, request: Request, verdict: Verdict, name: str, rest: list[str]) -> Answer:
        if not self._may_read(verdict.user, name):
            return problem(403, f"you may not read the stream {name!r}")
        stream = self._streams.get(name)
        if stream is None:
            return problem(404, f"there is no stream {name!r}", streams=list(self._streams))
        if not rest:
            return _unless_known(request, as_json(_details(stream)))
        number = rest[0]
        if not number.isdecimal() or int(number) >= len(stream.partitions):
            return problem(
                404, f"stream {name!r} has no partition {number!r}", partitions=len(stream.partitions)
            )
        partition = stream.partitions[int(number)]
        try:
            if rest[1:] == ["offset"]:
                _only(request, {"time"})
                return as_json({"offset": partition.offset_at(_time(request))})
            if len(rest) == 1:
                _only(request, {"from", "to"})
                return _records(request, partition)
        except BadQuery as error:
            return problem(400, str(error), first_offset=partition.first, next_offset=partition.next)
        except Gone as gone:
            return problem(410, str(gone), first_offset=gone.first, next_offset=partition.next)
        except Damaged as damaged:
            return problem(500, str(damaged), damaged_from=damaged.start, damaged_to=damaged.end)
        except StoreError as error:
            return problem(500, str(error))
        return problem(404, "there is nothing here", paths=PATHS)


def _records(request: Request, partition: Partition) -> Answer:
    next_offset = partition.next
    start = _number(request, "from", partition.first)
    stop = _number(request, "to", next_offset)
    if start > next_offset:
        raise BadQuery(f"from ({start}) was not reached yet: the next offset is {next_offset}")
    if stop < start:
        raise BadQuery(f"to ({stop}) is before from ({start})")
    extents = partition.span(start, stop) if start < stop else []
    reached = extents[-1].batches[-1].next if extents else start
    headers = (
        ("ETag", _etag(extents)),
        ("Polybus-Next-Offset", str(reached)),
        ("Cache-Control", "private, max-age=0"),
    )
    if request.headers.get("if-none-match") == headers[0][1]:
        return Answer(304, (), headers)
    try:
        parts: list[Part] = [SCHEMA_BYTES, *_file_parts(extents), END_OF_STREAM]
    except FileNotFoundError:
        raise Gone(start, partition.first) from None
    return Answer(200, parts, headers, ARROW)


def _file_parts(extents: list[Extent]) -> list[FilePart]:
    parts: list[FilePart] = []
    try:
        for extent in extents:
            for at, end in _ranges(extent):
                parts.append(FilePart(extent.segment.path.open("rb"), at, end - at))
    except OSError:
        for part in parts:
            part.file.close()
        raise
    return parts


def _ranges(extent: Extent) -> list[tuple[int, int]]:
    """Bytes of its batches; between two may be damage."""
    ranges: list[tuple[int, int]] = []
    for batch in extent.batches:
        if ranges and ranges[-1][1] == batch.at:
            ranges[-1] = (ranges[-1][0], batch.end)
        else:
            ranges.append((batch.at, batch.end))
    return ranges


def _stream_facts(stream: Stream) -> dict[str, object]:
    return {
        "name": stream.name,
        "filters": stream.rule.filters,
        "partitions": len(stream.partitions),
        "records": sum(partition.next - partition.first for partition in stream.partitions),
        "size_bytes": sum(partition.size_bytes for partition in stream.partitions),
        "writable": stream.refusal is None,
    }


def _details(stream: Stream) -> dict[str, object]:
    rule = stream.rule
    return {
        "name": stream.name,
        "id": stream.id,
        "filters": rule.filters,
        "max_age_s": rule.max_age_s,
        "max_bytes": rule.max_bytes,
        "problem": stream.refusal,
        "lost_records": stream.lost,
        "partitions": [_partition_facts(partition) for partition in stream.partitions],
    }


def _partition_facts(partition: Partition) -> dict[str, object]:
    times = partition.times()
    return {
        "partition": partition.number,
        "first_offset": partition.first,
        "next_offset": partition.next,
        "first_time": format_time(times[0]) if times else None,
        "last_time": format_time(times[1]) if times else None,
        "segments": len(partition.segments),
        "size_bytes": partition.size_bytes,
        "damaged": sum(len(segment.damages) for segment in partition.segments),
    }


def _credentials(request: Request) -> Credentials:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    user: str | None = None
    password: bytes | None = None
    if scheme:
        user, password = "", b""  # something was shown; if it cannot be read, it is wrong
        if scheme.lower() == "basic":
            try:
                name, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
                user = name.decode()
            except (binascii.Error, UnicodeDecodeError):
                pass
    return Credentials("", user, password, request.peer)


def _only(request: Request, known: set[str]) -> None:
    for name in request.query.keys() - known:
        raise BadQuery(f"unknown parameter {name!r}; known here: {', '.join(sorted(known))}")


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _LARGEST):
        raise BadQuery(f"{name} must be an offset, a whole number from 0 on, not {text[:40]!r}")
    return int(text)


def _time(request: Request) -> int:
    text = request.query.get("time")
    if text is None:
        raise BadQuery("time is missing; give ISO 8601 with a zone, or microseconds since 1970")
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    try:
        return parse_time(text.replace(" ", "+"))  # a plus that was not encoded
    except UsageError:
        raise BadQuery(f"time must be ISO 8601 with a zone or microseconds, not {text[:40]!r}") from None


def _etag(extents: list[Extent]) -> str:
    told = [(e.segment.path.name, e.at, e.end, len(e.batches)) for e in extents]
    return f'"{hashlib.blake2b(repr(told).encode(), digest_size=12).hexdigest()}"'


def _unless_known(request: Request, answer: Answer) -> Answer:
    body = b"".join(part for part in answer.parts if isinstance(part, bytes))
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    answer.headers = (*answer.headers, ("ETag", etag))
    if request.headers.get("if-none-match") == etag:
        return Answer(304, (), answer.headers)
    return answer
