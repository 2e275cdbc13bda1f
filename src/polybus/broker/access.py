"""Who may connect, publish and subscribe: the questions the core asks, answered by operations.

Answers to `Authenticator.authenticate` come through a callback, because checking a password
takes tens of milliseconds on purpose and must happen off the event loop.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec


class Credentials(msgspec.Struct, frozen=True):
    """What a client showed of itself. `peer` is its address as text, for logs."""

    client_id: str
    user_name: str | None = None
    password: bytes | None = None
    peer: str = ""
    certificate_name: str | None = None
    """Common name of a verified TLS client certificate."""

    def __repr__(self) -> str:  # a password never reaches a log
        return f"Credentials(client_id={self.client_id!r}, user_name={self.user_name!r}, peer={self.peer!r})"


class Verdict(msgspec.Struct, frozen=True):
    allowed: bool
    user: str | None = None
    """The identity that authorization decides by; None is anonymous."""
    bad_credentials: bool = False
    """Refused for a wrong user name or password, rather than for not being welcome."""
    busy: bool = False
    """Refused only because too many are asking at once."""
    reason: str = ""
    data: bytes | None = None
    """Last word of an enhanced authentication, sent along with the success."""


class Authenticator(Protocol):
    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        """Call `answer` exactly once, now or later, on the event loop's thread."""


class Authorizer(Protocol):
    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool: ...

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool: ...


class Challenge(msgspec.Struct, frozen=True):
    """One more round of an enhanced authentication."""

    data: bytes


class Exchange(Protocol):
    """One enhanced authentication under way (MQTT 5.0 section 4.12)."""

    def step(self, data: bytes | None) -> Challenge | Verdict: ...


class AuthenticationMethod(Protocol):
    def begin(self, client_id: str) -> Exchange: ...


class Access(msgspec.Struct, frozen=True):
    """The three answers together. None for a part means: everyone is welcome."""

    authenticator: Authenticator | None = None
    authorizer: Authorizer | None = None
    methods: Mapping[str, AuthenticationMethod] = {}
