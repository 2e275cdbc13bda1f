"""Requests and services over real brokers: TBus and MQTT 5.0 in all directions, and Mosquitto."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

import polybus
from polybus.client import (
    BusClosed,
    BusEvent,
    HandlerFailed,
    Message,
    NotDelivered,
    OperationTimeout,
    RequestCanceled,
    RequestTimeout,
    ServiceError,
    ServiceFailed,
    SubscribeRefused,
    UnsubscribeRefused,
)
from polybus.errors import UsageError
from tests.client.brokers import Broker, unique
from tests.client.fake_broker import eventually

Way = tuple[str, str]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Services fail here on purpose."""
    logging.getLogger("polybus.client").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("polybus.client").setLevel(logging.NOTSET)


async def triple(request: Message) -> str:
    return str(3 * int(request.payload))


# --- asking and serving -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handler", [triple, lambda request: str(3 * int(request.payload)), lambda r: triple(r)]
)
async def test_request_and_answer(way: Way, handler: object) -> None:
    topic = unique("triple")
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, handler)  # type: ignore[arg-type]
        for number in range(5):
            answer = await ours.request(topic, str(number))
            assert (answer.topic, answer.text) == (topic, str(3 * number))


async def test_one_bus_may_ask_itself(way: Way) -> None:
    topic = unique("self")
    async with polybus.connect(way[0]) as bus:
        await bus.serve(topic, triple)
        assert (await bus.request(topic, "14")).text == "42"


async def test_many_at_once_each_get_their_own(way: Way) -> None:
    topic = unique("echo")

    async def echo(request: Message) -> bytes:
        await asyncio.sleep(0)
        return request.payload

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, echo, concurrency=50)
        asked = [b"%d" % number for number in range(500)]
        answers = await asyncio.gather(*(ours.request(topic, payload, timeout=30) for payload in asked))
        assert [answer.payload for answer in answers] == asked


@pytest.mark.parametrize("payload", [b"", b"\0" * 1_000_000])
async def test_payloads_of_any_size(way: Way, payload: bytes) -> None:
    topic = unique("size")
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, lambda request: request.payload)
        assert (await ours.request(topic, payload, timeout=20)).payload == payload


@pytest.mark.parametrize(
    ("answer", "expected"), [(None, b""), ("grüße", "grüße".encode()), (bytearray(b"b"), b"b"), (b"", b"")]
)
async def test_what_a_service_may_return(way: Way, answer: object, expected: bytes) -> None:
    topic = unique("kinds")
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, lambda request: answer)  # type: ignore[arg-type,return-value]
        assert (await ours.request(topic)).payload == expected


async def test_wildcards_and_priority(way: Way) -> None:
    topic = unique("wild")
    seen: list[tuple[str, bool]] = []
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(f"{topic}/#", lambda request: seen.append((request.topic, request.priority)))
        await ours.request(f"{topic}/a/b", priority=True)
        await ours.request(f"{topic}/c")
    assert [name for name, _ in seen] == [f"{topic}/a/b", f"{topic}/c"]
    if way[0].startswith("tbus"):
        assert [priority for _, priority in seen] == [True, False]


# --- how it ends ------------------------------------------------------------------------------------


async def test_service_that_raises_or_answers_nonsense(way: Way) -> None:
    topic = unique("fail")
    events: list[BusEvent] = []

    async def fail(request: Message) -> bytes:
        if request.payload == b"nonsense":
            return 7  # type: ignore[return-value]
        raise RuntimeError("cannot do it" if request.payload else "")

    async with polybus.connect(way[0], on_event=events.append) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, fail)
        for payload, text in (("x", "cannot do it"), ("", "RuntimeError"), ("nonsense", "not int")):
            with pytest.raises(ServiceError, match=text) as caught:
                await ours.request(topic, payload)
            assert caught.value.topic == topic
    assert [type(event.error) for event in events if isinstance(event, HandlerFailed)] == [
        RuntimeError,
        RuntimeError,
        UsageError,
    ]


async def test_nobody_is_there(way: Way) -> None:
    async with polybus.connect(way[1]) as ours:
        with pytest.raises(NotDelivered):
            await ours.request(unique("nobody"), wait=False)
        with pytest.raises(RequestTimeout, match=r"0\.3 s") as caught:
            await ours.request(unique("nobody"), timeout=0.3)
        assert isinstance(caught.value, TimeoutError)


async def test_service_that_hangs_costs_no_more_than_the_timeout(way: Way) -> None:
    topic = unique("hang")
    stopped = asyncio.Event()

    async def hang(request: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, hang)
        with pytest.raises(RequestTimeout):
            await ours.request(topic, timeout=1)
        await asyncio.wait_for(stopped.wait(), 10)


