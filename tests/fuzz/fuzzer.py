"""Mutated streams against the real session code, in every state a connection can be in.

A case is one connection that gets into some state and then sends spoiled packets. Nothing may escape
from the broker, everything it answers must be lawful, bystanders must not notice, whoever asks has to be
told exactly once how it ended, and when the connections are gone nothing may be left of them.
"""

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import polybus.broker.subscriptions as subscriptions
from polybus.broker.access import Access, Challenge, Credentials, Exchange, Verdict
from polybus.broker.broker import Broker
from polybus.broker.limits import Limits
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
)
from tests.broker.books import check_requests
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import ENDS, JOBS, VERSIONS, answer, corpus, request
from tests.session.harness import NO_LIMIT, Peer, World, check_accounts, connect_packet

BYSTANDERS_EVERY: Final = 25
CLEAN_EVERY: Final = 250
WARM_UP: Final = 1000
ROUTES: Final = 200
"""Cached topics while we fuzz: few, so that the cache is full before memory is first looked at."""
SPARE_BLOCKS: Final = 3_000
"""Blocks of memory that may come and go between two looks (dictionaries that grew, caches)."""
ASKERS_ENDS: Final = "bystander/ends"
WORKERS_JOBS: Final = "bystander/jobs"
TAKES_MANY: Final = (("polybus-service", "1000"),)
SERVER_PACKETS: Final = (
    ConnAck, Publish, PubAck, PubRec, PubRel, PubComp, SubAck, UnsubAck, PingResp, Disconnect, Auth,
)  # fmt: skip

LIMITS: Final = Limits(
    packet_size_bytes=65_536,
    session_expiry_s=60,
    subscriptions_per_session=50,
    receive_maximum=20,
    inflight_per_session=20,
    queued_messages_per_session=40,
    outbox_bytes_per_connection=20_000,
    retained_messages=30,
    retained_bytes=200_000,
    memory_bytes=2_000_000,
    stored_messages=20,
    stored_bytes=100_000,
    requests=200,
    requests_per_client=30,
    request_ends_kept_s=60,
)


class Failure(AssertionError):
    """What went wrong, and how to see it again."""


class _Doorkeeper:
    """Lets everyone in; those whose name begins with `slow` have to wait."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Verdict], None]] = []

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        if credentials.client_id.startswith("slow"):
            self.waiting.append(answer)
        else:
            answer(Verdict(allowed=True))

    def decide(self, *, allowed: bool) -> None:
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell(Verdict(allowed=allowed))


class _Riddles:
    def begin(self, client_id: str) -> Exchange:
        return _Riddle()


class _Riddle:
    def __init__(self) -> None:
        self._asked = 0

    def step(self, data: bytes | None) -> Challenge | Verdict:
        self._asked += 1
        if self._asked > 3 or data == b"right":
            return Verdict(allowed=data == b"right")
        return Challenge(b"?" * self._asked)


class _Alarm(logging.Handler):
    """Hears of faults of our own, which cost a connection and would otherwise stay unseen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.faults.append(logging.Formatter().format(record))


