"""Stand-ins for what stands around the core: who may do what, and where state is kept."""

from collections.abc import Callable

from polybus.broker.access import Challenge, Credentials, Exchange, Verdict

WELCOME = Verdict(allowed=True)


class Recording:
    """Lets everyone in and remembers who came last."""

    last: Credentials

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        self.last = credentials
        answer(WELCOME)


class OnlyAlice:
    """Knows alice and her password. `later`: answers wait until `decide`."""

    def __init__(self, *, later: bool = False) -> None:
        self._later = later
        self._waiting: list[Callable[[], None]] = []

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        verdict = self._verdict(credentials)
        if self._later:
            self._waiting.append(lambda: answer(verdict))
        else:
            answer(verdict)

    def decide(self) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer()

    @staticmethod
    def _verdict(credentials: Credentials) -> Verdict:
        if credentials.user_name != "alice":
            return Verdict(allowed=False, reason="only alice is welcome here, and no one else but alice")
        if credentials.password != b"secret":
            return Verdict(
                allowed=False, bad_credentials=True, reason="this is not the password that alice has"
            )
        return Verdict(allowed=True, user="alice")


class Fenced:
    """Topics and filters that start with ``secret/`` are out of bounds."""

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        return not topic.startswith("secret/")

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        return not topic_filter.startswith("secret/")


class Riddle:
    """An enhanced authentication of one question: the answer is ``42``."""

    def begin(self, client_id: str) -> Exchange:
        return _RiddleExchange()


class _RiddleExchange:
    def step(self, data: bytes | None) -> Challenge | Verdict:
        if data == b"42":
            return Verdict(allowed=True, user="philosopher", data=b"right")
        if data is None or data == b"":
            return Challenge(b"six times seven?")
        return Verdict(allowed=False, bad_credentials=True, reason="that is not what six times seven is")


class Broken:
    """Fails at every question, as a database that is down would."""

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        raise RuntimeError("no answer today")

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        raise RuntimeError("no answer today")


class SlowDisk:
    """A journal whose commits are done when `write` is called."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def commit(self, done: Callable[[], None]) -> None:
        self._waiting.append(done)

    def write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()