async def test_canceling_the_task_cancels_the_work(way: Way) -> None:
    topic = unique("cancel")
    started, stopped, answered = asyncio.Event(), asyncio.Event(), []

    async def work(request: Message) -> bytes:
        if request.payload == b"quick":
            return b"done"
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        answered.append(request)
        return b""

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, work)
        asking = asyncio.create_task(ours.request(topic, timeout=30))
        await asyncio.wait_for(started.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(stopped.wait(), 10)
        assert (await ours.request(topic, b"quick")).payload == b"done"  # the worker goes on
    assert answered == []


async def test_asking_in_two_steps(way: Way) -> None:
    topic = unique("ask")
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, triple, concurrency=2)
        first, second = await ours.ask(topic, "1"), await ours.ask(topic, "2")
        assert first.id != second.id
        assert [(await each).text for each in (second, first, first)] == ["6", "3", "3"]
        never = await ours.ask(unique("nobody"), timeout=30)
        assert not never.is_done
        never.cancel()
        never.cancel()
        with pytest.raises(RequestCanceled):
            await never


async def test_request_waits_for_a_service(polybus_broker: Broker) -> None:
    for listener in ("tbus", "tcp"):
        topic = unique("late")
        async with polybus.connect(polybus_broker.url(listener)) as bus:
            asking = asyncio.create_task(bus.request(topic, "14", timeout=20))
            await asyncio.sleep(0)
            async with polybus.connect(polybus_broker.url()) as theirs:
                await theirs.serve(topic, triple)
                assert (await asking).text == "42"


async def test_message_waits_for_a_subscriber(polybus_broker: Broker) -> None:
    for listener in ("tbus", "tcp"):
        topic = unique("wait")
        async with polybus.connect(polybus_broker.url(listener)) as bus:
            await bus.publish(topic, "here", wait_s=20, priority=True)
            await bus.publish(f"{topic}/gone", "here")
            messages = await bus.subscribe(f"{topic}/#")
            assert (await messages.get(10)).text == "here"
            assert len(messages) == 0


async def test_use_after_close(way: Way) -> None:
    async with polybus.connect(way[0]) as bus:
        service = await bus.serve(unique("x"), triple)
        asking = asyncio.create_task(bus.request(unique("nobody"), timeout=60))
        pending = await bus.ask(unique("nobody"), timeout=60)
    for awaited in (asking, pending):
        with pytest.raises(BusClosed):
            await awaited
    with pytest.raises(BusClosed):
        await bus.request("x")
    with pytest.raises(BusClosed):
        await bus.ask("x")
    with pytest.raises(BusClosed):
        await bus.serve("x", triple)
    with pytest.raises(BusClosed):
        bus.service("x")(triple)
    with pytest.raises(BusClosed):
        await bus.serve_forever()
    with pytest.raises(BusClosed):
        await bus.unsubscribe("x")
    await service.close()
    pending.cancel()


# --- the life of a service --------------------------------------------------------------------------


async def test_decorated_before_and_after_connecting(way: Way) -> None:
    early, late = unique("early"), unique("late")
    bus = polybus.connect(way[0])

    @bus.service(early)
    async def three(request: Message) -> str:
        """Times three."""
        return str(3 * int(request.payload))

    with pytest.raises(UsageError, match="starts with the bus"):
        await three.ready()
    async with bus:
        await three.ready()

        @bus.service(late, concurrency=2)
        def four(request: Message) -> str:
            return str(4 * int(request.payload))

        await four.ready()
        assert (await bus.request(early, "2")).text == "6"
        assert (await bus.request(late, "2")).text == "8"
        assert four(Message("x", b"3")) == "12"
        assert await three(Message("x", b"3")) == "9"  # type: ignore[misc]
        assert (three.__name__, three.__doc__) == ("three", "Times three.")


async def test_closed_service_answers_what_it_has_in_hand_and_no_more(way: Way) -> None:
    topic = unique("close")
    started, go_on = asyncio.Event(), asyncio.Event()

    async def work(request: Message) -> bytes:
        started.set()
        await go_on.wait()
        return b"done"

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        service = await theirs.serve(topic, work)
        asking = asyncio.create_task(ours.request(topic))
        await asyncio.wait_for(started.wait(), 10)
        closing = asyncio.create_task(service.close())
        await asyncio.sleep(0)
        go_on.set()
        assert (await asking).payload == b"done"
        await closing
        with pytest.raises(NotDelivered):
            await ours.request(topic, wait=False)