class Stage(World):
    """A world with someone who asks and someone who serves, to get a connection into states with requests."""

    def __init__(self, access: Access) -> None:
        super().__init__(LIMITS, access=access)
        self.asker = self.connect("bystander-asker", V5)
        self.asker.subscribe(ASKERS_ENDS, qos=1)
        self.unanswered: set[bytes] = set()
        """What the asker has not been told the end of."""
        self.worker = self.connect("bystander-worker", V5)
        self.worker.send(
            Subscribe(1, (SubscriptionRequest(WORKERS_JOBS),), Properties(user_properties=TAKES_MANY))
        )
        self.worker.packets()
        self._asked = 0

    def ask(self, how: str, topic: str) -> None:
        self._asked += 1
        correlation = b"%d" % self._asked
        self.unanswered.add(correlation)
        self.asker.send(request(how, topic=topic, ends=ASKERS_ENDS, correlation=correlation))

    def hear(self) -> None:
        """Take the ends that came to the asker."""
        for end in self.asker.receive_all():
            self.unanswered.remove(end.properties.correlation_data or b"")

    def work(self, dice: Random) -> None:
        """The worker answers some of what it was asked, and forgets about the rest."""
        for asked in self.worker.receive_all():
            how = dict(asked.properties.user_properties).get("polybus-request")
            if how == "managed" and dice.random() < 0.5:
                self.worker.send(answer(asked.properties.response_topic or "", 0))


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.case = 0
        self.doors = _Doorkeeper()
        access = Access(authenticator=self.doors, methods={"riddle": _Riddles()})
        self.world = Stage(access)
        self.alarm = _Alarm()
        self.outcomes = {"open": 0, "closed": 0}
        self._blocks = 0
        self._story: list[str] = []
        self._giver = self.world.connect("bystander-giver", V311)
        self._taker = self.world.connect("bystander-taker", V5)
        self._taker.subscribe("bystander/topic", qos=2)

    def run(self, count: int, progress: Callable[[], None] = lambda: None) -> None:
        """Raises `Failure`, which names the seed and the case."""
        with _few_routes(), _listening(self.alarm):
            for _ in range(count):
                self.case += 1
                self._story = []
                try:
                    self._run_case(Random(f"{self.seed}/{self.case}"))
                    self._look_around()
                except Exception as error:
                    raise Failure(self._report()) from error
                progress()
            self._clean_up()
            self._check_memory()

    # -- one case -----------------------------------------------------------------------------------

    def _run_case(self, dice: Random) -> None:
        name = dice.choice(list(STATES))
        self._story.append(f"state: {name}")
        peer = STATES[name](self.world, dice)
        if dice.random() < 0.15 and not peer.is_closed:
            self._story.append("blocked")
            peer.block()
        packets = corpus(peer.version)
        own = _own_packets(peer)
        stream = b"".join(
            mutated(dice, own if own and dice.random() < 0.5 else packets) for _ in range(dice.randint(1, 6))
        )
        for piece in _pieces(dice, stream):
            self._story.append(piece.hex())
            peer.feed(piece)
            if dice.random() < 0.3:
                self.world.settle()
            if dice.random() < 0.02:
                self.world.advance(dice.choice((0.1, 2, 30)))
        self.world.settle()
        if self.doors.waiting:
            self.doors.decide(allowed=dice.random() < 0.7)
            self.world.settle()
        if peer.link.blocked and not peer.is_closed and dice.random() < 0.5:
            peer.unblock()
        self.outcomes["closed" if peer.is_closed else "open"] += 1
        _check_answers(peer)
        check_accounts(self.world.broker)
        _check_requests(self.world.broker)
        if dice.random() < 0.5:
            self.world.work(dice)
        if not peer.is_closed or dice.random() < 0.5:
            peer.drop()
        self.world.hear()
        if self.alarm.faults:
            raise Failure(self.alarm.faults[0])

    def _look_around(self) -> None:
        if self.case % BYSTANDERS_EVERY == 0:
            self._exchange()
        if self.case % CLEAN_EVERY == 0:
            self._clean_up()
            if self.case == WARM_UP:
                self._blocks = _blocks()

    def _exchange(self) -> None:
        """A message at every QoS from one bystander to the other."""
        for qos in (0, 1, 2):
            payload = b"%d/%d" % (self.case, qos)
            self._giver.publish("bystander/topic", payload, qos=qos)
            replies = self._giver.packets()
            expected = {0: [], 1: [PubAck], 2: [PubRec, PubComp]}[qos]
            assert [type(p) for p in replies] == expected, f"the giver got {replies}"
            got = [p.payload for p in self._taker.receive_all()]
            assert got == [payload], f"the taker got {got} instead of {payload!r}"
        world = self.world
        world.worker.receive_all()
        world.ask("managed", WORKERS_JOBS)
        (asked,) = world.worker.take(Publish)
        world.worker.send(answer(asked.properties.response_topic or "", 0))
        (end,) = world.asker.receive_all()
        assert end.payload == b"!", f"the asker got {end}"
        world.unanswered.remove(end.properties.correlation_data or b"")

    # -- what is left ---------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Every session but the bystanders' has ended by now."""
        world = self.world
        world.advance(1_000)
        broker = world.broker
        under_way = [r for mine in broker.requests.under_way.values() for r in mine.values()]
        for client_id in {r.client_id for r in under_way}:  # what may wait for years
            world.connect(client_id, V5).drop()
        broker.storage.set_limits(0, 0)
        broker.storage.set_limits(LIMITS.stored_messages, LIMITS.stored_bytes)
        world.settle()
        world.worker.receive_all()
        world.hear()
        dispatcher = broker.dispatcher
        requests = broker.requests
        places = (broker.storage, requests.ends, requests.line, requests.unread)
        left = {
            "sessions": len(broker.registry.sessions) - 4,
            "connected": broker.registry.connected - 4,
            "subscriptions": broker.subscriptions.count - 3,
            "requests": broker.requests.count,
            "stored": sum(place.count for place in places),
            "requests without an end": len(world.unanswered),
            "timers": len(broker.timers._targets),
            "timer entries past 128": max(0, len(broker.timers._heap) - 128),
            "routes past the limit": max(0, len(broker.subscriptions.routes) - ROUTES),
            "queued bytes": dispatcher.holdings.size_bytes,
            "backlog bytes": dispatcher.backlog_bytes,
            "queued sessions": len(dispatcher.queued_sessions),
            "replays": len(dispatcher.unfinished),
            "dirty links": len(dispatcher.dirty),
            "held acknowledgements": len(broker.awaiting),
            "in flight": sum(len(s.inflight) for s in broker.registry.sessions.values()),
            "retained past the limit": max(0, broker.retained.count - LIMITS.retained_messages),
            "retained expiries": max(0, len(broker.retained._expiries) - 64 - 2 * broker.retained.count),
        }
        assert not any(left.values()), {what: number for what, number in left.items() if number}

    def _check_memory(self) -> None:
        if self.case < WARM_UP + CLEAN_EVERY:
            return
        grown = _blocks() - self._blocks
        if grown > SPARE_BLOCKS:
            raise Failure(
                f"seed {self.seed}: {grown} blocks of memory more after {self.case - WARM_UP} more cases"
            )

    def _report(self) -> str:
        story = "\n  ".join(self._story)
        return f"seed {self.seed}, case {self.case} (--seed {self.seed} --count {self.case})\n  {story}"


