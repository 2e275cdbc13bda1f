"""The configuration as values: every key, its type, its default and how far it may go.

`load` reads a TOML file, lays the command line's flags over it and checks the whole; it prints
nothing and touches nothing. Each problem becomes one line that names the file, the key, what is
wrong and what would be right; all problems of a file are told at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from polybus.broker.limits import Limits
from polybus.broker.services import ServiceRule
from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.mesh.address import is_local, parse_address
from polybus.ops.listeners import DEFAULT_LISTENERS, Flags, Listener, read_listeners, with_flags
from polybus.ops.streams import Http, read_streams
from polybus.ops.tables import Reader, check_readable, read_toml
from polybus.store.state import Sync
from polybus.store.streams.rule import StreamRule

T = TypeVar("T", bound=msgspec.Struct)

LogLevel: TypeAlias = Literal["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE"]
LogFormat: TypeAlias = Literal["text", "json"]
SharedStrategy: TypeAlias = Literal["round_robin", "random", "sticky", "fewest_in_flight"]
QueueFull: TypeAlias = Literal["drop_newest", "drop_oldest"]
Bulk: TypeAlias = Literal["adaptive", "fixed", "off"]
ServiceStrategy: TypeAlias = Literal["first_free", "round_robin", "random", "fastest"]


class Server(msgspec.Struct, frozen=True):
    data_dir: Path | None = None
    """Where durable state is kept (OP-01). None: nowhere, all is in memory."""
    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"
    log_file: Path | None = None
    """None: standard error."""
    event_file: Path | None = None
    """Every event of `broker.events`, as JSON lines, whatever the log level. None: nowhere."""


class Store(msgspec.Struct, frozen=True):
    sync: Sync = "normal"
    """What an acknowledgement promises to survive: the end of the process, or of the power."""


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


class Tbus(msgspec.Struct, frozen=True):
    bulk: Bulk = "adaptive"
    """How messages to a client that takes bulks are gathered: as they come, by the document's window, never."""
    server_reference: str = ""
    """Other brokers as `ip:port;ip:port`, named to clients that are refused because this one is full."""


class Mesh(msgspec.Struct, frozen=True):
    enabled: bool = True
    """Other brokers may call this one, and it calls others (TB-15)."""
    neighbors: tuple[str, ...] = ()
    """Brokers to call, as `ip:port`; those they know are called too."""
    address: str = ""
    """`ip:port` where other brokers call this one, and its id among them. Empty: that of the TBus listener."""
    token: str = ""
    """What brokers show each other. Without one, only brokers on this machine are let in."""
    max_neighbors: int = 64
    keep_s: float = 24 * 3600.0
    """How long what is for a neighbour that is gone is kept, and it is called."""
    keep_alive_s: int = 30


class Requests(msgspec.Struct, frozen=True):
    timeout_s: float = 60.0
    """The life of a request that names no timeout."""
    strategy: ServiceStrategy = "first_free"
    concurrency: int = 1
    """Requests an instance of a service has at once, if it does not say so itself."""
    answer_within_s: float = 0.0
    """How long an instance has before another one gets the request; 0: as long as the request lives."""

    def default_rule(self) -> ServiceRule:
        """What holds for requests that no `[[service]]` is about."""
        return ServiceRule("#", self.strategy, self.concurrency, self.answer_within_s)


class Service(msgspec.Struct, frozen=True):
    """None: as `[requests]` has it."""

    filter: str
    strategy: ServiceStrategy | None = None
    concurrency: int | None = None
    answer_within_s: float | None = None

    def rule(self, requests: Requests) -> ServiceRule:
        return ServiceRule(
            self.filter,
            requests.strategy if self.strategy is None else self.strategy,
            requests.concurrency if self.concurrency is None else self.concurrency,
            requests.answer_within_s if self.answer_within_s is None else self.answer_within_s,
        )


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


class Overrides(Flags, frozen=True):
    """What the command line says; None: nothing."""

    data_dir: Path | None = None
    default_data_dir: Path | None = None
    """Where durable state is kept if nobody says so."""
    memory: bool = False
    """Nowhere, whatever the file says."""
    log_level: LogLevel | None = None
    log_format: LogFormat | None = None
    connections: int | None = None
    """Instead of `limits.connections`."""
    neighbor: str | None = None
    """One more of `mesh.neighbors`."""


class Config(msgspec.Struct, frozen=True):
    server: Server = Server()
    listeners: tuple[Listener, ...] = msgspec.field(default=DEFAULT_LISTENERS, name="listener")
    store: Store = Store()
    limits: Limits = Limits()
    mqtt: Mqtt = Mqtt()
    tbus: Tbus = Tbus()
    mesh: Mesh = Mesh()
    requests: Requests = Requests()
    services: tuple[Service, ...] = msgspec.field(default=(), name="service")
    auth: Auth = Auth()
    acl: tuple[AclRule, ...] = ()
    """The rules in force, from the configuration or from `auth.acl_file`."""
    streams: tuple[StreamRule, ...] = msgspec.field(default=(), name="stream")
    http: Http = Http()
    source: Path | None = None
    """The file all this came from, for `reload`; not a key."""
    overrides: Overrides = Overrides()
    """The flags laid over it, for `reload`; not a key."""

    @property
    def serves_http(self) -> bool:
        return self.http.enabled and bool(self.streams)

    def service_rules(self) -> tuple[ServiceRule, ...]:
        """In the order of the file: the first whose filter matches a request's topic holds."""
        return tuple(service.rule(self.requests) for service in self.services)


_DAY_S: Final = 24 * 3600
_TIB: Final = 1024**4
_U16: Final = 0xFFFF
_U32: Final = 0xFFFF_FFFF

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "listener.port": (0, _U16),
    "limits.connections": (1, 10_000_000),
    "limits.sessions": (1, 1_000_000_000),
    "limits.connect_timeout_s": (0.1, 3600),
    # What every server has to take (MQTT-3.1.3-5), and what can be said.
    "limits.client_id_bytes": (23, _U16),
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
    "limits.stored_messages": (0, 1_000_000_000),
    "limits.stored_bytes": (0, _TIB),
    "limits.requests": (1, 1_000_000_000),
    # A TBus client tells its requests apart by a PacketId of 16 bits.
    "limits.requests_per_client": (1, _U16),
    "limits.request_timeout_s": (1, _U32),
    "limits.request_ends_kept_s": (0, _U32),
    "limits.memory_bytes": (1024 * 1024, _TIB),
    "mqtt.sys_interval_s": (0, _DAY_S),
    "mesh.max_neighbors": (0, 1000),
    "mesh.keep_s": (1, _U32),
    "mesh.keep_alive_s": (1, _U16),
    # As far as TBus's Timeout and MQTT's Message Expiry Interval go.
    "requests.timeout_s": (0.1, _U32),
    "requests.concurrency": (1, _U16),
    "requests.answer_within_s": (0, _U32),
    "service.concurrency": (1, _U16),
    "service.answer_within_s": (0, _U32),
    "stream.partitions": (1, 1024),
    "stream.max_age_s": (0, _U32),
    "stream.max_bytes": (0, 1024 * _TIB),
    "stream.segment_bytes": (4096, 1024**3),
    "stream.segment_age_s": (0, _U32),
    "http.port": (0, _U16),
}
"""How far each number may go, both ends included."""

NEEDS_RESTART: Final = (
    "server.data_dir",
    "listener",
    "store.sync",
    "stream",
    "mesh.enabled",
    "mesh.neighbors",
    "mesh.address",
    "mesh.token",
    "mesh.max_neighbors",
    "mesh.keep_s",
    "mesh.keep_alive_s",
    "http.enabled",
    "http.host",
    "http.port",
)
"""Keys and sections that a running server cannot take over; all else is taken over on SIGHUP."""

SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "server": Server,
    "store": Store,
    "listener": Listener,
    "limits": Limits,
    "mqtt": Mqtt,
    "tbus": Tbus,
    "mesh": Mesh,
    "requests": Requests,
    "service": Service,
    "auth": Auth,
    "acl": AclRule,
    "stream": StreamRule,
    "http": Http,
}
_ELSEWHERE: Final[Mapping[str, str]] = {
    field.encode_name: f"{section}.{field.encode_name}"
    for section, struct in SECTIONS.items()
    for field in msgspec.structs.fields(struct)
}


def load(path: Path | None, overrides: Overrides = Overrides()) -> Config:  # noqa: B008 (frozen)
    """Read `path` (None: nothing but defaults) and lay `overrides` over it. Raises `ConfigError`."""
    document = read_toml(path) if path else {}
    reader = Reader(str(path or "defaults"), path.parent if path else Path(), RANGES)
    for name in document:
        if name not in SECTIONS:
            reader.unknown(name, name, SECTIONS, _ELSEWHERE)

    server = _with_flags(_section(reader, document, "server", Server), overrides)
    limits = _limits_with_flags(_section(reader, document, "limits", Limits), overrides)
    store = _section(reader, document, "store", Store)
    mqtt = _section(reader, document, "mqtt", Mqtt)
    tbus = _section(reader, document, "tbus", Tbus)
    mesh = _mesh_with_flags(_section(reader, document, "mesh", Mesh), overrides)
    requests = _section(reader, document, "requests", Requests)
    auth = _section(reader, document, "auth", Auth)
    listeners = read_listeners(reader, document.get("listener", []), _ELSEWHERE)
    services = _read_services(reader, document.get("service", []))
    streams = read_streams(reader, document.get("stream", []), _ELSEWHERE)
    http = _section(reader, document, "http", Http)
    acl = _read_acl(reader, document.get("acl", []))
    if auth.acl_file and "acl" in document:
        reader.problem("auth.acl_file", "there are [[acl]] rules here too; keep the rules in one place")
    _check_server(reader, server, overrides)
    if streams and not server.data_dir:
        reader.problem("server.data_dir", 'is missing; streams need a folder to be kept in, such as "data"')
    _check_limits(reader, limits)
    _check_mqtt(reader, mqtt)
    _check_tbus(reader, tbus)
    _check_mesh(reader, mesh)
    _check_auth(reader, auth)
    reader.finish()

    if auth.acl_file:
        acl = _read_acl_file(auth.acl_file)
    return Config(
        server=server,
        listeners=with_flags(listeners or DEFAULT_LISTENERS, overrides),
        store=store,
        limits=limits,
        mqtt=mqtt,
        tbus=tbus,
        mesh=mesh,
        requests=requests,
        services=services,
        auth=auth,
        acl=acl,
        streams=streams,
        http=http,
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


def _with_flags(server: Server, flags: Overrides) -> Server:
    wanted = {"data_dir": flags.data_dir, "log_level": flags.log_level, "log_format": flags.log_format}
    given = {name: value for name, value in wanted.items() if value is not None}
    server = msgspec.structs.replace(server, **given)
    if flags.memory:
        return msgspec.structs.replace(server, data_dir=None)
    return msgspec.structs.replace(server, data_dir=server.data_dir or flags.default_data_dir)


def _limits_with_flags(limits: Limits, flags: Overrides) -> Limits:
    if flags.connections is None:
        return limits
    return msgspec.structs.replace(limits, connections=flags.connections)


def _mesh_with_flags(mesh: Mesh, flags: Overrides) -> Mesh:
    if flags.neighbor is None:
        return mesh
    return msgspec.structs.replace(mesh, neighbors=(*mesh.neighbors, flags.neighbor))


def _check_server(reader: Reader, server: Server, flags: Overrides) -> None:
    if server.data_dir and server.data_dir.exists() and not server.data_dir.is_dir():
        key = "--data-dir" if flags.data_dir else "server.data_dir"
        reader.problem(key, f"{server.data_dir} is not a folder; name another or move that file")
    for name in ("log_file", "event_file"):
        file: Path | None = getattr(server, name)
        if file and not file.parent.is_dir():
            reader.problem(f"server.{name}", f"there is no folder {file.parent}; create it first")
    if server.event_file and server.event_file == server.log_file:
        reader.problem("server.event_file", "is server.log_file too; give each a file of its own")


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


def _check_tbus(reader: Reader, tbus: Tbus) -> None:
    for place in tbus.server_reference.split(";") if tbus.server_reference else ():
        if parse_address(place) is None:
            reader.problem(
                "tbus.server_reference",
                f'{place!r} is not ip:port; name other brokers as "10.0.0.2:5035;10.0.0.3:5035"'
                ' (IPv6 as "[::1]:5035")',
            )


def _check_mesh(reader: Reader, mesh: Mesh) -> None:
    places = [("mesh.neighbors", place) for place in mesh.neighbors]
    places += [("mesh.address", mesh.address)] if mesh.address else []
    for key, place in places:
        if parse_address(place) is None:
            reader.problem(key, f'{place!r} is not ip:port, such as "10.0.0.2:5035" or "[::1]:5035"')
    if len(mesh.neighbors) > mesh.max_neighbors:
        reader.problem("mesh.neighbors", f"are more than mesh.max_neighbors ({mesh.max_neighbors}); raise it")
    if mesh.neighbors and not mesh.enabled:
        reader.problem("mesh.enabled", "is false, but there are mesh.neighbors; choose one")
    if not mesh.token and not all(is_local(place) for place in mesh.neighbors if parse_address(place)):
        reader.problem(
            "mesh.token",
            "is missing; brokers on other machines are let in only with one, the same at each broker",
        )
    if len(mesh.token.encode()) > _U16:
        reader.problem("mesh.token", f"is longer than {_U16} bytes; shorten it")


def _check_auth(reader: Reader, auth: Auth) -> None:
    check_readable(reader, "auth.password_file", auth.password_file)
    if not (auth.anonymous_is_welcome or auth.password_file or auth.use_certificate_name):
        reader.problem(
            "auth.allow_anonymous",
            "is false and there is no other way in; give password_file or use_certificate_name = true",
        )


def _read_services(reader: Reader, content: Any) -> tuple[Service, ...]:
    services: list[Service] = []
    for index, service in enumerate(reader.tables("service", content, Service, _ELSEWHERE)):
        if service is None:
            continue
        key = f"service[{index}].filter"
        _check_filter(reader, key, service.filter)
        if any(service.filter == other.filter for other in services):
            reader.problem(key, "an earlier [[service]] has this filter, and the first holds; remove one")
        services.append(service)
    return tuple(services)


def _read_acl(reader: Reader, content: Any) -> tuple[AclRule, ...]:
    rules = []
    for index, rule in enumerate(reader.tables("acl", content, AclRule, _ELSEWHERE)):
        if rule is None:
            continue
        _check_filter(reader, f"acl[{index}].topic", rule.topic)
        rules.append(rule)
    return tuple(rules)


def _check_filter(reader: Reader, key: str, topic_filter: str) -> None:
    try:
        if parse_filter(topic_filter, max_levels=_U16).group is not None:
            raise InvalidTopic("a rule names the filter itself, without $share/<name>/")
    except InvalidTopic as error:
        reader.problem(key, str(error))


def _read_acl_file(path: Path) -> tuple[AclRule, ...]:
    document = read_toml(path)
    reader = Reader(str(path), path.parent, RANGES)
    for name in sorted(document.keys() - {"acl"}):
        reader.problem(name, "unknown key; this file holds only [[acl]] rules")
    rules = _read_acl(reader, document.get("acl", []))
    reader.finish()
    return rules
