"""Messages that wait here and were offered to neighbours that may have someone for them (TB-15).

The document's rule is that one subscriber anywhere is enough. While an offer is open the message is nobody
else's. A neighbour that gave it to someone ends its waiting; one that could not, or is gone, leaves it to
others. Few are open at once, and those that a neighbour has no room for, or whose takers there are slow, are
offered later: until then they are whose they were.
"""

from enum import Enum, auto
from typing import Final

from polybus.broker.dispatch import Dispatcher
from polybus.broker.message import Delivery
from polybus.broker.sessions import Session
from polybus.broker.storage import Stored

MAX_OPEN: Final = 64
MAX_OPEN_BYTES: Final = 256 * 1024
"""Offers that a neighbour may have before it: as many as may cross in vain if its clients are slow."""


class Answer(Enum):
    """What became of an offer."""

    TAKEN = auto()
    BUSY = auto()
    """Whoever would take it reads too slowly: it says so when that has changed."""
    NOBODY = auto()


class Offer:
    __slots__ = ("open", "refused", "stored")

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.open: dict[Session, tuple[str, ...]] = {}
        """Who has not answered yet, and for which shares it is."""
        self.refused: set[Session] = set()
        """Who had nobody, since it last said that it has."""


class Side:
    """One neighbour, as far as offers go."""

    __slots__ = ("is_busy", "later", "open", "open_bytes")

    def __init__(self) -> None:
        self.open: dict[int, Offer] = {}
        """By packet id."""
        self.open_bytes = 0
        self.later: dict[Stored, tuple[str, ...]] = {}
        """What there was no room for, and for which shares it is; in its order."""
        self.is_busy = False
        """It will say when it is not."""


class Offers:
    """The single owner of what is offered."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._offers: dict[Stored, Offer] = {}
        self._sides: dict[Session, Side] = {}

    def is_open(self, stored: Stored) -> bool:
        offer = self._offers.get(stored)
        return offer is not None and bool(offer.open)

    # -- out ----------------------------------------------------------------------------------------

    def make(self, stored: Stored, session: Session, shares: tuple[str, ...]) -> None:
        """Offer it, unless this neighbour has it before it or had nobody for it."""
        offer = self._offers.get(stored)
        if offer is not None and (session in offer.open or session in offer.refused):
            return
        side = self._sides.setdefault(session, Side())
        if (stored.message.priority or not side.later) and self._has_room(session, side):
            self._send(stored, session, side, shares)
        else:
            side.later[stored] = shares

    def go_on(self, session: Session, *, is_ready: bool = False) -> None:
        """With what there was no room for. `is_ready`: it said so, or may have changed."""
        side = self._sides.get(session)
        if side is None:
            return
        if is_ready and side.is_busy:
            side.is_busy = False
            side.later = dict(sorted(side.later.items(), key=_turn))
        while side.later and self._has_room(session, side):
            stored = next(iter(side.later))
            shares = side.later.pop(stored)
            offer = self._offers.get(stored)
            if offer is None or not (offer.open or session in offer.refused):
                self._send(stored, session, side, shares)

    def go_on_all(self) -> bool:
        """With everything for which there may be room by now. False: there was nothing."""
        waiting = [session for session, side in self._sides.items() if side.later]
        for session in waiting:
            self.go_on(session, is_ready=True)
        return bool(waiting)

    def _has_room(self, session: Session, side: Side) -> bool:
        return (
            not side.is_busy
            and len(side.open) < MAX_OPEN
            and side.open_bytes < MAX_OPEN_BYTES
            and self._dispatcher.has_room(session)
        )

    def _send(self, stored: Stored, session: Session, side: Side, shares: tuple[str, ...]) -> None:
        offer = self._offers.get(stored) or Offer(stored)
        packet_id = self._dispatcher.offer(session, Delivery(stored.message, 1, False, shares=shares))
        if packet_id:
            self._offers[stored] = offer
            offer.open[session] = shares
            side.open[packet_id] = offer
            side.open_bytes += stored.size_bytes

    # -- back ---------------------------------------------------------------------------------------

    def has_come(self, stored: Stored, session: Session) -> None:
        """Someone has come there: it may be asked again."""
        offer = self._offers.get(stored)
        if offer is not None:
            offer.refused.discard(session)

    def is_offer(self, session: Session, packet_id: int) -> bool:
        side = self._sides.get(session)
        return side is not None and packet_id in side.open

    def answered(self, session: Session, packet_id: int, answer: Answer) -> Offer | None:
        """The offer that was answered; None: it is not open any more."""
        side = self._sides[session]
        offer = side.open.pop(packet_id)
        side.open_bytes -= offer.stored.size_bytes
        shares = offer.open.pop(session, None)
        if shares is None:
            return None
        match answer:
            case Answer.TAKEN:
                self.forget(offer.stored)
            case Answer.BUSY:
                side.is_busy = True
                side.later[offer.stored] = shares
            case Answer.NOBODY:
                offer.refused.add(session)
        return offer

    def lost(self, session: Session) -> list[Offer]:
        """The link is gone, and with it the answers. Returns what is not offered to anyone any more."""
        side = self._sides.pop(session, None) or Side()
        for packet_id, offer in side.open.items():
            self._dispatcher.withdraw(session, packet_id)
            offer.open.pop(session, None)
        for offer in self._offers.values():
            offer.refused.discard(session)
        return [offer for offer in side.open.values() if not offer.open and offer.stored in self._offers]

    def forget(self, stored: Stored) -> None:
        """It waits no more; answers that are still to come mean nothing."""
        offer = self._offers.pop(stored, None)
        if offer is not None:
            offer.open.clear()
        for side in self._sides.values():
            side.later.pop(stored, None)


def _turn(item: tuple[Stored, tuple[str, ...]]) -> tuple[bool, int]:
    """Priority first, and each in the order in which they came."""
    stored = item[0]
    return not stored.message.priority, stored.order
