"""What travels: one message, a run of messages, and one message on its way to a session."""

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from polybus.broker.links import Encoding
    from polybus.broker.shared import SharedGroup

OVERHEAD_BYTES: Final = 256
"""What keeping a message costs beside its topic and payload, for the memory budget."""


class MessageProperties(msgspec.Struct, frozen=True, gc=False):
    """What a publisher says about a payload, in no protocol's words."""

    payload_is_text: bool | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


NO_MESSAGE_PROPERTIES: Final = MessageProperties()


class Message(msgspec.Struct, gc=False):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    priority: bool = False
    expires_at: float | None = None
    """On the broker's clock; None: never."""
    properties: MessageProperties = NO_MESSAGE_PROPERTIES
    origin: str = ""
    """Client id of the publisher; empty: the broker itself."""

    def size_bytes(self) -> int:
        return len(self.payload) + len(self.topic) + OVERHEAD_BYTES


class Run(msgspec.Struct, gc=False):
    """QoS 0 messages of one publisher to one topic, one behind the other as they came in.

    `wire` is forwarded as it is to everyone who speaks `encoding`; `messages` takes it apart for
    the others, once.
    """

    topic: str
    wire: bytes
    count: int
    encoding: "Encoding"
    origin: str
    split: list[Message] | None = None

    def messages(self) -> list[Message]:
        if self.split is None:
            self.split = self.encoding.split(self.wire, self.topic, self.origin)
        return self.split


class Delivery(msgspec.Struct, gc=False):
    """A message as one or many sessions get it; shared between those that get it alike."""

    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...] = ()
    group: "SharedGroup | None" = None
    """The shared group it was chosen from, which takes it back if its session goes away."""
