"""What the broker knows of a client, connected or not: MQTT calls it the session state."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from polybus.broker.message import Delivery, Message

if TYPE_CHECKING:
    from polybus.broker.links import Link

MAX_PACKET_ID: Final = 65_535


class Subscription(msgspec.Struct, gc=False):
    """One filter of one session. `path` is the filter without its ``$share/<group>/``."""

    path: str
    group: str | None
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    """MQTT 5.0 subscription identifier; 0: none."""


class Will(msgspec.Struct, frozen=True):
    """A message published on a client's behalf when its connection ends badly."""

    message: Message
    delay_s: float = 0.0
    expiry_s: float | None = None
    """Message expiry, counted from the moment the will is published."""


class Queue:
    """Deliveries that wait for their session, priority before regular."""

    __slots__ = ("priority", "regular", "size_bytes")

    def __init__(self) -> None:
        self.priority: deque[Delivery] = deque()
        self.regular: deque[Delivery] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.priority) + len(self.regular)

    def push(self, delivery: Delivery) -> None:
        (self.priority if delivery.message.priority else self.regular).append(delivery)
        self.size_bytes += delivery.message.size_bytes()

    def pop(self) -> Delivery:
        delivery = (self.priority or self.regular).popleft()
        self.size_bytes -= delivery.message.size_bytes()
        return delivery

    def drop_oldest(self) -> Delivery:
        """Give up the oldest regular delivery, or the oldest priority one if there is no other."""
        delivery = (self.regular or self.priority).popleft()
        self.size_bytes -= delivery.message.size_bytes()
        return delivery

    def take(self) -> Iterator[Delivery]:
        """Empty the queue in order."""
        while self.priority or self.regular:
            yield self.pop()


class Session:
    """One client by its id. It outlives its connection if `expiry_s` is not zero.

    `inflight` maps a packet id to the delivery that was sent under it and not yet acknowledged, or
    to None once a QoS 2 delivery was received by the client and only its release is outstanding.
    `outstanding` counts those sent on the present connection: after a reconnect they differ until
    everything in `resend` went out again.
    """

    __slots__ = (
        "client_id",
        "dropped",
        "ends_at",
        "expiry_s",
        "handle",
        "inflight",
        "link",
        "next_id",
        "outstanding",
        "queue",
        "received",
        "replays",
        "resend",
        "subscriptions",
        "user",
        "will",
        "will_at",
        "window",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.user: str | None = None
        self.link: Link | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.inflight: dict[int, Delivery | None] = {}
        self.outstanding = 0
        self.window = 0
        self.next_id = 1
        self.resend: deque[int] | None = None
        self.queue: Queue | None = None
        self.received: set[int] | None = None
        """QoS 2 packet ids taken from the client and not yet released by it."""
        self.replays: deque[Iterator[Delivery | None]] | None = None
        """Retained messages on their way to new subscriptions."""
        self.expiry_s = 0.0
        self.will: Will | None = None
        self.will_at: float | None = None
        self.ends_at: float | None = None
        self.handle = 0
        """The timer that publishes the will or ends the session."""
        self.dropped = 0

    def allocate_id(self) -> int:
        packet_id = self.next_id
        inflight = self.inflight
        while packet_id in inflight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self.next_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def queued(self) -> int:
        return len(self.queue) if self.queue is not None else 0

    def load(self) -> int:
        """How much it still has to work off, for the choice within a shared group."""
        return len(self.inflight) + self.queued()
