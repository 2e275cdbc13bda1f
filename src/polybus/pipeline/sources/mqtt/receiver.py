"""Takes messages from the broker into the spool, in a thread of its own.

Theory of operation. What one read brings is put in line. One task takes the whole line, has it written to
the spool (a group, one fsync), and only then acknowledges it; meanwhile the next group gathers. So an
acknowledged message is always on the disk, and one that is on the disk and not acknowledged comes again:
at least once. While the spool is full nothing is acknowledged, the broker's window closes, and reading
stops when the line is long. A stop waits for the group that is being written, and acknowledges it.

The session at the broker is kept: it is where messages wait while nobody receives.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from polybus.client.backoff import Backoff
from polybus.client.driver import Driver
from polybus.client.errors import ClientError, ReasonedError
from polybus.client.events import (
    Accepted,
    BusEvent,
    CoreEvent,
    Disconnected,
    Receipt,
    Received,
    Reconnecting,
    RenewalRefused,
)
from polybus.client.link import Link
from polybus.client.message import SubscribeOptions
from polybus.client.mqtt_core import MqttCore
from polybus.client.mqtt_reasons import FINAL_REASONS
from polybus.client.transport import open_transport
from polybus.errors import PolybusError
from polybus.pipeline.sources.mqtt.options import MqttOptions
from polybus.pipeline.sources.mqtt.schema import Arrival, to_batch
from polybus.pipeline.sources.mqtt.spool import SpoolWriter

logger = logging.getLogger("polybus.pipeline.mqtt")

MAX_WAITING_BYTES: Final = 64 << 20
ROWS_PER_FRAME: Final = 10_000
BYTES_PER_FRAME: Final = 32 << 20
STOP_TIMEOUT_S: Final = 10.0
OPERATION_TIMEOUT_S: Final = 30.0
RETRY_FIRST_S: Final = 0.2


class ReceiverFailed(PolybusError):
    """Nothing more is received. The text says why."""


class Receiver:
    """`start`, then `check` now and then, then `stop`."""

    def __init__(self, options: MqttOptions, spool: SpoolWriter) -> None:
        self._options = options
        self._spool = spool
        self._core = MqttCore(options.settings())
        self._address = options.address()
        self._thread = threading.Thread(target=self._run, name="polybus-mqtt-receiver", daemon=True)
        self._started = threading.Event()
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None
        self._ending: asyncio.Future[None] | None = None
        self._room: asyncio.Event | None = None
        self._arrived: asyncio.Event | None = None
        self._waiting: list[tuple[Arrival, Receipt | None]] = []
        self._waiting_bytes = 0
        self._keeping: asyncio.Task[None] | None = None
        """The group that is being written and acknowledged."""
        self._last_arrival = time.monotonic()
        self._sessions_lost = 0

    # --- from the thread that owns it -------------------------------------------------------------

    def start(self) -> None:
        """Returns when the broker has granted the subscriptions. Raises ReceiverFailed."""
        self._thread.start()
        self._started.wait()
        self.check()

    def check(self) -> None:
        """Raises ReceiverFailed if it has ended."""
        if self._error is not None:
            raise ReceiverFailed(f"the mqtt source receives nothing more: {self._error}") from self._error

    def has_room(self) -> None:
        """Rows have left the spool."""
        if self._loop is not None and self._room is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room.set)

    def wait_quiet(self, quiet_s: float, timeout_s: float) -> None:
        """Until nothing has come for `quiet_s` and all that came is in the spool, or `timeout_s` passed."""
        deadline = time.monotonic() + timeout_s
        begun = time.monotonic()
        while (now := time.monotonic()) < deadline:
            self.check()
            if now - max(self._last_arrival, begun) >= quiet_s and not self._waiting_bytes:
                return
            if self._spool.is_full:
                return
            time.sleep(min(0.02, quiet_s))

    def stop(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._end)
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    @property
    def sessions_lost(self) -> int:
        """How often the broker had forgotten our session: what waited in it is lost."""
        return self._sessions_lost

    # --- its own thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._receive())
        except Exception as error:
            self._error = error
            logger.error("the receiver of %s ended: %s", self._address, error)
        finally:
            self._started.set()

    async def _receive(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._room, self._arrived = asyncio.Event(), asyncio.Event()
        self._ending = loop.create_future()
        driver, link = await self._connect()
        spooling = asyncio.create_task(self._spool_arrivals(driver))
        try:
            await self._subscribe(driver)
            self._started.set()
            await asyncio.wait({spooling, self._ending}, return_when=asyncio.FIRST_COMPLETED)
            if spooling.done():
                spooling.result()
            self._ending.result()
        finally:
            spooling.cancel()
            await asyncio.wait({spooling})
            try:
                # What is written and not acknowledged would come again.
                if self._keeping is not None:
                    await self._keeping
            finally:
                await link.close()

    async def _connect(self) -> tuple[Driver, Link]:
        """A first connection is tried for `connectTimeout`, unless trying again is of no use."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.connect_timeout_s
        while True:
            driver = Driver(self._core, self._on_batch, max(self._options.connect_timeout_s, 1.0))
            dial = partial(open_transport, self._address)
            link = Link(driver, dial, None, Backoff(), self._on_event, self._on_end)
            try:
                await link.open()
            except ClientError as error:
                is_final = isinstance(error, ReasonedError) and error.reason_code in FINAL_REASONS
                if is_final or loop.time() + RETRY_FIRST_S >= deadline:
                    raise
            else:
                self._driver = driver
                return driver, link
            await asyncio.sleep(RETRY_FIRST_S)

    async def _subscribe(self, driver: Driver) -> None:
        """Subscribe to what is wanted, and end what an earlier query wanted and this one does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPERATION_TIMEOUT_S
        wanted = self._options.filters
        retain_handling = self._options.retain_handling if self._core.has_properties else 0
        tokens = [
            self._core.subscribe(
                SubscribeOptions(
                    name,
                    self._options.qos,
                    retain_as_published=self._core.has_properties,
                    retain_handling=retain_handling,
                ),
                now=loop.time(),
            )
            for name in wanted
        ]
        former = [name for name in self._spool.identity.filters if name not in wanted]
        tokens += [self._core.unsubscribe(name, now=loop.time()) for name in former]
        await driver.until_complete(tokens, deadline, f"subscribe to {', '.join(wanted)}")
        if self._spool.identity.filters != wanted:
            await asyncio.to_thread(self._spool.subscribed, wanted)

    async def _spool_arrivals(self, driver: Driver) -> None:
        assert self._arrived is not None
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self._until_room()
            group, self._waiting = self._waiting, []
            if group:
                self._keeping = asyncio.create_task(self._keep(group, driver))
                await asyncio.shield(self._keeping)  # a stop ends the waiting, not the group

    async def _keep(self, group: Sequence[tuple[Arrival, Receipt | None]], driver: Driver) -> None:
        """Write, then acknowledge."""
        await asyncio.to_thread(self._write, [arrival for arrival, _ in group])
        now = asyncio.get_running_loop().time()
        for _, receipt in group:
            if receipt is not None:
                self._core.acknowledge(receipt, now=now)
        driver.flush_soon()
        self._waiting_bytes -= sum(_size(arrival) for arrival, _ in group)
        driver.set_reading(self._waiting_bytes < MAX_WAITING_BYTES)

    async def _until_room(self) -> None:
        assert self._room is not None
        while self._spool.is_full:
            self._room.clear()
            if self._spool.is_full:
                await self._room.wait()

    def _write(self, arrivals: Sequence[Arrival]) -> None:
        try:
            self._spool.append(map(to_batch, _frames(arrivals)))
        except OSError as error:
            raise ReceiverFailed(
                f"the spool {self._spool.folder} cannot be written: {error.strerror}; "
                "what was not written is still with the broker"
            ) from error

    def _on_batch(self, events: list[CoreEvent]) -> None:
        time_us = time.time_ns() // 1000
        for event in events:
            match event:
                case Received(message, receipt, _):
                    arrival = Arrival(time_us, message)
                    self._waiting.append((arrival, receipt))
                    self._waiting_bytes += _size(arrival)
                case Accepted(session_present):
                    self._on_accepted(session_present)
                case RenewalRefused(error):
                    self._on_end(error)
                case _:
                    pass
        if self._waiting:
            assert self._arrived is not None
            self._last_arrival = time.monotonic()
            self._arrived.set()
            if self._waiting_bytes >= MAX_WAITING_BYTES and self._driver is not None:
                self._driver.set_reading(False)

    def _on_accepted(self, session_present: bool) -> None:
        logger.info("connected to %s as %s", self._address, self._options.client_id)
        if not session_present and self._spool.identity.filters:
            self._sessions_lost += 1
            logger.warning(
                "%s has forgotten the session of %s: what was published while we were away is lost",
                self._address,
                self._options.client_id,
            )

    def _on_event(self, event: BusEvent) -> None:
        match event:
            case Disconnected(error):
                logger.warning("%s: %s", self._address, error)
            case Reconnecting(attempt, delay_s, _):
                logger.info("connecting to %s again in %.1f s (attempt %d)", self._address, delay_s, attempt)
            case _:
                pass

    def _on_end(self, error: ClientError | None) -> None:
        assert self._ending is not None
        if error is not None and not self._ending.done():
            self._ending.set_exception(error)
            self._ending.exception()  # looked at: before the start is over somebody else raises it

    def _end(self) -> None:
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)


def _size(arrival: Arrival) -> int:
    return len(arrival.message.payload) + len(arrival.message.topic) + 100


def _frames(arrivals: Sequence[Arrival]) -> list[Sequence[Arrival]]:
    """Groups of at most so many rows and, unless one message is longer than that, so many bytes."""
    frames: list[Sequence[Arrival]] = []
    begin = size = 0
    for index, arrival in enumerate(arrivals):
        if index > begin and (index - begin >= ROWS_PER_FRAME or size + _size(arrival) > BYTES_PER_FRAME):
            frames.append(arrivals[begin:index])
            begin, size = index, 0
        size += _size(arrival)
    frames.append(arrivals[begin:])
    return frames
