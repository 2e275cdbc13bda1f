"""Where the bus listens: the `[[listener]]` tables, what each implies, and the flags laid over them."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from polybus.errors import ConfigError
from polybus.ops.tables import Reader, check_readable

ListenerProtocol: TypeAlias = Literal["mqtt", "tbus"]
ListenerKind: TypeAlias = Literal["tcp", "tls", "websocket", "wss", "unix"]


class Listener(msgspec.Struct, frozen=True):
    """`read_listeners` has filled in the port and path that its protocol and kind imply."""

    protocol: ListenerProtocol = "mqtt"
    kind: ListenerKind = "tcp"
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port. A Unix socket has none."""
    path: str = ""
    """A Unix socket's file, or the HTTP path of a WebSocket."""
    certificate: Path | None = None
    private_key: Path | None = None
    client_ca: Path | None = None
    """Authorities whose client certificates are accepted."""
    require_client_certificate: bool = False
    allowed_origins: tuple[str, ...] = ()
    """Web sites whose pages may connect by WebSocket. Empty: any."""

    @property
    def is_encrypted(self) -> bool:
        return self.kind in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.kind in ("websocket", "wss")

    @property
    def url(self) -> str:
        """What a client would connect to."""
        scheme = WAYS[self.protocol, self.kind].scheme
        if self.kind == "unix":
            return f"{scheme}://{quote(os.path.abspath(self.path))}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.path}"


class Flags(msgspec.Struct, frozen=True):
    """What the command line says about listeners; None: nothing."""

    host: str | None = None
    """Of every network listener."""
    mqtt_port: int | None = None
    """Of the first MQTT listener on TCP; one is added if there is none. The same for the others."""
    ws_port: int | None = None
    tbus_port: int | None = None
    only: ListenerProtocol | None = None
    """Listeners of other protocols are left out."""


class Way(msgspec.Struct, frozen=True):
    """A protocol over a kind of transport."""

    scheme: str
    default_port: int = 0
    flag: str = ""
    """The flag that sets its port."""


WAYS: Final[Mapping[tuple[ListenerProtocol, ListenerKind], Way]] = {
    ("mqtt", "tcp"): Way("mqtt", 1883, "mqtt_port"),
    ("mqtt", "tls"): Way("mqtts", 8883),
    ("mqtt", "websocket"): Way("ws", 8083, "ws_port"),
    ("mqtt", "wss"): Way("wss", 8084),
    ("mqtt", "unix"): Way("mqtt+unix"),
    ("tbus", "tcp"): Way("tbus", 5035, "tbus_port"),
    ("tbus", "tls"): Way("tbuss", 5036),
    ("tbus", "unix"): Way("tbus+unix"),
}
"""Every way there is; what is not here is refused."""

DEFAULT_WEBSOCKET_PATH: Final = "/mqtt"
DEFAULT_LISTENERS: Final = (Listener(port=1883), Listener(protocol="tbus", port=5035))
"""What a file without any listener means (TB-01)."""

_NETWORK_KEYS: Final = frozenset({"protocol", "kind", "host", "port"})
_TLS_KEYS: Final = frozenset({"certificate", "private_key", "client_ca", "require_client_certificate"})
_WEBSOCKET_KEYS: Final = frozenset({"path", "allowed_origins"})
LISTENER_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "tcp": _NETWORK_KEYS,
    "tls": _NETWORK_KEYS | _TLS_KEYS,
    "websocket": _NETWORK_KEYS | _WEBSOCKET_KEYS,
    "wss": _NETWORK_KEYS | _TLS_KEYS | _WEBSOCKET_KEYS,
    "unix": frozenset({"protocol", "kind", "path"}),
}
"""Which keys mean something for which kind of listener."""


def read_listeners(reader: Reader, content: Any, elsewhere: Mapping[str, str]) -> tuple[Listener, ...]:
    """The tables as they stand in the file; problems go to the reader."""
    found: dict[str, Listener] = {}
    for index, listener in enumerate(reader.tables("listener", content, Listener, elsewhere)):
        key = f"listener[{index}]"
        if listener is None or not _is_a_way(reader, key, listener):
            continue
        listener = _with_defaults(listener, content[index], reader)
        _check_listener(reader, key, listener, content[index].keys())
        for other_key, other in found.items():
            if _collide(listener, other):
                what = "path" if listener.kind == "unix" else "port"
                reader.problem(
                    f"{key}.{what}", f"{listener.url} is taken by {other_key}; choose another {what}"
                )
        found[key] = listener
    return tuple(found.values())


