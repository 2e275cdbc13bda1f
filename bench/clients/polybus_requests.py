"""Requests through the Python client over TBus. Prints one line of JSON.

    python -m bench.clients.polybus_requests PORT TOPIC COUNT SECONDS RATE WINDOW

COUNT clients ask the services at TOPIC/0, TOPIC/1, … With a RATE each sends so many a second, by a schedule
that waits for nothing, and latency counts from the time in the schedule. With RATE 0 each has WINDOW requests
under way at all times.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import uvloop

import polybus
from bench.clients.results import print_rate
from polybus.client import Bus, RequestFailed

PAYLOAD = b"\x04test"  # the string "test", as in the document
TIMEOUT_S = 5.0


class Measurement:
    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.latencies_s: list[float] = []
        self.failures = 0

    async def ask(self, bus: Bus, number: int, due: float) -> None:
        try:
            answer = await bus.request(f"{self.topic}/{number}", PAYLOAD, timeout=TIMEOUT_S)
        except RequestFailed:
            self.failures += 1
            return
        assert answer.payload == PAYLOAD
        self.latencies_s.append(time.perf_counter() - due)

    async def keep_asking(self, bus: Bus, number: int, until: float) -> None:
        while (now := time.perf_counter()) < until:
            await self.ask(bus, number, now)

    async def ask_by_schedule(self, bus: Bus, number: int, begin: float, until: float, rate: float) -> None:
        loop = asyncio.get_running_loop()
        asked: set[asyncio.Task[None]] = set()
        due = begin
        while due < until:
            while due <= time.perf_counter():
                task = loop.create_task(self.ask(bus, number, due))
                asked.add(task)
                task.add_done_callback(asked.discard)
                due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if asked:
            await asyncio.wait(asked)


async def main(port: int, topic: str, count: int, seconds: float, rate: float, window: int) -> None:
    measurement = Measurement(topic)
    async with AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(polybus.connect(f"tbus://127.0.0.1:{port}")) for _ in range(count)
        ]
        begin = time.perf_counter()
        until = begin + seconds
        async with asyncio.TaskGroup() as group:
            for number, bus in enumerate(buses):
                if rate:
                    start = begin + number / (count * rate)  # not all in the same instant
                    group.create_task(measurement.ask_by_schedule(bus, number, start, until, rate))
                else:
                    for _ in range(window):
                        group.create_task(measurement.keep_asking(bus, number, until))
        took = time.perf_counter() - begin
    answered = measurement.latencies_s
    print_rate("requests", len(answered), took, answered, failures=measurement.failures)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    given = sys.argv
    asyncio.run(main(int(given[1]), given[2], int(given[3]), float(given[4]), float(given[5]), int(given[6])))
