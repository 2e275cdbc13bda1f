"""Polybus: one bus for many protocols."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.client import (
        Backoff,
        Bus,
        Message,
        NotDelivered,
        RequestCanceled,
        RequestDeleted,
        RequestFailed,
        RequestTimeout,
        Service,
        ServiceError,
        Subscription,
        Tls,
        Will,
        connect,
    )
    from polybus.client.blocking import BlockingBus, connect_blocking

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "BlockingBus",
    "Bus",
    "Message",
    "NotDelivered",
    "RequestCanceled",
    "RequestDeleted",
    "RequestFailed",
    "RequestTimeout",
    "Service",
    "ServiceError",
    "Subscription",
    "Tls",
    "Will",
    "__version__",
    "connect",
    "connect_blocking",
]

_BLOCKING = frozenset({"BlockingBus", "connect_blocking"})


def __getattr__(name: str) -> object:
    """The client's names, on first use: a broker or a wire tool does not pay for them."""
    if name in _BLOCKING:
        import polybus.client.blocking

        return getattr(polybus.client.blocking, name)
    if name in __all__:
        import polybus.client

        return getattr(polybus.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
