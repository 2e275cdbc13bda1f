"""Threads that run what may block: handlers of a blocking bus."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

Result = TypeVar("Result")
JOIN_S: Final = 5.0


class Workers:
    """Up to `limit` threads, made as they are needed. They are daemons: a handler that never returns
    does not keep the program from ending."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0  # counted in the loop

    async def run(self, function: Callable[[], Result]) -> Result:
        """Call it in one of the threads. Canceling this lets it run on, and drops what it returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def tell(result: Result | None, error: BaseException | None) -> None:
            self._busy -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result: Result | None = None
            failure: BaseException | None = None
            try:
                result = function()
            except StopIteration as error:  # a future takes all but this one
                failure = RuntimeError("the handler raised StopIteration")
                failure.__cause__ = error
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever waited
                loop.call_soon_threadsafe(tell, result, failure)

        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._limit:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)
        return await future

    def is_mine(self) -> bool:
        """Whether the caller runs in one of these threads."""
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        """Each thread ends when it has done what it is doing."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self) -> None:
        """Called from any thread, also from one of these: that one cannot wait for itself."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
