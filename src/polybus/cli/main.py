"""The command `polybus`: starts the bus, checks its configuration, keeps its password file.

Errors that a user can mend go to standard error as one line each, never as a traceback.
"""

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import tomli_w
import typer

import polybus
from polybus.broker.limits import Limits
from polybus.cli import control, fleet, messages, pipeline, requests, stream
from polybus.errors import PolybusError, UsageError
from polybus.mesh.address import broker_id, parse_address
from polybus.ops.access import build_access
from polybus.ops.config import RANGES, Config, LogFormat, LogLevel, Overrides, load
from polybus.ops.listeners import LISTENER_KEYS
from polybus.ops.passwords import set_password
from polybus.ops.tls import server_context

EXIT_FAILED = 1
EXIT_USAGE = 2
DEFAULT_DATA_DIR = Path("data")
"""In the working folder: durable without being asked for."""

app = typer.Typer(
    name="polybus",
    help="One message bus for many protocols.",
    epilog="Start with: [bold]polybus serve[/bold]",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Check or show the configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file; without it, defaults.")
]
HostOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address of every network listener. (default: 127.0.0.1)")
]
MqttPortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port for MQTT over TCP; 0: any. (default: 1883)")
]
WsPortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port for MQTT over WebSocket; 0: any. (default: none)")
]
TbusPortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port for TBus over TCP; 0: any. (default: 5035)")
]
DataDirOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where durable state is kept. (default: data)")
]
MemoryOption = Annotated[bool, typer.Option("--memory", help="Keep nothing: all state ends with the process.")]
NeighborIpOption = Annotated[
    str | None,
    typer.Option(
        "--neighbor-ip", metavar="ADDRESS", help="IP address of another bus to make one network with."
    ),
]
NeighborPortOption = Annotated[
    int | None, typer.Option("--neighbor-port", min=1, max=65535, help="Its port for TBus; both or none.")
]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option(case_sensitive=False, help="How much is logged. (default: INFO)")
]
LogFormatOption = Annotated[
    LogFormat | None, typer.Option(case_sensitive=False, help="Lines for people or JSON. (default: text)")
]


@app.callback(invoke_without_command=True)
def polybus_command(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"polybus {polybus.__version__}")
        raise typer.Exit


@app.command()
def serve(
    config: ConfigOption = None,
    host: HostOption = None,
    mqtt_port: MqttPortOption = None,
    ws_port: WsPortOption = None,
    tbus_port: TbusPortOption = None,
    data_dir: DataDirOption = None,
    memory: MemoryOption = False,
    neighbor_ip: NeighborIpOption = None,
    neighbor_port: NeighborPortOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Start the bus and serve until it is told to stop (Ctrl-C or SIGTERM).

    SIGHUP reads the configuration anew; a bad one is refused and the running one stays.
    State that was acknowledged survives a crash: it is kept in the folder data, or the one you name.

    Examples:

    [green]polybus serve[/green]                                MQTT on 127.0.0.1:1883, TBus on 5035

    [green]polybus serve --host 0.0.0.0 --ws-port 8083[/green]  for everyone, and for browsers

    [green]polybus serve --config polybus.toml[/green]          TLS, passwords, limits: from a file
    """
    with errors_in_one_line():
        if memory and data_dir is not None:
            raise UsageError("--memory keeps nothing, and --data-dir says where; leave out one of them")
        settings = load(
            config,
            Overrides(
                host=host,
                mqtt_port=mqtt_port,
                ws_port=ws_port,
                tbus_port=tbus_port,
                data_dir=data_dir,
                default_data_dir=DEFAULT_DATA_DIR,
                memory=memory,
                neighbor=_neighbor(neighbor_ip, neighbor_port),
                log_level=log_level,
                log_format=log_format,
            ),
        )
        _serve(settings)


@app.command()
def tbus(
    ip: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any.")] = 5035,
    client_limit: Annotated[
        int | None,
        typer.Option(
            min=int(RANGES["limits.connections"][0]),
            max=int(RANGES["limits.connections"][1]),
            help=f"Clients connected at once. (default: {Limits().connections})",
        ),
    ] = None,
    neighbor_ip: NeighborIpOption = None,
    neighbor_port: NeighborPortOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Start a bus that speaks TBus only, with the flags that TBus's own broker has.

    Levels from everything to nothing: ALL and TRACE, DEBUG, INFO, WARN, ERROR, FATAL, NONE.
    TLS, passwords, MQTT beside TBus, and the rest: [green]polybus serve --config polybus.toml[/green]

    Examples:

    [green]polybus tbus[/green]                                     on 127.0.0.1:5035

    [green]polybus tbus --ip 0.0.0.0 --port 5040[/green]            for everyone

    [green]polybus tbus --client-limit 200 --log-level ALL[/green]  the 201st is refused; logs everything
    """
    with errors_in_one_line():
        overrides = Overrides(
            host=ip,
            tbus_port=port,
            only="tbus",
            connections=client_limit,
            neighbor=_neighbor(neighbor_ip, neighbor_port),
            log_level=log_level,
        )
        _serve(load(None, overrides))


def _neighbor(ip: str | None, port: int | None) -> str | None:
    """Raises UsageError."""
    if ip is None and port is None:
        return None
    if ip is None or port is None:
        missing = "--neighbor-ip" if ip is None else "--neighbor-port"
        raise UsageError(f"{missing} is missing; --neighbor-ip and --neighbor-port go together")
    address = broker_id(ip.strip("[]"), port)
    if parse_address(address) is None:
        raise UsageError(f"--neighbor-ip {ip!r} is not an IP address, such as 127.0.0.1")
    return address


def _serve(settings: Config) -> NoReturn:
    # Only what serves needs the event loop and the whole server.
    from polybus.net.server import run

    raise typer.Exit(run(settings))


@config_app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="TOML file; without it, defaults.")
    ] = None,
) -> None:
    """Say whether a configuration can be used, and what would listen where.

    Exits with 0 if it can, with 2 if not; then each problem is one line: file, key, what is
    wrong, what would be right.

    Example: [green]polybus config check polybus.toml[/green]
    """
    with errors_in_one_line():
        settings = load(file, Overrides(default_data_dir=DEFAULT_DATA_DIR))
        build_access(settings)
        for listener in settings.listeners:
            if listener.is_encrypted:
                server_context(listener)
    typer.echo(f"OK: {file or 'defaults'}")
    for line in summary(settings):
        typer.echo(f"  {line}")


