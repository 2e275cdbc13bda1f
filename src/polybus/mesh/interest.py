"""What the clients of this broker want, as its neighbours are told: a filter each, however many have it.

Only what changes is told: `news` compares what is wanted now under the filters that changed with what was said
last. Shared subscriptions are told by their whole name, `$share/<group>/<filter>`.
"""

from typing import Final, TypeAlias

import msgspec

from polybus.broker.services import Instance
from polybus.broker.subscriptions import RESERVED, Subscribers, Subscriptions

MAX_CONCURRENCY: Final = 0xFFFF
LOCAL: Final = (*RESERVED, "$memoryLimit", "$neighbors")
"""What begins so is each broker's own."""


class Want(msgspec.Struct, frozen=True, gc=False):
    qos: int
    """The highest that one of them wants."""
    concurrency: int = 0
    """Requests that services here take at once under this filter."""


Wants: TypeAlias = dict[str, Want]
News: TypeAlias = list[tuple[str, Want | None]]
"""Filters, and what is wanted there now; None: nothing any more."""


def wants_of(path: str, subscribers: Subscribers | None) -> Wants:
    """What is wanted under one filter."""
    if subscribers is None or path.startswith(LOCAL):
        return {}
    wants: Wants = {}
    plain = [s.qos for session, s in subscribers.members.items() if not session.is_neighbor]
    concurrency = sum(map(_capacity, subscribers.instances or ()))
    if plain:
        wants[path] = Want(max(plain), min(concurrency, MAX_CONCURRENCY))
    for group in (subscribers.groups or {}).values():
        shared = [s.qos for session, s in group.members.items() if not session.is_neighbor]
        if shared:
            wants[group.filter] = Want(max(shared))
            if concurrency and not plain:  # a service that shares its messages takes requests all the same
                wants.setdefault(path, Want(0, min(concurrency, MAX_CONCURRENCY)))
    return wants


def _capacity(instance: Instance) -> int:
    if instance.session.is_neighbor or instance.session.link is None:
        return 0
    return max(1, instance.serves)


class Interest:
    def __init__(self, subscriptions: Subscriptions) -> None:
        self.told: dict[str, Wants] = {}
        """What was said last, by filter path."""
        self._subscriptions = subscriptions
        self._changed: dict[str, None] = {}
        self.is_told = False
        """Someone listens; else nothing is noted."""

    def changed(self, path: str) -> None:
        if self.is_told:
            self._changed[path] = None

    @property
    def has_news(self) -> bool:
        return bool(self._changed)

    def everything(self) -> Wants:
        """For a neighbour that is new. From now on changes are noted."""
        if not self.is_told:
            self.is_told = True
            self.told = {}
            for path, subscribers in self._subscriptions.all_subscribers():
                wants = wants_of(path, subscribers)
                if wants:
                    self.told[path] = wants
        return {name: want for wants in self.told.values() for name, want in wants.items()}

    def stop(self) -> None:
        """Nobody listens any more."""
        self.is_told = False
        self.told = {}
        self._changed.clear()

    def news(self) -> News:
        """What has changed since it was last said."""
        news: News = []
        changed, self._changed = self._changed, {}
        for path in changed:
            before = self.told.pop(path, {})
            now = wants_of(path, self._subscriptions.subscribers(path))
            if now:
                self.told[path] = now
            news += [(name, want) for name, want in now.items() if before.get(name) != want]
            news += [(name, None) for name in before if name not in now]
        return news

    def said(self, path: str) -> News:
        """The same again, for who has to know that there is room."""
        return list(self.told.get(path, {}).items())
