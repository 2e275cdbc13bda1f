"""The configuration as values: every key, its type, its default and how far it may go.

`load` reads a TOML file, lays the command line's flags over it and checks the whole; it prints
nothing and touches nothing. Each problem becomes one line that names the file, the key, what is
wrong and what would be right; all problems of a file are told at once.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from polybus.broker.limits import Limits
from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.errors import ConfigError
from polybus.ops.tables import Reader, read_toml, reason_of

T = TypeVar("T", bound=msgspec.Struct)

LogLevel: TypeAlias = Literal["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE"]
LogFormat: TypeAlias = Literal["text", "json"]
ListenerKind: TypeAlias = Literal["tcp", "tls", "websocket", "wss", "unix"]
SharedStrategy: TypeAlias = Literal["round_robin", "random", "sticky", "fewest_in_flight"]
QueueFull: TypeAlias = Literal["drop_newest", "drop_oldest"]


class Server(msgspec.Struct, frozen=True):
    data_dir: Path | None = None
    """Where durable state will be kept; until there is a durable store, nothing is written there."""
    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"
    log_file: Path | None = None
    """None: standard error."""


class Listener(msgspec.Struct, frozen=True):
    """`load` has filled in the port and path that its kind implies."""

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
        if self.kind == "unix":
            return f"mqtt+unix://{quote(os.path.abspath(self.path))}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{URL_SCHEMES[self.kind]}://{host}:{self.port}{self.path}"


class Mqtt(msgspec.Struct, frozen=True):
    shared_strategy: SharedStrategy = "round_robin"
    queue_full: QueueFull = "drop_newest"
    queue_qos0: bool = False
    """Keep QoS 0 messages for a session whose client is away."""
    allow_zero_length_client_id: bool = True
    sys_interval_s: float = 10.0
    """Between two updates of the `$SYS` topics; 0: none."""
    response_information: str = ""
    """Told to MQTT 5.0 clients that ask for it: a topic prefix for their answers. Empty: not told."""
    server_reference: str = ""
    """Another server, named to MQTT 5.0 clients that are refused because this one is full."""


class Auth(msgspec.Struct, frozen=True):
    allow_anonymous: bool | None = None
    """None: only while there is no `password_file`."""
    password_file: Path | None = None
    use_certificate_name: bool = False
    """A verified client certificate's common name is the user; no password is asked for."""
    acl_file: Path | None = None
    """A TOML file of `[[acl]]` rules, instead of rules in the configuration itself."""
    acl_default: Literal["allow", "deny"] = "deny"
    """What holds where no rule matches. Without any rules everything is allowed."""

    @property
    def anonymous_is_welcome(self) -> bool:
        if self.allow_anonymous is None:
            return self.password_file is None and not self.use_certificate_name
        return self.allow_anonymous


class AclRule(msgspec.Struct, frozen=True):
    topic: str
    """A topic filter; `%u` stands for the user, `%c` for the client id."""
    user: str | None = None
    """A pattern with `*` and `?` for names of users that logged in. None: anyone, anonymous too."""
    client: str | None = None
    """A pattern with `*` and `?` for client ids."""
    action: Literal["publish", "subscribe", "both"] = "both"
    permission: Literal["allow", "deny"] = "allow"


class Overrides(msgspec.Struct, frozen=True):
    """What the command line says; None: nothing."""

    host: str | None = None
    """Of every network listener."""
    mqtt_port: int | None = None
    """Of the first TCP listener; one is added if there is none."""
    ws_port: int | None = None
    """Of the first WebSocket listener; one is added if there is none."""
    data_dir: Path | None = None
    log_level: LogLevel | None = None
    log_format: LogFormat | None = None


class Config(msgspec.Struct, frozen=True):
    server: Server = Server()
    listeners: tuple[Listener, ...] = msgspec.field(default=(Listener(port=1883),), name="listener")
    limits: Limits = Limits()
    mqtt: Mqtt = Mqtt()
    auth: Auth = Auth()
    acl: tuple[AclRule, ...] = ()
    """The rules in force, from the configuration or from `auth.acl_file`."""
    source: Path | None = None
    """The file all this came from, for `reload`; not a key."""
    overrides: Overrides = Overrides()
    """The flags laid over it, for `reload`; not a key."""


