"""Requesters and services in any order of events: each request ends once, and whoever asked hears of it once.

A state machine drives the core through peers that show every frame. Clients come, go and come back, with and
without a clean start, stop reading, subscribe, ask, answer rightly and wrongly, fail, cancel, publish what may
wait; instances run out of time, storage out of room. `hold` keeps the tick back, so that much happens in one.

The model never decides who gets a request. It sees each step of each request as it is made (`Watched`) and
each frame, and holds that against what the page promises: from naive matching and its own lists, not from what
the broker counts. What the broker counts is held against what there is (`books`).

The same examples each time, unless `EXAMPLES=5000` asks for so many others.
"""

import sys
from collections import Counter
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import polybus.broker.requests as module
from polybus.broker.giving import MAX_LOSSES
from polybus.broker.lifecycle import ENDS, TRANSITIONS, RequestState
from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.broker.request import Request
from polybus.broker.requests import PacketIdInUse
from polybus.broker.services import AS_THE_RULE_SAYS, STRATEGIES, Instance, ServiceRule
from polybus.broker.storage import Kind, Stored
from tests.broker.bus import Asked, Bus, End, Frame, Got, Peer, Stop
from tests.broker.naive import matches
from tests.examples import examples

TOPICS = ("a/b", "a/c", "b")
FILTERS = ("a/b", "a/+", "#", "b")
ASKERS = ("ann", "bob")
SERVERS = ("sam", "tom", "uma")
CLIENTS = ASKERS + SERVERS
KEEPS = ("uma", "bob")
"""Their sessions, and with them their subscriptions, outlive connections."""
SMALL = ("sam",)
"""Takes only requests with a small payload."""
SMALL_BYTES = 6
ENDS_KEPT_S = 12.0
TIMEOUT_S = 20.0
LIMITS = (b"0", b"1", b"2", b"500", b"500")
END_STATS = ("answered", "failed", "timed_out", "canceled", "not_delivered", "deleted")


class Watched(Request):
    """A request that tells of each of its steps, and takes none that the table does not have."""

    __slots__ = ("_instance", "_state")
    machine: ClassVar["Life"]

    @property
    def state(self) -> RequestState:  # type: ignore[override]
        return self._state

    @state.setter
    def state(self, state: RequestState) -> None:
        before = getattr(self, "_state", None)
        self._state = state
        if before is None:
            assert state is RequestState.NEW
        else:
            assert state in TRANSITIONS[before].values(), f"from {before.name} to {state.name}"
            self.machine.moved(self, before, state)

    @property
    def instance(self) -> Instance | None:  # type: ignore[override]
        return self._instance

    @instance.setter
    def instance(self, instance: Instance | None) -> None:
        before = getattr(self, "_instance", None)
        self._instance = instance
        if instance is not None:
            assert before is None, "no request is with two instances"
            self.machine.given(self, instance)

    def __init__(self, message: Message, owner: str, packet_id: int, serial: int, **fields: Any) -> None:
        super().__init__(message, owner, packet_id, serial, **fields)
        self.machine.born(self)


class Case(msgspec.Struct):
    """What the model knows of a request."""

    request: Watched
    told: list[End] = []
    is_handed_on: bool = False
    """From one instance to another, without waiting."""
    ended_at: float = 0.0
    is_silent: bool = False
    """Nobody is to be told: its requester was away and it may not wait, or started anew."""
    is_lost: bool = False
    """Its end was, for lack of room or because it was kept long enough."""
    was_canceled: bool = False
    error: str | None = None
    answer: bytes | None = None

    @property
    def client(self) -> str:
        return self.request.client_id

    @property
    def has_ended(self) -> bool:
        return self.request.state in ENDS


class Mail(msgspec.Struct):
    """What the model knows of a message."""

    topic: str
    expires_at: float | None
    got_by: list[str] = []
    was_discarded: bool = False


