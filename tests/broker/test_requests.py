"""Requests from publish to their end, and every end reaches its requester once (TB-07 … TB-13)."""

import pytest

from polybus.broker.lifecycle import RequestState
from polybus.broker.limits import Limits
from polybus.broker.message import OVERHEAD_BYTES, Message, MessageProperties
from polybus.broker.requests import PacketIdInUse
from tests.broker.bus import Asked, Bus, End, Frame, Peer, Stop, one

# -- the straight way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [None, 5.0])
@pytest.mark.parametrize("priority", [False, True])
def test_a_request_and_its_answer(timeout_s: float | None, priority: bool) -> None:
    bus = Bus(request_timeout_s=60.0)
    service, asker, other = bus.service("s", "t"), bus.join("a"), bus.join("o")
    other.subscribe("#")
    asker.request("t", b"?", packet_id=7, timeout_s=timeout_s, priority=priority)
    asked = one(service)
    assert asked == Asked(1, "a", 7, "t", b"?", priority, 60.0 if timeout_s is None else 5.0)
    assert asker.frames() == []
    assert service.answer(asked, b"!")
    assert asker.frames() == [End(1, 7, "ANSWERED", b"!")]
    assert service.frames() == other.frames() == []
    assert bus.broker.stats.requests_answered == bus.broker.stats.requests_received == 1
    bus.check_empty()


def test_an_answer_may_be_empty() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t")
    assert service.answer(one(service), b"")
    assert asker.ends() == [("ANSWERED", b"")]
    bus.check_empty()


@pytest.mark.parametrize("qos", [0, 1])
def test_ends_may_come_as_messages(qos: int) -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.ends_qos = qos
    asker.request("t")
    asker.request("nobody")
    service.answer(one(service), b"!")
    assert asker.ends() == [("NOT_DELIVERED", b""), ("ANSWERED", b"!")]
    assert len(asker.mine.inflight) == 2 * qos
    asker.acknowledge()
    bus.check_empty()


def test_a_client_may_serve_itself() -> None:
    bus = Bus()
    peer = bus.service("s", "t")
    peer.request("t", b"?")
    assert peer.answer(one(peer), b"!")
    assert peer.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_properties_of_an_answer_are_counted() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.block()
    asked = one(service)
    properties = MessageProperties(content_type="x" * 100)
    assert bus.broker.answer(service.mine, asked.requester, asked.packet_id, b"!", properties)
    bus.go()
    bus.check()
    assert bus.broker.requests.unread.size_bytes == OVERHEAD_BYTES + 1 + 1 + 100
    asker.unblock()
    bus.check_empty()


def test_an_answer_overtakes_nothing_of_its_own_priority() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t", at_once=9), bus.join("a")
    for n in range(6):
        asker.request("t", b"%d" % n, priority=n % 2 == 1)
    with bus.together():
        for asked in service.take(Asked):
            service.answer(asked, asked.payload)
    assert [payload for _, payload in asker.ends()] == [b"1", b"3", b"5", b"0", b"2", b"4"]


def test_priority_requests_are_given_out_first() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t", at_once=9), bus.join("a")
    with bus.together():
        for n in range(6):
            asker.request("t", b"%d" % n, priority=n % 2 == 1)
    assert service.asked() == [b"1", b"3", b"5", b"0", b"2", b"4"]


# -- every other end --------------------------------------------------------------------------------------


def test_an_error_comes_with_its_text() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", packet_id=3)
    asked = one(service)
    assert service.fail(asked, "division by zero")
    assert asker.frames() == [End(1, 3, "ERROR", reason="division by zero")]
    assert service.frames() == [], "it need not be told of its own error"
    assert not service.fail(asked, "again")
    assert bus.broker.stats.requests_failed == 1
    bus.check_empty()


def test_nobody_is_there_and_it_may_not_wait() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.request("t", packet_id=3)
    assert asker.frames() == [End(1, 3, "NOT_DELIVERED", reason="no service is subscribed to this topic")]
    assert bus.broker.stats.requests_not_delivered == 1
    bus.check_empty()


def test_too_large_for_every_service() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    service.takes_bytes = 3
    for timeout_s in (None, 100):
        asker.request("t", b"long", timeout_s=timeout_s)
        [end] = asker.take_ends("NOT_DELIVERED")
        assert end.reason == "too large for every service"
    bus.check_empty()


