"""The sessions by client id: how they begin, are taken over, wait for their client, and end."""

import logging

from polybus.broker.dispatch import Dispatcher
from polybus.broker.limits import Limits
from polybus.broker.links import EndCause, Link
from polybus.broker.message import Message
from polybus.broker.sessions import Session, Will
from polybus.broker.stats import Stats
from polybus.broker.subscriptions import Subscriptions
from polybus.broker.timers import Timers

log = logging.getLogger("polybus.broker")


class Registry:
    """The single owner of sessions. Wills that are due gather in `due_wills` for the broker to publish."""

    def __init__(
        self,
        limits: Limits,
        stats: Stats,
        timers: Timers,
        dispatcher: Dispatcher,
        subscriptions: Subscriptions,
    ) -> None:
        self.sessions: dict[str, Session] = {}
        self.connected = 0
        self.due_wills: list[Message] = []
        self.wills_bytes = 0
        self.limits = limits
        self._stats = stats
        self._timers = timers
        self._dispatcher = dispatcher
        self._ledger = dispatcher.ledger
        self.kept_connected = 0
        """Sessions in the durable store that are connected."""
        self._subscriptions = subscriptions

    def open(
        self,
        link: Link,
        client_id: str,
        *,
        clean_start: bool,
        expiry_s: float,
        will: Will | None,
        window: int,
        now: float,
    ) -> tuple[Session, bool]:
        """A client has connected. Returns its session and whether there was one already."""
        session = self.sessions.get(client_id)
        if session is not None:
            if session.link is not None:
                # [MQTT-3.1.4-3] the older connection of the same client ends first, and with it
                # a session that was not to outlive it.
                session.link.end(EndCause.TAKEN_OVER)
                session = self.sessions.get(client_id)
            if session is not None and clean_start:
                self.end(session, now)
                session = None
        present = session is not None
        if session is None:
            session = self.sessions[client_id] = Session(client_id)
        self._cancel_timer(session)
        session.will_at = session.ends_at = None
        self._set_will(session, will)
        session.expiry_s = expiry_s
        self.connected += not session.is_neighbor
        if expiry_s > 0 and not session.kept and self._ledger.is_durable:
            session.kept = self._ledger.new_session()
        if session.kept:
            self.kept_connected += 1
            self._ledger.session_changed(session)
            self._ledger.stamp(now)
        self._dispatcher.attach(session, link, window)
        return session, present

    def close(self, link: Link, *, publish_will: bool, now: float) -> None:
        """A client's connection is gone; its session stays for as long as it asked."""
        session = link.session
        if session is None or session.link is not link:
            return
        self.connected -= not session.is_neighbor
        if session.kept:
            self.kept_connected -= 1
            self._ledger.session_changed(session)
        if not publish_will:
            self._set_will(session, None)  # [MQTT-3.14.4-3]
        self._dispatcher.detach(session)
        if session.expiry_s <= 0:
            self.end(session, now)
            return
        session.ends_at = now + session.expiry_s
        if session.will is not None:
            if session.will.delay_s > 0:
                session.will_at = now + session.will.delay_s
            else:
                self._publish_will(session, now)
        self._schedule(session)

    def end(self, session: Session, now: float) -> None:
        """Forget a session: its subscriptions, queue and everything under way."""
        if session.will is not None:  # a delayed will is due when the session ends
            self._publish_will(session, now)
        self._cancel_timer(session)
        self.sessions.pop(session.client_id, None)
        session.expiry_s = 0.0  # from now on nothing waits for it
        for topic_filter in list(session.subscriptions):
            self._subscriptions.remove(session, topic_filter)
        self._dispatcher.discard(session)
        if session.kept:
            self._ledger.session_ended(session)
            session.kept = 0

    def restore(self, session: Session) -> None:
        """A session of before, whose connection is gone."""
        self.sessions[session.client_id] = session
        will, session.will = session.will, None
        self._set_will(session, will)
        self._schedule(session)

    def due(self, session: Session, now: float) -> None:
        """The session's timer fired: its will or its end is due."""
        session.handle = 0
        if session.link is not None or self.sessions.get(session.client_id) is not session:
            return
        if session.will_at is not None and session.will_at <= now:
            session.will_at = None
            self._publish_will(session, now)
        if session.ends_at is not None and session.ends_at <= now:
            self._stats.sessions_expired += 1
            log.debug("session expired", extra={"fields": {"client_id": session.client_id}})
            self.end(session, now)
        else:
            self._schedule(session)

    def _publish_will(self, session: Session, now: float) -> None:
        will = session.will
        self._set_will(session, None)
        if will is not None:
            if will.expiry_s is not None:
                will.message.expires_at = now + will.expiry_s
            self.due_wills.append(will.message)

    def _set_will(self, session: Session, will: Will | None) -> None:
        for sign, each in ((-1, session.will), (1, will)):
            if each is not None:
                self.wills_bytes += sign * each.message.size_bytes()
        session.will = will
        if session.kept:
            self._ledger.session_changed(session)

    def _schedule(self, session: Session) -> None:
        times = [t for t in (session.will_at, session.ends_at) if t is not None and t != float("inf")]
        if times:
            session.handle = self._timers.schedule(min(times), _SessionDue(self, session))

    def _cancel_timer(self, session: Session) -> None:
        if session.handle:
            self._timers.cancel(session.handle)
            session.handle = 0


class _SessionDue:
    __slots__ = ("_registry", "_session")

    def __init__(self, registry: Registry, session: Session) -> None:
        self._registry = registry
        self._session = session

    def on_timer(self, now: float) -> None:
        self._registry.due(self._session, now)
