"""A stream of bytes, cut into frames: MQTT's and TBus's are alike."""

from collections.abc import Iterator
from typing import Final

from polybus.wire.mqtt.primitives import decode_varint
from polybus.wire.varint import NextFrame

MAX_FRAME_BYTES: Final = 268_435_455 + 5
_LONGEST_HEADER: Final = 5


class FrameReader:
    """Keeps what is not complete yet. A large frame is joined once, when its last byte is there."""

    def __init__(self, next_frame: NextFrame, max_size: int = MAX_FRAME_BYTES) -> None:
        self._next_frame = next_frame
        self._max_size = max_size
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0

    def clear(self) -> None:
        self._chunks.clear()
        self._have = self._need = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """(first byte, body) of every frame that is complete now. Raises `PeerError`."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        self.clear()
        next_frame, max_size = self._next_frame, self._max_size
        pos = 0
        while (frame := next_frame(buffer, pos, max_size)) is not None:
            first_byte, start, pos = frame
            yield first_byte, buffer[start:pos]
        if pos < len(buffer):
            self._keep(buffer[pos:])

    def _keep(self, rest: bytes) -> None:
        self._chunks.append(rest)
        self._have = len(rest)
        if self._have >= _LONGEST_HEADER:
            size, start = decode_varint(rest, 1)
            self._need = start + size
