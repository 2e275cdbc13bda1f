"""What every protocol's decoder gives and is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Unreadable(Exception):
    """Bytes that are not what the protocol allows. The text says why."""


@dataclass(frozen=True)
class Frame:
    """One message of a protocol, as far as a table of traffic wants to know it."""

    type: str
    size: int
    payload_bytes: int = 0
    """Of the application: what is published, without anything the protocol adds."""
    topic: str | None = None
    packet_id: int | None = None
    is_repeat: bool = False
    """The sender says that it sends this again, and the first is in the capture and not acknowledged."""


class Decoder(Protocol):
    """Reads one conversation. `to_server` says which side speaks.

    `measure` and `is_plausible` look at bytes only; `read` is called in the order of time and may remember,
    for an acknowledgement is about what the other side sent before.
    """

    protocol: str

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        """The size of the frame at `pos`, or None if more must be there to know. Raises Unreadable."""

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        """Whether this can be a frame, for finding one's way back into a stream."""

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """Is shown all frames before the first is read, for what only the whole can tell."""

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        """The frame, and those within it; their sizes add up to that of `data`. Raises Unreadable."""
