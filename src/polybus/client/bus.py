"""The bus as an application sees it. Nothing here knows a protocol's packets: a `Core` does."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Final, Literal, Self, TypedDict, Unpack

import msgspec

from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.client.backoff import Backoff
from polybus.client.core import Core
from polybus.client.driver import Dial, Driver
from polybus.client.errors import RequestTimeout
from polybus.client.events import BusEvent
from polybus.client.hub import Hub
from polybus.client.link import DialAt
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
from polybus.client.router import MAX_LEVELS
from polybus.client.service import Handler, Service
from polybus.client.subscription import Callback, Subscription
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties

MAX_UNDER_WAY: Final = 1000
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
        self._hub = Hub(
            core,
            dial,
            dial_at,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            reconnect=reconnect,
            on_event=on_event,
        )
        self._services: list[Service] = []  # those that start with the bus

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect, and start the services there are.

        Raises `ConnectionFailed`, `ConnectRefused`, `SubscribeRefused`; `UsageError` on a second call.
        """
        await self._hub.open()
        try:
            for service in self._services:
                await service.start()
        except BaseException:
            await self._hub.leave()
            raise
        return self

    async def disconnect(self, *, reason_code: int = 0, reason: str = "") -> None:
        """Say goodbye to the broker and end. Callbacks and services may finish what waits for them, for 5 s.

        What is not acknowledged is not taken along: in a kept session the broker sends it again.
        Requests of ours that are unfinished end with `BusClosed`; what may wait goes on in the broker.
        Raises `UsageError` for a `reason_code` that the protocol does not know.
        """
        self._core.prepare_goodbye(reason_code, reason)
        for subscription in self._hub.router.subscriptions():
            subscription.settle()
        await self._hub.leave()

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
            await self._hub.leave()

    @property
    def is_connected(self) -> bool:
        driver = self._hub.driver
        return driver is not None and driver.is_connected

    @property
    def client_id(self) -> str:
        """The name the broker knows us by; it may have given it to us."""
        return self._hub.client_id

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
        driver = self._hub.opened()
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
        if not driver.is_ready and not (priority and driver.takes_urgent):
            deadline = now + (self._hub.timeout_s if timeout_s is None else timeout_s)
            await driver.until_ready(deadline, f"publish to {topic!r}")
        token = core.publish(message, wait_s, now=now)
        if token:
            deadline = now + (self._hub.timeout_s if timeout_s is None else timeout_s)
            await driver.until_complete((token,), deadline, f"publish to {topic!r}")
        elif driver.flush_soon():
            await asyncio.sleep(0)  # a publisher that never waits must not starve the rest

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        qos: int = 0,
        *,
        priority: bool = False,
        wait_s: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """One message after the other, as `publish` does it; of QoS 1 and 2 many are under way at once."""
        if qos == 0:
            for payload in payloads:
                await self.publish(topic, payload, priority=priority, wait_s=wait_s, timeout_s=timeout_s)
            return
        under_way: deque[asyncio.Task[None]] = deque()
        try:
            for payload in payloads:
                publish = self.publish(
                    topic, payload, qos, priority=priority, wait_s=wait_s, timeout_s=timeout_s
                )
                under_way.append(asyncio.create_task(publish))
                if len(under_way) >= MAX_UNDER_WAY:
                    await under_way.popleft()
            while under_way:
                await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()

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

    async def resume(
        self,
        request_id: int,
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 (as `request` has it)
    ) -> Message:
        """The answer to a request that an earlier run under this client id made (`PendingRequest.id`), if that
        may have waited, and this run did not start clean. TBus only.

        Raises `RequestFailed` as `request` does, `RequestTimeout` if nothing comes within `timeout` seconds;
        `BusClosed`; `UsageError` on MQTT, where answers are told apart by their Correlation Data.
        """
        self._hub.opened()
        if self._core.has_properties or not self._core.has_requests:
            raise UsageError(f"resume needs TBus (tbus://…); this bus speaks {self._core.protocol}")
        _check_timeout(timeout)
        return await self._hub.earlier.end(request_id, timeout)

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
            if self._hub.driver is None:
                self._services.append(service)
            else:
                self._hub.opened()
                self._hub.start_later(service)
            return service

        return decorate

    async def serve(self, topic_filter: str, handler: Handler, *, concurrency: int = 1) -> Service:
        """Like `service`, for a function that is already there. Returns when the broker has granted it.

        Raises `SubscribeRefused`, `OperationTimeout`, `BusClosed`.
        """
        self._hub.opened()
        service = self._service(topic_filter, handler, concurrency)
        await service.start()
        return service

    async def serve_forever(self) -> None:
        """Until the bus ends. Raises what ended it, if that was not `disconnect`, or what kept a service
        from starting."""
        self._hub.opened()
        assert self._hub.over is not None
        await asyncio.shield(self._hub.over)

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
            self._hub,
            tuple(
                SubscribeOptions(name, qos, no_local, retain_as_published, retain_handling)
                for name in dict.fromkeys(names)
            ),
            callback,
            queue_size=queue_size,
            acknowledge=Acknowledge(acknowledge),
            when_full=WhenFull(when_full),
            timeout_s=self._hub.timeout_s if timeout_s is None else timeout_s,
        )

    async def unsubscribe(self, topic_filter: str, *, timeout_s: float | None = None) -> None:
        """End every subscription and service of ours that has this filter alone.

        If there is none the broker is told all the same. Raises `UnsubscribeRefused`, `OperationTimeout`,
        `BusClosed`.
        """
        driver = self._hub.opened()
        _check_filter(topic_filter)
        takers = self._hub.router.takers(topic_filter)
        for taker in takers:
            await taker.close()
        if not takers:
            deadline = driver.now() + (self._hub.timeout_s if timeout_s is None else timeout_s)
            token = self._core.unsubscribe(topic_filter, now=driver.now())
            await driver.until_complete((token,), deadline, f"unsubscribe from {topic_filter}")

    # --- helpers ----------------------------------------------------------------------------------

    async def _prepare_request(
        self, topic: str, payload: Payload, timeout_s: float, priority: bool, properties: PublishProperties
    ) -> tuple[Driver, Message]:
        driver = self._hub.opened()
        core = self._core
        if not core.has_requests:
            raise UsageError(f"requests need {NEEDED_FOR_REQUESTS}; this bus speaks {core.protocol}")
        _check_timeout(timeout_s)
        message = Message(
            topic,
            payload if type(payload) is bytes else payload_bytes(payload),
            properties=self._properties(properties) if properties else NO_PROPERTIES,
            priority=priority,
        )
        if not self._has_room(driver, priority) and not await driver.until(
            lambda: self._has_room(driver, priority), driver.now() + timeout_s
        ):
            text = "too many are unfinished" if not core.takes_requests else "the broker takes no more"
            raise RequestTimeout(topic, f"{text}; it was not sent within {timeout_s:g} s")
        return driver, message

    def _has_room(self, driver: Driver, priority: bool) -> bool:
        if not self._core.takes_requests:
            return False
        return driver.is_ready or not driver.is_connected or (priority and driver.takes_urgent)

    def _service(self, topic_filter: str, handler: Handler, concurrency: int) -> Service:
        core = self._core
        if not core.has_requests:
            raise UsageError(f"services need {NEEDED_FOR_REQUESTS}; this bus speaks {core.protocol}")
        _check_filter(topic_filter)
        return Service(self._hub, topic_filter, handler, concurrency=concurrency, qos=int(core.has_properties))

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


def as_pairs(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    items = properties.items() if isinstance(properties, Mapping) else properties
    return tuple((name, value) for name, value in items)


def _check_timeout(timeout_s: object) -> None:
    if not (isinstance(timeout_s, int | float) and 0 < timeout_s < math.inf):
        raise UsageError(f"timeout {timeout_s!r} of a request is not a number of seconds above 0")


def _check_filter(topic_filter: str) -> None:
    try:
        parse_filter(topic_filter, MAX_LEVELS)
    except InvalidTopic as error:
        raise UsageError(str(error)) from error
