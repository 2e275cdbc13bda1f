"""The bus as an application sees it. Nothing here knows MQTT's packets: a `Core` does."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Final, Literal, Self, TypedDict, Unpack

from polybus.broker.topics import InvalidTopic, check_topic_name, parse_filter
from polybus.client.backoff import Backoff
from polybus.client.core import Core
from polybus.client.driver import FLUSH_BYTES, Dial, Driver
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
