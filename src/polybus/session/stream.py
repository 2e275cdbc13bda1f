"""One connection of a stream protocol, as far as protocols are alike.

    NEW ──CONNECT──▶ AUTHENTICATING ──verdict──▶ CONNECTED ──goodbye, error, end──▶ CLOSED

How it is read is in `intake`. Here is who comes in, what they may do, and how it ends: whatever goes wrong
in a packet raises `PeerError`, which `fail` turns into the protocol's answer and the close. One timer
serves a connection: for its CONNECT, then for the verdict, then for keep alive.

A protocol adds its packets (`handle_packets`), its welcome (`accept`) and its last words (`refuse`,
`say_failed`, `say_ended`).
"""

import logging
from typing import ClassVar, Final

from polybus.broker import events
from polybus.broker.access import Credentials, Verdict
from polybus.broker.broker import Broker
from polybus.broker.events import emit
from polybus.broker.links import Encoding, EndCause, Port
from polybus.broker.sessions import Session, Will
from polybus.broker.subscriptions import RESERVED
from polybus.errors import PeerError
from polybus.session.intake import Intake, Pause, Refusal, State

log = logging.getLogger("polybus.session")

OWNER_MARKS: Final = ("\x01", "\x02")
"""How the names of owners begin that are not just a TBus client id; see `name_owner`."""
MAX_ERROR_CHARACTERS: Final = 4096
"""Of what a service says of its failure, kept for the requester."""
MAX_CACHED_PERMISSIONS: Final = 1024
AUTHENTICATION_S: Final = 60.0
"""How long an authenticator may take for its verdict."""

END_TEXTS: Final = {
    EndCause.TAKEN_OVER: "session taken over",
    EndCause.SHUTTING_DOWN: "server shutting down",
    EndCause.KEEP_ALIVE_TIMEOUT: "keep alive timeout",
}


