"""Several journals as one: what promises safety leaves when all of them have it."""

from collections.abc import Callable, Sequence

from polybus.broker.journal import Journal


class Together:
    """A commit is done when every journal is done with it. Each journal keeps its order, so the whole does."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = tuple(journals)

    def commit(self, done: Callable[[], None]) -> None:
        left = len(self._journals)
        if not left:
            done()
            return

        def one_is_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for journal in self._journals:
            journal.commit(one_is_done)
