"""The life of a request against figure 4.1 and TB-07, said another way: not by state, but by event."""

import re
from itertools import product
from pathlib import Path

import pytest

from polybus.broker.lifecycle import (
    ENDS,
    TRANSITIONS,
    ImpossibleEvent,
    RequestEvent,
    RequestState,
    advance,
    diagram,
)

PAGE = Path(__file__).parents[2] / "docs" / "requests.md"

LOOKED_FOR = ("new", "stored", "delivered")
"""While the request is on its way to a service, or with one."""
ANSWER_ON_ITS_WAY = ("answered", "answer stored")
UNFINISHED = LOOKED_FOR + ANSWER_ON_ITS_WAY

# Event: from where it may come, and where it leads.
ALLOWED: dict[str, dict[tuple[str, ...], str]] = {
    # What is stored is stored already; the request and its answer have a place each.
    "store": {("new", "delivered"): "stored", ("answered",): "answer stored"},
    # To a service first and, from one that is gone, to another; the answer to the requester.
    "deliver": {LOOKED_FOR: "delivered", ANSWER_ON_ITS_WAY: "answer delivered"},
    # Only a service that has the request can answer it, and only once.
    "answer": {("delivered",): "answered"},
    # Two ends tell apart what could not be delivered.
    "give up": {LOOKED_FOR: "not delivered", ANSWER_ON_ITS_WAY: "answer not delivered"},
    "cancel": {UNFINISHED: "canceled"},
    # An answer that was there in time is not a timeout.
    "expire": {LOOKED_FOR: "timed out", ANSWER_ON_ITS_WAY: "answer not delivered"},
    "fail": {UNFINISHED: "error"},
    "delete": {UNFINISHED: "deleted"},
}
"""TB-07, in words."""

THE_ENDS = {
    "answer delivered",
    "not delivered",
    "answer not delivered",
    "canceled",
    "timed out",
    "error",
    "deleted",
}


def allowed(state: RequestState, event: RequestEvent) -> str | None:
    return next((to for origins, to in ALLOWED[event.words].items() if state.words in origins), None)


@pytest.mark.parametrize(("state", "event"), list(product(RequestState, RequestEvent)))
def test_every_state_and_every_event(state: RequestState, event: RequestEvent) -> None:
    following = allowed(state, event)
    if following is None:
        with pytest.raises(ImpossibleEvent, match=f"{state.words} cannot {event.words}"):
            advance(state, event)
    else:
        assert advance(state, event).words == following


def test_there_are_as_many_as_the_figure_has() -> None:
    assert len(RequestState) == 12
    assert len(RequestEvent) == 8
    assert {e.words for e in RequestEvent} == set(ALLOWED)
    assert {s.words for s in RequestState} == THE_ENDS | set(UNFINISHED)


def test_ends_are_final_and_nothing_else_is() -> None:
    assert {s.words for s in ENDS} == THE_ENDS
    assert {s for s in RequestState if not TRANSITIONS[s]} == ENDS


def reachable(start: RequestState) -> set[RequestState]:
    found = {start}
    while True:
        more = {to for state in found for to in TRANSITIONS[state].values()} - found
        if not more:
            return found
        found |= more


def test_every_state_can_be_reached_from_new() -> None:
    assert reachable(RequestState.NEW) == set(RequestState)


@pytest.mark.parametrize("state", sorted(set(RequestState) - ENDS))
def test_what_has_not_ended_can_always_be_ended(state: RequestState) -> None:
    """Whatever happens to clients and services, these come from outside."""
    for event in (RequestEvent.CANCEL, RequestEvent.EXPIRE, RequestEvent.FAIL, RequestEvent.DELETE):
        assert advance(state, event) in ENDS
    assert RequestState.ANSWER_DELIVERED in reachable(state)


def test_an_answer_never_goes_back_to_being_a_request() -> None:
    later = reachable(RequestState.ANSWERED)
    assert not later & {RequestState.NEW, RequestState.STORED, RequestState.DELIVERED}
    assert not later & {RequestState.TIMED_OUT, RequestState.NOT_DELIVERED}


# -- the diagram ---------------------------------------------------------------------------------------


def read_diagram(text: str) -> tuple[str, dict[str, str], set[tuple[str, str, str]], set[str]]:
    """Where it begins, names, arrows (from, to, event) and ends of a Mermaid state diagram."""
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    assert first == "stateDiagram-v2"
    begins = ""
    names: dict[str, str] = {}
    arrows: set[tuple[str, str, str]] = set()
    ends: set[str] = set()
    for line in lines:
        if found := re.fullmatch(r"\[\*\] --> (\w+)", line):
            begins = found[1]
        elif found := re.fullmatch(r"(\w+) --> \[\*\]", line):
            ends.add(found[1])
        elif found := re.fullmatch(r'state "(.+)" as (\w+)', line):
            names[found[2]] = found[1]
        elif found := re.fullmatch(r"(\w+) --> (\w+): (.+)", line):
            arrow = (found[1], found[2], found[3])
            assert arrow not in arrows
            arrows.add(arrow)
        else:
            assert line.startswith("direction"), line
    return begins, names, arrows, ends


def check_diagram(text: str) -> None:
    begins, names, arrows, ends = read_diagram(text)
    assert names[begins] == "new"
    assert set(names.values()) == {s.words for s in RequestState}
    assert {names[each] for each in ends} == THE_ENDS
    expected = {
        (origin, to, event)
        for event, ways in ALLOWED.items()
        for origins, to in ways.items()
        for origin in origins
    }
    assert {(names[origin], names[to], event) for origin, to, event in arrows} == expected


def test_the_diagram_shows_the_figure() -> None:
    check_diagram(diagram())


def page_diagram(page: str) -> str:
    """The Mermaid block behind the marker."""
    found = re.search(r"<!-- diagram -->\s*```mermaid\n(.*?)```", page, re.DOTALL)
    assert found is not None, "there is a diagram between its markers"
    return found[1]


def test_the_page_shows_the_diagram() -> None:
    assert page_diagram(PAGE.read_text()).strip() == diagram()
