"""The office asks trucks how they are: requests with every kind of end, for tables of latency and outcomes.

When the office asks, and how a truck takes it, are functions of the plan, as the records are.
"""

import math
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from polybus.fleet.schedule import Plan, truck_name

EVERY_S: Final = 600.0
"""Virtual seconds between two calls to the same truck, on average."""
NOBODY: Final = 0.01
"""Share of calls to a truck that is not there."""
FAILS: Final = 0.02
MEDIAN_S, SPREAD = 0.02, 0.7
"""Of the time a truck takes to answer: real seconds, lognormal."""
TIMEOUT_S: Final = 1
KIND: Final = "ping"


class Call(NamedTuple):
    at_s: float
    truck: str


class Reaction(NamedTuple):
    delay_s: float
    """Real seconds."""
    fails: bool


def calls(plan: Plan) -> Iterator[Call]:
    random = Random(f"{plan.seed} calls")
    now_s = 0.0
    while (now_s := now_s + random.expovariate(plan.trucks / EVERY_S)) < plan.duration_s:
        is_there = random.random() >= NOBODY
        yield Call(now_s, truck_name(random.randint(1, plan.trucks) if is_there else plan.trucks + 1))


def reactions(plan: Plan, truck: str) -> Iterator[Reaction]:
    """Without end: to its first call, its second, …"""
    random = Random(f"{plan.seed} {truck} calls")
    while True:
        yield Reaction(random.lognormvariate(math.log(MEDIAN_S), SPREAD), random.random() < FAILS)
