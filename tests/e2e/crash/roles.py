"""Who takes part: publishers, subscribers who stay or leave, a keeper of retained values, an auditor."""

import asyncio
import contextlib

from polybus.wire.mqtt.packets import V5, Properties, Publish
from tests.e2e.crash.books import Audience, Stream
from tests.e2e.crash.mqtt import Lost, MqttClient
from tests.e2e.crash.session import Accepted
from tests.e2e.crash.world import World, eventually, until

WINDOW = 60
BURST = (1, 1, 2, 3, 5, 8, 30)
LONGEST_PAUSE_S = 0.05
SIZES = (0, 20, 20, 60, 200, 3_000)
EXPIRY_S = 3600
WAITING = Properties(message_expiry_s=EXPIRY_S, user_properties=(("polybus-message", "waiting"),))
AUDIT_PATIENCE_S = 2.0


def payload_of(stream: str, number: int, size: int = 0) -> bytes:
    return f"{stream}:{number}:".encode() + b"x" * size


def parse(payload: bytes) -> tuple[str, int]:
    stream, number, _ = payload.decode().split(":", 2)
    return stream, int(number)


class Publisher:
    """One client, several streams. A stream's name is its topic's."""

    def __init__(self, client: MqttClient, streams: list[Stream], properties: Properties | None = None) -> None:
        self.client = client
        self.world = client.world
        self.streams = streams
        self._properties = properties
        client.on_accepted = self._accepted
        for stream in streams:
            self.world.books.open(stream)

    async def publish_on(self) -> None:
        dice = self.world.dice
        while not self.world.is_draining:
            await self.client.room(WINDOW)
            for _ in range(dice.choice(BURST)):
                self.publish(dice.choice(self.streams), dice.choice(SIZES))
            await asyncio.sleep(self.world.pause_s(LONGEST_PAUSE_S))

    def publish(self, stream: Stream, size: int = 0) -> None:
        number = self.world.books.send(stream.name)
        message = Publish(stream.name, payload_of(stream.name, number, size), stream.qos)
        if self._properties is not None:
            message = Publish(message.topic, message.payload, message.qos, properties=self._properties)
        self.client.publish(message, (stream.name, number))

    def _accepted(self, accepted: Accepted) -> None:
        stream, number = accepted.token  # type: ignore[misc]
        if accepted.is_refused:
            what = f"{stream} {number} refused with 0x{accepted.reason_code:02X} {accepted.reason}"
            self.world.books.strange.append(f"{self.client.client_id}: {what}")
        else:
            self.world.books.acknowledge(stream, number)


class Subscriber:
    """Notes what comes. Members of a group share an audience, everyone else has one alone."""

    def __init__(self, client: MqttClient, audience: Audience) -> None:
        self.client = client
        self.world = client.world
        self.audience = audience
        client.on_arrival = self._arrived

    async def begin(self, topic_filter: str, streams: list[Stream]) -> None:
        """Before anyone publishes: everything is due."""
        await self.client.subscribe(topic_filter, self.audience.qos)
        for stream in streams:
            self.audience.due_after[stream.name] = self.world.books.sent[stream.name]

    async def come_and_go(self, longest_s: float = 0.8) -> None:
        """Away now and then, so that messages have to wait."""
        while not self.world.is_draining:
            await asyncio.sleep(self.world.pause_s(longest_s))
            self.client.is_away = not self.client.is_away
            if self.client.is_away:
                self.client.drop()
        self.client.is_away = False

    def _arrived(self, message: Publish) -> None:
        if message.retain:
            return
        stream, number = parse(message.payload)
        self.world.books.arrive(self.audience.name, stream, number)


class Wanderer(Subscriber):
    """Subscribes in the middle of things, and unsubscribes, always to one stream."""

    async def wander(self, streams: list[Stream]) -> None:
        dice, books = self.world.dice, self.world.books
        ahead = dice.sample(streams, len(streams))
        while not self.world.is_draining:
            await asyncio.sleep(self.world.pause_s(2.0))
            if ahead and dice.random() < 0.6:
                stream = ahead.pop()
                await self.client.subscribe(stream.name, self.audience.qos)
                self.audience.due_after[stream.name] = books.sent[stream.name]
            elif len(self.audience.due_after) > 2:
                # What is queued may go with its subscription: from here on nothing is due.
                name = dice.choice(sorted(self.audience.due_after))
                del self.audience.due_after[name]
                await self.client.unsubscribe(name)
                self.audience.none_after[name] = books.sent[name]


