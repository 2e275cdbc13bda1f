"""The TBus client core against a scripted broker: no sockets, no clock."""

from collections.abc import Callable
from typing import Any

import pytest

from polybus.client.errors import (
    ConnectionLost,
    ConnectRefused,
    NotDelivered,
    PublishRefused,
    RequestCanceled,
    RequestDeleted,
    RequestFailed,
    RequestTimeout,
    ServiceError,
    SubscribeRefused,
    UnsubscribeRefused,
)
from polybus.client.events import (
    Completed,
    Ended,
    Failed,
    Received,
    RenewalRefused,
    Requested,
    ReturnAddress,
    Unclaimed,
    Withdrawn,
)
from polybus.client.message import Message
from polybus.client.tbus_core import MAX_PAYLOAD_BYTES, State
from polybus.client.tbus_doubts import LARGE_BYTES
from polybus.errors import UsageError
from polybus.session.tbus.bulking import MAX_BULK_BYTES
from polybus.wire.tbus.codec import encode
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    MsgAck,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
    SubscribeReason,
    UnsubAck,
    Unsubscribe,
    UnsubscribeReason,
)
from tests.client.tbus_script import TbusScript

Make = Callable[..., TbusScript]
LARGE = bytes(LARGE_BYTES)
ERROR = Disconnect(DisconnectReason.UNSPECIFIED, "a message of 70000 bytes is larger than 65536")


@pytest.fixture(params=["whole", "bytewise"])
def make(request: pytest.FixtureRequest) -> Make:
    def make(**settings: Any) -> TbusScript:
        return TbusScript(bytewise=request.param == "bytewise", **settings)

    return make


def answer(packet_id: int, payload: bytes = b"y", *, priority: bool = False) -> Publish:
    return Publish(
        None,
        payload,
        is_response=True,
        is_priority=priority,
        response_destination="c",
        packet_id=packet_id,
    )


def given(topic: str = "t", payload: bytes = b"?", packet_id: int = 7, requester: str = "asker") -> Publish:
    return Publish(
        topic, payload, is_request=True, timeout_s=5, response_destination=requester, packet_id=packet_id
    )


# --- connect ----------------------------------------------------------------------------------------


def test_connect_says_who_we_are(make: Make) -> None:
    script = make(keep_alive_s=30, user_name="u", token="secret")
    script.core.connect(now=0)
    script.expect(Connect)
    assert script.last == Connect("c", 30, True, False, "secret", "u", MAX_BULK_BYTES)
    script.reply(ConnAck())
    assert script.accepted.client_id == "c"
    assert script.core.state is State.CONNECTED


def test_who_does_not_bulk_wants_none(make: Make) -> None:
    script = make(bulk="off")
    script.core.connect(now=0)
    script.expect(Connect, bulk_limit=None)


@pytest.mark.parametrize("clean_start", [True, False])
def test_only_the_first_connection_is_clean(make: Make, clean_start: bool) -> None:
    script = make(clean_start=clean_start)
    script.core.connect(now=0)
    script.expect(Connect, clean_start=clean_start).lose()
    script.core.connect(now=0)
    script.expect(Connect, clean_start=clean_start).reply(ConnAck()).lose()
    script.core.connect(now=0)
    script.expect(Connect, clean_start=False)


@pytest.mark.parametrize(
    ("reason", "may_retry"),
    [
        (ConnectReason.UNSPECIFIED, True),
        (ConnectReason.MALFORMED, False),
        (ConnectReason.CLIENT_LIMIT_REACHED, True),
        (ConnectReason.CLIENT_ID_IN_USE, True),
        (ConnectReason.NOT_AUTHORIZED, False),
    ],
)
def test_refusal_names_its_reason(make: Make, reason: ConnectReason, may_retry: bool) -> None:
    script = make().connect(ConnAck(reason, "because"))
    error, retry, elsewhere = script.ended
    assert isinstance(error, ConnectRefused)
    assert error.reason_code == reason
    assert "because" in str(error)
    assert retry is may_retry
    assert elsewhere == ()


def test_refusal_names_other_brokers(make: Make) -> None:
    reference = "10.0.0.1:5035; [::1]:5036;nonsense;x:y;host:0"
    script = make().connect(ConnAck(ConnectReason.CLIENT_LIMIT_REACHED, server_reference=reference))
    assert script.ended.elsewhere == ("10.0.0.1:5035", "[::1]:5036")


