"""Who belongs to the mesh, and whom to call when. Never reads a clock: callers pass `now`.

A broker calls the neighbours it was told of, by its configuration or by other neighbours, until there is one
link with each. If two call each other at once, the call of the one with the smaller id is answered and the
other refused: both see the same two ids. A call that failed is made again, later and later.
"""

from enum import Enum, auto
from typing import Final

from polybus.mesh.address import broker_id, parse_address

FIRST_S: Final = 0.2
LONGEST_S: Final = 15.0
"""Between two calls. Each failure doubles it."""
MAX_REFERENCE_CHARACTERS: Final = 8192
"""Of a list of brokers that a neighbour names; what is behind it is not looked at."""


class No(Enum):
    """Why a broker that calls is not let in."""

    ITSELF = auto()
    LINKED = auto()
    CALLED = auto()
    FULL = auto()


class Member:
    __slots__ = (
        "address",
        "due_at",
        "failures",
        "id",
        "is_called",
        "is_configured",
        "is_linked",
        "seen_at",
        "told",
    )

    def __init__(self, address: str, now: float, *, is_configured: bool) -> None:
        self.address = address
        """Where to call."""
        self.id = address
        """What it calls itself."""
        self.is_configured = is_configured
        self.is_linked = False
        self.is_called = False
        """A call is under way."""
        self.failures = 0
        self.due_at = now
        self.seen_at = now
        """When it was linked last, or heard of first."""
        self.told = ""
        """What people were told last of why it is not linked."""


class Membership:
    """The single owner of the list of brokers."""

    def __init__(self, own_id: str, *, most: int, keep_s: float) -> None:
        self.own_id = own_id
        self.most = most
        """Neighbours at most: what others name beyond is not called."""
        self.keep_s = keep_s
        """How long a neighbour that is not in the configuration is called after it was seen last."""
        self.members: dict[str, Member] = {}
        """By id, which is the address until they have said otherwise."""

    def add(self, address: str, now: float, *, is_configured: bool = False) -> bool:
        """False: there is no room. Its own address and known ones are no news."""
        known = self._find(address)
        if known is not None:
            known.is_configured |= is_configured
        elif address != self.own_id:
            if len(self.members) >= self.most and not is_configured:
                return False
            self.members[address] = Member(address, now, is_configured=is_configured)
        return True

    def learn(self, reference: str, now: float) -> list[str]:
        """From a neighbour's list, `ip:port;ip:port`. Returns what of it is no use, for people."""
        bad: list[str] = []
        places = reference[:MAX_REFERENCE_CHARACTERS].split(";") if reference else []
        for place in places[: self.most]:
            parsed = parse_address(place)
            if parsed is None or not self.add(broker_id(*parsed), now):
                bad.append(place)
        return bad + places[self.most :]

    def _find(self, name: str) -> Member | None:
        found = self.members.get(name)
        if found is not None:
            return found
        return next((member for member in self.members.values() if member.address == name), None)

    # -- calling ------------------------------------------------------------------------------------

    def due(self, now: float) -> list[str]:
        """Addresses to call now."""
        due = [m for m in self.members.values() if not (m.is_linked or m.is_called) and m.due_at <= now]
        for member in due:
            member.is_called = True
        return [member.address for member in due]

    def deadline(self) -> float | None:
        return min((m.due_at for m in self.members.values() if not (m.is_linked or m.is_called)), default=None)

    def failed(self, address: str, why: str, now: float) -> bool:
        """A call came to nothing. True: people should be told, once for each reason."""
        member = self._find(address)
        if member is None or not member.is_called:
            return False
        member.is_called = False
        if member.is_linked:
            return False  # by its own call
        member.due_at = now + min(LONGEST_S, FIRST_S * 2 ** min(member.failures, 10))
        member.failures += 1
        is_news = member.told != why
        member.told = why
        return is_news

    def is_itself(self, address: str) -> None:
        """Whoever answers there is this very broker: it is not called again."""
        member = self._find(address)
        if member is not None:
            del self.members[member.id]

    # -- being called -------------------------------------------------------------------------------

    def judge(self, peer_id: str) -> No | None:
        """Whether a broker that calls may come in."""
        if peer_id == self.own_id:
            return No.ITSELF
        member = self.members.get(peer_id)
        if member is None:
            return No.FULL if len(self.members) >= self.most else None
        if member.is_linked:
            return No.LINKED
        return No.CALLED if member.is_called and self.own_id < peer_id else None

    # -- links --------------------------------------------------------------------------------------

    def linked(self, peer_id: str, now: float, address: str | None = None) -> bool:
        """There is a link; `address` is where this broker called. False: there was one already."""
        if address is not None:
            self._rename(address, peer_id)
        member = self.members.get(peer_id)
        if member is None:
            member = self.members[peer_id] = Member(peer_id, now, is_configured=False)
        if address is not None:
            member.is_called = False
        if member.is_linked:
            return False
        member.is_linked = True
        member.failures = 0
        member.seen_at = now
        member.told = ""
        return True

    def _rename(self, address: str, peer_id: str) -> None:
        """It calls itself something else than where it was called."""
        member = self._find(address)
        if member is None or member.id == peer_id:
            return
        del self.members[member.id]
        other = self.members.get(peer_id)
        if other is not None:
            other.is_configured |= member.is_configured
            other.address = address
        else:
            member.id = peer_id
            self.members[peer_id] = member

    def unlinked(self, peer_id: str, now: float) -> None:
        member = self.members.get(peer_id)
        if member is not None:
            member.is_linked = False
            member.seen_at = now
            member.due_at = now + FIRST_S

    def forget(self, now: float) -> list[str]:
        """Drop those that nobody configured and that have not been seen for long; returns their ids."""
        gone = [
            m.id
            for m in self.members.values()
            if not (m.is_configured or m.is_linked or m.is_called) and m.seen_at + self.keep_s <= now
        ]
        for peer_id in gone:
            del self.members[peer_id]
        return gone

    def others(self, besides: str = "") -> list[str]:
        """Ids of brokers that are linked, for a newcomer or a client that finds no room."""
        return [m.id for m in self.members.values() if m.is_linked and m.id != besides]
