"""What a fleet sends and when, in virtual time: a function of the plan, without a clock (LB-05, table 2-2).

A truck makes records at the rates of the table. Where it has no coverage they wait; when it is back they
go out in a burst, some out of order. Now and then one goes twice, as QoS 1 allows, and if the plan says so
some are damaged. A truck's records do not depend on how many others there are.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Final, NamedTuple

import msgspec

from polybus.fleet import telemetry
from polybus.fleet.damage import damaged
from polybus.fleet.driving import Fix, Itinerary
from polybus.fleet.records import Encoding, Record, encode_record, topic_of
from polybus.fleet.roads import Country

DISPATCH: Final = "dispatch"
"""The client id of the office: it sends software updates, and asks trucks how they are."""
EVERY_S: Final[Mapping[str, float]] = {"vehicle": 6.0, "position": 60.0, "tachograph": 900.0}
"""10 a minute, 1 a minute, 4 an hour."""
SIGN_OF_LIFE_S: Final = 1800.0
"""Between the positions of a truck that rests."""
UPDATE_PIECE_EVERY_S: Final = 2.0
BURST_S: Final = 0.2
"""Between two records of those that waited."""
TWICE: Final = 0.002
TWICE_AFTER_GAP: Final = 0.05
OUTAGES_PER_DAY: Final = 3.0
OUTAGE_S: Final = 900.0
LONG_OUTAGE: Final = 0.1
"""Share of outages that are of another kind: the truck in a hall, the modem in repair."""
LONG_OUTAGE_S: Final = 4 * 3600.0
DAY_S: Final = 86_400.0


class Plan(msgspec.Struct, frozen=True):
    country: Country
    trucks: int
    seed: int
    start_ms: int
    """The virtual time 0, in milliseconds since 1970."""
    duration_s: float
    encoding: Encoding = "json"
    updates_per_truck_day: float = 0.05
    damaged_share: float = 0.0


class Sending(NamedTuple):
    """Ordered by when it is sent."""

    send_s: float
    sender: str
    number: int
    """Of those from this sender to this topic's truck."""
    made_s: float
    kind: str
    topic: str
    payload: bytes
    is_copy: bool


def truck_name(number: int) -> str:
    return f"truck-{number:03d}"


def sendings(plan: Plan) -> Iterator[Sending]:
    """All that the fleet and its office send, in order of time."""
    sources = [truck_sendings(plan, truck_name(number)) for number in range(1, plan.trucks + 1)]
    return heapq.merge(*sources, update_sendings(plan))


def truck_sendings(plan: Plan, truck: str) -> Iterator[Sending]:
    """What is not sent when the time is over is never sent."""
    outbox = _Outbox(plan, truck)
    coverage = Coverage(plan, truck)
    held: list[tuple[float, str, Record]] = []
    for made_s, kind, fix, record in _made(plan, truck):
        yield from outbox.due(made_s)
        if not coverage.has(made_s, fix):
            held.append((made_s, kind, record))
            continue
        for count, (old_s, old_kind, old) in enumerate(_shuffled(held, outbox.random)):
            outbox.put(made_s + count * BURST_S, old_s, old_kind, old, TWICE_AFTER_GAP)
        outbox.put(made_s + len(held) * BURST_S, made_s, kind, record, TWICE)
        held.clear()
    yield from outbox.due(plan.duration_s)


def update_sendings(plan: Plan) -> Iterator[Sending]:
    return heapq.merge(*(_updates(plan, truck_name(number)) for number in range(1, plan.trucks + 1)))


class Coverage:
    """Whether a truck can be reached: not in a dead zone, and not during an outage of its own."""

    def __init__(self, plan: Plan, truck: str) -> None:
        self._zones = plan.country.dead_zones
        self._outages = list(_outages(Random(f"{plan.seed} {truck} outages"), plan.duration_s))

    def has(self, time_s: float, fix: Fix) -> bool:
        return not any(begin <= time_s < end for begin, end in self._outages) and not any(
            zone.place.to(fix.place) < zone.radius_km for zone in self._zones
        )


# --- one truck ------------------------------------------------------------------------------------


