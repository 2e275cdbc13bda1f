"""What all tests share."""

from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.examples import ARE_THE_SAME, examples

# How long an example takes is the machine's business.
settings.register_profile("polybus", deadline=None, derandomize=ARE_THE_SAME, max_examples=examples(100))
settings.load_profile("polybus")

SLOW_FIRST: Final = ("cpp", "pipeline/jobs", "pipeline", "e2e")
"""Folders whose files take minutes: begun last, one of them would keep the others waiting at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    places = [tests / folder for folder in SLOW_FIRST]

    def rank(item: pytest.Item) -> int:
        return next((rank for rank, place in enumerate(places) if place in item.path.parents), len(places))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half a surrogate pair in what a test logged cannot be passed on by the process that ran it."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
