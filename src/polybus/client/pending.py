"""A request on its way."""

import asyncio
from collections.abc import Generator

from polybus.client.driver import Driver
from polybus.client.errors import RequestCanceled
from polybus.client.message import Message


class PendingRequest:
    """Made by `Bus.ask`; see there. Awaiting it gives the answer, as often as you like."""

    def __init__(self, driver: Driver, token: int, request_id: int, topic: str) -> None:
        self.id = request_id
        self.topic = topic
        self._driver = driver
        self._token = token
        self._future = driver.watch(token)
        self._future.add_done_callback(lambda _: driver.forget(token))

    def __await__(self) -> Generator[object, None, Message]:
        """Raises as `Bus.request` does. Canceling who waits leaves the request as it is: use `cancel`."""
        return self._wait().__await__()

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def cancel(self) -> None:
        """All the way to the service. Whoever waits gets `RequestCanceled`."""
        if not self._future.done():
            self._driver.cancel(self._token)
            self._future.set_exception(RequestCanceled(self.topic, "canceled"))
            self._future.exception()  # nobody has to wait for it

    async def _wait(self) -> Message:
        answer = await asyncio.shield(self._future)
        assert answer is not None
        return answer
