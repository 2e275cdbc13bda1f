"""Maps in GeoJSON, and the zones in them that are watched: geofences.

A geofence is a Polygon (or MultiPolygon) with `"kind": "geofence"` and a `name` among its properties. Other
features are drawn on maps if their kind is `road`, `city` or `dead zone`, and else left alone.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from polybus.errors import UsageError

Ring = tuple[tuple[float, float], ...]
"""Corners as longitude, latitude."""


class Geofence(NamedTuple):
    name: str
    polygons: tuple[tuple[Ring, ...], ...]
    """Each an outline and holes in it."""
    box: tuple[float, float, float, float]
    """West, south, east, north."""

    def contains(self, lat: float, lon: float) -> bool:
        west, south, east, north = self.box
        if not (west <= lon <= east and south <= lat <= north):
            return False
        return any(
            _is_in_ring(lat, lon, outline) and not any(_is_in_ring(lat, lon, hole) for hole in holes)
            for outline, *holes in self.polygons
        )


class Map(NamedTuple):
    geofences: tuple[Geofence, ...] = ()
    roads: tuple[Ring, ...] = ()
    cities: tuple[tuple[str, float, float], ...] = ()
    """Name, longitude, latitude."""
    dead_zones: tuple[Ring, ...] = ()


def parse_map(text: str, name: str) -> Map:
    """Raises `UsageError` that says what is wrong with which feature of the file `name`."""
    try:
        document = json.loads(text)
        features = document["features"]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{name} is no GeoJSON FeatureCollection: try polybus fleet --map > {name}") from error
    fences: dict[str, Geofence] = {}
    roads: list[Ring] = []
    cities: list[tuple[str, float, float]] = []
    zones: list[Ring] = []
    for number, feature in enumerate(features, 1):
        try:
            properties, geometry = feature.get("properties") or {}, feature["geometry"]
            match properties.get("kind"):
                case "geofence":
                    fence = _geofence(str(properties["name"]), geometry)
                    if fence.name in fences:
                        raise ValueError(f"there is a geofence {fence.name!r} before it")
                    fences[fence.name] = fence
                case "road":
                    roads.append(_ring(geometry["coordinates"]))
                case "city":
                    lon, lat = geometry["coordinates"][:2]
                    cities.append((str(properties["name"]), float(lon), float(lat)))
                case "dead zone":
                    zones.append(_ring(geometry["coordinates"][0]))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UsageError(f"{name}, feature {number}: {_said(error)}") from error
    return Map(tuple(fences.values()), tuple(roads), tuple(cities), tuple(zones))


def fences_at(fences: Sequence[Geofence], lat: float, lon: float) -> set[str]:
    return {fence.name for fence in fences if fence.contains(lat, lon)}


def _geofence(name: str, geometry: Any) -> Geofence:
    match geometry["type"]:
        case "Polygon":
            polygons = [geometry["coordinates"]]
        case "MultiPolygon":
            polygons = geometry["coordinates"]
        case other:
            raise ValueError(f"a geofence is a Polygon or MultiPolygon, not a {other}")
    parsed = tuple(tuple(_ring(ring) for ring in polygon) for polygon in polygons)
    for polygon in parsed:
        if not polygon or any(len(ring) < 4 for ring in polygon):
            raise ValueError("a ring has at least four corners, the last the same as the first")
    corners = [corner for polygon in parsed for corner in polygon[0]]
    longitudes, latitudes = [lon for lon, _ in corners], [lat for _, lat in corners]
    return Geofence(name, parsed, (min(longitudes), min(latitudes), max(longitudes), max(latitudes)))


def _ring(coordinates: Any) -> Ring:
    return tuple((float(corner[0]), float(corner[1])) for corner in coordinates)


def _is_in_ring(lat: float, lon: float, ring: Ring) -> bool:
    """How often a line to the east crosses it: an odd number from inside."""
    inside = False
    previous_lon, previous_lat = ring[-1]
    for corner_lon, corner_lat in ring:
        if (corner_lat > lat) != (previous_lat > lat):
            crossing = (previous_lon - corner_lon) * (lat - corner_lat) / (
                previous_lat - corner_lat
            ) + corner_lon
            if lon < crossing:
                inside = not inside
        previous_lon, previous_lat = corner_lon, corner_lat
    return inside


def _said(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
