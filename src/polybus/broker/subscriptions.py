"""Who wants what: the tree of subscriptions and the cache of delivery plans.

A route is a topic name in use, found by its UTF-8 bytes, with the plan of who gets its messages.
A plan is made when a message first needs it. A changed subscription drops the plans of just the
routes its filter matches: an exact filter concerns one, a wildcard those found by walking the tree
of cached names.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from polybus.broker.journal import Log
from polybus.broker.ledger import Ledger
from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.broker.services import Desk, Instance, ServiceRule
from polybus.broker.sessions import Session, Subscription
from polybus.broker.shared import Choose, SharedGroup
from polybus.broker.topics import check_topic_name, matches
from polybus.broker.tree import TopicTree

MAX_ROUTES: Final = 100_000
"""Cached topic names. Past it the oldest tenth makes room."""

MAX_ROUTES_BYTES: Final = 32 * 1024 * 1024
"""Characters of cached topic names, likewise."""
MAX_WALK: Final = 2_000
"""Cached names looked at for a changed subscription; past it the whole cache is made anew."""
STREAMS: Final = "$stream/"
"""Where streams are replayed from."""
RESERVED: Final = ("$SYS/", "$polybus/", STREAMS)
"""Where only the broker itself publishes, and clients only answers to what they were asked."""
SUBSCRIPTION_BYTES: Final = 600
"""What a subscription costs beside its characters, which are kept about four times."""
DEFAULT_SERVICE: Final = ServiceRule()
NO_SERVICE: Final = Subscription("", None, 0)
MAX_SHARED_AUDIENCE: Final = 16
"""Subscribers up to which plans are compared: with more, routing is the smaller part anyway."""


class Cohort(msgspec.Struct, gc=False):
    """Sessions that get a message alike."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
    sessions: list[Session]


class Selective(msgspec.Struct, gc=False):
    """A session with a no-local subscription: what it gets depends on who published."""

    client_id: str
    of_others: Cohort
    of_its_own: Cohort | None


class Plan(msgspec.Struct, weakref=True):
    cohorts: list[Cohort]
    selective: list[Selective]
    groups: list[SharedGroup]
    plain: list[Session]
    """Sessions of all cohorts without identifiers: at QoS 0 they get the same bytes."""
    rest: list[Cohort]
    """Cohorts with identifiers."""
    is_plain: bool
    """`plain` is everyone."""
    neighbors: list[tuple[Session, int]]
    """Brokers whose clients want it, and the highest QoS one of them wants."""
    log: Log | None = None
    """Where its messages are kept for replay."""

    def reaches(self, origin: str, qos: int) -> bool:
        """Some client of this broker would get a message of this publisher now, or have it queued."""
        return (
            any(_takes(s, qos and c.qos) for c in self.cohorts for s in c.sessions)
            or any(_takes(s, qos) for group in self.groups for s in group.members if not s.is_neighbor)
            or any(
                cohort is not None and _takes(cohort.sessions[0], qos and cohort.qos)
                for each in self.selective
                for cohort in [each.of_its_own if each.client_id == origin else each.of_others]
            )
        )

    def takers(self, qos: int) -> list[tuple[Session, int]]:
        """Clients that get a message of a neighbour now, or have it queued, and how; groups do not count."""
        cohorts = (*self.cohorts, *(each.of_others for each in self.selective))
        return [(s, min(qos, c.qos)) for c in cohorts for s in c.sessions if _takes(s, min(qos, c.qos))]

    def keeps(self, qos: int) -> bool:
        """Someone has a message of this QoS written down."""
        return bool(qos) and (
            any(s.kept and c.qos for c in self.cohorts for s in c.sessions)
            or any(s.kept for group in self.groups for s in group.members)
            or any(s.kept and wanted for s, wanted in self.neighbors)
            or any(each.of_others.sessions[0].kept for each in self.selective)
        )

    def cohort_of(self, session: Session) -> Cohort | None:
        """How this session gets messages here; shared subscriptions do not count."""
        cohorts = (*self.cohorts, *(each.of_others for each in self.selective))
        return next((cohort for cohort in cohorts if session in cohort.sessions), None)


