"""`polybus pub` and `polybus sub`: the client at the command line.

Standard output carries messages and nothing else. The client is imported when a command runs, so
that `polybus --help` stays quick.
"""

import asyncio
import base64
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Container, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from polybus.errors import UsageError

if TYPE_CHECKING:
    from polybus.client import Bus, BusEvent, Message

EXIT_TIMED_OUT: Final = 27  # as mosquitto_sub
EXIT_INTERRUPTED: Final = 130
WINDOW: Final = 100
"""How many lines of standard input may wait for their acknowledgement at a time."""
KEEP_FOR_S: Final = 86_400

CONNECTION, MESSAGE, OUTPUT, WILL = "Connection", "Message", "Output", "Will"


class Version(StrEnum):
    V311 = "3.1.1"
    V5 = "5"


@dataclass(frozen=True)
class Connection:
    """What `polybus.connect` is told."""

    url: str
    arguments: dict[str, Any]

    def bus(self, **more: Any) -> "Bus":
        from polybus.client import connect

        return connect(self.url, **self.arguments, **more, on_event=_tell)


def _option(*names: str, panel: str = CONNECTION, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **more)


def connection_from_options(
    url: Annotated[
        str | None,
        _option(
            "--url",
            "-L",
            envvar="POLYBUS_URL",
            help="mqtt://, mqtts://, ws://, wss://, mqtt+unix:///path or tbus://; instead of host and port.",
        ),
    ] = None,
    host: Annotated[str | None, _option("--host", "-h", help="(default: 127.0.0.1)")] = None,
    port: Annotated[
        int | None, _option("--port", "-p", min=1, max=65535, help="(default: 1883, with TLS 8883)")
    ] = None,
    client_id: Annotated[str, _option("--id", "-i", help="Client id. (default: the broker chooses)")] = "",
    user_name: Annotated[str | None, _option("--user", "-u")] = None,
    password: Annotated[str | None, _option("--password", "-P", envvar="POLYBUS_PASSWORD")] = None,
    version: Annotated[Version, _option("--version", "-V", help="Of MQTT.")] = Version.V5,
    keep_alive: Annotated[int, _option("--keep-alive", "-k", min=0, max=65535, help="Seconds.")] = 60,
    timeout: Annotated[float, _option("--timeout", min=0, help="Seconds to wait for an answer.")] = 30.0,
    ca_file: Annotated[Path | None, _option("--cafile", help="Trust these authorities (TLS).")] = None,
    cert: Annotated[Path | None, _option("--cert", help="Our certificate (TLS).")] = None,
    key: Annotated[Path | None, _option("--key", help="Our private key (TLS).")] = None,
    insecure: Annotated[bool, _option("--insecure", help="Trust any certificate (TLS): for trials.")] = False,
    will_topic: Annotated[
        str | None, _option("--will-topic", panel=WILL, help="The broker publishes here if we disappear.")
    ] = None,
    will_payload: Annotated[str, _option("--will-payload", panel=WILL)] = "",
    will_qos: Annotated[int, _option("--will-qos", panel=WILL, min=0, max=2)] = 0,
    will_retain: Annotated[bool, _option("--will-retain", panel=WILL)] = False,
) -> Connection:
    from polybus.client import Tls, Will

    if url is not None and (host is not None or port is not None):
        raise UsageError("--url says it all: leave --host and --port out")
    if will_topic is None and (will_payload or will_qos or will_retain):
        raise UsageError("a will needs --will-topic")
    tls = Tls(ca_file, cert, key, insecure) if ca_file or cert or key or insecure else None
    if url is None:
        shown_host = f"[{host}]" if host and ":" in host else host or "127.0.0.1"
        url = f"{'mqtts' if tls else 'mqtt'}://{shown_host}{f':{port}' if port else ''}"
    arguments = {
        "client_id": client_id,
        "user_name": user_name,
        "password": password,
        "version": 5 if version is Version.V5 else 4,
        "keep_alive_s": keep_alive,
        "timeout_s": timeout,
        "connect_timeout_s": min(timeout, 10.0),
        "tls": tls,
        "will": Will(will_topic, will_payload, will_qos, will_retain) if will_topic is not None else None,
    }
    return Connection(url, arguments)


def command_with_connection(
    command: Callable[..., Coroutine[Any, Any, int]], without: Container[str] = ()
) -> Callable[..., None]:
    """A Typer command out of a coroutine: its own options, and those of `connection_from_options`
    that are not in `without`."""
    shared = {
        name: parameter
        for name, parameter in inspect.signature(connection_from_options).parameters.items()
        if name not in without
    }
    own = {
        name: parameter
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "connection"
    }

    @functools.wraps(command)
    def run(**options: Any) -> None:
        from polybus.cli.main import errors_in_one_line

        with errors_in_one_line():
            connection = connection_from_options(**{name: options.pop(name) for name in shared})
            raise typer.Exit(_run(command(connection=connection, **options)))

    parameters = [
        parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*own.values(), *shared.values())
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what Typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def register(app: typer.Typer) -> None:
    """Add `pub` and `sub` to the command line."""
    app.command("pub")(command_with_connection(publish))
    app.command("sub")(command_with_connection(subscribe))


