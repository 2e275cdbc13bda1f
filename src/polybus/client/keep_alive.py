"""When to ping, and when to give up. Never reads a clock: callers pass `now`."""

from enum import Enum, auto
from typing import Final

MAX_PATIENCE_S: Final = 10.0


class Verdict(Enum):
    FINE = auto()
    PING = auto()
    DEAD = auto()


class KeepAlive:
    """Pings when one direction was silent for three quarters of the interval.

    [MQTT-3.1.2-20] only asks that *we* send in time. Silence of the peer counts as well, so that a
    publisher of QoS 0 finds out that nobody is there. After a ping, any byte is a sign of life:
    its answer may stand behind a long queue of messages.
    """

    def __init__(self, interval_s: float, *, now: float) -> None:
        self._quiet_s = interval_s * 0.75
        self._patience_s = min(max(interval_s / 2, 1.0), MAX_PATIENCE_S)
        self._enabled = interval_s > 0
        self._sent_at = self._received_at = now
        self._pinged_at: float | None = None

    def sent(self, now: float) -> None:
        self._sent_at = now

    def received(self, now: float) -> None:
        self._received_at = now
        self._pinged_at = None

    def pinged(self, now: float) -> None:
        self._sent_at = self._pinged_at = now

    def deadline(self) -> float | None:
        if not self._enabled:
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
