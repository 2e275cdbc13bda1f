"""The bus as an application sees it. Nothing here knows a protocol's packets: a `Core` does."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self, TypedDict, Unpack

import msgspec

from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.client.backoff import Backoff
from polybus.client.core import Core
from polybus.client.driver import Dial, Driver
from polybus.client.errors import BusClosed, ClientError, RequestTimeout
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
from polybus.client.message import (
    DEFAULT_QUEUE_SIZE,
    Acknowledge,
    Message,
    Payload,
    SubscribeOptions,
    WhenFull,
    payload_bytes,
)
from polybus.client.pending import PendingRequest
from polybus.client.router import MAX_LEVELS, Router
from polybus.client.service import Handler, Service
from polybus.client.subscription import Callback, Subscription
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties

logger = logging.getLogger("polybus.client")

DRAIN_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 5.0
"""As in the document that defines TBus, and for MQTT too."""


NEEDED_FOR_REQUESTS: Final = "TBus (tbus://…) or MQTT 5.0 (mqtt://… with version=5)"


class PublishProperties(TypedDict, total=False):
    """What can go with a message on a protocol that has properties (MQTT 5.0)."""

    payload_format_indicator: int
    message_expiry_s: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    user_properties: Mapping[str, str] | Iterable[tuple[str, str]]


class Bus:
    """Made by `polybus.connect`; see there."""

    def __init__(
        self,
        core: Core,
        dial: Dial,
        *,
        timeout_s: float,
        connect_timeout_s: float,
        reconnect: Backoff | None,
        on_event: Callable[[BusEvent], None] | None,
        dial_at: DialAt | None = None,
    ) -> None:
        self._core = core
        self._dial = dial
        self._dial_at = dial_at
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._reconnect = reconnect
        self._on_event = on_event
        self._router = Router(self._acknowledge, self.emit)
        self._pausing: set[Subscription] = set()
        self._services: list[Service] = []  # those that start with the bus
        self._starting: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None
        self._driver: Driver | None = None
        self._link: Link | None = None
        self.client_id = ""
        """The name the broker knows us by; it may have given it to us."""

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect, and start the services there are.

        Raises `ConnectionFailed`, `ConnectRefused`, `SubscribeRefused`; `UsageError` on a second call.
        """
        if self._driver is not None:
            raise UsageError("this bus was opened before; make a new one with polybus.connect")
        self._driver = Driver(self._core, self._on_batch, self._connect_timeout_s)
        self._over = asyncio.get_running_loop().create_future()
        self._link = Link(self._driver, self._dial, self._dial_at, self._reconnect, self.emit, self._on_end)
        await self._link.open()
        try:
            for service in self._services:
                await service.start()
        except BaseException:
            await self._leave([])
            raise
        return self

    async def disconnect(self, *, reason_code: int = 0, reason: str = "") -> None:
        """Say goodbye to the broker and end. Callbacks and services may finish what waits for them, for 5 s.

        What is not acknowledged is not taken along: in a kept session the broker sends it again.
        Requests of ours that are unfinished end with `BusClosed`; what may wait goes on in the broker.
        Raises `UsageError` for a `reason_code` that the protocol does not know.
        """
        self._core.prepare_goodbye(reason_code, reason)
        if self._driver is None or self._link is None:
            return
        subscriptions = self._router.subscriptions()
        for subscription in subscriptions:
            subscription.settle()
        await self._leave(subscriptions)

    async def _leave(self, subscriptions: list[Subscription]) -> None:
        assert self._link is not None
        self._router.close()
        for task in self._starting:
            task.cancel()
        for subscription in subscriptions:
            subscription.forget_unhandled()
            subscription.end(None)
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        for subscription in subscriptions:
            await subscription.drain(deadline)
        for service in self._router.services():
            await service.drain(deadline)
        await self._link.close()

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.disconnect()
        else:  # what was being handled was not
            await self._leave(self._router.subscriptions())

    @property
    def is_connected(self) -> bool:
        return self._driver is not None and self._driver.is_connected

    # --- operations -------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        priority: bool = False,
        wait_s: int = 0,
        timeout_s: float | None = None,
        **properties: Unpack[PublishProperties],
    ) -> None:
        """Send a message. QoS 0 returns when it is on its way, QoS 1 and 2 when it is acknowledged.

        `priority` messages go before others at every stage. `wait_s`: if there is no subscriber the
        broker keeps it that long for the first one to come. Both need TBus, or MQTT 5.0 and Polybus.

        Waits while there is no connection or the connection takes no more. A message of QoS 1 or 2
        that was under way when the connection broke is sent again by itself.

        Raises `PublishRefused`, `OperationTimeout`, `BusClosed`; `UsageError` for a bad argument.
        """
        driver = self._opened()
        core = self._core
        if (priority or wait_s) and not core.has_requests:
            raise UsageError(f"priority and wait_s need {NEEDED_FOR_REQUESTS}; this bus speaks {core.protocol}")
        message = Message(
            topic,
            payload if type(payload) is bytes else payload_bytes(payload),
            qos,
            retain,
            self._properties(properties) if properties else NO_PROPERTIES,
            priority,
        )
        now = driver.now()
        if not driver.is_ready:
            deadline = now + (self._timeout_s if timeout_s is None else timeout_s)
            await driver.until_ready(deadline, f"publish to {topic!r}")
        token = core.publish(message, wait_s, now=now)
        if token:
            deadline = now + (self._timeout_s if timeout_s is None else timeout_s)
            await driver.until_complete((token,), deadline, f"publish to {topic!r}")
        elif driver.flush_soon():
            await asyncio.sleep(0)  # a publisher that never waits must not starve the rest

    async def request(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 (the broker keeps it too)
        priority: bool = False,
        wait: bool = True,
        **properties: Unpack[PublishProperties],
    ) -> Message:
        """Ask, and return the answer. One service gets the request, wherever it is.

        `timeout` (seconds) is the life of the whole request, waiting and working. `wait`: it may wait in
        the broker for a service, and its answer for us while we are away; else it fails if no service is
        there. Canceling the task that awaits this cancels the request, all the way to the service.

        Raises `RequestFailed`: `RequestTimeout`, `ServiceError`, `NotDelivered`, `RequestDeleted`,
        `RequestCanceled`; `BusClosed`; `UsageError` for a bad argument.
        """
        driver, message = await self._prepare_request(topic, payload, timeout, priority, properties)
        return await driver.answer(self._core.request(message, timeout, wait, now=driver.now()))

    async def ask(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 (the broker keeps it too)
        priority: bool = False,
        wait: bool = True,
        **properties: Unpack[PublishProperties],
    ) -> PendingRequest:
        """`request` in two steps: this returns when it is on its way. Await what it returns for the
        answer, or cancel it. It has the number by which the broker knows it."""
        driver, message = await self._prepare_request(topic, payload, timeout, priority, properties)
        token = self._core.request(message, timeout, wait, now=driver.now())
        return PendingRequest(driver, token, self._core.request_id(token), topic)

    def service(self, topic_filter: str, *, concurrency: int = 1) -> Callable[[Handler], Service]:
        """Decorates a function, plain or async, that answers requests::

            @bus.service("triple", concurrency=4)
            async def triple(request: Message) -> str: ...

        What it returns (bytes, str or None) is the answer; what it raises is told to the requester as a
        `ServiceError`. `concurrency` is how many requests it takes at once.

        On a bus that is not connected yet it starts with the bus, which raises what is wrong. Later it
        starts by itself: `await triple.ready()`, or what keeps it from starting is raised by
        `serve_forever` and told as an event.
        """

        def decorate(handler: Handler) -> Service:
            service = self._service(topic_filter, handler, concurrency)
            if self._driver is None:
                self._services.append(service)
            else:
                self._opened()
                service.expect_start()
                task = asyncio.create_task(self._start_later(service), name="polybus-service")
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
            return service

        return decorate

    async def serve(self, topic_filter: str, handler: Handler, *, concurrency: int = 1) -> Service:
        """Like `service`, for a function that is already there. Returns when the broker has granted it.

        Raises `SubscribeRefused`, `OperationTimeout`, `BusClosed`.
        """
        self._opened()
        service = self._service(topic_filter, handler, concurrency)
        await service.start()
        return service

    async def serve_forever(self) -> None:
        """Until the bus ends. Raises what ended it, if that was not `disconnect`, or what kept a service
        from starting."""
        self._opened()
        assert self._over is not None
        await asyncio.shield(self._over)

    def subscribe(
        self,
        topic_filters: str | Iterable[str],
        callback: Callback | None = None,
        *,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        queue_size: int = DEFAULT_QUEUE_SIZE,
        acknowledge: Acknowledge | Literal["queued", "handled"] = Acknowledge.QUEUED,
        when_full: WhenFull | Literal["drop", "pause"] = WhenFull.DROP,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Ask for messages; one filter or several. Three ways to use it::

            async with bus.subscribe("sensors/#") as messages:   # unsubscribes at the end
                async for message in messages: ...
            messages = await bus.subscribe("sensors/#")          # stays until messages.close()
            await bus.subscribe("sensors/#", callback)           # callback: plain or async

        Every subscription has its own queue of `queue_size` messages. `acknowledge` and `when_full`
        choose what a full queue and an unhandled message mean; `docs/client.md` explains them.

        Raises (when started) `SubscribeRefused`, `OperationTimeout`, `BusClosed`.
        """
        names = (topic_filters,) if isinstance(topic_filters, str) else tuple(topic_filters)
        if not names:
            raise UsageError("subscribe needs at least one topic filter")
        if queue_size < 1:
            raise UsageError(f"queue_size {queue_size} is not at least 1")
        if not self._core.has_properties and (no_local or retain_as_published or retain_handling):
            raise UsageError("no_local, retain_as_published and retain_handling need MQTT 5.0")
        for name in names:
            _check_filter(name)
        return Subscription(
            self,
            tuple(
                SubscribeOptions(name, qos, no_local, retain_as_published, retain_handling)
                for name in dict.fromkeys(names)
            ),
            callback,
            queue_size=queue_size,
            acknowledge=Acknowledge(acknowledge),
            when_full=WhenFull(when_full),
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )

    # --- what subscriptions and services ask for --------------------------------------------------

    async def start_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        await self._start(subscription, timeout_s)

    async def stop_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        await self._stop(subscription, timeout_s)

    async def start_service(self, service: Service) -> None:
        await self._start(service, self._timeout_s)

    async def stop_service(self, service: Service) -> None:
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        await self._stop(service, self._timeout_s)
        await service.drain(deadline)

    async def _start(self, taker: Subscription | Service, timeout_s: float) -> None:
        driver = self._opened()
        deadline = driver.now() + timeout_s
        try:
            asked = self._router.add(taker)
            tokens = [self._core.subscribe(options, now=driver.now()) for options in asked]
            await driver.until_complete(tokens, deadline, f"subscribe to {', '.join(taker.topic_filters)}")
        except BaseException:
            self._unsubscribe(taker)
            raise

    async def _stop(self, taker: Subscription | Service, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        tokens = self._unsubscribe(taker)
        driver = self._driver
        if not tokens or driver is None or not driver.is_connected:
            return  # without a connection it is done with the next one
        with suppress(BusClosed):
            await driver.until_complete(tokens, deadline, f"unsubscribe from {', '.join(taker.topic_filters)}")

    def answer(self, to: ReturnAddress, request: Message, payload: bytes) -> None:
        assert self._driver is not None
        self._core.answer(to, request, payload, now=self._driver.now())
        self._driver.flush_soon()

    def fail(self, to: ReturnAddress, request: Message, reason: str) -> None:
        assert self._driver is not None
        self._core.fail(to, request, reason, now=self._driver.now())
        self._driver.flush_soon()

    def set_pausing(self, subscription: Subscription, is_pausing: bool) -> None:
        if is_pausing:
            self._pausing.add(subscription)
        else:
            self._pausing.discard(subscription)
        if self._driver is not None:
            self._driver.set_reading(not self._pausing)

    def emit(self, event: BusEvent) -> None:
        logger.debug("%s", event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed for %s", event)

    # --- helpers ----------------------------------------------------------------------------------

    def _opened(self) -> Driver:
        if self._driver is None:
            raise BusClosed("the bus is not connected yet: use 'async with polybus.connect(…) as bus'")
        self._driver.check_open()
        return self._driver

    def _unsubscribe(self, taker: Subscription | Service) -> list[int]:
        now = asyncio.get_running_loop().time()
        unwanted, changed = self._router.remove(taker)
        tokens = [self._core.unsubscribe(name, now=now) for name in unwanted]
        tokens += [self._core.subscribe(options, now=now) for options in changed]
        if self._driver is not None:
            self._driver.flush_soon()
        return tokens

    async def _prepare_request(
        self, topic: str, payload: Payload, timeout_s: float, priority: bool, properties: PublishProperties
    ) -> tuple[Driver, Message]:
        driver = self._opened()
        core = self._core
        if not core.has_requests:
            raise UsageError(f"requests need {NEEDED_FOR_REQUESTS}; this bus speaks {core.protocol}")
        if not timeout_s > 0:
            raise UsageError(f"timeout {timeout_s!r} of a request is not more than 0 seconds")
        message = Message(
            topic,
            payload if type(payload) is bytes else payload_bytes(payload),
            properties=self._properties(properties) if properties else NO_PROPERTIES,
            priority=priority,
        )
        if not self._has_room(driver) and not await driver.until(
            lambda: self._has_room(driver), driver.now() + timeout_s
        ):
            text = "too many are unfinished" if not core.takes_requests else "the broker takes no more"
            raise RequestTimeout(topic, f"{text}; it was not sent within {timeout_s:g} s")
        return driver, message

    def _has_room(self, driver: Driver) -> bool:
        return self._core.takes_requests and (driver.is_ready or not driver.is_connected)

    def _service(self, topic_filter: str, handler: Handler, concurrency: int) -> Service:
        core = self._core
        if not core.has_requests:
            raise UsageError(f"services need {NEEDED_FOR_REQUESTS}; this bus speaks {core.protocol}")
        _check_filter(topic_filter)
        return Service(self, topic_filter, handler, concurrency=concurrency, qos=int(core.has_properties))

    async def _start_later(self, service: Service) -> None:
        try:
            await service.start()
        except ClientError as error:
            self.emit(ServiceFailed(service.topic_filter, error))
            self._finish(error)

    def _finish(self, error: ClientError | None) -> None:
        if self._over is None or self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
            self._over.exception()  # nobody has to wait for it

    def _properties(self, properties: PublishProperties) -> Properties:
        if not self._core.has_properties:
            names = ", ".join(properties)
            raise UsageError(f"{names}: properties need MQTT 5.0, this bus speaks {self._core.protocol}")
        unknown = properties.keys() - PublishProperties.__annotations__.keys()
        if unknown:
            known = ", ".join(PublishProperties.__annotations__)
            raise UsageError(f"unknown property {', '.join(sorted(unknown))}; there are {known}")
        values = dict(properties)
        values["user_properties"] = as_pairs(properties.get("user_properties", ()))
        return msgspec.structs.replace(NO_PROPERTIES, **values)

    def _acknowledge(self, receipt: Receipt) -> None:
        self._core.acknowledge(receipt, now=asyncio.get_running_loop().time())
        if self._driver is not None:
            self._driver.flush_soon()

    def _on_batch(self, events: list[CoreEvent]) -> None:
        self._router.begin_batch()
        for event in events:
            match event:
                case Received():
                    self._router.deliver(event)
                case Accepted():
                    self._on_accepted(event)
                case Requested():
                    if not self._router.deliver_request(event):
                        self.fail(event.answer_to, event.message, "the service was stopped")
                case Withdrawn(answer_to):
                    self._router.withdraw_request(answer_to)
                case Unclaimed(request_id, end):
                    self.emit(AnswerUnclaimed(request_id, end))
                case RenewalRefused(error):
                    self.emit(SubscriptionLost(error))
                case _:
                    pass

    def _on_accepted(self, event: Accepted) -> None:
        if event.session_present and not self.client_id:
            self._router.keeps_unclaimed = True
        self.client_id = event.client_id
        attempt = self._link.attempt if self._link is not None else 0
        self.emit(
            Connected(
                event.client_id, event.session_present, attempt, event.resent, event.renewed, event.requests
            )
        )

    def _on_end(self, error: ClientError | None) -> None:
        self._router.close()
        for subscription in self._router.subscriptions():
            subscription.end(error)
        for service in self._router.services():
            service.end()
        self._finish(error)


def as_pairs(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    items = properties.items() if isinstance(properties, Mapping) else properties
    return tuple((name, value) for name, value in items)


def _check_filter(topic_filter: str) -> None:
    try:
        parse_filter(topic_filter, MAX_LEVELS)
    except InvalidTopic as error:
        raise UsageError(str(error)) from error
