"""When the broker dies. Seeded, and often right after something that a client has seen. Pure."""

import random
from dataclasses import dataclass
from typing import Literal

EVENTS = (
    "connack",
    "suback",
    "unsuback",
    "puback",
    "pubrec",
    "pubcomp",
    "publish",
    "pubrel",
    "answer",
    "end",
)
"""What clients tell of, as they read it from a socket."""
LATEST_S = 1.2
"""An event that does not come is not waited for longer."""


@dataclass(frozen=True)
class Moment:
    when: Literal["starting", "running", "seen"]
    delay_s: float = 0.0
    """After the start of the process, or after the first client was let in."""
    event: str = ""
    countdown: int = 0
    """Which of these events it is, from the first client that was let in."""

    def __str__(self) -> str:
        if self.when == "seen":
            return f"at {self.event} {self.countdown}"
        since = "start" if self.when == "starting" else "first client"
        return f"{self.delay_s * 1000:.0f} ms after {since}"


def choose(dice: random.Random) -> Moment:
    kind = dice.random()
    if kind < 0.15:
        return Moment("starting", delay_s=dice.uniform(0.0, 0.5))
    if kind < 0.45:
        return Moment("running", delay_s=dice.uniform(0.0, 0.7))
    event = dice.choice(EVENTS)
    # Many of the common ones, so that most of them come while traffic is in full swing.
    highest = 300 if event in ("puback", "pubrec", "pubcomp", "publish", "pubrel") else 12
    return Moment("seen", event=event, countdown=dice.randint(1, highest))


class Countdown:
    """Tells once when the event has come so often."""

    def __init__(self, moment: Moment) -> None:
        self._event = moment.event
        self._left = moment.countdown

    def is_reached(self, event: str) -> bool:
        if event != self._event or self._left <= 0:
            return False
        self._left -= 1
        return self._left == 0
