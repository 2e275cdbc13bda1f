"""Plans: the cache is never stale, and a changed subscription costs only the plans it concerns."""

from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import polybus.broker.subscriptions as module
from polybus.broker.limits import Limits
from polybus.broker.sessions import Session, Subscription
from polybus.broker.subscriptions import Plan, Subscriptions
from polybus.broker.topics import InvalidTopic
from tests.broker.naive import filters, matches, names
from tests.examples import examples

CLIENTS = ["a", "b", "c"]
options = st.fixed_dictionaries(
    {
        "qos": st.integers(0, 2),
        "no_local": st.booleans(),
        "retain_as_published": st.booleans(),
        "identifier": st.sampled_from([0, 0, 1, 2]),
    }
)


def make(strategy: str = "round_robin") -> Subscriptions:
    return Subscriptions(Limits(), strategy, lambda n: 0)


Audience: TypeAlias = dict[str, tuple[int, bool, tuple[int, ...]]]


def expected(sessions: dict[str, Session], topic: str, origin: str) -> Audience:
    """Client id -> (QoS, retain as published, identifiers), straight from the standard."""
    found = {}
    for client_id, session in sessions.items():
        mine = [
            s
            for s in session.subscriptions.values()
            if s.group is None and matches(s.path, topic) and not (s.no_local and origin == client_id)
        ]
        if mine:
            identifiers = tuple(sorted(s.identifier for s in mine if s.identifier))
            found[client_id] = (max(s.qos for s in mine), any(s.retain_as_published for s in mine), identifiers)
    return found


def told(plan: Plan, origin: str) -> Audience:
    cohorts = list(plan.cohorts)
    for selective in plan.selective:
        cohort = selective.of_its_own if selective.client_id == origin else selective.of_others
        if cohort is not None:
            cohorts.append(cohort)
    found = {}
    for cohort in cohorts:
        for session in cohort.sessions:
            assert session.client_id not in found, "one copy for each session"
            found[session.client_id] = (
                cohort.qos,
                cohort.retain_as_published,
                tuple(sorted(cohort.identifiers)),
            )
    return found


class Planning(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.subscriptions = make()
        self.sessions = {name: Session(name) for name in CLIENTS}
        self.topics: set[str] = set()

    @rule(client=st.sampled_from(CLIENTS), path=filters, chosen=options)
    def subscribe(self, client: str, path: str, chosen: dict[str, int]) -> None:
        session = self.sessions[client]
        is_new = path not in session.subscriptions
        assert self.subscriptions.add(session, path, Subscription(path, None, **chosen)) == is_new

    @rule(client=st.sampled_from(CLIENTS), path=filters, group=st.sampled_from("gh"), qos=st.integers(0, 2))
    def share(self, client: str, path: str, group: str, qos: int) -> None:
        topic_filter = f"$share/{group}/{path}"
        self.subscriptions.add(self.sessions[client], topic_filter, Subscription(path, group, qos))

    @rule(client=st.sampled_from(CLIENTS), data=st.data())
    def unsubscribe(self, client: str, data: st.DataObject) -> None:
        session = self.sessions[client]
        known = sorted(session.subscriptions)
        path = data.draw(st.sampled_from(known) if known else filters)
        was_there = path in session.subscriptions
        assert self.subscriptions.remove(session, path) == was_there
        assert not self.subscriptions.remove(session, path)

    @rule(topic=names)
    def publish(self, topic: str) -> None:
        self.topics.add(topic)
        self.subscriptions.plan(self.subscriptions.route_of(topic))

    @invariant()
    def every_plan_is_what_a_fresh_one_would_be(self) -> None:
        for topic in self.topics:
            route = self.subscriptions.route_of(topic)
            plan = self.subscriptions.plan(route)
            for origin in (*CLIENTS, ""):
                assert told(plan, origin) == expected(self.sessions, topic, origin)
            groups = {
                (s.group, s.path)
                for session in self.sessions.values()
                for s in session.subscriptions.values()
                if s.group is not None and matches(s.path, topic)
            }
            assert sorted((g.name, g.path) for g in plan.groups) == sorted(groups)
            members = {s for c in plan.cohorts if not c.identifiers for s in c.sessions}
            assert set(plan.plain) == members
            assert plan.is_plain == (not plan.groups and not plan.selective and not plan.rest)

    @invariant()
    def the_count_is_right(self) -> None:
        assert self.subscriptions.count == sum(len(s.subscriptions) for s in self.sessions.values())

    def teardown(self) -> None:
        for session in self.sessions.values():
            for path in list(session.subscriptions):
                self.subscriptions.remove(session, path)
        assert self.subscriptions.count == 0
        assert self.subscriptions._filters._root.children is None


TestPlanning = Planning.TestCase
TestPlanning.settings = settings(max_examples=examples(60), stateful_step_count=25)


@pytest.mark.parametrize("path", ["a/b", "a/+", "#", "+/b", "c"])
def test_a_changed_subscription_drops_only_the_plans_it_concerns(path: str) -> None:
    subscriptions = make()
    topics = ["a/b", "a/c", "a", "b/b", "$SYS/b", "c", "a/b/c"]
    routes = [subscriptions.route_of(topic) for topic in topics]
    session = Session("s")
    for change in (
        lambda: subscriptions.add(session, path, Subscription(path, None, 1)),
        lambda: subscriptions.add(session, path, Subscription(path, None, 2)),
        lambda: subscriptions.remove(session, path),
        lambda: subscriptions.add(session, f"$share/g/{path}", Subscription(path, "g", 1)),
        lambda: subscriptions.remove(session, f"$share/g/{path}"),
    ):
        for route in routes:
            subscriptions.plan(route)
        change()
        dropped = [route.topic for route in routes if route.plan is None]
        assert dropped == [topic for topic in topics if matches(path, topic)]


def test_the_cache_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROUTES", 100)
    subscriptions = make()
    for number in range(1000):
        subscriptions.route_of(f"t/{number}")
        assert len(subscriptions.routes) <= 100
    assert sum(1 for found in subscriptions._names.match_filter("#") if found is not None) == len(
        subscriptions.routes
    )
    assert b"t/999" in subscriptions.routes


def test_what_is_no_topic_is_not_cached() -> None:
    subscriptions = make()
    for name in (b"", b"a/#", b"+", b"a\0", b"/" * 128):
        with pytest.raises(InvalidTopic):
            subscriptions.route(name)
    with pytest.raises(UnicodeDecodeError):
        subscriptions.route(b"\xff")
    assert not subscriptions.routes


def test_topics_with_one_audience_share_a_plan() -> None:
    subscriptions = make()
    sessions = [Session(str(n)) for n in range(3)]
    for session in sessions:
        subscriptions.add(session, "a/#", Subscription("a/#", None, 1))
    plans = [subscriptions.plan(subscriptions.route_of(topic)) for topic in ("a/1", "a/2", "b")]
    assert plans[0] is plans[1]
    assert plans[0] is not plans[2]
    subscriptions.add(sessions[0], "a/2", Subscription("a/2", None, 2))
    changed = subscriptions.plan(subscriptions.route_of("a/2"))
    assert changed is not plans[0]
    assert subscriptions.routes[b"a/1"].plan is plans[0]


def test_plans_of_the_past_are_let_go() -> None:
    subscriptions = make()
    route = subscriptions.route_of("t")
    for number in range(1000):
        session = Session(str(number))
        subscriptions.add(session, "t", Subscription("t", None, 1))
        subscriptions.plan(route)
        subscriptions.remove(session, "t")
    assert len(subscriptions._audiences) <= 1
