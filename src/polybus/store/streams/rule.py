"""What a stream is to keep, as the configuration says it. Needs nothing of Arrow."""

from typing import Final, Literal

import msgspec

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
"""It becomes a folder, a level of a topic and a part of a URL."""


class StreamRule(msgspec.Struct, frozen=True):
    name: str
    filters: tuple[str, ...]
    partitions: int = 1
    max_age_s: float = 0.0
    """How long records are kept; 0: as long as there is room."""
    max_bytes: int = 0
    """How much of the disk all of its segments may take; 0: as much as there is."""
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 3600.0
    """After this long a segment is full, whatever its size: only full ones can be dropped. 0: never."""
    compression: Literal["none", "lz4", "zstd"] = "lz4"
