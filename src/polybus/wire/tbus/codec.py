"""TBus: bytes to messages and back.

A stream is cut with `next_frame`, each frame becomes a message with `decode`, and the inside of a BULK
is cut with `frames`; `encode` goes the other way. Nothing here keeps state: the caller holds the buffer
and the position.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from polybus.errors import PeerError, UsageError
from polybus.wire.tbus.fields import REPRESENTATION, VARINT_FAULTS, Wrong
from polybus.wire.tbus.layouts import LAYOUTS
from polybus.wire.tbus.messages import CLIENTS, Tables, decode_message, encode_message
from polybus.wire.tbus.packets import Bulk, ConnectReason, DisconnectReason, MessageType, Packet
from polybus.wire.tbus.publish import decode_publish, encode_answer, encode_publish, encode_request
from polybus.wire.varint import MAX_VARINT, Fault, encode_varint, frame_finder

__all__ = [
    "decode",
    "encode",
    "encode_answer",
    "encode_bulk_header",
    "encode_publish",
    "encode_request",
    "frames",
    "next_frame",
]

_PUBLISH: Final = MessageType.PUBLISH
_TYPES: Final[Mapping[int, MessageType]] = {int(kind): kind for kind in MessageType}
_TYPES_RULE: Final = "TB-02"
_NOT_IN_A_BULK: Final = frozenset({MessageType.BULK, MessageType.CONNECT})
_BULK_RULE: Final = LAYOUTS[MessageType.BULK].rule
_ANY_SIZE: Final = MAX_VARINT + 5


def _refuse(fault: Fault, first_byte: int, size: int, max_size: int) -> PeerError:
    if fault is Fault.TOO_LARGE:
        text = f"a message of {size} bytes is larger than {max_size}, the largest that is taken"
    else:
        text = f"the remaining length is {VARINT_FAULTS[fault]}"
    return PeerError(_reason(first_byte >> 4), text, REPRESENTATION)


next_frame: Final = frame_finder(_refuse)
"""(first byte, start of the body, end) of the message at a position, or None if it is not complete.

The arguments are the bytes, the position and `max_size`, which counts the whole message. Raises
PeerError as soon as the header shows that the message is too large, or has a remaining length that is
no varint."""


def decode(first_byte: int, body: bytes, tables: Tables = CLIENTS) -> Packet:
    """The message that a frame holds, from either side.

    Raises PeerError for everything that is wrong with a message by itself: with `ConnectReason.MALFORMED`
    for a CONNECT, with `DisconnectReason.UNSPECIFIED` for all others. Of a BULK nothing but its header is
    looked at here.
    """
    kind = first_byte >> 4
    if kind == _PUBLISH and (publish := decode_publish(first_byte & 0x0F, body)) is not None:
        return publish
    message_type = _TYPES.get(kind)
    if message_type is None:
        raise PeerError(_reason(kind), f"message type {kind} is not used: 1 to 6 and 8 to 14 are", _TYPES_RULE)
    try:
        return decode_message(message_type, first_byte & 0x0F, body, tables)
    except Wrong as wrong:
        text = f"{message_type.name}: {wrong.text}"
        raise PeerError(_reason(kind), text, wrong.rule or LAYOUTS[message_type].rule) from wrong


def encode(packet: Packet, tables: Tables = CLIENTS) -> bytes:
    """The bytes of a message.

    Raises UsageError for what cannot be written and for what `decode` or `frames` would refuse.
    """
    try:
        first_byte, body = encode_message(packet, tables)
        if isinstance(packet, Bulk):
            for _ in frames(body):
                pass
    except Wrong as wrong:
        kind = tables.types[type(packet)]
        rule = wrong.rule or LAYOUTS[kind].rule
        raise UsageError(f"{kind.name}: {wrong.text} [{rule}]") from wrong
    except PeerError as error:
        raise UsageError(str(error)) from error
    return bytes((first_byte,)) + encode_varint(len(body)) + body


def frames(body: bytes) -> Iterator[tuple[int, int, int]]:
    """(first byte, start of the body, end) of each message inside a BULK, one behind the other.

    Raises PeerError when it comes to something that a BULK may not hold; the messages before it have
    been given by then, and they count.
    """
    pos, end = 0, len(body)
    if not end:
        raise _bad_bulk("there are no messages")
    while pos < end:
        kind = body[pos] >> 4
        if kind in _NOT_IN_A_BULK:
            raise _bad_bulk(f"{MessageType(kind).name} is not allowed inside")
        frame = next_frame(body, pos, _ANY_SIZE)
        if frame is None:
            raise _bad_bulk(f"what begins at byte {pos} of {end} is not a whole message")
        yield frame
        pos = frame[2]


def encode_bulk_header(size: int) -> bytes:
    """What comes before the messages of a BULK, which are `size` bytes together."""
    return bytes((MessageType.BULK << 4,)) + encode_varint(size)


def _bad_bulk(text: str) -> PeerError:
    return PeerError(DisconnectReason.UNSPECIFIED, f"BULK: {text}", _BULK_RULE)


def _reason(kind: int) -> int:
    return ConnectReason.MALFORMED if kind == MessageType.CONNECT else DisconnectReason.UNSPECIFIED
