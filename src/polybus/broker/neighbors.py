"""What the core asks of the mesh of brokers (TB-15). `polybus.mesh` answers; here is a broker by itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.broker.sessions import Session
    from polybus.broker.storage import Stored
    from polybus.broker.subscriptions import Plan


class Neighborhood:
    """Of a broker without neighbours."""

    sessions: "tuple[Session, ...]" = ()
    """One for each neighbour, linked or not."""

    def tell_news(self) -> None:
        """Before outboxes are flushed, if `Broker.has_news`."""

    def offer(self, stored: "Stored", plan: "Plan") -> None:
        """Nobody here takes a message that may wait: it waits, and neighbours may have someone."""

    def is_offered(self, stored: "Stored") -> bool:
        """A neighbour may just be giving it to someone: it is nobody else's until that is known."""
        return False

    def forget(self, stored: "Stored") -> None:
        """It does not wait any more."""

    def housekeep(self, now: float) -> None:
        """Once a second or so."""

    def services_moved(self, session: "Session") -> None:
        """A session that offers services has connected, or is gone."""

    def is_ready(self, session: "Session") -> None:
        """A client has come back, or its link takes bytes again."""

    def references(self) -> str:
        """Brokers to which a client may go that finds no room here, as TBus writes them."""
        return ""
