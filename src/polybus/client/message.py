"""The values that pass between an application and its bus, whatever protocol is behind it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties

Payload: TypeAlias = bytes | bytearray | memoryview | str


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, as sent or as received.

    `properties` are MQTT 5.0's by name; on a protocol without them they are all absent. `priority` is
    known where it was asked for: MQTT does not tell it to those who receive.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES
    priority: bool = False

    @property
    def text(self) -> str:
        """The payload as UTF-8. Raises `UnicodeDecodeError` if it is not."""
        return self.payload.decode()

    def __repr__(self) -> str:
        """Without the properties that are absent, which are nearly all."""
        present = msgspec.to_builtins(self.properties, builtin_types=(bytes,))
        shown = "".join(f", {name}={value!r}" for name, value in present.items())
        urgent = ", priority=True" if self.priority else ""
        return f"Message({self.topic!r}, {self.payload!r}, qos={self.qos}, retain={self.retain}{shown}{urgent})"


@dataclass(frozen=True)
class Will:
    """What the broker publishes for us if we disappear. `delay_s` and the rest need MQTT 5.0."""

    topic: str
    payload: Payload = b""
    qos: int = 0
    retain: bool = False
    delay_s: int | None = None
    message_expiry_s: int | None = None
    content_type: str | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


class SubscribeOptions(msgspec.Struct, frozen=True):
    """One topic filter as the broker is asked for it.

    `identifier` is what the broker is to put on messages for this filter, where it can. `concurrency` is
    how many requests it takes at once; 0: it takes messages only. All but `qos` need MQTT 5.0, or TBus
    for `concurrency`.
    """

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    concurrency: int = 0


class Acknowledge(StrEnum):
    """When a message of QoS 1 or 2 is acknowledged; see `docs/client.md`."""

    QUEUED = "queued"  # when it stands in its subscription's queue
    HANDLED = "handled"  # when its callback has returned, or the loop asks for the next one


class WhenFull(StrEnum):
    """What happens to QoS 0 messages for a subscription whose queue is full."""

    DROP = "drop"  # they are dropped and counted; other subscriptions do not notice
    PAUSE = "pause"  # nothing more is read from the connection until there is room


DEFAULT_QUEUE_SIZE: Final = 1000


def payload_bytes(payload: Payload) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload is bytes or str, not {type(payload).__name__}")
