"""A service: who asks, who works, who is answered.

Every service has its own queue and as many workers as it takes requests at once. A plain function is
called in the loop, without a task; it should be quick. A request that is canceled while a coroutine works
on it cancels that coroutine, and nothing is answered (TB-10).

After a loss the broker may give the same request to the same service again: then the work that is under
way is its answer, and it is not begun a second time.
"""

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from polybus.client.errors import ClientError
from polybus.client.events import BusEvent, HandlerFailed, MessagesDropped, ReturnAddress
from polybus.client.message import Message, Payload, SubscribeOptions, payload_bytes
from polybus.errors import UsageError

logger = logging.getLogger("polybus.client")

MAX_CONCURRENCY: Final = 0xFFFF
MAX_QUEUE: Final = 10_000
"""A broker that does not count what is in hand may send this much ahead."""
TURN_S: Final = 0.005
"""So long plain functions run before the loop does other things."""
NEVER_REPLAY: Final = 2

Answer: TypeAlias = Payload | None
Handler: TypeAlias = Callable[[Message], Awaitable[Answer] | Answer]


class Owner(Protocol):
    """What a service asks of its bus."""

    async def start_service(self, service: "Service") -> None: ...

    async def stop_service(self, service: "Service") -> None: ...

    def answer(self, to: ReturnAddress, request: Message, payload: bytes) -> None: ...

    def fail(self, to: ReturnAddress, request: Message, reason: str) -> None: ...

    def emit(self, event: BusEvent) -> None: ...


class Job:
    """One request in hand."""

    __slots__ = ("answer_to", "is_canceled", "message", "task")

    def __init__(self, message: Message, answer_to: ReturnAddress) -> None:
        self.message = message
        self.answer_to = answer_to
        self.task: asyncio.Task[None] | None = None
        self.is_canceled = False


