"""Shared subscriptions: a group of sessions of which one gets each message."""

from collections.abc import Callable
from typing import Final, TypeAlias

from polybus.broker.sessions import Session, Subscription

Choose: TypeAlias = Callable[[int], int]
"""A number below n: the source of chance is an argument."""

IsAble: TypeAlias = Callable[[Session], bool]

Strategy: TypeAlias = Callable[["SharedGroup", list[Session], IsAble], Session | None]
"""Which of these sessions (at least one) gets the next message; None: none of them is able."""


class SharedGroup:
    """The members of ``$share/<name>/<path>``."""

    __slots__ = ("_order", "_strategy", "choose", "favourite", "members", "name", "path", "turn")

    def __init__(self, name: str, path: str, strategy: str, choose: Choose) -> None:
        self.name = name
        self.path = path
        self.members: dict[Session, Subscription] = {}
        self.choose = choose
        self.favourite: Session | None = None
        self._strategy = STRATEGIES[strategy]
        self._order: list[Session] | None = []
        self.turn = 0

    @property
    def filter(self) -> str:
        return f"$share/{self.name}/{self.path}"

    def join(self, session: Session, subscription: Subscription) -> None:
        self.members[session] = subscription
        self._order = None

    def leave(self, session: Session) -> None:
        self.members.pop(session, None)
        self._order = None
        if self.favourite is session:
            self.favourite = None

    def pick(self, *, besides: Session | None = None, only_local: bool = False) -> Session | None:
        """The member that gets the next message: one that can send at once if there is any."""
        order = self._order
        if order is None:
            order = self._order = list(self.members)
        if not order:
            return None
        candidates = order if besides is None else [s for s in order if s is not besides]
        if only_local:
            candidates = [s for s in candidates if not s.is_neighbor]
        if not candidates:
            return None
        for is_able in (_is_free, _is_connected, _is_anyone):
            choice = self._strategy(self, candidates, is_able)
            if choice is not None:
                return choice
        return None


def _is_free(session: Session) -> bool:
    link = session.link
    return link is not None and not link.blocked and session.queue is None


def _is_connected(session: Session) -> bool:
    return session.link is not None


def _is_anyone(session: Session) -> bool:
    return True


def _round_robin(group: SharedGroup, sessions: list[Session], is_able: IsAble) -> Session | None:
    count = len(sessions)
    for step in range(count):
        session = sessions[(group.turn + step) % count]
        if is_able(session):
            group.turn = (group.turn + step + 1) % count
            return session
    return None


def _random(group: SharedGroup, sessions: list[Session], is_able: IsAble) -> Session | None:
    session = sessions[group.choose(len(sessions))]
    if is_able(session):
        return session
    able = [s for s in sessions if is_able(s)]
    return able[group.choose(len(able))] if able else None


def _sticky(group: SharedGroup, sessions: list[Session], is_able: IsAble) -> Session | None:
    """The same session for as long as it is connected, even if it is slow."""
    favourite = group.favourite
    if favourite is not None and favourite.link is not None and favourite in sessions:
        return favourite
    group.favourite = _random(group, sessions, is_able)
    return group.favourite


def _fewest_in_flight(group: SharedGroup, sessions: list[Session], is_able: IsAble) -> Session | None:
    return min((s for s in sessions if is_able(s)), key=Session.load, default=None)


STRATEGIES: Final[dict[str, Strategy]] = {
    "round_robin": _round_robin,
    "random": _random,
    "sticky": _sticky,
    "fewest_in_flight": _fewest_in_flight,
}
