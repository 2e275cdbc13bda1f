"""Where a truck is at any time: a chain of legs (driving) and stops, made from its seed as far as needed.

The driver keeps the rules that the tachograph is there for: 45 minutes of break after 4.5 hours at the wheel,
11 hours of rest after 9. The day begins within the first half hour of the simulation.
"""

import bisect
import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from polybus.fleet.roads import Country, Point, Road, route

BREAK_AFTER_S: Final = 4.5 * 3600
BREAK_S: Final = 45 * 60.0
REST_AFTER_S: Final = 9 * 3600.0
REST_S: Final = 11 * 3600.0
LOADING_S: Final = (10 * 60.0, 40 * 60.0)
FIRST_START_S: Final = 1800.0
TOWN_KMH: Final = 45.0


class Stretch(NamedTuple):
    """From one time to another in a straight line, at one speed; a stop has the same place at both ends."""

    begin_s: float
    end_s: float
    start: Point
    end: Point
    speed_kmh: float
    road: str
    odometer_km: float
    """At its begin."""
    driven_s: float
    """At the wheel since the day began, at its begin."""


class Fix(NamedTuple):
    """What a truck knows of itself at a time."""

    place: Point
    heading_deg: float
    speed_kmh: float
    odometer_km: float
    road: str
    driven_s: float
    is_moving: bool
    is_resting: bool
    """Engine off: nothing but a sign of life now and then."""


REST: Final = "rest"
STOP: Final = "stop"


class Itinerary:
    """Raises nothing; makes as many stretches as `at` asks for, the same ones each time."""

    def __init__(self, seed: int, truck: str, country: Country) -> None:
        self._stretches: list[Stretch] = []
        self._begins: list[float] = []
        self._source = _drive(Random(f"{seed} {truck} route"), country)

    def at(self, time_s: float) -> Fix:
        while not self._stretches or self._stretches[-1].end_s <= time_s:
            stretch = next(self._source)
            self._stretches.append(stretch)
            self._begins.append(stretch.begin_s)
        stretch = self._stretches[bisect.bisect_right(self._begins, time_s) - 1]
        share = (time_s - stretch.begin_s) / (stretch.end_s - stretch.begin_s)
        dx, dy = stretch.end.x - stretch.start.x, stretch.end.y - stretch.start.y
        is_moving = stretch.speed_kmh > 0
        return Fix(
            Point(stretch.start.x + dx * share, stretch.start.y + dy * share),
            math.degrees(math.atan2(dx, dy)) % 360 if is_moving else 0.0,
            stretch.speed_kmh,
            stretch.odometer_km + math.hypot(dx, dy) * share,
            stretch.road if is_moving else "",
            stretch.driven_s + (time_s - stretch.begin_s if is_moving else 0.0),
            is_moving,
            stretch.road == REST,
        )


def _drive(random: Random, country: Country) -> Iterator[Stretch]:
    city = random.randrange(len(country.cities))
    now, odometer = 0.0, random.uniform(10_000, 400_000)
    driven, since_break = 0.0, 0.0

    def stand(seconds: float, kind: str) -> Stretch:
        return Stretch(now, now + seconds, place, place, 0.0, kind, odometer, driven)

    place = country.cities[city].place
    yield stand(pause := random.uniform(60, FIRST_START_S), STOP)
    now += pause
    while True:
        goal = random.choice([other for other in range(len(country.cities)) if other != city])
        for start, end, road in _points(country, city, goal):
            if driven >= REST_AFTER_S:
                yield stand(REST_S, REST)
                now, driven, since_break = now + REST_S, 0.0, 0.0
            elif since_break >= BREAK_AFTER_S:
                yield stand(BREAK_S, STOP)
                now, since_break = now + BREAK_S, 0.0
            speed = _speed(random, country, road, start, end)
            length = start.to(end)
            seconds = length / speed * 3600
            yield Stretch(now, now + seconds, start, end, speed, road.name, odometer, driven)
            now, odometer = now + seconds, odometer + length
            driven, since_break = driven + seconds, since_break + seconds
            place = end
        city = goal
        yield stand(pause := random.uniform(*LOADING_S), STOP)
        now += pause


def _points(country: Country, city: int, goal: int) -> Iterator[tuple[Point, Point, Road]]:
    for road, is_backward in route(country, city, goal):
        line = road.line[::-1] if is_backward else road.line
        for start, end in itertools.pairwise(line):
            yield start, end, road


def _speed(random: Random, country: Country, road: Road, start: Point, end: Point) -> float:
    near_town = any(
        min(start.to(city.place), end.to(city.place)) < city.radius_km / 2 for city in country.cities
    )
    return (TOWN_KMH if near_town else road.speed_kmh) * random.uniform(0.82, 1.03)
