"""What brokers say to each other beyond what clients may (TB-15): the second table of properties in
`docs/protocols/tbus.md` as code reads it.

`decode_between` and `encode_between` are `codec`'s, with these tables. What crosses by the million, a plain
message and one that is acknowledged, has a shorter way.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from polybus.wire.tbus.codec import decode, encode
from polybus.wire.tbus.fields import Binary, Number, Text, Texts, Wrong, decode_varint, encode_value
from polybus.wire.tbus.layouts import (
    ANY_TEXT,
    LAYOUTS,
    PACKET_ID,
    PRIORITY,
    PROPERTIES,
    Layout,
    PropertySpec,
)
from polybus.wire.tbus.messages import Tables
from polybus.wire.tbus.packets import ConnAck, Connect, MessageType, MsgAck, Packet, Publish, ReqAck, Subscribe
from polybus.wire.varint import encode_varint


class Crossing(Publish, frozen=True, gc=False, kw_only=True):
    """A PUBLISH between brokers. With a packet id and no Timeout it is tracked: acknowledged when it is safe,
    sent again until it is. With both it is an offer: acknowledged when someone got it."""

    payload_is_text: int | None = None
    content_type: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[str, ...] | None = None
    """Names and values in turn."""
    qos: int | None = None
    retain: int | None = None
    stamp: int | None = None
    expiry_s: int | None = None
    response_topic: str | None = None
    shares: tuple[str, ...] | None = None


class Interest(Subscribe, frozen=True, gc=False, kw_only=True):
    """A SUBSCRIBE between brokers: what the clients of one want of the other."""

    qos: int | None = None


class Verdict(MsgAck, frozen=True, gc=False, kw_only=True):
    """A MSGACK between brokers."""

    is_undelivered: int | None = None
    is_busy: int | None = None
    shares: tuple[str, ...] | None = None
    """Of a message that was taken: the shared subscriptions it was for that have no member there."""


class BrokerReqAck(ReqAck, frozen=True, gc=False, kw_only=True):
    is_busy: int | None = None


class BrokerConnect(Connect, frozen=True, gc=False, kw_only=True):
    packet_limit: int | None = None
    """The largest message its sender takes."""


class BrokerConnAck(ConnAck, frozen=True, gc=False, kw_only=True):
    broker_id: str | None = None
    packet_limit: int | None = None


LIVE: Final = 1
REPLAYED: Final = 2

QOS: Final = 0x47
STAMP: Final = 0x49

_FLAG: Final = Number(1)
_TOPIC: Final = Text(may_hold_null=False, shortest=1)
_CONNACK: Final = frozenset({MessageType.CONNACK})
_PUBLISH: Final = frozenset({MessageType.PUBLISH})

BETWEEN_PROPERTIES: Final[Mapping[int, PropertySpec]] = {
    0x01: PropertySpec("PayloadFormat", "payload_is_text", _FLAG, _PUBLISH),
    0x03: PropertySpec("ContentType", "content_type", ANY_TEXT, _PUBLISH),
    0x09: PropertySpec("CorrelationData", "correlation_data", Binary(), _PUBLISH),
    0x12: PropertySpec("BrokerId", "broker_id", Text(may_hold_null=False, shortest=1), _CONNACK),
    0x26: PropertySpec("UserProperties", "user_properties", Texts(each=2), _PUBLISH),
    0x27: PropertySpec("PacketLimit", "packet_limit", Number(4, lowest=1), _CONNACK | {MessageType.CONNECT}),
    QOS: PropertySpec("QoS", "qos", _FLAG, _PUBLISH | {MessageType.SUBSCRIBE}),
    0x48: PropertySpec("Retain", "retain", _FLAG, _PUBLISH),
    STAMP: PropertySpec("Stamp", "stamp", Number(8), _PUBLISH),
    0x4A: PropertySpec("Expiry", "expiry_s", Number(4), _PUBLISH),
    0x4B: PropertySpec("ResponseTopic", "response_topic", _TOPIC, _PUBLISH),
    0x4C: PropertySpec("Shares", "shares", Texts(), _PUBLISH | {MessageType.MSGACK}),
    0x4D: PropertySpec("Undelivered", "is_undelivered", _FLAG, frozenset({MessageType.MSGACK})),
    0x4E: PropertySpec("Busy", "is_busy", _FLAG, frozenset({MessageType.REQACK, MessageType.MSGACK})),
}

_BUILDS: Final[Mapping[MessageType, type[Packet]]] = {
    MessageType.CONNECT: BrokerConnect,
    MessageType.PUBLISH: Crossing,
    MessageType.SUBSCRIBE: Interest,
    MessageType.MSGACK: Verdict,
    MessageType.REQACK: BrokerReqAck,
    MessageType.CONNACK: BrokerConnAck,
}


def _between(kind: MessageType, layout: Layout) -> Layout:
    return msgspec.structs.replace(layout, build=_BUILDS.get(kind, layout.build))


BETWEEN: Final = Tables(
    {kind: _between(kind, layout) for kind, layout in LAYOUTS.items()},
    dict(sorted({**PROPERTIES, **BETWEEN_PROPERTIES}.items())),
)

_TRACKED_SIZE: Final = 14
"""Of the properties PacketId, QoS and Stamp, in this order."""
_MESSAGE: Final = MessageType.PUBLISH << 4
_MSGACK: Final = MessageType.MSGACK << 4
_SUBSCRIBE: Final = MessageType.SUBSCRIBE << 4
_CONCURRENCY: Final = 0x44
_TOPIC_NAME: Final = 0x42
_MESSAGE_ID: Final = 0x43


def encode_between(packet: Packet) -> bytes:
    """Raises UsageError."""
    return encode(packet, BETWEEN)


def encode_tracked(topic: str, payload: bytes, priority: bool, qos: int, stamp: int) -> tuple[bytes, bytes]:
    """A message that is acknowledged and has nothing else to say: what is before its packet id, and behind."""
    name = topic.encode()
    size = encode_varint(len(name))
    remaining = encode_varint(len(size) + len(name) + 1 + _TRACKED_SIZE + len(payload))
    first_byte = _MESSAGE | PRIORITY if priority else _MESSAGE
    head = b"%c%b%b%b%c%c" % (first_byte, remaining, size, name, _TRACKED_SIZE, PACKET_ID)
    return head, b"%c%c%c%b%b" % (QOS, qos, STAMP, stamp.to_bytes(8), payload)


def encode_interest(packet_id: int, topic_filter: str, concurrency: int, qos: int) -> bytes:
    """A SUBSCRIBE between brokers: at the beginning of a link there may be very many."""
    name = topic_filter.encode()
    size = encode_varint(len(name))
    remaining = encode_varint(len(size) + len(name) + 8)
    properties = b"\x05%c%b%c%c" % (_CONCURRENCY, concurrency.to_bytes(2), QOS, qos)
    return b"%c%b%b%b%b%b" % (_SUBSCRIBE, remaining, packet_id.to_bytes(2), size, name, properties)


def encode_msgack(message_id: int, topic: str) -> bytes:
    """A MSGACK that says yes."""
    name = topic.encode()
    size = encode_varint(len(name))
    properties = len(size) + len(name) + 4
    length = encode_varint(properties)
    remaining = encode_varint(len(length) + properties)
    return b"%c%b%b%c%b%b%c%b" % (
        _MSGACK, remaining, length, _TOPIC_NAME, size, name, _MESSAGE_ID, message_id.to_bytes(2),
    )  # fmt: skip


def packet_id_at(crossing: Crossing, frame: bytes) -> int:
    """Where the packet id stands in a message that was written with one."""
    behind = len(crossing.payload)
    for identifier, spec in BETWEEN.allowed[MessageType.PUBLISH].items():
        value = getattr(crossing, spec.field)
        if identifier > PACKET_ID and value is not None:
            behind += 1 + len(encode_value(spec.codec, spec.name, value))
    return len(frame) - behind - 2


def decode_between(first_byte: int, body: bytes) -> Packet:
    """What a neighbour says. Raises PeerError."""
    if first_byte & ~PRIORITY == _MESSAGE:
        tracked = _decode_tracked(first_byte, body)
        if tracked is not None:
            return tracked
    elif first_byte == _MSGACK:
        yes = _decode_msgack(body)
        if yes is not None:
            return yes
    return decode(first_byte, body, BETWEEN)


def _decode_msgack(body: bytes) -> Verdict | None:
    """None: it says more, or has a long topic."""
    size = len(body)
    if size < 8 or size > 0x80 or body[0] != size - 1 or body[1] != _TOPIC_NAME or body[2] != size - 6:
        return None
    message_id = body[-2] << 8 | body[-1]
    if body[-3] != _MESSAGE_ID or not message_id:
        return None
    try:
        topic = body[3:-3].decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in topic else Verdict(message_id, topic)


def _decode_tracked(first_byte: int, body: bytes) -> Crossing | None:
    """None: it is something else."""
    if len(body) < _TRACKED_SIZE + 3:
        return None
    size, pos = body[0], 1
    try:
        if size >= 0x80:
            size, pos = decode_varint(body, 0)
    except Wrong:
        return None
    at = pos + size
    if (
        body[at : at + 2] != b"\x0e\x40"
        or body[at + 4 : at + 5] != b"\x47"
        or body[at + 6 : at + 7] != b"\x49"
        or len(body) < at + 15
    ):
        return None
    packet_id = body[at + 2] << 8 | body[at + 3]
    try:
        topic = body[pos:at].decode()
    except UnicodeDecodeError:
        return None
    if not packet_id or not topic or "\0" in topic:
        return None
    stamp = int.from_bytes(body[at + 7 : at + 15])
    return Crossing(
        topic, body[at + 15 :], False, False, bool(first_byte & PRIORITY), None, None, packet_id,
        qos=body[at + 5], stamp=stamp,
    )  # fmt: skip