def test_too_large_for_one_of_them() -> None:
    bus = Bus()
    small, large, asker = bus.service("small", "t"), bus.service("large", "t"), bus.join("a")
    small.takes_bytes = 3
    asker.request("t", b"long")
    assert (small.asked(), large.asked()) == ([], [b"long"])
    asker.request("t", b"longer")
    asker.request("t", b"s")
    assert small.asked() == [b"s"], "it does not wait behind one that it could not take"
    assert bus.state("a", 2) is RequestState.STORED
    large.drop()
    assert asker.ends() == [("NOT_DELIVERED", b"")] * 2, "small is no hope for either"
    assert small.answer(Asked(3, "a", 3, "t", b"", False, 0.0))
    assert asker.ends() == [("ANSWERED", b"")]
    bus.check_empty()


def test_what_waits_is_too_large_for_who_comes() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.request("t", b"long", timeout_s=100)
    small = bus.join("small")
    small.takes_bytes = 3
    small.serve("t")
    assert small.frames() == asker.frames() == []
    assert bus.service("large", "t").asked() == [b"long"]
    bus.check()


def test_timeout_before_anything_was_done() -> None:
    """A tick that is late finds it ended."""
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    with bus.together():
        asker.request("t", timeout_s=5)
        assert bus.state("a", 1) is RequestState.NEW
        bus.broker.timers.run(bus.now + 5)
    [end] = asker.take_ends("TIMED_OUT")
    assert end.reason == "no service took it in time"
    assert service.frames() == []
    bus.check_empty()


def test_timeout_in_storage() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.request("t", timeout_s=5)
    bus.advance(4.99)
    assert asker.frames() == []
    assert bus.state("a", 1) is RequestState.STORED
    bus.advance(0.01)
    [end] = asker.take_ends("TIMED_OUT")
    assert end.reason == "no service took it in time"
    bus.check_empty()
    assert bus.service("s", "t").frames() == []


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_timeout_with_a_service(timeout_s: float | None) -> None:
    bus = Bus(request_timeout_s=5.0)
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=timeout_s)
    asker.request("t", b"next", timeout_s=100)
    asked = one(service)
    bus.advance(5)
    [end] = asker.take_ends("TIMED_OUT")
    assert end.reason == "no answer in time"
    stop, following = service.frames()
    assert stop == Stop(1, "a", 1, "t")
    assert isinstance(following, Asked), "it is free for the next"
    assert not service.answer(asked, b"late")
    assert asker.frames() == []
    assert bus.broker.stats.requests_timed_out == 1
    bus.check()


def test_an_answer_in_the_last_moment_counts() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=5)
    asked = one(service)
    with bus.together():
        service.answer(asked, b"!")
        bus.advance(5)
    assert asker.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


# -- canceling ------------------------------------------------------------------------------------------


def canceled(asker: Peer, packet_id: int = 1) -> list[Frame]:
    return [End(packet_id, packet_id, "CANCELED", reason="canceled by its requester")]


def test_cancel_what_has_just_come() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    with bus.together():
        asker.request("t")
        assert asker.cancel(1)
    assert asker.frames() == canceled(asker)
    stopped = service.frames()
    assert [type(f) for f in stopped] == [Asked, Stop], "it was given out first, as what came before"
    bus.check_empty()


def test_cancel_what_waits() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.request("t", timeout_s=100)
    assert asker.cancel(1)
    assert asker.frames() == canceled(asker)
    bus.check_empty()
    assert bus.service("s", "t").frames() == []


def test_cancel_what_a_service_has() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.request("t", b"next", timeout_s=100)
    asked = one(service)
    assert asker.cancel(1)
    assert asker.frames() == canceled(asker)
    stop, following = service.frames()
    assert stop == Stop(1, "a", 1, "t")
    assert isinstance(following, Asked)
    assert following.payload == b"next"
    assert not service.answer(asked, b"late"), "its later answer is rejected"
    assert asker.frames() == service.frames() == []
    assert bus.broker.stats.requests_canceled == bus.broker.stats.answers_rejected == 1
    bus.check()


