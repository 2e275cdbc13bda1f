"""Deadlines of many things in one heap. Never reads a clock: callers pass `now`.

A thing that is rescheduled often (keep alive moves with every packet) does not touch the heap:
it keeps its entry, and when that fires looks at its own state and schedules the rest.
"""

import heapq
from collections.abc import Callable
from typing import Protocol


class Timed(Protocol):
    def on_timer(self, now: float) -> None: ...


class Timers:
    """`on_earlier` is told whenever the first deadline moves closer."""

    def __init__(self, on_earlier: Callable[[float], None] = lambda when: None) -> None:
        self.on_earlier = on_earlier
        self._heap: list[tuple[float, int]] = []
        self._targets: dict[int, Timed] = {}
        self._sequence = 0

    def schedule(self, when: float, target: Timed) -> int:
        """Call `target.on_timer` at `when`; the number returned cancels it."""
        self._sequence = handle = self._sequence + 1
        self._targets[handle] = target
        heapq.heappush(self._heap, (when, handle))
        if self._heap[0][1] == handle:
            self.on_earlier(when)
        return handle

    def cancel(self, handle: int) -> None:
        self._targets.pop(handle, None)
        # Dead entries stay in the heap until they outnumber the living.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._targets):
            self._heap = [entry for entry in self._heap if entry[1] in self._targets]
            heapq.heapify(self._heap)

    def deadline(self) -> float | None:
        heap = self._heap
        while heap and heap[0][1] not in self._targets:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Fire everything that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, handle = heapq.heappop(heap)
            target = self._targets.pop(handle, None)
            if target is not None:
                target.on_timer(now)
            heap = self._heap
