"""The bus over a broker in the same loop: queues, acknowledgements, losses, the end."""

import asyncio

import pytest

from polybus.client import (
    Backoff,
    BusClosed,
    BusEvent,
    Closed,
    Connected,
    ConnectionFailed,
    ConnectionLost,
    ConnectRefused,
    Disconnected,
    HandlerFailed,
    Message,
    MessagesDropped,
    OperationTimeout,
    PublishRefused,
    Reconnecting,
    SubscribeRefused,
    SubscriptionLost,
)
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import (
    ConnAck,
    Disconnect,
    Properties,
    PubAck,
    Publish,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Unsubscribe,
)
from tests.client.fake_broker import FakeBroker, eventually


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def publishes(count: int, topic: str = "a", qos: int = 0) -> list[Publish]:
    return [Publish(topic, b"%d" % n, qos, packet_id=n if qos else 0) for n in range(1, count + 1)]


def kinds(events: list[BusEvent]) -> list[type[BusEvent]]:
    return [type(event) for event in events]


# --- connect and the end ----------------------------------------------------------------------------


async def test_connects_and_says_goodbye(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        assert bus.is_connected
        assert bus.client_id == "c"
    assert not bus.is_connected
    assert broker.got(Disconnect)
    assert events == [Connected("c", session_present=False), Closed(None)]


async def test_refused_and_unreachable_raise(broker: FakeBroker) -> None:
    broker.connack = ConnAck(ReasonCode.NOT_AUTHORIZED)
    with pytest.raises(ConnectRefused, match="not authorized"):
        await broker.bus()
    broker.is_away = True
    with pytest.raises(ConnectionFailed, match="away"):
        await broker.bus()


async def test_broker_that_never_answers_is_not_waited_for_long(broker: FakeBroker) -> None:
    broker.receive = lambda data: None  # type: ignore[method-assign]
    with pytest.raises(ConnectionFailed, match=r"0\.02 s"):
        await broker.bus(connect_timeout_s=0.02)


async def test_use_before_and_after_is_a_clear_error(broker: FakeBroker) -> None:
    bus = broker.bus()
    with pytest.raises(BusClosed, match="not connected yet"):
        await bus.publish("a", b"")
    await bus.open()
    messages = await bus.subscribe("a")
    await bus.disconnect()
    await bus.disconnect()
    with pytest.raises(BusClosed, match="closed"):
        await bus.publish("a", b"")
    with pytest.raises(BusClosed):
        await bus.subscribe("a")
    with pytest.raises(UsageError):
        await bus.open()
    assert [message async for message in messages] == []
    with pytest.raises(BusClosed):
        await messages.get(1)
    await messages.close()


async def test_whoever_waits_at_the_end_is_told(broker: FakeBroker) -> None:
    broker.stop_answering(Publish)
    bus = await broker.bus()
    waiting = asyncio.create_task(bus.publish("a", b"", qos=1))
    await eventually(lambda: broker.got(Publish))
    await bus.disconnect()
    with pytest.raises(BusClosed):
        await waiting


# --- publish ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish(broker: FakeBroker, qos: int) -> None:
    async with broker.bus() as bus:
        await bus.publish("a", "text", qos, content_type="text/plain", user_properties={"k": "v"})
        await eventually(lambda: broker.got(Publish))
    [packet] = broker.got(Publish)
    assert isinstance(packet, Publish)
    assert (packet.topic, packet.payload, packet.qos) == ("a", b"text", qos)
    assert packet.properties.content_type == "text/plain"
    assert packet.properties.user_properties == (("k", "v"),)


async def test_refused_publish_raises(broker: FakeBroker) -> None:
    broker.answers[Publish] = lambda packet: [PubAck(1, ReasonCode.QUOTA_EXCEEDED)]
    async with broker.bus() as bus:
        with pytest.raises(PublishRefused, match="quota"):
            await bus.publish("a", b"", qos=1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"topic": "a/#"}, "wildcard"),
        ({"topic": "a", "payload": 7}, "bytes or str, not int"),
        ({"topic": "a", "qos": 3}, "QoS"),
        ({"topic": "a", "colour": "red"}, "unknown property colour"),
    ],
)
async def test_bad_arguments_are_named(broker: FakeBroker, arguments: dict[str, object], problem: str) -> None:
    async with broker.bus() as bus:
        with pytest.raises(UsageError, match=f"(?i){problem}"):
            await bus.publish(**arguments)  # type: ignore[arg-type]


