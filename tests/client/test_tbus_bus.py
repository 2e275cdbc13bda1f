"""The bus over a TBus broker in the same loop: what services and requests do when things come in odd order."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polybus.client import Backoff, Bus, BusEvent, Connected, HandlerFailed, Message, MessagesDropped
from polybus.client.service import MAX_QUEUE
from polybus.client.tbus_core import TbusCore
from polybus.client.tbus_settings import TbusSettings
from polybus.client.transport import Receiver, Transport
from polybus.session.tbus.options import BulkMode
from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    Packet,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.client.fake_broker import FakeTransport, eventually


class FakeTbusBroker:
    """Welcomes, and grants subscriptions; the rest the tests do."""

    def __init__(self) -> None:
        self.received: list[Packet] = []
        self.writes = 0
        self.transport: FakeTransport | None = None

    def bus(self, on_event: Callable[[BusEvent], None] | None = None, bulk: BulkMode = "adaptive") -> Bus:
        return Bus(
            TbusCore(TbusSettings("c", bulk=bulk)),
            self.dial,
            timeout_s=5.0,
            connect_timeout_s=5.0,
            reconnect=Backoff(0.001, 0.002),
            on_event=on_event,
        )

    async def dial(self, receiver: Receiver) -> Transport:
        self.transport = FakeTransport(self, receiver)  # type: ignore[arg-type]
        return self.transport

    def receive(self, data: bytes) -> None:
        self.writes += 1
        pos = 0
        while (frame := next_frame(data, pos, 1 << 28)) is not None:
            first_byte, start, pos = frame
            packet = decode(first_byte, data[start:pos])
            inside = [packet]
            if isinstance(packet, Bulk):
                body = packet.body
                inside = [decode(kind, body[begin:stop]) for kind, begin, stop in frames(body)]
            for each in inside:
                self.take(each)

    def take(self, packet: Packet) -> None:
        self.received.append(packet)
        match packet:
            case Connect():
                self.send(ConnAck())
            case Subscribe():
                self.send(SubAck(packet.packet_id))
            case Unsubscribe():
                self.send(UnsubAck(packet.packet_id))

    def send(self, *packets: Packet) -> None:
        assert self.transport is not None
        self.transport.deliver(b"".join(map(encode, packets)))

    def lose(self) -> None:
        assert self.transport is not None
        transport, self.transport = self.transport, None
        transport.is_closed = True
        transport.receiver.transport_closed(ConnectionResetError("reset"))

    def set_writable(self, is_writable: bool) -> None:
        assert self.transport is not None
        self.transport.receiver.writable_changed(is_writable)

    def got(self, kind: type[Packet]) -> list[Packet]:
        return [packet for packet in self.received if isinstance(packet, kind)]

    def answers(self) -> list[bytes]:
        return [packet.payload for packet in self.got(Publish) if packet.is_response]  # type: ignore[union-attr]


def given(payload: bytes = b"?", packet_id: int = 1, topic: str = "t") -> Publish:
    return Publish(topic, payload, is_request=True, timeout_s=5, response_destination="a", packet_id=packet_id)


def answer(packet_id: int, payload: bytes = b"y") -> Publish:
    return Publish(None, payload, is_response=True, response_destination="c", packet_id=packet_id)


@pytest.fixture
def broker() -> FakeTbusBroker:
    return FakeTbusBroker()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("polybus.client").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("polybus.client").setLevel(logging.NOTSET)


# --- output -----------------------------------------------------------------------------------------


async def test_all_of_a_turn_is_one_write(broker: FakeTbusBroker) -> None:
    async with broker.bus() as bus:
        before = broker.writes
        asking = [asyncio.create_task(bus.request("t", b"%d" % number)) for number in range(100)]
        await eventually(lambda: len(broker.got(Publish)) == 100)
        assert broker.writes == before + 1
        broker.send(*(answer(packet.packet_id) for packet in broker.got(Publish)))  # type: ignore[union-attr]
        await asyncio.gather(*asking)


async def test_priority_overtakes_what_the_transport_does_not_take(broker: FakeTbusBroker) -> None:
    """TB-11"""
    async with broker.bus() as bus:
        pending = [await bus.ask("t", b"regular %d" % number) for number in range(3)]
        broker.set_writable(False)
        waiting = asyncio.create_task(bus.publish("t", b"message"))
        asking = asyncio.create_task(bus.request("t", b"urgent request", priority=True))
        await bus.publish("t", b"urgent message", priority=True)
        await asyncio.sleep(0)
        assert broker.got(Publish) == []
        assert not waiting.done()
        broker.set_writable(True)
        await eventually(lambda: len(broker.got(Publish)) == 6)
        broker.send(*(answer(number) for number in range(1, 5)))
        await asyncio.gather(*pending, asking, waiting)
    order = [packet.payload for packet in broker.got(Publish)]  # type: ignore[union-attr]
    assert set(order[:2]) == {b"urgent request", b"urgent message"}
    assert order[2:] == [b"regular 0", b"regular 1", b"regular 2", b"message"]


async def test_priority_is_first_among_what_waits_together(broker: FakeTbusBroker) -> None:
    async with broker.bus() as bus:
        for number in range(3):
            await bus.publish("t", b"regular %d" % number)
        await bus.publish("t", b"urgent", priority=True)
        await eventually(lambda: len(broker.got(Publish)) == 4)
    order = [packet.payload for packet in broker.got(Publish)]  # type: ignore[union-attr]
    assert order == [b"urgent", b"regular 0", b"regular 1", b"regular 2"]


async def test_window_that_ends_while_the_transport_takes_nothing(broker: FakeTbusBroker) -> None:
    """It waits for the transport, and does not turn in circles meanwhile."""
    async with broker.bus(bulk="fixed") as bus:
        for _ in range(20):
            await bus.publish("t", b"x")
        core = bus._core
        await eventually(lambda: (core.deadline() or 1e9) < asyncio.get_running_loop().time() + 1)
        broker.set_writable(False)
        await eventually(lambda: (core.deadline() or 1e9) <= asyncio.get_running_loop().time())
        ticks = 0
        tick = core.tick

        def count(**arguments: Any) -> Any:
            nonlocal ticks
            ticks += 1
            return tick(**arguments)

        core.tick = count  # type: ignore[method-assign]
        for _ in range(300):
            await asyncio.sleep(0)
        assert ticks < 30
        assert broker.got(Publish) == []
        broker.set_writable(True)
        await eventually(lambda: len(broker.got(Publish)) == 20)


# --- services ---------------------------------------------------------------------------------------


async def test_request_given_again_is_not_begun_again(broker: FakeTbusBroker) -> None:
    """After a loss the broker may give the same instance the same request once more."""
    begun: list[bytes] = []
    go_on = asyncio.Event()

    async def work(request: Message) -> bytes:
        begun.append(request.payload)
        await go_on.wait()
        return b"done"

    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        await bus.serve("t", work, concurrency=3)
        broker.send(given())
        await eventually(lambda: begun)
        broker.lose()
        await eventually(lambda: sum(isinstance(event, Connected) for event in events) == 2)
        assert [packet.concurrency for packet in broker.got(Subscribe)] == [3, 3]  # type: ignore[union-attr]
        broker.send(given())
        broker.send(given(b"another", 2))
        await eventually(lambda: begun == [b"?", b"another"])
        go_on.set()
        await eventually(lambda: len(broker.answers()) == 2)
    assert broker.answers() == [b"done", b"done"]


async def test_another_request_under_the_same_id_gets_its_own_answer(broker: FakeTbusBroker) -> None:
    gates = {b"old": asyncio.Event(), b"new": asyncio.Event()}

    async def work(request: Message) -> bytes:
        await gates[request.payload].wait()
        return b"answer to " + request.payload

    async with broker.bus() as bus:
        service = await bus.serve("t", work, concurrency=2)
        broker.send(given(b"old"))
        broker.send(given(b"new"))  # the first one timed out while we were away
        await eventually(lambda: len(service._workers) == 2)
        gates[b"old"].set()
        gates[b"new"].set()
        await eventually(lambda: broker.answers())
        await eventually(lambda: not service._workers)
    assert broker.answers() == [b"answer to new"]


async def test_cancel_before_during_and_after(broker: FakeTbusBroker) -> None:
    begun: list[bytes] = []
    stubborn = asyncio.Event()

    async def work(request: Message) -> bytes:
        begun.append(request.payload)
        try:
            await stubborn.wait()
        except asyncio.CancelledError:
            return b"I do not care"  # and is not heard
        return b"done"

    async with broker.bus() as bus:
        service = await bus.serve("t", work)
        broker.send(given(b"1", 1), given(b"2", 2), given(b"3", 3))
        await eventually(lambda: begun == [b"1"])
        broker.send(ReqAck(2, RequestState.CANCELED, "a", "t"), ReqAck(1, RequestState.CANCELED, "a", "t"))
        await eventually(lambda: begun == [b"1", b"3"])
        assert service.in_hand == 1
        stubborn.set()
        await eventually(lambda: broker.answers())
        broker.send(ReqAck(3, RequestState.CANCELED, "a", "t"), ReqAck(99, RequestState.CANCELED, "a", "t"))
        broker.send(given(b"4", 4))
        await eventually(lambda: len(broker.answers()) == 2)
    assert broker.answers() == [b"done", b"done"]


async def test_handler_can_still_use_timeouts_after_a_cancel(broker: FakeTbusBroker) -> None:
    """The worker that was interrupted has no cancel left over."""

    async def work(request: Message) -> bytes:
        if request.payload == b"hang":
            await asyncio.Event().wait()
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return b"timed out as it should"
        return b""

    async with broker.bus() as bus:
        service = await bus.serve("t", work)
        broker.send(given(b"hang", 1), given(b"next", 2))
        await eventually(lambda: service._workers)
        broker.send(ReqAck(1, RequestState.CANCELED, "a", "t"))
        await eventually(lambda: broker.answers())
    assert broker.answers() == [b"timed out as it should"]


async def test_answers_of_the_time_without_a_connection_are_dropped(broker: FakeTbusBroker) -> None:
    go_on = asyncio.Event()

    async def work(request: Message) -> bytes:
        await go_on.wait()
        return b"late"

    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        service = await bus.serve("t", work)
        broker.send(given())
        await eventually(lambda: service.in_hand)
        broker.lose()
        go_on.set()
        await eventually(lambda: not service.in_hand)
        await eventually(lambda: sum(isinstance(event, Connected) for event in events) == 2)
    assert broker.answers() == []


async def test_plain_functions_leave_the_loop_its_turns(broker: FakeTbusBroker) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def work(request: Message) -> bytes:
        deadline = asyncio.get_running_loop().time() + 0.002
        while asyncio.get_running_loop().time() < deadline:
            pass
        return request.payload

    async with broker.bus() as bus:
        await bus.serve("t", work, concurrency=50)
        counter = asyncio.create_task(count_turns())
        broker.send(*(given(b"%d" % number, number) for number in range(1, 51)))
        await eventually(lambda: len(broker.answers()) == 50)
        counter.cancel()
    assert turns > 10
    assert broker.answers() == [b"%d" % number for number in range(1, 51)]


async def test_request_nobody_serves_any_more_is_refused(broker: FakeTbusBroker) -> None:
    async with broker.bus() as bus:
        service = await bus.serve("t", lambda request: b"")
        await service.close()
        broker.send(given())  # it was on its way
        await eventually(lambda: broker.got(ReqAck))
    [refusal] = broker.got(ReqAck)
    assert refusal == ReqAck(1, RequestState.ERROR, "a", reason_string="the service was stopped")


async def test_broker_that_sends_without_end_fills_no_memory(broker: FakeTbusBroker) -> None:
    never = asyncio.Event()
    events: list[BusEvent] = []

    async def hang(request: Message) -> None:
        await never.wait()

    async with broker.bus(events.append) as bus:
        service = await bus.serve("t", hang)
        requests = [given(b"", number, "t") for number in range(1, MAX_QUEUE + 12)]
        broker.send(*requests)
        await eventually(lambda: any(isinstance(event, MessagesDropped) for event in events))
        assert service.in_hand <= MAX_QUEUE + 1
        service.end()


async def test_broken_text_of_an_error_still_reaches_the_requester(broker: FakeTbusBroker) -> None:
    events: list[BusEvent] = []

    def fail(request: Message) -> str:
        if request.payload == b"2":
            return "lone \ud800 surrogate"
        raise RuntimeError("lone \ud800 surrogate")

    async with broker.bus(events.append) as bus:
        await bus.serve("t", fail)
        broker.send(given(), given(b"2", 2))
        await eventually(lambda: len(broker.got(ReqAck)) == 2)
    assert sum(isinstance(event, HandlerFailed) for event in events) == 2
