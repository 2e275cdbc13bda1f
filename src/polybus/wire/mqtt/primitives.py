"""The data representations of MQTT: integers, strings and binary data.

Decoders work on a packet that is complete: running out of bytes there is the peer's fault. Waiting for
more bytes is the business of `codec.next_frame` alone.
"""

from collections.abc import Mapping
from typing import Final

from polybus.errors import UsageError
from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import V5
from polybus.wire.mqtt.rules import Rule
from polybus.wire.varint import Fault, varint_decoder

MAX_LENGTH: Final = 0xFFFF

_FAULTS: Final[Mapping[Fault, Rule]] = {
    Fault.TOO_LONG: rules.VARINT_TOO_LONG,
    # [MQTT-1.5.5-1] binds the sender; we hold it to that, because a QoS 0 packet may be forwarded as the
    # very bytes that came in, and then the sender is us
    Fault.NOT_MINIMAL: rules.VARINT_NOT_MINIMAL,
    Fault.CUT_SHORT: rules.PACKET_CUT_SHORT,
}

decode_varint: Final = varint_decoder(lambda fault: _FAULTS[fault].broken_by_peer(V5))
"""The variable byte integer at a position of some bytes, and the position after it.

Raises PeerError if it is longer than 4 bytes, is not minimal, or does not end within the bytes."""


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
