"""`polybus ctl`: what an operator asks of a running bus.

The bus itself answers, as any service would, over MQTT 5.0 or TBus (`docs/requests.md`).
"""

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import typer

from polybus.cli.messages import Connection, command_with_connection
from polybus.cli.requests import WITHOUT
from polybus.errors import PolybusError

if TYPE_CHECKING:
    from polybus.client import Bus, Message

MEMORY_LIMIT: Final = "$memoryLimit"
NEIGHBORS: Final = "$neighbors"
ANSWER_WITHIN_S: Final = 5


class NoAnswer(PolybusError):
    """What came is not what a Polybus would say."""


class Amount(msgspec.Struct, frozen=True):
    limit: int
    used: int


class Storage(msgspec.Struct, frozen=True):
    """The answer to `$memoryLimit`."""

    messages: Amount
    bytes: Amount


class Neighbor(msgspec.Struct, frozen=True):
    id: str
    linked: bool
    why: str
    filters: int
    waiting: int
    dropped: int


class Network(msgspec.Struct, frozen=True):
    """The answer to `$neighbors`."""

    id: str
    neighbors: tuple[Neighbor, ...]


A = TypeVar("A", Storage, Network)


def register(app: typer.Typer) -> None:
    """Add `ctl` to the command line."""
    control = typer.Typer(help="Ask a running bus, or change it.", no_args_is_help=True)
    control.command("memory-limit")(command_with_connection(memory_limit, without=WITHOUT))
    control.command("neighbors")(command_with_connection(neighbors, without=WITHOUT))
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

    [green]polybus ctl memory-limit --tbus[/green]                    of a bus that speaks TBus only

    [green]polybus ctl memory-limit --url mqtts://bus.example --cafile ca.pem -u admin[/green]
    """
    async with connection.bus(reconnect=False) as bus:
        if size is not None:
            await ask(bus, f"{MEMORY_LIMIT}/bytes", str(size))
        answer = await ask(bus, MEMORY_LIMIT, "" if messages is None else str(messages))
    storage = _read(answer, MEMORY_LIMIT, Storage)
    for name, amount in (("messages", storage.messages), ("bytes", storage.bytes)):
        typer.echo(f"{name}: {amount.used} of {amount.limit}")
    return 0


async def neighbors(connection: Connection) -> int:
    """Show the network of brokers that the bus is in: who is linked, and what waits for whom.

    Examples:

    [green]polybus ctl neighbors[/green]

    [green]polybus ctl neighbors --tbus --port 5036[/green]    of another bus
    """
    async with connection.bus(reconnect=False) as bus:
        network = _read(await ask(bus, NEIGHBORS, ""), NEIGHBORS, Network)
    typer.echo(f"{network.id}, this bus")
    for each in network.neighbors:
        state = "linked" if each.linked else f"not linked ({each.why or 'called soon'})"
        what = f"wants {each.filters} filters, {each.waiting} messages wait for it, {each.dropped} dropped"
        typer.echo(f"{each.id}, {state}: {what}")
    return 0


async def ask(bus: "Bus", topic: str, payload: str) -> "Message":
    """Raises `RequestFailed`, of the client."""
    from polybus.client import RequestTimeout

    try:
        return await bus.request(topic, payload, timeout=ANSWER_WITHIN_S, wait=False)
    except RequestTimeout as error:
        hint = f"{error.reason}; is it a Polybus, and may you publish there?"
        raise RequestTimeout(topic, hint) from None


def _read(answer: "Message", topic: str, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(answer.payload, type=kind)
    except msgspec.MsgspecError as error:
        raise NoAnswer(f"the answer to a request to {topic} cannot be read: {error}") from error
