"""Services that come, go, are busy or late: a request finds another, or waits for one (TB-09, TB-18)."""

import pytest

from polybus.broker.lifecycle import RequestState
from polybus.broker.limits import Limits
from polybus.broker.services import ServiceRule
from polybus.broker.storage import Storage
from tests.broker.bus import Asked, Bus, Stop, one

LATE = ServiceRule(answer_within_s=10.0)

# -- waiting for a service --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["a/b", "a/+", "a/#", "#", "+/b"])
def test_a_service_that_comes_later_gets_what_waits(path: str) -> None:
    bus = Bus()
    asker = bus.join("a")
    for topic, priority in (("a/b", False), ("x", True), ("a/b", True), ("a/b", False)):
        asker.request(topic, topic.encode() + b"!" * priority, timeout_s=100, priority=priority)
    bus.advance(30)
    service = bus.service("s", path, at_once=9)
    got = service.take(Asked)
    expected = [b"a/b!", b"a/b", b"a/b"]
    if path == "#":
        expected.insert(0, b"x!")
    assert [asked.payload for asked in got] == expected
    assert {asked.left_s for asked in got} == {70.0}, "its time goes on while it waits"
    for asked in got:
        assert service.answer(asked, b"!")
    assert len(asker.ends()) == len(expected)
    bus.check()


def test_a_watcher_takes_no_requests_out_of_storage() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.request("t", timeout_s=100)
    watcher = bus.join("w")
    watcher.subscribe("#")
    assert watcher.frames() == []
    watcher.serve("#")
    assert watcher.asked() == [b""]


def test_a_service_that_comes_back_gets_what_waits() -> None:
    bus = Bus()
    service = bus.join("s", keeps_s=1000)
    service.serve("t")
    service.drop()
    asker = bus.join("a")
    asker.request("t", b"?", timeout_s=100)
    assert bus.state("a", 1) is RequestState.STORED
    assert bus.join("s", keeps_s=1000).asked() == [b"?"]


def test_all_are_busy_and_it_waits_though_it_may_not_wait_for_ever() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    for n, priority in enumerate((False, False, True, False, True)):
        asker.request("t", b"%d" % n, priority=priority)
    order = []
    for _ in range(5):
        asked = one(service)
        order.append(asked.payload)
        bus.check()
        service.answer(asked, asked.payload)
    assert order == [b"0", b"2", b"4", b"1", b"3"]
    assert [payload for _, payload in asker.ends()] == order
    bus.check_empty()


@pytest.mark.parametrize("end", ["drop", "unsubscribe"])
def test_it_waited_for_someone_busy_who_went(end: str) -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"0")
    asker.request("t", b"1")
    asker.request("t", b"2", timeout_s=100)
    if end == "drop":
        service.drop()
        assert [e.packet_id for e in asker.take_ends("NOT_DELIVERED")] == [1, 2]
    else:
        service.unsubscribe("t")
        assert [e.packet_id for e in asker.take_ends("NOT_DELIVERED")] == [2]
        assert service.answer(one(service), b"!")
        assert asker.ends() == [("ANSWERED", b"!")]
    assert bus.state("a", 3) is RequestState.STORED
    assert bus.service("other", "t").asked() == [b"2"]
    bus.check()


def test_it_waited_for_someone_busy_who_serves_no_more() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"0")
    asker.request("t", b"1")
    service.subscribe("t")
    assert asker.ends() == [("NOT_DELIVERED", b"")]


def test_a_blocked_service_is_waited_for() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    service.block()
    asker.request("t", b"?")
    assert asker.frames() == []
    service.unblock()
    assert service.answer(one(service), b"!")
    assert asker.ends() == [("ANSWERED", b"!")]