def _made(plan: Plan, truck: str) -> Iterator[tuple[float, str, Fix, Record]]:
    random = Random(f"{plan.seed} {truck} records")
    itinerary = Itinerary(plan.seed, truck, plan.country)
    phase = {kind: random.uniform(0, every) for kind, every in EVERY_S.items()}
    due = [(when, kind) for kind, when in phase.items()]
    heapq.heapify(due)
    number, last_sign_s = 0, -math.inf
    while due[0][0] < plan.duration_s:
        now_s, kind = heapq.heappop(due)
        heapq.heappush(due, (now_s + EVERY_S[kind], kind))
        fix = itinerary.at(now_s)
        if fix.is_resting and (kind != "position" or now_s < last_sign_s + SIGN_OF_LIFE_S):
            continue
        number += 1
        record = _record(kind, itinerary, random, plan, now_s, _id(plan, truck, number), truck)
        if kind == "position":
            last_sign_s = now_s
        yield now_s, kind, fix, record


def _record(
    kind: str, itinerary: Itinerary, random: Random, plan: Plan, now_s: float, id: str, truck: str
) -> Record:
    fix = itinerary.at(now_s)
    at = plan.start_ms + round(now_s * 1000)
    match kind:
        case "position":
            return telemetry.position(itinerary, now_s, id=id, truck=truck, at=at)
        case "vehicle":
            return telemetry.vehicle(fix, random, id=id, truck=truck, at=at)
        case "tachograph":
            return telemetry.tachograph(fix, random, plan.encoding, id=id, truck=truck, at=at)
        case _:
            raise AssertionError(kind)


class _Outbox:
    """Sends in order of time what may have been put in another order."""

    def __init__(self, plan: Plan, truck: str) -> None:
        self.random = Random(f"{plan.seed} {truck} network")
        self._plan = plan
        self._truck = truck
        self._number = 0
        self._heap: list[Sending] = []

    def put(self, send_s: float, made_s: float, kind: str, record: Record, twice: float) -> None:
        topic, payload = topic_of(self._truck, kind), encode_record(record, self._plan.encoding)
        if self._plan.damaged_share and self.random.random() < self._plan.damaged_share:
            topic, payload = damaged(topic, payload, record, self.random)
        self._push(send_s, made_s, kind, topic, payload, False)
        if self.random.random() < twice:
            self._push(send_s + self.random.uniform(1, 30), made_s, kind, topic, payload, True)

    def due(self, now_s: float) -> Iterator[Sending]:
        while self._heap and self._heap[0].send_s <= now_s:
            yield heapq.heappop(self._heap)

    def _push(self, send_s: float, made_s: float, kind: str, topic: str, payload: bytes, is_copy: bool) -> None:
        self._number += 1
        sending = Sending(send_s, self._truck, self._number, made_s, kind, topic, payload, is_copy)
        heapq.heappush(self._heap, sending)


def _shuffled(held: list[tuple[float, str, Record]], random: Random) -> list[tuple[float, str, Record]]:
    """Mostly in order: several queues are emptied at once, not a deck of cards."""
    places = [place + random.uniform(0, 6) for place in range(len(held))]
    return [held[place] for place in sorted(range(len(held)), key=places.__getitem__)]


def _outages(random: Random, duration_s: float) -> Iterator[tuple[float, float]]:
    now_s = random.expovariate(OUTAGES_PER_DAY / DAY_S)
    while now_s < duration_s:
        mean = LONG_OUTAGE_S if random.random() < LONG_OUTAGE else OUTAGE_S
        end_s = now_s + random.uniform(0.3, 1.7) * mean
        yield now_s, end_s
        now_s = end_s + random.expovariate(OUTAGES_PER_DAY / DAY_S)


def _updates(plan: Plan, truck: str) -> Iterator[Sending]:
    random = Random(f"{plan.seed} {truck} updates")
    if not plan.updates_per_truck_day:
        return
    begin_s, number, sent = 0.0, 0, 0
    while (begin_s := begin_s + random.expovariate(plan.updates_per_truck_day / DAY_S)) < plan.duration_s:
        number += 1
        name = f"firmware-{truck}-4.{number}"
        for piece in range(telemetry.PIECES):
            now_s = begin_s + piece * UPDATE_PIECE_EVERY_S
            if now_s >= plan.duration_s:
                return
            sent += 1
            record = telemetry.update_piece(
                name,
                piece,
                random,
                plan.encoding,
                id=_id(plan, f"{DISPATCH}-{truck}", sent),
                truck=truck,
                at=plan.start_ms + round(now_s * 1000),
            )
            payload = encode_record(record, plan.encoding)
            yield Sending(now_s, DISPATCH, sent, now_s, "update", topic_of(truck, "update"), payload, False)
        begin_s += telemetry.PIECES * UPDATE_PIECE_EVERY_S


def _id(plan: Plan, sender: str, number: int) -> str:
    """Another run has another start, so its records have other ids."""
    return f"{sender}-{plan.start_ms:x}-{number}"
