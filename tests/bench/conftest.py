"""The first test that needs the load generator waits for the compiler."""

import pytest

COMPILATION_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/bench/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(COMPILATION_S))