# --- every state, every message ---------------------------------------------------------------------

PACKETS: list[Packet] = [
    Connect("c"),
    ConnAck(),
    Publish("t", b"x"),
    given(),
    answer(1),
    MsgAck(1, "t"),
    ReqAck(1, RequestState.CANCELED),
    Bulk(encode(Publish("t"))),
    Subscribe(1, "t"),
    SubAck(1),
    Unsubscribe(1, "t"),
    UnsubAck(1),
    PingReq(),
    PingResp(),
    Disconnect(),
]
WELCOME_WHEN_CONNECTING = {ConnAck}
WELCOME_WHEN_CONNECTED = {Publish, ReqAck, Bulk, PingResp, Disconnect}


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: type(packet).__name__)
@pytest.mark.parametrize("state", list(State))
def test_what_may_come_when(make: Make, state: State, packet: Packet) -> None:
    script = make()
    if state is not State.IDLE:
        script.core.connect(now=0)
        script.expect(Connect)
    if state is State.CONNECTED:
        script.reply(ConnAck())
    script.take()
    script.reply(packet)
    if state is State.IDLE:
        assert script.take() == []
        return
    welcome = WELCOME_WHEN_CONNECTED if state is State.CONNECTED else WELCOME_WHEN_CONNECTING
    broke = [event for event in script.events if isinstance(event, Ended) and "protocol" in str(event.error)]
    assert bool(broke) is (type(packet) not in welcome)
    if broke and state is State.CONNECTED:
        script.expect(Disconnect, reason=DisconnectReason.UNSPECIFIED)
    elif broke:
        script.expect_nothing()  # no DISCONNECT before CONNACK


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",  # no such type
        b"\x30\x02\x05a",  # a topic that reaches past the end
        b"\x60\x00",  # an empty BULK
        b"\x60\x02\x60\x00",  # a BULK in a BULK
        b"\x60\x03\x30\x05a",  # half a message in a BULK
        b"\xd0\xff\xff\xff\xff\x01",  # no varint
    ],
)
def test_garbage_ends_the_connection(make: Make, data: bytes) -> None:
    script = make().connect().reply_bytes(data)
    assert "broke the protocol" in str(script.ended.error)
    assert script.ended.may_retry
    script.expect(Disconnect)


def test_nothing_counts_behind_a_goodbye(make: Make) -> None:
    script = make().connect()
    script.take()
    script.reply(Bulk(encode(Publish("a", b"1")) + encode(Disconnect()) + encode(Publish("a", b"2"))))
    assert [type(event) for event in script.take()] == [Received, Ended]


# --- messages ---------------------------------------------------------------------------------------


def test_messages_out(make: Make) -> None:
    script = make().connect()
    assert script.publish("a", b"") == 0
    script.publish("a", b"2", priority=True)
    script.publish("a", b"3", 20)
    script.expect(Publish, topic="a", payload=b"2", is_priority=True, timeout_s=None)  # overtook the first
    script.expect(Publish, topic="a", payload=b"", is_priority=False, timeout_s=None)
    script.expect(Publish, topic="a", payload=b"3", timeout_s=20)
    script.expect_nothing()


def test_messages_in_by_themselves_and_in_bulks(make: Make) -> None:
    script = make().connect()
    inside = encode(Publish("b", b"2", is_priority=True)) + encode(Publish("c", b""))
    script.reply(Publish("a", b"1"), Bulk(inside))
    assert [event for event in script.take() if isinstance(event, Received)] == [
        Received(Message("a", b"1"), None, ()),
        Received(Message("b", b"2", priority=True), None, ()),
        Received(Message("c", b""), None, ()),
    ]


def test_what_tbus_does_not_know_is_named(make: Make) -> None:
    script = make().connect()
    for message in (Message("a", qos=1), Message("a", retain=True)):
        with pytest.raises(UsageError, match="wait_s"):
            script.core.publish(message, now=0)
    for topic in ("", "a/#", "a/+", "a\0"):
        with pytest.raises(UsageError):
            script.publish(topic)
        with pytest.raises(UsageError):
            script.request(topic)
    with pytest.raises(UsageError, match="1000000000000"):
        script.publish("a", b"", 10**12)
    script.expect_nothing()


def test_messages_need_a_connection(make: Make) -> None:
    with pytest.raises(UsageError, match="while connected"):
        make().publish("a")


# --- bulking ----------------------------------------------------------------------------------------