async def test_publish_without_an_answer_times_out(broker: FakeBroker) -> None:
    broker.stop_answering(Publish)
    async with broker.bus() as bus:
        with pytest.raises(OperationTimeout, match="may still take effect"):
            await bus.publish("a", b"", qos=1, timeout_s=0.02)


async def test_publish_waits_for_the_connection(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        broker.is_away = True
        broker.lose()
        with pytest.raises(OperationTimeout, match="not sent"):
            await bus.publish("a", b"", timeout_s=0.02)
        waiting = asyncio.create_task(bus.publish("b", b""))
        broker.is_away = False
        await waiting
        await eventually(lambda: broker.got(Publish))
    assert [packet.topic for packet in broker.got(Publish)] == ["b"]  # type: ignore[union-attr]


async def test_publish_waits_while_the_transport_takes_no_more(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        assert broker.transport is not None
        broker.transport.receiver.writable_changed(False)
        with pytest.raises(OperationTimeout, match="takes no more"):
            await bus.publish("a", b"", timeout_s=0.02)
        broker.transport.receiver.writable_changed(True)
        await bus.publish("a", b"")


async def test_publisher_that_never_waits_does_not_starve_the_loop(broker: FakeBroker) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with broker.bus() as bus:
        counter = asyncio.create_task(count_turns())
        for _ in range(100):
            await bus.publish("a", bytes(10_000))
        counter.cancel()
    assert turns > 10


# --- subscribe --------------------------------------------------------------------------------------


async def test_loop_gets_messages_and_unsubscribes_at_the_end(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        async with bus.subscribe("a/+", qos=1) as messages:
            broker.send(Publish("a/b", b"1"), Publish("x", b"2"), Publish("a/c", b"3"))
            assert [(await messages.get(1)).payload for _ in range(2)] == [b"1", b"3"]
        assert broker.got(Unsubscribe)


async def test_refused_subscription_raises_and_leaves_nothing_behind(broker: FakeBroker) -> None:
    broker.answers[Subscribe] = lambda packet: [SubAck(packet.packet_id, (0x87,))]  # type: ignore[union-attr]
    async with broker.bus() as bus:
        with pytest.raises(SubscribeRefused, match="not authorized"):
            await bus.subscribe(["a", "b"])
        broker.answers = FakeBroker().answers
        await bus.subscribe("a")


async def test_bad_filter_is_the_callers_fault(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        for bad in ("", "a/#/b", "a+", "$share/g"):
            with pytest.raises(UsageError):
                bus.subscribe(bad)
        with pytest.raises(UsageError, match="at least one"):
            bus.subscribe([])
        with pytest.raises(UsageError, match="start"):
            await anext(bus.subscribe("a"))


async def test_overlapping_subscriptions_go_by_identifier(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        wide, narrow = await bus.subscribe("a/#"), await bus.subscribe("a/b")
        ids = [packet.properties.subscription_identifiers for packet in broker.got(Subscribe)]  # type: ignore[union-attr]
        for identifiers in ids:  # one copy per subscription
            broker.send(Publish("a/b", b"1", properties=_with_ids(identifiers)))
        broker.send(Publish("a/b", b"2", properties=_with_ids(ids[0] + ids[1])))  # one copy for all
        for messages in (wide, narrow):
            assert [(await messages.get(1)).payload for _ in range(2)] == [b"1", b"2"]
            assert len(messages) == 0


def _with_ids(identifiers: tuple[int, ...]) -> Properties:
    return Properties(subscription_identifiers=identifiers)


async def test_one_subscription_of_many_filters_gets_a_message_once(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        messages = await bus.subscribe(["a/#", "a/b", "c"])
        broker.send(Publish("a/b", b"1"), Publish("c", b"2"))
        assert [(await messages.get(1)).payload for _ in range(2)] == [b"1", b"2"]


async def test_two_subscriptions_share_a_filter(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        first, second = await bus.subscribe("a", qos=2), await bus.subscribe("a", qos=1)
        assert broker.got(Subscribe)[1].requests[0].qos == 2  # type: ignore[union-attr]
        await first.close()
        assert not broker.got(Unsubscribe)
        broker.send(Publish("a", b"1"))
        assert (await second.get(1)).payload == b"1"
        await second.close()
        assert broker.got(Unsubscribe)


# --- callbacks --------------------------------------------------------------------------------------


async def test_callbacks_plain_and_async(broker: FakeBroker) -> None:
    seen: list[tuple[str, bytes]] = []

    async def slowly(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(("async", message.payload))

    async with broker.bus() as bus:
        await bus.subscribe("a", lambda message: seen.append(("plain", message.payload)))
        await bus.subscribe("b", slowly)
        broker.send(Publish("a", b"1"), Publish("b", b"2"))
        await eventually(lambda: len(seen) == 2)
    assert sorted(seen) == [("async", b"2"), ("plain", b"1")]


async def test_callback_that_raises_goes_on(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    seen: list[bytes] = []

    def callback(message: Message) -> None:
        if message.payload == b"1":
            raise ValueError("no")
        seen.append(message.payload)

    async with broker.bus(events.append) as bus:
        await bus.subscribe("a", callback)
        broker.send(*publishes(2))
        await eventually(lambda: seen == [b"2"])
    [failed] = [event for event in events if isinstance(event, HandlerFailed)]
    assert str(failed.error) == "no"


async def test_callback_may_use_the_bus_and_end_itself(broker: FakeBroker) -> None:
    async with broker.bus() as bus:

        async def answer(message: Message) -> None:
            await bus.publish("answer", message.payload, qos=1)
            await subscription.close()

        subscription = await bus.subscribe("question", answer)
        broker.send(Publish("question", b"?"))
        await eventually(lambda: broker.got(Unsubscribe))
    assert [packet.topic for packet in broker.got(Publish)] == ["answer"]  # type: ignore[union-attr]


async def test_disconnect_lets_callbacks_finish(broker: FakeBroker) -> None:
    seen: list[bytes] = []

    async def callback(message: Message) -> None:
        await asyncio.sleep(0.001)
        await bus.publish("done", message.payload, qos=1)
        seen.append(message.payload)

    async with broker.bus() as bus:
        subscription = await bus.subscribe("a", callback)
        broker.send(*publishes(5))
        await eventually(lambda: len(subscription))
    assert len(seen) == 5


async def test_disconnect_from_a_callback(broker: FakeBroker) -> None:
    bus = await broker.bus()

    async def stop(message: Message) -> None:
        await bus.disconnect()

    await bus.subscribe("a", stop)
    broker.send(Publish("a"))
    await eventually(lambda: broker.got(Disconnect))


# --- acknowledgement and back-pressure --------------------------------------------------------------


async def test_queued_messages_are_acknowledged_while_there_is_room(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        messages = await bus.subscribe("a", qos=1, queue_size=2)
        for packet in publishes(4, qos=1):
            broker.send(packet)
        await eventually(lambda: len(messages) == 4)
        await eventually(lambda: len(broker.got(PubAck)) == 2)
        await messages.get(1)
        await messages.get(1)
        assert len(broker.got(PubAck)) == 2
        await messages.get(1)  # the first that had found no room
        await eventually(lambda: len(broker.got(PubAck)) == 3)


async def test_handled_messages_are_acknowledged_when_the_next_is_asked_for(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        messages = await bus.subscribe("a", qos=1, acknowledge="handled")
        broker.send(*publishes(3, qos=1))
        await messages.get(1)
        assert not broker.got(PubAck)
        await messages.get(1)
        await eventually(lambda: len(broker.got(PubAck)) == 1)
    # The loop ended in peace: its last message is handled, the third was never taken.
    assert [packet.packet_id for packet in broker.got(PubAck)] == [1, 2]  # type: ignore[union-attr]


async def test_message_whose_handling_failed_is_not_acknowledged(broker: FakeBroker) -> None:
    async def fail() -> None:
        async with broker.bus() as bus, bus.subscribe("a", qos=1, acknowledge="handled") as messages:
            broker.send(*publishes(1, qos=1))
            async for _ in messages:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not broker.got(PubAck)


async def test_slow_handler_does_not_block_another(broker: FakeBroker) -> None:
    never = asyncio.Event()
    seen: list[bytes] = []

    async def hang(message: Message) -> None:
        await never.wait()

    async with broker.bus(timeout_s=1) as bus:
        slow = await bus.subscribe("slow", hang, qos=1, queue_size=10)
        await bus.subscribe("quick", lambda message: seen.append(message.payload), qos=1)
        for packet in publishes(12, "slow", 1):
            broker.send(packet)
        for _ in range(5):
            broker.send(*publishes(30, "slow"))
        broker.send(Publish("quick", b"!", 1, packet_id=99))
        await eventually(lambda: seen == [b"!"])
        assert slow.dropped > 0
        assert broker.transport is not None
        assert broker.transport.is_reading
        never.set()


async def test_dropped_messages_are_counted_and_reported(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybus.client.subscription.REPORT_DROPS_EVERY_S", 0.01)
    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        messages = await bus.subscribe("a", queue_size=3)
        broker.send(*publishes(5))  # one read may overshoot: nobody could empty the queue meanwhile
        broker.send(*publishes(7))
        await eventually(lambda: MessagesDropped(("a",), 7) in events)
        assert (len(messages), messages.dropped) == (5, 7)


async def test_reading_pauses_for_a_full_queue_that_must_not_drop(broker: FakeBroker) -> None:
    async with broker.bus() as bus:
        messages = await bus.subscribe("a", queue_size=4, when_full="pause")
        for packet in publishes(20):
            broker.send(packet)
            await asyncio.sleep(0)
        transport = broker.transport
        assert transport is not None
        assert not transport.is_reading
        assert len(messages) < 8
        assert [(await messages.get(1)).payload for _ in range(20)] == [b"%d" % n for n in range(1, 21)]
        assert transport.is_reading


async def test_pause_outlives_a_reconnect(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        messages = await bus.subscribe("a", queue_size=2, when_full="pause")
        for packet in publishes(4):
            broker.send(packet)
        await eventually(lambda: broker.transport and not broker.transport.is_reading)
        broker.lose()
        await eventually(lambda: kinds(events).count(Connected) == 2)
        assert broker.transport is not None
        assert not broker.transport.is_reading
        while len(messages):
            await messages.get(1)
        assert broker.transport.is_reading


# --- loss and reconnect -----------------------------------------------------------------------------


async def test_reconnects_renews_and_sends_again(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    broker.stop_answering(Publish)
    async with broker.bus(events.append) as bus:
        messages = await bus.subscribe("a")
        waiting = asyncio.create_task(bus.publish("b", b"1", qos=1))
        await eventually(lambda: broker.got(Publish))
        broker.answers = FakeBroker().answers
        broker.lose()
        await waiting
        assert len(broker.got(Subscribe)) == 2
        broker.send(Publish("a", b"after"))
        assert (await messages.get(1)).payload == b"after"
        assert kinds(events) == [Connected, Disconnected, Reconnecting, Connected]
        assert events[-1] == Connected("c", False, attempt=1, resent=1, renewed=("a",))


async def test_kept_session_needs_no_renewal(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        await bus.subscribe("a")
        broker.connack = ConnAck(session_present=True)
        broker.lose()
        await eventually(lambda: kinds(events).count(Connected) == 2)
        await bus.publish("b", b"", qos=1)
    assert len(broker.got(Subscribe)) == 1


async def test_qos_2_survives_a_loss_at_every_step(broker: FakeBroker) -> None:
    broker.stop_answering(Publish, PubRel)
    async with broker.bus() as bus:
        waiting = asyncio.create_task(bus.publish("b", b"1", qos=2))
        await eventually(lambda: broker.got(Publish))
        broker.connack = ConnAck(session_present=True)
        broker.answers[Publish] = FakeBroker().answers[Publish]
        broker.lose()
        await eventually(lambda: broker.got(PubRel))
        broker.answers = FakeBroker().answers
        broker.lose()
        await waiting
    assert [packet.dup for packet in broker.got(Publish)] == [False, True]  # type: ignore[union-attr]
    assert len(broker.got(PubRel)) == 2


async def test_attempts_go_on_while_the_broker_is_away(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        broker.is_away = True
        broker.lose()
        await eventually(lambda: kinds(events).count(Reconnecting) >= 3)
        broker.is_away = False
        await bus.publish("a", b"", qos=1)
        assert [event.attempt for event in events if isinstance(event, Reconnecting)][:3] == [1, 2, 3]


@pytest.mark.parametrize("reconnect", [None, Backoff(0.001, 0.001, attempts=2)])
async def test_bus_that_may_not_try_again_ends_with_the_loss(
    broker: FakeBroker, reconnect: Backoff | None
) -> None:
    events: list[BusEvent] = []
    async with broker.bus(events.append, reconnect=reconnect) as bus:
        messages = await bus.subscribe("a")
        broker.is_away = True
        broker.lose()
        with pytest.raises((ConnectionLost, ConnectionFailed)):
            await anext(messages)
        await eventually(lambda: isinstance(events[-1], Closed) and events[-1].error)
        with pytest.raises(BusClosed, match="ended"):
            await bus.publish("a", b"")
    assert kinds(events).count(Closed) == 1


@pytest.mark.parametrize("how", ["refused", "taken over"])
async def test_final_reasons_end_the_bus(broker: FakeBroker, how: str) -> None:
    broker.stop_answering(Publish)
    async with broker.bus() as bus:
        waiting = asyncio.create_task(bus.publish("a", b"", qos=1))
        await eventually(lambda: broker.got(Publish))
        if how == "refused":
            broker.connack = ConnAck(ReasonCode.NOT_AUTHORIZED)
            broker.lose()
        else:
            broker.send(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
        with pytest.raises((ConnectRefused, ConnectionLost), match=r"not authorized|taken over"):
            await waiting
    assert broker.connections == (2 if how == "refused" else 1)


async def test_renewal_that_is_refused_is_told(broker: FakeBroker) -> None:
    events: list[BusEvent] = []
    async with broker.bus(events.append) as bus:
        await bus.subscribe("a")
        broker.answers[Subscribe] = lambda packet: [SubAck(packet.packet_id, (0x87,))]  # type: ignore[union-attr]
        broker.lose()
        await eventually(lambda: SubscriptionLost in kinds(events))


async def test_messages_of_a_kept_session_wait_for_their_subscription(broker: FakeBroker) -> None:
    broker.connack = ConnAck(session_present=True)
    async with broker.bus(clean_start=False) as bus:
        broker.send(*publishes(2, qos=1))
        await bus.publish("x", b"", qos=1)  # by now they have arrived
        assert not broker.got(PubAck)
        messages = await bus.subscribe("a", qos=1)
        assert [(await messages.get(1)).payload for _ in range(2)] == [b"1", b"2"]
        await eventually(lambda: len(broker.got(PubAck)) == 2)


async def test_event_handler_that_raises_breaks_nothing(broker: FakeBroker) -> None:
    def on_event(event: BusEvent) -> None:
        raise RuntimeError("mine")

    async with broker.bus(on_event) as bus:
        await bus.publish("a", b"", qos=1)
