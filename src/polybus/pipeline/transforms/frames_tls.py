"""TLS records: how long they are and of which kind; what is inside stays hidden."""

import struct
from collections.abc import Sequence
from typing import Final

from polybus.pipeline.transforms.frames_types import Frame, Unreadable

TYPES: Final = {20: "ChangeCipherSpec", 21: "Alert", 22: "Handshake", 23: "ApplicationData", 24: "Heartbeat"}
_HEADER_BYTES: Final = 5
_LARGEST: Final = (1 << 14) + 2048


class TlsDecoder:
    protocol = "tls"

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        if data[pos] not in TYPES:
            raise Unreadable(f"there is no TLS record type {data[pos]}")
        if pos + _HEADER_BYTES > len(data):
            return None
        major, _, size = struct.unpack_from(">BBH", data, pos + 1)
        if major != 3 or size > _LARGEST:
            raise Unreadable(f"a TLS record of version {major} with {size} bytes")
        return int(size) + _HEADER_BYTES

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        return True

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """A record says by itself how to read it."""

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        return [Frame(TYPES[data[0]], len(data))]