class Service:
    """Made by `Bus.service` and `Bus.serve`; see there. Calling it calls the function behind it."""

    def __init__(
        self, owner: Owner, topic_filter: str, handler: Handler, *, concurrency: int, qos: int
    ) -> None:
        if not callable(handler):
            raise UsageError(f"the handler of service {topic_filter!r} is a function, not {handler!r}")
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise UsageError(f"concurrency {concurrency} is not in 1..{MAX_CONCURRENCY}")
        functools.update_wrapper(self, handler)
        self.topic_filter = topic_filter
        self.topic_filters = (topic_filter,)
        self.concurrency = concurrency
        self.options = (
            SubscribeOptions(
                topic_filter, qos, retain_handling=NEVER_REPLAY if qos else 0, concurrency=concurrency
            ),
        )
        self._owner = owner
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._queue: deque[Job] = deque()
        self._in_hand: dict[ReturnAddress, Job] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._is_closed = False
        self._started: asyncio.Future[None] | None = None

    def __call__(self, message: Message) -> Awaitable[Answer] | Answer:
        return self._handler(message)

    @property
    def in_hand(self) -> int:
        """How many requests it has got and not answered."""
        return len(self._in_hand)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `SubscribeRefused`, `OperationTimeout`, `BusClosed`."""
        self.expect_start()
        assert self._started is not None
        try:
            await self._owner.start_service(self)
        except BaseException as error:
            self._started.set_exception(error if isinstance(error, Exception) else ClientError("not started"))
            self._started.exception()  # looked at: whoever started it is told
            raise
        self._started.set_result(None)

    def expect_start(self) -> None:
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        """Wait until the broker has granted it. Raises what kept it from starting."""
        if self._started is None:
            raise UsageError("the bus of this service is not connected yet: it starts with the bus")
        await asyncio.shield(self._started)

    async def close(self) -> None:
        """Take no more requests, and let those in hand be answered, for 5 s."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._owner.stop_service(self)

    async def drain(self, deadline: float, reason: str = "") -> None:
        """Until all in hand is answered. What is not by `deadline` is dropped, and with a `reason` its
        requesters are told."""
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while others := self._workers - {asyncio.current_task()}:
                    await asyncio.wait(others)
                while self._is_draining:  # noqa: ASYNC110 (it is the loop itself that works)
                    await asyncio.sleep(0)
        self.end(reason)

    def end(self, reason: str = "") -> None:
        """Stop working at once. With a reason, requesters are told."""
        self._is_closed = True
        for job in list(self._in_hand.values()):
            self.withdraw(job.answer_to)
            if reason:
                self._owner.fail(job.answer_to, job.message, reason)

    # --- the bus's end ----------------------------------------------------------------------------

    def offer(self, message: Message, answer_to: ReturnAddress) -> None:
        known = self._in_hand.get(answer_to)
        if self._is_closed or (known is not None and known.message == message):
            return
        if len(self._queue) >= MAX_QUEUE:
            self._owner.emit(MessagesDropped(self.topic_filters, 1))
            return
        job = Job(message, answer_to)
        self._in_hand[answer_to] = job
        self._queue.append(job)
        if not self._is_async:
            if not self._is_draining:
                self._is_draining = True
                asyncio.get_running_loop().call_soon(self._drain_plain)
        elif len(self._workers) < self.concurrency:
            self._hire(self._work())

    def withdraw(self, answer_to: ReturnAddress) -> None:
        """Its requester wants no answer any more."""
        job = self._in_hand.pop(answer_to, None)
        if job is None:
            return
        job.is_canceled = True
        if job.task is not None and job.task is not asyncio.current_task():
            job.task.cancel()

    # --- work -------------------------------------------------------------------------------------

    def _hire(self, work: "Awaitable[None]") -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    def _drain_plain(self) -> None:
        time = asyncio.get_running_loop().time
        until = time() + TURN_S
        while self._queue:
            job = self._queue.popleft()
            if job.is_canceled:
                continue
            try:
                result = self._handler(job.message)
                if inspect.isawaitable(result):
                    self._is_async = True  # a function that returns coroutines
                    self._hire(self._finish(job, result))
                    continue
            except Exception as error:
                self._failed(job, error)
            else:
                self._done(job, result)
            if time() >= until:
                asyncio.get_running_loop().call_soon(self._drain_plain)
                return
        self._is_draining = False

    async def _work(self) -> None:
        """One worker: request after request, as long as there are any."""
        while self._queue:
            job = self._queue.popleft()
            if not job.is_canceled:
                await self._finish(job, None)

    async def _finish(self, job: Job, result: "Awaitable[Answer] | None") -> None:
        job.task = task = asyncio.current_task()
        assert task is not None
        try:
            answer = await (self._handler(job.message) if result is None else result)  # type: ignore[misc]
        except asyncio.CancelledError as error:
            if not job.is_canceled:
                if task.cancelling():
                    raise
                # Nobody meant us: something that the handler waited for was canceled.
                self._failed(job, RuntimeError(str(error) or "what the service waited for was canceled"))
        except Exception as error:
            self._failed(job, error)
        else:
            self._done(job, answer)
        finally:
            job.task = None
            while job.is_canceled and task.cancelling():  # the request was meant, not the worker
                task.uncancel()

    def _done(self, job: Job, answer: object) -> None:
        try:
            payload = b"" if answer is None else payload_bytes(answer)  # type: ignore[arg-type]
        except UsageError as error:
            self._failed(job, UsageError(f"a service answers with bytes, str or None: {error}"))
            return
        if self._leaves_hand(job):
            self._owner.answer(job.answer_to, job.message, payload)

    def _failed(self, job: Job, error: Exception) -> None:
        logger.error("service %s failed", self.topic_filter, exc_info=error)
        self._owner.emit(HandlerFailed(self.topic_filters, job.message, error))
        if self._leaves_hand(job):
            reason = str(error).encode(errors="replace").decode()  # it may hold what UTF-8 cannot
            self._owner.fail(job.answer_to, job.message, reason or type(error).__name__)

    def _leaves_hand(self, job: Job) -> bool:
        """False: it was canceled, or another request came under the same address."""
        if job.is_canceled or self._in_hand.get(job.answer_to) is not job:
            return False
        del self._in_hand[job.answer_to]
        return True