def test_cancel_what_was_answered_in_the_same_moment() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t")
    asked = one(service)
    with bus.together():
        service.answer(asked, b"!")
        assert not asker.cancel(1)
    assert asker.ends() == [("ANSWERED", b"!")]
    assert service.frames() == []
    bus.check_empty()


def test_cancel_an_answer_that_waits() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", timeout_s=100)
    asker.block()
    service.answer(one(service), b"!")
    assert bus.state("a", 1) is RequestState.ANSWER_STORED
    assert asker.cancel(1)
    assert asker.frames() == []
    asker.unblock()
    assert asker.frames() == canceled(asker)
    assert service.frames() == [], "it is done with this"
    bus.check_empty()


@pytest.mark.parametrize("packet_id", [1, 2, 99])
def test_there_is_nothing_to_cancel(packet_id: int) -> None:
    """Ended and told, ended and not told yet, never was."""
    bus = Bus()
    asker, other = bus.join("a"), bus.join("b")
    asker.request("t")
    asker.block()
    asker.request("t")
    assert not asker.cancel(packet_id)
    assert not other.cancel(packet_id), "nobody else's"
    asker.unblock()
    assert asker.ends() == [("NOT_DELIVERED", b"")] * 2
    bus.check_empty()


def test_nobody_cancels_for_others() -> None:
    bus = Bus()
    service, asker, other = bus.service("s", "t"), bus.join("a"), bus.join("b")
    asker.request("t", packet_id=5)
    assert not other.cancel(5)
    assert service.answer(one(service), b"!")
    assert asker.ends() == [("ANSWERED", b"!")]


def test_a_service_is_told_to_stop_though_its_link_is_full() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t")
    one(service)
    service.block()
    asker.cancel(1)
    assert service.frames() == []
    bus.check()
    service.unblock()
    assert service.frames() == [Stop(1, "a", 1, "t")]
    bus.check_empty()


# -- packet ids -----------------------------------------------------------------------------------------


def test_the_same_request_again_is_the_first_one() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"?", packet_id=9, timeout_s=100)
    asker.request("t", b"?", packet_id=9, timeout_s=100)
    asker.drop()
    back = bus.join("a")
    back.request("t", b"?", packet_id=9, timeout_s=100)
    assert bus.broker.stats.requests_received == 1
    assert service.answer(one(service), b"!")
    assert back.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_the_same_request_again_while_its_end_waits() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.request("t", b"?", packet_id=9, timeout_s=10)
    asker.drop()
    bus.advance(10)
    with bus.together():
        back = bus.join("a")
        back.request("t", b"?", packet_id=9, timeout_s=10)
    assert back.ends() == [("TIMED_OUT", b"")], "the first ended, the second is another one"
    assert bus.state("a", 9) is RequestState.STORED


@pytest.mark.parametrize(("topic", "payload"), [("t", b"other"), ("u", b"?")])
def test_a_different_request_under_an_id_in_use(topic: str, payload: bytes) -> None:
    bus = Bus()
    service, asker = bus.service("s", "t", "u"), bus.join("a")
    asker.request("t", b"?", packet_id=9)
    with pytest.raises(PacketIdInUse, match="9"):
        asker.request(topic, payload, packet_id=9)
    bus.check()
    other = bus.join("b")
    other.request("t", b"other", packet_id=9)
    assert service.answer(one(service), b"!")
    assert asker.ends() == [("ANSWERED", b"!")]
    asker.request(topic, payload, packet_id=9)
    bus.check()


def test_ids_for_those_who_have_none() -> None:
    bus = Bus()
    requests = bus.broker.requests
    asker = bus.join("a")
    used = set()
    for _ in range(5):
        packet_id = requests.new_packet_id("a")
        used.add(packet_id)
        asker.request("t", packet_id=packet_id, timeout_s=100)
    assert len(used) == 5
    asker.request("t", packet_id=requests._serial % 65_535 + 1, timeout_s=100)
    assert requests.new_packet_id("a") not in requests.under_way["a"]


def test_all_ids_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.broker.requests.MAX_PACKET_ID", 50)
    bus = Bus()
    asker = bus.join("a")
    for packet_id in range(1, 50):
        asker.request("t", packet_id=packet_id, timeout_s=100)
    assert [bus.broker.requests.new_packet_id("a") for _ in range(2)] == [50, 50]
    asker.request("t", packet_id=50, timeout_s=100)
    assert bus.broker.requests.new_packet_id("a") == 0
    assert bus.join("a", clean_start=True).frames() == []
    bus.check_empty()