def test_what_is_ready_together_goes_together(make: Make) -> None:
    script = make().connect()
    for number in range(5):
        script.publish("a", b"%d" % number)
    for number in range(5):
        script.expect(Publish, payload=b"%d" % number)
    assert script.bulks == 1
    script.publish("a", b"alone")
    script.expect(Publish, payload=b"alone")
    assert script.bulks == 1


def test_no_bulks_when_off(make: Make) -> None:
    script = make(bulk="off").connect()
    for _ in range(5):
        script.publish("a")
    for _ in range(5):
        script.expect(Publish)
    assert script.bulks == 0


def test_the_fixed_window_gathers_and_then_sends(make: Make) -> None:
    script = make(bulk="fixed", keep_alive_s=0).connect()
    for _ in range(10):  # fast from now on
        script.publish("a")
    script.expect_nothing()
    deadline = script.core.deadline()
    assert deadline == pytest.approx(script.now + 0.050)
    assert script.core.pending_output
    script.publish("a", b"urgent", priority=True)
    script.expect(Publish, payload=b"urgent").expect_nothing()
    script.now += 0.050
    for _ in range(10):
        script.expect(Publish)
    assert script.bulks == 1
    assert script.core.deadline() is None


def test_goodbye_takes_along_what_was_gathered(make: Make) -> None:
    script = make(bulk="fixed").connect()
    for _ in range(10):
        script.publish("a")
    script.core.prepare_goodbye(128, "no database")
    script.core.disconnect(now=script.now)
    for _ in range(10):
        script.expect(Publish)
    script.expect(Disconnect, reason=DisconnectReason.UNSPECIFIED, reason_string="no database")


def test_goodbye_with_a_reason_that_tbus_does_not_know(make: Make) -> None:
    with pytest.raises(UsageError, match=r"99.*128 \(unspecified\)"):
        make().core.prepare_goodbye(99, "")


# --- subscriptions ----------------------------------------------------------------------------------


def test_subscribe_and_unsubscribe(make: Make) -> None:
    script = make().connect()
    token = script.subscribe("a/#", 4)
    script.expect(Subscribe, packet_id=1, topic_filter="a/#", concurrency=4).reply(SubAck(1))
    assert Completed(token) in script.take()
    token = script.core.unsubscribe("a/#", now=script.now)
    script.expect(Unsubscribe, topic_filter="a/#").reply(UnsubAck(script.last.packet_id))  # type: ignore[union-attr]
    assert Completed(token) in script.take()


def test_watchers_take_no_requests(make: Make) -> None:
    script = make().connect()
    script.subscribe("a")
    script.expect(Subscribe, concurrency=0)


def test_refusals_are_told(make: Make) -> None:
    script = make().connect()
    token = script.subscribe("a")
    script.expect(Subscribe).reply(SubAck(1, SubscribeReason.NOT_AUTHORIZED, "not you"))
    [failed] = [event for event in script.take() if isinstance(event, Failed)]
    assert failed.token == token
    assert isinstance(failed.error, SubscribeRefused)
    assert (failed.error.reason_code, "not you" in str(failed.error)) == (135, True)
    script.core.unsubscribe("b", now=0)
    script.expect(Unsubscribe).reply(UnsubAck(2, UnsubscribeReason.NO_SUBSCRIPTION_EXISTED))
    [failed] = [event for event in script.take() if isinstance(event, Failed)]
    assert isinstance(failed.error, UnsubscribeRefused)
    assert failed.error.reason_code == 17


def test_subscriptions_are_renewed(make: Make) -> None:
    script = make().connect()
    script.subscribe("a")
    script.subscribe("b", 2)
    script.expect(Subscribe).expect(Subscribe).reply(SubAck(1), SubAck(2, SubscribeReason.NOT_AUTHORIZED))
    waiting = script.lose().subscribe("c")
    script.connect()
    assert script.accepted.renewed == ("a",)
    script.expect(Subscribe, topic_filter="a", concurrency=0).reply(SubAck(3, SubscribeReason.NOT_AUTHORIZED))
    script.expect(Subscribe, topic_filter="c").reply(SubAck(4))
    events = script.take()
    assert any(isinstance(event, RenewalRefused) for event in events)
    assert Completed(waiting) in events
    script.lose().connect()
    assert script.accepted.renewed == ("c",)


# --- requests ---------------------------------------------------------------------------------------