URL_SCHEMES: Final[Mapping[str, str]] = {"tcp": "mqtt", "tls": "mqtts", "websocket": "ws", "wss": "wss"}
DEFAULT_PORTS: Final[Mapping[str, int]] = {"tcp": 1883, "tls": 8883, "websocket": 8083, "wss": 8084}
DEFAULT_WEBSOCKET_PATH: Final = "/mqtt"

_DAY_S: Final = 24 * 3600
_TIB: Final = 1024**4
_U16: Final = 0xFFFF
_U32: Final = 0xFFFF_FFFF

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "listener.port": (0, _U16),
    "limits.connections": (1, 10_000_000),
    "limits.sessions": (1, 1_000_000_000),
    "limits.connect_timeout_s": (0.1, 3600),
    # The largest packet MQTT can express: a fixed header and a remaining length of four bytes.
    "limits.packet_size_bytes": (128, 268_435_460),
    "limits.topic_levels": (1, _U16),
    "limits.topic_bytes": (1, _U16),
    "limits.subscriptions_per_session": (1, 1_000_000_000),
    "limits.session_expiry_s": (0, _U32),
    "limits.keep_alive_s": (0, _U16),
    "limits.receive_maximum": (1, _U16),
    "limits.inflight_per_session": (1, _U16),
    "limits.inflight_bytes_per_session": (1024, _TIB),
    "limits.topic_alias_maximum": (0, _U16),
    "limits.queued_messages_per_session": (1, 1_000_000_000),
    "limits.queued_bytes_per_session": (1024, _TIB),
    "limits.outbox_bytes_per_connection": (1024, _TIB),
    "limits.retained_messages": (0, 1_000_000_000),
    "limits.retained_bytes": (0, _TIB),
    "limits.publish_rate_per_client": (0, 1_000_000_000),
    "limits.memory_bytes": (1024 * 1024, _TIB),
    "mqtt.sys_interval_s": (0, _DAY_S),
}
"""How far each number may go, both ends included."""

NEEDS_RESTART: Final = ("server.data_dir", "listener")
"""Keys and sections that a running server cannot take over; all else is taken over on SIGHUP."""

SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "server": Server,
    "listener": Listener,
    "limits": Limits,
    "mqtt": Mqtt,
    "auth": Auth,
    "acl": AclRule,
}
_ELSEWHERE: Final[Mapping[str, str]] = {
    field.encode_name: f"{section}.{field.encode_name}"
    for section, struct in SECTIONS.items()
    for field in msgspec.structs.fields(struct)
}

_NETWORK_KEYS: Final = frozenset({"kind", "host", "port"})
_TLS_KEYS: Final = frozenset({"certificate", "private_key", "client_ca", "require_client_certificate"})
_WEBSOCKET_KEYS: Final = frozenset({"path", "allowed_origins"})
LISTENER_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "tcp": _NETWORK_KEYS,
    "tls": _NETWORK_KEYS | _TLS_KEYS,
    "websocket": _NETWORK_KEYS | _WEBSOCKET_KEYS,
    "wss": _NETWORK_KEYS | _TLS_KEYS | _WEBSOCKET_KEYS,
    "unix": frozenset({"kind", "path"}),
}
"""Which keys mean something for which kind of listener."""


