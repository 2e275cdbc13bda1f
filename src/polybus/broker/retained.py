"""Retained messages: the last value of each topic, in a tree."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from polybus.broker.ledger import Ledger
from polybus.broker.limits import Limits
from polybus.broker.message import Delivery, Message
from polybus.broker.sessions import Subscription
from polybus.broker.stamps import MAX_STAMP, Stamps
from polybus.broker.tree import TopicTree

MAX_DELETIONS: Final = 10_000
"""Deleted topics that are remembered: a neighbour that missed more of them may bring an old value back."""


class Retained:
    """The single owner of retained messages.

    Expiry: `_expiring` says when each topic is due, the heap has at least that entry. Entries that are
    no longer due stay in the heap until they outnumber the others.
    """

    def __init__(self, limits: Limits, ledger: Ledger | None = None, stamps: Stamps | None = None) -> None:
        self.limits = limits
        self.stamps = stamps or Stamps()
        self.deletions: OrderedDict[str, int] | None = None
        """When topics were deleted, for neighbours that have not heard of it yet; None: there are none."""
        self._ledger = ledger or Ledger()
        self._tree: TopicTree[Message] = TopicTree()
        self._expiries: list[tuple[float, str]] = []
        self._expiring: dict[str, float] = {}
        self.count = 0
        self.size_bytes = 0

    def get(self, topic: str) -> Message | None:
        return self._tree.get(topic)

    def is_news(self, message: Message) -> bool:
        """It is newer than what is here. Of two with the same stamp the larger payload is, so that all brokers
        choose alike."""
        if self.deletions is not None and self.deletions.get(message.topic, 0) >= message.stamp:
            return False
        old = self._tree.get(message.topic)
        return old is None or (message.stamp, message.payload) > (old.stamp, old.payload)

    def store(self, message: Message, now: float = 0.0) -> bool:
        """Keep, replace or (with an empty payload) delete. False: refused by a limit.

        What has a stamp came from elsewhere, and is kept only if it is news."""
        wall_s = now + self._ledger.offset
        if not message.stamp:
            old = self._tree.get(message.topic)
            later = 0 if old is None else min(old.stamp + 1, MAX_STAMP)
            message.stamp = max(self.stamps.give(wall_s), later)
        else:
            self.stamps.see(message.stamp, wall_s)
            if not self.is_news(message):
                return True
        if not message.payload:
            self._forget(message.topic)
            self._note_deletion(message)
            return True
        size = message.size_bytes()
        old = self._tree.get(message.topic)
        if old is None and self.count >= self.limits.retained_messages:
            return False
        # At most half of the budget, so that messages under way have the rest.
        limit = min(self.limits.retained_bytes, self.limits.memory_bytes // 2)
        if self.size_bytes + size - (old.size_bytes() if old else 0) > limit:
            return False
        self._tree.put(message.topic, message)
        self.size_bytes += size - (old.size_bytes() if old else 0)
        self.count += old is None
        self._schedule(message.topic, message.expires_at)
        if self._ledger.is_durable and message.origin:  # not the broker's own figures
            self._ledger.retained_changed(message.topic, message)
        return True

    def _note_deletion(self, message: Message) -> None:
        deletions = self.deletions
        if deletions is None or message.topic.startswith("$"):
            return
        deletions[message.topic] = message.stamp
        deletions.move_to_end(message.topic)
        if len(deletions) > MAX_DELETIONS:
            deletions.popitem(last=False)

    def remember_deletions(self) -> None:
        """From now on there are neighbours that may have missed one."""
        if self.deletions is None:
            self.deletions = OrderedDict()

    def replay_all(self) -> Iterator[Delivery | None]:
        """Everything that is retained or was deleted, for a neighbour that may have missed it."""
        for topic, stamp in list((self.deletions or {}).items()):
            if self._tree.get(topic) is None:
                yield Delivery(Message(topic, b"", retain=True, stamp=stamp), 0, True)
        for message in self._tree.match_filter("#"):
            yield None if message is None else Delivery(message, 0, True)

    def replay(self, subscription: Subscription) -> Iterator[Delivery | None]:
        """What a new subscription gets, piecemeal; None is a pause in which nothing was found."""
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        for message in self._tree.match_filter(subscription.path):
            if message is None:
                yield None
            else:
                yield Delivery(message, min(message.qos, subscription.qos), True, identifiers)

    def expire(self, now: float) -> int:
        """Forget what has expired; returns how many."""
        expired = 0
        while self._expiries and self._expiries[0][0] <= now:
            when, topic = heapq.heappop(self._expiries)
            if self._expiring.get(topic) == when:
                self._forget(topic)
                expired += 1
        return expired

    def _schedule(self, topic: str, when: float | None) -> None:
        if when is None:
            self._expiring.pop(topic, None)
        elif self._expiring.get(topic) != when:
            self._expiring[topic] = when
            heapq.heappush(self._expiries, (when, topic))
        if len(self._expiries) > 64 + 2 * len(self._expiring):
            self._expiries = [(when, topic) for topic, when in self._expiring.items()]
            heapq.heapify(self._expiries)

    def _forget(self, topic: str) -> None:
        removed = self._tree.remove(topic)
        self._schedule(topic, None)
        if removed is not None:
            if self._ledger.is_durable and removed.origin:
                self._ledger.retained_changed(topic, None)
            self.count -= 1
            self.size_bytes -= removed.size_bytes()
