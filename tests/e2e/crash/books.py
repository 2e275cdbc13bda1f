"""The books that clients keep: what they sent, what was acknowledged, what came. Pure, and outside the broker.

Messages belong to streams. A stream is what one publisher sends at one QoS to one topic, numbered from 1, so
that loss, repetition and disorder show in the numbers alone.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stream:
    name: str
    qos: int
    kind: str = ""
    """A line of its own in the table; empty: one for each QoS at which it is delivered."""
    is_doubtful: bool = False
    """Its publisher is known to send a message anew that it had sent to the end, whatever the QoS."""


@dataclass
class Audience:
    """Who is to get a message once: a subscriber, or a group that shares a subscription."""

    name: str
    qos: int
    is_ordered: bool = True
    kind: str = ""
    """A line of its own in the table, whatever it gets."""
    due_after: dict[str, int] = field(default_factory=dict)
    """Stream -> the last number sent when the subscription was acknowledged: what comes later is due."""
    none_after: dict[str, int] = field(default_factory=dict)
    """Stream -> the last number that was sent when its end was acknowledged: nothing later may come."""


@dataclass
class Values:
    """A topic with a retained message: every value it was given, by number, with True for a deletion."""

    is_deletion: list[bool] = field(default_factory=list)
    acknowledged: int = 0
    """The highest; a publisher waits for each before it sends the next, so all before it are too."""


@dataclass(frozen=True)
class Sighting:
    """What someone who just subscribed was given as retained."""

    topic: str
    seen: int | None
    """None: nothing."""
    acknowledged: int
    """When the subscription was sent: nothing older may be seen."""
    is_deletion: tuple[bool, ...]
    """All that was sent until it came."""


@dataclass
class Request:
    qos: int | None
    """None: TBus, which acknowledges nothing."""
    is_acknowledged: bool = False
    ends: list[tuple[str, bytes]] = field(default_factory=list)
    expected: tuple[str, bytes] | None = None
    """The one end that it can have, if there is only one."""


class Books:
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.audiences: dict[str, Audience] = {}
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.acknowledged: defaultdict[str, set[int]] = defaultdict(set)
        self.arrived: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.values: defaultdict[str, Values] = defaultdict(Values)
        self.sightings: list[Sighting] = []
        self.requests: dict[str, Request] = {}
        self.sessions_kept: defaultdict[str, int] = defaultdict(int)
        self.sessions_lost: defaultdict[str, int] = defaultdict(int)
        self.strange: list[str] = []
        """What no broker may do, whatever happened before."""
        self.entries = 0
        """Grows with everything that is noted: as long as it does, something still happens."""

    # -- messages -------------------------------------------------------------------------------

    def open(self, stream: Stream) -> None:
        self.streams[stream.name] = stream

    def admit(self, audience: Audience) -> Audience:
        self.audiences[audience.name] = audience
        return audience

    def send(self, stream: str) -> int:
        """The number of the next message."""
        self.entries += 1
        self.sent[stream] += 1
        return self.sent[stream]

    def acknowledge(self, stream: str, number: int) -> None:
        self.entries += 1
        self.acknowledged[stream].add(number)

    def arrive(self, audience: str, stream: str, number: int) -> None:
        self.entries += 1
        self.arrived[audience, stream].append(number)

    def dues(self) -> Iterator[tuple[Audience, Stream, set[int]]]:
        """Who is to have which messages by now."""
        for audience in self.audiences.values():
            for name, last in audience.due_after.items():
                yield audience, self.streams[name], {n for n in self.acknowledged[name] if n > last}

    def is_settled(self) -> bool:
        """Whether everything acknowledged has come, and every request has ended."""
        return all(
            due <= set(self.arrived[audience.name, stream.name]) for audience, stream, due in self.dues()
        ) and all(request.ends for request in self.requests.values() if request.is_acknowledged)

    # -- retained -------------------------------------------------------------------------------

    def set_value(self, topic: str, *, is_deletion: bool) -> int:
        self.entries += 1
        self.values[topic].is_deletion.append(is_deletion)
        return len(self.values[topic].is_deletion)

    def acknowledge_value(self, topic: str, number: int) -> None:
        self.entries += 1
        self.values[topic].acknowledged = max(self.values[topic].acknowledged, number)

    def see_value(self, topic: str, seen: int | None, acknowledged: int) -> None:
        self.entries += 1
        sent = tuple(self.values[topic].is_deletion)
        self.sightings.append(Sighting(topic, seen, acknowledged, sent))

    # -- requests -------------------------------------------------------------------------------

    def ask(self, key: str, qos: int | None, expected: tuple[str, bytes] | None = None) -> None:
        self.entries += 1
        # A TBus request counts from the start: its requester repeats it until it hears how it ended.
        self.requests[key] = Request(qos, is_acknowledged=qos is None, expected=expected)

    def acknowledge_request(self, key: str) -> None:
        self.entries += 1
        self.requests[key].is_acknowledged = True

    def end(self, key: str, status: str, payload: bytes) -> None:
        self.entries += 1
        if key in self.requests:
            self.requests[key].ends.append((status, payload))
        else:
            self.strange.append(f"the end of a request that nobody made: {key} {status}")

    # -- sessions -------------------------------------------------------------------------------

    def resume(self, client_id: str, *, is_present: bool) -> None:
        """A client came back that had been promised its session."""
        self.entries += 1
        (self.sessions_kept if is_present else self.sessions_lost)[client_id] += 1