def load(path: Path | None, overrides: Overrides = Overrides()) -> Config:  # noqa: B008 (frozen)
    """Read `path` (None: nothing but defaults) and lay `overrides` over it. Raises `ConfigError`."""
    document = read_toml(path) if path else {}
    reader = Reader(str(path or "defaults"), path.parent if path else Path(), RANGES)
    for name in document:
        if name not in SECTIONS:
            reader.unknown(name, name, SECTIONS, _ELSEWHERE)

    server = _with_flags(_section(reader, document, "server", Server), overrides)
    limits = _section(reader, document, "limits", Limits)
    mqtt = _section(reader, document, "mqtt", Mqtt)
    auth = _section(reader, document, "auth", Auth)
    listeners = _read_listeners(reader, document.get("listener", []))
    acl = _read_acl(reader, document.get("acl", []))
    if auth.acl_file and "acl" in document:
        reader.problem("auth.acl_file", "there are [[acl]] rules here too; keep the rules in one place")
    _check_server(reader, server, overrides)
    _check_limits(reader, limits)
    _check_mqtt(reader, mqtt)
    _check_auth(reader, auth)
    reader.finish()

    if auth.acl_file:
        acl = _read_acl_file(auth.acl_file)
    return Config(
        server=server,
        listeners=_listeners_with_flags(list(listeners or Config().listeners), overrides),
        limits=limits,
        mqtt=mqtt,
        auth=auth,
        acl=acl,
        source=path,
        overrides=overrides,
    )


def reload(config: Config) -> Config:
    """Read anew what `config` was read from. Raises `ConfigError`."""
    return load(config.source, config.overrides)


def reloadable_difference(old: Config, new: Config) -> list[str]:
    """The keys in which `new` differs from `old` and that need a restart."""
    before, after = flatten(old), flatten(new)
    changed = [key for key in before | after if before.get(key) != after.get(key)]
    return [key for key in changed if key in NEEDS_RESTART or key.split("[")[0] in NEEDS_RESTART]


def flatten(config: Config) -> dict[str, object]:
    """Every value by its key path, for example ``limits.packet_size_bytes`` or ``listener[1].port``."""
    values: dict[str, object] = {}
    for key, tables in _sections(config).items():
        for index, table in enumerate(tables if isinstance(tables, tuple) else (tables,)):
            prefix = f"{key}[{index}]" if isinstance(tables, tuple) else key
            values |= {f"{prefix}.{name}": value for name, value in msgspec.structs.asdict(table).items()}
    return values


def _sections(config: Config) -> dict[str, msgspec.Struct | tuple[msgspec.Struct, ...]]:
    """The sections of the file, by the name they have there."""
    by_name = {field.encode_name: field.name for field in msgspec.structs.fields(Config)}
    return {key: getattr(config, by_name[key]) for key in SECTIONS}


def _section(reader: Reader, document: Mapping[str, Any], key: str, struct: type[T]) -> T:
    return reader.table(key, document.get(key, {}), struct, _ELSEWHERE) or struct()


def _read_listeners(reader: Reader, content: Any) -> tuple[Listener, ...]:
    found: dict[str, Listener] = {}
    for index, listener in enumerate(reader.tables("listener", content, Listener, _ELSEWHERE)):
        key = f"listener[{index}]"
        if listener is None:
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


def _with_defaults(listener: Listener, given: Mapping[str, object], reader: Reader) -> Listener:
    changes: dict[str, Any] = {}
    if listener.kind in DEFAULT_PORTS and "port" not in given:
        changes["port"] = DEFAULT_PORTS[listener.kind]
    if listener.is_websocket and "path" not in given:
        changes["path"] = DEFAULT_WEBSOCKET_PATH
    if listener.kind == "unix" and listener.path:
        changes["path"] = str(reader.resolved(listener.path))
    return msgspec.structs.replace(listener, **changes)


def _check_listener(reader: Reader, key: str, listener: Listener, given: Any) -> None:
    kind = listener.kind
    for name in sorted(given - LISTENER_KEYS[kind]):
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
    if not listener.is_encrypted:
        return
    for name in ("certificate", "private_key"):
        if getattr(listener, name) is None:
            reader.problem(
                f"{key}.{name}", f'is missing; kind = "{kind}" needs a certificate and its private key'
            )
    if listener.require_client_certificate and listener.client_ca is None:
        reader.problem(
            f"{key}.client_ca", "is missing; require_client_certificate needs the authorities to trust"
        )
    for name in ("certificate", "private_key", "client_ca"):
        _check_readable(reader, f"{key}.{name}", getattr(listener, name))


