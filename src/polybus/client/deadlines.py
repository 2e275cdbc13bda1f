"""Many deadlines, one timer. Never reads a clock: callers pass `now`."""

import heapq
from typing import Final

FEW: Final = 1024


class Deadlines:
    """One heap for all; what was settled is passed over when its time comes, or swept out when that
    would be most of the heap."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, float] = {}

    def set(self, token: int, deadline: float) -> None:
        self._live[token] = deadline
        heapq.heappush(self._heap, (deadline, token))

    def settle(self, token: int) -> None:
        self._live.pop(token, None)
        if len(self._heap) > 2 * len(self._live) + FEW:
            self._heap = [(deadline, token) for token, deadline in self._live.items()]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        heap = self._heap
        while heap and self._live.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[int]:
        """Those whose time has come, the earliest first; they are settled."""
        found = []
        while (deadline := self.next()) is not None and deadline <= now:
            _, token = heapq.heappop(self._heap)
            del self._live[token]
            found.append(token)
        return found
