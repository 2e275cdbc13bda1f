"""The tables are whole, and every statement in them is tested or excused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .statements import Standard, load, standards

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("version", "count", "binding"), [(4, 141, 133), (5, 251, 240)])
def test_every_statement_is_listed(version: int, count: int, binding: int) -> None:
    standard = load(version)
    assert len(standard.statements) == count
    assert len(standard.binding) == binding


@pytest.mark.parametrize("standard", standards(), ids=lambda s: s.title)
def test_who_is_bound_is_said_with_a_reason(standard: Standard) -> None:
    for rule, statement in standard.statements.items():
        assert statement.says, rule
        assert bool(statement.why) == (statement.binds == "client"), rule


@pytest.mark.parametrize("standard", standards(), ids=lambda s: s.title)
def test_only_binding_statements_are_exempt_and_for_a_reason(standard: Standard) -> None:
    assert set(standard.exempt) <= set(standard.binding)
    assert all(standard.exempt.values())


@pytest.fixture(scope="module")
def report() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.conformance", "--collect-only", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    coverages: list[dict[str, Any]] = json.loads(done.stdout)
    return coverages


def test_no_test_cites_an_unknown_statement(report: list[dict[str, Any]]) -> None:
    assert [coverage["unknown"] for coverage in report] == [[], []]


def test_every_binding_statement_is_covered_or_exempt(report: list[dict[str, Any]]) -> None:
    missing = [line["rule"] for c in report for line in c["lines"] if line["state"] == "missing"]
    assert missing == []


def test_what_is_exempt_has_no_test(report: list[dict[str, Any]]) -> None:
    for coverage, standard in zip(report, standards(), strict=True):
        cited = {line["rule"] for line in coverage["lines"] if line["tests"]}
        assert cited.isdisjoint(standard.exempt)