class Client(msgspec.Struct):
    name: str
    peer: Peer | None = None
    filters: dict[str, int] = {}
    """What it subscribed to, and how many requests it takes there at once; 0: it is no service."""
    wanted: dict[str, int] = {}
    """The same of the connection before."""
    in_hand: dict[int, Asked] = {}
    had: list[Asked] = []
    """Everything it was ever asked."""
    read: int = 0
    """How many of the frames made for this connection the model has seen."""
    arrived: list[Frame] = []
    """What came through on this connection."""

    @property
    def can_read(self) -> bool:
        return self.peer is not None and not self.peer.blocked


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        Watched.machine = self
        module.Request = Watched  # type: ignore[misc]
        self.clients = {name: Client(name) for name in CLIENTS}
        self.cases: dict[int, Case] = {}
        self.mails: dict[bytes, Mail] = {}
        self.bus = Bus()
        self.number = 0
        self.packet_ids = Counter[str]()
        self.max_ends = 0

    def teardown(self) -> None:
        module.Request = Request  # type: ignore[misc]
        if sys.exc_info()[0] is None:
            self.check_the_end()

    def check_the_end(self) -> None:
        """Everyone reads, and time passes: nothing is left."""
        self.bus.is_held = False
        self.bus.go()
        for client in self.clients.values():
            if client.peer is not None and client.peer.blocked:
                client.peer.unblock()
        self.all_is_well()
        self.bus.advance(1000.0)
        self.all_is_well()
        assert all(case.has_ended for case in self.cases.values())
        assert all(case.told or case.is_silent or case.is_lost for case in self.cases.values())
        self.bus.check_empty()

    names = st.sampled_from(CLIENTS)
    askers = st.sampled_from(ASKERS + ASKERS + CLIENTS)
    servers = st.sampled_from(SERVERS + SERVERS + CLIENTS)
    picks = st.integers(0, 99)

    @initialize(
        strategies=st.tuples(*[st.sampled_from(sorted(STRATEGIES))] * 2),
        concurrency=st.tuples(*[st.integers(1, 2)] * 2),
        within_s=st.sampled_from([(0.0, 0.0), (3.0, 0.0), (2.0, 5.0)]),
        stored=st.sampled_from([1, 2, 3, 5]),
        requests=st.sampled_from([6, 1000, 1000]),
        dice=st.integers(0, 5),
        offers=st.lists(st.tuples(st.sampled_from(SERVERS), st.sampled_from(FILTERS)), max_size=3),
    )
    def begin(
        self,
        strategies: tuple[str, str],
        concurrency: tuple[int, int],
        within_s: tuple[float, float],
        stored: int,
        requests: int,
        dice: int,
        offers: list[tuple[str, str]],
    ) -> None:
        rules = [
            ServiceRule("a/#", strategies[0], concurrency[0], within_s[0]),
            ServiceRule("#", strategies[1], concurrency[1], within_s[1]),
        ]
        self.rules = rules
        limits = Limits(stored_messages=stored, requests_per_client=requests, request_ends_kept_s=ENDS_KEPT_S)
        self.bus = Bus(limits, service_rules=rules, choose=lambda n: dice % n, request_timeout_s=TIMEOUT_S)
        self.max_ends = stored
        self._overhear()
        for name in CLIENTS:
            self.connect(name)
        for name, path in (("sam", "a/b"), ("tom", "#"), *offers):
            self.subscribe(name, path, AS_THE_RULE_SAYS, True)

    def _overhear(self) -> None:
        """What the broker gives up for lack of room."""
        broker = self.bus.broker
        ends = broker.requests.ends
        discarded, lost, put = broker.waiting.discarded, ends._on_victim, ends.put

        def on_discarded(message: Message, reason: str) -> None:
            self.mails[message.payload].was_discarded = True
            assert broker.storage.count >= broker.storage.max_messages - 1
            discarded(message, reason)

        def on_lost(stored: Stored) -> None:
            assert stored.request is not None
            self.cases[stored.request.serial].is_lost = True
            assert ends.count == self.max_ends - 1, "there was no room for one more"
            lost(stored)

        def on_put(stored: Stored, **how: bool) -> bool:
            """Refused if there is no room beside those that are worth more."""
            assert stored.request is not None
            under_way = [r for rs in broker.requests.under_way.values() for r in rs.values()]
            there = [r for r in under_way if r.stored is not None and r.stored.home is ends]
            urgent = sum(r.message.priority for r in there if r is not stored.request)
            is_put = put(stored, **how)
            assert is_put == (stored.message.priority or urgent < self.max_ends)
            self.cases[stored.request.serial].is_lost = not is_put
            return is_put

        broker.waiting.discarded = on_discarded  # type: ignore[method-assign]
        ends._on_victim = on_lost
        ends.put = on_put  # type: ignore[method-assign]

    # -- what happens ------------------------------------------------------------------------------------

    @rule(
        name=names,
        deed=st.sampled_from(["drop", "return", "return", "start clean", "block", "unblock", "unblock"]),
        subscribes_again=st.sampled_from([True, True, False]),
    )
    def link(self, name: str, deed: str, subscribes_again: bool) -> None:
        client = self.clients[name]
        peer = client.peer
        match deed:
            case "return" | "start clean":
                wanted = client.filters or client.wanted
                self.connect(name, clean_start=deed == "start clean")
                for path, at_once in wanted.items() if subscribes_again else ():
                    self.subscribe(name, path, at_once, True)
            case "drop" if peer is not None:
                self.drop(name)
            case "block" if peer is not None and not peer.blocked:
                peer.block()
            case "unblock" if peer is not None and peer.blocked:
                peer.unblock()

    def connect(self, name: str, *, clean_start: bool = False) -> None:
        """For the first time, again, or in place of a connection that is still there."""
        broker = self.bus.broker
        client = self.clients[name]
        broker.drain()
        keeps = name in KEEPS
        self._forget_connection(client, forgets=clean_start or not keeps)
        if clean_start:
            for case in self.cases.values():
                if case.client == name and not case.told:
                    case.is_silent = case.was_canceled = True
        peer = client.peer = Peer(self.bus, name)
        peer.takes_bytes = SMALL_BYTES if name in SMALL else 1 << 30
        peer.ends_qos = 0 if name == "bob" else None
        expiry_s = float("inf") if keeps else 0.0
        session, _ = broker.open(peer, name, clean_start=clean_start, expiry_s=expiry_s)
        broker.greeted(session)
        self.bus.go()

    def drop(self, name: str) -> None:
        client = self.clients[name]
        assert client.peer is not None
        self._look(client)
        client.in_hand.clear()
        client.peer.drop()
        self._forget_connection(client, forgets=name not in KEEPS)

    def _forget_connection(self, client: Client, *, forgets: bool) -> None:
        self._look(client)
        for case in self.cases.values():
            if case.client == client.name and case.has_ended and not (case.told or case.request.may_wait):
                case.is_silent = not case.is_lost  # it did not read, and may not be told later
        client.peer = None
        client.in_hand.clear()
        client.arrived.clear()
        client.read = 0
        if forgets:
            client.wanted, client.filters = client.filters or client.wanted, {}

    @rule(
        name=servers,
        path=st.sampled_from(FILTERS),
        at_once=st.sampled_from([AS_THE_RULE_SAYS, AS_THE_RULE_SAYS, 1, 2, 3, 0]),
        stays=st.sampled_from([True, True, True, False]),
    )
    def subscribe(self, name: str, path: str, at_once: int, stays: bool) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        self.bus.broker.drain()
        if not stays:
            existed = client.filters.pop(path, None) is not None
            assert client.peer.unsubscribe(path) == existed
        else:
            client.filters[path] = at_once
            client.peer.subscribe(path, serves=at_once)

    @rule(
        wishes=st.lists(
            st.tuples(
                askers,
                st.sampled_from(TOPICS),
                st.sampled_from([None, 1.0, 8.0, 30.0, 30.0]),
                st.booleans(),
                st.sampled_from([0, 0, SMALL_BYTES]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def ask(self, wishes: list[tuple[str, str, float | None, bool, int]]) -> None:
        for name, topic, timeout_s, priority, more_bytes in wishes:
            peer = self.clients[name].peer
            if peer is None:
                continue
            self.number += 1
            self.packet_ids[name] += 1
            payload = b"%d" % self.number + b"." * more_bytes
            packet_id = self.packet_ids[name]
            before = len(self.cases)
            peer.request(topic, payload, packet_id=packet_id, timeout_s=timeout_s, priority=priority)
            assert len(self.cases) == before + 1

    @rule(
        name=st.sampled_from(ASKERS),
        pick=picks,
        deed=st.sampled_from(["cancel", "cancel", "cancel nothing", "ask again", "ask otherwise"]),
    )
    def change_ones_mind(self, name: str, pick: int, deed: str) -> None:
        self.bus.broker.drain()
        match deed:
            case "cancel nothing":
                assert not self.bus.broker.cancel_request(name, 60_000)
            case "cancel":
                self._cancel(name, pick)
            case _:
                self._ask_again(name, pick, is_same=deed == "ask again")

    def _cancel(self, name: str, pick: int) -> None:
        """What is under way, in any state, or was at some time."""
        kept = self.bus.broker.requests.under_way.get(name, {})
        mine = [case for case in self.cases.values() if case.client == name]
        if pick % 4:
            mine = [case for case in mine if case.request.packet_id in kept] or mine
        if mine:
            case = mine[-1 - pick % len(mine)]
            is_open = not case.has_ended
            case.was_canceled = case.was_canceled or is_open
            assert self.bus.broker.cancel_request(name, case.request.packet_id) == is_open
            self.bus.go()

    def _ask_again(self, name: str, pick: int, *, is_same: bool) -> None:
        peer = self.clients[name].peer
        mine = list(self.bus.broker.requests.under_way.get(name, {}).values())
        if peer is None or not mine:
            return
        request = mine[pick % len(mine)]
        payload = request.message.payload if is_same else b"another"
        before = len(self.cases)
        try:
            peer.request(request.topic, payload, packet_id=request.packet_id, timeout_s=5.0)
        except PacketIdInUse:
            assert not is_same
        else:
            assert is_same
        assert len(self.cases) == before, "nothing new comes of it"

    @rule(
        deeds=st.lists(
            st.tuples(servers, picks, st.sampled_from(["answer"] * 5 + ["twice", "twice", "fail", "wrong"])),
            min_size=1,
            max_size=4,
        )
    )
    def work(self, deeds: list[tuple[str, int, str]]) -> None:
        for name, pick, deed in deeds:
            for client in self.clients.values():
                self._look(client)
            client = self.clients[name]
            if deed != "wrong" and not client.in_hand:  # someone else, then
                client = next((c for c in self.clients.values() if c.in_hand), client)
            if client.peer is None:
                continue
            if deed == "wrong":
                self._answer_wrongly(client, client.peer, pick)
            elif client.in_hand:
                asked = list(client.in_hand.values())[pick % len(client.in_hand)]
                del client.in_hand[asked.serial]
                self._end_work(client.peer, asked, deed)

    def _end_work(self, peer: Peer, asked: Asked, deed: str) -> None:
        case = self.cases[asked.serial]
        if deed == "fail":
            case.error = f"error {asked.serial}"
            assert peer.fail(asked, case.error)
            return
        case.answer = b"answer %d" % asked.serial
        assert peer.answer(asked, case.answer)
        if deed == "twice":
            assert not peer.answer(asked, b"once more")

    def _answer_wrongly(self, client: Client, peer: Peer, pick: int) -> None:
        """What someone else has, what it had once, or what never was."""
        known = [asked for each in self.clients.values() for asked in each.had]
        wrong = [asked for asked in known if asked.serial not in client.in_hand]
        wrong.append(Asked(0, client.name, 60_000, "b", b"", False, 0.0))
        asked = wrong[-1 - pick % len(wrong)]
        assert not (peer.fail(asked, "wrong") if pick % 2 else peer.answer(asked, b"wrong"))

    @rule(
        name=st.sampled_from(ASKERS),
        topic=st.sampled_from(TOPICS),
        waits_s=st.sampled_from([None, 4.0, 30.0, 30.0]),
        priority=st.booleans(),
    )
    def publish(self, name: str, topic: str, waits_s: float | None, priority: bool) -> None:
        peer = self.clients[name].peer
        if peer is None:
            return
        self.number += 1
        payload = b"mail %d" % self.number
        mail = self.mails[payload] = Mail(topic, None if waits_s is None else self.bus.now + waits_s)
        peer.publish(topic, payload, priority=priority, waits_s=waits_s)
        if not self.bus.is_held:
            for client in self.clients.values():
                self._look(client)
            assert sorted(mail.got_by) == sorted(c.name for c in self._subscribers(topic))

    @rule(deed=st.sampled_from([*[0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 13.0], *["hold"] * 4, *LIMITS]))
    def go_on(self, deed: float | str | bytes) -> None:
        """Time passes; the tick waits, so that several things happen in one; or there is less room, or more."""
        peer = next((c.peer for c in self.clients.values() if c.peer is not None), None)
        if deed == "hold":
            self.bus.is_held = not self.bus.is_held
            self.bus.go()
        elif isinstance(deed, float):
            self.bus.is_held = False
            self.bus.go()
            self.bus.advance(deed)
        elif isinstance(deed, bytes) and peer is not None:
            peer.publish("$memoryLimit", deed)

    # -- what is seen of it --------------------------------------------------------------------------------

    def born(self, request: Watched) -> None:
        assert request.serial not in self.cases
        self.cases[request.serial] = Case(request)

    def moved(self, request: Watched, before: RequestState, state: RequestState) -> None:
        """Each end has a cause."""
        case = self.cases[request.serial]
        now = self.bus.broker.dispatcher.now
        case.is_handed_on = before is state is RequestState.DELIVERED
        if state not in ENDS:
            return
        case.ended_at = now
        session = self.bus.broker.registry.sessions.get(case.client)
        is_away = session is None or session.link is None
        if is_away and not request.may_wait:
            case.is_silent = True
        storage = self.bus.broker.storage
        match state:
            case RequestState.ANSWER_DELIVERED:
                assert case.answer is not None
            case RequestState.ANSWER_NOT_DELIVERED:
                assert now >= request.deadline or (is_away and not request.may_wait)
            case RequestState.TIMED_OUT:
                assert now == request.deadline
            case RequestState.CANCELED:
                assert case.was_canceled or (is_away and not request.may_wait)
            case RequestState.ERROR:
                assert case.error is not None or request.losses == MAX_LOSSES
            case RequestState.DELETED:
                assert storage.count >= storage.max_messages - 1
            case RequestState.NOT_DELIVERED:
                able = [i for i in self._connected(request.topic) if self._is_able(i, request)]
                mine = self.bus.broker.requests.under_way[case.client]
                limit = self.bus.broker.limits.requests_per_client
                assert not able or len(mine) > limit
                is_too_large = bool(self._connected(request.topic))
                assert not request.may_wait or is_too_large or len(mine) > limit

    def given(self, request: Watched, instance: Instance) -> None:
        """To someone who may have it, and out of turn for nobody."""
        session = instance.session
        client = self.clients[session.client_id]
        assert session.link is client.peer is not None
        assert not client.peer.blocked
        assert client.filters.get(instance.path), "it is no service there"
        assert matches(instance.path, request.topic)
        assert self._has_room(instance, request, besides=request)
        if self.cases[request.serial].is_handed_on:
            return
        for case in self.cases.values():
            other = case.request
            if (
                other.state is RequestState.STORED
                and other is not request
                and other.late is None
                and other.deadline > self.bus.broker.dispatcher.now
                and matches(instance.path, other.topic)
                and self._is_able(instance, other)
                and self._has_room(instance, other, besides=request)
            ):
                assert _turn(request) < _turn(other), "someone else is first in line"

    def _look(self, client: Client) -> None:
        """See what was made for its connection since the last time."""
        peer = client.peer
        if peer is None:
            return
        frames = peer.made[client.read :]
        client.read = len(peer.made)
        for frame in frames:
            match frame:
                case Asked():
                    assert frame.serial not in client.in_hand
                    client.in_hand[frame.serial] = frame
                    client.had.append(frame)
                    request = self.cases[frame.serial].request
                    assert (frame.topic, frame.payload) == (request.topic, request.message.payload)
                    assert frame.left_s > 0
                case Stop():
                    del client.in_hand[frame.serial]
                case End():
                    self._told(client, frame)
                case Got():
                    got_by = self.mails[frame.payload].got_by
                    assert client.name not in got_by, "not twice"
                    got_by.append(client.name)

    def _told(self, client: Client, end: End) -> None:
        case = self.cases[end.serial]
        assert case.client == client.name, "nobody else is told"
        assert not case.told, "not twice"
        assert not case.is_silent
        assert not case.is_lost
        case.told.append(end)
        state = case.request.state
        if end.state == "ANSWERED":
            assert state is RequestState.ANSWER_DELIVERED
            assert end.payload == case.answer
        else:
            assert end.state == state.name
            assert end.reason == (case.error if state is RequestState.ERROR else end.reason) != ""

    # -- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        """Between ticks, when everything has been done."""
        if not self.bus.is_held:
            for client in self.clients.values():
                self._look(client)
            self.everyone_is_told()
            self.services_have_what_they_think_they_have()
            self.everything_made_arrives()
            self.nobody_waits_in_vain()
            self.mail_waits_only_for_nobody()
            self.bus.check()

    def everyone_is_told(self) -> None:
        requests = self.bus.broker.requests
        for case in self.cases.values():
            request = case.request
            is_kept = requests.under_way.get(case.client, {}).get(request.packet_id) is request
            if not case.has_ended:
                assert is_kept
                assert not case.told
                assert request.deadline > self.bus.now, "it has run out of time"
                continue
            if case.told or case.is_silent:
                assert not is_kept
                assert not (case.told and case.is_silent)
                continue
            if case.ended_at + ENDS_KEPT_S <= self.bus.now:
                case.is_lost = True
            assert case.is_lost != is_kept
            assert case.is_lost or not self.clients[case.client].can_read, "it could be told"
        for name, limit in ((c, self.bus.broker.limits.requests_per_client) for c in self.clients):
            assert sum(c.client == name and not c.has_ended for c in self.cases.values()) <= limit
        stats = self.bus.broker.stats
        counted = sum(getattr(stats, f"requests_{name}") for name in END_STATS)
        assert counted == sum(case.has_ended for case in self.cases.values())
        assert stats.requests_received == len(self.cases)

    def services_have_what_they_think_they_have(self) -> None:
        for client in self.clients.values():
            if client.peer is None:
                assert not client.in_hand
                continue
            assert set(client.peer.mine.in_hand or ()) == set(client.in_hand)
        held = Counter(serial for c in self.clients.values() for serial in c.in_hand)
        assert all(count == 1 for count in held.values())
        delivered = {s for s, c in self.cases.items() if c.request.state is RequestState.DELIVERED}
        assert set(held) == delivered

    def everything_made_arrives(self) -> None:
        for client in self.clients.values():
            if client.peer is not None and client.can_read:
                client.arrived += client.peer.frames()
                made = client.peer.made
                assert len(client.arrived) == len(made)
                assert Counter(client.arrived) == Counter(made)
                kinds = (Asked, Stop)
                assert [f for f in client.arrived if isinstance(f, kinds)] == [
                    f for f in made if isinstance(f, kinds)
                ]

    def nobody_waits_in_vain(self) -> None:
        """While someone is free who could take it, or though it may not wait for someone to come."""
        for case in self.cases.values():
            request = case.request
            if request.state is not RequestState.STORED:
                continue
            # For whom it is too large is found out only when they are free.
            unable = request.unable or set()
            assert not any(self._is_able(instance, request) for instance in unable)
            able = [i for i in self._connected(request.topic) if i not in unable]
            assert able or request.may_wait
            for instance in [i for i in able if i not in (request.late or ())] or able:
                link = instance.session.link
                assert link is not None
                assert link.blocked or not self._has_room(instance, request)

    def mail_waits_only_for_nobody(self) -> None:
        waiting = {s.message.payload for s in self.bus.broker.storage.matching(Kind.MESSAGE, "#")}
        for payload, mail in self.mails.items():
            if payload in waiting:
                assert not mail.got_by
                assert not mail.was_discarded
                assert mail.expires_at is not None
                assert mail.expires_at > self.bus.now
                assert not self._subscribers(mail.topic)
            elif mail.expires_at is not None and mail.expires_at > self.bus.now:
                assert mail.got_by or mail.was_discarded

    # -- the naive reading -----------------------------------------------------------------------------------

    def _connected(self, topic: str) -> list[Instance]:
        """Instances of services for this topic that are there."""
        found = []
        for session in self.bus.broker.registry.sessions.values():
            client = self.clients[session.client_id]
            for instance in (session.instances or {}).values():
                serves = client.filters.get(instance.path, 0)
                if session.link is not None and serves and matches(instance.path, topic):
                    found.append(instance)
        return found

    def _is_able(self, instance: Instance, request: Request) -> bool:
        return instance.session.client_id not in SMALL or len(request.message.payload) <= SMALL_BYTES

    def _has_room(self, instance: Instance, request: Request, besides: Request | None = None) -> bool:
        at_once = self.clients[instance.session.client_id].filters[instance.path]
        if at_once == AS_THE_RULE_SAYS:
            at_once = next(r.concurrency for r in self.rules if matches(r.filter, request.topic))
        with_it = [c for c in self.cases.values() if c.request.instance is instance]
        return sum(c.request is not besides for c in with_it) < at_once

    def _subscribers(self, topic: str) -> list[Client]:
        """Those who are there."""
        there = [client for client in self.clients.values() if client.peer is not None]
        return [client for client in there if any(matches(path, topic) for path in client.filters)]


def _turn(request: Request) -> tuple[bool, int]:
    """Priority first, then whoever came first."""
    return not request.message.priority, request.serial


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(120), stateful_step_count=80)
TestLife.pytestmark = pytest.mark.timeout(900)  # on a machine that is busy
