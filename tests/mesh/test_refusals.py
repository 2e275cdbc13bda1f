"""Who is told that there is someone for what it offered in vain (TB-15)."""

from polybus.broker.sessions import NEIGHBOR_MARK, Session
from polybus.mesh.refusals import MAX_TOPICS, Refusals

ONE, OTHER = Session(f"{NEIGHBOR_MARK}1"), Session(f"{NEIGHBOR_MARK}2")


def test_a_neighbour_is_told_once_by_a_filter_that_matches() -> None:
    refusals = Refusals()
    refusals.note(ONE, "a/b")
    refusals.note(ONE, "a/c")
    refusals.note(OTHER, "x")
    assert refusals.ready("b/#") == []
    assert refusals.ready("a/+") == [ONE]
    assert refusals.ready("#") == [OTHER]
    assert not refusals


def test_one_that_is_gone_is_told_nothing() -> None:
    refusals = Refusals()
    refusals.note(ONE, "a")
    refusals.forget(ONE)
    refusals.forget(OTHER)
    assert refusals.ready("a") == []


def test_with_too_many_topics_it_is_told_of_everyone() -> None:
    refusals = Refusals()
    for n in range(MAX_TOPICS + 1):
        refusals.note(ONE, f"t/{n}")
    assert refusals.ready("other") == [ONE]
    assert refusals.ready("t/0") == [ONE], "which topics those were is not known any more"