# -- the states a connection can be in -------------------------------------------------------------------


def _new(world: Stage, dice: Random) -> Peer:
    return world.open(dice.choice(VERSIONS))


def _greeted_well(world: Stage, dice: Random) -> Peer:
    """A lawful CONNECT of the corpus, whatever it asks for."""
    version = dice.choice(VERSIONS)
    peer = world.open(version)
    peer.feed(dice.choice([data for data in corpus(version) if data[0] == 0x10]))
    return peer


def _connected(version: int) -> Callable[[Stage, Random], Peer]:
    def connect(world: Stage, dice: Random) -> Peer:
        fields = {}
        if version == V5:
            fields = dice.choice(
                ({}, {"topic_alias_maximum": 3}, {"maximum_packet_size": 60}, {"receive_maximum": 2})
            )
        peer = world.open(version)
        keeps = dice.random() < 0.5
        clean = dice.random() < 0.3
        peer.send(
            connect_packet(f"fuzz-{dice.randrange(5)}", version, keeps=keeps, clean_start=clean, **fields)
        )
        return peer

    return connect


def _in_flight(version: int) -> Callable[[Stage, Random], Peer]:
    """Messages unacknowledged both ways, and more waiting."""

    def connect(world: Stage, dice: Random) -> Peer:
        peer = world.open(version)
        filters = ["fuzz/#", "#"] if version < V5 else ["fuzz/#", "$share/g/fuzz/+", "+/+"]
        requests = tuple(SubscriptionRequest(f, 2) for f in filters)
        name = f"fuzz-{dice.randrange(5)}"
        window = {"receive_maximum": 10} if version == V5 else {}
        peer.send(connect_packet(name, version, keeps=True, clean_start=False, **window))
        peer.send(Subscribe(1, requests))
        for qos in (1, 2):
            first = dice.randint(1, 5)
            count = dice.randint(1, 8)
            peer.send(*(Publish("fuzz/t", b"x", qos, packet_id=first + n) for n in range(count)))
        return peer

    return connect


def _authenticating(world: Stage, dice: Random) -> Peer:
    peer = world.open(V5)
    peer.send(connect_packet("fuzz-riddle", V5, authentication_method="riddle"))
    if dice.random() < 0.5:
        answer = Properties(authentication_method="riddle", authentication_data=b"wrong")
        peer.send(Auth(0x18, answer))
    return peer


def _authenticated(world: Stage, dice: Random) -> Peer:
    peer = world.open(V5)
    peer.send(connect_packet("fuzz-riddle", V5, authentication_method="riddle", authentication_data=b"right"))
    return peer


def _waiting_for_a_verdict(world: Stage, dice: Random) -> Peer:
    version = dice.choice(VERSIONS)
    peer = world.open(version)
    peer.send(connect_packet(f"slow-{dice.randrange(3)}", version))
    return peer


def _serving(world: Stage, dice: Random) -> Peer:
    """A service with requests in hand, and more that wait for it."""
    fields = dice.choice(
        ({}, {"topic_alias_maximum": 3, "maximum_packet_size": 200}, {"maximum_packet_size": 150})
    )
    peer = world.open(V5)
    peer.send(connect_packet(f"fuzz-{dice.randrange(5)}", V5, keeps=dice.random() < 0.5, **fields))
    offer = Properties(user_properties=(("polybus-service", dice.choice(("1", "2", "yes"))),))
    peer.send(Subscribe(1, (SubscriptionRequest(JOBS),), offer))
    for _ in range(dice.randint(1, 4)):
        world.ask(dice.choice(("managed", "managed, waiting", "managed, priority")), JOBS)
    return peer


