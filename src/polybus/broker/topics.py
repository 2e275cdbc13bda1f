"""Topic names and topic filters: what is valid, and how a shared filter is taken apart."""

from typing import Final, NamedTuple

from polybus.errors import PolybusError

SHARE_PREFIX: Final = "$share/"
MAX_TOPIC_BYTES: Final = 65_535


class InvalidTopic(PolybusError):
    """A topic name or filter that breaks the rules; the text says which rule."""


class ParsedFilter(NamedTuple):
    """`group` is the share name of ``$share/<group>/<path>``, or None for an ordinary filter."""

    path: str
    group: str | None


def check_topic_name(topic: str, max_levels: int, max_bytes: int = MAX_TOPIC_BYTES) -> None:
    if not topic:
        raise InvalidTopic("a topic name needs at least one character")
    if "+" in topic or "#" in topic:
        raise InvalidTopic(f"a topic name must not contain the wildcards + and #: {topic[:80]!r}")
    _check_common(topic, max_levels, max_bytes)


def parse_filter(topic_filter: str, max_levels: int, max_bytes: int = MAX_TOPIC_BYTES) -> ParsedFilter:
    """Check a filter and split off its share name. Raises `InvalidTopic`."""
    if not topic_filter.startswith(SHARE_PREFIX):
        _check_filter(topic_filter, max_levels, max_bytes)
        return ParsedFilter(topic_filter, None)
    group, separator, path = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not group or not separator:
        raise InvalidTopic(f"a shared filter reads $share/<name>/<filter>: {topic_filter[:80]!r}")
    if "+" in group or "#" in group:
        raise InvalidTopic(f"a share name must not contain wildcards: {group[:80]!r}")
    _check_filter(path, max_levels, max_bytes)
    return ParsedFilter(path, group)


def matches(path: str, topic: str) -> bool:
    """One filter, one name. For many filters or many names there is `TopicTree`."""
    wanted = path.split("/")
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for depth, each in enumerate(wanted):
        if each == "#":
            return True
        if depth >= len(levels) or each not in ("+", levels[depth]):
            return False
    return len(levels) == len(wanted)


def _check_filter(path: str, max_levels: int, max_bytes: int) -> None:
    if not path:
        raise InvalidTopic("a topic filter needs at least one character")
    _check_common(path, max_levels, max_bytes)
    hash_at = path.find("#")
    if hash_at != -1 and (hash_at != len(path) - 1 or (hash_at and path[hash_at - 1] != "/")):
        raise InvalidTopic(f"# must be the last level, by itself: {path[:80]!r}")
    if "+" in path and any("+" in level and level != "+" for level in path.split("/")):
        raise InvalidTopic(f"+ must fill a whole level: {path[:80]!r}")


def _check_common(topic: str, max_levels: int, max_bytes: int) -> None:
    if "\0" in topic:
        raise InvalidTopic("a topic must not contain U+0000")
    if topic.count("/") >= max_levels:
        raise InvalidTopic(f"a topic may have at most {max_levels} levels")
    if len(topic) > max_bytes or len(topic.encode()) > max_bytes:
        raise InvalidTopic(f"a topic may have at most {max_bytes} bytes")
