"""LZ4, as far as it pays to know it: frames of blocks that are packed at different times, and blocks of values
that repeat, which can be written down without looking for them.

A block is a row of sequences: a byte with two lengths, bytes as they are, and from how far back how many bytes
are to be copied, which may overlap with what they become. The last five bytes of a block are as they are, and
the last copy begins at least twelve before its end.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

Bytes: TypeAlias = bytes | memoryview

_FRAME_HEAD: Final = b"\x04\x22\x4d\x18\x60\x70\x73"
"""Blocks that do not refer to each other, of at most four megabytes; no checksums, for a batch has its own."""
_FRAME_END: Final = bytes(4)
_SIZE: Final = struct.Struct("<I")
_AS_IT_IS: Final = 1 << 31
MOST_BYTES: Final = 4 * 1024 * 1024
"""In a block."""
_WORTH_IT: Final = 64
_LEAST_COPY: Final = 4
_LAST: Final = 5
_FAR: Final = 12
_codec: Final = pa.Codec("lz4_raw")


class Block(NamedTuple):
    size: int
    """Of what it was made of."""
    data: Bytes
    is_packed: bool


def pack(data: Bytes) -> Block:
    """Of at most `MOST_BYTES`."""
    packed = memoryview(_codec.compress(data)).cast("B")
    return Block(len(data), packed, True) if len(packed) < len(data) else Block(len(data), data, False)


def pack_all(data: Bytes) -> Iterator[Block]:
    """The same of any size."""
    whole = memoryview(data)
    return (pack(whole[at : at + MOST_BYTES]) for at in range(0, len(whole), MOST_BYTES))


def frame(blocks: Iterable[Block]) -> list[Bytes]:
    parts: list[Bytes] = [_FRAME_HEAD]
    for block in blocks:
        parts += (_SIZE.pack(len(block.data) | (0 if block.is_packed else _AS_IT_IS)), block.data)
    parts.append(_FRAME_END)
    return parts


def repeated(values: Sequence[bytes], counts: Sequence[int]) -> Block | None:
    """A block of values, each so often one behind the other; None: that is better looked for."""
    width = len(values[0])
    size = sum(counts) * width
    if not _WORTH_IT <= size <= MOST_BYTES or width >= 1 << 16:
        return None
    if (counts[-1] - 1) * width < _FAR or min(counts) < 2:
        return None
    packed = bytearray()
    for value, count in zip(values[:-1], counts[:-1], strict=True):
        if len(value) != width or (count - 1) * width < _LEAST_COPY:
            return None
        _sequence(packed, value, (count - 1) * width)
    last = values[-1]
    if len(last) != width:
        return None
    _sequence(packed, last, (counts[-1] - 1) * width - _LAST)
    packed.append(_LAST << 4)
    packed += (last * _LAST)[-_LAST:]
    return Block(size, bytes(packed), True)


def _sequence(packed: bytearray, literals: bytes, copied: int) -> None:
    """Bytes as they are, and these again and again."""
    width, more = len(literals), copied - _LEAST_COPY
    packed.append(min(width, 15) << 4 | min(more, 15))
    _length(packed, width)
    packed += literals
    packed += width.to_bytes(2, "little")
    _length(packed, more)


def _length(packed: bytearray, length: int) -> None:
    """What of it is not in the first byte."""
    if length >= 15:
        full, rest = divmod(length - 15, 255)
        packed += b"\xff" * full
        packed.append(rest)
