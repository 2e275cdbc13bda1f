"""Integers of 7 bits a byte, and the frames whose length is one: the same in MQTT and TBus.

What is wrong is the same too, but not what it is called: each protocol makes its own `next_frame` and
`decode_varint` here by saying which error a fault is.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeAlias

from polybus.errors import UsageError

MAX_VARINT: Final = 268_435_455
_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(0x80))


class Fault(Enum):
    """What can be wrong with a varint, or with a frame before its body is there."""

    TOO_LONG = auto()
    NOT_MINIMAL = auto()
    CUT_SHORT = auto()
    TOO_LARGE = auto()


NextFrame: TypeAlias = Callable[[bytes, int, int], tuple[int, int, int] | None]
DecodeVarint: TypeAlias = Callable[[bytes, int], tuple[int, int]]


def encode_varint(n: int) -> bytes:
    """A variable byte integer, in as few bytes as it needs. Raises UsageError outside 0..268435455."""
    if 0 <= n < 0x80:
        return _ONE_BYTE[n]
    if not 0 <= n <= MAX_VARINT:
        raise UsageError(f"variable byte integer {n} is not in 0..{MAX_VARINT}")
    if n < 0x4000:
        return bytes((n & 0x7F | 0x80, n >> 7))
    if n < 0x20_0000:
        return bytes((n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14))
    return bytes((n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14 & 0x7F | 0x80, n >> 21))


def varint_decoder(error: Callable[[Fault], Exception]) -> DecodeVarint:
    """A function that gives the varint at a position, and the position after it.

    It raises what `error` says for one that is longer than 4 bytes, is not minimal, or does not end
    within the data.
    """

    def decode_varint(data: bytes, pos: int) -> tuple[int, int]:
        value = 0
        available = data[pos : pos + 4]
        for index, byte in enumerate(available):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if byte == 0 and index:
                    raise error(Fault.NOT_MINIMAL)
                return value, pos + index + 1
        raise error(Fault.TOO_LONG if len(available) == 4 else Fault.CUT_SHORT)

    return decode_varint


def frame_finder(error: Callable[[Fault, int, int, int], Exception]) -> NextFrame:
    """A function (data, position, max_size) that gives (first byte, start of the body, end) of a frame.

    It gives None for a frame that is not complete. `max_size` counts the whole frame. As soon as the
    header shows that the frame is too large, or has a length that is no varint, it raises what `error`
    says to (fault, first byte, size of the whole frame or 0, max_size).
    """

    def next_frame(data: bytes, pos: int, max_size: int) -> tuple[int, int, int] | None:
        available = len(data)
        if pos + 2 > available:
            return None
        size = data[pos + 1]
        start = pos + 2
        if size >= 0x80:
            size &= 0x7F
            shift = 7
            while True:
                if start >= available:
                    return None
                byte = data[start]
                start += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift == 28:
                    raise error(Fault.TOO_LONG, data[pos], 0, max_size)
            if byte == 0:
                raise error(Fault.NOT_MINIMAL, data[pos], 0, max_size)
        end = start + size
        if end - pos > max_size:
            raise error(Fault.TOO_LARGE, data[pos], end - pos, max_size)
        return (data[pos], start, end) if end <= available else None

    return next_frame
