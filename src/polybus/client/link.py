"""Keeps a bus connected: the first connection, and every one after a loss."""

import asyncio
import random
from collections.abc import Callable
from typing import TypeAlias

from polybus.client.backoff import Backoff
from polybus.client.driver import Dial, Driver
from polybus.client.errors import ClientError
from polybus.client.events import Accepted, BusEvent, Closed, Disconnected, Ended, Reconnecting

DialAt: TypeAlias = Callable[[str], Dial]


class Link:
    """`emit` tells the application; `on_end` hears once that there will be no further connection.

    `dial_at` reaches brokers (host:port) that a full broker names in its place (TB-14). Where we were
    taken last we come back first; if that fails, the next attempt goes to where we were sent at first.
    """

    def __init__(
        self,
        driver: Driver,
        dial: Dial,
        dial_at: DialAt | None,
        backoff: Backoff | None,
        emit: Callable[[BusEvent], None],
        on_end: Callable[[ClientError | None], None],
    ) -> None:
        self._driver = driver
        self._dial = self._dial_next = dial
        self._dial_at = dial_at
        self._backoff = backoff
        self._emit = emit
        self._on_end = on_end
        self._supervisor: asyncio.Task[None] | None = None
        self._has_ended = False
        self.attempt = 0

    async def open(self) -> None:
        """Connect for the first time. Raises `ConnectionFailed` or `ConnectRefused`."""
        try:
            outcome = await self._connect()
        except BaseException:
            self._driver.shut(None)
            raise
        if isinstance(outcome, Ended):
            self._driver.shut(outcome.error)
            await self._driver.wait_left()
            raise outcome.error
        self._supervisor = asyncio.create_task(self._supervise(), name="polybus-link")

    async def close(self) -> None:
        """Say goodbye and end."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
            self._end(None)
        await self._driver.wait_left()

    async def _connect(self) -> Accepted | Ended:
        first = outcome = await self._driver.connect(self._dial_next)
        if isinstance(first, Accepted):
            return first
        self._dial_next = self._dial
        places = list(first.elsewhere) if self._dial_at is not None else []
        for place in places:  # grows while we look
            assert self._dial_at is not None
            dial = self._dial_at(place)
            outcome = await self._driver.connect(dial)
            if isinstance(outcome, Accepted):
                self._dial_next = dial
                return outcome
            places += [each for each in outcome.elsewhere if each not in places]
        return first

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        ended: Ended | None = None
        while ended is None:
            connected_at = loop.time()
            ended = await self._driver.wait_ended()
            self._emit(Disconnected(ended.error))
            if self._backoff is not None and loop.time() - connected_at >= self._backoff.stable_s:
                self.attempt = 0
            while ended is not None and self._may_try_again(ended):
                ended = await self._try_again(ended)
        self._end(ended.error)

    def _may_try_again(self, ended: Ended) -> bool:
        if self._backoff is None or not ended.may_retry:
            return False
        return self._backoff.attempts is None or self.attempt < self._backoff.attempts

    async def _try_again(self, ended: Ended) -> Ended | None:
        """None: connected."""
        assert self._backoff is not None
        self.attempt += 1
        delay_s = self._backoff.delay_s(self.attempt, random.random())
        self._emit(Reconnecting(self.attempt, delay_s, ended.error))
        await asyncio.sleep(delay_s)
        outcome = await self._connect()
        return outcome if isinstance(outcome, Ended) else None

    def _end(self, error: ClientError | None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._driver.shut(error)
            self._on_end(error)
            self._emit(Closed(error))
