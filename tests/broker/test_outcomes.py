"""Ends that cannot be told at once: requesters who are away, blocked or start clean, storage that is full."""

from collections.abc import Callable

import pytest

from polybus.broker.lifecycle import RequestState
from polybus.broker.limits import Limits
from tests.broker.bus import Asked, Bus, Peer, Stop, one

# -- a requester that cannot be told ------------------------------------------------------------------------


def away(bus: Bus, asker: Peer) -> Callable[[], Peer]:
    asker.drop()
    return lambda: bus.join("a")


def blocked(bus: Bus, asker: Peer) -> Callable[[], Peer]:
    asker.block()

    def back() -> Peer:
        asker.unblock()
        return asker

    return back


def deaf(bus: Bus, asker: Peer) -> Callable[[], Peer]:
    """As an MQTT client without a subscription to its response topic."""
    asker.can_be_told = False

    def back() -> Peer:
        asker.can_be_told = True
        asker.subscribe("answers")
        return asker

    return back


HOW = pytest.mark.parametrize("how", [away, blocked, deaf])


@HOW
def test_the_answer_waits(how: Callable[[Bus, Peer], Callable[[], Peer]]) -> None:
    bus = Bus()
    service, asker = bus.service("s", "t", at_once=9), bus.join("a")
    for n in range(3):
        asker.request("t", b"%d" % n, timeout_s=100)
    back = how(bus, asker)
    for asked in service.take(Asked):
        assert service.answer(asked, b"!" + asked.payload)
    assert {bus.state("a", n) for n in (1, 2, 3)} == {RequestState.ANSWER_STORED}
    bus.check()
    bus.advance(99)
    assert back().ends() == [("ANSWERED", b"!%d" % n) for n in range(3)]
    bus.check_empty()
    assert bus.join("a").frames() == [], "not twice"


@HOW
def test_the_answer_waited_too_long(how: Callable[[Bus, Peer], Callable[[], Peer]]) -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    back = how(bus, asker)
    service.answer(one(service), b"!")
    bus.advance(100)
    assert bus.broker.stats.requests_not_delivered == 1
    bus.check()
    [end] = back().take_ends("ANSWER_NOT_DELIVERED")
    assert end.reason == "the answer came, but its requester was away"
    bus.check_empty()


@HOW
@pytest.mark.parametrize("end", ["TIMED_OUT", "ERROR", "CANCELED", "DELETED", "NOT_DELIVERED"])
def test_every_other_end_waits(how: Callable[[Bus, Peer], Callable[[], Peer]], end: str) -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"long", timeout_s=10)
    back = how(bus, asker)
    match end:
        case "TIMED_OUT":
            bus.advance(10)
        case "ERROR":
            service.fail(one(service), "no")
        case "CANCELED":
            assert bus.broker.cancel_request("a", 1)
        case "DELETED":
            bus.broker.storage.set_limits(0, 0)
            service.drop()
        case "NOT_DELIVERED":
            small = bus.join("small")
            small.takes_bytes = 1
            small.serve("t")
            service.drop()
    assert bus.broker.requests.ends.count + bus.broker.requests.unread.count == 1
    bus.check()
    bus.advance(bus.broker.limits.request_ends_kept_s - 11)
    assert [state for state, _ in back().ends()] == [end]
    bus.check_empty()


@HOW
def test_an_end_is_not_kept_for_ever(how: Callable[[Bus, Peer], Callable[[], Peer]]) -> None:
    bus = Bus(Limits(request_ends_kept_s=60))
    asker = bus.join("a")
    asker.request("t", timeout_s=10)
    back = how(bus, asker)
    bus.advance(69.9)
    assert bus.broker.requests.count == 1
    bus.advance(0.1)
    bus.check_empty()
    assert back().frames() == []


def test_what_may_not_wait_ends_with_its_requester() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    for n in range(3):
        asker.request("t", b"%d" % n)
    asked = one(service)
    asker.drop()
    assert [type(frame) for frame in service.frames()] == [Stop], "and nobody gets what is over"
    assert not service.answer(asked, b"!")
    assert bus.broker.stats.requests_canceled == 3
    bus.check_empty()
    assert bus.join("a").frames() == []


def test_who_does_not_read_loses_nothing_and_costs_nobody() -> None:
    """More answers than the storage holds, beside messages of others that wait."""
    bus = Bus(Limits(stored_messages=5))
    service, asker, other = bus.service("s", "t", at_once=99), bus.join("a"), bus.join("b")
    for n in range(5):
        other.publish("later", b"%d" % n, waits_s=100)
    for n in range(20):
        asker.request("t", b"%d" % n, timeout_s=100 if n % 2 else None)
    asker.block()
    for asked in service.take(Asked):
        assert service.answer(asked, asked.payload)
    assert bus.broker.storage.count == 5
    bus.check()
    asker.unblock()
    assert [payload for _, payload in asker.ends()] == [b"%d" % n for n in range(20)]
    bus.check()


