"""Whom to call, and when; a clock that is passed."""

import pytest

from polybus.mesh.address import broker_id, is_local, parse_address
from polybus.mesh.membership import LONGEST_S, Membership, No

A, B, C = "10.0.0.1:5035", "10.0.0.2:5035", "10.0.0.3:5035"


def members(own_id: str = A, *, most: int = 3) -> Membership:
    return Membership(own_id, most=most, keep_s=100.0)


def test_a_call_that_fails_is_made_later_and_later_and_told_once() -> None:
    book = members()
    book.add(B, 0.0, is_configured=True)
    now, waits = 0.0, []
    for attempt in range(12):
        assert book.due(now) == [B]
        assert book.due(now) == [], "one call at a time"
        assert book.failed(B, "refused", now) == (attempt == 0)
        deadline = book.deadline()
        assert deadline is not None
        waits.append(round(deadline - now, 6))
        assert book.due(deadline - 0.001) == []
        now = deadline
    assert waits == sorted(waits)
    assert waits[0] < 1
    assert waits[-1] == LONGEST_S
    assert book.due(now) == [B]
    assert book.failed(B, "another reason", now), "that is news"


def test_a_link_ends_the_calls_and_its_end_begins_them_anew() -> None:
    book = members()
    book.add(B, 0.0)
    assert book.due(0.0) == [B]
    assert book.linked(B, 1.0, B)
    assert book.deadline() is None
    assert not book.linked(B, 1.0), "there is one"
    book.unlinked(B, 2.0)
    deadline = book.deadline()
    assert deadline is not None
    assert 2.0 < deadline < 3.0
    assert book.due(deadline) == [B]


def test_a_neighbour_that_calls_itself_something_else() -> None:
    book = members()
    book.add(B, 0.0, is_configured=True)
    book.due(0.0)
    assert book.linked(C, 0.0, B)
    assert set(book.members) == {C}
    assert book.members[C].is_configured
    assert book.add(B, 0.0)
    assert set(book.members) == {C}, "it is known under that address"
    book.unlinked(C, 1.0)
    assert book.due(9.0) == [B], "and is called where it was found"


@pytest.mark.parametrize("own", [A, C])
def test_of_two_calls_at_once_both_ends_choose_the_same(own: str) -> None:
    one, other = members(A), members(B)
    one.add(B, 0.0)
    other.add(A, 0.0)
    one.due(0.0)
    other.due(0.0)
    assert (one.judge(B), other.judge(A)) == (No.CALLED, None)


def test_who_is_not_let_in() -> None:
    book = members(most=1)
    assert book.judge(A) is No.ITSELF
    assert book.judge(B) is None
    book.linked(B, 0.0)
    assert book.judge(B) is No.LINKED
    assert book.judge(C) is No.FULL
    assert not book.add(C, 0.0)
    assert book.add(C, 0.0, is_configured=True), "the operator said so"


def test_who_is_gone_for_long_is_forgotten_unless_configured() -> None:
    book = members()
    book.add(B, 0.0)
    book.add(C, 0.0, is_configured=True)
    assert book.forget(99.0) == []
    assert book.forget(100.0) == [B]
    assert set(book.members) == {C}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.2:5035", ("10.0.0.2", 5035)),
        ("[::1]:5035", ("::1", 5035)),
        ("::1:5035", None),
        ("[10.0.0.2]:5035", None),
        ("host:5035", None),
        ("10.0.0.2", None),
        ("10.0.0.2:0", None),
        ("10.0.0.2:65536", None),
        ("10.0.0.2: 5", None),
        ("", None),
    ],
)
def test_addresses(text: str, found: tuple[str, int] | None) -> None:
    assert parse_address(text) == found
    if found is not None:
        assert broker_id(*found) == text


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1:5", True),
        ("127.8.8.8:5", True),
        ("::1:5", True),
        ("::ffff:127.0.0.1:5", True),
        ("unix", True),
        ("10.0.0.1:5", False),
        ("::ffff:10.0.0.1:5", False),
        ("", False),
        ("memory", False),
    ],
)
def test_who_is_on_this_machine(peer: str, local: bool) -> None:
    assert is_local(peer) is local
