"""What goes wrong outside the client: brokers that die, hang, refuse or lie; peers that misbehave."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import polybus
from polybus.client import (
    AnswerUnclaimed,
    Backoff,
    Bus,
    BusClosed,
    BusEvent,
    Connected,
    ConnectionFailed,
    ConnectRefused,
    Disconnected,
    Message,
    NotDelivered,
    PublishRefused,
    RequestFailed,
    RequestTimeout,
    ServiceError,
)
from polybus.wire.tbus.codec import decode, encode, next_frame
from polybus.wire.tbus.packets import ConnAck, Packet, Publish, ReqAck, RequestState, SubAck, Subscribe
from tests.client.brokers import USER, Broker, running_broker, unique
from tests.client.certificates import Certificates
from tests.client.fake_broker import eventually
from tests.e2e.tbus_peer import connected

QUICK = Backoff(0.02, 0.2)
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("polybus.client").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("polybus.client").setLevel(logging.NOTSET)


def count(events: list[BusEvent], kind: type[BusEvent]) -> int:
    return sum(isinstance(event, kind) for event in events)


async def echo(request: Message) -> bytes:
    await asyncio.sleep(0)
    return request.payload


# --- the broker dies --------------------------------------------------------------------------------


@pytest.mark.parametrize(("service_at", "requester_at"), [("tbus", "tbus"), ("tcp", "tcp"), ("tcp", "tbus")])
async def test_broker_killed_and_started_again_during_traffic(
    own_polybus: Broker, service_at: str, requester_at: str
) -> None:
    """The clients come back by themselves, and no request is left without an end."""
    topic = unique("echo")
    events: list[BusEvent] = []
    ends: list[bytes | RequestFailed] = []
    is_over = False

    async def ask(bus: Bus, name: int) -> None:
        number = 0
        while not is_over:
            payload = b"%d %d" % (name, number)
            number += 1
            try:
                answer = await bus.request(topic, payload, timeout=20)
            except RequestFailed as error:
                ends.append(error)
            else:
                assert answer.payload == payload
                ends.append(payload)

    async with (
        polybus.connect(own_polybus.url(service_at), client_id="svc", reconnect=QUICK) as theirs,
        polybus.connect(
            own_polybus.url(requester_at), client_id="ask", reconnect=QUICK, on_event=events.append
        ) as ours,
    ):
        await theirs.serve(topic, echo, concurrency=10)
        asking = [asyncio.create_task(ask(ours, name)) for name in range(20)]
        for round_ in range(1, 3):
            before = len(ends)
            await eventually(lambda before=before: len(ends) > before + 200, 30)  # type: ignore[misc]
            own_polybus.kill()
            await asyncio.to_thread(own_polybus.start)
            await eventually(lambda round_=round_: count(events, Connected) > round_, 30)  # type: ignore[misc]
        before = len(ends)
        await eventually(lambda: len(ends) > before + 200, 30)
        is_over = True
        async with asyncio.timeout(40):
            await asyncio.gather(*asking)
    failed = [end for end in ends if isinstance(end, RequestFailed)]
    assert failed == []  # there was time enough for all of them
    again = [event for event in events if isinstance(event, Connected) and event.attempt]
    assert sum(event.requests for event in again) > 0


async def test_broker_that_stays_away_is_reported(own_polybus: Broker) -> None:
    bus = await polybus.connect(own_polybus.url("tbus"), reconnect=Backoff(0.01, 0.01, attempts=2))
    asking = asyncio.create_task(bus.request("x", timeout=60))
    serving = asyncio.create_task(bus.serve_forever())
    await asyncio.sleep(0)
    own_polybus.kill()
    for task in (asking, serving):
        with pytest.raises(ConnectionFailed, match="refused"):
            await asyncio.wait_for(task, 20)
    with pytest.raises(BusClosed, match="ended"):
        await bus.request("x")
    await bus.disconnect()


async def test_request_made_while_the_broker_is_away(own_polybus: Broker) -> None:
    events: list[BusEvent] = []
    async with polybus.connect(own_polybus.url("tbus"), reconnect=QUICK, on_event=events.append) as bus:
        await bus.serve("echo", echo)
        own_polybus.kill()
        await eventually(lambda: count(events, Disconnected))
        with pytest.raises(RequestTimeout, match="not sent"):
            await bus.request("echo", timeout=0.1)
        asking = asyncio.create_task(bus.request("echo", b"hello", timeout=60))
        await asyncio.sleep(0)
        await asyncio.to_thread(own_polybus.start)
        assert (await asking).payload == b"hello"


# --- the broker hangs -------------------------------------------------------------------------------


async def test_half_open_connection_is_noticed(own_polybus: Broker) -> None:
    """TB-06: a ping after half the keep alive, and 5 s for its answer."""
    events: list[BusEvent] = []
    async with polybus.connect(
        own_polybus.url("tbus"), keep_alive_s=1, reconnect=QUICK, on_event=events.append
    ) as bus:
        own_polybus.pause()
        try:
            await eventually(lambda: count(events, Disconnected), 20)
        finally:
            own_polybus.go_on()
        await eventually(lambda: count(events, Connected) == 2, 20)
        await bus.serve("echo", echo)
        assert (await bus.request("echo", b"x")).payload == b"x"
    lost = next(event for event in events if isinstance(event, Disconnected))
    assert "pings" in str(lost.error)


class Fake:
    """What a broker that does nothing by itself was sent, and how to make it speak."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Packet] = []
        self.writer: asyncio.StreamWriter | None = None

    def say(self, *packets: Packet) -> None:
        assert self.writer is not None
        self.writer.write(b"".join(map(encode, packets)))


