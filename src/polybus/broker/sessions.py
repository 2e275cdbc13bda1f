"""What the broker knows of a client, connected or not: MQTT calls it the session state."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from polybus.broker.message import Delivery, DeliveryRun, Message, Run
from polybus.broker.taken import Taken

if TYPE_CHECKING:
    from polybus.broker.links import Link
    from polybus.broker.request import Request
    from polybus.broker.services import Instance

MAX_PACKET_ID: Final = 65_535
NEIGHBOR_MARK: Final = "\0"
"""How the ids of neighbours begin (TB-15): no protocol lets a client have such an id."""


class Subscription(msgspec.Struct, gc=False):
    """One filter of one session. `path` is the filter without its ``$share/<group>/``."""

    path: str
    group: str | None
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    """MQTT 5.0 subscription identifier; 0: none."""
    serves: int = 0
    """Requests it takes at once; 0: it is no service; -1: as many as the broker's rules say."""


class Will(msgspec.Struct, frozen=True):
    """A message published on a client's behalf when its connection ends badly."""

    message: Message
    delay_s: float = 0.0
    expiry_s: float | None = None
    """Message expiry, counted from the moment the will is published."""


class Queue:
    """What waits for its session, priority before regular: deliveries, and whole runs."""

    __slots__ = ("messages", "priority", "regular", "size_bytes")

    def __init__(self) -> None:
        self.priority: deque[Delivery | Run] = deque()
        self.regular: deque[Delivery | Run] = deque()
        self.messages = 0
        self.size_bytes = 0

    def push(self, item: Delivery | Run) -> None:
        (self.priority if item.is_priority else self.regular).append(item)
        self.messages += item.count
        self.size_bytes += item.size_bytes()

    def first(self) -> Delivery | Run:
        return (self.priority or self.regular)[0]

    def pop(self) -> Delivery | Run:
        return self._taken((self.priority or self.regular).popleft())

    def oldest(self) -> Delivery | Run:
        """What `drop_oldest` takes, or takes from."""
        return (self.regular or self.priority)[0]

    def drop_oldest(self) -> Delivery | Run:
        """Give up the oldest regular message or run, or the oldest priority one if there is no other."""
        return self._taken((self.regular or self.priority).popleft())

    def break_up(self, run: Run) -> list[Message]:
        """Replace the run in front by its messages."""
        self._taken(self.regular.popleft())
        messages = run.messages()
        row = run.row + run.count
        for message in reversed(messages):
            row -= 1
            delivery = Delivery(message, run.qos, False)
            if run.row:
                delivery.row, delivery.piece = row, run.piece
            self.regular.appendleft(delivery)
            self.messages += 1
            self.size_bytes += delivery.size_bytes()
        return messages

    def cut_front(self, run: Run, count: int) -> tuple[Run, Run] | None:
        """Divide the run in front after `count` messages, if that can be done."""
        pieces = run.cut(count)
        if pieces is None:
            return None
        self._taken(self.regular.popleft())
        for piece in reversed(pieces):
            self.regular.appendleft(piece)
            self.messages += piece.count
            self.size_bytes += piece.size_bytes()
        return pieces

    def items(self) -> Iterator[Delivery | Run]:
        yield from self.priority
        yield from self.regular

    def _taken(self, item: Delivery | Run) -> Delivery | Run:
        self.messages -= item.count
        self.size_bytes -= item.size_bytes()
        return item


class Session:
    """One client by its id. It outlives its connection if `expiry_s` is not zero.

    `inflight` maps a packet id to the delivery that was sent under it and not yet acknowledged (or
    the run it was sent with), or to None once a QoS 2 delivery was received by the client and only
    its release is outstanding. `outstanding` counts those sent on the present connection: after a
    reconnect they differ until everything in `resend` went out again. `unnoted` is part of it.
    """

    __slots__ = (
        "client_id",
        "dropped",
        "ends_at",
        "expiry_s",
        "handle",
        "in_hand",
        "inflight",
        "inflight_bytes",
        "instances",
        "is_neighbor",
        "kept",
        "link",
        "next_id",
        "outstanding",
        "owner",
        "queue",
        "received",
        "releases",
        "replays",
        "resend",
        "subscriptions",
        "taken",
        "unnoted",
        "user",
        "will",
        "will_at",
        "window",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.is_neighbor = client_id.startswith(NEIGHBOR_MARK)
        """Another broker, for its clients."""
        self.user: str | None = None
        self.owner = client_id
        """Whose requests it may cancel and hear of: another user or protocol with the same id is another."""
        self.link: Link | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.inflight: dict[int, Delivery | DeliveryRun | None] = {}
        self.inflight_bytes = 0
        self.outstanding = 0
        self.window = 0
        self.next_id = 1
        self.resend: deque[int] | None = None
        self.queue: Queue | None = None
        self.received: set[int] | None = None
        """QoS 2 packet ids taken from the client and not yet released by it."""
        self.taken: Taken | None = None
        """Of a neighbour: the messages last taken from it."""
        self.unnoted = 0
        """Of a kept neighbour: what it has acknowledged and a crash would make us send again."""
        self.kept = 0
        """Its number in the durable store; 0: it is not there."""
        self.releases: dict[int, int] | None = None
        """The rows of QoS 2 deliveries that are None in `inflight`, if it is kept."""
        self.replays: dict[str, Iterator[Delivery | None]] | None = None
        """Retained messages on their way to new subscriptions, by topic filter."""
        self.instances: dict[str, Instance] | None = None
        """The services it offers, by topic filter."""
        self.in_hand: dict[int, Request] | None = None
        """Requests it has not answered, by their serial number."""
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
        return self.queue.messages if self.queue is not None else 0

    def load(self) -> int:
        """How much it still has to work off, for the choice within a shared group."""
        return len(self.inflight) + self.queued()
