"""Reading messages from a stream that arrives in pieces, as a session would."""

from collections.abc import Iterable

from polybus.wire.tbus.codec import decode, next_frame
from polybus.wire.tbus.packets import Packet


def read(chunks: Iterable[bytes], max_size: int = 65_536) -> list[Packet]:
    """The messages in a stream. What is left over at the end is not complete."""
    packets = []
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        pos = 0
        while (frame := next_frame(buffer, pos, max_size)) is not None:
            first_byte, start, pos = frame
            packets.append(decode(first_byte, buffer[start:pos]))
        buffer = buffer[pos:]
    return packets


def parts(data: bytes) -> tuple[int, bytes]:
    """First byte and body of the one message that these bytes are."""
    frame = next_frame(data, 0, len(data))
    assert frame is not None
    first_byte, start, end = frame
    assert end == len(data)
    return first_byte, data[start:end]
