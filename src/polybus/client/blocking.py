"""The bus for programs without a loop of their own: scripts, threads, notebooks.

A thread runs the loop of a bus, and every call here waits for it to be done there. Calls may come from any
thread. Handlers run in threads apart from the loop: they may block, and call the bus.
"""

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from polybus.client.bus import REQUEST_TIMEOUT_S, Bus
from polybus.client.connect import connect
from polybus.client.errors import BusClosed
from polybus.client.events import BusEvent
from polybus.client.message import Acknowledge, Message, Payload
from polybus.client.pending import PendingRequest
from polybus.client.service import Answer, Service
from polybus.client.subscription import Subscription
from polybus.client.workers import Workers
from polybus.errors import UsageError

logger = logging.getLogger("polybus.client")

Result = TypeVar("Result")
BlockingHandler: TypeAlias = Callable[[Message], Answer]
BlockingCallback: TypeAlias = Callable[[Message], object]

MAX_BATCH: Final = 1000
"""So many messages a loop over a subscription fetches at once."""


def connect_blocking(
    url: str, *, on_event: Callable[[BusEvent], None] | None = None, **options: Any
) -> "BlockingBus":
    """Connect to the bus at `url`, with the options of `polybus.connect`::

        with polybus.connect_blocking("tbus://127.0.0.1:5035") as bus:
            print(bus.request("triple", "14").text)

    Raises as `polybus.connect` and `Bus.open` do.
    """
    return BlockingBus(url, on_event, options)