async def test_slow_service_holds_up_nobody(way: Way) -> None:
    slow, quick, watched = unique("slow"), unique("quick"), unique("watched")
    never = asyncio.Event()
    seen: list[bytes] = []

    async def hang(request: Message) -> None:
        await never.wait()

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(slow, hang)
        await theirs.serve(quick, triple)
        await theirs.subscribe(watched, lambda message: seen.append(message.payload))
        hanging = await ours.ask(slow, timeout=60)
        for number in range(20):
            assert (await ours.request(quick, str(number))).text == str(3 * number)
        await ours.publish(watched, b"x")
        await eventually(lambda: seen)
        hanging.cancel()


async def test_concurrency_is_kept(way: Way) -> None:
    topic = unique("four")
    running = most = 0

    async def work(request: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, work, concurrency=4)
        await asyncio.gather(*(ours.request(topic, timeout=30) for _ in range(100)))
    assert 1 < most <= 4


async def test_service_and_subscription_share_a_filter(way: Way) -> None:
    topic = unique("both")
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        messages = await theirs.subscribe(topic)
        service = await theirs.serve(topic, triple)
        assert (await ours.request(topic, "1")).text == "3"
        await ours.publish(topic, "message")
        while (await messages.get(10)).text != "message":
            assert "mosquitto" in str(way) or "mqtt" in way[0]  # there requests are messages too
        await service.close()
        with pytest.raises((NotDelivered, RequestTimeout)):
            await ours.request(topic, "1", wait=False, timeout=1)
        await ours.publish(topic, "still")
        while (await messages.get(10)).text != "still":
            pass


async def test_callbacks_call_back(way: Way) -> None:
    """A service asks another one, publishes, subscribes and closes itself while it works."""
    topic, inner, news = unique("outer"), unique("inner"), unique("news")
    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:

        async def outer(request: Message) -> str:
            number = (await theirs.request(inner, request.payload)).text
            await theirs.publish(news, number)
            return number

        messages = await ours.subscribe(news)
        await theirs.serve(inner, triple)
        await theirs.serve(topic, outer)
        assert (await ours.request(topic, "5")).text == "15"
        assert (await messages.get(10)).text == "15"


async def test_service_may_close_itself_and_the_bus(way: Way) -> None:
    topic = unique("end")
    theirs = await polybus.connect(way[0])
    async with polybus.connect(way[1]) as ours:

        async def close(request: Message) -> str:
            asyncio.get_running_loop().call_soon(
                lambda: leaving.append(asyncio.create_task(theirs.disconnect()))
            )
            return "bye"

        leaving: list[asyncio.Task[None]] = []
        await theirs.serve(topic, close)
        assert (await ours.request(topic)).text == "bye"
        await eventually(lambda: leaving)
        await leaving[0]


async def test_serve_forever_ends_with_the_bus(way: Way) -> None:
    async with polybus.connect(way[0]) as bus:
        serving = asyncio.create_task(bus.serve_forever())
        other = asyncio.create_task(bus.serve_forever())
        await asyncio.sleep(0)
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        assert not serving.done()
    await asyncio.wait_for(serving, 10)


# --- what is wrong is said --------------------------------------------------------------------------


async def test_service_that_cannot_start(polybus_broker: Broker) -> None:
    """TBus has no shared subscriptions, and says so."""
    events: list[BusEvent] = []
    bus = polybus.connect(polybus_broker.url("tbus"), on_event=events.append)
    bus.service("$share/g/x")(triple)
    with pytest.raises(SubscribeRefused, match="shared"):
        await bus.open()
    async with polybus.connect(polybus_broker.url("tbus"), on_event=events.append) as bus:
        late = bus.service("$share/g/x")(triple)
        with pytest.raises(SubscribeRefused):
            await late.ready()
        with pytest.raises(SubscribeRefused):
            await bus.serve_forever()
        with pytest.raises(SubscribeRefused):
            await bus.serve("$share/g/x", triple)
    assert [event.topic_filter for event in events if isinstance(event, ServiceFailed)] == ["$share/g/x"]


async def test_bad_arguments_are_named(polybus_broker: Broker) -> None:
    for listener in ("tbus", "tcp"):
        async with polybus.connect(polybus_broker.url(listener)) as bus:
            with pytest.raises(UsageError, match="timeout 0"):
                await bus.request("x", timeout=0)
            with pytest.raises(UsageError, match="wildcard"):
                await bus.request("x/#")
            with pytest.raises(UsageError, match="bytes or str, not int"):
                await bus.request("x", 7)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="concurrency 0"):
                await bus.serve("x", triple, concurrency=0)
            with pytest.raises(UsageError, match="function"):
                await bus.serve("x", "triple")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="last level"):
                await bus.serve("x/#/y", triple)
            with pytest.raises(UsageError, match="99"):
                await bus.disconnect(reason_code=99)