class Collector(Subscriber):
    """Lets messages wait for a subscription (TB-09): its own, which is there only now and then."""

    async def collect(self, topic_filter: str, stream: Stream) -> None:
        self.audience.due_after[stream.name] = 0
        while not self.world.is_draining:
            await asyncio.sleep(self.world.pause_s(1.0))
            await self.client.subscribe(topic_filter, self.audience.qos)
            await asyncio.sleep(self.world.pause_s(0.3))
            await self._have_all(stream)
            if not self.world.is_draining:
                await self.client.unsubscribe(topic_filter)
        await self.client.subscribe(topic_filter, self.audience.qos)

    async def _have_all(self, stream: Stream) -> None:
        """What is queued may go with its subscription, so what was acknowledged by now must have come."""
        books = self.world.books
        due = set(books.acknowledged[stream.name])
        arrived = books.arrived[self.audience.name, stream.name]
        await until(lambda: self.world.is_draining or due <= set(arrived))


class Keeper:
    """Sets retained values, each after the one before it was acknowledged, and deletes some."""

    def __init__(self, client: MqttClient, topics: list[str]) -> None:
        self.client = client
        self.world = client.world
        self.topics = topics
        client.on_accepted = self._accepted
        self._busy: set[str] = set()

    async def keep(self) -> None:
        dice, books = self.world.dice, self.world.books
        while not self.world.is_draining:
            await self.client.room(len(self.topics) + 1)
            for topic in self.topics:
                if topic not in self._busy and dice.random() < 0.5:
                    is_deletion = dice.random() < 0.15
                    number = books.set_value(topic, is_deletion=is_deletion)
                    payload = b"" if is_deletion else payload_of(topic, number)
                    self._busy.add(topic)
                    qos = dice.choice((1, 2))
                    self.client.publish(Publish(topic, payload, qos, retain=True), (topic, number))
            await asyncio.sleep(self.world.pause_s(0.05))

    def _accepted(self, accepted: Accepted) -> None:
        topic, number = accepted.token  # type: ignore[misc]
        self._busy.discard(topic)
        if accepted.is_refused:
            self.world.books.strange.append(f"{topic} {number} refused with 0x{accepted.reason_code:02X}")
        else:
            self.world.books.acknowledge_value(topic, number)


class Auditor:
    """Subscribes as someone new and looks at what is retained."""

    def __init__(self, world: World, topic_filter: str) -> None:
        self.world = world
        self._filter = topic_filter
        self._visits = 0

    async def audit_on(self) -> None:
        while not self.world.is_draining:
            await self.audit()
            await asyncio.sleep(self.world.pause_s(0.1))

    async def audit(self) -> bool:
        """Whether it got to the end; a look that a crash interrupts says nothing."""
        self._visits += 1
        client = MqttClient(self.world, f"auditor-{self._visits}", V5, is_kept=False)
        seen: dict[str, int] = {}

        def note(message: Publish) -> None:
            if message.retain:
                seen[message.topic] = parse(message.payload)[1]

        client.on_arrival = note
        visit = asyncio.create_task(client.visit())
        look = asyncio.create_task(self._look(client, seen))
        await asyncio.wait({visit, look}, return_when=asyncio.FIRST_COMPLETED)
        is_complete = look.done() and not look.cancelled() and look.exception() is None
        for task in (visit, look):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Lost, OSError):
                await task
        return is_complete

    async def _look(self, client: MqttClient, seen: dict[str, int]) -> None:
        await until(lambda: client.is_connected)
        books = self.world.books
        before = {topic: values.acknowledged for topic, values in books.values.items()}
        await client.subscribe(self._filter, 1)
        await client.ping()

        def is_missing(topic: str, acknowledged: int) -> bool:
            has_value = acknowledged and not any(books.values[topic].is_deletion[acknowledged - 1 :])
            return topic not in seen and bool(has_value)

        missing = lambda: [topic for topic, number in before.items() if is_missing(topic, number)]  # noqa: E731
        await eventually(lambda: not missing(), AUDIT_PATIENCE_S, lambda: len(seen))
        await client.ping()
        for topic, acknowledged in before.items():
            books.see_value(topic, seen.get(topic), acknowledged)
