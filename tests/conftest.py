"""What all tests share."""

from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.examples import ARE_THE_SAME, examples

# How long an example takes is the machine's business.
settings.register_profile("polybus", deadline=None, derandomize=ARE_THE_SAME, max_examples=examples(100))
settings.load_profile("polybus")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half a surrogate pair in what a test logged cannot be passed on by the process that ran it."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
