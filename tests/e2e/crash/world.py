"""What all clients of a run share: where the broker is, the books, the dice, and who watches."""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.e2e.crash.books import Books

RETRY_S = 0.02
"""Between two attempts to connect."""
POLL_S = 0.01


@dataclass
class World:
    mqtt_port: int
    tbus_port: int
    dice: random.Random
    books: Books = field(default_factory=Books)
    is_draining: bool = False
    """Nobody begins anything new, and everyone acknowledges at once."""
    on_event: Callable[[str], None] = lambda event: None

    def happened(self, event: str) -> None:
        self.on_event(event)

    def pause_s(self, longest_s: float) -> float:
        return self.dice.uniform(0.0, longest_s)


async def eventually(
    condition: Callable[[], bool], patience_s: float, progress: Callable[[], object] = lambda: None
) -> bool:
    """Whether it came true; gives up when nothing has moved for so long."""
    loop = asyncio.get_running_loop()
    before, since = progress(), loop.time()
    while not condition():
        if (now := progress()) != before:
            before, since = now, loop.time()
        if loop.time() - since > patience_s:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def until(condition: Callable[[], bool]) -> None:
    """However long it takes."""
    await eventually(condition, math.inf)
