"""What trucks send: one struct a kind, as JSON or as MessagePack, told apart by the first byte.

Every record says the version of its schema, an id that no other record has (a message sent twice is
found by it), its truck and when it was made. The pipeline decodes by the same structs, so that a record
is right for both or for neither. Fields that are unknown are left alone: newer trucks may say more.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

VERSION: Final = 1
TOPIC_ROOT: Final = "fleet"

Latitude: TypeAlias = Annotated[float, msgspec.Meta(ge=-90, le=90)]
Longitude: TypeAlias = Annotated[float, msgspec.Meta(ge=-180, le=180)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Whole numbers that every reader of JSON keeps exactly."""
Number: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""JSON has no infinities, MessagePack has: no sensor means them."""
Encoding: TypeAlias = Literal["json", "msgpack"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    id: Name
    truck: Name
    at: int
    """Milliseconds since 1970."""


class TrackPoint(msgspec.Struct, frozen=True, array_like=True):
    seconds_ago: Number
    lat: Latitude
    lon: Longitude
    speed_kmh: Number


class Position(Record, frozen=True, kw_only=True):
    lat: Latitude
    lon: Longitude
    heading_deg: Annotated[float, msgspec.Meta(ge=0, le=360)]
    speed_kmh: Annotated[float, msgspec.Meta(ge=0, le=300)]
    odometer_km: Annotated[float, msgspec.Meta(ge=0, le=1e8)]
    road: str = ""
    track: list[TrackPoint] = []
    """Where it was since the last position."""


class Tyre(msgspec.Struct, frozen=True, array_like=True):
    pressure_bar: Number
    temperature_c: Number


class Vehicle(Record, frozen=True, kw_only=True):
    engine_rpm: Annotated[float, msgspec.Meta(ge=0, le=10_000)]
    engine_temperature_c: Number
    oil_pressure_bar: Number
    fuel_l: Annotated[float, msgspec.Meta(ge=0, le=10_000)]
    fuel_rate_l_h: Number
    load_kg: Annotated[float, msgspec.Meta(ge=0, le=200_000)]
    battery_v: Number
    brake_bar: Number = 0.0
    tyres: list[Tyre] = []
    samples: list[list[Number]] = []
    """Engine speed, torque in percent and gear, once a second."""
    faults: list[str] = []


class Tachograph(Record, frozen=True, kw_only=True):
    driver: Name
    driven_s: Count
    rested_s: Count
    data: bytes
    """The file as the recorder wrote it."""


class Update(Record, frozen=True, kw_only=True):
    """A piece of a software update, on its way to the truck. A lost connection costs one piece."""

    file: Name
    version: Name
    piece: Count
    pieces: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    data: bytes


KINDS: Final[Mapping[str, type[Record]]] = {
    "position": Position,
    "vehicle": Vehicle,
    "tachograph": Tachograph,
    "update": Update,
}

_TO_JSON: Final = msgspec.json.Encoder()
_TO_MSGPACK: Final = msgspec.msgpack.Encoder()


def encode_record(record: Record, encoding: Encoding = "json") -> bytes:
    return _TO_JSON.encode(record) if encoding == "json" else _TO_MSGPACK.encode(record)


def topic_of(truck: str, kind: str) -> str:
    return f"{TOPIC_ROOT}/{truck}/{kind}"
