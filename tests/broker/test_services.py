"""Which instance of a service gets a request: strategies, rules, and how much each takes at once (TB-18)."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.broker.links import Link
from polybus.broker.services import AS_THE_RULE_SAYS, STRATEGIES, Desk, Instance, ServiceRule
from polybus.broker.sessions import Session
from tests.broker.bus import Asked, Bus, Peer
from tests.broker.naive import filters, matches, names
from tests.examples import examples

_numbers = itertools.count(1)


def ask(bus: Bus, count: int = 1, topic: str = "t") -> None:
    """Someone new asks, each time."""
    asker = bus.join(f"asker {next(_numbers)}")
    for n in range(count):
        asker.request(topic, b"%d" % n)


def bus_with(strategy: str = "first_free", concurrency: int = 1, **settings: object) -> Bus:
    return Bus(default_service=ServiceRule(strategy=strategy, concurrency=concurrency), **settings)


def held(*services: Peer) -> list[list[bytes]]:
    return [service.asked() for service in services]


# -- strategies --------------------------------------------------------------------------------------


def test_first_free_is_the_one_that_subscribed_first() -> None:
    bus = bus_with()
    b, a = bus.join("b"), bus.join("a")
    a.serve("t")
    b.serve("t")
    ask(bus, 1)
    [asked] = a.take(Asked)
    a.answer(asked)
    ask(bus, 2)
    assert held(a, b) == [[b"0"], [b"1"]]


def test_round_robin_is_whoever_has_had_none_for_the_longest_time() -> None:
    bus = bus_with("round_robin", concurrency=100)
    services = [bus.service(name, "t") for name in "abc"]
    ask(bus, 6)
    assert held(*services) == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_round_robin_passes_over_the_busy_and_comes_back_to_them() -> None:
    bus = bus_with("round_robin")
    services = [bus.service(name, "t") for name in "abc"]
    asker = bus.join("asker")
    for n in range(3):
        asker.request("t", b"%d" % n)
    first = [service.take(Asked)[0] for service in services]
    services[1].answer(first[1])
    asker.request("t", b"3")
    assert held(*services) == [[], [b"3"], []]
    services[2].answer(first[2])
    services[0].answer(first[0])
    asker.request("t", b"4")
    assert held(*services) == [[b"4"], [], []], "c was asked later than a"


def test_random_asks_the_dice_how_many_are_free() -> None:
    asked: list[int] = []

    def choose(n: int) -> int:
        asked.append(n)
        return n - 1

    bus = bus_with("random", choose=choose)
    services = [bus.service(name, "t") for name in "abc"]
    ask(bus, 3)
    assert held(*services) == [[b"2"], [b"1"], [b"0"]]
    assert asked == [3, 2, 1]


def test_random_uses_everyone() -> None:
    turn = iter(range(100))
    bus = bus_with("random", concurrency=100, choose=lambda n: next(turn) % n)
    services = [bus.service(name, "t") for name in "abc"]
    ask(bus, 30)
    assert [len(got) for got in held(*services)] == [10, 10, 10]


def test_fastest_has_the_shortest_average() -> None:
    bus = bus_with("fastest")
    quick, slow = bus.service("quick", "t"), bus.service("slow", "t")
    asker = bus.join("asker")

    def round_trip(took_s: float) -> Peer:
        asker.request("t")
        peer = next(p for p in (quick, slow) if p.mine.in_hand)
        bus.advance(took_s)
        assert peer.answer(peer.take(Asked)[0])
        return peer

    assert round_trip(1.0) is quick, "never asked, and subscribed first"
    assert round_trip(2.0) is slow, "never asked"
    assert [round_trip(1.0) for _ in range(3)] == [quick] * 3
    assert round_trip(10.0) is quick, "nobody knew that it would be slow this time"
    assert round_trip(1.0) is slow, "quick has (4 · 1 + 10) / 5 now"
    assert [round_trip(1.0) for _ in range(3)] == [slow] * 3


def test_an_average_follows_what_is_new_and_does_not_jump() -> None:
    instance = Instance(Session("s"), "t", 1, 1)
    averages = []
    for took_s in (4.0, 4.0, 9.0, 9.0):
        instance.busy += 1
        instance.give_back(took_s)
        averages.append(round(instance.average_s, 6))
    assert averages == [4.0, 4.0, 5.0, 5.8]
    assert instance.busy == 0


def test_fastest_gives_to_the_next_if_the_fastest_is_busy() -> None:
    bus = bus_with("fastest")
    services = [bus.service(name, "t") for name in "ab"]
    ask(bus, 2)
    for service, took_s in zip(services, (1.0, 1.0), strict=True):
        bus.advance(took_s)
        service.answer(service.take(Asked)[0])
    ask(bus, 2)
    assert held(*services) == [[b"0"], [b"1"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_uses_all_before_anyone_waits(strategy: str) -> None:
    bus = bus_with(strategy, concurrency=2)
    services = [bus.service(name, "t") for name in "abc"]
    ask(bus, 8)
    assert [len(got) for got in held(*services)] == [2, 2, 2]
    assert bus.broker.requests.line.count == 2
    assert bus.broker.storage.count == 0, "who waits for a turn takes no room from who waits for a service"
    bus.check()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_with_one_instance(strategy: str) -> None:
    bus = bus_with(strategy)
    service = bus.service("s", "t")
    ask(bus, 2)
    assert service.asked() == [b"0"]


# -- busy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_rule", [False, True], ids=["by itself", "by the rule"])
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_as_many_at_once_as_it_takes(by_rule: bool, at_once: int) -> None:
    bus = bus_with(concurrency=at_once if by_rule else 3)
    service = bus.service("s", "t", at_once=AS_THE_RULE_SAYS if by_rule else at_once)
    ask(bus, 10)
    first, *_ = got = service.take(Asked)
    assert len(got) == at_once
    service.answer(first)
    assert len(service.take(Asked)) == 1
    assert len(service.mine.in_hand or ()) == at_once
    bus.check()


def test_a_blocked_link_is_busy() -> None:
    bus = bus_with()
    a, b = bus.service("a", "t"), bus.service("b", "t")
    a.block()
    ask(bus, 2)
    assert held(a, b) == [[], [b"0"]]
    a.unblock()
    assert a.asked() == [b"1"]


def test_who_is_away_is_not_asked() -> None:
    bus = bus_with()
    a = bus.join("a", keeps_s=100)
    a.serve("t")
    b = bus.service("b", "t")
    a.drop()
    ask(bus, 2)
    assert b.asked() == [b"0"]
    assert bus.join("a", keeps_s=100).asked() == [b"1"], "its session kept the subscription"


def test_each_subscription_takes_its_own() -> None:
    """One session, two services: being busy with one does not keep it from the other."""
    bus = bus_with()
    service = bus.service("s", "t", "u")
    asker = bus.join("asker")
    for topic in ("t", "u", "t", "u"):
        asker.request(topic, topic.encode())
    assert service.asked() == [b"t", b"u"]
    bus.check()


def test_two_filters_of_one_session_that_match_are_two_instances() -> None:
    bus = bus_with()
    service = bus.service("s", "t", "#")
    ask(bus, 3)
    assert service.asked() == [b"0", b"1"]
    service.unsubscribe("#")
    bus.check()


def test_a_subscription_that_takes_no_requests_gets_none() -> None:
    bus = bus_with()
    watcher, asker = bus.join("w"), bus.join("asker")
    watcher.subscribe("#")
    asker.request("t")
    assert watcher.frames() == []
    assert asker.ends() == [("NOT_DELIVERED", b"")]


# -- topics, wildcards and rules ------------------------------------------------------------------------


def test_one_instance_counts_over_all_topics_of_its_filter() -> None:
    bus = bus_with()
    service = bus.service("s", "a/#", at_once=2)
    asker = bus.join("asker")
    for n, topic in enumerate(("a/1", "a", "a/2/3", "b")):
        asker.request(topic, b"%d" % n)
    assert service.asked() == [b"0", b"1"]
    assert [end.packet_id for end in asker.take_ends("NOT_DELIVERED")] == [4]


def test_wildcards_and_names_compete_in_the_order_they_subscribed() -> None:
    bus = bus_with()
    services = [bus.service(name, path) for name, path in (("a", "x/#"), ("b", "x/y"), ("c", "+/y"))]
    ask(bus, 4, "x/y")
    assert held(*services) == [[b"0"], [b"1"], [b"2"]]


def test_a_wildcard_at_the_front_serves_no_topics_of_the_broker() -> None:
    bus = bus_with()
    service = bus.service("s", "#")
    ask(bus, 1, "$own/t")
    assert service.asked() == []


RULES = [
    ServiceRule("a/b", concurrency=2),
    ServiceRule("a/#", concurrency=3),
    ServiceRule("+/c", strategy="round_robin", concurrency=4),
]


@pytest.mark.parametrize(
    ("topic", "at_once"), [("a/b", 2), ("a/c", 3), ("a", 3), ("a/b/c", 3), ("x/c", 4), ("x", 1)]
)
def test_the_first_rule_that_matches_holds(topic: str, at_once: int) -> None:
    bus = Bus(service_rules=RULES)
    service = bus.service("s", topic)
    ask(bus, 6, topic)
    assert len(service.asked()) == at_once


def test_each_rule_has_its_strategy() -> None:
    bus = Bus(service_rules=RULES)
    services = [bus.service(name, "#") for name in "ab"]
    asker = bus.join("asker")
    for _ in range(2):
        asker.request("x/c", b"c")
    for n in range(3):
        asker.request("a/b", b"%d" % n)
    assert held(*services) == [[b"c", b"0"], [b"c", b"1"]], "with two in hand there is no more a/b"
    asker.request("x/c", b"c")
    assert held(*services) == [[b"c"], []], "but more x/c"


def test_a_rule_that_takes_little_does_not_hold_up_another_topic() -> None:
    """Both wait for the same instance, whose limit is not the same for both."""
    bus = Bus(service_rules=[ServiceRule("a"), ServiceRule("b", concurrency=3)])
    service = bus.service("s", "#")
    asker = bus.join("asker")
    for topic, payload in (("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("b", b"b2"), ("b", b"b3")):
        asker.request(topic, payload)
    got = service.take(Asked)
    assert [asked.payload for asked in got] == [b"a1", b"b1", b"b2"]
    service.answer(got[1])
    assert service.asked() == [b"b3"], "a2 has to wait until there is none in hand"
    bus.check()


def test_new_rules_hold_for_what_comes() -> None:
    bus = bus_with()
    service = bus.service("s", "t")
    ask(bus, 2)
    assert service.asked() == [b"0"]
    bus.broker.reconfigure(
        bus.broker.limits,
        bus.broker.access,
        shared_strategy="round_robin",
        drop_oldest=False,
        queue_qos0=False,
        default_service=ServiceRule(concurrency=5),
    )
    bus.join("other").request("t", b"2")
    assert b"2" in service.asked()


# -- subscribing anew -----------------------------------------------------------------------------------


def test_a_renewed_subscription_keeps_its_place_and_its_hands() -> None:
    bus = bus_with()
    a, b = bus.service("a", "t"), bus.service("b", "t")
    ask(bus, 1)
    a.serve("t")
    ask(bus, 3)
    assert held(a, b) == [[b"0"], [b"0"]], "a is still busy with its first"
    a.serve("t", 3)
    assert held(a, b) == [[b"1", b"2"], []], "a takes more now"
    bus.check()


def test_a_place_is_kept_not_the_last_in_line() -> None:
    bus = bus_with()
    a, b = bus.service("a", "t"), bus.service("b", "t")
    a.serve("t", 1)
    ask(bus, 1)
    assert held(a, b) == [[b"0"], []]


def test_who_takes_less_now_is_not_given_more() -> None:
    bus = bus_with()
    service = bus.service("s", "t", at_once=3)
    ask(bus, 5)
    got = service.take(Asked)
    service.serve("t", 1)
    for asked in got[:2]:
        service.answer(asked)
        assert service.asked() == []
    service.answer(got[2])
    assert service.asked() == [b"3"]
    bus.check()


def test_who_unsubscribes_and_subscribes_is_last_in_line() -> None:
    bus = bus_with()
    a, b = bus.service("a", "t"), bus.service("b", "t")
    a.unsubscribe("t")
    a.serve("t")
    ask(bus, 1)
    assert held(a, b) == [[], [b"0"]]


def test_who_unsubscribed_gets_no_more_but_may_finish() -> None:
    bus = bus_with()
    service = bus.service("s", "t", at_once=2)
    asker = bus.join("asker")
    for n in range(4):
        asker.request("t", b"%d" % n, timeout_s=100)
    first, second = service.take(Asked)
    service.unsubscribe("t")
    assert service.answer(first, b"done")
    assert service.fail(second, "no")
    assert service.asked() == []
    assert asker.ends() == [("ANSWERED", b"done"), ("ERROR", b"")]
    assert bus.service("other", "t", at_once=9).asked() == [b"2", b"3"]
    bus.check()


# -- desks against a naive reading -------------------------------------------------------------------------


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(st.sampled_from("abc"), filters, st.booleans(), st.booleans()), max_size=12),
    st.lists(filters, max_size=3),
    names,
)
def test_a_desk_has_every_instance_and_the_first_rule(
    steps: list[tuple[str, str, bool, bool]], rule_filters: list[str], topic: str
) -> None:
    """Subscribing, renewing, ceasing to serve and unsubscribing, in any order."""
    rules = [ServiceRule(path, concurrency=n + 2) for n, path in enumerate(rule_filters)]
    bus = Bus(service_rules=rules)
    peers = {name: bus.join(name) for name in "abc"}
    expected: dict[tuple[str, str], None] = {}
    for name, path, serves, stays in steps:
        if not stays:
            peers[name].unsubscribe(path)
        elif serves:
            peers[name].serve(path)
        else:
            peers[name].subscribe(path)
        if serves and stays:
            expected.setdefault((name, path))
        else:
            expected.pop((name, path), None)
        subscriptions = bus.broker.subscriptions
        desk = subscriptions.desk(subscriptions.route_of(topic))
        found = [(i.session.client_id, i.path) for i in desk.instances]
        assert found == [(n, p) for n, p in expected if matches(p, topic)]
        assert desk.rule.concurrency == next((r.concurrency for r in rules if matches(r.filter, topic)), 1)


def test_a_desk_with_nobody() -> None:
    desk = Desk(ServiceRule(), [], lambda n: 0)
    assert desk.pick(None) is None
    assert not desk.has_hope(None)


def test_hope_is_someone_connected_who_is_not_passed_over() -> None:
    bus = Bus()
    peers = [bus.service(name, "t") for name in "ab"]
    desk = bus.broker.subscriptions.desk(bus.broker.subscriptions.route_of("t"))
    a, b = desk.instances
    peers[0].block()
    assert desk.has_hope({b}), "a is blocked, and will not be for ever"
    assert not desk.has_hope({a, b})
    assert desk.pick({b}) is None
    assert desk.pick(None) is b
    assert desk.pick({a}) is b
    link: Link | None = a.session.link
    a.session.link = None
    assert not desk.has_hope({b})
    a.session.link = link


def test_counts_of_each_instance() -> None:
    """Many requests, several services: nobody has more than it takes, nobody idles while others wait."""
    bus = bus_with("round_robin", concurrency=3)
    services = [bus.service(name, "t/#", at_once=n + 1) for n, name in enumerate("abcd")]
    asker = bus.join("asker")
    for n in range(40):
        asker.request(f"t/{n % 3}", b"%d" % n)
    answered = Counter[str]()
    while any(service.mine.in_hand for service in services):
        for n, service in enumerate(services):
            assert len(service.mine.in_hand or ()) <= n + 1
            for asked in service.take(Asked):
                assert service.answer(asked, asked.payload)
                answered[service.client_id] += 1
        bus.check()
    assert sorted(int(end) for _, end in asker.ends()) == list(range(40))
    assert answered.total() == 40
