"""Ports for brokers that are started again where they were."""

import socket
from typing import Final

_HOLDERS: Final[list[socket.socket]] = []


def own_port() -> int:
    """Of the kernel's choice, and ours until this process ends, whether a broker uses it or not.

    Bound but not listening, and with SO_REUSEADDR on both sides, it lets the broker bind as well. Nobody else's
    outgoing connection gets it meanwhile, least of all a client that would then be connected to itself.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HOLDERS.append(holder)
    port: int = holder.getsockname()[1]
    return port
