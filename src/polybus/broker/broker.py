"""The core: lanes, the tick, and what sessions may ask for.

A tick is: everything published since the last one is routed (priority lane first), stored state
is committed, acknowledgements that waited for the commit are released, and every dirty outbox is
flushed with one write. Edges call `tick` soon after `wake` asked for it, and `run_timers` when
`timers.deadline()` has come. The broker has no clock, socket or thread of its own.
"""

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from polybus.broker import events
from polybus.broker.access import Access
from polybus.broker.commits import LAZY_S, Commits
from polybus.broker.control import StorageControl
from polybus.broker.dispatch import Dispatcher
from polybus.broker.events import Event, emit
from polybus.broker.journal import Journal, Log, MemoryJournal
from polybus.broker.ledger import Ledger
from polybus.broker.limits import Limits
from polybus.broker.links import EndCause, Link
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Delivery, Message, MessageProperties, Run
from polybus.broker.neighbors import Neighborhood
from polybus.broker.registry import Registry
from polybus.broker.request import Request
from polybus.broker.requests import Requests
from polybus.broker.retained import Retained
from polybus.broker.services import ServiceRule
from polybus.broker.sessions import NEIGHBOR_MARK, Session, Subscription, Will
from polybus.broker.shared import Choose
from polybus.broker.stamps import Stamps
from polybus.broker.stats import Stats
from polybus.broker.storage import Kind, Storage, Stored
from polybus.broker.subscriptions import DEFAULT_SERVICE, Plan, Route, Subscriptions
from polybus.broker.timers import Timers
from polybus.broker.waiting import Waiting
from polybus.errors import UsageError

log = logging.getLogger("polybus.broker")

MAX_PENDING_BYTES: Final = 1024 * 1024
"""Work taken in past which the tick runs at once rather than after more reads."""

ITEM_COST: Final = 128
"""What a message or an acknowledgement that waits for the tick costs beside its bytes."""

MAX_HELD: Final = 10_000
"""Pieces a link may have waiting for a commit before it is read no more: a disk may be slow, or hang."""

LOG_AGAIN_S: Final = 10.0
"""Between two warnings of the same kind."""

QUIET_S: Final = 0.0005
"""Without a tick for this long, the next one need not wait for company."""


LaneItem: TypeAlias = Message | Run | Request
"""A request has no plan: one instance of a service gets it, or its requester the answer."""


OpenReplay: TypeAlias = Callable[[Session, Subscription], Iterator[Delivery | None]]
"""Records of a stream for this subscription to `$stream/…`. Raises UsageError."""


def _no_replay(session: Session, subscription: Subscription) -> Iterator[Delivery | None]:
    raise UsageError("this broker has no streams")


