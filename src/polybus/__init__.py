"""Polybus: one bus for many protocols."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.client import Bus, Message, Tls, Will, connect

__version__ = "0.1.0"

__all__ = ["Bus", "Message", "Tls", "Will", "__version__", "connect"]


def __getattr__(name: str) -> object:
    """The client's names, on first use: a broker or a wire tool does not pay for them."""
    if name in __all__:
        import polybus.client

        return getattr(polybus.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
