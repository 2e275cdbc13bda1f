"""`python -m bench.python_client`: the Python client by itself, as the C++ client's bench does it.

    service  --port P --topic T [--concurrency N]                echo until stdin closes; prints `ready`
    requests --port P --topic T --window W --seconds S [--size]  pipelined; one JSON line
    publish  --port P --topic T --seconds S [--size]             one JSON line, confirmed by a last request

All of them take --bulk and --protocol (tbus, mqtt).
"""

import argparse
import asyncio
import json
import sys
import time

import uvloop

import polybus


def connect(options: argparse.Namespace) -> polybus.Bus:
    url = f"{options.protocol}://127.0.0.1:{options.port}"
    return polybus.connect(url, bulk=options.bulk if options.protocol == "tbus" else None)


def echo(request: polybus.Message) -> bytes:
    return request.payload


async def service(options: argparse.Namespace) -> None:
    async with connect(options) as bus:
        await bus.serve(options.topic, echo, concurrency=options.concurrency)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def requests(options: argparse.Namespace) -> None:
    payload = bytes(options.size)
    times: list[float] = []
    failures = 0
    async with connect(options) as bus:
        begin = time.perf_counter()
        end = begin + options.seconds

        async def ask() -> None:
            nonlocal failures
            while (asked := time.perf_counter()) < end:
                try:
                    await bus.request(options.topic, payload)
                except polybus.RequestFailed:
                    failures += 1
                else:
                    times.append(time.perf_counter() - asked)

        await asyncio.gather(*(ask() for _ in range(options.window)))
        seconds = time.perf_counter() - begin
    times.sort()
    report = {
        "requests": len(times),
        "seconds": round(seconds, 3),
        "rate": round(len(times) / seconds),
        "p50_us": round(times[len(times) // 2] * 1e6) if times else None,
        "p99_us": round(times[len(times) * 99 // 100] * 1e6) if times else None,
        "mean_us": round(sum(times) / len(times) * 1e6) if times else None,
        "failures": failures,
    }
    print(json.dumps(report))


async def publish(options: argparse.Namespace) -> None:
    """Counted are messages that the broker has read: it answers a request behind them."""
    payload = bytes(options.size)
    count = 0
    async with connect(options) as bus:
        await bus.serve(f"{options.topic}/end", echo)
        begin = time.perf_counter()
        while time.perf_counter() < begin + options.seconds:
            await bus.publish_many(options.topic, [payload] * 1000)
            count += 1000
        await bus.request(f"{options.topic}/end", timeout=60)
        seconds = time.perf_counter() - begin
    print(json.dumps({"messages": count, "seconds": round(seconds, 3), "rate": round(count / seconds)}))


COMMANDS = {"service": service, "requests": requests, "publish": publish}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--protocol", choices=["tbus", "mqtt"], default="tbus")
    parser.add_argument("--bulk", choices=["adaptive", "fixed", "off"], default="adaptive")
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=16)
    options = parser.parse_args()
    uvloop.run(COMMANDS[options.command](options))


if __name__ == "__main__":
    main()