def _collide(one: Listener, other: Listener) -> bool:
    if "unix" in (one.kind, other.kind):
        return one.kind == other.kind and one.path == other.path
    # `::` takes IPv6 only: asyncio asks for that.
    same_host = one.host == other.host or any(
        first.host == "0.0.0.0" and ":" not in second.host for first, second in ((one, other), (other, one))
    )
    return one.port == other.port != 0 and same_host


def _with_flags(server: Server, flags: Overrides) -> Server:
    wanted = {"data_dir": flags.data_dir, "log_level": flags.log_level, "log_format": flags.log_format}
    given = {name: value for name, value in wanted.items() if value is not None}
    return msgspec.structs.replace(server, **given)


def _check_server(reader: Reader, server: Server, flags: Overrides) -> None:
    if server.data_dir and server.data_dir.exists() and not server.data_dir.is_dir():
        key = "--data-dir" if flags.data_dir else "server.data_dir"
        reader.problem(key, f"{server.data_dir} is not a folder; name another or move that file")
    if server.log_file and not server.log_file.parent.is_dir():
        reader.problem("server.log_file", f"there is no folder {server.log_file.parent}; create it first")


def _check_limits(reader: Reader, limits: Limits) -> None:
    if limits.memory_bytes < limits.packet_size_bytes:
        reader.problem(
            "limits.memory_bytes",
            f"is less than limits.packet_size_bytes ({limits.packet_size_bytes}), so that a packet"
            " that is allowed would not fit; raise the one or lower the other",
        )


def _check_mqtt(reader: Reader, mqtt: Mqtt) -> None:
    for name in ("response_information", "server_reference"):
        text: str = getattr(mqtt, name)
        if "\0" in text or len(text.encode()) > _U16:
            reader.problem(f"mqtt.{name}", f"MQTT can carry at most {_U16} bytes, without U+0000; shorten it")


def _check_auth(reader: Reader, auth: Auth) -> None:
    _check_readable(reader, "auth.password_file", auth.password_file)
    if not (auth.anonymous_is_welcome or auth.password_file or auth.use_certificate_name):
        reader.problem(
            "auth.allow_anonymous",
            "is false and there is no other way in; give password_file or use_certificate_name = true",
        )


def _check_readable(reader: Reader, key: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        reader.problem(key, f"{path} cannot be read: {reason_of(error)}")


def _read_acl(reader: Reader, content: Any) -> tuple[AclRule, ...]:
    rules = []
    for index, rule in enumerate(reader.tables("acl", content, AclRule, _ELSEWHERE)):
        if rule is None:
            continue
        try:
            if parse_filter(rule.topic, max_levels=_U16).group is not None:
                raise InvalidTopic("a rule names the filter itself, without $share/<name>/")
        except InvalidTopic as error:
            reader.problem(f"acl[{index}].topic", str(error))
        rules.append(rule)
    return tuple(rules)


def _read_acl_file(path: Path) -> tuple[AclRule, ...]:
    document = read_toml(path)
    reader = Reader(str(path), path.parent, RANGES)
    for name in sorted(document.keys() - {"acl"}):
        reader.problem(name, "unknown key; this file holds only [[acl]] rules")
    rules = _read_acl(reader, document.get("acl", []))
    reader.finish()
    return rules


def _listeners_with_flags(listeners: list[Listener], flags: Overrides) -> tuple[Listener, ...]:
    _set_port(listeners, "tcp", flags.mqtt_port)
    _set_port(listeners, "websocket", flags.ws_port)
    if flags.host is not None:
        listeners = [
            each if each.kind == "unix" else msgspec.structs.replace(each, host=flags.host)
            for each in listeners
        ]
    for index, listener in enumerate(listeners):
        if any(_collide(listener, other) for other in listeners[:index]):
            raise ConfigError(f"command line: two listeners at {listener.url}; choose another port")
    return tuple(listeners)


def _set_port(listeners: list[Listener], kind: ListenerKind, port: int | None) -> None:
    if port is None:
        return
    for index, listener in enumerate(listeners):
        if listener.kind == kind:
            listeners[index] = msgspec.structs.replace(listener, port=port)
            return
    path = DEFAULT_WEBSOCKET_PATH if kind == "websocket" else ""
    listeners.append(Listener(kind=kind, port=port, path=path))