@asynccontextmanager
async def fake_broker(*, answers: bool = True) -> AsyncIterator[Fake]:
    """Welcomes a client and grants its subscriptions, and does nothing else."""
    fake = Fake()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = b""
        fake.writer = writer
        if answers:
            writer.write(encode(ConnAck()))
        while data := await reader.read(65_536):
            buffer += data
            while (frame := next_frame(buffer, 0, 1 << 28)) is not None:
                first_byte, start, end = frame
                packet = decode(first_byte, buffer[start:end])
                buffer = buffer[end:]
                fake.received.append(packet)
                if isinstance(packet, Subscribe):
                    writer.write(encode(SubAck(packet.packet_id)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        fake.url = f"tbus://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield fake
    finally:
        server.close()
        await server.wait_closed()


async def test_broker_that_never_answers_requests() -> None:
    async with fake_broker() as fake, polybus.connect(fake.url) as bus:
        with pytest.raises(RequestTimeout, match=r"0\.2 s"):
            await bus.request("x", timeout=0.2)
        await bus.publish("x", b"y")


async def test_broker_that_never_welcomes() -> None:
    async with fake_broker(answers=False) as fake:
        with pytest.raises(ConnectionFailed, match="no answer"):
            await polybus.connect(fake.url, connect_timeout_s=0.2)


async def test_all_ids_in_use() -> None:
    """The next request waits for one, and no longer than its time."""
    async with fake_broker() as fake, polybus.connect(fake.url, bulk="off") as bus:
        pending = [await bus.ask("x", timeout=60) for _ in range(0xFFFF)]
        assert len({each.id for each in pending}) == 0xFFFF
        with pytest.raises(RequestTimeout, match="unfinished"):
            await bus.request("x", timeout=0.1)
        waiting = asyncio.create_task(bus.request("x", b"the next", timeout=60))
        await asyncio.sleep(0)
        free = pending[7].id
        fake.say(ReqAck(free, RequestState.TIMED_OUT))
        await eventually(lambda: fake.received[-1] == _request(free), 30)
        with pytest.raises(RequestTimeout):
            await pending[7]
        answer = Publish(None, b"yes", is_response=True, response_destination="c", packet_id=free)
        fake.say(answer)
        assert (await waiting).payload == b"yes"


def _request(packet_id: int) -> Publish:
    return Publish("x", b"the next", is_request=True, timeout_s=60, packet_id=packet_id)


async def test_not_a_broker_at_all() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(polybus.client.ClientError):
            await polybus.connect(f"tbus://127.0.0.1:{port}", connect_timeout_s=5)
    finally:
        server.close()
        await server.wait_closed()


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match="refused"):
        await polybus.connect(f"tbus://127.0.0.1:{port}")


# --- the broker refuses -----------------------------------------------------------------------------


async def test_id_in_use_and_wrong_token(
    polybus_broker: Broker, tmp_path: Path, certificates: Certificates
) -> None:
    name = unique("same")
    async with polybus.connect(polybus_broker.url("tbus"), client_id=name):
        with pytest.raises(ConnectRefused) as caught:
            await polybus.connect(polybus_broker.url("tbus"), client_id=name)
        assert caught.value.reason_code == 132
    with running_broker("polybus", tmp_path, certificates, wants_login=True) as guarded:
        for url, user in ((guarded.url("tbus"), USER), (guarded.url(), USER)):
            with pytest.raises(ConnectRefused):
                await polybus.connect(url, user_name=user, token="wrong")
            async with polybus.connect(url, user_name=user, token="secret") as bus:
                await bus.serve(topic := unique("x"), echo)
                assert (await bus.request(topic, b"in")).payload == b"in"


async def test_full_broker_sends_us_elsewhere(
    polybus_broker: Broker, tmp_path: Path, certificates: Certificates
) -> None:
    """TB-14"""
    place = f"127.0.0.1:{polybus_broker.ports['tbus']}"
    settings = f'[limits]\nconnections = 1\n[tbus]\nserver_reference = "127.0.0.1:1;{place}"\n'
    topic = unique("elsewhere")
    with running_broker("polybus", tmp_path, certificates, settings=settings) as full:
        async with (
            polybus.connect(full.url("tbus")),
            polybus.connect(full.url("tbus")) as sent_on,
            polybus.connect(polybus_broker.url("tbus")) as there,
        ):
            await there.serve(topic, echo)
            assert (await sent_on.request(topic, b"x")).payload == b"x"
    with running_broker("polybus", tmp_path, certificates, settings="[limits]\nconnections = 1\n") as full:
        async with polybus.connect(full.url("tbus")):
            with pytest.raises(ConnectRefused) as caught:
                await polybus.connect(full.url("tbus"))
            assert caught.value.reason_code == 131


# --- sizes ------------------------------------------------------------------------------------------


async def test_64_mb(tmp_path: Path, certificates: Certificates) -> None:
    settings = f"[limits]\npacket_size_bytes = {80 * MIB}\noutbox_bytes_per_connection = {200 * MIB}\n"
    payload = bytes(64 * MIB)
    with running_broker("polybus", tmp_path, certificates, settings=settings) as broker:
        for listener in ("tbus", "tcp"):
            async with polybus.connect(broker.url(listener), connect_timeout_s=30) as bus:
                await bus.serve("big", lambda request: request.payload)
                answer = await bus.request("big", payload, timeout=60)
                assert len(answer.payload) == len(payload)
                messages = await bus.subscribe("news")
                await bus.publish("news", payload)
                assert len((await messages.get(60)).payload) == len(payload)


@pytest.mark.parametrize("listener", ["tbus", "tcp"])
async def test_what_is_too_large_is_said_and_not_sent_for_ever(
    tmp_path: Path, certificates: Certificates, listener: str
) -> None:
    events: list[BusEvent] = []
    settings = f"[limits]\npacket_size_bytes = {MIB}\n"
    with running_broker("polybus", tmp_path, certificates, settings=settings) as broker:
        async with polybus.connect(broker.url(listener), reconnect=QUICK, on_event=events.append) as bus:
            await bus.serve("big", lambda request: bytes(int(request.payload or "0")))
            with pytest.raises((PublishRefused, polybus.client.ConnectionLost)):
                await bus.publish("news", bytes(2 * MIB))
            with pytest.raises(NotDelivered, match=r"too large|larger"):
                await bus.request("big", bytes(2 * MIB), timeout=60)
            with pytest.raises(ServiceError, match=r"larger|not take"):
                await bus.request("big", str(2 * MIB), timeout=60)
            assert len((await bus.request("big", str(MIB // 2), timeout=60)).payload) == MIB // 2
    assert count(events, Connected) < 10


# --- a service that misbehaves ----------------------------------------------------------------------


async def test_service_that_answers_twice(polybus_broker: Broker) -> None:
    topic = unique("twice")
    async with polybus.connect(polybus_broker.url("tbus")) as bus:
        with connected(polybus_broker.ports["tbus"]) as peer:
            peer.subscribe(topic, 2)
            for number in range(3):
                asking = asyncio.create_task(bus.request(topic, b"%d" % number))
                request = await asyncio.to_thread(peer.given)
                for _ in range(3):
                    peer.answer(request, b"answer to " + request.payload)
                assert (await asking).payload == b"answer to %d" % number
                for _ in range(2):
                    await asyncio.to_thread(peer.receive)  # REQACK 14: it is told
            assert bus.is_connected


async def test_service_that_dies_with_the_request_in_hand(polybus_broker: Broker) -> None:
    topic = unique("dies")
    async with polybus.connect(polybus_broker.url("tbus")) as bus:
        with connected(polybus_broker.ports["tbus"]) as other:
            other.subscribe(topic, 1)
            asking = asyncio.create_task(bus.request(topic, b"x", timeout=30))
            await asyncio.to_thread(other.given)
            await bus.serve(topic, echo)
        assert (await asking).payload == b"x"


async def test_second_run_hears_of_the_requests_of_the_first(polybus_broker: Broker) -> None:
    topic, name = unique("away"), unique("asker")
    events: list[BusEvent] = []
    async with polybus.connect(polybus_broker.url("tbus"), client_id=name) as first:
        pending = await first.ask(topic, b"x", timeout=60)
    with pytest.raises(BusClosed):
        await pending
    async with polybus.connect(polybus_broker.url("tbus")) as theirs:
        seen: list[Message] = []
        await theirs.serve(topic, lambda request: seen.append(request) or b"late")  # type: ignore[func-returns-value]
        await eventually(lambda: seen)
        url = polybus_broker.url("tbus")
        async with polybus.connect(url, client_id=name, clean_start=False, on_event=events.append):
            await eventually(lambda: count(events, AnswerUnclaimed))
    [late] = [event for event in events if isinstance(event, AnswerUnclaimed)]
    assert late == AnswerUnclaimed(pending.id, Message("", b"late"))
