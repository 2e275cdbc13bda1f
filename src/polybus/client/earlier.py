"""Ends of requests that an earlier run under this client id made (TB-08): they come after the next connect, and
wait here until someone asks for them."""

import asyncio
from typing import Final

from polybus.client.errors import ClientError, RequestTimeout
from polybus.client.message import Message

MAX_KEPT: Final = 10_000
"""As many requests as a broker lets one client have."""


class EarlierRequests:
    def __init__(self) -> None:
        self._ends: dict[int, Message | ClientError] = {}
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    def ended(self, request_id: int, end: Message | ClientError) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and not waiting.done():
            _settle(waiting, end)
            return
        self._ends[request_id] = end
        if len(self._ends) > MAX_KEPT:
            del self._ends[next(iter(self._ends))]

    async def end(self, request_id: int, timeout_s: float) -> Message:
        """The answer, now or when it comes. Raises `RequestFailed`: how else it ended."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
            if request_id in self._ends:
                _settle(waiting, self._ends.pop(request_id))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(waiting)
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise RequestTimeout(
                "", f"the end of request {request_id} did not come within {timeout_s:g} s"
            ) from None
        finally:
            self._waiting.pop(request_id, None)

    def close(self, error: ClientError) -> None:
        """Nothing more will come."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                _settle(each, error)


def _settle(waiting: asyncio.Future[Message], end: Message | ClientError) -> None:
    if isinstance(end, ClientError):
        waiting.set_exception(end)
        waiting.exception()  # looked at: whoever waited may be gone
    else:
        waiting.set_result(end)
