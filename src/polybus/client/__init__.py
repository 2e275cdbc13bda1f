"""The Python client: `connect` to a bus, publish, subscribe."""

from polybus.client.address import Tls
from polybus.client.backoff import Backoff
from polybus.client.bus import Bus
from polybus.client.connect import connect
from polybus.client.errors import (
    BusClosed,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    ConnectRefused,
    OperationTimeout,
    PublishRefused,
    SubscribeRefused,
    UnsubscribeRefused,
)
from polybus.client.events import (
    BusEvent,
    Closed,
    Connected,
    Disconnected,
    HandlerFailed,
    MessagesDropped,
    Reconnecting,
    SubscriptionLost,
)
from polybus.client.message import Acknowledge, Message, WhenFull, Will
from polybus.client.subscription import Subscription

__all__ = [
    "Acknowledge",
    "Backoff",
    "Bus",
    "BusClosed",
    "BusEvent",
    "ClientError",
    "Closed",
    "ConnectRefused",
    "Connected",
    "ConnectionFailed",
    "ConnectionLost",
    "Disconnected",
    "HandlerFailed",
    "Message",
    "MessagesDropped",
    "OperationTimeout",
    "PublishRefused",
    "Reconnecting",
    "SubscribeRefused",
    "Subscription",
    "SubscriptionLost",
    "Tls",
    "UnsubscribeRefused",
    "WhenFull",
    "Will",
    "connect",
]
