"""Calls to other brokers (TB-15): the mesh says whom and when, here is the socket."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from polybus.broker import events
from polybus.broker.events import emit
from polybus.broker.links import Port
from polybus.mesh.address import parse_address
from polybus.mesh.mesh import Mesh
from polybus.net.connection import Connection, Peer, Reception, ServedLink

log = logging.getLogger("polybus.net")

CALL_S: Final = 10.0
"""How long a connection may take to be made."""

MakeCall = Callable[[Port, Peer, float, str, Callable[[str], None]], ServedLink]
"""A link that calls the broker at this address; the last argument is told why there will be none."""


class Caller:
    """Calls neighbours as long as it is not closed."""

    def __init__(self, mesh: Mesh, reception: Reception, make_call: MakeCall) -> None:
        self._mesh = mesh
        self._reception = reception
        self._make_call = make_call
        self._loop = reception.loop
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._is_closed = False
        mesh.on_change = self.look

    def look(self) -> None:
        """There may be someone to call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        members = self._mesh.members
        for address in members.due(self._loop.time()):
            task = self._loop.create_task(self._call(address))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        deadline = members.deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self.look)

    async def _call(self, address: str) -> None:
        parsed = parse_address(address)
        assert parsed is not None, "only addresses are called"

        def failed(why: str) -> None:
            if self._mesh.members.failed(address, why, self._loop.time()):
                emit(events.NEIGHBOR_UNREACHABLE, neighbor=address, reason=f"{why}; it is called again")
            if not self._is_closed:
                self._loop.call_soon(self.look)

        def make(port: Port, peer: Peer, now: float) -> ServedLink:
            return self._make_call(port, peer, now, address, failed)

        try:
            async with asyncio.timeout(CALL_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._reception, make), *parsed
                )
            if connection.is_refused:
                failed("there are too many connections here")
        except TimeoutError:
            failed("no answer")
        except OSError as error:
            failed(error.strerror or str(error))

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._calls):
            task.cancel()
