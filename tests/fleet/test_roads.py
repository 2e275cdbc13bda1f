import json
import math
from itertools import pairwise

import pytest

from polybus.fleet.roads import CITIES, HEIGHT_KM, WIDTH_KM, as_geojson, make_country, route, to_degrees

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_city_can_be_reached_from_every_other(seed):
    country = make_country(seed)
    for start in range(CITIES):
        for end in range(CITIES):
            way = route(country, start, end)
            place = country.cities[start].place
            for road, is_backward in way:
                line = road.line[::-1] if is_backward else road.line
                assert line[0] == place
                place = line[-1]
            assert place == country.cities[end].place


@pytest.mark.parametrize("seed", SEEDS)
def test_roads_are_as_long_as_their_lines_and_stay_near_the_map(seed):
    for road in make_country(seed).roads:
        assert road.length_km == pytest.approx(sum(a.to(b) for a, b in pairwise(road.line)))
        assert all(-60 < point.x < WIDTH_KM + 60 and -60 < point.y < HEIGHT_KM + 60 for point in road.line)


def test_the_same_seed_makes_the_same_country_and_another_another():
    assert make_country(3) == make_country(3)
    assert make_country(3) != make_country(4)


def test_no_city_is_without_coverage():
    for seed in SEEDS:
        country = make_country(seed)
        assert country.dead_zones
        for zone in country.dead_zones:
            assert all(zone.place.to(city.place) > city.radius_km for city in country.cities)


def test_the_map_is_geojson_with_closed_rings_in_longitude_and_latitude():
    country = make_country(1)
    features = json.loads(json.dumps(as_geojson(country)))["features"]
    fences = [each for each in features if each["properties"]["kind"] == "geofence"]
    assert len(fences) == CITIES
    for fence, city in zip(fences, country.cities, strict=True):
        (ring,) = fence["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        lat, lon = to_degrees(city.place)
        for corner_lon, corner_lat in ring:
            east = (corner_lon - lon) * 111.32 * math.cos(math.radians(lat))
            north = (corner_lat - lat) * 111.32
            assert math.hypot(east, north) == pytest.approx(city.radius_km, rel=0.05)
