"""The tables of normative statements, as values."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

FILES: Mapping[int, Path] = {
    4: Path(__file__).with_name("statements_v311.toml"),
    5: Path(__file__).with_name("statements_v5.toml"),
}


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: str
    binds: Literal["server", "client", "both"]
    why: str = ""
    """For a statement that does not bind a server: the reason."""

    @property
    def binds_server(self) -> bool:
        return self.binds != "client"


class Standard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of the standard. `exempt` maps ids that have no test to the reason."""

    version: int
    title: str
    statements: dict[str, Statement]
    exempt: dict[str, str]

    @property
    def binding(self) -> list[str]:
        """Ids of the statements that bind a server, in the standard's order."""
        return [rule for rule, statement in self.statements.items() if statement.binds_server]


@cache
def load(version: int) -> Standard:
    return msgspec.toml.decode(FILES[version].read_bytes(), type=Standard)


def standards() -> list[Standard]:
    return [load(version) for version in FILES]