def test_request_and_answer(make: Make) -> None:
    script = make().connect()
    token = script.request("t", b"14", 5, priority=True)
    request = script.expect_request(topic="t", payload=b"14", timeout_s=5, is_priority=True)
    assert script.core.request_id(token) == request.packet_id
    script.reply(answer(request.packet_id or 0, b"42", priority=True))
    assert script.take()[-1] == Completed(token, Message("t", b"42", priority=True))


def test_request_that_may_not_wait_has_no_timeout(make: Make) -> None:
    script = make().connect()
    script.request(may_wait=False)
    script.expect_request(timeout_s=None)


def test_timeouts_are_whole_seconds(make: Make) -> None:
    script = make().connect()
    for timeout_s in (0.2, 1, 1.5, 1e12):
        script.request(timeout_s=timeout_s)
    for seconds in (1, 1, 2, 0xFFFF_FFFF):
        script.expect_request(timeout_s=seconds)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (RequestState.CANCELED, RequestCanceled),
        (RequestState.DELETED, RequestDeleted),
        (RequestState.TIMED_OUT, RequestTimeout),
        (RequestState.NOT_DELIVERED, NotDelivered),
        (RequestState.ERROR, ServiceError),
    ],
)
@pytest.mark.parametrize("words", [None, "because"])
def test_ends(make: Make, state: RequestState, kind: type[RequestFailed], words: str | None) -> None:
    script = make().connect()
    token = script.request()
    script.expect_request()
    script.reply(ReqAck(1, state, reason_string=words))
    failed = script.take()[-1]
    assert isinstance(failed, Failed)
    assert failed.token == token
    assert type(failed.error) is kind
    assert (words or "t") in str(failed.error)
    script.request()
    script.expect_request(packet_id=2)


@pytest.mark.parametrize("state", [RequestState.DELIVERED, RequestState.UNKNOWN])
def test_news_that_are_no_end(make: Make, state: RequestState) -> None:
    script = make().connect()
    token = script.request()
    script.expect_request()
    script.reply(ReqAck(1, state), answer(1))
    assert script.take()[-1] == Completed(token, Message("t", b"y"))


def test_a_broker_that_never_answers(make: Make) -> None:
    script = make(keep_alive_s=0).connect()
    token = script.request(timeout_s=2)
    script.expect_request()
    deadline = script.core.deadline()
    assert deadline is not None
    assert script.now + 2 < deadline < script.now + 3
    script.take()
    assert script.wait(2).take() == []
    [failed] = script.wait(deadline - script.now).take()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestTimeout)
    assert failed.token == token
    script.expect(ReqAck, packet_id=1, state=RequestState.CANCELED)
    assert script.core.deadline() is None


def test_an_id_is_not_used_again_before_the_broker_is_done_with_it(make: Make) -> None:
    script = make(last_id=0xFFFE).connect()
    token = script.request()
    script.expect_request(packet_id=0xFFFF)
    assert script.cancel(token) is False
    script.expect(ReqAck, packet_id=0xFFFF, state=RequestState.CANCELED)
    script.take()
    script.reply(answer(0xFFFF))  # it was on its way
    assert script.take() == []
    assert script.core.takes_requests
    for _ in range(0xFFFE):
        script.request()
    assert not script.core.takes_requests
    script.reply(ReqAck(0xFFFF, RequestState.UNKNOWN))
    assert script.core.takes_requests


def test_cancel_that_takes_effect(make: Make) -> None:
    script = make().connect()
    token = script.request(priority=True)
    assert script.cancel(token) is False
    script.expect_request()  # the cancel does not overtake it
    script.expect(ReqAck, state=RequestState.CANCELED, response_destination=None)
    script.take()
    script.reply(ReqAck(1, RequestState.CANCELED))
    assert script.take() == []
    assert script.cancel(token) is False
    script.expect_nothing()


def test_requests_wait_for_a_connection(make: Make) -> None:
    script = make()
    first, second = script.request(payload=b"1"), script.request(payload=b"2", timeout_s=1)
    assert script.cancel(first)
    script.connect()
    assert script.accepted.requests == 0  # not again
    request = script.expect_request(payload=b"2")
    script.expect_nothing().reply(answer(request.packet_id or 0))
    assert script.take()[-1] == Completed(second, Message("t", b"y"))


