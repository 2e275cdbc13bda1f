"""Reading packets from a stream that arrives in pieces, as a session would."""

from collections.abc import Iterable

from polybus.wire.mqtt.codec import decode, next_frame
from polybus.wire.mqtt.packets import Packet


def read(chunks: Iterable[bytes], version: int, max_size: int = 65_536) -> list[Packet]:
    """The packets in a stream. What is left over at the end is not complete."""
    packets = []
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        pos = 0
        while (frame := next_frame(buffer, pos, max_size)) is not None:
            first_byte, start, pos = frame
            packets.append(decode(first_byte, buffer[start:pos], version))
        buffer = buffer[pos:]
    return packets
