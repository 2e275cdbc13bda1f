"""The bus as an application sees it. Nothing here knows MQTT's packets: a `Core` does."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Final, Literal, Self, TypedDict, Unpack

import msgspec

from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.client.backoff import Backoff
from polybus.client.core import Core
from polybus.client.driver import Dial, Driver
from polybus.client.errors import BusClosed, ClientError
from polybus.client.events import (
    Accepted,
    BusEvent,
    Connected,
    CoreEvent,
    Receipt,
    Received,
    RenewalRefused,
    SubscriptionLost,
)
from polybus.client.link import Link
from polybus.client.message import (
    DEFAULT_QUEUE_SIZE,
    Acknowledge,
    Message,
    Payload,
    SubscribeOptions,
    WhenFull,
    payload_bytes,
)
from polybus.client.router import MAX_LEVELS, Router
from polybus.client.subscription import Callback, Subscription
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties

logger = logging.getLogger("polybus.client")

DRAIN_S: Final = 5.0


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
    ) -> None:
        self._core = core
        self._dial = dial
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._reconnect = reconnect
        self._on_event = on_event
        self._router = Router(self._acknowledge, self.emit)
        self._pausing: set[Subscription] = set()
        self._driver: Driver | None = None
        self._link: Link | None = None
        self.client_id = ""
        """The name the broker knows us by; it may have given it to us."""

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect. Raises `ConnectionFailed`, `ConnectRefused`; `UsageError` on a second call."""
        if self._driver is not None:
            raise UsageError("this bus was opened before; make a new one with polybus.connect")
        self._driver = Driver(self._core, self._dial, self._on_batch, self._connect_timeout_s)
        self._link = Link(self._driver, self._reconnect, self.emit, self._on_end)
        await self._link.open()
        return self

    async def disconnect(self) -> None:
        """Say goodbye to the broker and end. Callbacks may finish what waits for them, for 5 s.

        What is not acknowledged is not taken along: in a kept session the broker sends it again.
        """
        if self._driver is None or self._link is None:
            return
        subscriptions = self._router.subscriptions()
        for subscription in subscriptions:
            subscription.settle()
        await self._leave(subscriptions)

    async def _leave(self, subscriptions: list[Subscription]) -> None:
        assert self._link is not None
        self._router.close()
        for subscription in subscriptions:
            subscription.forget_unhandled()
            subscription.end(None)
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        for subscription in subscriptions:
            await subscription.drain(deadline)
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
        timeout_s: float | None = None,
        **properties: Unpack[PublishProperties],
    ) -> None:
        """Send a message. QoS 0 returns when it is on its way, QoS 1 and 2 when it is acknowledged.

        Waits while there is no connection or the connection takes no more. A message of QoS 1 or 2
        that was under way when the connection broke is sent again by itself.

        Raises `PublishRefused`, `OperationTimeout`, `BusClosed`; `UsageError` for a bad argument.
        """
        driver = self._opened()
        message = Message(topic, payload_bytes(payload), qos, retain, self._properties(properties))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        if not driver.is_ready:
            await driver.until_ready(deadline, f"publish to {topic!r}")
        token = self._core.publish(message, now=loop.time())
        if token:
            await driver.until_complete((token,), deadline, f"publish to {topic!r}")
        elif driver.flush_soon():
            await asyncio.sleep(0)  # a publisher that never waits must not starve the rest

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

    # --- what subscriptions ask for ---------------------------------------------------------------

    async def start_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        driver = self._opened()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            asked = self._router.add(subscription)
            tokens = [self._core.subscribe(options, now=loop.time()) for options in asked]
            await driver.until_complete(
                tokens, deadline, f"subscribe to {', '.join(subscription.topic_filters)}"
            )
        except BaseException:
            self._unsubscribe(subscription)
            raise

    async def stop_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        tokens = self._unsubscribe(subscription)
        driver = self._driver
        if not tokens or driver is None or not driver.is_connected:
            return  # without a connection it is done with the next one
        try:
            await driver.until_complete(
                tokens, deadline, f"unsubscribe from {', '.join(subscription.topic_filters)}"
            )
        except BusClosed:
            return

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

    def _unsubscribe(self, subscription: Subscription) -> list[int]:
        now = asyncio.get_running_loop().time()
        tokens = [self._core.unsubscribe(name, now=now) for name in self._router.remove(subscription)]
        if self._driver is not None:
            self._driver.flush_soon()
        return tokens

    def _properties(self, properties: PublishProperties) -> Properties:
        if not properties:
            return NO_PROPERTIES
        if not self._core.has_properties:
            raise UsageError(f"{', '.join(properties)}: properties need MQTT 5.0, this bus speaks 3.1.1")
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
                case RenewalRefused(error):
                    self.emit(SubscriptionLost(error))
                case _:
                    pass

    def _on_accepted(self, event: Accepted) -> None:
        if event.session_present and not self.client_id:
            self._router.keeps_unclaimed = True
        self.client_id = event.client_id
        attempt = self._link.attempt if self._link is not None else 0
        self.emit(Connected(event.client_id, event.session_present, attempt, event.resent, event.renewed))

    def _on_end(self, error: ClientError | None) -> None:
        self._router.close()
        for subscription in self._router.subscriptions():
            subscription.end(error)


def as_pairs(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    items = properties.items() if isinstance(properties, Mapping) else properties
    return tuple((name, value) for name, value in items)


def _check_filter(topic_filter: str) -> None:
    try:
        parse_filter(topic_filter, MAX_LEVELS)
    except InvalidTopic as error:
        raise UsageError(str(error)) from error