def _asking(world: Stage, dice: Random) -> Peer:
    """A requester whose requests are in hand of a service, wait for one, or have just ended."""
    fields = dice.choice(
        (
            {},
            {"topic_alias_maximum": 3, "maximum_packet_size": 200},
            {"maximum_packet_size": 100},
            {"receive_maximum": 1},
        )
    )
    peer = world.open(V5)
    keeps, clean = dice.random() < 0.5, dice.random() < 0.5
    peer.send(connect_packet(f"fuzz-{dice.randrange(5)}", V5, keeps=keeps, clean_start=clean, **fields))
    if dice.random() < 0.8:
        peer.send(Subscribe(1, (SubscriptionRequest(ENDS, dice.randint(0, 2)),)))
    for _ in range(dice.randint(1, 4)):
        how = dice.choice(("managed", "managed, waiting", "managed, priority"))
        peer.send(request(how, topic=dice.choice((WORKERS_JOBS, WORKERS_JOBS, "fuzz/nobody")), qos=0))
    return peer


STATES: Final[dict[str, Callable[[Stage, Random], Peer]]] = {
    "new": _new,
    "greeted": _greeted_well,
    "connected 3.1": _connected(V31),
    "connected 3.1.1": _connected(V311),
    "connected 5.0": _connected(V5),
    "in flight 3.1.1": _in_flight(V311),
    "in flight 5.0": _in_flight(V5),
    "authenticating": _authenticating,
    "authenticated": _authenticated,
    "waiting for a verdict": _waiting_for_a_verdict,
    "serving": _serving,
    "asking": _asking,
}


# -- helpers -----------------------------------------------------------------------------------------------


def _pieces(dice: Random, stream: bytes) -> Iterator[bytes]:
    how = dice.random()
    if how < 0.5:
        yield stream
        return
    longest = 3 if how < 0.6 else 60
    pos = 0
    while pos < len(stream):
        size = dice.randint(1, longest)
        yield stream[pos : pos + size]
        pos += size


def _check_answers(peer: Peer) -> None:
    """Whole packets that a server may send, in the version of the connection, and lawful."""
    version = peer.link.version
    aliases: set[int] = set()
    for packet in _packets(peer.port.take(), version):
        assert isinstance(packet, SERVER_PACKETS), packet
        assert encode(packet, version), packet
        if isinstance(packet, Publish) and (alias := packet.properties.topic_alias) is not None:
            assert packet.topic or alias in aliases, f"an alias nobody introduced: {packet}"
            aliases.add(alias)


def _packets(data: bytes, version: int) -> Iterator[Packet]:
    pos = 0
    while (frame := next_frame(data, pos, NO_LIMIT)) is not None:
        first_byte, start, pos = frame
        yield decode(first_byte, data[start:pos], version)
    assert pos == len(data), f"stopped within a packet: {data[pos:].hex()}"


def _own_packets(peer: Peer) -> list[bytes]:
    """What only this connection can say now: answers to what it was asked, and cancels of what it asked."""
    session = peer.link.session
    if session is None or peer.version != V5:
        return []
    received = [p for p in _packets(bytes(peer.port.sent), V5) if isinstance(p, Publish)]
    topics = {p.properties.response_topic or "" for p in received}
    packets = [
        answer(topic, qos, status)
        for topic in sorted(topics)
        if topic.startswith("$polybus/answers/")
        for qos in (0, 1, 2)
        for status in ("", "error")
    ]
    asked = peer.world.broker.requests.under_way.get(session.owner, {}).values()
    packets += [request("cancel", b"", topic=r.topic) for r in asked]
    return [encode(packet, V5) for packet in packets]


def _check_requests(broker: Broker) -> None:
    stored = [s for rank in broker.storage._ranks for s in rank]
    if not any(s.message.topic.startswith("$") for s in stored):  # which no one walk through the topics finds
        check_requests(broker)


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@contextmanager
def _few_routes() -> Iterator[None]:
    before = subscriptions.MAX_ROUTES
    subscriptions.MAX_ROUTES = ROUTES  # type: ignore[misc]
    try:
        yield
    finally:
        subscriptions.MAX_ROUTES = before  # type: ignore[misc]


@contextmanager
def _listening(handler: logging.Handler) -> Iterator[None]:
    """Faults reach the handler; the rest of the log, which is long, goes nowhere."""
    log = logging.getLogger("polybus")
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates
