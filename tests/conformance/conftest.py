import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "conformance(*ids, version): the statements of MQTT that this test holds the server to"
    )