# --- pub ------------------------------------------------------------------------------------------


async def publish(
    connection: Connection,
    topic: Annotated[str, _option("--topic", "-t", panel=MESSAGE)],
    message: Annotated[str | None, _option("--message", "-m", panel=MESSAGE, help="The payload.")] = None,
    file: Annotated[
        Path | None, _option("--file", "-f", panel=MESSAGE, help="Payload from a file; -: standard input.")
    ] = None,
    lines: Annotated[
        bool, _option("--lines", "-l", panel=MESSAGE, help="A message per line of standard input.")
    ] = False,
    null: Annotated[bool, _option("--null", "-n", panel=MESSAGE, help="An empty payload.")] = False,
    qos: Annotated[int, _option("--qos", "-q", panel=MESSAGE, min=0, max=2)] = 0,
    retain: Annotated[bool, _option("--retain", "-r", panel=MESSAGE)] = False,
    properties: Annotated[
        list[str] | None,
        _option("--property", panel=MESSAGE, metavar="NAME=VALUE", help="For example content_type=text/plain."),
    ] = None,
    user_properties: Annotated[
        list[str] | None, _option("--user-property", panel=MESSAGE, metavar="NAME=VALUE")
    ] = None,
    repeat: Annotated[int, _option("--repeat", panel=MESSAGE, min=1, help="Send it so often.")] = 1,
    repeat_delay: Annotated[
        float, _option("--repeat-delay", panel=MESSAGE, min=0, help="Seconds between repetitions.")
    ] = 0.0,
) -> int:
    """Publish a message, or one per line of standard input.

    Ends with 0 when everything was sent and, with QoS 1 or 2, acknowledged.

    Examples:

    [green]polybus pub -t greeting -m hello[/green]

    [green]polybus pub -t config/lamp -f lamp.json -r -q 1[/green]     retained, acknowledged

    [green]polybus pub -t config/lamp -n -r[/green]                    clears the retained message

    [green]tail -f app.log | polybus pub -t logs/app -l[/green]        blank lines are left out

    [green]polybus pub --url mqtts://bus.example --cafile ca.pem -u me -t a -m b[/green]
    """
    if sum((message is not None, file is not None, lines, null)) != 1:
        raise UsageError("say what to publish with exactly one of -m TEXT, -f FILE, -l (lines) or -n (empty)")
    if lines and repeat > 1:
        raise UsageError("--repeat repeats one message: it does not go with -l")
    payload = b""
    if message is not None:
        payload = os.fsencode(message)
    elif file is not None:
        payload = _read_payload(file)
    details = _publish_properties(properties or [], user_properties or [])
    async with connection.bus() as bus:
        if lines:
            await _publish_lines(lambda line: bus.publish(topic, line, qos, retain, **details))
        for count in range(0 if lines else repeat):
            if count and repeat_delay:
                await asyncio.sleep(repeat_delay)
            await bus.publish(topic, payload, qos, retain, **details)
    return 0


def _read_payload(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}; give -f a file to publish") from error


async def _publish_lines(publish_line: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """In order, several under way at a time. The first that fails ends it."""
    under_way: set[asyncio.Task[None]] = set()
    try:
        async for line in _stdin_lines():
            under_way.add(asyncio.create_task(publish_line(line)))
            if len(under_way) >= WINDOW:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*under_way)
    finally:
        for task in under_way:
            task.cancel()


