"""MQTT over WebSocket: the handshake, frames of every cut, and peers that break the rules of either."""

import asyncio
import base64
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol

from polybus.broker.limits import Limits
from polybus.net import connection as connections
from polybus.net.server import Server
from polybus.ops.listeners import Listener
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.client.certificates import Certificates
from tests.net.peers import PATIENCE_S, client, eventually, port_of, serving, stream, trusting

WEBSOCKET = Listener(kind="websocket", path="/mqtt")
MQTT = (Subprotocol("mqtt"),)


class Browser:
    """A WebSocket client that gathers packets out of frames."""

    def __init__(self, websocket: ClientConnection, version: int = V5) -> None:
        self.websocket = websocket
        self.version = version
        self._buffer = b""

    async def send(self, *packets: Packet) -> None:
        await self.websocket.send(b"".join(encode(packet, self.version) for packet in packets))

    async def receive(self) -> Packet:
        async with asyncio.timeout(PATIENCE_S):
            while (frame := next_frame(self._buffer, 0, 1 << 28)) is None:
                data = await self.websocket.recv()
                assert isinstance(data, bytes), "[MQTT-6.0.0-1]"
                self._buffer += data
        first_byte, start, end = frame
        body, self._buffer = self._buffer[start:end], self._buffer[end:]
        return decode(first_byte, body, self.version)

    async def close_code(self) -> int | None:
        async with asyncio.timeout(PATIENCE_S):
            await self.websocket.wait_closed()
        return self.websocket.close_code


@asynccontextmanager
async def browser(
    server: Server, client_id: str | None = "browser", *, version: int = V5, **options: object
) -> AsyncIterator[Browser]:
    """A WebSocket; with a client id it has its CONNACK."""
    arguments = {"subprotocols": MQTT, "max_size": None, "compression": None} | options
    async with connect(server.urls[0], **arguments) as websocket:  # type: ignore[arg-type]
        peer = Browser(websocket, version)
        if client_id is not None:
            await peer.send(Connect(client_id, version))
            answer = await peer.receive()
            assert isinstance(answer, ConnAck)
            assert answer.reason_code == 0
        yield peer


@pytest.mark.parametrize("version", [V311, V5])
async def test_exchange_between_a_browser_and_a_plain_client(version: int) -> None:
    async with (
        serving(WEBSOCKET, Listener()) as server,
        browser(server, version=version) as peer,
        client(server, "plain", 1, version=version) as plain,
    ):
        assert peer.websocket.subprotocol == "mqtt"
        await plain.subscribe("to/plain", qos=1)
        await peer.send(Subscribe(1, (SubscriptionRequest("to/browser", 1),)))
        assert isinstance(await peer.receive(), SubAck)
        await peer.send(Publish("to/plain", b"1", 1, packet_id=5))
        assert await peer.receive() == PubAck(5)
        message = await plain.receive()
        assert isinstance(message, Publish)
        assert message.payload == b"1"
        plain.send(PubAck(message.packet_id))
        assert await plain.publish("to/browser", b"2") == 0
        message = await peer.receive()
        assert isinstance(message, Publish)
        assert message.payload == b"2"


async def test_exchange_over_wss(certificates: Certificates) -> None:
    tls = Listener(
        kind="wss",
        path="/mqtt",
        certificate=certificates.cert("server"),
        private_key=certificates.key("server"),
    )
    async with serving(tls) as server, browser(server, ssl=trusting(certificates)) as peer:
        assert server.urls[0].startswith("wss://")
        await peer.send(PingReq())
        assert await peer.receive() == PingResp()


# -- the handshake -------------------------------------------------------------------------------------


async def test_the_old_subprotocol_is_taken_too() -> None:
    async with serving(WEBSOCKET) as server:
        async with browser(server, None, subprotocols=("mqttv3.1",)) as peer:
            assert peer.websocket.subprotocol == "mqttv3.1"
        async with browser(server, None, subprotocols=("chat", "mqtt")) as peer:
            assert peer.websocket.subprotocol == "mqtt"


@pytest.mark.parametrize("subprotocols", [None, ("chat",)])
async def test_without_the_subprotocol_there_is_no_websocket(
    subprotocols: tuple[Subprotocol, ...] | None,
) -> None:
    """[MQTT-6.0.0-3] the client must offer it."""
    async with serving(WEBSOCKET) as server:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(server.urls[0], subprotocols=subprotocols):
                pass
        assert refused.value.response.status_code == 400
        await eventually(lambda: not server._connections)


