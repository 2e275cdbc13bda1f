"""How a test says which statements it holds the server to, and where it runs."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from polybus.wire.mqtt.packets import V5, V311

NAMES = {V311: "v311", V5: "v5"}


def rules(*, v311: str = "", v5: str = "", wire: bool = False, on: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Run the test against a fresh `bus` of each version that has statements here.

    The ids are separated by spaces. `wire`: in memory, in memory a byte at a time, and over a
    real socket; `on`: only over these.
    """
    transports = list(on) or (["memory", "bytewise", "tcp"] if wire else ["memory"])
    params = [
        pytest.param((version, transport), id=_id(version, transport), marks=cites(version, ids))
        for version, ids in ((V311, v311), (V5, v5))
        if ids
        for transport in transports
    ]
    return pytest.mark.parametrize("bus", params, indirect=True)


class Row(NamedTuple):
    """One row of a table of cases: `value` for the test, the statements of each version."""

    name: str
    value: Any
    v311: str = ""
    v5: str = ""


def table(
    argument: str, rows: Iterable[Row], *, transports: Iterable[str] = ("memory",)
) -> pytest.MarkDecorator:
    """Run the test for each row and each version that the row has statements of."""
    params = [
        pytest.param(
            (version, transport),
            row.value,
            id=f"{row.name}-{_id(version, transport)}",
            marks=cites(version, ids),
        )
        for row in rows
        for version, ids in ((V311, row.v311), (V5, row.v5))
        if ids
        for transport in transports
    ]
    return pytest.mark.parametrize(("bus", argument), params, indirect=["bus"])


def cites(version: int, ids: str) -> pytest.MarkDecorator:
    return pytest.mark.conformance(*ids.split(), version=version)


def _id(version: int, transport: str) -> str:
    return NAMES[version] if transport == "memory" else f"{NAMES[version]}-{transport}"
