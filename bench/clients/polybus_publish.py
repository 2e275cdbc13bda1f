"""Publishes through the Python client over TBus, then waits until the broker has read all of it: a service of
its own answers a last request behind the messages. Prints one line of JSON.

    python -m bench.clients.polybus_publish PORT TOPIC SIZE SECONDS
"""

import asyncio
import sys
import time

import uvloop

import polybus
from bench.clients.results import print_rate

A_LOOK = 1000
"""Messages between two looks at the clock."""


async def main(port: int, topic: str, size: int, seconds: float) -> None:
    payload = b"x" * size
    async with polybus.connect(f"tbus://127.0.0.1:{port}") as bus:
        await bus.serve(f"{topic}/echo", lambda request: request.payload)
        begin = time.perf_counter()
        sent = 0
        while time.perf_counter() - begin < seconds:
            for _ in range(A_LOOK):
                await bus.publish(topic, payload)
            sent += A_LOOK
        await bus.request(f"{topic}/echo", b"")
        print_rate("messages", sent, time.perf_counter() - begin)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
