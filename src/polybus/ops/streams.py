"""`[store]`, `[[stream]]` and `[http]`: what they may say."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.ops.tables import Reader
from polybus.store.streams.rule import NAME_PATTERN, StreamRule


class Store(msgspec.Struct, frozen=True):
    folder: Path | None = None
    """Where durable state is kept. None: nowhere, all is in memory."""
    sync: Literal["normal", "full"] = "normal"
    """What an acknowledgement survives: `normal` the end of the process, `full` that of the machine too."""


class Http(msgspec.Struct, frozen=True):
    enabled: bool = True
    """Where there is something to read: a `[[stream]]`."""
    host: str = "127.0.0.1"
    port: int = 8035


def read_streams(reader: Reader, content: Any, elsewhere: Mapping[str, str]) -> tuple[StreamRule, ...]:
    rules: list[StreamRule] = []
    for index, rule in enumerate(reader.tables("stream", content, StreamRule, elsewhere)):
        if rule is None:
            continue
        key = f"stream[{index}]"
        if not re.fullmatch(NAME_PATTERN, rule.name):
            reader.problem(
                f"{key}.name",
                f"{rule.name[:80]!r} cannot be a name; use up to 64 of A-Z a-z 0-9 _ . - and begin with"
                " a letter or digit",
            )
        if any(rule.name == other.name for other in rules):
            reader.problem(f"{key}.name", f"there is another stream {rule.name!r}; give each its own name")
        _check_filters(reader, f"{key}.filters", rule.filters)
        if rule.max_bytes and rule.max_bytes < 2 * rule.segment_bytes:
            reader.problem(
                f"{key}.max_bytes",
                f"is less than two segments ({2 * rule.segment_bytes} bytes), and only whole segments are"
                " dropped; raise it, or lower segment_bytes",
            )
        rules.append(rule)
    return tuple(rules)


def _check_filters(reader: Reader, key: str, filters: tuple[str, ...]) -> None:
    if not filters:
        reader.problem(key, 'is empty; name the topics to keep, such as ["sensors/#"]')
    for each in filters:
        try:
            if parse_filter(each, max_levels=0xFFFF).group is not None:
                raise InvalidTopic("a stream keeps every message, so $share/<name>/ has no meaning here")
        except InvalidTopic as error:
            reader.problem(key, str(error))
