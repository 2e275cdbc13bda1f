"""`polybus ctl`: what an operator asks of a running bus.

The bus itself answers, as any service would: a managed request by MQTT 5.0 (`docs/requests.md`).
"""

import secrets
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from polybus.cli.messages import Connection, command_with_connection
from polybus.errors import PolybusError

if TYPE_CHECKING:
    from polybus.client import Bus, Message

MEMORY_LIMIT: Final = "$memoryLimit"
ANSWER_WITHIN_S: Final = 5
PATIENCE_S: Final = 2.0
"""How much longer to wait for the bus to say that the time is over."""

_WITHOUT: Final = frozenset({"version", "will_topic", "will_payload", "will_qos", "will_retain"})
"""Connection options that mean nothing here: requests need MQTT 5.0, and nobody misses us."""


class RequestFailed(PolybusError):
    """The bus told another end of our request than an answer, or none."""


class Amount(msgspec.Struct, frozen=True):
    limit: int
    used: int


class Storage(msgspec.Struct, frozen=True):
    """The answer to `$memoryLimit`."""

    messages: Amount
    bytes: Amount


def register(app: typer.Typer) -> None:
    """Add `ctl` to the command line."""
    control = typer.Typer(help="Ask a running bus, or change it.", no_args_is_help=True)
    control.command("memory-limit")(command_with_connection(memory_limit, without=_WITHOUT))
    app.add_typer(control, name="ctl")


async def memory_limit(
    connection: Connection,
    messages: Annotated[
        int | None, typer.Argument(metavar="N", min=0, help="Store at most so many messages.")
    ] = None,
    size: Annotated[int | None, typer.Option("--bytes", min=0, help="Store at most so many bytes.")] = None,
) -> int:
    """Show or change how much the bus stores: messages, requests and answers that wait for someone.

    If more is stored than a new limit allows, plain messages go first, then those with priority,
    then requests and answers; whoever asked is told. The limit holds until the bus stops or its
    limits.stored_messages or limits.stored_bytes are reloaded with other values.

    Examples:

    [green]polybus ctl memory-limit[/green]                           shows limits and what is stored

    [green]polybus ctl memory-limit 1000[/green]                      stores up to 1000 messages

    [green]polybus ctl memory-limit 1000 --bytes 16777216[/green]     and up to 16 MiB

    [green]polybus ctl memory-limit --url mqtts://bus.example --cafile ca.pem -u admin[/green]
    """
    async with connection.bus(reconnect=False) as bus:
        if size is not None:
            await request(bus, f"{MEMORY_LIMIT}/bytes", str(size))
        storage = _storage_of(await request(bus, MEMORY_LIMIT, "" if messages is None else str(messages)))
    for name, amount in (("messages", storage.messages), ("bytes", storage.bytes)):
        typer.echo(f"{name}: {amount.used} of {amount.limit}")
    return 0


async def request(bus: "Bus", topic: str, payload: str) -> "Message":
    """Ask and wait for the answer. Raises `RequestFailed` for every other end."""
    from polybus.client import OperationTimeout

    response_topic = f"polybus-ctl/{secrets.token_hex(8)}"
    correlation_data = secrets.token_bytes(8)
    async with bus.subscribe(response_topic, qos=1) as answers:
        await bus.publish(
            topic,
            payload,
            qos=1,
            message_expiry_s=ANSWER_WITHIN_S,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties={"polybus-request": "managed"},
        )
        try:
            answer = await answers.get(ANSWER_WITHIN_S + PATIENCE_S)
        except OperationTimeout:
            raise RequestFailed(
                f"nobody answers a request to {topic}; is it a Polybus, and may you publish there?"
            ) from None
    status = dict(answer.properties.user_properties).get("polybus-status")
    if answer.properties.correlation_data != correlation_data or status is None:
        raise RequestFailed(f"what came for a request to {topic} is no answer to it")
    if status != "answered":
        told = _in_one_line(answer.payload)
        raise RequestFailed(f"the request to {topic} ended as {status}{f': {told}' if told else ''}")
    return answer


def _in_one_line(text: bytes) -> str:
    """Whoever wrote it can neither add lines nor steer the terminal."""
    words = " ".join(text.decode(errors="replace").split())
    return "".join(character for character in words if character.isprintable())


def _storage_of(answer: "Message") -> Storage:
    try:
        return msgspec.json.decode(answer.payload, type=Storage)
    except msgspec.MsgspecError as error:
        raise RequestFailed(f"the answer to a request to {MEMORY_LIMIT} cannot be read: {error}") from error
