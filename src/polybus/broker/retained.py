"""Retained messages: the last value of each topic, in a tree."""

import heapq
from collections.abc import Iterator

from polybus.broker.ledger import Ledger
from polybus.broker.limits import Limits
from polybus.broker.message import Delivery, Message
from polybus.broker.sessions import Subscription
from polybus.broker.tree import TopicTree


class Retained:
    """The single owner of retained messages.

    Expiry: `_expiring` says when each topic is due, the heap has at least that entry. Entries that are
    no longer due stay in the heap until they outnumber the others.
    """

    def __init__(self, limits: Limits, ledger: Ledger | None = None) -> None:
        self.limits = limits
        self._ledger = ledger or Ledger()
        self._tree: TopicTree[Message] = TopicTree()
        self._expiries: list[tuple[float, str]] = []
        self._expiring: dict[str, float] = {}
        self.count = 0
        self.size_bytes = 0

    def get(self, topic: str) -> Message | None:
        return self._tree.get(topic)

    def store(self, message: Message) -> bool:
        """Keep, replace or (with an empty payload) delete. False: refused by a limit."""
        if not message.payload:
            self._forget(message.topic)
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
