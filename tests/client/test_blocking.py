"""The blocking bus: threads, callbacks that call back, ctrl-C, the end."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import polybus
from polybus.client import (
    BusClosed,
    BusEvent,
    Closed,
    Connected,
    ConnectionFailed,
    HandlerFailed,
    Message,
    NotDelivered,
    OperationTimeout,
    RequestCanceled,
    RequestTimeout,
    ServiceError,
)
from polybus.errors import UsageError
from tests.client.brokers import Broker, unique


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("polybus.client").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("polybus.client").setLevel(logging.NOTSET)


@pytest.fixture(params=["tbus", "tcp"])
def url(request: pytest.FixtureRequest, polybus_broker: Broker) -> str:
    return polybus_broker.url(request.param)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_ask_and_serve(url: str) -> None:
    topic = unique("triple")
    with polybus.connect_blocking(url) as bus:

        @bus.service(topic, concurrency=2)
        def triple(request: Message) -> str:
            return str(3 * int(request.payload))

        assert bus.request(topic, "14").text == "42"
        assert triple(Message("x", b"2")) == "6"
        with pytest.raises(ServiceError, match="invalid literal"):
            bus.request(topic, "x")
        with pytest.raises(NotDelivered):
            bus.request(unique("nobody"), wait=False)
        with pytest.raises(RequestTimeout):
            bus.request(unique("nobody"), timeout=0.1)
        triple.close()
        with pytest.raises(NotDelivered):
            bus.request(topic, "1", wait=False)


def test_asking_in_two_steps(url: str) -> None:
    topic = unique("ask")
    with polybus.connect_blocking(url) as bus:
        bus.serve(topic, lambda request: request.payload, concurrency=4)
        asked = [bus.ask(topic, str(number)) for number in range(20)]
        assert [each.result().text for each in asked] == [str(number) for number in range(20)]
        assert all(each.is_done for each in asked)
        never = bus.ask(unique("nobody"), timeout=60)
        never.cancel()
        with pytest.raises(RequestCanceled):
            never.result()


def test_publish_and_loop(url: str) -> None:
    topic = unique("loop")
    with polybus.connect_blocking(url) as bus:
        with bus.subscribe(f"{topic}/#", queue_size=5000) as messages:
            bus.publish(f"{topic}/one", "1")
            bus.publish_many(f"{topic}/many", [str(number) for number in range(2, 2001)])
            got = []
            for message in messages:
                got.append(int(message.text))
                if len(got) == 2000:
                    break
            assert got == list(range(1, 2001))
            with pytest.raises(OperationTimeout):
                messages.get(0.01)
            bus.publish(f"{topic}/one", "last")
            assert messages.get(10).text == "last"
        assert messages.dropped == 0


def test_callbacks_may_block_and_call_the_bus(url: str) -> None:
    topic = unique("calls")
    seen: list[str] = []
    with polybus.connect_blocking(url) as bus:

        def on_news(message: Message) -> None:
            seen.append(bus.request(f"{topic}/inner", message.payload).text)
            if message.payload == b"raise":
                raise ZeroDivisionError

        @bus.service(f"{topic}/inner", concurrency=2)
        def inner(request: Message) -> str:
            time.sleep(0.001)
            return request.text.upper()

        @bus.service(f"{topic}/outer")
        def outer(request: Message) -> str:
            return bus.request(f"{topic}/inner", request.payload).text + "!"

        bus.subscribe(f"{topic}/news", on_news)
        assert bus.request(f"{topic}/outer", "deep").text == "DEEP!"
        bus.publish(f"{topic}/news", "raise")
        bus.publish(f"{topic}/news", "b")
        eventually(lambda: seen == ["RAISE", "B"])


def test_many_threads_at_once(url: str) -> None:
    topic = unique("threads")
    wrong: list[str] = []
    with polybus.connect_blocking(url) as bus:
        bus.serve(topic, lambda request: request.payload, concurrency=8)

        def ask(name: int) -> None:
            for number in range(50):
                text = f"{name} {number}"
                if bus.request(topic, text, timeout=30).text != text:
                    wrong.append(text)

        threads = [threading.Thread(target=ask, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_events_come_in_order_and_may_call_the_bus(url: str) -> None:
    events: list[BusEvent] = []
    topic = unique("events")

    def on_event(event: BusEvent) -> None:
        events.append(event)
        if isinstance(event, HandlerFailed):
            bus.publish(f"{topic}/told", "failed")

    def fail(message: Message) -> None:
        raise RuntimeError("no")

    with polybus.connect_blocking(url, on_event=on_event) as bus:
        told = bus.subscribe(f"{topic}/told")
        bus.subscribe(topic, fail)
        bus.publish(topic, "x")
        assert told.get(10).text == "failed"
    assert [type(event) for event in events] == [Connected, HandlerFailed, Closed]


def test_the_end_joins_the_threads_and_use_after_it_is_a_clear_error(url: str) -> None:
    before = set(threading.enumerate())
    with polybus.connect_blocking(url) as bus:
        messages = bus.subscribe(unique("x"))
        service = bus.serve(unique("y"), lambda request: b"")
        pending = bus.ask(unique("nobody"), timeout=60)
        assert bus.is_connected
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before
    for use in (
        lambda: bus.publish("a"),
        lambda: bus.request("a"),
        lambda: bus.ask("a"),
        lambda: bus.subscribe("a"),
        lambda: bus.serve("a", lambda request: b""),
        lambda: bus.serve_forever(),
        lambda: messages.get(1),
        lambda: pending.result(),
    ):
        with pytest.raises(BusClosed):
            use()
    assert list(messages) == []
    bus.disconnect()
    service.close()
    messages.close()


def test_threads_of_what_is_over_are_gone(url: str) -> None:
    with polybus.connect_blocking(url) as bus:
        before = threading.active_count()
        for number in range(5):
            topic = unique("again")
            service = bus.serve(topic, lambda request: b"", concurrency=3)
            subscription = bus.subscribe(f"{topic}/news", lambda message: None)
            bus.request(topic)
            bus.publish(f"{topic}/news", str(number))
            with pytest.raises(UsageError):
                bus.serve("a/#/b", lambda request: b"")
            service.close()
            subscription.close()
        eventually(lambda: threading.active_count() <= before)


def test_who_waits_at_the_end_is_released(url: str) -> None:
    outcome: list[object] = []
    bus = polybus.connect_blocking(url)
    messages = bus.subscribe(unique("x"))

    def ask() -> None:
        try:
            bus.request(unique("nobody"), timeout=600)
        except BusClosed as error:
            outcome.append(error)

    threads = [
        threading.Thread(target=ask),
        threading.Thread(target=lambda: outcome.append(list(messages))),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: bus._bus._hub.driver is not None and bus._bus._hub.driver._waiting)
    bus.disconnect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert {type(each) for each in outcome} == {BusClosed, list}


def test_disconnect_from_a_handler(url: str) -> None:
    topic = unique("end")
    bus = polybus.connect_blocking(url)
    bus.serve(topic, lambda request: bus.disconnect())
    with polybus.connect_blocking(url) as other:
        other.request(topic)
    eventually(lambda: not bus._thread.is_alive())
    with pytest.raises(BusClosed):
        bus.publish("x")


def test_handler_that_never_returns_keeps_nobody(url: str) -> None:
    topic = unique("stuck")
    stuck = threading.Event()

    def hang(request: Message) -> None:
        stuck.wait()

    with polybus.connect_blocking(url) as bus:
        bus.serve(topic, hang)
        with pytest.raises(RequestTimeout):
            bus.request(topic, timeout=0.5)
    stuck.set()


def test_wrong_arguments(url: str) -> None:
    async def handler(request: Message) -> bytes:
        return b""

    with polybus.connect_blocking(url) as bus:
        with pytest.raises(UsageError, match="plain functions"):
            bus.serve("x", handler)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="plain functions"):
            bus.subscribe("x", handler)
        with pytest.raises(UsageError, match="last level"):
            bus.subscribe("x/#/y")
        with pytest.raises(UsageError, match="99"):
            bus.disconnect(reason_code=99)
        assert bus.is_connected
    with pytest.raises(UsageError, match="tbus://"):
        polybus.connect_blocking("nonsense")
    threads = set(threading.enumerate())
    with pytest.raises(ConnectionFailed):
        polybus.connect_blocking("tbus+unix:///nowhere")
    assert set(threading.enumerate()) == threads


def test_ctrl_c_while_serving(url: str) -> None:
    topic = unique("ctrl")
    program = f"""
import polybus
with polybus.connect_blocking({url!r}) as bus:
    @bus.service({topic!r})
    def echo(request): return request.payload
    print("ready", flush=True)
    try:
        bus.serve_forever()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("done", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with polybus.connect_blocking(url) as bus:
            assert bus.request(topic, "x", timeout=20).text == "x"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.read() == "interrupted\ndone\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_inside_a_running_loop(url: str) -> None:
    """As in a notebook: its own loop is no obstacle."""
    import asyncio

    async def cell() -> str:
        topic = unique("notebook")
        with polybus.connect_blocking(url) as bus:
            bus.serve(topic, lambda request: request.payload)
            return bus.request(topic, "works").text

    assert asyncio.run(cell()) == "works"
