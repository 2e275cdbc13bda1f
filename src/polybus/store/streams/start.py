"""What a subscription to `$stream/<name>/<start>/<filter>` asks for. Pure."""

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from polybus.errors import UsageError

PREFIX: Final = "$stream/"
HOW: Final = (
    "a stream is replayed by $stream/<name>/<start>/<filter>, and <start> is first, next, a time such as"
    " 2030-01-31T12:00:00Z, an offset, or <partition>:<offset>,… for each partition"
)

Where: TypeAlias = str | int
"""An offset, `first` or `next`."""


class Start(NamedTuple):
    """Where each partition begins. Partitions that are not named do not take part."""

    everywhere: Where | None = None
    time: int | None = None
    """Microseconds since 1970."""
    partitions: tuple[tuple[int, Where], ...] = ()


class Asked(NamedTuple):
    name: str
    start: Start
    prefix: str
    """Of the topics that records are delivered under."""
    filter: str


def parse_subscription(topic_filter: str) -> Asked:
    """Raises UsageError."""
    levels = topic_filter.split("/", 3)
    if len(levels) < 4 or levels[0] + "/" != PREFIX:
        raise UsageError(f"{topic_filter[:80]!r}: {HOW}")
    _, name, start, rest = levels
    return Asked(name, parse_start(start), f"{PREFIX}{name}/{start}/", rest)


def parse_start(text: str) -> Start:
    """Raises UsageError."""
    if text in ("first", "next"):
        return Start(everywhere=text)
    if re.fullmatch(r"\d{1,18}", text):
        return Start(everywhere=int(text))
    if re.fullmatch(r"\d+:(\d{1,18}|first|next)(,\d+:(\d{1,18}|first|next))*", text):
        pairs = [part.split(":") for part in text.split(",")]
        chosen = tuple((int(a), b if b in ("first", "next") else int(b)) for a, b in pairs)
        if len(dict(chosen)) < len(chosen):
            raise UsageError(f"{text!r} names a partition twice")
        return Start(partitions=chosen)
    return Start(time=parse_time(text))


def parse_time(text: str) -> int:
    """A time with its zone as ISO 8601 writes it, in microseconds since 1970. Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text[:80]!r} is no start; {HOW}") from None
    if found.tzinfo is None:
        raise UsageError(f"{text!r} has no time zone; write UTC as {text}Z")
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def format_time(time: int) -> str:
    """As ISO 8601, in UTC, to the microsecond."""
    seconds, rest = divmod(time, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06}Z"