async def _stdin_lines() -> AsyncIterator[bytes]:
    """Read by a thread, for standard input may be a file, a pipe or a terminal. It reads the
    descriptor itself: a buffered reader would lock the interpreter's exit while it waits."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        while True:
            chunk = os.read(descriptor, 1 << 16)
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except RuntimeError:
                return  # the loop is gone
            if not chunk:
                return

    threading.Thread(target=read, name="polybus-stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            if line:
                yield line
    if rest:
        yield rest


def _publish_properties(properties: list[str], user_properties: list[str]) -> dict[str, Any]:
    from polybus.client.bus import PublishProperties

    details: dict[str, Any] = {}
    for name, value in map(_name_and_value, properties):
        name = name.replace("-", "_")
        kind = PublishProperties.__annotations__.get(name)
        if kind is int:
            if not value.isdecimal():
                raise UsageError(f"property {name}: {value!r} is not a number")
            details[name] = int(value)
        elif kind in (str, bytes):
            details[name] = value if kind is str else value.encode()
        else:
            known = ", ".join(key for key in PublishProperties.__annotations__ if key != "user_properties")
            raise UsageError(f"property {name!r} is not one of {known}; others go with --user-property")
    if user_properties:
        details["user_properties"] = tuple(map(_name_and_value, user_properties))
    return details


def _name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise UsageError(f"property {text!r}: write NAME=VALUE")
    return name, value


# --- sub ------------------------------------------------------------------------------------------


async def subscribe(
    connection: Connection,
    topics: Annotated[
        list[str], _option("--topic", "-t", panel=MESSAGE, help="Topic filter; may be repeated.")
    ],
    qos: Annotated[int, _option("--qos", "-q", panel=MESSAGE, min=0, max=2)] = 0,
    retained_only: Annotated[
        bool, _option("--retained-only", panel=MESSAGE, help="Only what was retained before.")
    ] = False,
    no_retained: Annotated[
        bool, _option("--no-retained", "-R", panel=MESSAGE, help="Nothing that was retained before.")
    ] = False,
    verbose: Annotated[
        bool, _option("--verbose", "-v", panel=OUTPUT, help="The topic before the payload.")
    ] = False,
    json: Annotated[bool, _option("--json", panel=OUTPUT, help="One JSON object a line.")] = False,
    no_newline: Annotated[bool, _option("-N", panel=OUTPUT, help="No newline after a message.")] = False,
    count: Annotated[
        int | None, _option("--count", "-C", panel=OUTPUT, min=1, help="End after so many messages.")
    ] = None,
    wait: Annotated[
        float | None, _option("--wait", "-W", panel=OUTPUT, min=0, help="End after so many seconds, with 27.")
    ] = None,
    keep: Annotated[
        bool, _option("--keep", help="Have the broker keep the session and its messages; needs --id.")
    ] = False,
    session_expiry: Annotated[
        int | None,
        _option("--session-expiry", min=1, help="Keep it for so many seconds. (default: a day; not 3.1.1)"),
    ] = None,
) -> int:
    """Print the messages of topics as they come.

    With QoS 1 or 2 a message is acknowledged when it has been printed. A lost connection is made
    again; a line on standard error says so.

    Examples:

    [green]polybus sub -t 'sensors/#' -v[/green]                  topic and payload

    [green]polybus sub -t answer -C 1 -W 5[/green]                one message, or 27 after 5 s

    [green]polybus sub -t 'sensors/+/temperature' --json | jq .payload[/green]

    [green]polybus sub -t jobs -q 1 --id worker --keep[/green]    nothing is missed between two runs
    """
    if retained_only and no_retained:
        raise UsageError("--retained-only and -R together leave nothing to print")
    keep = keep or session_expiry is not None
    if keep and not connection.arguments["client_id"]:
        raise UsageError("a session that is kept needs a name: --id NAME")
    session: dict[str, Any] = {}
    if keep:
        session = {"clean_start": False, "session_expiry_s": session_expiry or KEEP_FOR_S}
    print_message = functools.partial(
        _print, as_json=json, with_topic=verbose, end=b"" if no_newline else b"\n"
    )
    try:
        async with asyncio.timeout(wait), connection.bus(**session) as bus:
            messages = await bus.subscribe(topics, qos=qos, acknowledge="handled", when_full="pause")
            async for message in messages:
                if message.retain if no_retained else retained_only and not message.retain:
                    continue
                print_message(message)
                if count is not None and (count := count - 1) == 0:
                    break
    except TimeoutError as error:
        if type(error) is TimeoutError:  # not the client's own
            return EXIT_TIMED_OUT
        raise
    return 0


def _print(message: "Message", *, as_json: bool, with_topic: bool, end: bytes) -> None:
    if as_json:
        line = msgspec.json.encode(_as_json(message))
    elif with_topic:
        line = message.topic.encode() + b" " + message.payload
    else:
        line = message.payload
    sys.stdout.buffer.write(line + end)
    sys.stdout.buffer.flush()


def _as_json(message: "Message") -> dict[str, Any]:
    """A payload that is not UTF-8 is told in base64, and `encoding` says so."""
    encoding = "utf-8"
    try:
        payload = message.payload.decode()
    except UnicodeDecodeError:
        encoding, payload = "base64", base64.b64encode(message.payload).decode()
    properties = msgspec.to_builtins(message.properties)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        "payload": payload,
        "encoding": encoding,
        **({"properties": properties} if properties else {}),
    }


# --- both -----------------------------------------------------------------------------------------


def _run(command: Coroutine[Any, Any, int]) -> int:
    """Interrupts, and a reader of our output that has seen enough, end a command quietly."""
    try:
        return asyncio.run(_until_terminated(command))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Or the interpreter would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


async def _until_terminated(command: Coroutine[Any, Any, int]) -> int:
    """SIGTERM is a goodbye too: it is said to the broker."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await command


def _tell(event: "BusEvent") -> None:
    from polybus.client import Connected, Disconnected, SubscriptionLost

    match event:
        case Disconnected(error):
            typer.echo(f"polybus: {error}; connecting again", err=True)
        case Connected(attempt=attempt) if attempt:
            typer.echo("polybus: connected again", err=True)
        case SubscriptionLost(error):
            typer.echo(f"polybus: {error}", err=True)
        case _:
            pass