# -- instances that go away ---------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [None, 100.0])
def test_another_instance_gets_it_and_the_requester_sees_only_the_answer(timeout_s: float | None) -> None:
    bus = Bus()
    first, second, asker = bus.service("f", "t"), bus.service("s", "#"), bus.join("a")
    asker.request("t", b"?", timeout_s=timeout_s)
    asked = one(first)
    bus.advance(20)
    first.drop()
    again = one(second)
    assert (again.serial, again.payload) == (asked.serial, b"?")
    back = bus.service("f", "t")
    assert not back.answer(asked, b"late"), "it was given to someone else"
    assert asker.frames() == []
    assert second.answer(again, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_it_waits_for_another_instance_that_is_busy_or_yet_to_come() -> None:
    bus = Bus()
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    for n in range(3):
        asker.request("t", b"%d" % n, timeout_s=100)
    second_asked = one(second)
    first.drop()
    assert bus.state("a", 1) is bus.state("a", 3) is RequestState.STORED
    second.answer(second_asked, b"")
    assert second.asked() == [b"0"], "what came back is first in line"
    second.drop()
    assert bus.broker.storage.count == 2
    assert bus.service("third", "t", at_once=2).asked() == [b"0", b"2"]
    bus.check()


def test_everything_one_instance_had_goes_to_others() -> None:
    bus = Bus()
    first, asker = bus.service("f", "a", "b", at_once=5), bus.join("asker")
    for n in range(6):
        asker.request("ab"[n % 2], b"%d" % n)
    assert len(first.asked()) == 6
    second, third = bus.service("s", "a", at_once=2), bus.service("t", "b", at_once=9)
    first.drop()
    assert sorted(second.asked()) == [b"0", b"2"]
    assert sorted(third.asked()) == [b"1", b"3", b"5"]
    assert bus.state("asker", 5) is RequestState.STORED
    bus.check()


def test_who_came_first_is_first_in_line_wherever_it_waited() -> None:
    """In storage while there was no service, in line while it was busy, with one that went away."""
    bus = Bus()
    asker = bus.join("a")
    asker.request("x", b"x", timeout_s=100)
    busy = bus.service("busy", "t")
    for n in range(2):
        asker.request("t", b"t%d" % n, timeout_s=100)
    asker.request("x", b"urgent x", timeout_s=100, priority=True)
    asker.request("t", b"urgent t", timeout_s=100, priority=True)
    assert busy.asked() == [b"t0"]
    service = bus.service("s", "#")
    busy.drop()
    got = []
    while asked := service.take(Asked):
        got.append(asked[0].payload)
        assert service.answer(asked[0])
        bus.check()
    assert got == [b"urgent x", b"urgent t", b"x", b"t0", b"t1"]


def test_priority_goes_first_to_another_instance_too() -> None:
    bus = Bus()
    first, asker = bus.service("f", "t", at_once=2), bus.join("a")
    asker.request("t", b"regular")
    asker.request("t", b"urgent", priority=True)
    second = bus.service("s", "t")
    first.drop()
    assert second.asked() == [b"urgent"]


def test_an_answer_and_a_disconnect_in_one_read() -> None:
    bus = Bus()
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    asker.request("t")
    asked = one(first)
    with bus.together():
        assert first.answer(asked, b"!")
        first.drop()
    assert asker.ends() == [("ANSWERED", b"!")]
    assert second.frames() == []
    bus.check_empty()


def test_a_request_and_the_disconnect_of_its_only_service_in_one_read() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    with bus.together():
        asker.request("t")
        asker.request("t", timeout_s=100)
        service.drop()
    assert [e.packet_id for e in asker.take_ends("NOT_DELIVERED")] == [1]
    assert bus.state("a", 2) is RequestState.STORED
    bus.check()


def test_a_service_that_is_taken_over_loses_what_it_had() -> None:
    bus = Bus()
    first, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"?", timeout_s=100)
    asked = one(first)
    again = bus.join("s")
    assert not again.answer(asked, b"!")
    again.serve("t")
    assert again.asked() == [b"?"]
    assert again.answer(asked, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]


# -- answer_within_s ------------------------------------------------------------------------------------


