"""Runs a core on one transport after the other: bytes, timers, and who waits for which answer.

Each connection has a `_Connection` of its own, so that late news from an old transport cannot be
taken for news from the new one.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from polybus.client.core import Core
from polybus.client.errors import BusClosed, ClientError, ConnectionFailed, ConnectionLost, OperationTimeout
from polybus.client.events import Accepted, Completed, CoreEvent, Ended, Failed
from polybus.client.message import Message
from polybus.client.transport import Receiver, Transport

FLUSH_BYTES: Final = 64 * 1024
"""So much output is written at once instead of at the end of the loop's turn."""

Dial: TypeAlias = Callable[[Receiver], Awaitable[Transport]]


class _Connection:
    """The receiving end of one transport."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self.transport: Transport | None = None
        self.outcome: asyncio.Future[Accepted | Ended] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.ended.done():
            self._driver.data_received(data)

    def writable_changed(self, is_writable: bool) -> None:
        if not self.ended.done():
            self._driver.writable_changed(is_writable)

    def transport_closed(self, error: Exception | None) -> None:
        self.end(Ended(ConnectionLost(str(error) if error else "the broker closed it")))

    def end(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)
            self._driver.not_ready()
        if not self.outcome.done():
            self.outcome.set_result(ended)


class Driver:
    """`on_batch` gets what one read brought and is not an answer to an operation."""

    def __init__(
        self, core: Core, on_batch: Callable[[list[CoreEvent]], None], connect_timeout_s: float
    ) -> None:
        self._core = core
        self._on_batch = on_batch
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connection: _Connection | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[Message | None]] = {}
        self._ready = asyncio.Event()  # connected, and the transport takes more; or closed for good
        self._changed = asyncio.Event()
        self._is_writable = False
        self._flush_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_paused = False
        self._was_paused = False
        self._closed_by: BusClosed | None = None

    # --- connections ------------------------------------------------------------------------------

    async def connect(self, dial: Dial) -> Accepted | Ended:
        """One attempt. Raises nothing that a broker or a network can bring about."""
        self._connection = connection = _Connection(self)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection.transport = await dial(connection)
                self._is_writable = True
                self._core.connect(now=self._loop.time())
                self.flush()
                outcome = await connection.outcome
        except TimeoutError:
            outcome = Ended(ConnectionFailed(f"no answer from the broker within {self._connect_timeout_s:g} s"))
        except ConnectionFailed as error:
            outcome = Ended(error)
        except BaseException:
            self.drop()
            raise
        if isinstance(outcome, Ended):
            self.drop()
        return outcome

    async def wait_ended(self) -> Ended:
        assert self._connection is not None
        ended = await self._connection.ended
        self.drop()
        return ended

    def drop(self) -> None:
        """Let go of the connection without waiting for its end."""
        self._ready.clear()
        self._is_writable = False
        self._core.connection_lost()
        self._update_timer()
        connection, self._connection = self._connection, None
        if connection is not None and connection.transport is not None:
            connection.end(Ended(ConnectionLost("given up")))
            task = asyncio.create_task(connection.transport.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def shut(self, error: ClientError | None) -> None:
        """For good. Whoever waits gets `error`, or `BusClosed` if the end was asked for."""
        if self._closed_by is not None:
            return
        self._core.disconnect(now=self._loop.time())
        self._is_writable = True  # the transport keeps what the peer does not read, for a while
        self.flush()
        self._closed_by = BusClosed(f"the bus ended: {error}" if error else "the bus is closed")
        self._closed_by.__cause__ = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error or self._closed_by)
                future.exception()  # not every request is awaited
        self.drop()
        self._stop_timer()
        self._ready.set()
        self._changed.set()

    async def wait_left(self) -> None:
        """Until the transports have closed; they set themselves a limit."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    def check_open(self) -> None:
        """Raises `BusClosed`, with what ended the bus as its cause."""
        if self._closed_by is not None:
            raise BusClosed(*self._closed_by.args) from self._closed_by.__cause__

    # --- operations -------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._closed_by is None

    @property
    def is_connected(self) -> bool:
        connection = self._connection
        return connection is not None and connection.outcome.done() and not connection.ended.done()

    async def until_ready(self, deadline: float, what: str) -> None:
        """Wait for a connection that takes more. Raises `OperationTimeout`, `BusClosed`."""
        try:
            async with asyncio.timeout_at(deadline):
                while not self._ready.is_set():
                    await self._ready.wait()
        except TimeoutError:
            problem = "the broker takes no more" if self.is_connected else "no connection"
            raise OperationTimeout(f"{what}: {problem}; it was not sent") from None
        self.check_open()

    async def until_complete(self, tokens: Sequence[int], deadline: float, what: str) -> None:
        """Wait for the answers. Raises the first error, `OperationTimeout` or `BusClosed`."""
        self.check_open()
        futures = {token: self.watch(token) for token in tokens}
        try:
            async with asyncio.timeout_at(deadline):
                for future in futures.values():
                    await future
        except TimeoutError:
            withdrawn = [self._core.abandon(token, now=self._loop.time()) for token in tokens]
            was_sent = not all(withdrawn)
            outcome = "it was sent and may still take effect" if was_sent else "it was not sent"
            raise OperationTimeout(f"{what}: no answer in time; {outcome}") from None
        except asyncio.CancelledError:
            for token in tokens:
                self._core.abandon(token, now=self._loop.time())
            raise
        finally:
            for token, future in futures.items():
                del self._waiting[token]
                if future.done() and not future.cancelled():
                    future.exception()  # looked at: nobody else will
                future.cancel()

    def watch(self, token: int) -> "asyncio.Future[Message | None]":
        """What `token` comes to. Whoever asks for it calls `forget` in the end."""
        future: asyncio.Future[Message | None] = self._loop.create_future()
        self._waiting[token] = future
        self.flush_soon()
        return future

    def forget(self, token: int) -> None:
        del self._waiting[token]

    async def answer(self, token: int) -> Message:
        """The answer to a request; the core keeps its deadline. Canceling this cancels the request."""
        future = self.watch(token)
        try:
            answer = await future
        except asyncio.CancelledError:
            self.cancel(token)
            raise
        finally:
            del self._waiting[token]
        assert answer is not None
        return answer

    def cancel(self, token: int) -> None:
        self._core.abandon(token, now=self._loop.time())
        self.flush_soon()

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until something that was received makes it true, or `deadline`. Raises `BusClosed`."""
        try:
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
                    self.check_open()
        except TimeoutError:
            return False
        return True

    # --- bytes and time ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._process(self._core.receive(data, now=self._loop.time()))

    def writable_changed(self, is_writable: bool) -> None:
        self._is_writable = is_writable
        self._changed.set()
        if is_writable:
            self.flush()
        if self._is_writable and self.is_connected:
            self._ready.set()
        else:
            self._ready.clear()

    def not_ready(self) -> None:
        """Nothing new is taken; last words can still be written."""
        self._ready.clear()

    def set_reading(self, is_reading: bool) -> None:
        """Stop or go on reading, on this connection and the next."""
        self._is_paused = not is_reading
        self._was_paused |= self._is_paused
        connection = self._connection
        if connection is None or connection.transport is None or not self.is_connected:
            return
        if is_reading:
            connection.transport.resume_reading()
        else:
            connection.transport.pause_reading()

    def flush_soon(self) -> bool:
        """Write at the end of the loop's turn, together with what else comes up in it. True if there
        was so much that it was written at once."""
        if self._core.pending_output >= FLUSH_BYTES:
            self.flush()
            return True
        if self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self.flush)
        return False

    def flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        connection = self._connection
        # What the transport does not take yet stays in the core: there priority can still overtake it.
        if connection is not None and connection.transport is not None and self._is_writable:
            while self._core.pending_output and self._is_writable:
                data = self._core.take_output(now=self._loop.time())
                if not data:
                    break
                connection.transport.write(data)
        self._update_timer()

    def _process(self, events: list[CoreEvent]) -> None:
        connection = self._connection
        news: list[CoreEvent] = []
        for event in events:
            match event:
                case Completed(token, answer):
                    if (future := self._waiting.get(token)) is not None and not future.done():
                        future.set_result(answer)
                case Failed(token, error):
                    if (future := self._waiting.get(token)) is not None and not future.done():
                        future.set_exception(error)
                        future.exception()  # not every request is awaited
                case Accepted():
                    assert connection is not None
                    connection.outcome.set_result(event)
                    self._ready.set()
                    self.set_reading(not self._is_paused)
                    news.append(event)
                case Ended():
                    assert connection is not None
                    connection.end(event)
                case _:
                    news.append(event)
        if news:
            self._on_batch(news)
        self._changed.set()
        self.flush()

    def _update_timer(self) -> None:
        """A timer that comes too early does no harm: it finds out when the next one is due."""
        deadline = self._core.deadline()
        if deadline is not None and deadline < self._timer_at and self._closed_by is None:
            self._stop_timer()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _stop_timer(self) -> None:
        self._timer_at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        timer_at = self._timer_at
        # After a pause the answer to the last ping may lie unread: that counts as "not reading" once.
        is_reading = not self._was_paused
        self._was_paused = self._is_paused
        self._stop_timer()
        # A loop's clock is coarse: what was due when the timer was set is due now.
        now = max(self._loop.time(), timer_at)
        self._process(self._core.tick(now=now, is_reading=is_reading))
