"""`polybus request` and `polybus serve-echo`: ask a service, and offer one, at the command line."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from polybus.cli.messages import EXIT_TIMED_OUT, MESSAGE, Connection, command_with_connection, option

if TYPE_CHECKING:
    from polybus.client import Message

WITHOUT: Final = frozenset({"version", "timeout", "will_topic", "will_payload", "will_qos", "will_retain"})
"""Connection options that mean nothing here: requests need MQTT 5.0 or TBus, and have a time of their own."""


def register(app: typer.Typer) -> None:
    """Add `request` and `serve-echo` to the command line."""
    app.command("request")(command_with_connection(request, without=WITHOUT))
    app.command("serve-echo")(command_with_connection(serve_echo, without=WITHOUT))


async def request(
    connection: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the service is.")],
    payload: Annotated[
        str, typer.Argument(metavar="[PAYLOAD]", help="What to ask; -: from standard input.")
    ] = "",
    timeout: Annotated[  # noqa: ASYNC109 (an option)
        float, option("--timeout", "-T", panel=MESSAGE, min=0.001, help="Seconds the request may live.")
    ] = 5.0,
    priority: Annotated[
        bool, option("--priority", panel=MESSAGE, help="Before requests that have none.")
    ] = False,
    no_wait: Annotated[
        bool, option("--no-wait", panel=MESSAGE, help="Fail at once if no service is there.")
    ] = False,
    no_newline: Annotated[bool, option("-N", panel=MESSAGE, help="No newline after the answer.")] = False,
) -> int:
    """Ask a service and print its answer.

    Ends with 0 for an answer, with 27 if none came in time, with 1 for every other end, which a line on
    standard error explains.

    Examples:

    [green]polybus request triple 14[/green]                       asks over MQTT 5.0

    [green]polybus request triple 14 --tbus[/green]                asks over TBus

    [green]polybus request late/service '' -T 60[/green]           waits a minute for a service to appear

    [green]polybus request resize - -N < photo.jpg > small.jpg[/green]
    """
    from polybus.client import RequestTimeout

    question = sys.stdin.buffer.read() if payload == "-" else os.fsencode(payload)
    async with connection.bus() as bus:
        try:
            answer = await bus.request(topic, question, timeout=timeout, priority=priority, wait=not no_wait)
        except RequestTimeout as error:
            typer.echo(f"polybus: {error}", err=True)
            return EXIT_TIMED_OUT
    sys.stdout.buffer.write(answer.payload + (b"" if no_newline else b"\n"))
    sys.stdout.buffer.flush()
    return 0


async def serve_echo(
    connection: Connection,
    topic_filter: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic, or filter with + and #.")],
    concurrency: Annotated[
        int, option("--concurrency", "-c", panel=MESSAGE, min=1, max=65_535, help="Requests taken at once.")
    ] = 1,
    delay: Annotated[
        float, option("--delay", panel=MESSAGE, min=0, help="Seconds to think before each answer.")
    ] = 0.0,
    fail: Annotated[
        str | None, option("--fail", panel=MESSAGE, metavar="TEXT", help="Fail with this text instead.")
    ] = None,
    count: Annotated[
        int | None, option("--count", "-C", panel=MESSAGE, min=1, help="End after so many.")
    ] = None,
    quiet: Annotated[bool, option("--quiet", help="Do not print what is asked.")] = False,
) -> int:
    """Offer a service that sends back what it gets, and print what it was asked.

    For trying requests out: with --delay it is slow, with --fail it fails. Start several and the bus gives
    each request to one that is not busy.

    Examples:

    [green]polybus serve-echo greeting[/green]                     then: polybus request greeting hello

    [green]polybus serve-echo 'jobs/#' --delay 2 -c 4 --tbus[/green]

    [green]polybus serve-echo broken --fail 'out of paper'[/green]
    """
    served = asyncio.Event()
    left = count

    async def echo(request: "Message") -> bytes:
        nonlocal left
        if not quiet:
            sys.stdout.buffer.write(request.topic.encode() + b" " + request.payload + b"\n")
            sys.stdout.buffer.flush()
        try:
            if delay:
                await asyncio.sleep(delay)
            if fail is not None:
                raise RuntimeError(fail)
            return request.payload
        finally:
            if left is not None and (left := left - 1) <= 0:
                served.set()

    async with connection.bus() as bus:
        await bus.serve(topic_filter, echo, concurrency=concurrency)
        typer.echo(f"polybus: serving {topic_filter}", err=True)
        over = asyncio.ensure_future(bus.serve_forever())
        enough = asyncio.ensure_future(served.wait())
        try:
            await asyncio.wait({over, enough}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
        finally:
            over.cancel()
            enough.cancel()
    return 0
