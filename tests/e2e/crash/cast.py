"""Those who take part in a run, with their tasks, and what came out of it."""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from polybus.wire.mqtt.packets import V5
from tests.e2e.crash.brokers import BrokerProcess
from tests.e2e.crash.mqtt import MqttClient
from tests.e2e.crash.verdict import Verdict, compare
from tests.e2e.crash.world import World, eventually

QUIET_S = 6.0
"""When nothing has come for so long, what is missing is lost."""


@dataclass
class Outcome:
    title: str
    verdict: Verdict
    log: str

    def explain(self) -> str:
        """All there is to say about a failure."""
        faults = "\n".join(f"  {fault}" for fault in self.verdict.faults())
        return f"{self.title}\n{self.verdict.text()}\n{faults}\n{self.log[-3000:]}"


def outcome_of(title: str, broker: BrokerProcess, world: World) -> Outcome:
    world.books.strange += broker.complaints()
    return Outcome(title, compare(world.books), broker.log)


class Cast:
    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: list[MqttClient] = []
        self._workers: list[asyncio.Task[None]] = []
        self._connections: list[asyncio.Task[None]] = []

    def client(self, name: str, version: int = V5, **options: Any) -> MqttClient:
        """Connected as long as there is a broker."""
        client = MqttClient(self.world, name, version, **options)
        self.clients.append(client)
        self.connect(client.run())
        return client

    def connect(self, connection: Coroutine[Any, Any, None]) -> None:
        self._connections.append(asyncio.create_task(connection))

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that ends by itself when the run is drained."""
        self._workers.append(asyncio.create_task(work))

    def check(self) -> None:
        """An error of ours is not the broker's."""
        for task in (*self._workers, *self._connections):
            if task.done() and not task.cancelled():
                task.result()

    def is_settled(self) -> bool:
        self.check()
        return (
            all(task.done() for task in self._workers)
            and all(not client.session.outgoing for client in self.clients)
            and self.world.books.is_settled()
        )

    async def settle(self, quiet_s: float = QUIET_S) -> None:
        """Until all is well, or nothing happens any more; then until each client has read what is there."""
        await eventually(self.is_settled, quiet_s, lambda: self.world.books.entries)
        for client in self.clients:
            if client.is_connected:
                await client.ping()

    async def close(self) -> None:
        for task in (*self._workers, *self._connections):
            task.cancel()
        for task in (*self._workers, *self._connections):
            with contextlib.suppress(asyncio.CancelledError):
                await task
