"""Many deadlines in one heap."""

from hypothesis import given
from hypothesis import strategies as st

from polybus.client.deadlines import FEW, Deadlines


def test_the_earliest_is_next_and_settled_ones_are_forgotten() -> None:
    deadlines = Deadlines()
    assert deadlines.next() is None
    deadlines.set(1, 5.0)
    deadlines.set(2, 3.0)
    deadlines.set(3, 4.0)
    assert deadlines.next() == 3.0
    deadlines.settle(2)
    assert deadlines.next() == 4.0
    assert deadlines.due(4.5) == [3]
    assert deadlines.due(4.5) == []
    deadlines.settle(99)
    assert deadlines.next() == 5.0


def test_the_heap_does_not_grow_with_what_is_settled() -> None:
    """Long timeouts of quick requests."""
    deadlines = Deadlines()
    for token in range(100_000):
        deadlines.set(token, token + 3600.0)
        deadlines.settle(token)
    assert len(deadlines._heap) <= FEW + 1
    assert deadlines.next() is None


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 100), st.booleans()), max_size=60))
def test_like_a_plain_dictionary(steps: list[tuple[int, float, bool]]) -> None:
    deadlines = Deadlines()
    plain: dict[int, float] = {}
    for token, deadline, is_set in steps:
        if is_set and token not in plain:
            deadlines.set(token, deadline)
            plain[token] = deadline
        else:
            deadlines.settle(token)
            plain.pop(token, None)
        assert deadlines.next() == min(plain.values(), default=None)
    assert deadlines.due(50.0) == sorted(
        (token for token, deadline in plain.items() if deadline <= 50.0),
        key=lambda token: (plain[token], token),
    )
