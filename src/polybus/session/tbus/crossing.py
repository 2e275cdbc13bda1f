"""Messages as they cross from broker to broker, with all that MQTT says of them and TBus does not (TB-15)."""

import math
from functools import lru_cache
from typing import Final, TypedDict

from polybus.broker.links import Encoding
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Delivery, Message, MessageProperties, Run
from polybus.session.tbus.encoding import TBUS
from polybus.wire.tbus.codec import encode_publish
from polybus.wire.tbus.crossing import (
    LIVE,
    REPLAYED,
    Crossing,
    encode_between,
    encode_tracked,
    packet_id_at,
)
from polybus.wire.tbus.packets import Publish

_PLACE: Final = 0xFFFF
"""A packet id that is written to be cut out again."""
MAX_EXPIRY_S: Final = 0xFFFF_FFFF


class Said(TypedDict, total=False):
    """What a publisher says about a payload, as a `Crossing` has it."""

    payload_is_text: int | None
    content_type: str | None
    correlation_data: bytes | None
    user_properties: tuple[str, ...] | None
    response_topic: str | None


class NeighborEncoding:
    """Shared by all links whose other end takes messages of the same size."""

    shared = True
    name = ""

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        message = delivery.message
        is_plain = (
            message.properties is NO_MESSAGE_PROPERTIES
            and message.expires_at is None
            and not message.retain
            and not delivery.shares
        )
        if not is_plain:
            parts = cut(crossing_of(delivery, now), is_tracked=bool(delivery.qos))
        elif delivery.qos:
            parts = encode_tracked(message.topic, message.payload, message.priority, message.qos, message.stamp)
        elif message.qos:
            parts = cut(crossing_of(delivery, now), is_tracked=False)
        else:
            parts = encode_publish(message.topic, message.payload, message.priority)
        return parts if len(parts[0]) + len(parts[1]) + 2 <= self.max_size else None

    def split(self, run: Run) -> list[Message]:
        return TBUS.split(run)


@lru_cache(maxsize=64)
def neighbor_encoding(max_size: int) -> NeighborEncoding:
    return NeighborEncoding(max_size)


def size_of(encoding: Encoding) -> int:
    assert isinstance(encoding, NeighborEncoding)
    return encoding.max_size


def crossing_of(delivery: Delivery, now: float, *, is_offer: bool = False) -> Crossing:
    message = delivery.message
    left_s = None
    if message.expires_at is not None:
        left_s = min(max(1, math.ceil(message.expires_at - now)), MAX_EXPIRY_S)
    retain = None
    if message.retain:
        retain = REPLAYED if delivery.retain else LIVE
    return Crossing(
        message.topic,
        message.payload,
        is_priority=message.priority,
        timeout_s=left_s if is_offer else None,
        packet_id=_PLACE if delivery.qos else None,
        qos=message.qos or None,
        retain=retain,
        stamp=message.stamp or None,
        expiry_s=None if is_offer else left_s,
        shares=delivery.shares or None,
        **properties_of(message.properties),
    )


def cut(crossing: Crossing, *, is_tracked: bool) -> tuple[bytes, bytes]:
    """The bytes before and after the packet id."""
    frame = encode_between(crossing)
    if not is_tracked:
        return frame, b""
    at = packet_id_at(crossing, frame)
    return frame[:at], frame[at + 2 :]


def offer_parts(encoding: Encoding, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
    parts = cut(crossing_of(delivery, now, is_offer=True), is_tracked=True)
    return parts if len(parts[0]) + len(parts[1]) + 2 <= size_of(encoding) else None


def properties_of(said: MessageProperties) -> Said:
    if said is NO_MESSAGE_PROPERTIES:
        return {}
    pairs = tuple(text for pair in said.user_properties for text in pair)
    return Said(
        payload_is_text=None if said.payload_is_text is None else int(said.payload_is_text),
        content_type=said.content_type,
        correlation_data=said.correlation_data,
        user_properties=pairs or None,
        response_topic=said.response_topic,
    )


def message_of(packet: Publish, origin: str, now: float) -> Message:
    """A neighbour's message; of an answer, which has no topic, what is said about its payload."""
    message = Message(packet.topic or "", packet.payload, priority=packet.is_priority, origin=origin)
    if packet.timeout_s:
        message.expires_at = now + packet.timeout_s
    if not isinstance(packet, Crossing):
        return message
    message.qos = min(packet.qos or 0, 2)
    message.retain = packet.retain is not None
    message.stamp = packet.stamp or 0
    if packet.expiry_s is not None:
        message.expires_at = now + packet.expiry_s
    is_text, pairs = packet.payload_is_text, packet.user_properties or ()
    said = (packet.content_type, packet.response_topic, packet.correlation_data)
    if is_text is not None or pairs or any(text is not None for text in said):
        message.properties = MessageProperties(
            None if is_text is None else bool(is_text),
            *said,
            tuple(zip(pairs[::2], pairs[1::2], strict=True)),
        )
    return message