def test_a_request_is_found_by_what_it_said() -> None:
    bus = Bus()
    bus.service("s", "t", at_once=9)
    asker = bus.join("a")
    route = bus.broker.subscriptions.route_of("t")
    for packet_id, said in ((1, b"x"), (2, b"x"), (3, None)):
        message = Message("t", b"", origin="a", properties=MessageProperties(correlation_data=said))
        bus.broker.request(route, message, packet_id, 100, may_wait=True)
    bus.go()
    find = bus.broker.requests.find
    found = find("a", "t", b"x")
    assert found is not None
    assert found.packet_id == 2, "the latest"
    assert find("a", "t", b"y") is find("a", "v", b"x") is find("b", "t", b"x") is None
    found = find("a", "t", None)
    assert found is not None
    assert found.packet_id == 3
    asker.cancel(2)
    asker.cancel(3)
    assert find("a", "t", b"x") is find("a", "t", None) is None
    assert not bus.broker.requests._correlated


# -- answers that are not wanted ------------------------------------------------------------------------------


def test_answers_nobody_asked_for() -> None:
    bus = Bus()
    service, asker, other = bus.service("s", "t"), bus.join("a"), bus.service("o", "t")
    asker.request("t", packet_id=4, timeout_s=100)
    asked = one(service)
    wrong = [
        (service, "a", 5),  # no such request
        (service, "nobody", 4),
        (other, "a", 4),  # someone else has it
        (asker, "a", 4),  # not even its requester
    ]
    for n, (peer, client_id, packet_id) in enumerate(wrong, 1):
        false = Asked(0, client_id, packet_id, "t", b"", False, 0.0)
        assert not (peer.answer(false, b"x") if n % 2 else peer.fail(false, "x"))
        assert not (peer.fail(false, "x") if n % 2 else peer.answer(false, b"x"))
        assert bus.broker.stats.answers_rejected == 2 * n
    assert asker.frames() == []
    bus.check()
    assert service.answer(asked, b"!")
    assert not service.answer(asked, b"second")
    assert not service.fail(asked, "second")
    assert asker.ends() == [("ANSWERED", b"!")]
    bus.check_empty()


def test_two_answers_in_one_read() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t")
    asked = one(service)
    with bus.together():
        assert service.answer(asked, b"first")
        assert not service.answer(asked, b"second")
        assert not service.fail(asked, "third")
    assert asker.ends() == [("ANSWERED", b"first")]
    bus.check_empty()


def test_an_answer_to_what_waits() -> None:
    bus = Bus()
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"0")
    asker.request("t", b"1")
    assert not service.answer(Asked(2, "a", 2, "t", b"", False, 0.0), b"too early")
    assert bus.state("a", 2) is RequestState.STORED
    bus.check()


# -- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Limits(requests=2), Limits(requests_per_client=2)], ids=["all", "each"])
def test_too_many_requests(limits: Limits) -> None:
    bus = Bus(limits)
    service, asker, other = bus.service("s", "t"), bus.join("a"), bus.join("b")
    for n in range(3):
        asker.request("t", b"%d" % n)
    [end] = asker.take_ends("NOT_DELIVERED")
    assert (end.packet_id, end.reason) == (3, "too many requests are under way")
    other.request("t", b"other", timeout_s=100)
    assert len(other.ends()) == (1 if limits.requests == 2 else 0)
    bus.check()
    service.answer(one(service), b"!")
    asker.request("t", b"4", packet_id=3)
    assert [state for state, _ in asker.ends()] == ["ANSWERED"], "there is room again"
    bus.check()


def test_no_new_requests_while_memory_is_short() -> None:
    bus = Bus(Limits(memory_bytes=20_000))
    service, asker = bus.service("s", "t"), bus.join("a")
    asker.request("t", b"x" * 30_000)
    asked = one(service)
    asker.request("t", b"more")
    [end] = asker.take_ends("NOT_DELIVERED")
    assert end.reason == "the broker is short of memory"
    assert service.answer(asked, b"!"), "what is under way goes on"
    assert asker.ends() == [("ANSWERED", b"!")]
    asker.request("t", b"?")
    assert service.asked() == [b"?"]
