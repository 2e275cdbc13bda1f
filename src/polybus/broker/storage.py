"""What waits: messages and requests for someone to take them, outcomes for their requesters (TB-09, TB-13).

There is room for so many entries and bytes. When it is full the victims are, oldest first: plain
regular messages, plain priority messages, regular requests and answers, priority requests and answers.
A newcomer that is worth less than everything there is a victim itself.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum, auto
from heapq import merge
from typing import TYPE_CHECKING, Final, TypeAlias

from polybus.broker.message import Message
from polybus.broker.tree import TopicTree

if TYPE_CHECKING:
    from polybus.broker.request import Request

RANKS: Final = 4


class Kind(Enum):
    MESSAGE = auto()
    REQUEST = auto()
    OUTCOME = auto()
    """An answer, or the news of another end, for a requester who cannot take it now."""


class Stored:
    """One entry. `request` is None for a plain message."""

    __slots__ = (
        "handle",
        "home",
        "kind",
        "message",
        "number",
        "on_expiry",
        "order",
        "rank",
        "request",
        "since",
        "size_bytes",
        "until",
    )

    def __init__(
        self,
        kind: Kind,
        message: Message,
        request: "Request | None",
        size_bytes: int,
        since: float,
    ) -> None:
        self.kind = kind
        self.message = message
        self.request = request
        self.rank = (0 if request is None else 2) + message.priority
        self.size_bytes = size_bytes
        self.since = since
        self.order = 0
        self.home: Storage | None = None
        """Where it is."""
        self.handle = 0
        """Timer of what is not kept for ever."""
        self.on_expiry: Callable[[Stored, float], None] | None = None
        self.until: float | None = None
        """When that timer is due, of an end that waits for its requester."""
        self.number = 0
        """Of a plain message, in the durable store; 0: it is not there."""

    def on_timer(self, now: float) -> None:
        self.handle = 0
        if self.on_expiry is not None:
            self.on_expiry(self, now)


Entries: TypeAlias = OrderedDict[Stored, None]


class Shelf:
    """What waits under one topic: messages and requests, priority apart from regular."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[Entries, ...] = tuple(OrderedDict() for _ in range(4))

    def entries(self, kind: Kind, is_priority: bool) -> Entries:
        return self._entries[(2 if kind is Kind.REQUEST else 0) + is_priority]

    def has(self, kind: Kind) -> bool:
        return bool(self.entries(kind, True) or self.entries(kind, False))

    def is_empty(self) -> bool:
        return not any(self._entries)


class Storage:
    """The single owner of everything that waits in it. `on_victim` is told of each deleted entry."""

    def __init__(self, max_messages: int, max_bytes: int, on_victim: Callable[[Stored], None]) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.count = 0
        self.size_bytes = 0
        self.counts = dict.fromkeys(Kind, 0)
        self._on_victim = on_victim
        self._ranks: list[Entries] = [OrderedDict() for _ in range(RANKS)]
        self._rank_bytes = [0] * RANKS
        self._shelves: TopicTree[Shelf] = TopicTree()
        self._outcomes: dict[str, Entries] = {}
        self._order = 0

    @property
    def message_bytes(self) -> int:
        """Of plain messages: requests are counted where they are owned."""
        return self._rank_bytes[0] + self._rank_bytes[1]

    def set_limits(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        while self.count > max_messages or self.size_bytes > max_bytes:
            self._delete_one()

    # -- in -----------------------------------------------------------------------------------------

    def put(self, stored: Stored) -> bool:
        """False: there is no room, and nothing of less worth."""
        if not self._enter(stored):
            return False
        if stored.kind is Kind.OUTCOME:
            assert stored.request is not None
            self._outcomes.setdefault(stored.request.owner, OrderedDict())[stored] = None
        else:
            topic = stored.message.topic
            shelf = self._shelves.get(topic)
            if shelf is None:
                shelf = Shelf()
                self._shelves.put(topic, shelf)
            shelf.entries(stored.kind, stored.message.priority)[stored] = None
        return True

    def _enter(self, stored: Stored) -> bool:
        rank = stored.rank
        worthier = range(rank + 1, RANKS)
        kept = sum(len(self._ranks[r]) for r in worthier)
        kept_bytes = sum(self._rank_bytes[r] for r in worthier)
        if kept + 1 > self.max_messages or kept_bytes + stored.size_bytes > self.max_bytes:
            return False
        while self.count + 1 > self.max_messages or self.size_bytes + stored.size_bytes > self.max_bytes:
            self._delete_one()
        stored.home = self
        self.count += 1
        self.counts[stored.kind] += 1
        self._order += 1
        stored.order = self._order
        self._ranks[rank][stored] = None
        self._rank_bytes[rank] += stored.size_bytes
        self.size_bytes += stored.size_bytes
        return True

    def _delete_one(self) -> None:
        entries = next(filter(None, self._ranks))
        victim = next(iter(entries))
        self.take(victim)
        self._on_victim(victim)

    # -- out ----------------------------------------------------------------------------------------

    def take(self, stored: Stored) -> None:
        rank = stored.rank
        stored.home = None
        del self._ranks[rank][stored]
        self._rank_bytes[rank] -= stored.size_bytes
        self.size_bytes -= stored.size_bytes
        self.count -= 1
        self.counts[stored.kind] -= 1
        message = stored.message
        if stored.kind is Kind.OUTCOME:
            assert stored.request is not None
            owner = stored.request.owner
            mine = self._outcomes[owner]
            del mine[stored]
            if not mine:
                del self._outcomes[owner]
            return
        shelf = self._shelves.get(message.topic)
        assert shelf is not None
        del shelf.entries(stored.kind, message.priority)[stored]
        if shelf.is_empty():
            self._shelves.remove(message.topic)

    def matching(self, kind: Kind, path: str) -> Iterator[Stored]:
        """Priority first, and each in the order in which they came. Take none while this is being read."""
        if not self.counts[kind]:
            return
        found = self._shelves.match_filter(path)
        shelves = [shelf for shelf in found if shelf is not None and shelf.has(kind)]
        for is_priority in (True, False):
            yield from merge(*(shelf.entries(kind, is_priority) for shelf in shelves), key=_order)

    def outcomes_of(self, owner: str) -> list[Stored]:
        return list(self._outcomes.get(owner, ()))


def _order(stored: Stored) -> int:
    return stored.order
