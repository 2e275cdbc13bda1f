"""What a truck puts into its records. Sizes are those of table 2-2, and come from what is in a record."""

import math
from random import Random
from typing import Final

from polybus.fleet.driving import Fix, Itinerary
from polybus.fleet.records import Encoding, Position, Tachograph, TrackPoint, Tyre, Update, Vehicle
from polybus.fleet.roads import to_degrees

TRACK_POINTS: Final = 28
TRACK_STEP_S: Final = 2.0
SAMPLES: Final = 36
TYRES: Final = 10
FILE_BYTES: Final = 100_000
PIECE_BYTES: Final = 64 * 1024
UPDATE_BYTES: Final = 10_000_000
PIECES: Final = math.ceil(UPDATE_BYTES / PIECE_BYTES)
FAULTS: Final = ("P0128 coolant", "P0299 turbo", "P0401 egr", "U0100 bus", "C0035 wheel")
IDLE_RPM: Final = 600.0


def position(itinerary: Itinerary, now_s: float, *, id: str, truck: str, at: int) -> Position:
    fix = itinerary.at(now_s)
    lat, lon = to_degrees(fix.place)
    return Position(
        id=id,
        truck=truck,
        at=at,
        lat=round(lat, 6),
        lon=round(lon, 6),
        heading_deg=round(fix.heading_deg, 1) % 360,
        speed_kmh=round(fix.speed_kmh, 1),
        odometer_km=round(fix.odometer_km, 2),
        road=fix.road,
        track=[
            _track_point(itinerary, now_s, TRACK_STEP_S * step)
            for step in range(1, TRACK_POINTS + 1)
            if now_s >= TRACK_STEP_S * step
        ],
    )


def vehicle(fix: Fix, random: Random, *, id: str, truck: str, at: int) -> Vehicle:
    rpm = 1050 + fix.speed_kmh * 4 if fix.is_moving else IDLE_RPM
    return Vehicle(
        id=id,
        truck=truck,
        at=at,
        engine_rpm=round(rpm * random.uniform(0.95, 1.05), 1),
        engine_temperature_c=round(random.gauss(86, 2), 1),
        oil_pressure_bar=round(random.gauss(4.2, 0.2), 2),
        fuel_l=round(400 - (fix.odometer_km * 0.28) % 380, 1),
        fuel_rate_l_h=round(max(1.0, fix.speed_kmh * 0.28 * random.uniform(0.8, 1.3)), 1),
        load_kg=round(random.gauss(18_000, 150), 0),
        battery_v=round(random.gauss(27.6, 0.2), 2),
        brake_bar=round(random.gauss(9.8, 0.2), 2),
        tyres=[Tyre(round(random.gauss(8.5, 0.1), 2), round(random.gauss(38, 3), 1)) for _ in range(TYRES)],
        samples=[
            [
                round(rpm * random.uniform(0.95, 1.05)),
                round(random.uniform(5, 95)),
                12.0 if fix.is_moving else 0.0,
            ]
            for _ in range(SAMPLES)
        ],
        faults=[random.choice(FAULTS)] if random.random() < 0.01 else [],
    )


def tachograph(fix: Fix, random: Random, encoding: Encoding, *, id: str, truck: str, at: int) -> Tachograph:
    size = FILE_BYTES * random.uniform(0.8, 1.2)
    return Tachograph(
        id=id,
        truck=truck,
        at=at,
        driver=f"driver of {truck}",
        driven_s=int(fix.driven_s),
        rested_s=0 if fix.is_moving else 900,
        data=random.randbytes(_raw(size, encoding)),
    )


def update_piece(
    name: str, piece: int, random: Random, encoding: Encoding, *, id: str, truck: str, at: int
) -> Update:
    size = min(PIECE_BYTES, UPDATE_BYTES - piece * PIECE_BYTES)
    return Update(
        id=id,
        truck=truck,
        at=at,
        file=name,
        version=name.rsplit("-", 1)[-1],
        piece=piece,
        pieces=PIECES,
        data=random.randbytes(_raw(size, encoding)),
    )


def _raw(size: float, encoding: Encoding) -> int:
    """JSON has bytes as base64, which makes four of three."""
    return int(size * 3 / 4) if encoding == "json" else int(size)


def _track_point(itinerary: Itinerary, now_s: float, seconds_ago: float) -> TrackPoint:
    fix = itinerary.at(now_s - seconds_ago)
    lat, lon = to_degrees(fix.place)
    return TrackPoint(seconds_ago, round(lat, 5), round(lon, 5), round(fix.speed_kmh, 1))
