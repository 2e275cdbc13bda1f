"""Deadlines: they fire once, in order, and what is cancelled leaves no trace."""

from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.timers import Timers
from tests.wire.mqtt.strategies import so_many


class Note:
    def __init__(self, log: list[tuple[float, int]], number: int) -> None:
        self.log = log
        self.number = number

    def on_timer(self, now: float) -> None:
        self.log.append((now, self.number))


@so_many(100)
@given(
    st.lists(st.floats(0, 100), max_size=40),
    st.sets(st.integers(0, 39)),
    st.lists(st.floats(0, 120), max_size=6).map(sorted),
)
def test_what_is_due_fires_once_and_nothing_else(
    times: list[float], cancelled: set[int], moments: list[float]
) -> None:
    timers = Timers()
    log: list[tuple[float, int]] = []
    handles = [timers.schedule(when, Note(log, n)) for n, when in enumerate(times)]
    for number in cancelled:
        if number < len(handles):
            timers.cancel(handles[number])
            timers.cancel(handles[number])
    alive = {n for n in range(len(times)) if n not in cancelled}
    for now in moments:
        log.clear()
        timers.run(now)
        due = {n for n in alive if times[n] <= now}
        assert sorted(n for _, n in log) == sorted(due)
        assert [times[n] for _, n in log] == sorted(times[n] for n in due)
        alive -= due
        assert timers.deadline() == min((times[n] for n in alive), default=None)


def test_told_when_the_first_deadline_moves_closer() -> None:
    told: list[float] = []
    timers = Timers(told.append)
    note = Note([], 0)
    for when in (50.0, 60.0, 40.0, 45.0, 40.0, 10.0):
        timers.schedule(when, note)
    assert told == [50.0, 40.0, 10.0]


def test_cancelled_entries_do_not_pile_up() -> None:
    timers = Timers()
    note = Note([], 0)
    kept = [timers.schedule(1e9, note) for _ in range(10)]
    for n in range(100_000):
        timers.cancel(timers.schedule(1e6 + n, note))
    assert len(timers._heap) <= 65
    assert len(timers._targets) == 10
    for handle in kept:
        timers.cancel(handle)
    assert timers.deadline() is None


def test_a_timer_may_schedule_and_cancel_others_while_it_fires() -> None:
    """Compaction in the middle of `run` must not lose or repeat a deadline."""
    timers = Timers()
    fired: list[str] = []

    class Final:
        def on_timer(self, now: float) -> None:
            fired.append("final")

    class Busy:
        def on_timer(self, now: float) -> None:
            fired.append("busy")
            for handle in handles:
                timers.cancel(handle)
            timers.schedule(now, Final())
            timers.schedule(now + 1, Final())

    timers.schedule(1.0, Busy())
    handles = [timers.schedule(2.0, Note([], n)) for n in range(1000)]
    timers.schedule(3.0, Final())
    timers.run(3.0)
    assert fired == ["busy", "final", "final"]
    timers.run(4.0)
    assert fired == ["busy", "final", "final", "final"]
    assert not timers._targets
