"""The middle of a bus: ties core, driver and router together for subscriptions, services and requests."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from polybus.client.backoff import Backoff
from polybus.client.core import Core
from polybus.client.driver import Dial, Driver
from polybus.client.earlier import EarlierRequests
from polybus.client.errors import BusClosed, ClientError
from polybus.client.events import (
    Accepted,
    AnswerUnclaimed,
    BusEvent,
    Connected,
    CoreEvent,
    Receipt,
    Received,
    RenewalRefused,
    Requested,
    ReturnAddress,
    ServiceFailed,
    SubscriptionLost,
    Unclaimed,
    Withdrawn,
)
from polybus.client.link import DialAt, Link
from polybus.client.message import Message
from polybus.client.router import Router
from polybus.client.service import Service
from polybus.client.subscription import Subscription
from polybus.errors import UsageError

logger = logging.getLogger("polybus.client")

DRAIN_S: Final = 5.0
STOPPED: Final = "the service was stopped"


class Hub:
    """Subscriptions and services are its own; what the core reports, it gives to whom it concerns."""

    def __init__(
        self,
        core: Core,
        dial: Dial,
        dial_at: DialAt | None,
        *,
        timeout_s: float,
        connect_timeout_s: float,
        reconnect: Backoff | None,
        on_event: Callable[[BusEvent], None] | None,
    ) -> None:
        self.core = core
        self.router = Router(self._acknowledge, self.emit)
        self.earlier = EarlierRequests()
        self.driver: Driver | None = None
        self.over: asyncio.Future[None] | None = None
        """Comes with the end of the bus, or with what kept a service from starting."""
        self.client_id = ""
        self.timeout_s = timeout_s
        self._dial = dial
        self._dial_at = dial_at
        self._connect_timeout_s = connect_timeout_s
        self._reconnect = reconnect
        self._on_event = on_event
        self._pausing: set[Subscription] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._link: Link | None = None

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self.driver is not None:
            raise UsageError("this bus was opened before; make a new one with polybus.connect")
        self.driver = Driver(self.core, self._on_batch, self._connect_timeout_s)
        self.over = asyncio.get_running_loop().create_future()
        self._link = Link(self.driver, self._dial, self._dial_at, self._reconnect, self.emit, self._on_end)
        await self._link.open()

    def opened(self) -> Driver:
        """Raises `BusClosed` before and after."""
        if self.driver is None:
            raise BusClosed("the bus is not connected yet: use 'async with polybus.connect(…) as bus'")
        self.driver.check_open()
        return self.driver

    async def leave(self) -> None:
        """Let callbacks and services finish what waits for them, for a while, and say goodbye."""
        if self._link is None:
            return
        self.router.close()
        for task in self._starting:
            task.cancel()
        subscriptions = self.router.subscriptions()
        for subscription in subscriptions:
            subscription.forget_unhandled()
            subscription.end(None)
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        for subscription in subscriptions:
            await subscription.drain(deadline)
        for service in self.router.services():
            await service.drain(deadline)
        await self._link.close()

    # --- what subscriptions and services ask for --------------------------------------------------

    async def start_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        await self._start(subscription, timeout_s)

    async def stop_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        await self._stop(subscription, timeout_s)

    async def start_service(self, service: Service) -> None:
        await self._start(service, self.timeout_s)

    async def stop_service(self, service: Service) -> None:
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        await self._stop(service, self.timeout_s)
        await service.drain(deadline, STOPPED)

    async def _start(self, taker: Subscription | Service, timeout_s: float) -> None:
        driver = self.opened()
        deadline = driver.now() + timeout_s
        try:
            asked = self.router.add(taker)
            tokens = [self.core.subscribe(options, now=driver.now()) for options in asked]
            await driver.until_complete(tokens, deadline, f"subscribe to {', '.join(taker.topic_filters)}")
        except BaseException:
            self._unsubscribe(taker)
            raise

    async def _stop(self, taker: Subscription | Service, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        tokens = self._unsubscribe(taker)
        driver = self.driver
        if not tokens or driver is None or not driver.is_connected:
            return  # without a connection it is done with the next one
        with suppress(BusClosed):
            await driver.until_complete(tokens, deadline, f"unsubscribe from {', '.join(taker.topic_filters)}")

    def answer(self, to: ReturnAddress, request: Message, payload: bytes) -> None:
        assert self.driver is not None
        self.core.answer(to, request, payload, now=self.driver.now())
        self.driver.flush_soon()

    def fail(self, to: ReturnAddress, request: Message, reason: str) -> None:
        assert self.driver is not None
        self.core.fail(to, request, reason, now=self.driver.now())
        self.driver.flush_soon()

    def set_pausing(self, subscription: Subscription, is_pausing: bool) -> None:
        if is_pausing:
            self._pausing.add(subscription)
        else:
            self._pausing.discard(subscription)
        if self.driver is not None:
            self.driver.set_reading(not self._pausing)

    def emit(self, event: BusEvent) -> None:
        logger.debug("%s", event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed for %s", event)

    def start_later(self, service: Service) -> None:
        service.expect_start()
        task = asyncio.create_task(self._start_later(service), name="polybus-service")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    # --- helpers ----------------------------------------------------------------------------------

    def _unsubscribe(self, taker: Subscription | Service) -> list[int]:
        now = asyncio.get_running_loop().time()
        unwanted, changed = self.router.remove(taker)
        tokens = [self.core.unsubscribe(name, now=now) for name in unwanted]
        tokens += [self.core.subscribe(options, now=now) for options in changed]
        if self.driver is not None:
            self.driver.flush_soon()
        return tokens

    async def _start_later(self, service: Service) -> None:
        try:
            await service.start()
        except ClientError as error:
            self.emit(ServiceFailed(service.topic_filter, error))
            self._finish(error)

    def _finish(self, error: ClientError | None) -> None:
        if self.over is None or self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
            self.over.exception()  # nobody has to wait for it

    def _acknowledge(self, receipt: Receipt) -> None:
        self.core.acknowledge(receipt, now=asyncio.get_running_loop().time())
        if self.driver is not None:
            self.driver.flush_soon()

    def _on_batch(self, events: list[CoreEvent]) -> None:
        self.router.begin_batch()
        for event in events:
            match event:
                case Received():
                    self.router.deliver(event)
                case Accepted():
                    self._on_accepted(event)
                case Requested():
                    if not self.router.deliver_request(event):
                        self.fail(event.answer_to, event.message, STOPPED)
                case Withdrawn(answer_to):
                    self.router.withdraw_request(answer_to)
                case Unclaimed(request_id, end):
                    self.earlier.ended(request_id, end)
                    self.emit(AnswerUnclaimed(request_id, end))
                case RenewalRefused(error):
                    self.emit(SubscriptionLost(error))
                case _:
                    pass

    def _on_accepted(self, event: Accepted) -> None:
        if event.session_present and not self.client_id:
            self.router.keeps_unclaimed = True
        self.client_id = event.client_id
        attempt = self._link.attempt if self._link is not None else 0
        self.emit(
            Connected(
                event.client_id, event.session_present, attempt, event.resent, event.renewed, event.requests
            )
        )

    def _on_end(self, error: ClientError | None) -> None:
        self.router.close()
        for subscription in self.router.subscriptions():
            subscription.end(error)
        for service in self.router.services():
            service.end()
        self.earlier.close(error or BusClosed("the bus is closed"))
        self._finish(error)
