"""The Python client at the end of a pipe: ``python -m tests.e2e.python_peer``. The C++ client has a twin.

A command a line; words are separated by single spaces, payloads are hex, ``-`` is an empty one. Every
command gets one line back, in order: ``ok …`` or ``error KIND TEXT``. What happens by itself is a line that
begins with ``! ``. `COMMANDS` is the list.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import polybus
from polybus.client import (
    Bus,
    BusClosed,
    BusEvent,
    ClientError,
    Closed,
    Connected,
    ConnectRefused,
    Disconnected,
    Message,
    NotDelivered,
    PendingRequest,
    RequestCanceled,
    RequestDeleted,
    RequestTimeout,
    ServiceError,
    SubscribeRefused,
    Subscription,
    UnsubscribeRefused,
)
from polybus.errors import UsageError
from polybus.tbus import decode_string, encode_string
from polybus.wire.tbus.packets import SubscribeReason

KINDS: dict[type[ClientError], str] = {
    RequestTimeout: "timeout",
    RequestCanceled: "canceled",
    RequestDeleted: "deleted",
    NotDelivered: "not-delivered",
    ServiceError: "service",
}
LATE_S = 5.0
"""So much longer than its timeout the end of a request that outlived its connection is waited for."""


def say(line: str) -> None:
    print(line.replace("\n", " "), flush=True)


def payload(word: str) -> bytes:
    return b"" if word == "-" else bytes.fromhex(word)


def hexed(data: bytes) -> str:
    return data.hex() or "-"


class Peer:
    def __init__(self) -> None:
        self._bus: Bus | None = None
        self._pending: dict[int, PendingRequest] = {}
        self._deadlines: dict[int, float] = {}
        self._left: dict[int, float] = {}
        """Deadlines of requests whose connection is gone; their ends come over the next one."""
        self._subscriptions: dict[str, Subscription] = {}
        self._is_leaving = False
        self._release = asyncio.Event()

    @property
    def bus(self) -> Bus:
        if self._bus is None:
            raise BusClosed("connect first")
        return self._bus

    # --- commands ---

    async def connect(
        self, host: str, port: str, client_id: str, clean: str, keep_alive_s: str, bulk: str
    ) -> str:
        if self._bus is not None:
            raise UsageError("connected already: disconnect first")
        if clean == "1":
            self._left.clear()
        bus = polybus.connect(
            f"tbus://{host}:{port}",
            client_id=client_id,
            clean_start=clean == "1",
            keep_alive_s=int(keep_alive_s),
            bulk=bulk,  # type: ignore[arg-type]
            on_event=self._on_event,
        )
        self._is_leaving = False
        self._release = asyncio.Event()
        await bus.open()
        self._bus = bus
        return ""

    async def subscribe(self, topic_filter: str) -> str:
        subscription = await self.bus.subscribe(
            topic_filter, lambda message: say(f"! message {message.topic} {hexed(message.payload)}")
        )
        older = self._subscriptions.pop(topic_filter, None)
        if older is not None:  # one filter, one subscription
            await older.close()
        self._subscriptions[topic_filter] = subscription
        return ""

    async def serve(self, topic_filter: str, behaviour: str, *rest: str) -> str:
        *arguments, concurrency = rest
        handlers: dict[str, Callable[[Message], Awaitable[bytes]]] = {
            "echo": self._echo,
            "triple": self._triple,
            "fail": self._fail,
            "hang": self._hang,
            "slow": lambda request: self._slow(request, int(arguments[0])),
        }
        if behaviour not in handlers:
            raise UsageError(f"behaviour {behaviour!r} is none of {', '.join(handlers)}")
        handler = handlers[behaviour]

        async def handle(request: Message) -> bytes:
            say(f"! request {request.topic} {hexed(request.payload)} {int(request.priority)}")
            try:
                return await handler(request)
            except asyncio.CancelledError:
                if not self._is_leaving:
                    say(f"! canceled {request.topic}")
                raise

        await self.bus.serve(topic_filter, handle, concurrency=int(concurrency))
        return ""

    async def unsubscribe(self, topic_filter: str) -> str:
        await self.bus.unsubscribe(topic_filter)
        self._subscriptions.pop(topic_filter, None)
        return ""

    async def publish(self, topic: str, data: str, priority: str, timeout_s: str) -> str:
        await self.bus.publish(topic, payload(data), priority=priority == "1", wait_s=int(timeout_s))
        return ""

    async def request(self, topic: str, data: str, priority: str, timeout_s: str) -> str:
        pending = await self.bus.ask(
            topic, payload(data), priority=priority == "1", timeout=float(timeout_s) or 5.0
        )
        self._pending[pending.id] = pending
        loop = asyncio.get_running_loop()
        self._deadlines[pending.id] = loop.time() + (float(timeout_s) or 5.0) + LATE_S
        return str(pending.id)

    async def await_(self, request_id: str) -> str:
        number = int(request_id)
        pending = self._pending.pop(number, None)
        if pending is not None:
            return hexed((await pending).payload)
        deadline = self._left.pop(number, None)
        if deadline is None:
            raise UsageError(f"there is no request {number}")
        left_s = deadline - asyncio.get_running_loop().time()
        return hexed((await self.bus.resume(number, timeout=max(0.001, left_s))).payload)

    async def cancel(self, request_id: str) -> str:
        pending = self._pending.get(int(request_id))
        if pending is None:
            raise UsageError(f"there is no request {request_id}")
        pending.cancel()
        return ""

    async def disconnect(self, code: str = "0", *reason: str) -> str:
        loop = asyncio.get_running_loop()
        bus = self.bus
        for number, pending in self._pending.items():
            if not pending.is_done:
                self._left[number] = self._deadlines.get(number, loop.time() + LATE_S)
        self._pending = {number: each for number, each in self._pending.items() if number not in self._left}
        self._is_leaving = True
        self._release.set()
        await bus.disconnect(reason_code=int(code), reason=" ".join(reason))
        self._subscriptions.clear()
        self._bus = None
        return ""

    # --- behaviours ---

    async def _echo(self, request: Message) -> bytes:
        return request.payload

    async def _triple(self, request: Message) -> bytes:
        number, _ = decode_string(request.payload)
        return encode_string(3 * int(number))

    async def _fail(self, request: Message) -> bytes:
        raise RuntimeError("cannot do it")

    async def _hang(self, request: Message) -> bytes:
        await self._release.wait()
        raise asyncio.CancelledError  # we leave: nothing is answered

    async def _slow(self, request: Message, milliseconds: int) -> bytes:
        await asyncio.sleep(milliseconds / 1000)
        return request.payload

    # --- events ---

    def _on_event(self, event: BusEvent) -> None:
        match event:
            case Connected():
                say("! connected")
            case Disconnected(error):
                say(f"! lost {error}")
            case Closed(error):
                say(f"! closed {error or 'as asked'}")
            case _:
                pass


COMMANDS: dict[str, Callable[..., Awaitable[str]]] = {
    "connect": Peer.connect,
    "subscribe": Peer.subscribe,
    "serve": Peer.serve,
    "unsubscribe": Peer.unsubscribe,
    "publish": Peer.publish,
    "request": Peer.request,
    "await": Peer.await_,
    "cancel": Peer.cancel,
    "disconnect": Peer.disconnect,
}


async def obey(peer: Peer, line: str) -> str:
    name, *words = line.split(" ")
    command = COMMANDS.get(name)
    if command is None:
        return f"error usage {name!r} is none of {', '.join(COMMANDS)}, quit"
    try:
        return f"ok {await command(peer, *words)}".rstrip()
    except (ConnectRefused, SubscribeRefused, UnsubscribeRefused) as error:
        return f"error refused {error.reason_code} {error.reason}"
    except BusClosed as error:
        return f"error closed {error}"
    except UsageError as error:
        if name in ("subscribe", "serve", "unsubscribe"):  # the client looks before the broker has to
            return f"error refused {int(SubscribeReason.INVALID_FILTER)} {error}"
        return f"error usage {error}"
    except ClientError as error:
        kind = KINDS.get(type(error), "unreachable" if name == "connect" else "failed")
        return f"error {kind} {getattr(error, 'reason', error)}"
    except (TypeError, ValueError, IndexError) as error:
        return f"error usage {line}: {error}"


async def main() -> None:
    peer = Peer()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        words = line.rstrip("\n")
        if words == "quit":
            break
        say(await obey(peer, words))
    await obey(peer, "disconnect 0")


if __name__ == "__main__":
    asyncio.run(main())
