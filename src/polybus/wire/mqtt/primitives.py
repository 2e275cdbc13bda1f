"""The data representations of MQTT: integers, strings and binary data.

Decoders work on a packet that is complete: running out of bytes there is the peer's fault. Waiting for
more bytes is the business of `codec.next_frame` alone.
"""

from typing import Final

from polybus.errors import UsageError
from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import V5

MAX_VARINT: Final = 268_435_455
MAX_LENGTH: Final = 0xFFFF
_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(0x80))


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


def decode_varint(data: bytes, pos: int) -> tuple[int, int]:
    """The variable byte integer at `pos` and the position after it.

    Raises PeerError if it is longer than 4 bytes, is not minimal, or does not end within `data`.
    [MQTT-1.5.5-1] binds the sender; we hold it to that, because a QoS 0 packet may be forwarded as the
    very bytes that came in, and then the sender is us.
    """
    value = 0
    available = data[pos : pos + 4]
    for index, byte in enumerate(available):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index:
                raise rules.VARINT_NOT_MINIMAL.broken_by_peer(V5)
            return value, pos + index + 1
    broken = rules.VARINT_TOO_LONG if len(available) == 4 else rules.PACKET_CUT_SHORT
    raise broken.broken_by_peer(V5)


def encode_u16(n: int, name: str) -> bytes:
    """A two byte integer. Raises UsageError, naming the field, outside 0..65535."""
    if not 0 <= n <= 0xFFFF:
        raise UsageError(f"{name} {n} is not in 0..65535")
    return n.to_bytes(2, "big")


def decode_u16(data: bytes, pos: int, end: int, version: int = V5) -> tuple[int, int]:
    """The two byte integer at `pos` and the position after it. Raises PeerError past `end`."""
    if pos + 2 > end:
        raise rules.PACKET_CUT_SHORT.broken_by_peer(version)
    return data[pos] << 8 | data[pos + 1], pos + 2


def encode_string(text: str) -> bytes:
    """A UTF-8 encoded string with its length. Raises UsageError for what such a string cannot hold."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"string contains a surrogate: {text!r}") from error
    if len(raw) > MAX_LENGTH:
        raise UsageError(f"string of {len(raw)} bytes is longer than {MAX_LENGTH}")
    if "\0" in text:
        raise UsageError(f"string contains U+0000: {text!r}")
    return len(raw).to_bytes(2, "big") + raw


def decode_string(data: bytes, pos: int, end: int, version: int = V5) -> tuple[str, int]:
    """The UTF-8 encoded string at `pos` and the position after it.

    Raises PeerError if it is ill-formed, contains U+0000 or reaches past `end`. [MQTT-1.5.4-3] U+FEFF
    is a character like any other.
    """
    start = pos + 2
    # not by way of decode_binary: this is the one call that every PUBLISH makes
    stop = start + (data[pos] << 8 | data[pos + 1]) if start <= end else end + 1
    if stop > end:
        raise rules.PACKET_CUT_SHORT.broken_by_peer(version)
    try:
        text = data[start:stop].decode()
    except UnicodeDecodeError as error:
        raise rules.STRING_NOT_UTF8.broken_by_peer(version) from error
    if "\0" in text:
        raise rules.STRING_HAS_NULL.broken_by_peer(version)
    return text, stop


def encode_binary(raw: bytes) -> bytes:
    """Binary data with its length. Raises UsageError if it is longer than 65535 bytes."""
    if len(raw) > MAX_LENGTH:
        raise UsageError(f"binary data of {len(raw)} bytes is longer than {MAX_LENGTH}")
    return len(raw).to_bytes(2, "big") + raw


def decode_binary(data: bytes, pos: int, end: int, version: int = V5) -> tuple[bytes, int]:
    """The binary data at `pos` and the position after it. Raises PeerError if it reaches past `end`."""
    start = pos + 2
    stop = start + (data[pos] << 8 | data[pos + 1]) if start <= end else end + 1
    if stop > end:
        raise rules.PACKET_CUT_SHORT.broken_by_peer(version)
    return data[start:stop], stop
