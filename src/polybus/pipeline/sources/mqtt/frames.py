"""The spool's segment file, as functions on bytes: what is written, and what is found again.

A segment begins with `MAGIC`; frames follow. A frame is a header and one Arrow record batch (an IPC
message without its schema). The header says how many bytes of the file were on the disk for certain
when the frame was written (`synced`). That tells two kinds of bad bytes apart: what a crash left behind
was never promised to anyone and goes; what some later frame knew to be safe has been damaged since.

Checksums begin with a seed that only the spool knows, so that no payload can pass for a frame.
"""

import struct
import zlib
from typing import Final, NamedTuple

MAGIC: Final = b"PBSPOOL1"
_FRAME_MAGIC: Final = b"PBFRAME1"
_HEADER: Final = struct.Struct("<8sIIIIQQ")  # magic, checksum, size, rows, zero, first, synced
HEADER_BYTES: Final = _HEADER.size
_CHECKED: Final = 12
"""The checksum is over everything behind itself."""


class Frame(NamedTuple):
    """Where a frame's batch is in its file, and which rows it holds."""

    at: int
    size: int
    rows: int
    first: int
    synced: int

    @property
    def next(self) -> int:
        return self.first + self.rows

    @property
    def end(self) -> int:
        return self.at + HEADER_BYTES + self.size


class Scan(NamedTuple):
    frames: tuple[Frame, ...]
    end: int
    """Where the last good frame ends; what is behind it was never promised."""


class Damage(ValueError):
    """Bytes that were safe once and are not what was written; `at` says where."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"damaged at byte {at}: {reason}")
        self.at = at


def encode_frame(
    body: bytes | memoryview, *, rows: int, first: int, synced: int, seed: int
) -> list[bytes | memoryview]:
    """A frame in pieces, to be written one behind the other."""
    header = _HEADER.pack(_FRAME_MAGIC, 0, len(body), rows, 0, first, synced)[_CHECKED:]
    checksum = zlib.crc32(body, zlib.crc32(header, seed))
    return [_FRAME_MAGIC + checksum.to_bytes(4, "little") + header, body]


def decode_header(data: bytes | memoryview, at: int) -> Frame | None:
    """What the bytes at `at` say they are; None: no frame, or not all of its header."""
    if len(data) - at < HEADER_BYTES:
        return None
    magic, _, size, rows, _, first, synced = _HEADER.unpack_from(data, at)
    return Frame(at, size, rows, first, synced) if magic == _FRAME_MAGIC else None


def is_intact(data: bytes | memoryview, frame: Frame, seed: int) -> bool:
    """All of it is there, and has the checksum that it was written with."""
    if frame.end > len(data):
        return False
    checksum = int.from_bytes(data[frame.at + 8 : frame.at + _CHECKED], "little")
    return zlib.crc32(memoryview(data)[frame.at + _CHECKED : frame.end], seed) == checksum


def scan(data: bytes | memoryview, first: int, seed: int) -> Scan:
    """All good frames of a segment that begins with the row `first`. Raises Damage."""
    if bytes(data[: len(MAGIC)]) != MAGIC[: len(data)]:
        raise Damage(0, "it is not a segment of a spool")
    frames: list[Frame] = []
    at, expected = len(MAGIC), first
    while at < len(data):
        frame = decode_header(data, at)
        if frame is None or frame.first != expected or not frame.rows or not is_intact(data, frame, seed):
            _check_unpromised(data, at, seed)
            return Scan(tuple(frames), at)
        frames.append(frame)
        at, expected = frame.end, frame.next
    return Scan(tuple(frames), min(at, len(data)))


def _check_unpromised(data: bytes | memoryview, bad: int, seed: int) -> None:
    """Raises Damage if a good frame behind `bad` knew the bytes there to be safe."""
    raw = bytes(data[bad + 1 :])
    position = -1
    while (position := raw.find(_FRAME_MAGIC, position + 1)) >= 0:
        frame = decode_header(raw, position)
        if frame is not None and frame.synced > bad and is_intact(raw, frame, seed):
            raise Damage(bad, "its checksum does not match, and frames behind it are good")
