"""When to ping, and when to give up. Never reads a clock: callers pass `now`."""

from enum import Enum, auto
from typing import Final, Self

MAX_PATIENCE_S: Final = 10.0
TBUS_PATIENCE_S: Final = 5.0


class Verdict(Enum):
    FINE = auto()
    PING = auto()
    DEAD = auto()


class KeepAlive:
    """Pings when one direction was silent for `quiet_s` (0: never), and gives up `patience_s` later.

    [MQTT-3.1.2-20] and TB-06 only ask that *we* send in time. Silence of the peer counts as well, so
    that a publisher of QoS 0 finds out that nobody is there. After a ping, any byte is a sign of life:
    its answer may stand behind a long queue of messages.
    """

    def __init__(self, quiet_s: float, patience_s: float, *, now: float) -> None:
        self._quiet_s = quiet_s
        self._patience_s = patience_s
        self._sent_at = self._received_at = now
        self._pinged_at: float | None = None

    @classmethod
    def mqtt(cls, interval_s: float, *, now: float) -> Self:
        return cls(interval_s * 0.75, min(max(interval_s / 2, 1.0), MAX_PATIENCE_S), now=now)

    @classmethod
    def tbus(cls, interval_s: float, *, now: float) -> Self:
        """TB-06: pings every half of it, and gives up 5 s later."""
        return cls(interval_s / 2, TBUS_PATIENCE_S, now=now)

    def sent(self, now: float) -> None:
        self._sent_at = now

    def received(self, now: float) -> None:
        self._received_at = now
        self._pinged_at = None

    def pinged(self, now: float) -> None:
        self._sent_at = self._pinged_at = now

    def deadline(self) -> float | None:
        if not self._quiet_s:
            return None
        if self._pinged_at is not None:
            return self._pinged_at + self._patience_s
        return min(self._sent_at, self._received_at) + self._quiet_s

    def check(self, now: float, *, is_reading: bool) -> Verdict:
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return Verdict.FINE
        if self._pinged_at is not None and is_reading:
            return Verdict.DEAD
        return Verdict.PING
