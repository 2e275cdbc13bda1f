"""A country to drive in: cities on a grid of kilometres, roads between them, places without coverage.

All of it follows from a seed. East is x, north is y; `to_degrees` puts the grid on the globe as if flat
(good enough for a map of a few hundred kilometres).
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

WIDTH_KM: Final = 420.0
HEIGHT_KM: Final = 300.0
ORIGIN_LAT: Final = 57.0
ORIGIN_LON: Final = 12.5
KM_PER_DEGREE: Final = 111.32
_KM_PER_LON: Final = KM_PER_DEGREE * math.cos(math.radians(ORIGIN_LAT + HEIGHT_KM / KM_PER_DEGREE / 2))

CITIES: Final = 14
NEIGHBOURS: Final = 3
BEND_KM: Final = 12.0
"""Between two points of a road's line."""
FENCE_CORNERS: Final = 12
MOTORWAY_KMH, HIGHWAY_KMH = 85.0, 70.0

_SYLLABLES: Final = (
    "al",
    "bro",
    "da",
    "el",
    "fors",
    "gran",
    "hult",
    "kil",
    "lin",
    "mo",
    "nor",
    "os",
    "sund",
    "vik",
)


class Point(NamedTuple):
    x: float
    y: float

    def to(self, other: "Point") -> float:
        return math.hypot(other.x - self.x, other.y - self.y)


class City(NamedTuple):
    name: str
    place: Point
    radius_km: float
    """Of the zone that a geofence watches."""


class Road(NamedTuple):
    name: str
    ends: tuple[int, int]
    """Numbers of cities."""
    line: tuple[Point, ...]
    length_km: float
    speed_kmh: float


class DeadZone(NamedTuple):
    place: Point
    radius_km: float


class Country(NamedTuple):
    cities: tuple[City, ...]
    roads: tuple[Road, ...]
    dead_zones: tuple[DeadZone, ...]


def make_country(seed: int) -> Country:
    random = Random(f"country {seed}")
    cities = tuple(_cities(random))
    roads = tuple(_roads(random, cities))
    return Country(cities, roads, tuple(_dead_zones(random, cities, roads)))


def to_degrees(point: Point) -> tuple[float, float]:
    """Latitude, longitude."""
    return ORIGIN_LAT + point.y / KM_PER_DEGREE, ORIGIN_LON + point.x / _KM_PER_LON


def route(country: Country, start: int, end: int) -> list[tuple[Road, bool]]:
    """The quickest way, as roads; True: driven from its second end to its first."""
    by_city: dict[int, list[tuple[Road, bool, int]]] = {}
    for road in country.roads:
        first, second = road.ends
        by_city.setdefault(first, []).append((road, False, second))
        by_city.setdefault(second, []).append((road, True, first))
    heap: list[tuple[float, int]] = [(0.0, start)]
    came: dict[int, tuple[Road, bool, int]] = {}
    best = {start: 0.0}
    while heap:
        hours, city = heapq.heappop(heap)
        if city == end:
            break
        if hours > best[city]:
            continue
        for road, is_backward, other in by_city[city]:
            there = hours + road.length_km / road.speed_kmh
            if there < best.get(other, math.inf):
                best[other] = there
                came[other] = (road, is_backward, city)
                heapq.heappush(heap, (there, other))
    way: list[tuple[Road, bool]] = []
    while end != start:
        road, is_backward, end = came[end]
        way.append((road, is_backward))
    return way[::-1]


def as_geojson(country: Country) -> dict[str, Any]:
    """For maps and for the pipeline: cities, roads, and a geofence around each city."""

    def feature(geometry_type: str, coordinates: object, **properties: object) -> dict[str, Any]:
        geometry = {"type": geometry_type, "coordinates": coordinates}
        return {"type": "Feature", "geometry": geometry, "properties": properties}

    return {
        "type": "FeatureCollection",
        "features": [
            *(
                feature("LineString", [_lon_lat(p) for p in road.line], kind="road", name=road.name)
                for road in country.roads
            ),
            *(feature("Point", _lon_lat(city.place), kind="city", name=city.name) for city in country.cities),
            *(
                feature("Polygon", [_ring(city.place, city.radius_km)], kind="geofence", name=city.name)
                for city in country.cities
            ),
            *(
                feature(
                    "Polygon", [_ring(zone.place, zone.radius_km)], kind="dead zone", name=f"dead zone {number}"
                )
                for number, zone in enumerate(country.dead_zones, 1)
            ),
        ],
    }


