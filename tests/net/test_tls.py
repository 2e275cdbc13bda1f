"""TLS listeners: encryption, client certificates and the names in them, peers that speak no TLS."""

import asyncio
import logging
import socket
import ssl

import pytest

from polybus.broker.limits import Limits
from polybus.ops.config import Auth
from polybus.ops.listeners import Listener
from polybus.wire.mqtt.packets import V5, V311, Connect, PubAck, Publish, ReasonCode
from tests.client.certificates import Certificates
from tests.net.peers import check_exchange, client, eventually, port_of, serving, stream, trusting


def listener(certificates: Certificates, *, client_ca: bool = False, required: bool = False) -> Listener:
    return Listener(
        kind="tls",
        certificate=certificates.cert("server"),
        private_key=certificates.key("server"),
        client_ca=certificates.cert("ca") if client_ca else None,
        require_client_certificate=required,
    )


@pytest.mark.parametrize("version", [V311, V5])
async def test_exchange(certificates: Certificates, version: int) -> None:
    context = trusting(certificates)
    async with (
        serving(listener(certificates)) as server,
        client(server, "one", version=version, ssl=context) as one,
        client(server, "two", version=version, ssl=context) as two,
    ):
        assert server.urls[0].startswith("mqtts://127.0.0.1:")
        await check_exchange(one, two)


async def test_a_large_message(certificates: Certificates) -> None:
    context = trusting(certificates)
    async with (
        serving(listener(certificates)) as server,
        client(server, "one", ssl=context) as one,
        client(server, "two", ssl=context) as two,
    ):
        await check_exchange(one, two, bytes(range(256)) * 8_000)


async def test_old_protocol_versions_are_refused(certificates: Certificates) -> None:
    context = trusting(certificates)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(listener(certificates)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with stream(server, ssl=context):
                pass


async def test_a_client_without_a_certificate_is_refused(certificates: Certificates) -> None:
    async with serving(listener(certificates, client_ca=True, required=True)) as server:
        async with client(server, "good", ssl=trusting(certificates, "client")) as good:
            # With TLS 1.3 the client's handshake is over before the server has judged.
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                async with client(server, "bad", ssl=trusting(certificates)):
                    pass
            await good.ping()
        await eventually(lambda: not server._connections)


async def test_a_certificate_of_strangers_is_refused(certificates: Certificates) -> None:
    async with serving(listener(certificates, client_ca=True)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            async with client(server, "bad", ssl=trusting(certificates, "stranger-ca")):
                pass
        async with client(server, "none", ssl=trusting(certificates)) as none:  # not required here
            await none.ping()


async def test_the_certificate_name_is_the_user(certificates: Certificates) -> None:
    tls = listener(certificates, client_ca=True)
    async with serving(tls, auth=Auth(use_certificate_name=True)) as server:
        async with client(server, "named", ssl=trusting(certificates, "client")):
            assert server.broker.registry.sessions["named"].user == "client"
        async with stream(server, ssl=trusting(certificates)) as nameless:
            answer = await nameless.greet(Connect("nameless", V5))
            assert answer.reason_code == ReasonCode.NOT_AUTHORIZED


async def test_without_that_setting_the_certificate_is_no_user(certificates: Certificates) -> None:
    async with (
        serving(listener(certificates, client_ca=True)) as server,
        client(server, "x", ssl=trusting(certificates, "client")),
    ):
        assert server.broker.registry.sessions["x"].user is None


@pytest.mark.parametrize(
    "said",
    [
        b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)),
        b"\x16\x03\x01",
    ],
    ids=["mqtt", "http", "noise", "hello cut short"],
)
async def test_no_tls_is_closed_and_not_worth_a_traceback(
    certificates: Certificates, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(listener(certificates)) as server,
        client(server, "one", ssl=trusting(certificates)) as one,
    ):
        async with stream(server) as peer:
            peer.write(said)
            peer.half_close()
            await peer.rest()
        await one.ping()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_handshake_that_does_not_come_is_not_waited_for(certificates: Certificates) -> None:
    """The time to CONNECT covers the handshake: a silent socket costs as much on this listener."""
    async with (
        serving(listener(certificates), limits=Limits(connect_timeout_s=0.3)) as server,
        stream(server) as silent,
    ):
        async with asyncio.timeout(3):
            await silent.rest()


async def test_sockets_in_their_handshake_count(certificates: Certificates) -> None:
    """Whoever cannot be told about the limit need not be: but the sockets are held to it."""
    async with serving(listener(certificates), limits=Limits(connections=1)) as server:
        sockets = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(100)]
        try:
            for each in sockets:
                each.setblocking(False)
            await eventually(lambda: any(_is_closed(each) for each in sockets), "a refusal", patience_s=3)
        finally:
            for each in sockets:
                each.close()


async def test_stop_says_goodbye_and_ends_tls(certificates: Certificates) -> None:
    async with (
        serving(listener(certificates)) as server,
        client(server, "one", ssl=trusting(certificates)) as one,
        client(server, "two", ssl=trusting(certificates)) as two,
    ):
        await one.subscribe("t", qos=1)
        two.send(Publish("t", b"last", 1, packet_id=1))
        assert await two.receive() == PubAck(1)
        stopping = asyncio.create_task(server.stop())
        packets = await one.packets_to_the_end()
        await stopping
        assert [type(packet).__name__ for packet in packets] == ["Publish", "Disconnect"]


def _is_closed(each: socket.socket) -> bool:
    try:
        return each.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
