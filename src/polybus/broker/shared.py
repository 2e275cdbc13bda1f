"""Shared subscriptions: a group of sessions of which one gets each message."""

from collections.abc import Callable
from typing import Final, TypeAlias

from polybus.broker.sessions import Session, Subscription

Choose: TypeAlias = Callable[[int], int]
"""A number below n: the source of chance is an argument."""

Strategy: TypeAlias = Callable[["SharedGroup", list[Session]], Session]
"""Which of these sessions (at least one) gets the next message."""


class SharedGroup:
    """The members of ``$share/<name>/<path>``."""

    __slots__ = ("_order", "_strategy", "_turn", "choose", "favourite", "members", "name", "path")

    def __init__(self, name: str, path: str, strategy: str, choose: Choose) -> None:
        self.name = name
        self.path = path
        self.members: dict[Session, Subscription] = {}
        self.choose = choose
        self.favourite: Session | None = None
        self._strategy = STRATEGIES[strategy]
        self._order: list[Session] | None = []
        self._turn = 0

    def join(self, session: Session, subscription: Subscription) -> None:
        self.members[session] = subscription
        self._order = None

    def leave(self, session: Session) -> None:
        self.members.pop(session, None)
        self._order = None
        if self.favourite is session:
            self.favourite = None

    def pick(self, *, besides: Session | None = None) -> Session | None:
        """The member that gets the next message: one that can send at once if there is any."""
        order = self._order
        if order is None:
            order = self._order = list(self.members)
        if not order:
            return None
        # Most of the time everyone is able, and the first proposal stands without a look around.
        choice = self._strategy(self, order)
        if choice is not besides and _is_free(choice):
            return choice
        others = [s for s in order if s is not besides]
        able = [s for s in others if _is_free(s)] or [s for s in others if s.link is not None] or others
        return self._strategy(self, able) if able else None

    def next_turn(self) -> int:
        self._turn += 1
        return self._turn


def _is_free(session: Session) -> bool:
    link = session.link
    return link is not None and not link.blocked and session.queue is None


def _round_robin(group: SharedGroup, sessions: list[Session]) -> Session:
    return sessions[group.next_turn() % len(sessions)]


def _random(group: SharedGroup, sessions: list[Session]) -> Session:
    return sessions[group.choose(len(sessions))]


def _sticky(group: SharedGroup, sessions: list[Session]) -> Session:
    favourite = group.favourite
    if favourite is None or favourite.link is None or favourite not in sessions:
        favourite = group.favourite = sessions[group.choose(len(sessions))]
    return favourite


def _fewest_in_flight(group: SharedGroup, sessions: list[Session]) -> Session:
    return min(sessions, key=Session.load)


STRATEGIES: Final[dict[str, Strategy]] = {
    "round_robin": _round_robin,
    "random": _random,
    "sticky": _sticky,
    "fewest_in_flight": _fewest_in_flight,
}
