"""Several journals as one."""

from collections.abc import Callable

from polybus.broker.journal import MemoryJournal
from polybus.store.together import Together


class Later:
    """Is done when it is told."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def commit(self, done: Callable[[], None]) -> None:
        self.waiting.append(done)

    def finish(self) -> None:
        self.waiting.pop(0)()


def test_done_when_all_are() -> None:
    one, other = Later(), Later()
    together = Together([one, MemoryJournal(), other])
    done: list[int] = []
    for number in (1, 2):
        together.commit(lambda number=number: done.append(number))  # type: ignore[misc]
    one.finish()
    one.finish()
    assert done == []
    other.finish()
    assert done == [1]
    other.finish()
    assert done == [1, 2]


def test_at_once_if_all_are() -> None:
    for journals in ([], [MemoryJournal()], [MemoryJournal(), MemoryJournal()]):
        done: list[bool] = []
        Together(journals).commit(lambda: done.append(True))  # noqa: B023
        assert done == [True]
