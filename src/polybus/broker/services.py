"""Who serves requests: instances of services, and which of them gets the next request (TB-18).

An instance is one subscription of one session that takes requests. It is busy while it has as many
requests in hand as it takes at once, and while its link takes no more bytes.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from polybus.broker.sessions import Session
from polybus.broker.shared import Choose

AS_THE_RULE_SAYS: Final = -1
"""`Subscription.serves` of a service that does not say how much it takes at once."""
_WEIGHT: Final = 0.2
"""Of the latest answer in an instance's average."""


class ServiceRule(msgspec.Struct, frozen=True):
    """How requests to topics that match `filter` are given to instances."""

    filter: str = "#"
    strategy: str = "first_free"
    concurrency: int = 1
    """Requests an instance has at once, if it does not say so itself."""
    answer_within_s: float = 0.0
    """How long an instance has before another one gets the request; 0: as long as the request lives."""


class Instance:
    __slots__ = ("average_s", "busy", "given", "is_shut", "order", "path", "serves", "session")

    def __init__(self, session: Session, path: str, serves: int, order: int) -> None:
        self.session = session
        self.path = path
        self.serves = serves
        self.order = order
        """When it subscribed, as a number."""
        self.busy = 0
        """Requests it has in hand."""
        self.given = 0
        """When it last got a request, as a number."""
        self.average_s = 0.0
        self.is_shut = False
        """Of a neighbour: its services are busy with what others asked, and it will say when they are not."""

    def is_free(self, concurrency: int) -> bool:
        link = self.session.link
        limit = self.serves if self.serves > 0 else concurrency
        return link is not None and not link.blocked and self.busy < limit and not self.is_shut

    def give_back(self, took_s: float) -> None:
        """It has answered a request, or lost it."""
        self.busy -= 1
        self.average_s += (took_s - self.average_s) * _WEIGHT if self.average_s else took_s


class Desk:
    """Where requests to one topic are given out: the instances there in the order they subscribed, neighbours
    behind all others."""

    __slots__ = ("_choose", "_local", "_strategy", "instances", "rule")

    def __init__(self, rule: ServiceRule, instances: list[Instance], choose: Choose) -> None:
        self.rule = rule
        self.instances = instances
        self._strategy = STRATEGIES[rule.strategy]
        self._choose = choose
        self._local: Desk | None = None

    def local(self) -> "Desk":
        """Without the neighbours: for what came from one of them."""
        if self._local is None:
            near = [i for i in self.instances if not i.session.is_neighbor]
            self._local = Desk(self.rule, near, self._choose) if len(near) < len(self.instances) else self
        return self._local

    def pick(self, besides: set[Instance] | None) -> Instance | None:
        """The instance that gets the next request; None: all others are busy or away."""
        instances = self.instances
        concurrency = self.rule.concurrency
        if len(instances) == 1:  # nothing to choose
            only = instances[0]
            return only if only.is_free(concurrency) and not (besides and only in besides) else None
        able = (i for i in instances if i.is_free(concurrency) and not (besides and i in besides))
        if self._strategy is _first_free:  # no need to look at the others
            return next(able, None)
        free = list(able)
        if free and free[-1].session.is_neighbor and not free[0].session.is_neighbor:
            free = [i for i in free if not i.session.is_neighbor]
        return self._strategy(free, self._choose) if free else None

    def has_hope(self, besides: set[Instance] | None) -> bool:
        """Someone else is there who may become free."""
        return any(i.session.link is not None and not (besides and i in besides) for i in self.instances)


Strategy: TypeAlias = Callable[[list[Instance], Choose], Instance]
"""One of these free instances (at least one, in the order they subscribed)."""


def _first_free(free: list[Instance], choose: Choose) -> Instance:
    return free[0]


def _round_robin(free: list[Instance], choose: Choose) -> Instance:
    """Who has had none for the longest time is next."""
    return min(free, key=_given)


def _random(free: list[Instance], choose: Choose) -> Instance:
    return free[choose(len(free))]


def _fastest(free: list[Instance], choose: Choose) -> Instance:
    """By the average time to answer; whoever was never asked comes first."""
    return min(free, key=_average)


def _given(instance: Instance) -> int:
    return instance.given


def _average(instance: Instance) -> float:
    return instance.average_s


STRATEGIES: Final[dict[str, Strategy]] = {
    "first_free": _first_free,
    "round_robin": _round_robin,
    "random": _random,
    "fastest": _fastest,
}