class StreamLink(Intake):
    __slots__ = (
        "_keep_alive_s",
        "_timer",
        "_was_told_off",
        "agreed",
        "certificate_name",
        "client_id",
        "connected_at",
        "owner",
        "peer",
        "permissions",
        "user",
    )

    keep_alive_factor: ClassVar[float]
    """How many of its keep alive intervals a client may be silent."""

    def __init__(
        self,
        broker: Broker,
        port: Port,
        encoding: Encoding,
        *,
        peer: str,
        certificate_name: str | None,
        now: float,
    ) -> None:
        super().__init__(broker, port, encoding, now=now)
        self.client_id = ""
        self.owner = ""
        """Whose requests this client may cancel and hear of; see `Session.owner`."""
        self.user: str | None = None
        self.peer = peer
        self.certificate_name = certificate_name
        self.connected_at = now
        self.agreed = broker.limits
        """The limits this client was told; those that concern it alone do not change under it."""
        self.permissions: dict[str, bool] | None = None
        self._keep_alive_s = 0
        self._was_told_off = False
        self._timer = broker.timers.schedule(now + broker.limits.connect_timeout_s, self)

    # -- what a protocol adds ------------------------------------------------------------------

    def accept(self, verdict: Verdict) -> None:
        """Welcome a client that may come in: `enter`, and say so. Raises PeerError."""
        raise NotImplementedError

    def name_owner(self) -> str:
        """A name for this client as a requester, that no other user or protocol gives to anyone."""
        raise NotImplementedError

    def refuse(self, error: PeerError) -> None:
        """Tell a peer that is not connected yet that it will not be."""
        raise NotImplementedError

    def say_failed(self, error: PeerError) -> None:
        """Tell a client what it did wrong."""
        raise NotImplementedError

    def say_ended(self, cause: EndCause) -> None:
        """Tell a client why the broker ends its connection."""
        raise NotImplementedError

    # -- coming in ------------------------------------------------------------------------------

    def introduce(self, client_id: str) -> None:
        """Who this says it is. Raises PeerError."""
        size, most = len(client_id.encode()), self.broker.limits.client_id_bytes
        if size > most:
            text = f"a client id of {size} bytes; at most {most} are taken here (limits.client_id_bytes)"
            raise self.refusal(Refusal.LONG_CLIENT_ID, text)
        self.client_id = client_id
        self._check_room()

    def _check_room(self) -> None:
        registry = self.broker.registry
        session = registry.sessions.get(self.client_id)
        takes_over = session is not None and session.link is not None
        if registry.connected >= self.broker.limits.connections and not takes_over:
            raise self.refusal(Refusal.FULL, "this broker takes no more connections")
        if session is None and len(registry.sessions) >= self.broker.limits.sessions:
            raise self.refusal(Refusal.FULL, "this broker keeps no more sessions")

    def authenticate(self, user_name: str | None, password: bytes | None) -> None:
        """Ask who this is; `accept` or a refusal follows, now or later."""
        authenticator = self.broker.access.authenticator
        if authenticator is None:
            self._enter_by(Verdict(allowed=True))
            return
        self.state = State.AUTHENTICATING
        # It has said its CONNECT in time; now it is us who are slow, and not for ever.
        timers = self.broker.timers
        timers.cancel(self._timer)
        self._timer = timers.schedule(self.broker.now + AUTHENTICATION_S, self)
        self.pause(Pause.AUTHENTICATION)
        credentials = Credentials(self.client_id, user_name, password, self.peer, self.certificate_name)
        authenticator.authenticate(credentials, self._on_verdict)

    def _on_verdict(self, verdict: Verdict) -> None:
        """The answer of the authenticator, which may come at any time later."""
        if self.state != State.AUTHENTICATING:
            return
        try:
            self.judge(verdict)
        except Exception as error:
            self.fail_on(error)
        self.resume(Pause.AUTHENTICATION, self.broker.now)

    def judge(self, verdict: Verdict) -> None:
        if verdict.allowed:
            emit(events.AUTHENTICATED, client_id=self.client_id, peer=self.peer, user=verdict.user)
            self._enter_by(verdict)
            return
        why = verdict.reason or "not authorized"
        emit(events.NOT_AUTHENTICATED, client_id=self.client_id, peer=self.peer, reason=why)
        cause = Refusal.NOT_AUTHORIZED
        if verdict.bad_credentials:
            cause = Refusal.BAD_CREDENTIALS
        elif verdict.busy:
            cause = Refusal.BUSY
        raise self.refusal(cause, why)

    def _enter_by(self, verdict: Verdict) -> None:
        self._check_room()  # others may have come while this one was being checked
        self.agreed = self.broker.limits
        self.user = verdict.user
        self.access_changed()
        self.accept(verdict)

    def enter(
        self,
        *,
        keep_alive_s: int,
        clean_start: bool,
        expiry_s: float = 0.0,
        will: Will | None = None,
        window: int = 65_535,
    ) -> tuple[Session, bool]:
        """From here on this link is the client's; its session, and whether there was one already."""
        broker = self.broker
        self.state = State.CONNECTED
        self.connected_at = broker.now
        self.owner = self.name_owner()
        session, present = broker.open(
            self,
            self.client_id,
            clean_start=clean_start,
            expiry_s=expiry_s,
            will=will,
            window=window,
            owner=self.owner,
        )
        session.user = self.user
        broker.stats.connections_accepted += 1
        self._keep_alive_s = keep_alive_s
        self._reschedule()
        return session, present

    # -- permission and rate --------------------------------------------------------------------

    def access_changed(self) -> None:
        self.permissions = {} if self.broker.access.authorizer is not None else None

    def may_publish(self, topic: str) -> bool:
        if topic.startswith(RESERVED):
            if not self._was_told_off:  # once: it may go on for ever
                self._was_told_off = True
                why = "a topic of the broker's own"
                emit(events.NOT_AUTHORIZED, client_id=self.client_id, topic=topic, reason=why)
            return False
        permissions = self.permissions
        if permissions is None:
            return True
        allowed = permissions.get(topic)
        if allowed is None:
            authorizer = self.broker.access.authorizer
            allowed = authorizer is None or authorizer.may_publish(self.user, self.client_id, topic)
            if len(permissions) >= MAX_CACHED_PERMISSIONS:
                permissions.clear()
            permissions[topic] = allowed
            if not allowed:
                emit(events.NOT_AUTHORIZED, client_id=self.client_id, topic=topic, reason="may not publish")
        return allowed

    def may_subscribe(self, topic_filter: str, path: str) -> bool:
        authorizer = self.broker.access.authorizer
        if authorizer is None or authorizer.may_subscribe(self.user, self.client_id, path):
            return True
        emit(events.NOT_AUTHORIZED, client_id=self.client_id, topic=topic_filter, reason="may not subscribe")
        return False

    # -- the transport and the timer --------------------------------------------------------------

    def on_closed(self, now: float) -> None:
        """The transport is gone."""
        self.broker.now = now
        self.close("connection lost", publish_will=True)

    def on_timer(self, now: float) -> None:
        """Time to CONNECT, then keep alive. The one timer entry follows `last_seen` when it fires."""
        if self.state == State.CLOSED:
            return
        if self.state != State.CONNECTED:
            why = "no CONNECT in time" if self.state == State.NEW else "not authenticated in time"
            emit(events.CONNECTION_REFUSED, client_id=self.client_id or None, peer=self.peer, reason=why)
            self.close(why, publish_will=False)
        elif self.is_paused() and not self.blocked:
            self.last_seen = now  # it was us who did not listen
            self._reschedule()
        elif self.last_seen + self.keep_alive_factor * self._keep_alive_s <= now:
            self.end(EndCause.KEEP_ALIVE_TIMEOUT)
        else:
            self._reschedule()

    def _reschedule(self) -> None:
        timers = self.broker.timers
        timers.cancel(self._timer)
        if self._keep_alive_s:
            silent_until = self.last_seen + self.keep_alive_factor * self._keep_alive_s
            self._timer = timers.schedule(silent_until, self)

    # -- ends -------------------------------------------------------------------------------------

    def fail_on(self, error: Exception) -> None:
        if not isinstance(error, PeerError):
            log.error("internal error", exc_info=error, extra={"fields": {"client_id": self.client_id}})
            error = self.refusal(Refusal.INTERNAL, "internal error")
        self.fail(error)

    def fail(self, error: PeerError) -> None:
        if self.state == State.CLOSED:
            return
        is_connected = self.state == State.CONNECTED
        event = events.CONNECTION_FAILED if is_connected else events.CONNECTION_REFUSED
        emit(event, client_id=self.client_id or None, peer=self.peer, reason=str(error))
        if is_connected:
            self.say_failed(error)
        else:
            self.broker.stats.connections_refused += 1
            self.refuse(error)
        self.close(error.text, publish_will=True)

    def end(self, cause: EndCause, text: str = "") -> None:
        if self.state == State.CLOSED:
            return
        if self.state == State.CONNECTED:
            self.say_ended(cause)
        self.close(END_TEXTS[cause], publish_will=True)

    def tell_gone(self, why: str, lasted_s: float) -> None:
        """For people: the connection of a client has ended."""
        emit(
            events.CLIENT_DISCONNECTED,
            client_id=self.client_id,
            peer=self.peer,
            reason=why,
            duration_s=lasted_s,
        )

    def say_last(self, frame: bytes) -> None:
        """Put a last word behind what waits; to a peer that does not read, instead of it."""
        if self.blocked:
            self.outbox.clear()
            self.blocked = False
        self.outbox.append(frame)

    def close(self, why: str, *, publish_will: bool) -> None:
        if self.state == State.CLOSED:
            return
        broker = self.broker
        if self.state == State.CONNECTED:
            self.tell_gone(why, round(broker.now - self.connected_at, 6))
        self.state = State.CLOSED
        self.stop_reading()
        broker.timers.cancel(self._timer)
        self.flush()
        broker.dispatcher.forget(self)
        broker.close(self, publish_will=publish_will)
        self.port.close()
