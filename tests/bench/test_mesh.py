"""The benchmark of two brokers: what it sends across arrives."""

from collections.abc import Iterator

import pytest

from bench.mesh.__main__ import ROWS, Node, Row, cpu_us, measure, rate_of, running, wait_until_linked


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Node, Node]]:
    with running() as here, running(here) as there:
        wait_until_linked(here)
        yield here, there


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", [ROWS[0], ROWS[3]], ids=lambda row: row.name)
def test_what_is_sent_across_arrives(network: tuple[Node, Node], row: Row) -> None:
    sample = measure(row, *network, seconds=0.3)
    assert rate_of(sample) > 0
    assert cpu_us(sample) > 0
    assert int(sample.get("missing", 0)) == 0