class Broker:
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        choose: Choose = lambda n: 0,
        access: Access | None = None,
        journal: Journal | None = None,
        ledger: Ledger | None = None,
        shared_strategy: str = "round_robin",
        drop_oldest: bool = False,
        queue_qos0: bool = False,
        service_rules: Sequence[ServiceRule] = (),
        default_service: ServiceRule = DEFAULT_SERVICE,
        request_timeout_s: float = 60.0,
    ) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.stats = Stats()
        self.timers = Timers()
        self.ledger = ledger or Ledger()
        self.stamps = Stamps()
        self.retained = Retained(self.limits, self.ledger, self.stamps)
        self.subscriptions = Subscriptions(
            self.limits, shared_strategy, choose, service_rules, default_service, self.ledger
        )
        self.dispatcher = Dispatcher(
            self.limits, self.stats, self.ledger, self.stamps, drop_oldest=drop_oldest, queue_qos0=queue_qos0
        )
        self.registry = Registry(self.limits, self.stats, self.timers, self.dispatcher, self.subscriptions)
        self.storage = Storage(self.limits.stored_messages, self.limits.stored_bytes, self._on_victim)
        self.waiting = Waiting(
            self.storage, self.dispatcher, self.timers, self.subscriptions, self._publish_again
        )
        self.mesh = self.waiting.mesh
        self.has_news = False
        """Neighbours have to be told something before this tick ends."""
        self.subscriptions.controls = StorageControl(self.storage).topics()
        self.requests = Requests(
            self.limits,
            self.stats,
            self.timers,
            self.dispatcher,
            self.registry,
            self.storage,
            self.subscriptions,
            timeout_s=request_timeout_s,
        )
        self.dispatcher.on_ready = self._on_ready
        self.open_replay: OpenReplay = _no_replay
        self.now = 0.0
        self._commits = Commits(self.dispatcher, journal or MemoryJournal(), self._on_committed)
        self._commit_timer = 0
        self._wake = wake
        self._is_awake = False
        self._is_ticking = False
        self._ticked_at = 0.0
        self._priority: list[tuple[Plan | None, LaneItem]] = []
        self._regular: list[tuple[Plan | None, LaneItem]] = []
        self._pending_bytes = 0
        self.partial_bytes = 0
        """What links have read of packets that are not whole yet."""
        self._turns: list[Link] = []
        self._stalled: list[Link] = []
        self._tells_messages = events.are_wanted(events.MESSAGE_RECEIVED)
        """Someone wants an event for every message; asked once a tick."""
        self._budget_logged_at = -LOG_AGAIN_S

    @property
    def awaiting(self) -> list[Link]:
        """Links whose acknowledgements wait for the next commit."""
        return self.dispatcher.awaiting

    # -- the tick ---------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """A read is done. In quiet times its tick comes at once; in a busy time it can wait for other
        reads that are there already, and serve them all."""
        if now - self._ticked_at > QUIET_S and not self._is_awake:
            self.tick(now)
        else:
            self.stir()

    def stir(self) -> None:
        """Something happened: see to it that a tick comes."""
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def tick(self, now: float) -> None:
        self._is_awake = False
        if self._turns:
            turns, self._turns = self._turns, []
            for link in turns:
                link.take_turn(now)
        self._is_ticking = True
        self._pending_bytes = 0
        self.now = self.dispatcher.now = self._ticked_at = now
        self.stats.ticks += 1
        self._tells_messages = events.are_wanted(events.MESSAGE_RECEIVED)
        try:
            self.drain()
            if self.ledger.is_dirty or self._commits.is_wanted():
                self._commit()
            if self.dispatcher.unfinished:
                self.dispatcher.go_on()
            if self.has_news:
                self.has_news = False
                self.mesh.tell_news()
            self._check_budget()
            self._flush()
        finally:
            self._is_ticking = False
        if self.dispatcher.unfinished:
            self.stir()

    def _flush(self) -> None:
        dirty = self.dispatcher.dirty
        if dirty:
            self.dispatcher.dirty = []
            for link in dirty:
                link.flush()

    def drain(self) -> None:
        """Route everything in the lanes. What is published meanwhile (wills) is routed too."""
        while self._priority or self._regular or self.registry.due_wills:
            self._collect_wills()
            if self._priority:
                lane, self._priority = self._priority, []
            else:
                lane, self._regular = self._regular, []
            for plan, item in lane:
                try:
                    self._deliver(plan, item)
                except Exception:  # our own fault: it must not cost the messages behind it
                    log.exception("internal error, a message is lost")

    def _deliver(self, plan: Plan | None, item: LaneItem) -> None:
        if isinstance(item, Request):
            self.requests.process(item)
            return
        assert plan is not None
        if isinstance(item, Run):
            if item.qos:
                self.dispatcher.deliver_tracked_run(plan, item)
            else:
                self.dispatcher.deliver_run(plan, item)
            if self._tells_messages:
                _emit_each(events.MESSAGE_DELIVERED, item.messages())
            return
        if item.retain:
            self._retain(plan, item)
        if item.waits and not plan.reaches(item.origin, item.qos):
            self.waiting.store(item, plan)
            return
        self.dispatcher.deliver(plan, item)
        if self._tells_messages:
            _emit_each(events.MESSAGE_DELIVERED, [item])

    def _retain(self, plan: Plan, message: Message) -> None:
        if not self.retained.store(message, self.now):
            if not self.stats.dropped_retained:
                log.warning("limit of retained messages reached", extra={"fields": {"topic": message.topic}})
            self.stats.dropped_retained += 1
        if self.mesh.sessions and message.origin and not message.origin.startswith(NEIGHBOR_MARK):
            # Every broker has every retained message; those with subscribers get it by the plan.
            wanted = {session for session, _ in plan.neighbors}
            for session in self.mesh.sessions:
                if session not in wanted and session.link is not None:
                    self.dispatcher.cross(session, message, 0)

    def _publish_again(self, plan: Plan, message: Message) -> None:
        """What waited has found someone."""
        (self._priority if message.priority else self._regular).append((plan, message))

    def _on_victim(self, stored: Stored) -> None:
        if stored.request is None:
            self.waiting.victim(stored)
        else:
            self.timers.cancel(stored.handle)
            self.stats.stored_discarded += 1
            self.requests.victim(stored)

    def join_mesh(self, mesh: Neighborhood) -> None:
        """From now on this broker may have neighbours (TB-15)."""
        self.mesh = self.waiting.mesh = mesh

    def _collect_wills(self) -> None:
        if self.registry.due_wills:
            wills, self.registry.due_wills = self.registry.due_wills, []
            for message in wills:
                self.publish(self.subscriptions.route_of(message.topic), message)

    def _commit(self) -> None:
        """Ask for a commit, if someone waits for it, or changes have waited long enough."""
        commits = self._commits
        if commits.is_wanted():
            commits.ask(self.now)
        elif commits.is_under_way:
            pass  # there will be a tick when it is done
        elif commits.asked_at + LAZY_S <= self.now:
            commits.ask(self.now)
        elif not self._commit_timer:
            self._commit_timer = self.timers.schedule(commits.asked_at + LAZY_S, _CommitDue(self))

    def on_commit_due(self) -> None:
        """Changes that nobody waits for have waited long enough."""
        self._commit_timer = 0
        self.stir()

    def set_trouble(self, why: str) -> None:
        """The durable store cannot be written, or (empty) can again."""
        self.ledger.trouble = why
        if why:
            self._commits.open_gates()
            self.stir()

    def _on_committed(self) -> None:
        if not self._is_ticking:
            self.stir()

    def _check_budget(self) -> None:
        excess = self.memory_bytes() - self.limits.memory_bytes
        if excess > 0:
            if not self.dispatcher.over_budget and self.now - self._budget_logged_at > LOG_AGAIN_S:
                self._budget_logged_at = self.now
                fields = {"budget_bytes": self.limits.memory_bytes}
                log.warning("memory budget is spent, messages are dropped", extra={"fields": fields})
            self.dispatcher.set_budget_spent(True)
            self.dispatcher.relieve(excess + self.limits.memory_bytes // 20)
        elif self.dispatcher.over_budget:
            self.dispatcher.recover()

    def memory_bytes(self) -> int:
        """What the budget counts: what is queued, unsent, unacknowledged, half read, retained, stored,
        requested or subscribed to, and wills."""
        dispatcher = self.dispatcher
        under_way = dispatcher.holdings.size_bytes + dispatcher.backlog_bytes
        kept = self.retained.size_bytes + self.subscriptions.size_bytes + self.registry.wills_bytes
        requested = self.requests.size_bytes + self.storage.message_bytes
        return under_way + kept + requested + self.partial_bytes

    def has_room_for_parts(self) -> bool:
        """Packets that are not whole yet may take half of the budget."""
        return 2 * self.partial_bytes <= self.limits.memory_bytes

    def run_timers(self, now: float) -> None:
        self.now = self.dispatcher.now = now
        self.drain()  # what was published before goes to the sessions of before
        self.timers.run(now)
        self.stir()

    def housekeep(self, now: float) -> None:
        """Once a second or so: what no client waits for."""
        self.now = self.dispatcher.now = now
        self.stats.dropped_expired += self.retained.expire(now)
        self.mesh.housekeep(now)

    def reconfigure(
        self,
        limits: Limits,
        access: Access,
        *,
        shared_strategy: str,
        drop_oldest: bool,
        queue_qos0: bool,
        service_rules: Sequence[ServiceRule] = (),
        default_service: ServiceRule = DEFAULT_SERVICE,
        request_timeout_s: float = 60.0,
    ) -> None:
        """Take over what can change while running. Links ask for limits when they need them."""
        self.drain()  # what came before is given out by the old rules
        old, self.limits = self.limits, limits
        if (old.stored_messages, old.stored_bytes) != (limits.stored_messages, limits.stored_bytes):
            self.storage.set_limits(limits.stored_messages, limits.stored_bytes)
        self.requests.set_limits(limits)
        self.requests.timeout_s = request_timeout_s
        self.subscriptions.set_rules(service_rules, default_service)
        self.requests.rules_changed()
        self.retained.limits = limits
        self.registry.limits = limits
        self.subscriptions.strategy = shared_strategy
        self.subscriptions.limits = limits
        self.dispatcher.limits = limits
        self.dispatcher.set_budget_spent(self.dispatcher.over_budget)
        self.dispatcher.drop_oldest = drop_oldest
        self.dispatcher.queue_qos0 = queue_qos0
        self._change_access(access)

    def _change_access(self, access: Access) -> None:
        """New rules bind those who are connected, too: subscriptions they no longer allow end."""
        self.access = access
        authorizer = access.authorizer
        for session in list(self.registry.sessions.values()):
            if session.link is not None:
                session.link.access_changed()
            if authorizer is None or session.is_neighbor:
                continue  # whether its clients may read is for their own broker to say
            for topic_filter, subscription in list(session.subscriptions.items()):
                if not authorizer.may_subscribe(session.user, session.client_id, subscription.path):
                    self.unsubscribe(session, topic_filter)
                    fields = {"client_id": session.client_id, "filter": topic_filter}
                    log.warning("subscription ended by new rules", extra={"fields": fields})

    # -- what links ask for -------------------------------------------------------------------

    def publish(self, route: Route, message: Message) -> None:
        """Put a message into its lane. Its audience is that of this moment: whatever changes
        subscriptions drains the lanes first."""
        self.stats.messages_received += 1
        route.messages += 1
        if self._tells_messages:
            _emit_each(events.MESSAGE_RECEIVED, [message])
        if route.control is not None:
            self._control(route, message)
            return
        plan = route.plan or self.subscriptions.plan(route)
        if plan.log is not None and not message.origin.startswith(NEIGHBOR_MARK):
            self._keep(plan.log, message)  # a stream has what was published at its own broker
        (self._priority if message.priority else self._regular).append((plan, message))
        self._grow(message.size_bytes())

    def request(
        self,
        route: Route,
        message: Message,
        packet_id: int,
        timeout_s: float | None,
        *,
        may_wait: bool,
        owner: str | None = None,
    ) -> None:
        """A request, whose requester is the message's origin, or of the clients behind it `owner`. Raises
        `PacketIdInUse`."""
        self.dispatcher.now = self.now
        route.messages += 1
        desk = route.desk or self.subscriptions.desk(route)
        if owner is None:
            owner = self.registry.sessions[message.origin].owner
        else:
            desk = desk.local()
        request = self.requests.accept(desk, message, owner, packet_id, timeout_s, may_wait=may_wait)
        if request is not None:
            if route.control is not None:
                self._control(route, message, request)
            self._enqueue(request)

    def answer(
        self,
        session: Session,
        requester: str,
        packet_id: int,
        payload: bytes,
        properties: MessageProperties = NO_MESSAGE_PROPERTIES,
    ) -> bool:
        """A service's answer to a request of this owner. False: it has no such request."""
        self.dispatcher.now = self.now
        request = self.requests.answer(session, requester, packet_id, payload, properties)
        if request is None:
            return False
        self._enqueue(request)
        return True

    def fail_request(self, session: Session, requester: str, packet_id: int, text: str) -> bool:
        """A service could not do what it was asked. False: it has no such request."""
        self.dispatcher.now = self.now
        return self.requests.fail(session, requester, packet_id, text)

    def cancel_request(self, requester: str, packet_id: int) -> bool:
        """By its requester. False: there is nothing to cancel."""
        self.dispatcher.now = self.now
        self.drain()  # its answer may be here already
        return self.requests.cancel(requester, packet_id)

    def _enqueue(self, request: Request) -> None:
        (self._priority if request.message.priority else self._regular).append((None, request))
        self._grow(len(request.message.payload))

    def _control(self, route: Route, message: Message, request: Request | None = None) -> None:
        assert route.control is not None
        try:
            answer = route.control(message)
        except UsageError as error:
            log.warning(str(error), extra={"fields": {"topic": route.topic, "client_id": message.origin}})
            if request is not None:
                self.requests.refuse(request, str(error))
        else:
            if request is not None:
                self.requests.answer_itself(request, answer)

    def publish_run(self, plan: Plan, run: Run) -> None:
        self.stats.messages_received += run.count
        if self._tells_messages:
            _emit_each(events.MESSAGE_RECEIVED, run.messages())
        if plan.log is not None and not run.origin.startswith(NEIGHBOR_MARK):
            self._keep(plan.log, run)
        self._regular.append((plan, run))
        self._grow(len(run.wire))

    def _keep(self, log: Log, item: Message | Run) -> None:
        if log.append(item, self.ledger.logged() if item.qos else 0):
            return
        session = self.registry.sessions.get(item.origin)
        if session is not None and session.link is not None:
            session.link.stall()
            self._stalled.append(session.link)

    def unstall(self, now: float) -> None:
        """Logs have room again: whoever was stopped for them goes on."""
        self.now = now
        stalled, self._stalled = self._stalled, []
        for link in stalled:
            link.go_on(now)
        self.stir()

    def commit_failed(self, origins: Container[str], why: str) -> None:
        """What these clients published could not be made safe: they lose their connection, and what they have
        no acknowledgement for they will send again. To be told before the commit is done."""
        self._commits.withhold(origins, why)
        self.stir()

    def _grow(self, size_bytes: int) -> None:
        """Work has come in; there must not be too much of it before a tick."""
        self._pending_bytes += size_bytes + ITEM_COST
        if self._pending_bytes > MAX_PENDING_BYTES and not self._is_ticking:
            self.tick(self.now)

    def wait_turn(self, link: Link) -> None:
        """This link has done enough for now: others first, `take_turn` comes with the next tick."""
        self._turns.append(link)
        self.stir()

    def reply(self, link: Link, frame: bytes) -> None:
        """Send this at the end of the tick, safe or not."""
        self.dispatcher.push(link, frame)
        self._grow(len(frame))

    def hold(self, link: Link, acknowledgement: bytes, *, is_promise: bool = True) -> None:
        """Send this when everything that came before it is safe. It may be known to promise nothing that
        has to be: then a store in trouble keeps nobody waiting."""
        if self.ledger.trouble and self._passes(link, is_promise):
            self.reply(link, acknowledgement)
            link.released([acknowledgement])
            return
        self.dispatcher.hold(link, acknowledgement)
        if link.held_count > MAX_HELD:
            link.wait_for_commit()
        self._grow(len(acknowledgement))

    def _passes(self, link: Link, is_promise: bool) -> bool:
        session = link.session
        is_kept = session is not None and session.kept
        return not (is_promise and is_kept) and not link.held_count  # they come in their order

    def open(
        self,
        link: Link,
        client_id: str,
        *,
        clean_start: bool = True,
        expiry_s: float = 0.0,
        will: Will | None = None,
        window: int = 65_535,
        owner: str | None = None,
    ) -> tuple[Session, bool]:
        """A client has connected. Greet it, then call `greeted`. For `owner` see `Session`."""
        self.drain()
        self.dispatcher.now = self.now
        earlier = self.registry.sessions.get(client_id)
        was_kept = earlier is not None and earlier.kept
        opened = self.registry.open(
            link,
            client_id,
            clean_start=clean_start,
            expiry_s=expiry_s,
            will=will,
            window=window,
            now=self.now,
        )
        session = opened[0]
        session.owner = client_id if owner is None else owner
        if was_kept or session.kept:
            # Who was told that the session is there, or gone, must not find it otherwise after a crash.
            # A neighbour is told nothing of the kind.
            if not (self.ledger.trouble or session.is_neighbor):
                self._commits.gate(link)
            self._commits.follow(link)
        if clean_start:
            self.requests.forget_client(session.owner)
        return opened

    def greeted(self, session: Session) -> None:
        """The client knows that it is connected: it gets what waited for it."""
        self.dispatcher.pump(session)
        self._on_ready(session)
        if self.storage.counts[Kind.MESSAGE]:
            for subscription in list(session.subscriptions.values()):
                self.waiting.release(subscription.path)
        if session.instances:
            self.mesh.services_moved(session)

    def _on_ready(self, session: Session) -> None:
        self.requests.session_is_ready(session)
        self.mesh.is_ready(session)

    def close(self, link: Link, *, publish_will: bool) -> None:
        session = link.session
        if session is not None and session.link is link:
            self.dispatcher.now = self.now
            instances = list((session.instances or {}).values())
            self.registry.close(link, publish_will=publish_will, now=self.now)
            self.requests.session_left(session)
            for instance in instances:
                self.requests.instance_left(instance)
            if session.instances:
                self.mesh.services_moved(session)
        self.stir()

    def subscribe(
        self,
        session: Session,
        topic_filter: str,
        subscription: Subscription,
        *,
        retain_handling: int = 0,
    ) -> None:
        """Subscribe, and replay retained messages: 0 always, 1 if it is new, 2 never."""
        self.drain()
        self.dispatcher.now = self.now
        served = (session.instances or {}).get(topic_filter)
        is_new = self.subscriptions.add(session, topic_filter, subscription)
        if served is not None and not subscription.serves:
            self.requests.instance_left(served)
        if subscription.group is None and (retain_handling == 0 or (retain_handling == 1 and is_new)):
            self.dispatcher.start_replay(session, topic_filter, self.retained.replay(subscription))
        self.waiting.release(subscription.path)
        if subscription.serves and session.instances is not None:
            self.requests.instance_came(session.instances[topic_filter])
        if not session.is_neighbor:
            self.requests.tell_waiting(session)

    def replay(self, session: Session, topic_filter: str, subscription: Subscription) -> None:
        """Subscribe to what a stream holds and to what follows. Raises UsageError."""
        records = self.open_replay(session, subscription)
        self.subscribe(session, topic_filter, subscription, retain_handling=2)
        self.dispatcher.start_replay(session, topic_filter, records)

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        self.drain()
        self.dispatcher.now = self.now
        self.dispatcher.stop_replay(session, topic_filter)
        instance = (session.instances or {}).get(topic_filter)
        existed = self.subscriptions.remove(session, topic_filter)
        if instance is not None:
            self.requests.instance_left(instance)
        return existed

    def stop(self) -> None:
        """Tell every client that the broker is going down."""
        self.tick(self.now)
        for session in list(self.registry.sessions.values()):
            if session.link is not None:
                session.link.end(EndCause.SHUTTING_DOWN)
        self.tick(self.now)


class _CommitDue:
    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def on_timer(self, now: float) -> None:
        self._broker.on_commit_due()


def _emit_each(event: Event, messages: Iterable[Message]) -> None:
    for message in messages:
        if not message.origin:
            continue  # the broker's own figures
        size = len(message.payload)
        emit(event, client_id=message.origin, topic=message.topic, payload_bytes=size)