Control: TypeAlias = Callable[[Message], bytes]
"""Does what a message to the broker itself says, and returns the answer. Raises UsageError."""


class Route:
    """A topic name in use."""

    __slots__ = ("control", "desk", "is_reserved", "messages", "plan", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.plan: Plan | None = None
        self.desk: Desk | None = None
        """Where requests to this topic are given out, once there was one."""
        self.control: Control | None = None
        self.messages = 0
        self.is_reserved = topic.startswith(RESERVED)
        """Not everyone's to publish: by the broker itself, or to change it."""


class Subscribers(msgspec.Struct):
    """What hangs on one filter."""

    members: dict[Session, Subscription]
    groups: dict[str, SharedGroup] | None = None
    instances: dict[Instance, None] | None = None


class Subscriptions:
    """The single owner of subscriptions and routes."""

    def __init__(
        self,
        limits: Limits,
        strategy: str,
        choose: Choose,
        service_rules: Sequence[ServiceRule] = (),
        default_service: ServiceRule = DEFAULT_SERVICE,
        ledger: Ledger | None = None,
    ) -> None:
        self._ledger = ledger or Ledger()
        self.strategy = strategy
        self._choose = choose
        self.limits = limits
        self._filters: TopicTree[Subscribers] = TopicTree()
        self._names: TopicTree[Route] = TopicTree()
        self.routes: dict[bytes, Route] = {}
        self._routes_bytes = 0
        self.count = 0
        self.size_bytes = 0
        self.controls: dict[str, Control] = {}
        """Topics by which the broker itself is told things."""
        self.log_of: Callable[[str], Log | None] = lambda topic: None
        """The log that keeps a topic's messages. Always the same object for the same log."""
        self.on_interest: Callable[[str], None] = lambda path: None
        """Told when what clients of this broker want under a filter has changed."""
        self.on_unserved: Callable[[str], None] = lambda path: None
        """Told when the last instance under a filter is gone."""
        self._default_service = default_service
        self._service_rules = service_rules
        self._instances = 0
        # Keyed by identity: a plan that lives keeps its sessions alive, so their ids stay theirs.
        self._audiences: WeakValueDictionary[tuple[tuple[int, ...], ...], Plan] = WeakValueDictionary()

    def route(self, name: bytes) -> Route:
        """The route of a topic name that `routes` does not have yet.

        Raises UnicodeDecodeError or `InvalidTopic`.
        """
        topic = name.decode()
        check_topic_name(topic, self.limits.topic_levels, self.limits.topic_bytes)
        return self._add_route(name, topic)

    def route_of(self, topic: str) -> Route:
        """The route of a topic that was checked before, or is the broker's own."""
        name = topic.encode()
        return self.routes.get(name) or self._add_route(name, topic)

    def _add_route(self, name: bytes, topic: str) -> Route:
        if len(self.routes) >= MAX_ROUTES or self._routes_bytes + len(name) > MAX_ROUTES_BYTES:
            for old in list(self.routes)[: 1 + len(self.routes) // 10]:
                self._names.remove(self.routes.pop(old).topic)
                self._routes_bytes -= len(old)
        route = self.routes[name] = Route(topic)
        if topic.startswith("$") and topic in self.controls:
            route.control = self.controls[topic]
            route.is_reserved = True
        self._routes_bytes += len(name)
        self._names.put(topic, route)
        return route

    def desk(self, route: Route) -> Desk:
        desk = route.desk
        if desk is None:
            topic = route.topic
            found = [i for s in self._filters.match_name(topic) if s.instances for i in s.instances]
            found.sort(key=_nearness)
            desk = route.desk = Desk(self.rule(topic), found, self._choose)
        return desk

    def is_served(self, path: str) -> bool:
        """Someone who is connected takes requests under just this filter."""
        subscribers = self._filters.get(path)
        instances = subscribers.instances if subscribers is not None else None
        return instances is not None and any(i.session.link is not None for i in instances)

    def has_instance(self, instance: Instance) -> bool:
        """It has not unsubscribed."""
        subscribers = self._filters.get(instance.path)
        instances = subscribers.instances if subscribers is not None else None
        return instances is not None and instance in instances

    def group(self, name: str, path: str) -> SharedGroup | None:
        subscribers = self._filters.get(path)
        groups = subscribers.groups if subscribers is not None else None
        return groups.get(name) if groups is not None else None

    def subscribers(self, path: str) -> Subscribers | None:
        """What hangs on just this filter."""
        return self._filters.get(path)

    def all_subscribers(self) -> Iterator[tuple[str, Subscribers]]:
        """By filter. Nothing may be subscribed meanwhile."""
        return self._filters.items()

    def rule(self, topic: str) -> ServiceRule:
        return next((r for r in self._service_rules if matches(r.filter, topic)), self._default_service)

    def set_rules(self, service_rules: Sequence[ServiceRule], default_service: ServiceRule) -> None:
        self._service_rules = service_rules
        self._default_service = default_service
        self._forget_routes()

    def plan(self, route: Route) -> Plan:
        plan = route.plan
        if plan is None:
            plan = _make_plan(self._filters.match_name(route.topic))
            plan.log = self.log_of(route.topic)
            plan = route.plan = self._shared(plan)
        return plan

    def _shared(self, plan: Plan) -> Plan:
        """Topics with the same audience share one plan, so that their messages can travel together."""
        if not plan.is_plain or len(plan.plain) > MAX_SHARED_AUDIENCE:
            return plan
        key = tuple((c.qos, c.retain_as_published, *map(id, c.sessions)) for c in plan.cohorts)
        if plan.log is not None:
            key = (*key, (id(plan.log),))
        return self._audiences.setdefault(key, plan)

    def add(self, session: Session, topic_filter: str, subscription: Subscription) -> bool:
        """Add or replace; True if it is new."""
        subscribers = self._filters.get(subscription.path)
        if subscribers is None:
            subscribers = Subscribers({})
            self._filters.put(subscription.path, subscribers)
        if subscription.group is None:
            subscribers.members[session] = subscription
        else:
            if subscribers.groups is None:
                subscribers.groups = {}
            group = subscribers.groups.get(subscription.group)
            if group is None:
                group = SharedGroup(subscription.group, subscription.path, self.strategy, self._choose)
                subscribers.groups[subscription.group] = group
            group.join(session, subscription)
        self._set_instance(session, topic_filter, subscription, subscribers)
        is_new = topic_filter not in session.subscriptions
        session.subscriptions[topic_filter] = subscription
        if session.kept and not subscription.path.startswith(STREAMS):  # how far a replay came is not kept
            self._ledger.subscription_changed(session.kept, topic_filter, subscription)
        if is_new:
            self.count += 1
            self.size_bytes += SUBSCRIPTION_BYTES + 4 * len(topic_filter)
        self._forget_plans(subscription.path)
        if not session.is_neighbor:
            self.on_interest(subscription.path)
        return is_new

    def _set_instance(
        self, session: Session, topic_filter: str, subscription: Subscription, subscribers: Subscribers
    ) -> None:
        """What the subscription is as a service. One that is renewed keeps its place."""
        instances = session.instances
        instance = instances.get(topic_filter) if instances is not None else None
        if not subscription.serves:
            if instance is not None and instances is not None and subscribers.instances is not None:
                del instances[topic_filter]
                del subscribers.instances[instance]
                if not subscribers.instances:
                    self.on_unserved(instance.path)
        elif instance is not None:
            instance.serves = subscription.serves
        else:
            self._instances += 1
            instance = Instance(session, subscription.path, subscription.serves, self._instances)
            if instances is None:
                instances = session.instances = {}
            instances[topic_filter] = instance
            if subscribers.instances is None:
                subscribers.instances = {}
            subscribers.instances[instance] = None

    def remove(self, session: Session, topic_filter: str) -> bool:
        """False if there was no such subscription."""
        subscription = session.subscriptions.pop(topic_filter, None)
        if subscription is None:
            return False
        if session.kept and not subscription.path.startswith(STREAMS):
            self._ledger.subscription_changed(session.kept, topic_filter, None)
        subscribers = self._filters.get(subscription.path)
        assert subscribers is not None
        if subscription.group is None:
            del subscribers.members[session]
        else:
            assert subscribers.groups is not None
            group = subscribers.groups[subscription.group]
            group.leave(session)
            if not group.members:
                del subscribers.groups[subscription.group]
        if session.instances:
            self._set_instance(session, topic_filter, NO_SERVICE, subscribers)
        if not subscribers.members and not subscribers.groups:
            self._filters.remove(subscription.path)
        self.count -= 1
        self.size_bytes -= SUBSCRIPTION_BYTES + 4 * len(topic_filter)
        self._forget_plans(subscription.path)
        if not session.is_neighbor:
            self.on_interest(subscription.path)
        return True

    def _forget_plans(self, path: str) -> None:
        if "+" not in path and "#" not in path:
            route = self.routes.get(path.encode())
            if route is not None:
                route.plan = route.desk = None
            return
        for steps, found in enumerate(self._names.match_filter(path)):
            if found is not None:
                found.plan = found.desk = None
            if steps > MAX_WALK:
                self._forget_routes()
                return

    def _forget_routes(self) -> None:
        """Begin the cache anew: a filter that matches thousands of names must not cost a walk."""
        self.routes = {}
        self._names = TopicTree()
        self._routes_bytes = 0


def _nearness(instance: Instance) -> tuple[bool, int]:
    """Local services first (TB-15), and each kind in the order in which they subscribed."""
    return instance.session.is_neighbor, instance.order


def _takes(session: Session, qos: int) -> bool:
    return session.link is not None or bool(qos and session.expiry_s)


def _make_plan(matches: list[Subscribers]) -> Plan:
    by_session: dict[Session, list[Subscription]] = {}
    groups: list[SharedGroup] = []
    for subscribers in matches:
        for session, subscription in subscribers.members.items():
            by_session.setdefault(session, []).append(subscription)
        if subscribers.groups:
            groups.extend(subscribers.groups.values())
    cohorts: dict[tuple[int, bool, tuple[int, ...]], Cohort] = {}
    selective: list[Selective] = []
    neighbors: list[tuple[Session, int]] = []
    for session, subscriptions in by_session.items():
        key = _merge(subscriptions)
        if session.is_neighbor:
            neighbors.append((session, key[0]))
            continue
        if any(s.no_local for s in subscriptions):
            own = [s for s in subscriptions if not s.no_local]
            of_its_own = Cohort(*_merge(own), [session]) if own else None
            selective.append(Selective(session.client_id, Cohort(*key, [session]), of_its_own))
            continue
        cohort = cohorts.get(key)
        if cohort is None:
            cohort = cohorts[key] = Cohort(*key, [])
        cohort.sessions.append(session)
    rest = [c for c in cohorts.values() if c.identifiers]
    return Plan(
        cohorts=list(cohorts.values()),
        selective=selective,
        groups=groups,
        plain=[s for c in cohorts.values() if not c.identifiers for s in c.sessions],
        rest=rest,
        is_plain=not (rest or selective or groups or neighbors),
        neighbors=neighbors,
    )


def _merge(subscriptions: list[Subscription]) -> tuple[int, bool, tuple[int, ...]]:
    """[MQTT-3.3.4-2] one copy at the highest QoS, with the identifiers of all that match."""
    if len(subscriptions) == 1:
        only = subscriptions[0]
        return only.qos, only.retain_as_published, (only.identifier,) if only.identifier else ()
    return (
        max(s.qos for s in subscriptions),
        any(s.retain_as_published for s in subscriptions),
        tuple(s.identifier for s in subscriptions if s.identifier),
    )