def test_who_is_late_loses_it_to_another() -> None:
    bus = Bus(default_service=LATE)
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    asker.request("t", b"?")
    asked = one(first)
    bus.advance(9.9)
    assert second.frames() == []
    bus.advance(0.1)
    assert first.frames() == [Stop(1, "a", 1, "t")]
    assert not first.answer(asked, b"late")
    bus.check()
    assert second.answer(one(second), b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_better_late_than_never() -> None:
    bus = Bus(default_service=LATE)
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"?")
    asked = one(service)
    bus.advance(35)
    assert service.frames() == []
    bus.check()
    assert service.answer(asked, b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_nobody_is_left_who_was_not_late() -> None:
    """The last one keeps it: going around in circles helps nobody."""
    bus = Bus(default_service=LATE)
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    asker.request("t", b"?", timeout_s=100)
    bus.advance(50)
    assert [type(f) for f in first.frames()] == [Asked, Stop]
    asked = one(second)
    assert second.frames() == []
    third = bus.service("third", "t")
    bus.advance(10)
    assert second.frames() == [Stop(1, "a", 1, "t")]
    assert third.asked() == [b"?"]
    assert not second.answer(asked)
    bus.advance(40)
    assert asker.ends() == [("TIMED_OUT", b"")]
    assert third.frames() == [Stop(1, "a", 1, "t")]
    bus.check_empty()


@pytest.mark.parametrize("timeout_s", [None, 50.0])
@pytest.mark.parametrize("end", ["drop", "unsubscribe"])
def test_who_was_late_gets_it_back_if_nobody_else_is_left(timeout_s: float | None, end: str) -> None:
    """It may have waited for the other one, or been with it."""
    bus = Bus(default_service=LATE)
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    asker.request("t", b"0", timeout_s=timeout_s)
    bus.advance(5)
    asker.request("t", b"1", timeout_s=timeout_s)
    bus.advance(5)
    assert [type(f) for f in first.frames()] == [Asked, Stop]
    assert bus.state("a", 1) is RequestState.STORED, "second is busy"
    if end == "drop":
        second.drop()
        asked = [one(first)]
    else:
        second.unsubscribe("t")
        asked = [one(first)]
        assert second.answer(one(second), b"!")
    bus.check()
    assert first.answer(asked[0], b"!")
    if end == "drop":
        asked.append(one(first))
        assert first.answer(asked[1], b"!")
    assert b"0" in [each.payload for each in asked]
    assert asker.ends() == [("ANSWERED", b"!")] * 2
    bus.check_empty()


def test_time_starts_anew_with_each_instance() -> None:
    bus = Bus(default_service=LATE)
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    asker.request("t")
    bus.advance(9)
    first.drop()
    bus.service("third", "t")
    bus.advance(9)
    assert [type(f) for f in second.frames()] == [Asked]
    bus.advance(1)
    assert [type(f) for f in second.frames()] == [Stop]
    bus.check()


def test_who_is_late_is_free_for_the_next() -> None:
    bus = Bus(default_service=LATE)
    first, second, asker = bus.service("f", "t"), bus.service("s", "t"), bus.join("a")
    asker.request("t", b"0")
    bus.advance(5)
    for n in (1, 2):
        asker.request("t", b"%d" % n)
    assert (first.asked(), second.asked()) == ([b"0"], [b"1"])
    bus.advance(5)
    stop, following = first.frames()
    assert stop == Stop(1, "a", 1, "t")
    assert isinstance(following, Asked)
    assert following.payload == b"2"
    assert bus.state("a", 1) is RequestState.STORED, "it waits for second, which is busy"
    bus.check()


def test_nobody_is_given_what_has_no_time_left() -> None:
    """Two run out of time in the same moment: the one that waits does not take the place of the other."""
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    for n in range(2):
        asker.request("t", b"%d" % n, timeout_s=5)
    bus.advance(5)
    assert [type(f) for f in service.frames()] == [Asked, Stop]
    assert asker.ends() == [("TIMED_OUT", b"")] * 2
    bus.check_empty()


# -- many that wait -------------------------------------------------------------------------------------------


def test_a_long_line_is_not_searched_for_each_who_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of topics under one filter: the next in line is known, not looked for."""
    bus = Bus()
    service, asker = bus.service("s", "t/#"), bus.join("a")
    for n in range(300):
        asker.request(f"t/{n}", b"%d" % n)
    searches: list[str] = []
    search = Storage.matching
    monkeypatch.setattr(Storage, "matching", lambda *args: searches.append(args[2]) or search(*args))
    order = []
    while asked := service.take(Asked):
        order += [each.payload for each in asked]
        assert service.answer(asked[0], b"!")
    assert order == [b"%d" % n for n in range(300)]
    assert len(searches) <= 1
    bus.check_empty()


def test_one_of_many_instances_goes_and_the_line_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    services, asker = [bus.service(f"s{n}", "t/#") for n in range(20)], bus.join("a")
    for n in range(300):
        asker.request(f"t/{n}", timeout_s=50)
    searches: list[str] = []
    search = Storage.matching
    monkeypatch.setattr(Storage, "matching", lambda *args: searches.append(args[2]) or search(*args))
    for service in services[:-1]:
        service.drop()
    assert not searches
    services[-1].drop()
    assert searches == ["t/#"]
    assert bus.broker.storage.count == 300
    bus.check()


def test_rules_that_change_while_requests_wait() -> None:
    bus = Bus()
    service, asker = bus.service("s", "#"), bus.join("a")
    for n in range(4):
        asker.request("t", b"%d" % n)
    asked = one(service)
    bus.broker.reconfigure(
        bus.broker.limits,
        bus.broker.access,
        shared_strategy="round_robin",
        drop_oldest=False,
        queue_qos0=False,
        default_service=ServiceRule(concurrency=3),
    )
    assert service.answer(asked, b"!")
    assert service.asked() == [b"1", b"2", b"3"]
    bus.check()


def test_who_unsubscribed_leaves_no_line_behind() -> None:
    """It answers what it had in hand, and looks for no more under a filter that nobody has."""
    bus = Bus()
    first, other, asker = bus.service("f", "t"), bus.service("o", "#"), bus.join("a")
    for n in range(4):
        asker.request("t", b"%d" % n)
    asked = one(first)
    first.unsubscribe("t")
    assert first.answer(asked)
    asker.request("t", b"new")
    assert other.asked() == [b"1"]
    assert bus.service("third", "t", at_once=9).asked() == [b"2", b"3", b"new"]
    bus.check()


def test_nothing_is_kept_of_those_that_waited() -> None:
    """Neither under another filter, nor of those that someone was late with."""
    bus = Bus(default_service=LATE)
    services, asker = [bus.service("s", "t/+"), bus.service("o", "#")], bus.join("a")
    for n in range(20):
        asker.request(f"t/{n % 3}", timeout_s=60)
    bus.advance(35)
    requests = bus.broker.requests
    assert requests._turns
    for _ in range(30):
        for service in services:
            for serial in list(service.mine.in_hand or ()):
                request = (service.mine.in_hand or {})[serial]
                assert service.answer(Asked(0, "a", request.packet_id, "", b"", False, 0.0))
    bus.check_empty()
    assert not requests._turns
    assert not requests._choosy


def test_a_line_that_may_not_be_so_long_any_more() -> None:
    bus = Bus(default_service=LATE)
    first, asker = bus.service("f", "t"), bus.join("a")
    bus.service("s", "t")
    for n in range(6):
        asker.request("t", b"%d" % n, timeout_s=60)
    bus.advance(15)
    bus.broker.requests.set_limits(Limits(requests=2))
    bus.go()
    bus.check()
    assert bus.broker.requests.line.count == 2
    assert len(asker.take_ends("DELETED")) == 2
    first.drop()
    bus.check()
