"""What the clients of this broker want, as its neighbours are told: a filter each, however many have it.

Only what changes is told: `news` compares what is wanted now under the filters that changed with what was said
last. Shared subscriptions are told by their whole name, `$share/<group>/<filter>`.
"""

from typing import Final, TypeAlias

import msgspec

from polybus.broker.services import Instance
from polybus.broker.subscriptions import RESERVED, Subscribers, Subscriptions
from polybus.broker.topics import matches

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


def wants_of(path: str, subscribers: Subscribers | None, at_once: int) -> Wants:
    """What is wanted under one filter; `at_once`: what a service takes that does not say so itself."""
    if subscribers is None or path.startswith(LOCAL):
        return {}
    wants: Wants = {}
    plain = [s.qos for session, s in subscribers.members.items() if not session.is_neighbor]
    concurrency = sum(_capacity(instance, at_once) for instance in subscribers.instances or ())
    if plain:
        wants[path] = Want(max(plain), min(concurrency, MAX_CONCURRENCY))
    for group in (subscribers.groups or {}).values():
        shared = [s.qos for session, s in group.members.items() if not session.is_neighbor]
        if shared:
            wants[group.filter] = Want(max(shared))
            if concurrency and not plain:  # a service that shares its messages takes requests all the same
                wants.setdefault(path, Want(0, min(concurrency, MAX_CONCURRENCY)))
    return wants


def _capacity(instance: Instance, at_once: int) -> int:
    if instance.session.is_neighbor or instance.session.link is None:
        return 0
    return instance.serves if instance.serves > 0 else at_once


class Interest:
    def __init__(self, subscriptions: Subscriptions) -> None:
        self.told: dict[str, Wants] = {}
        """What was said last, by filter path."""
        self._subscriptions = subscriptions
        self._changed: dict[str, None] = {}
        self._doubted: set[str] = set()
        """Of those, what is said again even if it is the same as before."""
        self.is_told = False
        """Someone listens; else nothing is noted."""

    def changed(self, path: str) -> None:
        if self.is_told:
            self._changed[path] = None

    def doubt(self, topic: str) -> None:
        """A neighbour asked for a service that was not there just then, and asks no more until it is told of
        one: if another has come by the time of the next news, that is news, though it looks the same."""
        self._doubted |= {path for path in self._changed if matches(path, topic)}

    @property
    def has_news(self) -> bool:
        return bool(self._changed)

    def everything(self) -> Wants:
        """For a neighbour that is new. From now on changes are noted."""
        if not self.is_told:
            self.is_told = True
            self.told = {}
            for path, subscribers in self._subscriptions.all_subscribers():
                wants = self._wants(path, subscribers)
                if wants:
                    self.told[path] = wants
        return {name: want for wants in self.told.values() for name, want in wants.items()}

    def stop(self) -> None:
        """Nobody listens any more."""
        self.is_told = False
        self.told = {}
        self._changed.clear()
        self._doubted.clear()

    def news(self) -> News:
        """What has changed since it was last said."""
        news: News = []
        changed, self._changed = self._changed, {}
        doubted, self._doubted = self._doubted, set()
        for path in changed:
            before = self.told.pop(path, {})
            now = self._wants(path, self._subscriptions.subscribers(path))
            if now:
                self.told[path] = now
            news += [(name, want) for name, want in now.items() if path in doubted or before.get(name) != want]
            news += [(name, None) for name in before if name not in now]
        return news

    def _wants(self, path: str, subscribers: Subscribers | None) -> Wants:
        # Of a filter with wildcards the rule may be another one for some topics: who asks too much is told so.
        return wants_of(path, subscribers, self._subscriptions.rule(path).concurrency)

    def said(self, path: str) -> News:
        """The same again, for who has to know that there is room."""
        return list(self.told.get(path, {}).items())