# --- how it is made -------------------------------------------------------------------------------


def _cities(random: Random) -> Iterator[City]:
    places: list[Point] = []
    distance = 70.0
    while len(places) < CITIES:
        place = Point(random.uniform(15, WIDTH_KM - 15), random.uniform(15, HEIGHT_KM - 15))
        if all(place.to(other) >= distance for other in places):
            places.append(place)
        distance *= 0.995  # a crowded map is still a map
    names: list[str] = []
    while len(names) < CITIES:
        name = "".join(random.sample(_SYLLABLES, 2)).capitalize()
        if name not in names:
            names.append(name)
    for name, place in zip(names, places, strict=True):
        yield City(name, place, round(random.uniform(5, 9), 1))


def _roads(random: Random, cities: Sequence[City]) -> Iterator[Road]:
    """Each city's nearest ones, and what joins the parts that this leaves."""
    pairs = {
        (min(here, there), max(here, there))
        for here in range(len(cities))
        for there in sorted(range(len(cities)), key=lambda other: cities[here].place.to(cities[other].place))[
            1 : NEIGHBOURS + 1
        ]
    }
    part = _parts(len(cities), pairs)
    while len(set(part.values())) > 1:
        pairs.add(
            min(
                ((a, b) for a in part for b in part if a < b and part[a] != part[b]),
                key=lambda pair: cities[pair[0]].place.to(cities[pair[1]].place),
            )
        )
        part = _parts(len(cities), pairs)
    for number, (first, second) in enumerate(sorted(pairs), 1):
        line = tuple(_line(random, cities[first].place, cities[second].place))
        is_motorway = random.random() < 0.4
        yield Road(
            f"{'E' if is_motorway else 'R'}{number}",
            (first, second),
            line,
            sum(a.to(b) for a, b in itertools.pairwise(line)),
            MOTORWAY_KMH if is_motorway else HIGHWAY_KMH,
        )


def _parts(count: int, pairs: set[tuple[int, int]]) -> Mapping[int, int]:
    part = {city: city for city in range(count)}
    for first, second in sorted(pairs):
        old, new = part[second], part[first]
        part = {city: new if name == old else name for city, name in part.items()}
    return part


def _line(random: Random, start: Point, end: Point) -> Iterator[Point]:
    """A straight line that sways: roads go around things."""
    length = start.to(end)
    steps = max(2, round(length / BEND_KM))
    sway = random.uniform(-0.08, 0.08) * length
    normal = Point(-(end.y - start.y) / length, (end.x - start.x) / length)
    yield start
    for step in range(1, steps):
        share = step / steps
        aside = sway * math.sin(math.pi * share) + random.uniform(-1.5, 1.5)
        yield Point(
            start.x + (end.x - start.x) * share + normal.x * aside,
            start.y + (end.y - start.y) * share + normal.y * aside,
        )
    yield end


def _dead_zones(random: Random, cities: Sequence[City], roads: Sequence[Road]) -> Iterator[DeadZone]:
    """On roads, away from cities: forests and mines (section 1.6)."""
    for road in random.sample(list(roads), max(3, len(roads) // 5)):
        place = road.line[len(road.line) // 2]
        if all(place.to(city.place) > city.radius_km + 8 for city in cities):
            yield DeadZone(place, round(random.uniform(6, 14), 1))


def _lon_lat(point: Point) -> list[float]:
    lat, lon = to_degrees(point)
    return [round(lon, 6), round(lat, 6)]


def _ring(centre: Point, radius_km: float) -> list[list[float]]:
    turns = [2 * math.pi * corner / FENCE_CORNERS for corner in range(FENCE_CORNERS)]
    ring = [
        _lon_lat(Point(centre.x + radius_km * math.cos(turn), centre.y + radius_km * math.sin(turn)))
        for turn in turns
    ]
    return [*ring, ring[0]]
