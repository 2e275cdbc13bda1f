"""TBus reason codes in words, and which of them make another attempt pointless."""

from enum import IntEnum
from typing import Final

from polybus.wire.tbus.packets import ConnectReason

FINAL_REASONS: Final = frozenset({ConnectReason.MALFORMED, ConnectReason.NOT_AUTHORIZED})
"""CLIENT_ID_IN_USE is none of them: the broker may not have noticed yet that our last connection broke."""


def describe_reason(reason: IntEnum, words: str | None) -> str:
    """`not authorized (135)`, with the broker's own words where it gave some."""
    text = f"{reason.name.replace('_', ' ').lower()} ({int(reason)})"
    return f"{text}, {words}" if words else text


def parse_server_reference(reference: str | None) -> tuple[str, ...]:
    """The brokers of `host:port;host:port`; what is not of that form is left out (TB-14)."""
    places = [place.strip() for place in (reference or "").split(";")]
    return tuple(place for place in places if _is_place(place))


def _is_place(place: str) -> bool:
    host, _, port = place.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 0x1_0000
