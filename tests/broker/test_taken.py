"""What was taken from a neighbour, as far as it may come again (TB-15)."""

from polybus.broker.taken import MAX_TAKEN, Taken


def test_the_last_of_each_kind_are_known() -> None:
    taken = Taken()
    assert taken.add(1, is_priority=False)
    for stamp in range(2, 2 * MAX_TAKEN):
        assert taken.add(stamp, is_priority=True)
    assert not taken.add(1, is_priority=False), "priority messages do not push it out"
    assert taken.add(2, is_priority=True), "too long ago"
    assert not taken.add(2 * MAX_TAKEN - 1, is_priority=True)
    assert len(list(taken.numbers())) == 1 + MAX_TAKEN


def test_the_state_file_has_both_kinds() -> None:
    taken = Taken()
    taken.add(7, is_priority=False)
    taken.add(5, is_priority=True)
    again = Taken(taken.numbers())
    assert not again.add(7, is_priority=False)
    assert not again.add(5, is_priority=True)
    assert again.add(5, is_priority=False)


def test_what_was_missed_is_known_and_what_was_not_taken_may_come_again() -> None:
    taken = Taken()
    taken.add(1, is_priority=False)
    taken.miss(1, ("$share/g/t",), is_priority=False)
    assert taken.missed(1, is_priority=False) == ("$share/g/t",)
    assert taken.missed(2, is_priority=False) == ()
    taken.forget(1, is_priority=False)
    assert taken.add(1, is_priority=False)
