"""Who serves requests: instances of services, and which of them gets the next request (TB-18).

An instance is one subscription of one session that takes requests. It is busy while it has as many
requests in hand as it takes at once, and while its link takes no more bytes.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from polybus.broker.sessions import Session
from polybus.broker.shared import Choose


class ServiceRule(msgspec.Struct, frozen=True):
    """How requests to topics that match `filter` are given to instances."""

    filter: str = "#"
    strategy: str = "first_free"
    concurrency: int = 1
    """Requests an instance has at once, if it does not say so itself."""
    answer_within_s: float = 0.0
    """How long an instance has before another one gets the request; 0: as long as the request lives."""


STRATEGY_NAMES: Final = ("first_free", "round_robin", "random", "fastest")
