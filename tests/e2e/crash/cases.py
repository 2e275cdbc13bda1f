"""Kills at chosen moments: each a short story about one promise."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from polybus.wire.mqtt.packets import V5, V311, Properties, Will
from tests.e2e.crash import logs
from tests.e2e.crash.books import Audience, Stream
from tests.e2e.crash.brokers import BrokerProcess, broker_in
from tests.e2e.crash.cast import QUIET_S, Cast, Outcome, outcome_of
from tests.e2e.crash.mqtt import MqttClient
from tests.e2e.crash.requests import Requester, Service
from tests.e2e.crash.roles import WAITING, Publisher, Subscriber, payload_of
from tests.e2e.crash.tbus import TbusRequester, TbusService
from tests.e2e.crash.world import World, until

WINDOW = 500
SIZE = 40
PATIENCE_S = 100.0
WILL_DELAY_S = 2
EXPIRY_S = 2
DEATHS = 6


@dataclass
class Scene:
    """A broker that runs, nobody connected."""

    broker: BrokerProcess
    world: World
    cast: Cast
    count: int
    quiet_s: float

    async def kill_and_restart(self) -> None:
        self.kill()
        await self.restart()

    def kill(self) -> None:
        self.broker.kill()
        self.broker.bury()

    async def restart(self) -> None:
        self.broker.start()
        await asyncio.to_thread(self.broker.await_listener, PATIENCE_S)

    async def absent_subscriber(self, name: str, version: int, stream: Stream) -> Subscriber:
        """Subscribed, then gone: all that is published waits for it."""
        audience = self.world.books.admit(Audience(name, stream.qos))
        subscriber = Subscriber(self.cast.client(name, version), audience)
        await subscriber.begin(stream.name, [stream])
        await self.leave(subscriber.client)
        return subscriber

    async def leave(self, client: MqttClient) -> None:
        client.is_away = True
        client.drop()
        await until(lambda: not client.is_connected)

    async def publish_all(
        self,
        publisher: Publisher,
        stream: Stream,
        count: int,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """`then` is called with the last acknowledgement just read, before anything else happens."""
        client = publisher.client
        done = asyncio.Event()
        left = count

        def go_on() -> None:
            nonlocal left
            while left and len(client.session.outgoing) < WINDOW:
                publisher.publish(stream, SIZE)
                left -= 1
            if not left and not client.session.outgoing and not done.is_set():
                then()
                done.set()

        client.on_progress = go_on
        await client.room(1)
        go_on()
        await done.wait()
        client.on_progress = lambda: None


async def offline(scene: Scene) -> None:
    """QoS 1 messages for a session that is away, kill right after the last PUBACK: the Mosquitto experiment."""
    stream = Stream("case/offline", 1)
    publisher = Publisher(scene.cast.client("publisher", V311), [stream])
    absent = await scene.absent_subscriber("absent", V311, stream)
    await scene.publish_all(publisher, stream, scene.count, then=scene.broker.kill)
    await scene.kill_and_restart()
    absent.client.is_away = False


async def recovery(scene: Scene) -> None:
    """The same at both QoS, and then killed again and again while it starts up with all that."""
    streams = [Stream("case/recovery/1", 1), Stream("case/recovery/2", 2)]
    publisher = Publisher(scene.cast.client("publisher", V311), streams)
    absent = [await scene.absent_subscriber(f"absent-{stream.qos}", V5, stream) for stream in streams]
    for stream in streams:
        await scene.publish_all(publisher, stream, scene.count // 2)
    scene.kill()
    began = time.monotonic()
    await scene.restart()
    whole_s = time.monotonic() - began
    for tenth in (9, 8, 7, 6, 5, 4, 3):
        scene.kill()
        scene.broker.start()
        await asyncio.sleep(whole_s * tenth / 10)
    await scene.kill_and_restart()
    for subscriber in absent:
        subscriber.client.is_away = False


async def half_way(scene: Scene) -> None:
    """QoS 2 to a client that stops in the middle of every step of the handshake, with a kill at each."""
    stream = Stream("case/half-way", 2)
    publisher = Publisher(scene.cast.client("publisher"), [stream])
    audience = scene.world.books.admit(Audience("halting", 2))
    subscriber = Subscriber(scene.cast.client("halting"), audience)
    await subscriber.begin(stream.name, [stream])
    for step in ("publish", "pubrec", "pubcomp", "pubrel", "publish", "pubrel"):
        reached = asyncio.Event()

        def watch(event: str, step: str = step, reached: asyncio.Event = reached) -> None:
            if event == step and not reached.is_set():
                scene.broker.kill()
                reached.set()

        scene.world.on_event = watch
        await publisher.client.room(WINDOW)
        for _ in range(scene.count // 100):
            publisher.publish(stream)
        await reached.wait()
        scene.broker.bury()
        await scene.restart()
        await until(lambda: not publisher.client.session.outgoing)
    scene.world.on_event = lambda event: None


async def stored(scene: Scene) -> None:
    """Messages that wait for a first subscriber (TB-09) are there for it after the kill."""
    stream = Stream("case/stored", 1, kind="stored messages")
    publisher = Publisher(scene.cast.client("publisher"), [stream], WAITING)
    await scene.publish_all(publisher, stream, scene.count // 20, then=scene.broker.kill)
    await scene.kill_and_restart()
    audience = scene.world.books.admit(Audience("late", 1))
    late = Subscriber(scene.cast.client("late"), audience)
    audience.due_after[stream.name] = 0
    await late.client.subscribe(stream.name, 1)


async def tbus_waits(scene: Scene) -> None:
    """TBus requests that wait, asked once. TBus acknowledges nothing, but commits are in order: what an MQTT
    publisher is told after them covers them."""
    requester = TbusRequester(scene.world, "asker", "case/ask")
    requester.is_repeating = False
    scene.cast.connect(requester.run())
    await until(lambda: requester.is_connected)
    for _ in range(scene.count // 100):
        requester.ask()
    await requester.ping()
    stream = Stream("case/after", 1, kind="stored messages")
    publisher = Publisher(scene.cast.client("publisher"), [stream], WAITING)
    await scene.publish_all(publisher, stream, 1, then=scene.broker.kill)
    await scene.kill_and_restart()
    scene.cast.connect(TbusService(scene.world, "service", "case/ask").run())
    audience = scene.world.books.admit(Audience("late", 1))
    late = Subscriber(scene.cast.client("late"), audience)
    audience.due_after[stream.name] = 0
    await late.client.subscribe(stream.name, 1)


async def requests_wait(scene: Scene) -> None:
    """MQTT requests acknowledged before there is a service: killed, then one comes."""
    askers = [Requester(scene.cast.client(f"asker-{qos}"), "case/ask", qos) for qos in (1, 2)]
    for asker in askers:
        await asker.begin()
        for _ in range(scene.count // 100):
            asker.ask()
    await until(lambda: all(request.is_acknowledged for request in scene.world.books.requests.values()))
    await scene.kill_and_restart()
    await Service(scene.cast.client("service")).begin("case/ask")


async def answers_wait(scene: Scene) -> None:
    """The broker took the answers (PUBACK) for a requester that is away; then it dies, and the service too."""
    asker = Requester(scene.cast.client("asker"), "case/ask", 1)
    await asker.begin()
    for _ in range(scene.count // 100):
        asker.ask()
    await until(lambda: all(request.is_acknowledged for request in scene.world.books.requests.values()))
    await scene.leave(asker.client)
    service = Service(scene.cast.client("service", is_kept=False))
    await service.begin("case/ask", concurrency=16)
    await until(lambda: len(service.taken) == len(scene.world.books.requests))
    await scene.leave(service.client)
    await scene.kill_and_restart()
    asker.client.is_away = False


async def will(scene: Scene) -> None:
    """A will that waits for its delay when the broker dies is published after that."""
    stream = Stream("case/will", 1, kind="wills")
    scene.world.books.open(stream)
    heir = Subscriber(scene.cast.client("heir"), scene.world.books.admit(Audience("heir", 1)))
    await heir.begin(stream.name, [stream])
    number = scene.world.books.send(stream.name)
    left = Will(
        stream.name, payload_of(stream.name, number), 1, properties=Properties(will_delay_s=WILL_DELAY_S)
    )
    mortal = scene.cast.client("mortal", will=left)
    # The acknowledgement of its own subscription covers the CONNECT and its will.
    await mortal.subscribe("case/nothing", 1)
    await scene.leave(mortal)
    marker = Stream("case/marker", 1, kind="stored messages")
    publisher = Publisher(scene.cast.client("publisher"), [marker], WAITING)
    await scene.publish_all(publisher, marker, 1)
    scene.world.books.acknowledge(stream.name, number)
    await scene.kill_and_restart()


async def clean_start(scene: Scene) -> None:
    """Who starts clean and is told so does not meet its old session again."""
    old, new = Stream("case/old", 1), Stream("case/new", 1)
    publisher = Publisher(scene.cast.client("publisher"), [old, new])
    subscriber = await scene.absent_subscriber("anew", V5, old)
    await scene.publish_all(publisher, old, scene.count // 20)
    client, audience = subscriber.client, subscriber.audience
    client.start_anew()
    audience.due_after.clear()
    audience.none_after[old.name] = 0
    client.is_away = False
    await client.subscribe(new.name, 1)
    audience.due_after[new.name] = 0
    await scene.kill_and_restart()
    await scene.publish_all(publisher, new, scene.count // 20)


async def expiry(scene: Scene) -> None:
    """Clocks run while the broker is down: of messages, of sessions and of requests."""
    short, lasting = Stream("case/short", 1), Stream("case/lasting", 1)
    hasty = Publisher(scene.cast.client("hasty"), [short], Properties(message_expiry_s=EXPIRY_S))
    patient = Publisher(scene.cast.client("patient"), [lasting], Properties(message_expiry_s=3600))
    absent = await scene.absent_subscriber("absent", V5, lasting)
    absent.client.is_away = False
    await absent.client.subscribe(short.name, 1)
    await scene.leave(absent.client)
    absent.audience.none_after[short.name] = 0
    passing = scene.cast.client("passing", expiry_s=EXPIRY_S)
    await passing.subscribe("case/nothing", 1)
    asker = Requester(scene.cast.client("asker"), "case/ask", 1)
    await asker.begin()
    for _ in range(scene.count // 100):
        asker.ask(EXPIRY_S, ("timed-out", b"no service took it in time"))
    await scene.publish_all(patient, lasting, scene.count // 20)
    await scene.publish_all(hasty, short, scene.count // 20)
    await until(lambda: all(request.is_acknowledged for request in scene.world.books.requests.values()))
    await scene.leave(asker.client)
    await scene.leave(passing)
    scene.kill()
    await asyncio.sleep(EXPIRY_S + 0.5)
    await scene.restart()
    passing.forget_promise()
    for client in (absent.client, asker.client, passing):
        client.is_away = False
    await until(lambda: passing.is_connected)
    if passing.was_present:
        scene.world.books.strange.append("a session outlived its expiry")


async def between(scene: Scene) -> None:
    """Dies again and again when the stream has records and the state does not know them yet. Whoever published
    them has no acknowledgement and sends them again: in the stream they are once, at any QoS."""
    streams = [Stream("crash/between/1", 1), Stream("crash/between/2", 2)]
    publishers = [Publisher(scene.cast.client(f"publisher-{stream.qos}"), [stream]) for stream in streams]
    # At QoS 1 there is nothing to commit, unless someone waits for it.
    absent = await scene.absent_subscriber("absent", V5, streams[0])
    for _ in range(DEATHS):
        scene.broker.doom()
        for publisher, stream in zip(publishers, streams, strict=True):
            await publisher.client.room(WINDOW)
            for size in (0, 0, 0, 3_000):
                publisher.publish(stream, size)
        await until(lambda: scene.broker.is_dead)
        scene.broker.bury()
        await scene.restart()
        await until(lambda: not any(publisher.client.session.outgoing for publisher in publishers))
    absent.client.is_away = False


CASES: Mapping[str, Callable[[Scene], Awaitable[None]]] = {
    "offline": offline,
    "recovery": recovery,
    "half-way": half_way,
    "stored": stored,
    "requests-wait": requests_wait,
    "answers-wait": answers_wait,
    "tbus-waits": tbus_waits,
    "will": will,
    "clean-start": clean_start,
    "expiry": expiry,
    "between": between,
}
LOGGED = frozenset({"between"})
"""Those whose messages go to a stream, too."""
PLAIN_MQTT = frozenset({"offline", "recovery", "half-way"})
"""What any MQTT broker can be asked."""


async def play(
    name: str, broker_kind: str, folder: Path, *, count: int, sync: str = "normal", quiet_s: float = QUIET_S
) -> Outcome:
    with broker_in(folder, broker_kind, sync, logs.CONFIG if name in LOGGED else "") as broker:
        world = World(broker.setting.mqtt_port, broker.setting.tbus_port, random.Random(1))
        cast = Cast(world)
        broker.start()
        try:
            await asyncio.to_thread(broker.await_listener, PATIENCE_S)
            await asyncio.wait_for(CASES[name](Scene(broker, world, cast, count, quiet_s)), PATIENCE_S)
            world.is_draining = True
            await cast.settle(quiet_s)
            broker.check_alive()
        finally:
            await cast.close()
        if name in LOGGED:
            broker.stop()
            logs.expect(world.books)
            logs.note(world.books, logs.read_records(broker.setting.data))
        return outcome_of(f"{broker_kind}: {name}, killed {broker.kills} times", broker, world)


def run_case(name: str, broker_kind: str, folder: Path, **options: object) -> Outcome:
    return asyncio.run(play(name, broker_kind, folder, **options))  # type: ignore[arg-type]
