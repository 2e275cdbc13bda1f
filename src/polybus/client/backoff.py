"""How long to wait before the next attempt to connect."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential, with jitter so that a thousand clients do not come back in the same instant.

    The nth delay is drawn evenly between half and all of ``initial_s * factor ** (n - 1)``, at most
    `maximum_s`. A connection that lasted `stable_s` starts the count again. `attempts` None: for ever.
    """

    initial_s: float = 0.2
    maximum_s: float = 30.0
    factor: float = 2.0
    stable_s: float = 10.0
    attempts: int | None = None

    def delay_s(self, attempt: int, chance: float) -> float:
        """`attempt` counts from 1; `chance` is a random number in [0, 1)."""
        # The exponent is capped, for a float overflows after a long night.
        ceiling = min(self.initial_s * self.factor ** min(attempt - 1, 64), self.maximum_s)
        return ceiling * (0.5 + chance / 2)
