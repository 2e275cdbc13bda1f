"""Brokers by address: `ip:port`, IPv6 in brackets. It is the broker's id, too."""

import ipaddress
import re

MAX_PORT = 0xFFFF


def parse_address(text: str) -> tuple[str, int] | None:
    """IP and port; None: it is no address. Names of hosts are none: every broker must read the same."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) <= MAX_PORT:
        return None
    is_bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if is_bracketed else host)
    except ValueError:
        return None
    return (str(address), int(port)) if (address.version == 6) is is_bracketed else None


def broker_id(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(peer: str) -> bool:
    """Someone on this machine: over the loopback address or a Unix socket."""
    if peer == "unix":
        return True
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
