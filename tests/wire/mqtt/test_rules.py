"""Every rule has a case, and every id that we cite exists."""

import re

import pytest

from polybus.wire.mqtt import rules
from polybus.wire.mqtt.packets import V5, V311
from polybus.wire.mqtt.properties import PROPERTIES
from polybus.wire.mqtt.rules import Rule
from tests.conformance.statements import load as load_standard
from tests.wire.mqtt.vectors import error_cases

RULES = {name: value for name, value in vars(rules).items() if isinstance(value, Rule)}
CITED = {(version, case.error.rule) for case, version in error_cases() if case.error is not None}
SECTION = re.compile(r"MQTT-\d+(\.\d+)+")


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_vector(name: str) -> None:
    rule = RULES[name]
    if rule.v311:
        assert (V5, rule.v5) in CITED
        assert (V311, rule.v311) in CITED
    else:
        assert {(V5, rule.v5), (V311, rule.v5)} & CITED


@pytest.mark.parametrize(("version", "cited"), sorted(CITED))
def test_every_id_exists(version: int, cited: str) -> None:
    """A CONNECT is refused by the rules of the version it asks for, so any version may cite any."""
    statements = {*load_standard(V5).statements, *load_standard(V311).statements}
    assert cited in statements or SECTION.fullmatch(cited)


@pytest.mark.parametrize("name", RULES)
def test_ids_are_those_of_their_standard(name: str) -> None:
    rule = RULES[name]
    if rule.v311:
        assert rule.v311 in load_standard(V311).statements or SECTION.fullmatch(rule.v311)
        assert rule.v5 in load_standard(V5).statements or SECTION.fullmatch(rule.v5)


def test_properties_cite_sections() -> None:
    assert all(SECTION.fullmatch(spec.section) for spec in PROPERTIES.values())
