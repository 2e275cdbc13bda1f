"""Sends what the schedule says when it says so, in real or accelerated time. Only this has clock and sockets.

Every truck is a client of its own, and so is the office, so that the bus sees who sent what.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import Final

import msgspec

from polybus.client import Bus, Message, RequestFailed, connect
from polybus.fleet.calls import KIND, TIMEOUT_S, Call, calls, reactions
from polybus.fleet.driving import Itinerary
from polybus.fleet.records import topic_of
from polybus.fleet.schedule import DISPATCH, Coverage, Plan, Sending, sendings, truck_name

WINDOW: Final = 50
"""Messages of a client that may wait for their acknowledgement at a time."""
CALLS_AT_ONCE: Final = 500
CONNECT_AT_ONCE: Final = 20


class Totals(msgspec.Struct):
    """What was done so far; the progress bar reads it."""

    planned_s: float
    now_s: float = 0.0
    """Virtual."""
    behind_s: float = 0.0
    """Real seconds that sending is behind the schedule."""
    messages: Counter[str] = msgspec.field(default_factory=Counter)
    """Acknowledged, by kind; copies included."""
    copies: int = 0
    payload_bytes: int = 0
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    """Of the office's calls."""


class Sender:
    def __init__(self, plan: Plan, url: str, speed: float, *, has_calls: bool = True) -> None:
        self._plan = plan
        self._url = url
        self._speed = speed
        self._has_calls = has_calls
        self._is_tbus = url.startswith("tbus")
        self._began_s = 0.0
        self.totals = Totals(plan.duration_s)

    async def run(self) -> Totals:
        """Until the plan's time is over and everything is acknowledged.

        Raises what keeps a client from connecting or a message from being acknowledged.
        """
        async with self._connected() as buses:
            self._began_s = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(buses, group))
                if self._has_calls:
                    group.create_task(self._call(buses[DISPATCH], group))
        return self.totals

    def virtual_now_s(self) -> float:
        return (asyncio.get_running_loop().time() - self._began_s) * self._speed

    # --- clients ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[dict[str, Bus]]:
        names = [truck_name(number) for number in range(1, self._plan.trucks + 1)]
        gate = asyncio.Semaphore(CONNECT_AT_ONCE)

        async def open_bus(name: str) -> Bus:
            bus = connect(self._url, client_id=name)
            if self._has_calls and name != DISPATCH:
                bus.service(topic_of(name, KIND), concurrency=4)(self._answering(name))
            async with gate:
                return await stack.enter_async_context(bus)

        async with AsyncExitStack() as stack:
            buses = await asyncio.gather(*(open_bus(name) for name in chain(names, [DISPATCH])))
            yield dict(zip(chain(names, [DISPATCH]), buses, strict=True))

    def _answering(self, truck: str) -> Callable[[Message], Awaitable[str]]:
        manner = reactions(self._plan, truck)
        coverage = Coverage(self._plan, truck)
        itinerary = Itinerary(self._plan.seed, truck, self._plan.country)

        async def answer(request: Message) -> str:
            now_s = self.virtual_now_s()
            reaction = next(manner)
            if not coverage.has(now_s, itinerary.at(now_s)):
                await asyncio.sleep(60)  # it does not hear us; the request ends by its timeout
            await asyncio.sleep(reaction.delay_s)
            if reaction.fails:
                raise RuntimeError("the modem restarts")
            return "here"

        return answer

    # --- what the schedule says -------------------------------------------------------------------

    async def _send(self, buses: dict[str, Bus], group: asyncio.TaskGroup) -> None:
        windows = {name: asyncio.Semaphore(WINDOW) for name in buses}
        for sending in sendings(self._plan):
            await self._until(sending.send_s)
            self.totals.now_s = sending.send_s
            window = windows[sending.sender]
            await window.acquire()
            group.create_task(self._publish(buses[sending.sender], sending, window))
        self.totals.now_s = self._plan.duration_s

    async def _publish(self, bus: Bus, sending: Sending, window: asyncio.Semaphore) -> None:
        try:
            # TBus acknowledges no messages; MQTT does at QoS 1.
            await bus.publish(sending.topic, sending.payload, 0 if self._is_tbus else 1)
        finally:
            window.release()
        totals = self.totals
        totals.messages[sending.kind] += 1
        totals.copies += sending.is_copy
        totals.payload_bytes += len(sending.payload)

    async def _call(self, bus: Bus, group: asyncio.TaskGroup) -> None:
        gate = asyncio.Semaphore(CALLS_AT_ONCE)
        for call in calls(self._plan):
            await self._until(call.at_s)
            await gate.acquire()
            group.create_task(self._ask(bus, call, gate))

    async def _ask(self, bus: Bus, call: Call, gate: asyncio.Semaphore) -> None:
        try:
            await bus.request(topic_of(call.truck, KIND), "how are you", timeout=TIMEOUT_S, wait=False)
            end = "answered"
        except RequestFailed as error:
            end = type(error).__name__
        finally:
            gate.release()
        self.totals.ends[end] += 1

    async def _until(self, virtual_s: float) -> None:
        ahead_s = self._began_s + virtual_s / self._speed - asyncio.get_running_loop().time()
        self.totals.behind_s = max(0.0, -ahead_s)
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
