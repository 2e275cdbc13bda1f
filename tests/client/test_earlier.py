"""The ends of requests that an earlier run under the same client id made (TB-08)."""

import asyncio

import pytest

import polybus
from polybus.client import BusClosed, Message, RequestTimeout, ServiceError
from polybus.client import earlier as module
from polybus.client.earlier import EarlierRequests

ANSWER = Message("", b"42")


def test_an_end_that_came_before_anyone_asked() -> None:
    async def run() -> None:
        earlier = EarlierRequests()
        earlier.ended(7, ANSWER)
        assert await earlier.end(7, 1) == ANSWER
        with pytest.raises(RequestTimeout, match="request 7 did not come"):
            await earlier.end(7, 0.01)  # it is told once

    asyncio.run(run())


def test_an_end_that_is_waited_for_by_several() -> None:
    async def run() -> None:
        earlier = EarlierRequests()
        waiting = [asyncio.create_task(earlier.end(7, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        earlier.ended(8, Message("", b"another's"))
        earlier.ended(7, ANSWER)
        assert await asyncio.gather(*waiting) == [ANSWER, ANSWER]

    asyncio.run(run())


def test_another_end_is_raised() -> None:
    async def run() -> None:
        earlier = EarlierRequests()
        earlier.ended(7, ServiceError("", "out of paper"))
        with pytest.raises(ServiceError, match="out of paper"):
            await earlier.end(7, 1)
        earlier.ended(8, RequestTimeout("", "no service took it in time"))
        with pytest.raises(RequestTimeout, match="no service took it"):
            await earlier.end(8, 1)

    asyncio.run(run())


def test_what_ends_the_bus_ends_the_waiting() -> None:
    async def run() -> None:
        earlier = EarlierRequests()
        waiting = asyncio.create_task(earlier.end(7, 20))
        await asyncio.sleep(0)
        earlier.close(BusClosed("the bus is closed"))
        with pytest.raises(BusClosed):
            await waiting

    asyncio.run(run())


def test_ends_without_end_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    earlier = EarlierRequests()
    for number in range(10):
        earlier.ended(number, ANSWER)
    assert list(earlier._ends) == [7, 8, 9]


def test_before_the_bus_is_open() -> None:
    async def run() -> None:
        with pytest.raises(BusClosed):
            await polybus.connect("tbus://127.0.0.1:1").resume(1)

    asyncio.run(run())
