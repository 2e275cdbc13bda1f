"""What an operator chooses about TBus itself, beside the limits."""

from typing import Literal, TypeAlias

import msgspec

BulkMode: TypeAlias = Literal["adaptive", "fixed", "off"]


class TbusOptions(msgspec.Struct, frozen=True):
    bulk: BulkMode = "adaptive"
    """How messages to a client that takes BULKs are gathered."""
    server_reference: str = ""
    """Other brokers as `ip:port;ip:port`, named to clients when this one is full; empty: not told."""
