"""Streams in a running server: opened before anyone is let in, told to the core, closed at the end."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from polybus.broker.access import Credentials, Verdict
from polybus.broker.broker import Broker
from polybus.broker.message import Delivery
from polybus.broker.sessions import Session, Subscription
from polybus.errors import ConfigError, UsageError
from polybus.ops.config import Config
from polybus.ops.streams import Http
from polybus.store.folder import DataFolder
from polybus.store.streams.start import parse_subscription

if TYPE_CHECKING:
    from polybus.net.http import HttpServer
    from polybus.store.streams.cursor import Cursor, Records
    from polybus.store.streams.writer import StreamSet

REPLAY_THREADS: Final = 2
JUDGE_S: Final = 30.0
"""How long a reader waits for its password to be checked."""
SETTLE_S: Final = 10.0
"""How long the end waits for the disk."""
SWITCH_S: Final = 0.0005
"""How long the event loop waits for the interpreter while a thread has it: Python's own 5 ms would be seen by
everyone on the bus."""


class Streams:
    def __init__(self, streams: "StreamSet") -> None:
        self.set = streams
        self._http: HttpServer | None = None
        self._threads = ThreadPoolExecutor(REPLAY_THREADS, thread_name_prefix="polybus-replay")

    def start(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        def post(call: object, *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]

        def failed(origins: Collection[str], why: str) -> None:
            broker.now = loop.time()
            broker.commit_failed(origins, why)

        def open_replay(session: Session, subscription: Subscription) -> Iterator[Delivery | None]:
            def wake() -> None:
                broker.dispatcher.unfinished[session] = None
                broker.stir()

            return self._open_replay(subscription, post, wake)

        broker.open_replay = open_replay
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        broker.subscriptions.log_of = self.set.log_of
        self.set.on_failed = failed
        self.set.on_room = lambda: broker.unstall(loop.time())
        self.set.start(post)

    def _open_replay(
        self, subscription: Subscription, post: Callable[..., None], wake: Callable[[], None]
    ) -> "Cursor":
        from polybus.store.streams.cursor import Cursor

        def fetch(
            read: Callable[[], "Records | None"], done: Callable[["Records | Exception | None"], None]
        ) -> None:
            def work() -> None:
                try:
                    found: Records | Exception | None = read()
                except Exception as error:
                    found = error
                post(done, found)

            with contextlib.suppress(RuntimeError):  # the server ends, and so do its sessions
                self._threads.submit(work)

        if subscription.group is not None:
            raise UsageError("a stream is replayed to each subscriber, it cannot be shared")
        asked = parse_subscription(subscription.path)
        stream = self.set.streams.get(asked.name)
        if stream is None:
            raise UsageError(f"there is no stream {asked.name!r}; there are: {', '.join(self.set.streams)}")
        return Cursor(
            stream, asked, qos=subscription.qos, identifier=subscription.identifier, fetch=fetch, on_wake=wake
        )

    def serve_http(self, broker: Broker, loop: asyncio.AbstractEventLoop, http: Http) -> "HttpServer":
        """Raises ConfigError."""
        from polybus.net.http import HttpServer
        from polybus.net.http_streams import StreamPages

        def judge(credentials: Credentials) -> Verdict:
            authenticator = broker.access.authenticator
            if authenticator is None:
                return Verdict(True)
            answer: Future[Verdict] = Future()
            loop.call_soon_threadsafe(authenticator.authenticate, credentials, answer.set_result)
            try:
                return answer.result(JUDGE_S)
            except TimeoutError:
                return Verdict(False, busy=True, reason="the login could not be checked in time; try again")

        pages = StreamPages(self.set.streams, lambda: broker.access, judge)
        try:
            server = HttpServer(http.host, http.port, pages.answer)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on http://{http.host}:{http.port}: {error.strerror or error};"
                " choose another http.host or http.port, or stop what uses it"
            ) from error
        server.start()
        self._http = server
        return server

    async def stop(self, settle: Callable[[Callable[[], None]], None]) -> None:
        """Nobody reads any more; wait until everything taken so far is written and acknowledged. `settle` tells
        when the state has what it was given, logs and all."""
        if self._http is not None:
            # Its threads may wait for this one, for a password to be checked.
            await asyncio.to_thread(self._http.close)
            self._http = None
        done = asyncio.Event()
        settle(done.set)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), SETTLE_S)

    def finish(self) -> None:
        """Nobody reads, and nothing more is written."""
        if self._http is not None:
            self._http.close()
        self._threads.shutdown(cancel_futures=True)
        self.set.finish()

    def close(self) -> None:
        """The state has what belongs to it."""
        self.set.close()


def open_streams(config: Config, folder: DataFolder, committed: int | None) -> Streams:
    """`committed` is the last commit that the state has. Raises StoreError for files that cannot be used,
    ConfigError if what streams need is not installed."""
    # Arrow's own allocator gives memory back between two batches, in pages of 2 MB that the kernel has to clear
    # each time it is asked again: a fifth of what a batch takes. It can only be told before it is loaded.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        if config.serves_http:
            import polybus.net.http_streams  # noqa: F401 (to know now rather than later)
        from polybus.store.streams.writer import StreamSet
    except ImportError as error:
        raise ConfigError(
            f"{config.source or 'configuration'}: stream: needs {error.name}, which is not installed; install"
            " the extra: pip install 'polybus[streams]'"
        ) from error
    is_synced = config.store.sync == "full"
    return Streams(StreamSet(folder, config.streams, is_synced=is_synced, committed=committed))
