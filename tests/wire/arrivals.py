"""The ways in which the same bytes may arrive; what is read must not depend on them."""

from collections.abc import Callable


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [bytes((byte,)) for byte in data]


def glued(data: bytes) -> list[bytes]:
    return [data + data]


Arrival = Callable[[bytes], list[bytes]]
ARRIVALS: tuple[Arrival, ...] = (whole, byte_by_byte, glued)
