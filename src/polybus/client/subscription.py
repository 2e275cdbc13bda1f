"""A subscription: its queue, and the loop or callback that empties it."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

from polybus.client.errors import BusClosed, ClientError, OperationTimeout
from polybus.client.events import BusEvent, HandlerFailed, MessagesDropped, Receipt
from polybus.client.message import Acknowledge, Message, SubscribeOptions, WhenFull
from polybus.errors import UsageError

logger = logging.getLogger("polybus.client")

REPORT_DROPS_EVERY_S: Final = 1.0

Callback: TypeAlias = Callable[[Message], Awaitable[object] | object]


class Ticket:
    """Acknowledges a message when every subscription that it went to is done with it."""

    def __init__(self, receipt: Receipt, owners: int, acknowledge: Callable[[Receipt], None]) -> None:
        self._receipt = receipt
        self._owners = owners
        self._acknowledge = acknowledge

    def done(self) -> None:
        self._owners -= 1
        if self._owners == 0:
            self._acknowledge(self._receipt)


class Owner(Protocol):
    """What a subscription asks of its bus."""

    async def start_subscription(self, subscription: "Subscription", timeout_s: float) -> None: ...

    async def stop_subscription(self, subscription: "Subscription", timeout_s: float) -> None: ...

    def set_pausing(self, subscription: "Subscription", is_pausing: bool) -> None: ...

    def emit(self, event: BusEvent) -> None: ...


class Subscription:
    """Made by `Bus.subscribe`; see there. Await it, or enter it with `async with`, to start it."""

    def __init__(
        self,
        owner: Owner,
        options: tuple[SubscribeOptions, ...],
        callback: Callback | None,
        *,
        queue_size: int,
        acknowledge: Acknowledge,
        when_full: WhenFull,
        timeout_s: float,
    ) -> None:
        self.options = options
        self.topic_filters = tuple(option.topic_filter for option in options)
        self.dropped = 0
        self._owner = owner
        self._callback = callback
        self._queue_size = queue_size
        self._acknowledge = acknowledge
        self._when_full = when_full
        self._timeout_s = timeout_s
        self._queue: deque[tuple[Message, Ticket | None]] = deque()
        self._arrived = asyncio.Event()
        self._current: Ticket | None = None
        self._batch = -1
        self._has_room = True
        self._is_pausing = False
        self._unreported = 0
        self._is_started = False
        self._has_ended = False
        self._error: ClientError | None = None
        self._handler: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return True

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Subscribe. Raises `SubscribeRefused`, `OperationTimeout`, `BusClosed`."""
        if self._is_started:
            raise UsageError(f"the subscription to {self._names()} was already started")
        self._is_started = True
        await self._owner.start_subscription(self, self._timeout_s)
        if self._callback is not None:
            self._handler = asyncio.create_task(self._handle(self._callback), name="polybus-handler")
        return self

    async def close(self) -> None:
        """Unsubscribe. Messages that still wait are thrown away (and acknowledged)."""
        if self._has_ended:
            return
        self.end(None)
        self._settle()
        while self._queue:
            _, ticket = self._queue.popleft()
            if ticket is not None:
                ticket.done()
        self._update_pausing()
        handler = self._handler
        if handler is not None and handler is not asyncio.current_task():
            handler.cancel()
            await asyncio.wait({handler})
        await self._owner.stop_subscription(self, self._timeout_s)

    def __await__(self) -> Generator[object, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        self._current = None  # not handled
        with suppress(ClientError):  # what went wrong first is what the caller wants to hear of
            await self.close()

    # --- the application's end --------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Ends with the bus; raises what ended the bus if that was not `disconnect`."""
        if not self._is_started:
            raise UsageError("start the subscription first: 'async with bus.subscribe(…)' or 'await …'")
        if self._callback is not None and asyncio.current_task() is not self._handler:
            raise UsageError(f"the messages of {self._names()} go to its callback")
        self._settle()
        while not self._queue:
            if self._has_ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        message, ticket = self._queue.popleft()
        if ticket is not None:
            if self._acknowledge is Acknowledge.HANDLED:
                self._current = ticket
            else:
                ticket.done()
        if self._is_pausing:
            self._update_pausing()
        return message

    async def get(self, timeout_s: float) -> Message:
        """The next message. Raises `OperationTimeout`, or `BusClosed` if there will be none."""
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        except TimeoutError:
            raise OperationTimeout(f"no message for {self._names()} within {timeout_s:g} s") from None
        except StopAsyncIteration:
            raise BusClosed(f"the subscription to {self._names()} has ended") from None

    async def _handle(self, callback: Callback) -> None:
        try:
            async for message in self:
                try:
                    result = callback(message)
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    logger.exception("callback for %s failed", self._names())
                    self._owner.emit(HandlerFailed(self.topic_filters, message, error))
        except ClientError:
            return  # the bus has ended, and says so by itself

    # --- the bus's end ----------------------------------------------------------------------------

    def offer(self, message: Message, ticket: Ticket | None, batch: int) -> None:
        """Take a message in. `batch` numbers the reads: a queue that had room before a read takes all
        that the read brought, for nobody had a chance to empty it meanwhile."""
        if batch != self._batch:
            self._batch = batch
            self._has_room = len(self._queue) < self._queue_size
        if self._has_room:
            if ticket is not None and self._acknowledge is Acknowledge.QUEUED:
                ticket.done()
                ticket = None
        elif ticket is None and self._when_full is WhenFull.DROP:
            self._count_drop()
            return
        self._queue.append((message, ticket))
        self._arrived.set()
        if not self._has_room and not self._is_pausing:
            self._update_pausing()

    def settle(self) -> None:
        """The loop is done with the message it got last."""
        if self._callback is None:
            self._settle()

    def end(self, error: ClientError | None) -> None:
        """No more messages will come; what waits can still be taken."""
        self._has_ended = True
        self._error = error
        self._arrived.set()
        self._report_drops()

    def forget_unhandled(self) -> None:
        """Throw away what is not acknowledged: the broker will send it to the session's next owner."""
        kept = [(message, ticket) for message, ticket in self._queue if ticket is None]
        self._queue.clear()
        self._queue.extend(kept)

    async def drain(self, deadline: float) -> None:
        """Let the callback finish what waits, until `deadline`."""
        handler = self._handler
        if handler is None or handler is asyncio.current_task():
            return
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait({handler})
        except TimeoutError:
            handler.cancel()
            await asyncio.wait({handler})

    def _settle(self) -> None:
        if self._current is not None:
            ticket, self._current = self._current, None
            ticket.done()

    def _update_pausing(self) -> None:
        """Reading stops for a full queue that must not drop, and for any at twice its size: then
        the broker keeps sending although nothing is acknowledged."""
        waiting = len(self._queue)
        limit = self._queue_size if self._when_full is WhenFull.PAUSE else 2 * self._queue_size
        is_pausing = waiting > limit // 2 if self._is_pausing else waiting >= limit
        if is_pausing != self._is_pausing:
            self._is_pausing = is_pausing
            self._owner.set_pausing(self, is_pausing)

    def _count_drop(self) -> None:
        self.dropped += 1
        self._unreported += 1
        if self._unreported == 1:
            asyncio.get_running_loop().call_later(REPORT_DROPS_EVERY_S, self._report_drops)

    def _report_drops(self) -> None:
        count, self._unreported = self._unreported, 0
        if count:
            logger.warning("queue of %s is full: %d messages dropped", self._names(), count)
            self._owner.emit(MessagesDropped(self.topic_filters, count))

    def _names(self) -> str:
        return ", ".join(map(repr, self.topic_filters))
