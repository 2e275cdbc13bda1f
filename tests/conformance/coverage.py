"""Statements + tests = coverage."""

from collections import defaultdict
from typing import Literal

import msgspec

from .recorder import Recorder
from .statements import Standard, standards

State = Literal["covered", "failing", "exempt", "missing"]


class Line(msgspec.Struct, frozen=True):
    """How one server-binding statement fares."""

    rule: str
    says: str
    state: State
    reason: str = ""
    tests: list[str] = []


class Coverage(msgspec.Struct, frozen=True):
    title: str
    statements: int
    binding: int
    covered: int
    lines: list[Line]
    unknown: list[str]
    """Ids that tests cite and the standard does not have."""

    def in_state(self, *states: State) -> list[Line]:
        return [line for line in self.lines if line.state in states]


def measure(recorder: Recorder, *, ran: bool) -> list[Coverage]:
    """Coverage per version. With `ran`, a statement counts only if every test that cites it passed."""
    cited: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for test, citations in recorder.citations.items():
        for version, rule in citations:
            cited[version][rule].append(test)
    return [_measure(standard, cited[standard.version], recorder, ran=ran) for standard in standards()]


def _measure(standard: Standard, cited: dict[str, list[str]], recorder: Recorder, *, ran: bool) -> Coverage:
    lines = []
    for rule in standard.binding:
        tests = sorted(cited.get(rule, []))
        bad = [test for test in tests if ran and recorder.outcomes.get(test) != "passed"]
        state: State = "covered"
        reason = ""
        if bad:
            state, reason = "failing", ", ".join(f"{recorder.outcomes.get(t, 'not run')}: {t}" for t in bad)
        elif not tests and rule in standard.exempt:
            state, reason = "exempt", standard.exempt[rule]
        elif not tests:
            state, reason = "missing", "no test cites it"
        lines.append(Line(rule, standard.statements[rule].says, state, reason, tests))
    return Coverage(
        title=standard.title,
        statements=len(standard.statements),
        binding=len(lines),
        covered=sum(line.state == "covered" for line in lines),
        lines=lines,
        unknown=sorted(set(cited) - set(standard.statements)),
    )
