"""Messages that wait here and were offered to neighbours that may have someone for them (TB-15).

The document's rule is that one subscriber anywhere is enough. While an offer is open the message is nobody
else's. A neighbour that gave it to someone ends its waiting; one that could not, or is gone, leaves it to
others. What a link has no room for is offered when it has: until then it is whose it was.
"""

from polybus.broker.dispatch import Dispatcher
from polybus.broker.message import Delivery
from polybus.broker.sessions import Session
from polybus.broker.storage import Stored


class Offer:
    __slots__ = ("open", "refused", "stored")

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.open: dict[Session, int] = {}
        """Who has not answered yet, and the packet id."""
        self.refused: set[Session] = set()
        """Who had nobody, since it last said that it has."""


class Offers:
    """The single owner of what is offered."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._offers: dict[Stored, Offer] = {}
        self._by_id: dict[Session, dict[int, Offer]] = {}
        self._later: dict[Session, dict[Stored, tuple[str, ...]]] = {}
        """What there was no room for, and for whom it is; in its order."""

    def is_open(self, stored: Stored) -> bool:
        offer = self._offers.get(stored)
        return offer is not None and bool(offer.open)

    def make(self, stored: Stored, session: Session, shares: tuple[str, ...]) -> None:
        """Offer it, unless this neighbour has it before it or had nobody for it."""
        offer = self._offers.get(stored)
        if offer is not None and (session in offer.open or session in offer.refused):
            return
        has_turn = stored.message.priority or session not in self._later
        if has_turn and self._dispatcher.has_room(session):
            self._send(stored, session, shares)
        else:
            self._later.setdefault(session, {})[stored] = shares

    def go_on(self, session: Session) -> None:
        """With what there was no room for."""
        later = self._later.get(session)
        if later is None:
            return
        while later and self._dispatcher.has_room(session):
            stored = next(iter(later))
            shares = later.pop(stored)
            offer = self._offers.get(stored)
            if offer is None or not (offer.open or session in offer.refused):
                self._send(stored, session, shares)
        if not later:
            del self._later[session]

    def go_on_all(self) -> bool:
        """True: there was something for which there had been no room."""
        waiting = list(self._later)
        for session in waiting:
            self.go_on(session)
        return bool(waiting)

    def _send(self, stored: Stored, session: Session, shares: tuple[str, ...]) -> None:
        offer = self._offers.get(stored) or Offer(stored)
        packet_id = self._dispatcher.offer(session, Delivery(stored.message, 1, False, shares=shares))
        if packet_id:
            self._offers[stored] = offer
            offer.open[session] = packet_id
            self._by_id.setdefault(session, {})[packet_id] = offer

    def has_come(self, stored: Stored, session: Session) -> None:
        """Someone has come there: it may be asked again."""
        offer = self._offers.get(stored)
        if offer is not None:
            offer.refused.discard(session)

    def answered(self, session: Session, packet_id: int, *, is_delivered: bool) -> Offer | None:
        """The offer that was answered; None: it was none, or is not open any more."""
        offer = self._by_id.get(session, {}).pop(packet_id, None)
        if offer is None or offer.open.pop(session, None) is None:
            return None
        if is_delivered:
            self.forget(offer.stored)
        else:
            offer.refused.add(session)
        return offer

    def lost(self, session: Session) -> list[Offer]:
        """The link is gone, and with it the answers. Returns what is not offered to anyone any more."""
        mine = self._by_id.pop(session, {})
        self._later.pop(session, None)
        for packet_id, offer in mine.items():
            self._dispatcher.withdraw(session, packet_id)
            offer.open.pop(session, None)
        for offer in self._offers.values():
            offer.refused.discard(session)
        return [offer for offer in mine.values() if not offer.open and offer.stored in self._offers]

    def forget(self, stored: Stored) -> None:
        """It waits no more; answers that are still to come mean nothing."""
        offer = self._offers.pop(stored, None)
        if offer is not None:
            offer.open.clear()
        for session, later in list(self._later.items()):
            later.pop(stored, None)
            if not later:
                del self._later[session]
