"""Who is let in: builds the answers of `broker.access` from the configuration.

Checking a password costs tens of milliseconds on purpose. Three things keep that from the others:
it happens in a few threads; only so many checks may wait, and past that a login is refused as
busy rather than queued without end; and a login that succeeded is remembered, so that a thousand
clients that come back at once do not cost a thousand checks.

What is remembered is a keyed BLAKE2 hash of user and password. The key is random, lives in memory
only and dies with the authenticator, so the hashes are worth nothing outside this process, and
whoever can read its memory sees passwords arrive anyway. Only successes are remembered: guessing
stays slow. A changed password file makes a new authenticator, which remembers nothing.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from polybus.broker.access import Access, Authenticator, Credentials, Verdict
from polybus.ops.acl import AclAuthorizer
from polybus.ops.config import Config
from polybus.ops.passwords import check_password, decoy_hash, read_password_file

THREADS: Final = 2
MOST_WAITING: Final = 1_000
"""Some ten seconds' worth of checks: about as long as a client waits for its CONNACK."""
MOST_REMEMBERED: Final = 100_000

BUSY: Final = Verdict(False, busy=True, reason="too many logins are waiting to be checked; try again later")
WRONG: Final = Verdict(False, bad_credentials=True, reason="unknown user or wrong password")
NO_ANONYMOUS: Final = Verdict(False, reason="a user name is needed")
WELCOME: Final = Verdict(True)


def build_access(config: Config) -> Access:
    """Read the password file and the rules. Raises `ConfigError`. To reload, build anew."""
    auth = config.auth
    authenticator: Authenticator | None = None
    if auth.password_file or auth.use_certificate_name or not auth.anonymous_is_welcome:
        authenticator = PasswordAuthenticator(
            read_password_file(auth.password_file) if auth.password_file else {},
            anonymous_is_welcome=auth.anonymous_is_welcome,
            certificate_is_enough=auth.use_certificate_name,
        )
    authorizer = AclAuthorizer(config.acl, allow_by_default=auth.acl_default == "allow") if config.acl else None
    return Access(authenticator=authenticator, authorizer=authorizer)


def close_access(access: Access) -> None:
    """For the end of the server: give up what is still being checked."""
    if isinstance(access.authenticator, PasswordAuthenticator):
        access.authenticator.close()


class PasswordAuthenticator:
    """Implements `broker.access.Authenticator`. All its methods belong to the event loop's thread."""

    def __init__(
        self,
        users: Mapping[str, str],
        *,
        anonymous_is_welcome: bool,
        certificate_is_enough: bool = False,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._users = users
        self._anonymous_is_welcome = anonymous_is_welcome
        self._certificate_is_enough = certificate_is_enough
        self._most_waiting = most_waiting
        self._waiting = 0
        self._asking: dict[bytes, list[Callable[[Verdict], None]]] = {}
        self._decoy = decoy_hash(users)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="polybus-passwords")
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        if self._certificate_is_enough and credentials.certificate_name:
            answer(Verdict(True, user=credentials.certificate_name))
        elif credentials.user_name is None and credentials.password is None:
            answer(WELCOME if self._anonymous_is_welcome else NO_ANONYMOUS)
        elif credentials.user_name is None or credentials.password is None:
            answer(WRONG)
        else:
            self._check(credentials.user_name, credentials.password, answer)

    def close(self) -> None:
        """For the end of the server: what still waits is not checked and not answered."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, user: str, password: bytes, answer: Callable[[Verdict], None]) -> None:
        fingerprint = self._fingerprint(user, password)
        if fingerprint in self._remembered:
            answer(Verdict(True, user=user))
            return
        if self._waiting >= self._most_waiting:
            answer(BUSY)
            return
        self._waiting += 1
        asking = self._asking.get(fingerprint)
        if asking is not None:  # the same login is being checked already
            asking.append(answer)
            return
        asking = self._asking[fingerprint] = [answer]
        loop = asyncio.get_running_loop()
        # An unknown user costs the same time as a known one, so that names cannot be guessed.
        hashed = self._users.get(user, self._decoy)

        def done(is_right: bool) -> None:
            del self._asking[fingerprint]
            self._waiting -= len(asking)
            verdict = WRONG
            if is_right and user in self._users:
                self._remember(fingerprint)
                verdict = Verdict(True, user=user)
            for each in asking:
                each(verdict)

        def check() -> None:
            is_right = check_password(hashed, password)
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, is_right)

        self._threads.submit(check)

    def _fingerprint(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        framed = len(name).to_bytes(4) + name + password
        return hashlib.blake2b(framed, key=self._key, digest_size=32).digest()

    def _remember(self, fingerprint: bytes) -> None:
        if len(self._remembered) >= MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[fingerprint] = None
