from collections.abc import Iterator

import pytest

from .harness import Bus


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "conformance(*ids, version): the statements of MQTT that this test holds the server to"
    )


@pytest.fixture
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    """A broker for this case alone; `rules` and `table` say which version and transport."""
    version, transport = request.param
    bus = Bus(version, transport)
    yield bus
    bus.close()
