"""How MQTT writes a delivery, and takes a run of publishes apart.

`MQTT_311` and `MQTT_5` are shared by every link that has nothing of its own to say. A 5.0 client that
allows topic aliases or limits the packet size gets a `PrivateEncoding`.
"""

from typing import Final, Protocol

from polybus.broker.message import NO_MESSAGE_PROPERTIES, Delivery, Message, MessageProperties, Run
from polybus.wire.mqtt.codec import encode_publish_head, next_frame
from polybus.wire.mqtt.packets import V5, PacketType, Properties
from polybus.wire.mqtt.properties import encode_properties

DUP: Final = 0x08
_NO_PROPERTIES: Final = b"\0"
_ANY_SIZE: Final = 1 << 30


class Mqtt311Encoding:
    """3.1 and 3.1.1: nothing but topic and payload."""

    shared = True
    name = "mqtt-3.1.1"

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        message = delivery.message
        payload = message.payload
        qos = delivery.qos
        first_byte = 0x30 | qos << 1 | delivery.retain
        rest_size = len(payload) + 2 if qos else len(payload)
        return encode_publish_head(message.topic, first_byte, rest_size), payload

    def split(self, run: Run) -> list[Message]:
        return _split(run, extra=0)


class Mqtt5Encoding:
    """5.0 with the properties of the message and of the subscription."""

    shared = True
    name = "mqtt-5.0"

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        tail = _encode_properties(delivery, now) + delivery.message.payload
        return _head(delivery, delivery.message.topic, tail), tail

    def split(self, run: Run) -> list[Message]:
        return _split(run, extra=1)  # a run has no properties: one zero byte before the payload


class Congestible(Protocol):
    blocked: bool


class PrivateEncoding:
    """5.0 for one link: topic aliases towards the client, and its maximum packet size.

    An alias is introduced only while the link is not blocked: bytes that are sure to be sent.
    """

    shared = False
    name = ""

    def __init__(self, link: Congestible, max_aliases: int, max_packet_size: int | None) -> None:
        self._link = link
        self._max_aliases = max_aliases
        self._max_packet_size = max_packet_size or _ANY_SIZE
        self._aliases: dict[str, int] = {}

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        topic = delivery.message.topic
        alias = self._aliases.get(topic)
        if alias is not None:
            parts = self._write(delivery, "", alias, now)
            if parts is not None:
                return parts
        elif len(self._aliases) < self._max_aliases and not self._link.blocked:
            alias = len(self._aliases) + 1
            parts = self._write(delivery, topic, alias, now)
            if parts is not None:
                self._aliases[topic] = alias
                return parts
        return self._write(delivery, topic, None, now)

    def split(self, run: Run) -> list[Message]:
        return MQTT_5.split(run)

    def _write(
        self, delivery: Delivery, topic: str, alias: int | None, now: float
    ) -> tuple[bytes, bytes] | None:
        tail = _encode_properties(delivery, now, alias) + delivery.message.payload
        head = _head(delivery, topic, tail)
        size = len(head) + len(tail) + (2 if delivery.qos else 0)
        # [MQTT-3.1.2-25] what the client cannot take is not sent, as if it had been.
        return (head, tail) if size <= self._max_packet_size else None


MQTT_311: Final = Mqtt311Encoding()
MQTT_5: Final = Mqtt5Encoding()


def encode_duplicate(
    delivery: Delivery, packet_id: int, version: int, max_packet_size: int | None, now: float
) -> bytes | None:
    """A PUBLISH sent before, for the next connection: with DUP, the same id and no alias."""
    parts = (MQTT_5 if version == V5 else MQTT_311).frame(delivery, now)
    assert parts is not None
    head, tail = parts
    if max_packet_size is not None and len(head) + 2 + len(tail) > max_packet_size:
        return None
    return bytes((head[0] | DUP,)) + head[1:] + packet_id.to_bytes(2) + tail


def message_properties(properties: Properties) -> MessageProperties:
    """What a publisher's properties mean to the core."""
    indicator = properties.payload_format_indicator
    return MessageProperties(
        None if indicator is None else bool(indicator),
        properties.content_type,
        properties.response_topic,
        properties.correlation_data,
        properties.user_properties,
    )


def _head(delivery: Delivery, topic: str, tail: bytes) -> bytes:
    qos = delivery.qos
    first_byte = 0x30 | qos << 1 | delivery.retain
    return encode_publish_head(topic, first_byte, len(tail) + 2 if qos else len(tail))


def _encode_properties(delivery: Delivery, now: float, alias: int | None = None) -> bytes:
    message = delivery.message
    said = message.properties
    expires_at = message.expires_at
    if said is NO_MESSAGE_PROPERTIES and expires_at is None and not delivery.identifiers and alias is None:
        return _NO_PROPERTIES
    properties = Properties(
        payload_format_indicator=None if said.payload_is_text is None else int(said.payload_is_text),
        # [MQTT-3.3.2-6] what is left of the interval; a message under way has at least a moment.
        message_expiry_s=None if expires_at is None else max(1, round(expires_at - now)),
        content_type=said.content_type,
        response_topic=said.response_topic,
        correlation_data=said.correlation_data,
        subscription_identifiers=delivery.identifiers,
        topic_alias=alias,
        user_properties=said.user_properties,
    )
    return encode_properties(properties, PacketType.PUBLISH)


def _split(run: Run, *, extra: int) -> list[Message]:
    messages: list[Message] = []
    wire = run.wire
    pos = 0
    while (frame := next_frame(wire, pos, _ANY_SIZE)) is not None:
        _, start, pos = frame
        topic_end = start + 2 + (wire[start] << 8 | wire[start + 1])
        payload_start = topic_end + (2 if run.qos else 0) + extra
        topic = wire[start + 2 : topic_end].decode()
        messages.append(Message(topic, wire[payload_start:pos], run.qos, origin=run.origin))
    return messages
