"""The client against real brokers, over every transport."""

import asyncio

import pytest
import uvloop

import polybus
from polybus.client import (
    Acknowledge,
    Backoff,
    Bus,
    BusClosed,
    BusEvent,
    Connected,
    ConnectionFailed,
    ConnectionLost,
    ConnectRefused,
    Disconnected,
    Message,
    Tls,
    Will,
)
from polybus.wire.mqtt.packets import ReasonCode
from tests.client.brokers import PASSWORD, USER, Broker, unique
from tests.client.fake_broker import eventually

LISTENERS = ["tcp", "tls", "mutual", "ws", "wss", "unix"]
both_versions = pytest.mark.parametrize("version", [4, 5])
QUICKLY = Backoff(0.02, 0.1)


def connect(broker: Broker, listener: str = "tcp", **options: object) -> Bus:
    tls = None
    if listener in ("tls", "wss"):
        tls = Tls(broker.certificates.cert("ca"))
    elif listener == "mutual":
        cert, key = broker.certificates.cert, broker.certificates.key
        tls = Tls(cert("ca"), cert("client"), key("client"))
    return polybus.connect(broker.url(listener), tls=tls, reconnect=QUICKLY, **options)  # type: ignore[arg-type]


@both_versions
@pytest.mark.parametrize("listener", LISTENERS)
async def test_exchange_over_every_transport(broker: Broker, listener: str, version: int) -> None:
    topic = unique("t")
    async with (
        connect(broker, listener, version=version) as bus,
        bus.subscribe(f"{topic}/#", qos=2) as messages,
    ):
        for qos in (0, 1, 2):
            await bus.publish(f"{topic}/{qos}", f"qos {qos}", qos)
            message = await messages.get(5)
            assert (message.topic, message.text, message.qos) == (f"{topic}/{qos}", f"qos {qos}", qos)


@pytest.mark.parametrize("listener", LISTENERS)
def test_exchange_on_uvloop(broker: Broker, listener: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_exchange_over_every_transport(broker, listener, 5))