def with_flags(listeners: Sequence[Listener], flags: Flags) -> tuple[Listener, ...]:
    """Raises `ConfigError` if two would listen at the same place."""
    changed = [each for each in listeners if flags.only in (None, each.protocol)]
    for (protocol, kind), way in WAYS.items():
        port: int | None = getattr(flags, way.flag) if way.flag else None
        if port is not None:
            _set_port(changed, protocol, kind, port)
    if flags.host is not None:
        changed = [
            each if each.kind == "unix" else msgspec.structs.replace(each, host=flags.host) for each in changed
        ]
    for index, listener in enumerate(changed):
        if any(_collide(listener, other) for other in changed[:index]):
            raise ConfigError(f"command line: two listeners at {listener.url}; choose another port")
    return tuple(changed)


def _is_a_way(reader: Reader, key: str, listener: Listener) -> bool:
    if (listener.protocol, listener.kind) in WAYS:
        return True
    kinds = [f'"{kind}"' for protocol, kind in WAYS if protocol == listener.protocol]
    protocols = [f'"{protocol}"' for protocol, kind in WAYS if kind == listener.kind]
    reader.problem(
        f"{key}.kind",
        f'there is no protocol = "{listener.protocol}" over kind = "{listener.kind}";'
        f" choose kind = {' or '.join(kinds)}, or protocol = {' or '.join(protocols)}",
    )
    return False


def _with_defaults(listener: Listener, given: Mapping[str, object], reader: Reader) -> Listener:
    changes: dict[str, Any] = {}
    if "port" not in given:
        changes["port"] = WAYS[listener.protocol, listener.kind].default_port
    if listener.is_websocket and "path" not in given:
        changes["path"] = DEFAULT_WEBSOCKET_PATH
    if listener.kind == "unix" and listener.path:
        changes["path"] = str(reader.resolved(listener.path))
    return msgspec.structs.replace(listener, **changes)


def _check_listener(reader: Reader, key: str, listener: Listener, given: Collection[str]) -> None:
    kind = listener.kind
    for name in sorted(set(given) - LISTENER_KEYS[kind]):
        kinds = [f'"{other}"' for other, keys in LISTENER_KEYS.items() if name in keys]
        reader.problem(
            f"{key}.{name}",
            f'means nothing for kind = "{kind}"; remove it, or choose kind = {" or ".join(kinds)}',
        )
    if "host" in given and not listener.host.strip():
        reader.problem(f"{key}.host", 'is empty; give an address, or "0.0.0.0" for every interface')
    if kind == "unix" and not 0 < len(listener.path.encode()) <= 107:
        reader.problem(f"{key}.path", "give the socket's file, a path of at most 107 bytes")
    if listener.is_websocket and not re.fullmatch(r"/[!-~]*", listener.path):
        reader.problem(f"{key}.path", f'expected an HTTP path such as "{DEFAULT_WEBSOCKET_PATH}"')
    for origin in listener.allowed_origins:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/A-Z]+|null", origin):
            reader.problem(
                f"{key}.allowed_origins",
                f'{origin!r} is no origin; write it as browsers do, such as "https://example.org"',
            )
    if listener.is_encrypted:
        _check_tls(reader, key, listener)


def _check_tls(reader: Reader, key: str, listener: Listener) -> None:
    for name in ("certificate", "private_key"):
        if getattr(listener, name) is None:
            reader.problem(
                f"{key}.{name}", f'is missing; kind = "{listener.kind}" needs a certificate and its private key'
            )
    if listener.require_client_certificate and listener.client_ca is None:
        reader.problem(
            f"{key}.client_ca", "is missing; require_client_certificate needs the authorities to trust"
        )
    for name in ("certificate", "private_key", "client_ca"):
        check_readable(reader, f"{key}.{name}", getattr(listener, name))


def _collide(one: Listener, other: Listener) -> bool:
    if "unix" in (one.kind, other.kind):
        return one.kind == other.kind and one.path == other.path
    # `::` takes IPv6 only: asyncio asks for that.
    same_host = one.host == other.host or any(
        first.host == "0.0.0.0" and ":" not in second.host for first, second in ((one, other), (other, one))
    )
    return one.port == other.port != 0 and same_host


def _set_port(listeners: list[Listener], protocol: ListenerProtocol, kind: ListenerKind, port: int) -> None:
    for index, listener in enumerate(listeners):
        if (listener.protocol, listener.kind) == (protocol, kind):
            listeners[index] = msgspec.structs.replace(listener, port=port)
            return
    path = DEFAULT_WEBSOCKET_PATH if kind == "websocket" else ""
    listeners.append(Listener(protocol=protocol, kind=kind, port=port, path=path))
