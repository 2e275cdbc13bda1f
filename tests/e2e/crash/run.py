"""One run: everyone at work, the broker killed again and again, then peace, and the books compared."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polybus.wire.mqtt.packets import V5, V311
from tests.e2e.crash import logs
from tests.e2e.crash.books import Audience, Stream
from tests.e2e.crash.brokers import BrokerProcess, broker_in
from tests.e2e.crash.cast import QUIET_S, Cast, Outcome, outcome_of
from tests.e2e.crash.moments import LATEST_S, Countdown, Moment, choose
from tests.e2e.crash.mqtt import SLUGGISH
from tests.e2e.crash.paho_pair import PahoPair
from tests.e2e.crash.requests import Requester, Service
from tests.e2e.crash.roles import WAITING, Auditor, Collector, Keeper, Publisher, Subscriber, Wanderer
from tests.e2e.crash.tbus import TbusRequester, TbusService
from tests.e2e.crash.world import POLL_S, World

SHARED = "$share/team/crash/#"
RETAINED_TOPICS = [f"kept/{number}" for number in range(12)]


@dataclass(frozen=True)
class Plan:
    broker: str = "polybus"
    rounds: int = 30
    seed: int = 1
    sync: str = "normal"
    quiet_s: float = QUIET_S
    wants_stream: bool = True

    @property
    def has_stream(self) -> bool:
        """Only a broker that keeps something has streams."""
        return self.wants_stream and self.broker == "polybus"


class Stage(Cast):
    """Everyone who takes part in a random run."""

    def __init__(self, world: World, broker: BrokerProcess, quiet_s: float) -> None:
        super().__init__(world)
        self.broker = broker
        self.quiet_s = quiet_s
        self.publishers: list[Publisher] = []
        self.streams: list[Stream] = []
        self.paho: PahoPair | None = None
        self.tbus: TbusRequester | None = None

    async def close(self) -> None:
        if self.paho is not None:
            await asyncio.to_thread(self.paho.close)
        await super().close()

    async def set_up(self) -> None:
        """Those who are to get everything are there before anything is sent."""
        versions = {"a": V5, "b": V311, "c": V5}
        for name, version in versions.items():
            streams = [Stream(f"crash/{name}/{qos}", qos) for qos in (1, 2)]
            self.publishers.append(Publisher(self.client(f"pub-{name}", version), streams))
            self.streams += streams
        await self._subscribers()
        await self._keepers()
        if self.broker.is_polybus:
            await self._waiting()
            await self._requests()
        self.paho = PahoPair(self.world, self.broker.setting.folder / "paho.txt")
        await self.paho.begin()
        ours, paho = ({stream.name for stream in streams} for streams in (self.streams, self.paho.streams))
        for audience in self.world.books.audiences.values():
            if audience.due_after.keys() >= ours:
                audience.due_after |= dict.fromkeys(paho, 0)
        for publisher in self.publishers:
            self.work(publisher.publish_on())
        self.work(self._paho_publishes())

    async def _subscribers(self) -> None:
        admit = self.world.books.admit
        everything: list[tuple[str, int, int, dict[str, Any]]] = [
            ("steady", V5, 2, {}),
            ("steady-311", V311, 2, {}),
            ("at-qos-1", V5, 1, {}),
            ("restless", V311, 2, {}),
            ("narrow", V5, 2, {"receive_maximum": 7}),
            ("sluggish", V5, 2, {"lateness": SLUGGISH}),
        ]
        for name, version, qos, options in everything:
            subscriber = Subscriber(self.client(name, version, **options), admit(Audience(name, qos)))
            await subscriber.begin("crash/+/+", self.streams)
            if name == "restless":
                self.work(subscriber.come_and_go())
        team = admit(Audience("team", 1, is_ordered=False))
        for name in ("team-1", "team-2"):
            await Subscriber(self.client(name), team).begin(SHARED, self.streams)
        wanderer = Wanderer(self.client("wanderer"), admit(Audience("wanderer", 2)))
        self.work(wanderer.wander(self.streams))

    async def _keepers(self) -> None:
        self.work(Keeper(self.client("keeper"), RETAINED_TOPICS).keep())
        self.work(Auditor(self.world, "kept/+").audit_on())

    async def _waiting(self) -> None:
        stream = Stream("later/1", 1, kind="stored messages")
        self.publishers.append(Publisher(self.client("pub-later"), [stream], WAITING))
        audience = self.world.books.admit(Audience("collector", 1, is_ordered=False))
        self.work(Collector(self.client("collector"), audience).collect("later/#", stream))

    async def _requests(self) -> None:
        await Service(self.client("service-kept")).begin("ask/+")
        await Service(self.client("service-clean", is_kept=False)).begin("ask/+")
        self.connect(TbusService(self.world, "service-tbus", "ask/+").run())
        for qos in (1, 2):
            requester = Requester(self.client(f"asker-{qos}"), f"ask/{qos}", qos)
            await requester.begin()
            self.work(requester.ask_on(window=20, pause_s=0.04))
        self.tbus = TbusRequester(self.world, "asker-tbus", "ask/tbus")
        self.connect(self.tbus.run())
        self.work(self.tbus.ask_on(window=20, pause_s=0.04))

    async def _paho_publishes(self) -> None:
        assert self.paho is not None
        while not self.world.is_draining:
            self.paho.publish(self.world.dice.choice(self.paho.streams))
            await asyncio.sleep(self.world.pause_s(0.04))

    # -- the end --------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        assert self.paho is not None
        return super().is_settled() and (self.tbus is None or not self.tbus.unfinished) and self.paho.is_done

    async def drain(self) -> None:
        self.world.is_draining = True
        await self.settle(self.quiet_s)
        # What is still queued behind all that, repetitions above all, comes before one more message.
        for publisher in self.publishers:
            for stream in publisher.streams:
                publisher.publish(stream)
        assert self.paho is not None
        for stream in self.paho.streams:
            self.paho.publish(stream)
        await self.settle(self.quiet_s)
        await Auditor(self.world, "kept/+").audit()


async def strike(broker: BrokerProcess, world: World, moment: Moment) -> None:
    """Kill it at that moment of its life, which has just begun."""
    loop = asyncio.get_running_loop()
    let_in = asyncio.Event()
    killed = asyncio.Event()
    countdown = Countdown(moment)

    def watch(event: str) -> None:
        if event == "connack":
            let_in.set()
        # What a socket still held of the life before does not count.
        if let_in.is_set() and countdown.is_reached(event):
            broker.kill()
            killed.set()

    world.on_event = watch
    if moment.when == "starting":
        await asyncio.sleep(moment.delay_s)
    else:
        deadline = loop.time() + 60
        while not let_in.is_set() and not killed.is_set():
            broker.check_alive()
            assert loop.time() < deadline, f"nobody is let in after 60 s: {broker.log[-2000:]}"
            await asyncio.sleep(POLL_S)
        if moment.when == "running":
            await asyncio.sleep(moment.delay_s)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(killed.wait(), LATEST_S)
    world.on_event = lambda event: None
    broker.kill()
    broker.bury()


async def perform(plan: Plan, folder: Path, on_kill: Callable[[Moment], None]) -> Outcome:
    dice = random.Random(plan.seed)
    extra = logs.CONFIG if plan.has_stream else ""
    with broker_in(folder, plan.broker, plan.sync, extra) as broker:
        world = World(broker.setting.mqtt_port, broker.setting.tbus_port, random.Random(plan.seed + 1))
        stage = Stage(world, broker, plan.quiet_s)
        broker.start()
        try:
            await asyncio.to_thread(broker.await_listener)
            await asyncio.wait_for(stage.set_up(), 30)
            for _ in range(plan.rounds):
                moment = choose(dice)
                await strike(broker, world, moment)
                stage.check()
                on_kill(moment)
                broker.start()
            await asyncio.to_thread(broker.await_listener, 60.0)
            await stage.drain()
            broker.check_alive()
        finally:
            await stage.close()
        if plan.has_stream:
            broker.stop()
            logs.expect(world.books)
            logs.note(world.books, logs.read_records(broker.setting.data))
        return outcome_of(f"{plan.broker}, killed {broker.kills} times, seed {plan.seed}", broker, world)


def run(plan: Plan, folder: Path, on_kill: Callable[[Moment], None] = lambda moment: None) -> Outcome:
    return asyncio.run(perform(plan, folder, on_kill))