@both_versions
@pytest.mark.parametrize("listener", ["tcp", "tls", "ws"])
async def test_large_and_empty_payloads(broker: Broker, listener: str, version: int) -> None:
    topic = unique("t")
    async with connect(broker, listener, version=version) as bus, bus.subscribe(topic, qos=1) as messages:
        # Mosquitto reads 4 kB of a WebSocket and then sleeps for 0.1 s.
        large = 20_000 if (broker.kind, listener) == ("mosquitto", "ws") else 10_000_000
        for payload in (b"", bytes(range(256)) * (large // 256)):
            await bus.publish(topic, payload, qos=1)
            assert (await messages.get(20)).payload == payload


async def test_many_at_once_keep_their_order(broker: Broker) -> None:
    topic = unique("t")
    async with connect(broker) as bus, bus.subscribe(topic, qos=2, queue_size=5000) as messages:
        for qos in (0, 1, 2):
            await asyncio.gather(*(bus.publish(topic, b"%d" % n, qos) for n in range(500)))
            assert [int((await messages.get(10)).payload) for _ in range(500)] == list(range(500))


async def test_properties_travel(broker: Broker) -> None:
    topic = unique("t")
    sent = {
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"\x00\x01",
        "payload_format_indicator": 1,
        "user_properties": [("a", "1"), ("a", "2")],
    }
    async with connect(broker) as bus, bus.subscribe(topic) as messages:
        await bus.publish(topic, "x", message_expiry_s=60, **sent)  # type: ignore[arg-type]
        properties = (await messages.get(5)).properties
    for name, value in sent.items():
        assert getattr(properties, name) == (tuple(value) if isinstance(value, list) else value)
    assert properties.message_expiry_s is not None


@both_versions
async def test_retained_and_cleared(broker: Broker, version: int) -> None:
    topic = unique("t")
    async with connect(broker, version=version) as bus:
        await bus.publish(topic, "kept", qos=1, retain=True)
        async with bus.subscribe(topic) as messages:
            message = await messages.get(5)
            assert (message.payload, message.retain) == (b"kept", True)
        await bus.publish(topic, b"", qos=1, retain=True)
        async with bus.subscribe(topic) as messages:
            await bus.publish(topic, "live", qos=1)
            assert (await messages.get(5)).retain is False


@both_versions
async def test_overlapping_subscriptions_each_get_one(broker: Broker, version: int) -> None:
    topic = unique("t")
    async with connect(broker, version=version) as bus:
        wide, narrow = await bus.subscribe(f"{topic}/#", qos=1), await bus.subscribe(f"{topic}/a", qos=1)
        await bus.publish(f"{topic}/a", "1", qos=1)
        await bus.publish(f"{topic}/b", "end", qos=1)
        await bus.publish(f"{topic}/a", "2", qos=1)
        if version == 5:  # before, a broker may send copies that nothing tells apart
            assert [(await wide.get(5)).text for _ in range(3)] == ["1", "end", "2"]
            assert [(await narrow.get(5)).text for _ in range(2)] == ["1", "2"]
            assert (len(wide), len(narrow)) == (0, 0)
        else:
            assert (await narrow.get(5)).text == "1"


async def test_shared_subscription(broker: Broker) -> None:
    topic = unique("t")
    async with connect(broker) as one, connect(broker) as two, connect(broker) as publisher:
        first = await one.subscribe(f"$share/g/{topic}", qos=1)
        second = await two.subscribe(f"$share/g/{topic}", qos=1)
        for n in range(10):
            await publisher.publish(topic, b"%d" % n, qos=1)
        await eventually(lambda: len(first) + len(second) == 10)
        assert len(first)
        assert len(second)


@both_versions
async def test_will_is_published_when_we_disappear(broker: Broker, version: int) -> None:
    topic = unique("t")
    async with connect(broker, version=version) as watcher, watcher.subscribe(topic, qos=1) as messages:
        victim = await connect(broker, version=version, will=Will(topic, "gone", qos=1))
        transport = victim._hub.driver._connection.transport  # type: ignore[union-attr]
        transport.abort()  # type: ignore[union-attr]
        assert (await messages.get(5)).text == "gone"
        await victim.disconnect()


async def test_goodbye_publishes_no_will(broker: Broker) -> None:
    topic = unique("t")
    async with connect(broker) as watcher, watcher.subscribe(topic, qos=1) as messages:
        async with connect(broker, will=Will(topic, "gone", qos=1)):
            pass
        await watcher.publish(topic, "end", qos=1)
        assert (await messages.get(5)).text == "end"


@both_versions
async def test_kept_session_holds_what_was_missed(broker: Broker, version: int) -> None:
    topic, name = unique("t"), unique("c")
    kept = {"client_id": name, "version": version, "clean_start": False, "session_expiry_s": 600}
    async with connect(broker, **kept) as bus:
        await bus.subscribe(topic, qos=1)
    async with connect(broker) as publisher:
        await publisher.publish(topic, "missed", qos=1)
    events: list[BusEvent] = []
    async with connect(broker, **kept, on_event=events.append) as bus:
        assert events == [Connected(name, session_present=True)]
        messages = await bus.subscribe(topic, qos=1)
        assert (await messages.get(5)).text == "missed"


@both_versions
async def test_unhandled_message_comes_again(broker: Broker, version: int) -> None:
    topic, name = unique("t"), unique("c")
    kept = {"client_id": name, "version": version, "clean_start": False, "session_expiry_s": 600}

    async def fail_at_the_second() -> None:
        async with connect(broker, **kept) as bus:
            messages = await bus.subscribe(topic, qos=1, acknowledge=Acknowledge.HANDLED)
            for n in range(3):
                await bus.publish(topic, b"%d" % n, qos=1)
            async for message in messages:
                if message.payload == b"1":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    async with connect(broker, **kept) as bus:
        messages = await bus.subscribe(topic, qos=1)
        assert [(await messages.get(5)).payload for _ in range(2)] == [b"1", b"2"]


# --- refusals and failures --------------------------------------------------------------------------


@both_versions
async def test_login(guarded_broker: Broker, version: int) -> None:
    async with connect(guarded_broker, version=version, user_name=USER, password=PASSWORD) as bus:
        await bus.publish(unique("t"), "x", qos=1)
    for credentials in ({"user_name": USER, "password": "wrong"}, {}):
        with pytest.raises(ConnectRefused) as caught:
            await connect(guarded_broker, version=version, **credentials)
        assert caught.value.reason_code in (ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED)


async def test_login_from_the_address(guarded_broker: Broker) -> None:
    url = guarded_broker.url().replace("://", f"://{USER}:{PASSWORD}@")
    async with polybus.connect(url) as bus:
        assert bus.is_connected


async def test_untrusted_server_is_refused(broker: Broker) -> None:
    stranger = Tls(broker.certificates.cert("stranger-ca"))
    for listener in ("tls", "wss"):
        with pytest.raises(ConnectionFailed, match="not trusted"):
            await polybus.connect(broker.url(listener), tls=stranger)
        async with polybus.connect(broker.url(listener), tls=Tls(insecure=True)) as bus:
            await bus.publish(unique("t"), "x", qos=1)


async def test_missing_client_certificate(broker: Broker) -> None:
    tls = Tls(broker.certificates.cert("ca"))
    with pytest.raises((ConnectionFailed, ConnectionLost)):
        await polybus.connect(broker.url("mutual"), tls=tls)


async def test_nobody_there(broker: Broker) -> None:
    for url in ("mqtt://127.0.0.1:1", "ws://127.0.0.1:1", "mqtt+unix:///nowhere/s"):
        with pytest.raises(ConnectionFailed, match="cannot reach"):
            await polybus.connect(url)


async def test_wrong_protocol_at_the_address(broker: Broker) -> None:
    tcp, ws, tls = (broker.ports[name] for name in ("tcp", "ws", "tls"))
    for url in (f"mqtt://127.0.0.1:{ws}", f"ws://127.0.0.1:{tcp}", f"mqtt://127.0.0.1:{tls}"):
        with pytest.raises((ConnectionFailed, ConnectionLost)):
            await polybus.connect(url, connect_timeout_s=2)


async def test_takeover_ends_the_older_one(broker: Broker) -> None:
    if broker.kind == "mosquitto":
        pytest.skip("Mosquitto 2.0.11 closes the older connection without a reason")
    name, topic = unique("c"), unique("t")
    older = await connect(broker, client_id=name)
    messages = await older.subscribe(topic)
    async with connect(broker, client_id=name):
        with pytest.raises(ConnectionLost, match="taken over"):
            await messages.get(5)
        with pytest.raises(BusClosed):
            await older.publish(topic, "x")
    await older.disconnect()


# --- a broker that goes away ------------------------------------------------------------------------


@both_versions
@pytest.mark.parametrize("listener", ["tcp", "ws"])
async def test_broker_restarts_during_traffic(own_broker: Broker, listener: str, version: int) -> None:
    topic = unique("t")
    events: list[BusEvent] = []
    seen: set[bytes] = set()

    def remember(message: Message) -> None:
        seen.add(message.payload)

    async with connect(own_broker, listener, version=version, on_event=events.append) as bus:
        await bus.subscribe(topic, remember, qos=1)
        await bus.publish(topic, "before", qos=1)
        own_broker.stop()
        await eventually(lambda: any(isinstance(event, Disconnected) for event in events))
        waiting = asyncio.create_task(bus.publish(topic, "meanwhile", qos=1))
        await asyncio.to_thread(own_broker.start)
        await waiting
        await bus.publish(topic, "after", qos=2)
        await eventually(lambda: seen == {b"before", b"meanwhile", b"after"})
    [again] = [event for event in events if isinstance(event, Connected) and event.attempt]
    assert again.renewed == (topic,)


async def test_disconnect_while_the_broker_is_away(own_broker: Broker) -> None:
    events: list[BusEvent] = []
    bus = await connect(own_broker, on_event=events.append)
    messages = await bus.subscribe("a")
    own_broker.stop()
    await eventually(lambda: any(isinstance(event, Disconnected) for event in events))
    await messages.close()
    await bus.disconnect()
    assert not bus.is_connected
