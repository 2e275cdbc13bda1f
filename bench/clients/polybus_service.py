"""Services that send back what they got, through the Python client, until standard input ends.

    python -m bench.clients.polybus_service PORT TOPIC COUNT CONCURRENCY

With a COUNT above 1 there is one client for each of TOPIC/0, TOPIC/1, …
"""

import asyncio
import sys
from contextlib import AsyncExitStack

import uvloop

import polybus
from polybus.client import Message


def echo(request: Message) -> bytes:
    return request.payload


async def main(port: int, topic: str, count: int, concurrency: int) -> None:
    async with AsyncExitStack() as stack:
        for number in range(count):
            bus = await stack.enter_async_context(polybus.connect(f"tbus://127.0.0.1:{port}"))
            await bus.serve(f"{topic}/{number}", echo, concurrency=concurrency)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