@config_app.command()
def show(config: ConfigOption = None) -> None:
    """Print the configuration in force, defaults included, as TOML.

    Example: [green]polybus config show > polybus.toml[/green] is a file to start from.
    """
    with errors_in_one_line():
        settings = load(config)
    typer.echo(tomli_w.dumps(as_document(settings)), nl=False)


@app.command()
def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Password file; created if there is none.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user to add or change.")],
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from standard input.")] = False,
) -> None:
    """Set a user's password in a password file.

    The file holds Argon2 hashes, and only its owner may read it. Name it in the configuration as
    auth.password_file; a running bus takes changes over on SIGHUP.

    Examples:

    [green]polybus passwd users.txt alice[/green]            asks for the password

    [green]pass show bus | polybus passwd users.txt alice --stdin[/green]
    """
    with errors_in_one_line():
        if stdin:
            password = sys.stdin.readline().rstrip("\r\n")
        else:
            password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        is_new = set_password(file, user, password.encode(errors="surrogateescape"))
    typer.echo(f"{'Added' if is_new else 'Changed'} {user} in {file}")


messages.register(app)
requests.register(app)
stream.register(app)
control.register(app)
fleet.register(app)
pipeline.register(app)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Ends the command with a clear line for what its user can mend."""
    try:
        yield
    except (PolybusError, OSError) as error:
        for line in str(error).splitlines():
            typer.echo(f"polybus: {printable(line)}", err=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED) from error


def printable(line: str) -> str:
    """Whoever wrote it, a service perhaps, cannot steer the terminal."""
    return "".join(character for character in line if character.isprintable())


def summary(config: Config) -> list[str]:
    auth, server = config.auth, config.server
    ways_in = [
        *(["anonymous"] if auth.anonymous_is_welcome else []),
        *(["password"] if auth.password_file else []),
        *(["client certificate"] if auth.use_certificate_name else []),
    ]
    return [
        *(f"listens at {listener.url}" for listener in config.listeners),
        f"lets in: {', '.join(ways_in)}",
        f"access rules: {len(config.acl) or 'none, everything is allowed'}",
        *([f"services with rules of their own: {len(config.services)}"] if config.services else []),
        f"durable state: {f'in {server.data_dir}, sync {config.store.sync}' if server.data_dir else 'none'}",
        *([f"calls other brokers: {', '.join(config.mesh.neighbors)}"] if config.mesh.neighbors else []),
        *(f"stream {rule.name}: {', '.join(rule.filters)}" for rule in config.streams),
        *([f"HTTP at http://{config.http.host}:{config.http.port}"] if config.serves_http else []),
        f"log: {server.log_level} as {server.log_format} to {server.log_file or 'standard error'}",
        *([f"events: to {server.event_file}"] if server.event_file else []),
    ]


def as_document(config: Config) -> dict[str, Any]:
    """What a file would say to the same effect."""
    auth = msgspec.structs.replace(config.auth, allow_anonymous=config.auth.anonymous_is_welcome)
    if config.acl:
        auth = msgspec.structs.replace(auth, acl_file=None)  # its rules stand in the document itself
    return {
        "server": _as_table(config.server),
        "listener": [_as_table(each, LISTENER_KEYS[each.kind]) for each in config.listeners],
        "store": _as_table(config.store),
        "limits": _as_table(config.limits),
        "mqtt": _as_table(config.mqtt),
        "tbus": _as_table(config.tbus),
        "mesh": _as_table(msgspec.structs.replace(config.mesh, token="")),  # secret: it is not shown
        "requests": _as_table(config.requests),
        **({"service": [_as_table(service) for service in config.services]} if config.services else {}),
        "auth": _as_table(auth),
        **({"acl": [_as_table(rule) for rule in config.acl]} if config.acl else {}),
        **({"stream": [_as_table(rule) for rule in config.streams]} if config.streams else {}),
        "http": _as_table(config.http),
    }


def _as_table(struct: msgspec.Struct, keys: Container[str] | None = None) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in msgspec.structs.asdict(struct).items()
        if value is not None and (keys is None or name in keys)
    }