def test_request_without_a_connection_ends_in_time(make: Make) -> None:
    script = make()
    token = script.request(timeout_s=1)
    [failed] = script.wait(2).take()
    assert isinstance(failed, Failed)
    assert (failed.token, "not sent" in str(failed.error)) == (token, True)
    script.connect().expect_nothing()


def test_unfinished_requests_are_sent_again_under_the_same_id(make: Make) -> None:
    script = make().connect()
    tokens = [script.request(payload=b"%d" % number, timeout_s=10) for number in range(3)]
    first = [script.expect_request() for _ in tokens]
    script.reply(answer(2))
    script.cancel(tokens[2])
    script.now += 4.5
    script.lose().connect()
    assert script.accepted.requests == 1
    again = script.expect_request(timeout_s=6)
    assert (again.packet_id, again.payload) == (first[0].packet_id, first[0].payload)
    # Whether the broker heard of it is not known.
    script.expect(ReqAck, packet_id=3, state=RequestState.CANCELED).expect_nothing()


def test_ends_of_an_earlier_run_are_told_as_such(make: Make) -> None:
    script = make(clean_start=False, last_id=100).connect()
    script.take()
    script.reply(answer(7), ReqAck(8, RequestState.TIMED_OUT, reason_string="late"))
    unclaimed, other = script.take()
    assert unclaimed == Unclaimed(7, Message("", b"y"))
    assert isinstance(other, Unclaimed)
    assert isinstance(other.end, RequestTimeout)


# --- services ---------------------------------------------------------------------------------------


def test_requests_come_in_and_answers_go_out(make: Make) -> None:
    script = make().connect()
    script.take()
    script.reply(given("t", b"14", 7, "\x01user\x01asker"))
    [requested] = script.take()
    assert requested == Requested(Message("t", b"14"), ReturnAddress("\x01user\x01asker", 7))
    assert isinstance(requested, Requested)
    script.core.answer(requested.answer_to, Message("t", priority=True), b"42", now=0)
    script.expect(Publish)
    assert script.last == Publish(
        None, b"42", is_response=True, is_priority=True, response_destination="\x01user\x01asker", packet_id=7
    )
    script.core.fail(requested.answer_to, requested.message, "no" * 5000, now=0)
    script.expect(ReqAck, packet_id=7, state=RequestState.ERROR, response_destination="\x01user\x01asker")
    assert len(script.last.reason_string or "") == 4096  # type: ignore[union-attr]


def test_cancel_reaches_the_service_and_late_answers_are_ignored(make: Make) -> None:
    script = make().connect()
    script.take()
    script.reply(ReqAck(7, RequestState.CANCELED, "asker", "t"), ReqAck(7, RequestState.UNKNOWN, "asker", "t"))
    assert script.take() == [Withdrawn(ReturnAddress("asker", 7))]


def test_answers_without_a_connection_are_dropped(make: Make) -> None:
    script = make()
    to = ReturnAddress("asker", 7)
    script.core.answer(to, Message("t"), b"", now=0)
    script.core.fail(to, Message("t"), "no", now=0)
    script.connect().expect_nothing()


# --- what the broker does not take ------------------------------------------------------------------


def test_large_messages_are_confirmed_by_a_ping(make: Make) -> None:
    script = make().connect()
    token = script.publish("a", LARGE)
    assert token
    script.expect(Publish).expect(PingReq)
    script.take()
    script.reply(PingResp())
    assert script.take() == [Completed(token)]


def test_a_message_that_is_too_large_is_refused_and_not_sent_again(make: Make) -> None:
    script = make().connect()
    token = script.publish("a", LARGE)
    script.expect(Publish).expect(PingReq).reply(ERROR)
    assert script.ended.may_retry
    script.lose().take()
    assert script.core.deadline() == 0.0
    [failed] = script.wait(0).take()
    assert isinstance(failed, Failed)
    assert failed.token == token
    assert isinstance(failed.error, PublishRefused)
    assert "larger than 65536" in str(failed.error)
    script.connect().expect_nothing()


def test_a_large_message_under_way_when_the_connection_broke(make: Make) -> None:
    script = make().connect()
    script.publish("a", LARGE)
    script.lose().take()
    [failed] = script.wait(0).take()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ConnectionLost)


