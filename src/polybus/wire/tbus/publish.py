"""PUBLISH by the shortest way, in both directions."""

from typing import Final

from polybus.errors import UsageError
from polybus.wire.tbus.fields import Wrong, decode_varint
from polybus.wire.tbus.layouts import PACKET_ID, PRIORITY, REQUEST, RESPONSE, RESPONSE_DESTINATION, TIMEOUT
from polybus.wire.tbus.packets import MessageType, Publish
from polybus.wire.varint import encode_varint

_MESSAGE: Final = MessageType.PUBLISH << 4
_REQUEST: Final = _MESSAGE | REQUEST
_ANSWER: Final = _MESSAGE | RESPONSE
_PRIORITY_MESSAGE: Final = _MESSAGE | PRIORITY
_PRIORITY_REQUEST: Final = _REQUEST | PRIORITY
_PRIORITY_ANSWER: Final = _ANSWER | PRIORITY


def decode_publish(flags: int, body: bytes) -> Publish | None:
    """What a lawful PUBLISH holds. None for what `messages` has to look at, and to find words for."""
    is_response = bool(flags & RESPONSE)
    is_request = bool(flags & REQUEST)
    if flags > 0b0111 or (is_request and is_response):
        return None
    pos = 0
    end = len(body)
    topic = None
    try:
        if not is_response:
            size = body[0]
            pos = 1
            if size >= 0x80:
                size, pos = decode_varint(body, 0)
            start = pos
            pos += size
            topic = body[start:pos].decode()
            if not topic or "\0" in topic:
                return None
        stop = body[pos]
        pos += 1
        if stop == 0:
            if is_request or is_response:
                return None
            return Publish(topic, body[pos:], False, False, bool(flags & PRIORITY))
        if stop >= 0x80:
            stop, pos = decode_varint(body, pos - 1)
        stop += pos
        if stop > end:
            return None
        timeout_s = response_destination = packet_id = None
        while pos < stop:
            identifier = body[pos]
            if identifier == PACKET_ID and packet_id is None:
                packet_id = body[pos + 1] << 8 | body[pos + 2]
                pos += 3
                if packet_id == 0:
                    return None
            elif identifier == RESPONSE_DESTINATION and response_destination is None:
                size = body[pos + 1]
                start = pos + 2
                if size >= 0x80:
                    size, start = decode_varint(body, pos + 1)
                pos = start + size
                response_destination = body[start:pos].decode()
                if "\0" in response_destination:
                    return None
            elif identifier == TIMEOUT and timeout_s is None:
                timeout_s = int.from_bytes(body[pos + 1 : pos + 5], "big")
                pos += 5
            else:
                return None
    except (IndexError, UnicodeDecodeError, Wrong):
        return None
    # a value that reached past the properties was not theirs
    if (
        pos != stop
        or ((is_request or is_response) and packet_id is None)
        or (is_response and response_destination is None)
    ):
        return None
    return Publish(
        topic,
        body[pos:],
        is_request,
        is_response,
        bool(flags & PRIORITY),
        timeout_s,
        response_destination,
        packet_id,
    )


def encode_publish(topic: str, payload: bytes, priority: bool) -> tuple[bytes, bytes]:
    """A message without properties: what comes before the payload, and the payload.

    This and the next two are for callers that write a message many times or write many; whether a message
    may hold what they are given is not checked.
    """
    name = _utf8(topic)
    size = len(name)
    first_byte = _PRIORITY_MESSAGE if priority else _MESSAGE
    remaining = size + len(payload) + 2
    if remaining < 0x80:
        return b"%c%c%c%b\0" % (first_byte, remaining, size, name), payload
    length = encode_varint(size)
    remaining += len(length) - 1
    return b"%c%b%b%b\0" % (first_byte, encode_varint(remaining), length, name), payload


def encode_request(
    topic: str,
    payload: bytes,
    priority: bool,
    timeout_s: int | None,
    response_destination: str | None,
    packet_id: int,
) -> tuple[bytes, bytes]:
    """A request: what comes before the payload, and the payload."""
    name = _utf8(topic)
    properties = b"%c%b" % (PACKET_ID, packet_id.to_bytes(2, "big"))
    if response_destination is not None:
        destination = _utf8(response_destination)
        length = encode_varint(len(destination))
        properties = b"%c%b%b%b" % (RESPONSE_DESTINATION, length, destination, properties)
    if timeout_s is not None:
        properties = b"%c%b%b" % (TIMEOUT, timeout_s.to_bytes(4, "big"), properties)
    rest = b"%b%b%b%b" % (encode_varint(len(name)), name, encode_varint(len(properties)), properties)
    first_byte = _PRIORITY_REQUEST if priority else _REQUEST
    return b"%c%b%b" % (first_byte, encode_varint(len(rest) + len(payload)), rest), payload


def encode_answer(
    payload: bytes, priority: bool, response_destination: str, packet_id: int
) -> tuple[bytes, bytes]:
    """An answer: what comes before the payload, and the payload."""
    destination = _utf8(response_destination)
    properties = b"%c%b%b%c%b" % (
        RESPONSE_DESTINATION,
        encode_varint(len(destination)),
        destination,
        PACKET_ID,
        packet_id.to_bytes(2, "big"),
    )
    length = encode_varint(len(properties))
    first_byte = _PRIORITY_ANSWER if priority else _ANSWER
    remaining = encode_varint(len(length) + len(properties) + len(payload))
    return b"%c%b%b%b" % (first_byte, remaining, length, properties), payload


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"string contains a surrogate: {text!r}") from error