class BlockingBus:
    """Made by `polybus.connect_blocking`; see there. What the methods do and raise is what those of the
    same name do at `Bus`."""

    def __init__(self, url: str, on_event: Callable[[BusEvent], None] | None, options: dict[str, Any]) -> None:
        self._loop = _new_loop()
        self._workers: list[Workers] = []
        self._is_closed = False
        self._closing = threading.Lock()
        self._tell: Callable[[BusEvent], None] | None = None
        if on_event is not None:
            self._tell = self._in_order(on_event)
        self._bus: Bus = connect(url, on_event=self._tell, **options)
        self._thread = threading.Thread(target=self._run, name="polybus-loop", daemon=True)
        self._thread.start()
        try:
            self._call(self._bus.open())
        except BaseException:
            self._end()
            raise

    # --- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def disconnect(self, *, reason_code: int = 0, reason: str = "") -> None:
        """Say goodbye and end; the threads are gone when this returns. From a handler it returns at
        once, and the end comes when the handler has returned."""
        if self._is_closed:
            return
        if any(workers.is_mine() for workers in self._workers):
            arguments = {"reason_code": reason_code, "reason": reason}
            threading.Thread(target=self.disconnect, kwargs=arguments, name="polybus-end", daemon=True).start()
            return
        try:
            self._call(self._bus.disconnect(reason_code=reason_code, reason=reason))
        except UsageError as error:
            if not isinstance(error, BusClosed):
                raise
        self._end()

    @property
    def is_connected(self) -> bool:
        return self._bus.is_connected

    @property
    def client_id(self) -> str:
        return self._bus.client_id

    # --- operations -------------------------------------------------------------------------------

    def publish(
        self, topic: str, payload: Payload = b"", qos: int = 0, retain: bool = False, **more: Any
    ) -> None:
        self._call(self._bus.publish(topic, payload, qos, retain, **more))

    def publish_many(self, topic: str, payloads: Iterable[Payload], **more: Any) -> None:
        """All of them in one go: a call for each would cost a change of threads each."""
        self._call(self._bus.publish_many(topic, payloads, **more))

    def request(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        priority: bool = False,
        wait: bool = True,
        **properties: Any,
    ) -> Message:
        return self._call(
            self._bus.request(topic, payload, timeout=timeout, priority=priority, wait=wait, **properties)
        )

    def ask(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        priority: bool = False,
        wait: bool = True,
        **properties: Any,
    ) -> "BlockingRequest":
        """`request` in two steps: go on, and fetch the answer with `result`."""
        pending = self._call(
            self._bus.ask(topic, payload, timeout=timeout, priority=priority, wait=wait, **properties)
        )
        return BlockingRequest(self, pending)

    def resume(self, request_id: int, *, timeout: float = REQUEST_TIMEOUT_S) -> Message:
        return self._call(self._bus.resume(request_id, timeout=timeout))

    def subscribe(
        self, topic_filters: str | Iterable[str], callback: BlockingCallback | None = None, **options: Any
    ) -> "BlockingSubscription":
        """Loop over what it returns, or give a callback: it runs in a thread of its own, one message
        after the other."""
        workers, handler = (None, None) if callback is None else self._in_threads(callback, 1)
        try:
            subscription = self._call(
                self._make(lambda: self._bus.subscribe(topic_filters, handler, **options))
            )
            self._call(subscription.start())
        except BaseException:
            self._dismiss(workers)
            raise
        is_batched = Acknowledge(options.get("acknowledge", Acknowledge.QUEUED)) is Acknowledge.QUEUED
        return BlockingSubscription(self, subscription, workers, is_batched=is_batched)

    def unsubscribe(self, topic_filter: str) -> None:
        self._call(self._bus.unsubscribe(topic_filter))

    def service(
        self, topic_filter: str, *, concurrency: int = 1
    ) -> Callable[[BlockingHandler], "BlockingService"]:
        """Decorates a function that answers requests, in up to `concurrency` threads at once."""

        def decorate(handler: BlockingHandler) -> BlockingService:
            return self.serve(topic_filter, handler, concurrency=concurrency)

        return decorate

    def serve(self, topic_filter: str, handler: BlockingHandler, *, concurrency: int = 1) -> "BlockingService":
        workers, in_threads = self._in_threads(handler, concurrency)
        try:
            service = self._call(self._bus.serve(topic_filter, in_threads, concurrency=concurrency))
        except BaseException:
            self._dismiss(workers)
            raise
        return BlockingService(self, service, workers, handler)

    def serve_forever(self) -> None:
        """Until the bus ends; ctrl-C ends it too."""
        self._call(self._bus.serve_forever())

    # --- threads ----------------------------------------------------------------------------------

    def _call(self, operation: Coroutine[Any, Any, Result]) -> Result:
        """Have the loop do it, and wait."""
        if threading.current_thread() is self._thread:
            operation.close()
            raise UsageError("this is the bus's own thread, and would wait for itself")
        try:
            with self._closing:
                if self._is_closed:
                    raise BusClosed("the bus is closed")
                future = asyncio.run_coroutine_threadsafe(operation, self._loop)
        except BaseException:
            operation.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise BusClosed("the bus was closed meanwhile") from None
        except BaseException:
            future.cancel()  # ctrl-C: nobody waits for it any more
            raise

    async def _make(self, make: Callable[[], Result]) -> Result:
        return make()

    def _in_threads(
        self, handler: Callable[[Message], Result], concurrency: int
    ) -> tuple[Workers, Callable[..., Any]]:
        if inspect.iscoroutinefunction(handler):
            raise UsageError("a blocking bus takes plain functions; for async ones there is polybus.connect")
        workers = Workers(max(concurrency, 1), "polybus-handler")
        self._workers.append(workers)

        async def handle(message: Message) -> Result:
            return await workers.run(lambda: handler(message))

        return workers, handle

    def _dismiss(self, workers: Workers | None) -> None:
        """Their subscription or service is over."""
        if workers is not None and workers in self._workers:
            self._workers.remove(workers)
            workers.stop()

    def _in_order(self, on_event: Callable[[BusEvent], None]) -> Callable[[BusEvent], None]:
        """Events go to a thread of their own: whoever gets them may call the bus."""
        workers = Workers(1, "polybus-events")
        self._workers.append(workers)
        running: set[asyncio.Task[None]] = set()

        async def tell(event: BusEvent) -> None:
            try:
                await workers.run(lambda: on_event(event))
            except Exception:
                logger.exception("on_event failed for %s", event)

        def take(event: BusEvent) -> None:
            task = asyncio.get_running_loop().create_task(tell(event))
            running.add(task)
            task.add_done_callback(running.discard)

        return take

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _end(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        for workers in self._workers:
            workers.stop()
        for workers in self._workers:
            workers.join()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class BlockingRequest:
    """Made by `BlockingBus.ask`. `id` is the number by which the broker knows the request."""

    def __init__(self, bus: BlockingBus, pending: PendingRequest) -> None:
        self.id = pending.id
        self.topic = pending.topic
        self._bus = bus
        self._pending = pending

    @property
    def is_done(self) -> bool:
        return self._pending.is_done

    def result(self) -> Message:
        """Wait for the answer. Raises as `Bus.request` does."""
        if self._pending.is_done:
            return self._pending.result()
        return self._bus._call(self._wait())

    def cancel(self) -> None:
        self._bus._call(self._bus._make(self._pending.cancel))

    async def _wait(self) -> Message:
        return await self._pending


class BlockingService:
    """Made by `BlockingBus.service` and `serve`. Calling it calls the function behind it."""

    def __init__(self, bus: BlockingBus, service: Service, workers: Workers, handler: BlockingHandler) -> None:
        self.topic_filter = service.topic_filter
        self._bus = bus
        self._workers = workers
        self._service = service
        self._handler = handler

    def __call__(self, message: Message) -> Answer:
        return self._handler(message)

    def close(self) -> None:
        with suppress(BusClosed):
            self._bus._call(self._service.close())
        self._bus._dismiss(self._workers)


class BlockingSubscription:
    """Made by `BlockingBus.subscribe`. Iterate over it, or enter it to have it closed at the end."""

    def __init__(
        self, bus: BlockingBus, subscription: Subscription, workers: Workers | None, *, is_batched: bool
    ) -> None:
        self.topic_filters = subscription.topic_filters
        self._bus = bus
        self._workers = workers
        self._subscription = subscription
        self._limit = MAX_BATCH if is_batched else 1
        self._fetched: deque[Message] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """Ends with the bus; raises what ended the bus if that was not `disconnect`."""
        while not self._fetched:
            try:
                self._fetched += self._bus._call(self._fetch(None))
            except (StopAsyncIteration, BusClosed):
                raise StopIteration from None
        return self._fetched.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        return self._subscription.dropped

    def get(self, timeout_s: float) -> Message:
        """The next message. Raises `OperationTimeout`, or `BusClosed` if there will be none."""
        if not self._fetched:
            self._fetched += self._bus._call(self._fetch(timeout_s))
        return self._fetched.popleft()

    def close(self) -> None:
        with suppress(BusClosed):
            self._bus._call(self._subscription.close())
        self._bus._dismiss(self._workers)

    async def _fetch(self, timeout_s: float | None) -> list[Message]:
        subscription = self._subscription
        first = await (anext(subscription) if timeout_s is None else subscription.get(timeout_s))
        messages = [first]
        while len(messages) < self._limit and len(subscription):
            messages.append(await anext(subscription))
        return messages


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