def test_who_does_not_read_and_goes() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t", at_once=99), bus.join("a")
    for n in range(4):
        asker.request("t", b"%d" % n, timeout_s=100 if n % 2 else None)
    asker.request("nobody", timeout_s=1)
    asker.block()
    for asked in service.take(Asked):
        assert service.answer(asked, asked.payload)
    bus.advance(1)
    assert bus.broker.requests.unread.count == 5
    asker.drop()
    bus.check()
    assert bus.broker.stats.requests_not_delivered == 2
    assert bus.join("a").ends() == [("ANSWERED", b"1"), ("ANSWERED", b"3"), ("TIMED_OUT", b"")]
    bus.check_empty()


def test_another_owner_with_the_same_id_hears_nothing() -> None:
    """Another user, or a client of another protocol."""
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.drop()
    assert service.answer(one(service), b"secret")
    for clean_start in (False, True):
        stranger = Peer(bus, "a")
        session, _ = bus.broker.open(stranger, "a", clean_start=clean_start, owner="someone else")
        bus.broker.greeted(session)
        stranger.request("t", b"mine", packet_id=1)
        assert service.answer(one(service), b"yours")
        assert stranger.ends() == [("ANSWERED", b"yours")]
        assert not bus.broker.cancel_request("someone else", 1)
        stranger.drop()
    assert bus.join("a").ends() == [("ANSWERED", b"secret")]
    bus.check_empty()


def test_an_end_that_is_lost_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(Limits(stored_messages=1))
    for name in "ab":
        asker = bus.join(name)
        asker.request("t", timeout_s=1)
        asker.drop()
        with caplog.at_level("WARNING", "polybus.events"):
            bus.advance(1)
    assert "end lost" in caplog.text
    assert bus.broker.stats.stored_discarded == 1


def test_who_reads_slowly_is_told_even_of_what_may_not_wait() -> None:
    """It is there: that its link is full is nobody's decision."""
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t")
    asker.block()
    asker.request("nobody")
    service.answer(one(service), b"!")
    asker.unblock()
    assert sorted(asker.ends()) == [("ANSWERED", b"!"), ("NOT_DELIVERED", b"")]
    bus.check_empty()


def test_blocked_then_away_then_back() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.block()
    service.answer(one(service), b"!")
    asker.drop()
    assert bus.join("a").ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_the_answer_goes_to_nobody_else() -> None:
    bus = Bus()
    service, asker, other = bus.service("s", "t"), bus.join("a"), bus.join("other")
    other.subscribe("#")
    asker.request("t", timeout_s=100)
    asker.drop()
    service.answer(one(service), b"!")
    bus.join("b")
    assert other.frames() == []
    assert bus.join("a").ends() == [("ANSWERED", b"!")]


def test_an_answer_for_which_there_is_no_room() -> None:
    """The news of it is small, and has room of its own."""
    bus = Bus(Limits(stored_bytes=1000))
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.drop()
    service.answer(one(service), b"!" * 1000)
    bus.check()
    [end] = bus.join("a").take_ends("DELETED")
    assert end.reason == "there is no room to store it"
    bus.check_empty()


# -- clean start --------------------------------------------------------------------------------------------


def test_clean_start_cancels_and_throws_away() -> None:
    bus = Bus()
    service, asker, other = bus.service("s", "t", at_once=3), bus.join("a"), bus.join("other")
    for n in range(4):
        asker.request("t", b"%d" % n, timeout_s=100)
    other.request("t", b"other", timeout_s=100)
    asker.request("nobody", timeout_s=1)
    with_service = service.take(Asked)
    asker.drop()
    service.answer(with_service[0], b"!")
    assert service.asked() == [b"3"]
    bus.advance(1)
    states = [bus.state("a", n).name for n in range(1, 6)]
    assert states == ["ANSWER_STORED", "DELIVERED", "DELIVERED", "DELIVERED", "TIMED_OUT"]
    back = bus.join("a", clean_start=True)
    assert back.frames() == []
    assert "a" not in bus.broker.requests.under_way
    stopped = [f for f in service.frames() if isinstance(f, Stop)]
    assert [stop.serial for stop in stopped] == [2, 3, 4]
    assert not service.answer(with_service[1], b"!")
    bus.check()
    assert back.request("t", b"again", packet_id=2) == 2, "its ids are free"
    assert bus.broker.stats.requests_canceled == 4


def test_clean_start_takes_over_and_cancels() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    new = bus.join("a", clean_start=True)
    assert asker.ended is not None
    assert [type(f) for f in service.frames()] == [Asked, Stop]
    assert asker.frames() == new.frames() == []
    bus.check_empty()