async def test_pages_of_other_sites_are_kept_out() -> None:
    chosen = Listener(kind="websocket", path="/mqtt", allowed_origins=("https://good.example",))
    async with serving(chosen, WEBSOCKET) as server:
        for origin in ("https://good.example", None):
            async with browser(server, origin=origin) as peer:
                await peer.send(PingReq())
                assert await peer.receive() == PingResp()
        for origin in ("https://evil.example", "https://good.example.evil.example", "null"):
            with pytest.raises(InvalidStatus) as refused:
                async with browser(server, origin=origin):
                    pass
            assert refused.value.response.status_code == 403
            async with connect(server.urls[1], subprotocols=MQTT, origin=Origin(origin)):
                pass


async def test_another_path_is_not_found() -> None:
    async with serving(WEBSOCKET) as server:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(server.urls[0] + "/other", subprotocols=MQTT):
                pass
        assert refused.value.response.status_code == 404
        assert b"/mqtt" in refused.value.response.body
        async with connect(server.urls[0] + "?token=1", subprotocols=MQTT):
            pass


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /mqtt HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", b""),
        (b"\x00\x01\x02\xff\r\n\r\n", b""),
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a\r\n", b""),
        (b"GET /mqtt HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n", b"431"),
        (b"GET /" + b"x" * 100_000, b"414"),
    ],
    ids=["no upgrade", "no upgrade elsewhere", "post", "noise", "mqtt", "many headers", "long line"],
)
async def test_bad_handshakes_are_answered_and_closed(
    said: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In HTTP, if that is what it was."""
    async with serving(WEBSOCKET) as server:
        async with stream(server) as peer:
            peer.write(said)
            answer = await peer.rest()
        assert answer[:12] == (b"HTTP/1.1 " + status if status else b"")
        await eventually(lambda: not server._connections)
        async with browser(server) as good:
            await good.send(PingReq())
            assert await good.receive() == PingResp()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_handshake_that_does_not_come_is_not_waited_for() -> None:
    async with (
        serving(WEBSOCKET, limits=Limits(connect_timeout_s=0.3)) as server,
        stream(server) as silent,
        stream(server) as slow,
    ):
        slow.write(b"GET /mqtt HTT")
        await silent.rest()
        await slow.rest()


async def test_a_handshake_without_connect_is_not_waited_for() -> None:
    async with (
        serving(WEBSOCKET, limits=Limits(connect_timeout_s=0.3)) as server,
        browser(server, None) as peer,
    ):
        assert await peer.close_code() is not None


# -- frames --------------------------------------------------------------------------------------------


async def test_a_packet_over_many_frames_and_many_packets_in_one() -> None:
    """[MQTT-6.0.0-2]"""
    async with serving(WEBSOCKET) as server, browser(server, None) as peer:
        for byte in encode(Connect("browser", V5), V5):
            await peer.websocket.send(bytes((byte,)))
        assert isinstance(await peer.receive(), ConnAck)
        requests = (SubscriptionRequest("t", 0),)
        await peer.send(Subscribe(1, requests), *(Publish("t", b"%d" % n) for n in range(20)), PingReq())
        answers = [await peer.receive() for _ in range(22)]
        assert any(isinstance(answer, SubAck) for answer in answers)
        published = [answer for answer in answers if isinstance(answer, Publish)]
        assert [int(each.payload) for each in published] == list(range(20))
        assert PingResp() in answers
        whole = encode(PingReq(), V5) * 3 + encode(Publish("t", b"x" * 1000), V5)
        for piece in (whole[:5], whole[5:300], whole[300:]):
            await peer.websocket.send(piece)
        answers = [await peer.receive() for _ in range(4)]
        assert answers.count(PingResp()) == 3


async def test_a_fragmented_message() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        packet = encode(Publish("t", bytes(5000), 1, packet_id=3), V5)

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(packet), 700):
                yield packet[at : at + 700]

        await peer.websocket.send(pieces())
        assert await peer.receive() == PubAck(3)


async def test_pings_of_the_websocket_are_answered() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer, asyncio.timeout(PATIENCE_S):
        await (await peer.websocket.ping(b"hello"))


async def test_a_text_frame_ends_it() -> None:
    """[MQTT-6.0.0-1]"""
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        await peer.websocket.send("text")
        assert await peer.close_code() == CloseCode.UNSUPPORTED_DATA
        await eventually(lambda: not server._connections)
        assert server.broker.registry.connected == 0


async def test_nothing_behind_a_text_frame_is_taken() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        text = Frame(Opcode.TEXT, b"text").serialize(mask=True)
        packet = Frame(Opcode.BINARY, encode(Publish("t", b"x", 0, True), V5)).serialize(mask=True)
        peer.websocket.transport.write(text + packet)
        await eventually(lambda: not server._connections)
        assert server.broker.retained.get("t") is None


async def test_a_message_cut_into_a_text_start_is_not_taken() -> None:
    """What continues a text message is text, whatever its frames are called."""
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        packet = encode(Publish("t", b"x", 0, True), V5)
        start = Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True)
        peer.websocket.transport.write(start + Frame(Opcode.CONT, packet).serialize(mask=True))
        await eventually(lambda: not server._connections)
        assert server.broker.retained.get("t") is None


async def test_frames_that_break_the_rules_end_it(caplog: pytest.LogCaptureFixture) -> None:
    frames = [
        Frame(Opcode.BINARY, b"x").serialize(mask=False),  # a client masks
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        Frame(Opcode.CONT, b"x").serialize(mask=True),  # of nothing
        b"\x83\x80\0\0\0\0",  # an unknown opcode
    ]
    async with serving(WEBSOCKET) as server:
        for frame in frames:
            async with browser(server) as peer:
                peer.websocket.transport.write(frame)
                assert await peer.close_code() == CloseCode.PROTOCOL_ERROR
        await eventually(lambda: not server._connections)
        assert server.broker.registry.connected == 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_frame_larger_than_any_packet_is_refused() -> None:
    limits = Limits(packet_size_bytes=2 << 20)
    async with serving(WEBSOCKET, limits=limits) as server, browser(server) as peer:
        await peer.websocket.send(bytes((2 << 20) + 1025))
        assert await peer.close_code() == CloseCode.MESSAGE_TOO_BIG


async def test_a_frame_of_many_small_packets_may_be_larger_than_any_of_them() -> None:
    """[MQTT-6.0.0-2]"""
    limits = Limits(packet_size_bytes=1000)
    async with serving(WEBSOCKET, limits=limits) as server, browser(server) as peer:
        await peer.send(*(Publish("t", bytes(900)) for _ in range(1000)), PingReq())
        assert await peer.receive() == PingResp()


async def test_begun_frames_may_not_fill_the_memory() -> None:
    """Nobody has said who he is: all of them together get what begun packets get."""
    limits = Limits(packet_size_bytes=1 << 20, memory_bytes=8 << 20)
    begun = Frame(Opcode.BINARY, bytes(1 << 20)).serialize(mask=True)[:-10]
    async with serving(WEBSOCKET, limits=limits) as server:
        async with contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(browser(server, None)) for _ in range(12)]
            for peer in peers:
                peer.websocket.transport.write(begun)
            await eventually(lambda: len(server._connections) < 12)
            assert server.broker.partial_bytes <= 5 << 20
            ended = [peer for peer in peers if peer.websocket.state is not State.OPEN]
            assert {await peer.close_code() for peer in ended} <= {CloseCode.TRY_AGAIN_LATER}
        await eventually(lambda: not server._connections)
        assert server.broker.partial_bytes == 0
        async with browser(server) as good:
            await good.send(Publish("t", bytes(900_000), 1, packet_id=1))
            assert isinstance(await good.receive(), PubAck)
        assert server.broker.partial_bytes == 0


async def test_a_large_message_both_ways() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        await peer.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
        assert isinstance(await peer.receive(), SubAck)
        payload = os.urandom(3_000_000)
        await peer.send(Publish("t", payload, 1, packet_id=1))
        answers = [await peer.receive(), await peer.receive()]
        assert [answer.payload for answer in answers if isinstance(answer, Publish)] == [payload]


@pytest.mark.parametrize("path", ["/mqtt", "/elsewhere"])
async def test_frames_that_do_not_wait_for_the_handshake(path: str) -> None:
    """They are taken if the handshake is good, and only then."""
    packets = encode(Connect("hasty", V5), V5) + encode(Publish("t", b"x", 0, True), V5)
    async with serving(WEBSOCKET) as server, stream(server) as peer:
        peer.write(_request(path) + Frame(Opcode.BINARY, packets).serialize(mask=True))
        if path == "/mqtt":
            await eventually(lambda: server.broker.retained.get("t") is not None)
        else:
            assert b" 404 " in await peer.rest()
            assert server.broker.retained.get("t") is None


# -- ends ----------------------------------------------------------------------------------------------


async def test_a_clean_close_of_the_websocket_ends_the_client() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        await peer.websocket.close()
        await eventually(lambda: not server._connections)
        assert server.broker.registry.connected == 0


@pytest.mark.parametrize("said_goodbye", [True, False])
async def test_what_came_with_the_close_counts(said_goodbye: bool) -> None:
    """A browser that publishes, disconnects and closes may do it all in one segment."""
    async with serving(WEBSOCKET, Listener()) as server, client(server, "plain", 1) as plain:
        await plain.subscribe("t", "will", qos=1)
        async with browser(server, None) as peer:
            await peer.send(Connect("browser", V5, will=Will("will", b"dead", 1)))
            assert isinstance(await peer.receive(), ConnAck)
            packets: list[Packet] = [Publish("t", b"last", 1, packet_id=1)]
            if said_goodbye:
                packets.append(Disconnect())
            frames = [Frame(Opcode.BINARY, encode(packet, V5)) for packet in packets]
            frames.append(Frame(Opcode.CLOSE, b"\x03\xe8"))
            peer.websocket.transport.write(b"".join(frame.serialize(mask=True) for frame in frames))
            assert await peer.close_code() == CloseCode.NORMAL_CLOSURE
        await eventually(lambda: len(server._connections) == 1)
        plain.send(Publish("t", b"end"))
        found: list[bytes] = []
        while b"end" not in found:
            message = await plain.receive()
            assert isinstance(message, Publish)
            if message.qos:
                plain.send(PubAck(message.packet_id))
            found.append(message.payload)
        assert found == ([b"last", b"end"] if said_goodbye else [b"last", b"dead", b"end"])


async def test_nothing_of_a_text_message_is_taken_before_a_close() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        packet = encode(Publish("t", b"x", 0, True), V5)
        frames = [
            Frame(Opcode.TEXT, b"", fin=False),
            Frame(Opcode.CONT, packet),
            Frame(Opcode.BINARY, packet),
            Frame(Opcode.CLOSE, b"\x03\xe8"),
        ]
        peer.websocket.transport.write(b"".join(frame.serialize(mask=True) for frame in frames))
        await eventually(lambda: not server._connections)
        assert server.broker.retained.get("t") is None


async def test_disconnect_closes_the_websocket() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        await peer.send(Disconnect())
        assert await peer.close_code() == CloseCode.NORMAL_CLOSURE


async def test_stop_says_goodbye_in_both_protocols() -> None:
    async with serving(WEBSOCKET) as server, browser(server) as peer:
        stopping = asyncio.create_task(server.stop())
        assert await peer.receive() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        with pytest.raises(ConnectionClosed):
            await peer.receive()
        assert await peer.close_code() == CloseCode.NORMAL_CLOSURE
        await stopping


async def test_one_client_too_many_is_told_so() -> None:
    async with (
        serving(WEBSOCKET, limits=Limits(connections=1)) as server,
        browser(server, "one"),
        browser(server, None) as second,
    ):
        await second.send(Connect("two", V5))
        answer = await second.receive()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED


# -- peers that do not read ------------------------------------------------------------------------------


async def test_pings_whose_answers_nobody_reads_do_not_pile_up() -> None:
    ping = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 500
    async with serving(WEBSOCKET) as server, browser(server) as good:
        with await _handshaken(server) as deaf:
            held = _Unsent(server)
            sent = 0
            with _nonblocking(deaf):
                while sent < 30_000_000 and held.size() < 4_000_000 and not held.is_gone():
                    try:
                        sent += deaf.send(ping)
                    except BlockingIOError:
                        if not await held.moves():
                            break  # it reads no more from us: that is an answer too
                    except ConnectionError:
                        break
                    await asyncio.sleep(0)
            await good.send(PingReq())
            assert await good.receive() == PingResp()
            assert held.size() < 4_000_000


async def test_a_close_that_cannot_be_sent_does_not_hold_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    async with serving(WEBSOCKET, Listener()) as server, client(server, "publisher", 1) as publisher:
        with await _handshaken(server) as deaf:
            packets = encode(Connect("deaf", V5), V5) + encode(Subscribe(1, (SubscriptionRequest("t", 0),)), V5)
            deaf.sendall(Frame(Opcode.BINARY, packets).serialize(mask=True))
            await eventually(lambda: bool(server.broker.subscriptions.count))
            link = server.broker.registry.sessions["deaf"].link
            while link is not None and not link.blocked:
                await publisher.publish("t", bytes(1_000_000))
            deaf.sendall(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
            await eventually(lambda: len(server._connections) == 1, "its end", patience_s=5)


class _Unsent:
    """What the server holds for its newest connection."""

    def __init__(self, server: Server) -> None:
        (self._connection,) = [each for each in server._connections if each._link.state == 0]  # type: ignore[union-attr,attr-defined]
        self._last = -1

    def is_gone(self) -> bool:
        return self._connection._transport is None

    def size(self) -> int:
        transport = self._connection._transport
        return transport.get_write_buffer_size() if transport is not None else 0

    async def moves(self) -> bool:
        """Does the server read on? Nothing else would make what it holds grow."""
        for _ in range(20):
            await asyncio.sleep(0.005)
            if self.size() != self._last:
                self._last = self.size()
                return True
        return False


def _request(path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


async def _handshaken(server: Server) -> socket.socket:
    """A WebSocket over a bare socket with a small receive buffer, which nobody reads."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port_of(server)))
    await loop.sock_sendall(sock, _request("/mqtt"))
    answer = b""
    async with asyncio.timeout(PATIENCE_S):
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(sock, 1)
    assert b" 101 " in answer
    sock.setblocking(True)
    return sock


class _nonblocking:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __enter__(self) -> None:
        self._sock.setblocking(False)

    def __exit__(self, *error: object) -> None:
        self._sock.setblocking(True)
