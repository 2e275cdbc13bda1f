"""The shared cases of `tests/vectors/mqtt.json` as values."""

from functools import cache
from pathlib import Path

import msgspec

from polybus.wire.mqtt.packets import Packet

FILE = Path(__file__).parents[2] / "vectors" / "mqtt.json"

PACKET_CLASSES = {cls.__name__: cls for cls in Packet.__args__}
BINARY_FIELDS = {"payload", "password", "correlation_data", "authentication_data"}


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason_code: str
    rule: str


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `data` is: a packet, or an error."""

    name: str
    versions: tuple[int, ...]
    hex: str
    packet: dict[str, object] | None = None
    error: Error | None = None
    decode_only: bool = False

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)

    def expected(self) -> Packet:
        assert self.packet is not None
        fields = _binary({name: value for name, value in self.packet.items() if name != "type"})
        packet: Packet = msgspec.convert(fields, PACKET_CLASSES[str(self.packet["type"])])
        return packet


class Vectors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: list[str]
    max_size: int
    cases: list[Case]


@cache
def load() -> Vectors:
    return msgspec.json.decode(FILE.read_bytes(), type=Vectors)


def packet_cases() -> list[tuple[Case, int]]:
    """Every (case, version) that is a packet."""
    return [(case, version) for case in load().cases if case.packet is not None for version in case.versions]


def error_cases() -> list[tuple[Case, int]]:
    """Every (case, version) that is an error."""
    return [(case, version) for case in load().cases if case.error is not None for version in case.versions]


def case_id(value: object) -> str:
    return value.name if isinstance(value, Case) else f"v{value}"


def _binary(value: object) -> object:
    """The same JSON with its binary fields as bytes."""
    if isinstance(value, list):
        return [_binary(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: bytes.fromhex(item) if name in BINARY_FIELDS else _binary(item) for name, item in value.items()
    }