def test_clean_start_gives_out_nothing_that_it_cancels() -> None:
    """Not even to find that it is too large for whoever is free now."""
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    service.takes_bytes = 4
    for payload in (b"0", b"long one", b"1", b"long too"):
        asker.request("t", payload)
    other = bus.join("other")
    other.request("t", b"2")
    assert service.asked() == [b"0"]
    bus.join("a", clean_start=True)
    assert [type(f) for f in service.frames()] == [Stop, Asked]
    assert bus.broker.stats.requests_canceled == 4
    bus.check()


# -- deleted from storage -----------------------------------------------------------------------------------


def test_a_deleted_request_is_told_of() -> None:
    bus = Bus(Limits(stored_messages=2))
    asker, other = bus.join("a"), bus.join("b")
    for n in range(2):
        asker.request("t", b"%d" % n, timeout_s=100)
    other.request("t", b"2", timeout_s=100)
    [end] = asker.take_ends("DELETED")
    assert end.packet_id == 1
    assert end.reason == "the storage is full, and this was deleted to make room"
    other.request("t", b"3", timeout_s=100, priority=True)
    asker.request("t", b"4", timeout_s=100, priority=True)
    assert len(asker.take_ends("DELETED")) == len(other.take_ends("DELETED")) == 1
    asker.request("t", b"5", timeout_s=100)
    [end] = asker.take_ends("DELETED")
    assert end.reason == "there is no room to store it"
    assert bus.service("s", "t", at_once=9).asked() == [b"3", b"4"]
    assert bus.broker.stats.requests_deleted == 4
    bus.check()


def test_one_newcomer_costs_one() -> None:
    """The news of a deletion takes nobody's place."""
    bus = Bus(Limits(stored_messages=5))
    asker, other = bus.join("a"), bus.join("b")
    for n in range(5):
        asker.request(f"t/{n}", b"%d" % n, timeout_s=100)
    asker.drop()
    for n in range(2):
        other.request("t/9", b"new %d" % n, timeout_s=100)
    bus.check()
    assert [e.packet_id for e in bus.join("a").take_ends("DELETED")] == [1, 2]
    assert bus.service("s", "t/+", at_once=9).asked() == [b"2", b"3", b"4", b"new 0", b"new 1"]


def test_an_answer_that_waited_is_deleted() -> None:
    bus = Bus(Limits(stored_messages=1))
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.drop()
    service.answer(one(service), b"!")
    bus.join("b").request("nobody", timeout_s=100)
    bus.check()
    assert bus.join("a").ends() == [("DELETED", b"")]


def test_a_request_that_comes_back_finds_no_room() -> None:
    bus = Bus(Limits(stored_messages=1))
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.request("other", b"x", timeout_s=100, priority=True)
    service.drop()
    [end] = asker.take_ends("DELETED")
    assert (end.packet_id, end.reason) == (1, "there is no room to store it")
    bus.check()


def test_limits_lowered_at_run_time_delete_and_tell() -> None:
    bus = Bus()
    asker, gone = bus.join("a"), bus.join("g")
    for n in range(3):
        asker.request("t", b"%d" % n, timeout_s=100)
        gone.request("t", b"g%d" % n, timeout_s=100)
    gone.drop()
    bus.broker.storage.set_limits(3, 1 << 30)
    bus.go()
    bus.check()
    assert [e.packet_id for e in asker.take_ends("DELETED")] == [1, 2]
    assert [e.packet_id for e in bus.join("g").take_ends("DELETED")] == [1]
    assert bus.service("s", "t", at_once=9).asked() == [b"g1", b"2", b"g2"]


def test_ends_have_as_much_room_as_storage() -> None:
    bus = Bus(Limits(stored_messages=2))
    asker = bus.join("a")
    for n in range(4):
        asker.request("t", b"%d" % n, timeout_s=100 + n)
    assert len(asker.take_ends("DELETED")) == 2
    asker.drop()
    other = bus.join("b")
    for n in range(3):
        other.request("t", b"%d" % n, timeout_s=100)
    other.drop()
    bus.advance(200)
    bus.check()
    assert bus.broker.requests.ends.count == 2
    assert len(bus.join("a").ends()) + len(bus.join("b").ends()) == 2, "the oldest are lost"
    bus.check_empty()


def test_room_for_ends_follows_the_configuration() -> None:
    bus = Bus(Limits(stored_messages=5))
    asker = bus.join("a")
    for _ in range(4):
        asker.request("t", timeout_s=1)
    asker.drop()
    bus.advance(1)
    assert bus.broker.requests.ends.count == 4
    bus.broker.requests.set_limits(Limits(stored_messages=2))
    assert bus.broker.requests.ends.count == 2
    other = bus.join("b")
    other.request("t", timeout_s=1)
    other.drop()
    bus.advance(1)
    assert bus.broker.requests.ends.count == 2
    bus.check()
