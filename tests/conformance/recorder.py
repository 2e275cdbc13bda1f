"""A pytest plugin that notes which tests cite which statements, and how they ended."""

import pytest

Citation = tuple[int, str]  # (version, id)


class Recorder:
    """Gathers `@pytest.mark.conformance(*ids, version=…)` from the collected tests."""

    def __init__(self) -> None:
        self.citations: dict[str, set[Citation]] = {}
        """Test id -> the statements it cites."""
        self.outcomes: dict[str, str] = {}
        """Test id -> "passed", "failed" or "skipped", once it has run."""
        self.errors: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if cited := citations_of(item):
                self.citations[item.nodeid] = cited

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {report.longreprtext}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worst = {"passed": 0, "skipped": 1, "failed": 2}
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, report.outcome, key=worst.__getitem__)


def citations_of(item: pytest.Item) -> set[Citation]:
    return {(mark.kwargs["version"], rule) for mark in item.iter_markers("conformance") for rule in mark.args}
