"""The commit gate: what promises safety leaves its link only after the commit that makes it true.

A tick asks for one commit. Several may be under way; one that has nothing to make safe may be done before
those that were asked for earlier, and then releases the links that do not wait for any of those.
"""

from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final

import msgspec

from polybus.broker.journal import Journal
from polybus.broker.links import Link

if TYPE_CHECKING:
    from polybus.broker.dispatch import Dispatcher
    from polybus.broker.sessions import Session

LAZY_S: Final = 0.01
"""How long changes that nobody waits for may wait: many of them cancel out."""


class _Commit(msgspec.Struct):
    number: int
    held: list[tuple[Link, list[bytes], int]]
    """Links, what they hold, and the earlier commit they wait for."""
    gated: list[Link]
    unnoted: "dict[Session, int]" = {}
    """What neighbours have acknowledged before it."""
    is_done: bool = False


class Commits:
    """The single owner of what waits for a commit."""

    def __init__(self, dispatcher: "Dispatcher", journal: Journal, on_released: Callable[[], None]) -> None:
        """`on_released` is told after each commit: there may be something to write, or to commit."""
        self.gated: list[Link] = []
        """Links that say nothing until the next commit is done."""
        self.asked_at = 0.0
        self._dispatcher = dispatcher
        self._journal = journal
        self._on_released = on_released
        self._under_way: deque[_Commit] = deque()
        self._wants_another = False
        """One was done while others wait: a journal may need to be asked again, at the end of a tick."""
        self._number = 0

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way)

    def is_wanted(self) -> bool:
        """Someone waits for it."""
        return bool(self._dispatcher.awaiting or self.gated or self._wants_another)

    def gate(self, link: Link) -> None:
        """Not a word to this client before the next commit."""
        link.gated = True
        self.gated.append(link)

    def open_gates(self) -> None:
        """The commit may take long; nobody is kept out for that."""
        for commit in (*self._under_way, _Commit(0, [], self.gated)):
            self._open(commit.gated)
            commit.gated = []
        self.gated = []

    def _open(self, gated: list[Link]) -> None:
        for link in gated:
            link.gated = False
            if link.outbox:
                self._dispatcher.dirty.append(link)

    def follow(self, link: Link) -> None:
        """What this link acknowledges depends on everything noted so far, by itself or in its name."""
        link.waits_for = self._number + 1

    def withhold(self, origins: Container[str], why: str) -> None:
        """What these clients published will not be safe: what they were to be told is taken back, also what
        waits for a tick that is still to come."""
        groups = [(link, frames) for commit in self._under_way for link, frames, _ in commit.held]
        groups += [(link, link.held) for link in self._dispatcher.awaiting]
        withheld: dict[Link, list[bytes]] = {}
        for link, frames in groups:
            if link.session is not None and link.session.client_id in origins:
                withheld.setdefault(link, []).extend(frames)
        for link, frames in withheld.items():
            link.withhold(frames, why)

    def ask(self, now: float) -> None:
        """For a commit of everything so far."""
        self.asked_at = now
        self._wants_another = False
        awaiting, self._dispatcher.awaiting = self._dispatcher.awaiting, []
        gated, self.gated = self.gated, []
        self._number += 1
        unnoted, self._dispatcher.unnoted = self._dispatcher.unnoted, {}
        held = [(link, link.held, link.waits_for) for link in awaiting]
        commit = _Commit(self._number, held, gated, unnoted)
        for link in awaiting:
            link.held = []
            link.waits_for = self._number
        self._under_way.append(commit)
        self._journal.commit(lambda: self._done(commit))

    def _done(self, commit: _Commit) -> None:
        commit.is_done = True
        under_way = self._under_way
        if under_way[0] is commit:
            while under_way and under_way[0].is_done:
                first = under_way.popleft()
                self._release(first)
                self._dispatcher.noted(first.unnoted)
            self._wants_another = bool(under_way)
            self._on_released()
            return
        earliest = under_way[0].number
        free = [group for group in commit.held if group[2] < earliest]
        commit.held = [group for group in commit.held if group[2] >= earliest]
        for link, _, _ in free:
            if link.waits_for == commit.number:
                link.waits_for = 0
        self._release(_Commit(commit.number, free, []))
        self._on_released()

    def _release(self, commit: _Commit) -> None:
        self._open(commit.gated)
        for link, frames, _ in commit.held:
            link.held_count -= len(frames)
            session = link.session
            if session is not None and session.link is link:  # else it went away meanwhile
                self._dispatcher.push_all(link, frames)
                link.released(frames)
