"""The tick's commit step: what promises safety leaves only after it. And logs, that keep what was published."""

from collections.abc import Callable
from typing import Protocol

from polybus.broker.message import Message, Run


class Journal(Protocol):
    """Where acknowledged state is kept. A durable one calls back when the group is on disk."""

    def commit(self, done: Callable[[], None]) -> None:
        """Make everything recorded so far safe, then call `done` on the event loop's thread.

        Called once a tick. If nothing was recorded since the last commit, `done` may be called at once even
        while that one is under way: `Commits` sees to the order on each link.
        """


class MemoryJournal:
    """Keeps nothing: state is as safe as the process, and a commit is done at once."""

    def commit(self, done: Callable[[], None]) -> None:
        done()


class Log(Protocol):
    """Keeps the messages of certain topics, for replay. The journal's next commit makes them safe."""

    @property
    def refusal(self) -> str | None:
        """Why nothing can be kept for now; then whoever wants an acknowledgement is refused."""

    def append(self, item: Message | Run, commit: int) -> bool:
        """Take a message. It counts with this commit of the state (`Ledger.logged`); 0: as soon as it is
        written. False: so much waits to be written that its publisher should pause."""
