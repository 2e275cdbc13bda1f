import json

import pytest

from polybus.errors import UsageError
from polybus.fleet.roads import as_geojson, make_country, to_degrees
from polybus.pipeline.geography import fences_at, parse_map


def collection(*features):
    return json.dumps({"type": "FeatureCollection", "features": list(features)})


def fence(coordinates, name="a", kind="Polygon"):
    return {
        "type": "Feature",
        "properties": {"kind": "geofence", "name": name},
        "geometry": {"type": kind, "coordinates": coordinates},
    }


SQUARE = [[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]
HOLE = [[4, 4], [6, 4], [6, 6], [4, 6], [4, 4]]
FAR = [[20, 20], [21, 20], [21, 21], [20, 21], [20, 20]]


@pytest.mark.parametrize(
    ("lat", "lon", "is_in"), [(1, 1, True), (5, 5, False), (3.9, 5, True), (11, 5, False), (5, -1, False)]
)
def test_a_polygon_may_have_holes(lat, lon, is_in):
    found = parse_map(collection(fence([SQUARE, HOLE])), "map")
    assert (fences_at(found.geofences, lat, lon) == {"a"}) is is_in


def test_a_geofence_may_be_in_several_places():
    (both,) = parse_map(collection(fence([[SQUARE], [FAR]], kind="MultiPolygon")), "map").geofences
    assert both.contains(5, 5)
    assert both.contains(20.5, 20.5)
    assert not both.contains(15, 15)


def test_the_country_of_a_fleet_can_be_read():
    country = make_country(3)
    found = parse_map(json.dumps(as_geojson(country)), "map")
    assert len(found.roads) == len(country.roads)
    assert len(found.cities) == len(found.geofences) == len(country.cities)
    assert len(found.dead_zones) == len(country.dead_zones)
    for city in country.cities:
        assert city.name in fences_at(found.geofences, *to_degrees(city.place))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "m.json is no GeoJSON FeatureCollection"),
        ("[]", "m.json is no GeoJSON FeatureCollection"),
        (
            collection({"properties": {"kind": "geofence", "name": "a"}}),
            "m.json, feature 1: 'geometry' is missing",
        ),
        (collection(fence([SQUARE]), fence([SQUARE])), "m.json, feature 2: there is a geofence 'a' before it"),
        (collection(fence([[0, 0]], kind="Point")), "a geofence is a Polygon or MultiPolygon, not a Point"),
        (collection(fence([SQUARE[:2]])), "a ring has at least four corners"),
        (collection(fence([[["x", 0], [1, 0], [1, 1], [0, 0]]])), "feature 1: could not convert"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        parse_map(text, "m.json")
