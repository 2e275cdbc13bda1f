"""What travels: one message, a run of messages, and one message on its way to a session."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from polybus.broker.links import Encoding
    from polybus.broker.shared import SharedGroup

OVERHEAD_BYTES: Final = 256
"""What keeping a message costs beside its topic and payload, for the memory budget."""


PAIR_BYTES: Final = 160
"""What a user property costs beside its characters."""


class MessageProperties(msgspec.Struct, frozen=True, gc=False):
    """What a publisher says about a payload, in no protocol's words."""

    payload_is_text: bool | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    def size_bytes(self) -> int:
        if self is NO_MESSAGE_PROPERTIES:
            return 0
        size = len(self.content_type or "") + len(self.response_topic or "") + len(self.correlation_data or b"")
        for name, value in self.user_properties:
            size += len(name) + len(value) + PAIR_BYTES
        return size


NO_MESSAGE_PROPERTIES: Final = MessageProperties()


class Piece(msgspec.Struct, gc=False):
    """A message or run as the durable store has it, once for everyone who is to get it."""

    number: int
    holders: int = 0
    """Rows that need it; without any it is gone."""


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
    waits: bool = False
    """If there is nobody to take it, it is stored until there is, or until it expires (TB-09)."""
    piece: Piece | None = None
    stamp: int = 0
    """When its broker took it, of what is retained or crosses to neighbours (`broker.stamps`); 0: not given."""
    holders: int = 0
    """Queues and windows it is in (`Holdings`)."""

    def body_bytes(self) -> int:
        """What all who hold it share."""
        return self.size_bytes() - OVERHEAD_BYTES

    def size_bytes(self) -> int:
        size = len(self.payload) + len(self.topic) + OVERHEAD_BYTES
        return size if self.properties is NO_MESSAGE_PROPERTIES else size + self.properties.size_bytes()


class Run(msgspec.Struct, gc=False):
    """Messages of one publisher to one audience, one behind the other as they came in.

    `wire` is forwarded to everyone who speaks `encoding`: at QoS 0 as it is; at QoS 1 and 2 with
    other packet ids in the places `ids_at` of the publisher's. `messages` takes it apart for
    everyone else, once.
    """

    wire: bytes
    count: int
    encoding: "Encoding"
    origin: str
    qos: int = 0
    ids_at: Sequence[int] = ()
    """A range if all packets are alike, which makes it cheaper."""
    split: list[Message] | None = None
    piece: Piece | None = None
    first: int = 0
    """Which message of its piece it begins with."""
    row: int = 0
    """Its first row in the durable store, on its way to a session that is kept; each message has one."""
    size: int = 0
    """Of each packet, if all are known to be alike; 0: nobody looked."""
    source: "Run | None" = None
    """The run whose bytes these are, if this is the same for one session alone: that one counts."""
    holders: int = 0
    """Queues and windows it is in (`Holdings`)."""

    @property
    def body(self) -> "Run":
        return self.source or self

    def body_bytes(self) -> int:
        return len(self.wire)

    @property
    def is_priority(self) -> bool:
        return False  # what has properties travels by itself

    def size_bytes(self) -> int:
        return len(self.wire) + OVERHEAD_BYTES

    def cut(self, count: int) -> tuple["Run", "Run"] | None:
        """The first `count` messages and the others, with bytes of their own; None: its packets differ, so it
        has to be split."""
        ids_at = self.ids_at
        if not isinstance(ids_at, range):
            return None
        size = ids_at.step
        at = count * size
        return (
            msgspec.structs.replace(
                self,
                wire=self.wire[:at],
                count=count,
                ids_at=range(ids_at.start, at, size),
                split=None,
                source=None,
                holders=0,
            ),
            msgspec.structs.replace(
                self,
                wire=self.wire[at:],
                count=self.count - count,
                ids_at=range(ids_at.start, len(self.wire) - at, size),
                split=None,
                first=self.first + count,
                row=self.row + count if self.row else 0,
                source=None,
                holders=0,
            ),
        )

    def in_row(self, row: int) -> "Run":
        """The same for one session alone, as the durable store has it."""
        return msgspec.structs.replace(self, row=row, source=self.body, holders=0)

    def alike(self) -> Message | None:
        """The first of its messages, if the others differ from it in nothing but a payload of the same size,
        with which each packet ends; at QoS 0, where packets have no ids."""
        size, rest = divmod(len(self.wire), self.count)
        if rest or self.count < 2:
            return None
        one = msgspec.structs.replace(self, wire=self.wire[: size - 1], count=1, split=None)
        if self.encoding.split(one):
            return None  # the first is shorter than the average
        one.wire = self.wire[:size]
        found = self.encoding.split(one)
        if not found:
            return None
        if self.size:
            return found[0]
        prefix = self.wire[: size - len(found[0].payload)]
        starts = range(size, len(self.wire), size)
        return found[0] if all(self.wire.startswith(prefix, at) for at in starts) else None

    def messages(self) -> list[Message]:
        if self.split is None:
            self.split = self.encoding.split(self)
        return self.split


class Delivery(msgspec.Struct, gc=False):
    """A message as one or many sessions get it; shared between those that get it alike."""

    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...] = ()
    group: "SharedGroup | None" = None
    """The shared group it was chosen from, which takes it back if its session goes away."""
    row: int = 0
    """In the durable store, on its way to a session that is kept."""
    piece: Piece | None = None
    """What that row is made of."""
    first: int = 0
    """Which message of the piece it is."""
    shares: tuple[str, ...] = ()
    """Of what crosses to a neighbour: the shared subscriptions that it was chosen for, and "" if everyone else
    there gets it too. Empty: everyone else alone."""

    @property
    def body(self) -> Message:
        return self.message

    @property
    def count(self) -> int:
        return 1

    @property
    def is_priority(self) -> bool:
        return self.message.priority

    def size_bytes(self) -> int:
        return self.message.size_bytes()

    def one(self, packet_id: int) -> "Delivery":
        return self


class DeliveryRun(msgspec.Struct, gc=False):
    """A run in flight to one session under consecutive packet ids."""

    run: Run
    first_id: int
    qos: int
    group: None = None
    row: int = 0
    left: int = 0
    """Messages that are not acknowledged yet."""

    @property
    def body(self) -> Run:
        return self.run.body

    def size_bytes(self) -> int:
        """Of one of its messages, on average."""
        return len(self.run.wire) // self.run.count + OVERHEAD_BYTES

    def one(self, packet_id: int) -> Delivery:
        """The delivery that went out under this id."""
        return Delivery(self.run.messages()[packet_id - self.first_id], self.qos, False)