async def test_mqtt_311_says_what_would_be_right(polybus_broker: Broker) -> None:
    async with polybus.connect(polybus_broker.url(), version=4) as bus:
        for wrong in (bus.request("x"), bus.ask("x"), bus.serve("x", triple), bus.publish("x", wait_s=1)):
            with pytest.raises(UsageError, match=r"MQTT 5\.0.*this bus speaks MQTT 3\.1\.1"):
                await wrong
        with pytest.raises(UsageError, match="without a reason"):
            await bus.disconnect(reason="because")


async def test_unsubscribing_by_name(polybus_broker: Broker) -> None:
    topic = unique("name")
    async with polybus.connect(polybus_broker.url("tbus")) as bus:
        messages = await bus.subscribe(topic)
        await bus.serve(topic, triple)
        await bus.unsubscribe(topic)
        assert [message async for message in messages] == []
        with pytest.raises(UnsubscribeRefused) as caught:
            await bus.unsubscribe(topic)
        assert caught.value.reason_code == 17
        with pytest.raises(NotDelivered):
            await bus.request(topic, wait=False)


async def test_all_addresses_of_tbus(polybus_broker: Broker) -> None:
    tls = polybus.Tls(ca_file=polybus_broker.certificates.cert("ca"))
    for listener, options in (("tbus", {}), ("tbuss", {"tls": tls}), ("tbus+unix", {})):
        async with polybus.connect(polybus_broker.url(listener), **options) as bus:  # type: ignore[arg-type]
            await bus.serve(topic := unique("x"), triple)
            assert (await bus.request(topic, "14")).text == "42"


@pytest.mark.parametrize("bulk", ["adaptive", "fixed", "off"])
async def test_every_way_to_bulk(polybus_broker: Broker, bulk: str) -> None:
    topic = unique("bulk")
    async with polybus.connect(polybus_broker.url("tbus"), bulk=bulk) as bus:  # type: ignore[arg-type]
        messages = await bus.subscribe(topic, queue_size=10_000)
        await bus.publish_many(topic, (b"%d" % number for number in range(2000)))
        assert [(await messages.get(10)).payload for _ in range(2000)] == [b"%d" % n for n in range(2000)]
        await bus.serve(f"{topic}/s", triple, concurrency=100)
        answers = await asyncio.gather(*(bus.request(f"{topic}/s", str(n), timeout=30) for n in range(200)))
        assert [answer.text for answer in answers] == [str(3 * n) for n in range(200)]


async def test_publish_many_acknowledged(polybus_broker: Broker) -> None:
    topic = unique("many")
    async with polybus.connect(polybus_broker.url()) as bus:
        messages = await bus.subscribe(topic, qos=1, queue_size=5000)
        await bus.publish_many(topic, (b"%d" % number for number in range(1500)), 1)
        got = {(await messages.get(10)).payload for _ in range(1500)}
        assert len(got) == 1500


async def test_request_needs_no_more_time_than_it_has(polybus_broker: Broker) -> None:
    async with polybus.connect(polybus_broker.url("tbus")) as bus:
        with pytest.raises(OperationTimeout):
            await (await bus.subscribe("x")).get(0.01)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), None, "5"])
async def test_a_timeout_that_is_none_harms_nobody(polybus_broker: Broker, wrong: object) -> None:
    topic = unique("echo")
    async with polybus.connect(f"tbus://127.0.0.1:{polybus_broker.ports['tbus']}") as bus:
        await bus.serve(topic, lambda request: request.payload)
        with pytest.raises(UsageError, match=r"timeout .* of a request is not a number of seconds above 0"):
            await bus.request(topic, "x", timeout=wrong)  # type: ignore[arg-type]
        assert (await bus.request(topic, "x")).text == "x"


async def test_a_service_whose_own_work_was_canceled_has_failed(way: Way) -> None:
    topic = unique("inner")

    async def awaits_what_is_canceled(request: Message) -> None:
        inner = asyncio.create_task(asyncio.sleep(600))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    async with polybus.connect(way[0]) as theirs, polybus.connect(way[1]) as ours:
        await theirs.serve(topic, awaits_what_is_canceled)
        for _ in range(2):  # and its worker goes on
            with pytest.raises(ServiceError, match="was canceled"):
                await ours.request(topic, timeout=20)