def test_a_request_that_is_too_large_is_not_sent_for_ever(make: Make) -> None:
    script = make().connect()
    other = script.request(payload=b"small")
    token = script.request(payload=LARGE)
    script.expect_request()
    script.expect_request(payload=LARGE)
    script.expect(PingReq).reply(ERROR).lose()
    assert not [event for event in script.wait(0).take() if isinstance(event, Failed)]
    script.connect()  # a chance more: it may have been another one
    script.expect_request(payload=b"small")
    script.expect(PingReq).expect(Publish, payload=LARGE).expect(PingReq)
    script.reply(PingResp(), ERROR).lose().take()
    [failed] = script.wait(0).take()
    assert isinstance(failed, Failed)
    assert failed.token == token
    assert isinstance(failed.error, NotDelivered)
    assert "larger than 65536" in str(failed.error)
    script.connect()
    assert script.expect_request().payload == b"small"
    script.reply(answer(1))
    assert Completed(other, Message("t", b"y")) in script.take()


def test_the_broker_shutting_down_is_nobodys_fault(make: Make) -> None:
    script = make().connect()
    tokens = [script.request(payload=payload) for payload in (b"1", LARGE, b"2")]
    script.reply(Disconnect(DisconnectReason.UNSPECIFIED, "server shutting down")).lose().connect()
    assert script.accepted.requests == 3
    requests = []
    for _ in tokens:
        requests.append(script.expect_request())
        script.expect(PingReq).reply(PingResp())
    script.reply(*(answer(request.packet_id or 0) for request in requests))
    assert [event.token for event in script.take() if isinstance(event, Completed)] == tokens


def test_a_connection_that_breaks_each_time_without_a_word(make: Make) -> None:
    script = make().connect()
    token = script.request(payload=LARGE, timeout_s=1000)
    for _ in range(3):
        assert not [event for event in script.wait(0).take() if isinstance(event, Failed)]
        script.expect_request()
        script.lose().connect()
    [failed] = [event for event in script.wait(0).take() if isinstance(event, Failed)]
    assert failed.token == token
    assert "too large?" in str(failed.error)
    script.expect_nothing()


def test_an_answer_that_is_too_large_becomes_an_error(make: Make) -> None:
    script = make().connect()
    script.reply(given())
    script.core.answer(ReturnAddress("asker", 7), Message("t"), LARGE, now=0)
    script.expect(Publish).expect(PingReq).reply(ERROR).lose().connect().take()
    script.reply(given())  # the broker gives it again
    assert script.take() == []
    script.expect(ReqAck, packet_id=7, state=RequestState.ERROR)
    assert "larger than 65536" in (script.last.reason_string or "")  # type: ignore[union-attr]


def test_bulks_get_smaller_when_the_broker_finds_something_wrong(make: Make) -> None:
    script = make().connect()
    for _ in range(5):
        script.reply(ERROR).lose().connect()
    for _ in range(10):
        script.publish("a")
    for _ in range(10):
        script.expect(Publish)
    assert script.bulks == 0


def test_more_than_a_message_can_hold(make: Make) -> None:
    """No broker is asked for that."""
    script = make().connect()
    payload = bytes(MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(UsageError, match="268000001 bytes"):
        script.publish("a", payload)
    with pytest.raises(UsageError, match="268000001 bytes"):
        script.request("a", payload)
    script.expect_nothing()
    script.core.answer(ReturnAddress("asker", 7), Message("t"), payload, now=0)
    script.expect(ReqAck, state=RequestState.ERROR)


# --- keep alive -------------------------------------------------------------------------------------


def test_pings_every_half_and_gives_up_after_5_s(make: Make) -> None:
    """TB-06"""
    script = make(keep_alive_s=60).connect()
    script.take()
    assert script.core.deadline() == script.now + 30
    script.wait(30).expect(PingReq).reply(PingResp()).wait(29.9).expect_nothing()
    script.wait(0.1).expect(PingReq)
    assert script.wait(4.9).take() == []
    script.wait(0.1)
    assert "pings" in str(script.ended.error)
    assert script.ended.may_retry


def test_keep_alive_0_never_pings(make: Make) -> None:
    script = make(keep_alive_s=0).connect()
    assert script.core.deadline() is None
    script.wait(1e6).expect_nothing()


@pytest.mark.parametrize("reason", list(DisconnectReason))
def test_the_broker_says_goodbye(make: Make, reason: DisconnectReason) -> None:
    script = make().connect().reply(Disconnect(reason, "words"))
    error, may_retry, _ = script.ended
    assert isinstance(error, ConnectionLost)
    assert (error.reason_code, may_retry) == (reason, True)
    assert "words" in str(error)
