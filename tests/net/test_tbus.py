"""TBus listeners: each protocol at its own door, one bus behind them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from polybus.broker.limits import Limits
from polybus.net.server import Server
from polybus.ops.config import Config, load
from polybus.ops.listeners import Listener
from polybus.wire.mqtt.packets import Publish as MqttPublish
from polybus.wire.tbus.codec import decode, encode, next_frame
from polybus.wire.tbus.packets import (
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
)
from tests.client.certificates import Certificates
from tests.net.peers import (
    PATIENCE_S,
    Peer,
    client,
    dial,
    port_of,
    serving,
    serving_config,
    trusting,
    unix_stream,
)
from tests.ops.logs import restored_logging

TBUS = Listener(protocol="tbus")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    with restored_logging():
        yield


class TbusPeer:
    """One TBus connection, seen from the client's side."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._buffer = b""

    def send(self, *packets: Packet) -> None:
        self._peer.write(b"".join(map(encode, packets)))

    async def receive(self) -> Packet:
        async with asyncio.timeout(PATIENCE_S):
            while (frame := next_frame(self._buffer, 0, 1 << 28)) is None:
                self._buffer += await self._peer.some()
        first_byte, start, end = frame
        body, self._buffer = self._buffer[start:end], self._buffer[end:]
        return decode(first_byte, body)

    async def greet(self, connect: Connect) -> ConnAck:
        self.send(connect)
        answer = await self.receive()
        assert isinstance(answer, ConnAck)
        return answer

    async def subscribe(self, topic_filter: str) -> None:
        self.send(Subscribe(1, topic_filter))
        assert await self.receive() == SubAck(1)

    async def ping(self) -> None:
        self.send(PingReq())
        assert isinstance(await self.receive(), PingResp)

    async def closed(self) -> None:
        assert await self._peer.rest() == b""


@asynccontextmanager
async def tbus_client(
    server: Server, client_id: str, index: int = 0, **options: object
) -> AsyncIterator[TbusPeer]:
    async with dial(port_of(server, index), **options) as peer:
        tbus = TbusPeer(peer)
        assert await tbus.greet(Connect(client_id)) == ConnAck()
        yield tbus


async def exchange(one: TbusPeer, two: TbusPeer) -> None:
    await one.subscribe("a/b")
    two.send(Publish("a/b", b"hello"))
    assert await one.receive() == Publish("a/b", b"hello")


async def test_two_protocols_meet() -> None:
    async with (
        serving(Listener(), TBUS) as server,
        client(server, "mqtt") as mqtt,
        tbus_client(server, "tbus", 1) as tbus,
    ):
        await tbus.subscribe("to/tbus")
        await mqtt.subscribe("to/mqtt")
        assert await mqtt.publish("to/tbus", b"1") == 0
        assert await tbus.receive() == Publish("to/tbus", b"1")
        tbus.send(Publish("to/mqtt", b"2"))
        message = await mqtt.receive()
        assert isinstance(message, MqttPublish)
        assert (message.topic, message.payload) == ("to/mqtt", b"2")


async def test_over_tls(certificates: Certificates) -> None:
    listener = Listener(
        protocol="tbus",
        kind="tls",
        certificate=certificates.cert("server"),
        private_key=certificates.key("server"),
    )
    context = trusting(certificates)
    async with (
        serving(listener) as server,
        tbus_client(server, "one", ssl=context) as one,
        tbus_client(server, "two", ssl=context) as two,
    ):
        assert server.urls[0].startswith("tbuss://127.0.0.1:")
        await exchange(one, two)


async def test_over_a_unix_socket() -> None:
    with TemporaryDirectory(prefix="pb") as folder:
        path = Path(folder, "s")
        async with (
            serving(Listener(protocol="tbus", kind="unix", path=str(path))),
            unix_stream(path) as first,
            unix_stream(path) as second,
        ):
            one, two = TbusPeer(first), TbusPeer(second)
            assert await one.greet(Connect("one")) == ConnAck()
            assert await two.greet(Connect("two")) == ConnAck()
            await exchange(one, two)


async def test_the_client_limit_counts_all_protocols() -> None:
    async with (
        serving(Listener(), TBUS, limits=Limits(connections=2)) as server,
        client(server, "mqtt"),
        tbus_client(server, "tbus", 1) as tbus,
        dial(port_of(server, 1)) as peer,
    ):
        answer = await TbusPeer(peer).greet(Connect("third"))
        assert answer.reason == ConnectReason.CLIENT_LIMIT_REACHED
        assert answer.server_reference is None
        await peer.rest()
        await tbus.ping()


async def test_other_brokers_are_named_to_whoever_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "polybus.toml"
    text = '[[listener]]\nprotocol = "tbus"\nport = 0\n[limits]\nconnections = 1\n[tbus]\nserver_reference = '

    def write(reference: str) -> Config:
        path.write_text(f'{text}"{reference}"\n')
        return load(path)

    async with serving_config(write("10.0.0.2:5035")) as server, tbus_client(server, "one"):

        async def named() -> str | None:
            async with dial(port_of(server)) as peer:
                return (await TbusPeer(peer).greet(Connect("two"))).server_reference

        assert await named() == "10.0.0.2:5035"
        write("10.0.0.3:5035;10.0.0.4:5035")
        server.reload()
        assert await named() == "10.0.0.3:5035;10.0.0.4:5035"


async def test_whoever_speaks_the_other_protocol_is_shown_the_door() -> None:
    async with serving(Listener(), TBUS) as server:
        async with dial(port_of(server)) as peer:
            TbusPeer(peer).send(Connect("lost"))
            await peer.rest()
        async with dial(port_of(server, 1)) as peer:
            peer.write(bytes.fromhex("100d00044d51545404020000000161"))  # MQTT 3.1.1
            await peer.rest()
        async with tbus_client(server, "found", 1) as found:
            await found.ping()


async def test_stop_tells_why_and_closes() -> None:
    async with serving(TBUS) as server, tbus_client(server, "one") as one:
        stopping = asyncio.create_task(server.stop())
        told = await one.receive()
        assert isinstance(told, Disconnect)
        assert told.reason == DisconnectReason.UNSPECIFIED
        assert told.reason_string
        await one.closed()
        await stopping


async def test_who_says_nothing_is_not_kept() -> None:
    async with serving(TBUS, limits=Limits(connect_timeout_s=0.1)) as server, dial(port_of(server)) as peer:
        assert await peer.rest() == b""
