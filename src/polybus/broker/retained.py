"""Retained messages: the last value of each topic, in a tree."""

import heapq
from collections.abc import Iterator

from polybus.broker.limits import Limits
from polybus.broker.message import Delivery, Message
from polybus.broker.sessions import Subscription
from polybus.broker.tree import TopicTree


class Retained:
    """The single owner of retained messages.

    Expiry: each topic has at most one entry in the heap. When it comes up it is judged by the
    message that is there by then, so replacing a message often does not make the heap grow.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._tree: TopicTree[Message] = TopicTree()
        self._expiries: list[tuple[float, str]] = []
        self._expiring: set[str] = set()
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
        if self.size_bytes + size - (old.size_bytes() if old else 0) > self.limits.retained_bytes:
            return False
        self._tree.put(message.topic, message)
        self.size_bytes += size - (old.size_bytes() if old else 0)
        self.count += old is None
        if message.expires_at is not None and message.topic not in self._expiring:
            self._expiring.add(message.topic)
            heapq.heappush(self._expiries, (message.expires_at, message.topic))
        return True

    def replay(self, subscription: Subscription, now: float) -> Iterator[Delivery | None]:
        """What a new subscription gets, piecemeal; None is a pause in which nothing was found."""
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        for message in self._tree.match_filter(subscription.path):
            if message is None or (message.expires_at is not None and message.expires_at <= now):
                yield None
            else:
                yield Delivery(message, min(message.qos, subscription.qos), True, identifiers)

    def deadline(self) -> float | None:
        return self._expiries[0][0] if self._expiries else None

    def expire(self, now: float) -> int:
        """Forget what has expired; returns how many."""
        expired = 0
        while self._expiries and self._expiries[0][0] <= now:
            _, topic = heapq.heappop(self._expiries)
            self._expiring.discard(topic)
            message = self._tree.get(topic)
            if message is None or message.expires_at is None:
                continue
            if message.expires_at <= now:
                self._forget(topic)
                expired += 1
            else:
                self._expiring.add(topic)
                heapq.heappush(self._expiries, (message.expires_at, topic))
        return expired

    def _forget(self, topic: str) -> None:
        removed = self._tree.remove(topic)
        if removed is not None:
            self.count -= 1
            self.size_bytes -= removed.size_bytes()
