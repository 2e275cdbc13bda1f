"""The shared cases of `tests/vectors/tbus.json` as values."""

from functools import cache
from pathlib import Path

import msgspec

from polybus.wire.tbus.packets import Packet

FILE = Path(__file__).parents[2] / "vectors" / "tbus.json"

PACKET_CLASSES = {cls.__name__: cls for cls in Packet.__args__}
BINARY_FIELDS = {"payload", "body"}


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason_code: int
    rule: str


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `data` is: a message, or an error."""

    name: str
    hex: str
    packet: dict[str, object] | None = None
    error: Error | None = None
    decode_only: bool = False

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)

    def expected(self) -> Packet:
        assert self.packet is not None
        fields = {name: _binary(name, value) for name, value in self.packet.items() if name != "type"}
        # strict, and no field may be misspelt: the classes would forgive one that has a default
        cls = PACKET_CLASSES[str(self.packet["type"])]
        assert set(fields) <= set(cls.__struct_fields__)
        packet: Packet = msgspec.convert(fields, cls)
        return packet


class BulkCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A BULK, the messages in it that take effect, and the error behind them if there is one."""

    name: str
    hex: str
    messages: list[str]
    error: Error | None = None

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)


class Vectors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: list[str]
    max_size: int
    cases: list[Case]
    bulks: list[BulkCase]


@cache
def load() -> Vectors:
    return msgspec.json.decode(FILE.read_bytes(), type=Vectors)


def packet_cases() -> list[Case]:
    return [case for case in load().cases if case.packet is not None]


def error_cases() -> list[Case]:
    return [case for case in load().cases if case.error is not None]


def case_id(value: object) -> str | None:
    return value.name if isinstance(value, Case | BulkCase) else None


def _binary(name: str, value: object) -> object:
    return bytes.fromhex(str(value)) if name in BINARY_FIELDS else value
