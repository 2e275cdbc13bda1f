"""The Python client: `connect` to a bus; ask and serve, publish and subscribe."""

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
    NotDelivered,
    OperationTimeout,
    PublishRefused,
    RequestCanceled,
    RequestDeleted,
    RequestFailed,
    RequestTimeout,
    ServiceError,
    SubscribeRefused,
    UnsubscribeRefused,
)
from polybus.client.events import (
    AnswerUnclaimed,
    BusEvent,
    Closed,
    Connected,
    Disconnected,
    HandlerFailed,
    MessagesDropped,
    Reconnecting,
    ServiceFailed,
    SubscriptionLost,
)
from polybus.client.message import Acknowledge, Message, WhenFull, Will
from polybus.client.pending import PendingRequest
from polybus.client.service import Service
from polybus.client.subscription import Subscription

__all__ = [
    "Acknowledge",
    "AnswerUnclaimed",
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
    "NotDelivered",
    "OperationTimeout",
    "PendingRequest",
    "PublishRefused",
    "Reconnecting",
    "RequestCanceled",
    "RequestDeleted",
    "RequestFailed",
    "RequestTimeout",
    "Service",
    "ServiceError",
    "ServiceFailed",
    "SubscribeRefused",
    "Subscription",
    "SubscriptionLost",
    "Tls",
    "UnsubscribeRefused",
    "WhenFull",
    "Will",
    "connect",
]
