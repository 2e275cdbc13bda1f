"""One connection: its clocks, its rate, who may enter and what they may do, and how it ends."""

from collections.abc import Callable
from typing import Any

import pytest

from polybus.broker.access import Access, Challenge, Credentials, Exchange, Verdict
from polybus.broker.limits import Limits
from polybus.session.intake import State
from polybus.session.mqtt import MqttOptions
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    ConnectReturnCode,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.session.harness import Peer, World, check_accounts, connect_packet


def total(peer: Peer) -> int:
    return len(peer.payloads())


# -- clocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [b"", b"\x10", b"\x10\x0c\0\x04MQTT"])
def test_a_connect_must_come_in_time(begin: bytes) -> None:
    world = World(Limits(connect_timeout_s=5))
    peer = world.open()
    peer.feed(begin)
    world.advance(4.9)
    assert not peer.is_closed
    world.advance(0.2)
    assert peer.is_closed
    assert peer.packets() == []
    assert world.broker.timers.deadline() is None


def test_bytes_that_drip_in_do_not_move_the_deadline() -> None:
    world = World(Limits(connect_timeout_s=5))
    peer = world.open()
    for byte in encode(connect_packet("c"), V311)[:-1]:
        peer.feed(bytes((byte,)))
        world.advance(0.5)
    assert peer.is_closed


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_keep_alive(version: int) -> None:
    world = World()
    peer = world.connect("c", version, keep_alive_s=10)
    for _ in range(5):
        world.advance(14)
        peer.send(PingReq())
        assert peer.take(PingResp)
    world.advance(14.9)
    assert not peer.is_closed
    world.advance(0.2)
    assert peer.is_closed
    codes = [p.reason_code for p in peer.take(Disconnect)]
    assert codes == ([ReasonCode.KEEP_ALIVE_TIMEOUT] if version == V5 else [])


def test_keep_alive_uses_one_timer_however_many_packets_come() -> None:
    world = World()
    peer = world.connect("c", keep_alive_s=10)
    for _ in range(500):
        peer.send(PingReq())
        world.advance(0.1)
    assert len(world.broker.timers._heap) <= 2


def test_no_keep_alive_means_no_timer() -> None:
    world = World()
    peer = world.connect("c", keep_alive_s=0)
    world.advance(1_000_000)
    assert not peer.is_closed


def test_the_server_may_shorten_the_keep_alive() -> None:
    world = World(Limits(keep_alive_s=10))
    peer = world.open(V5)
    peer.send(connect_packet("c", V5, keep_alive_s=1000))
    assert peer.take(ConnAck)[0].properties.server_keep_alive_s == 10
    world.advance(16)
    assert peer.is_closed


# -- the publish rate ----------------------------------------------------------------------------------


def test_a_burst_of_two_seconds_worth_is_free_from_the_start() -> None:
    world = World(Limits(publish_rate_per_client=10))
    peer = world.connect("p")
    peer.publish("t", *[b""] * 20)
    assert not peer.port.is_paused
    peer.publish("t", b"")
    assert peer.port.is_paused


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_over_its_rate_is_read_later(qos: int) -> None:
    """Nothing is lost: what was read before the pause waits, and goes on after it."""
    world = World(Limits(publish_rate_per_client=10))
    watching = world.connect("s")
    watching.subscribe("t", qos=0)
    peer = world.connect("p")
    world.advance(10)
    data = b"".join(
        encode(Publish("t", b"%d" % n, qos, packet_id=n if qos else 0), V311) + encode(PingReq(), V311)
        for n in range(1, 101)
    )
    peer.feed(data)
    world.settle()
    assert peer.port.is_paused
    assert total(watching) == 21
    seconds = 0
    seen = 21
    while seen < 100:
        world.advance(1)
        seconds += 1
        new = total(watching)
        assert new <= 11
        seen += new
    assert 7 <= seconds <= 10
    world.advance(5)
    assert not peer.port.is_paused
    assert len(peer.take(PingResp)) == 100


def test_other_clients_are_not_paused() -> None:
    world = World(Limits(publish_rate_per_client=10))
    loud, quiet = world.connect("loud"), world.connect("quiet")
    world.advance(10)
    loud.publish("t", *[b""] * 100)
    quiet.publish("t", *[b""] * 10)
    assert loud.port.is_paused
    assert not quiet.port.is_paused


def test_a_pause_of_ours_is_not_a_silence_of_the_client() -> None:
    """Keep alive counts what the client sends, and we do not read."""
    world = World(Limits(publish_rate_per_client=10))
    peer = world.connect("p", keep_alive_s=10)
    peer.publish("t", *[b""] * 1000)
    assert peer.port.is_paused
    world.advance(60)
    assert not peer.is_closed


def test_a_transport_that_is_free_again_does_not_end_the_pause() -> None:
    world = World(Limits(publish_rate_per_client=10))
    peer = world.connect("p")
    peer.publish("t", *[b""] * 1000)
    assert peer.port.is_paused
    peer.block()
    peer.unblock()
    assert peer.port.is_paused


def test_nothing_is_left_of_a_paused_connection() -> None:
    world = World(Limits(publish_rate_per_client=1))
    for _ in range(10):
        peer = world.connect("p")
        peer.publish("t", *[b""] * 5000)
        peer.drop()
    assert len(world.broker.timers._targets) <= 1


# -- a peer that does not read -------------------------------------------------------------------------


FLOODS: dict[str, Callable[[int], Any]] = {
    "PINGREQ": lambda n: PingReq(),
    "PUBLISH QoS 1": lambda n: Publish("t", b"", 1, packet_id=n),
    "PUBLISH QoS 2": lambda n: Publish("t", b"", 2, packet_id=1, dup=True),
    "PUBREL": PubRel,
    "PUBREC": PubRec,
    "SUBSCRIBE": lambda n: Subscribe(n, (SubscriptionRequest("t"),)),
}


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("name", FLOODS)
def test_a_peer_that_sends_and_never_reads_is_paused(name: str, version: int) -> None:
    """Its replies must not gather without end; when it reads again, it is read again."""
    world = World(Limits(outbox_bytes_per_connection=4_000))
    peer = world.connect("p", version)
    peer.block()
    for _ in range(40):
        if peer.port.is_paused:
            break
        peer.send(*(FLOODS[name](n) for n in range(1, 101)))
    assert peer.port.is_paused
    assert peer.link.backlog_bytes <= 10_000
    check_accounts(world.broker)
    peer.unblock()
    assert not peer.port.is_paused
    assert world.broker.dispatcher.backlog_bytes == 0
    peer.packets()
    peer.send(PingReq())
    assert peer.take(PingResp)


def test_the_last_word_to_a_peer_that_does_not_read() -> None:
    world = World()
    peer = world.connect("p", V5)
    peer.subscribe("t")
    peer.block()
    world.connect("q").publish("t", b"waits")
    peer.feed(b"\xf0\0")
    world.settle()
    assert peer.is_closed
    assert [type(p) for p in peer.packets()] == [Disconnect]
    assert world.broker.dispatcher.backlog_bytes == 0


# -- who may enter -------------------------------------------------------------------------------------


class Later:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Credentials, Callable[[Verdict], None]]] = []

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        self.asked.append((credentials, answer))

    def decide(self, **verdict: Any) -> None:
        asked, self.asked = self.asked, []
        for _, answer in asked:
            answer(Verdict(**verdict))


class AtOnce:
    def __init__(self, **verdict: Any) -> None:
        self.verdict = Verdict(**verdict)

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        answer(self.verdict)


@pytest.mark.parametrize("glued", [True, False])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_late_verdict_with_data_already_there(glued: bool, version: int) -> None:
    later = Later()
    world = World(access=Access(authenticator=later))
    watching = world.open()
    watching.feed_packets(connect_packet("s"))
    later.decide(allowed=True)
    watching.subscribe("t", qos=1)
    peer = world.open(version)
    follow = [Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2), PingReq()]
    if glued:
        peer.send(connect_packet("p", version, user_name="u", password=b"secret"), *follow)
    else:
        peer.send(connect_packet("p", version, user_name="u", password=b"secret"))
        for byte in b"".join(encode(p, version) for p in follow):
            peer.feed(bytes((byte,)))  # the transport had read it already
    assert peer.port.is_paused
    assert peer.packets() == []
    assert watching.payloads() == []
    later.decide(allowed=True, user="u")
    world.settle()
    assert not peer.port.is_paused
    assert isinstance(peer.packets()[0], ConnAck)
    assert watching.payloads() == [b"1", b"2"]
    assert peer.link.user == "u"
    assert "secret" not in repr(peer.link._connect)


def test_a_refusal_that_comes_late() -> None:
    later = Later()
    world = World(access=Access(authenticator=later))
    for version, code in ((V311, 4), (V5, ReasonCode.BAD_USER_NAME_OR_PASSWORD)):
        peer = world.open(version)
        peer.send(connect_packet("p", version), Publish("t", b""))
        later.decide(allowed=False, bad_credentials=True)
        world.settle()
        assert peer.is_closed
        assert [p.reason_code for p in peer.take(ConnAck)] == [code]
        assert world.broker.stats.messages_received == 0
        assert not world.broker.registry.sessions


def test_a_verdict_after_the_end() -> None:
    later = Later()
    world = World(Limits(connect_timeout_s=5), access=Access(authenticator=later))
    lost, slow = world.open(), world.open()
    lost.send(connect_packet("a"))
    slow.send(connect_packet("b"))
    lost.drop()
    world.advance(6)
    assert not slow.is_closed, "it has done its part in time"
    world.advance(60)
    assert slow.is_closed
    later.decide(allowed=True)
    world.settle()
    assert not world.broker.registry.sessions
    assert world.broker.timers.deadline() is None


def test_a_verdict_at_once_goes_on_with_what_is_there() -> None:
    world = World(access=Access(authenticator=AtOnce(allowed=True)))
    peer = world.open()
    peer.send(connect_packet("p"), PingReq())
    assert [type(p) for p in peer.packets()] == [ConnAck, PingResp]


def test_the_limit_of_connections_holds_for_those_who_were_waiting_too() -> None:
    later = Later()
    world = World(Limits(connections=2), access=Access(authenticator=later))
    peers = [world.open(V5) for _ in range(5)]
    for n, peer in enumerate(peers):
        peer.send(connect_packet(f"c{n}", V5))
    later.decide(allowed=True)
    world.settle()
    assert world.broker.registry.connected == 2


class Failing:
    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        raise RuntimeError("no answer today")

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        raise RuntimeError("no answer today")


def test_a_fault_behind_a_late_verdict_costs_one_connection() -> None:
    """It must not escape to whoever brings the verdict: that is the event loop."""
    later = Later()
    world = World(access=Access(authenticator=later, authorizer=Failing()))
    peer = world.open(V5)
    peer.send(connect_packet("p", V5, will=Will("t", b"")))
    later.decide(allowed=True)
    world.settle()
    assert peer.is_closed


# -- enhanced authentication ---------------------------------------------------------------------------


class Sums:
    """A small challenge-response method: three sums, one after the other."""

    def begin(self, client_id: str) -> Exchange:
        return _SumsExchange()


class _SumsExchange:
    def __init__(self) -> None:
        self.round = 0

    def step(self, data: bytes | None) -> Challenge | Verdict:
        if self.round and data != b"%d" % (2 * self.round):
            return Verdict(allowed=False, bad_credentials=True, reason="wrong sum")
        self.round += 1
        if self.round == 4:
            return Verdict(allowed=True, user="counter", data=b"well done")
        return Challenge(b"%d+%d" % (self.round, self.round))


SUMS = Access(methods={"sums": Sums()})


def auth(data: bytes, code: int = ReasonCode.CONTINUE_AUTHENTICATION, method: str = "sums") -> Auth:
    return Auth(code, Properties(authentication_method=method, authentication_data=data))


def solve(peer: Peer) -> list[bytes]:
    """Answer every challenge; what was asked."""
    asked: list[bytes] = []
    while challenges := peer.take(Auth):
        assert len(challenges) == 1
        if challenges[0].reason_code == ReasonCode.SUCCESS:
            asked.append(challenges[0].properties.authentication_data or b"")
            break
        question = challenges[0].properties.authentication_data or b""
        asked.append(question)
        peer.send(auth(b"%d" % sum(map(int, question.split(b"+")))))
    return asked


def enter(world: World, client_id: str = "c") -> Peer:
    peer = world.open(V5)
    peer.send(connect_packet(client_id, V5, authentication_method="sums"))
    return peer


def test_rounds_of_challenge_and_response() -> None:
    world = World(access=SUMS)
    peer = enter(world)
    assert peer.link.state == State.AUTHENTICATING
    assert solve(peer) == [b"1+1", b"2+2", b"3+3"]
    connack = peer.take(ConnAck)[0]
    assert connack.properties.authentication_method == "sums"
    assert connack.properties.authentication_data == b"well done"
    assert peer.link.user == "counter"


def test_again_while_connected() -> None:
    world = World(access=SUMS)
    peer = enter(world)
    solve(peer)
    peer.packets()
    peer.send(auth(b"", ReasonCode.RE_AUTHENTICATE))
    peer.feed_packets(PingReq())
    assert solve(peer) == [b"1+1", b"2+2", b"3+3", b"well done"]
    assert peer.take(PingResp), "other packets may flow meanwhile"


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (auth(b"7"), ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        (auth(b"2", method="other"), ReasonCode.PROTOCOL_ERROR),
        (auth(b"2", ReasonCode.RE_AUTHENTICATE), ReasonCode.PROTOCOL_ERROR),
        (Publish("t", b""), ReasonCode.PROTOCOL_ERROR),
        (PingReq(), ReasonCode.PROTOCOL_ERROR),
        (connect_packet("c", V5), ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_what_ends_an_exchange(packet: Any, code: int) -> None:
    world = World(access=SUMS)
    peer = enter(world)
    peer.take(Auth)
    peer.send(packet)
    assert peer.is_closed
    assert [p.reason_code for p in peer.take(ConnAck)] == [code]
    assert not world.broker.registry.sessions
    assert world.broker.timers.deadline() is None


def test_goodbye_in_the_middle_of_an_exchange() -> None:
    world = World(access=SUMS)
    peer = enter(world)
    peer.take(Auth)
    peer.send(Disconnect())
    assert peer.is_closed
    assert peer.packets() == []


def test_a_wrong_answer_while_connected() -> None:
    world = World(access=SUMS)
    peer = enter(world)
    solve(peer)
    peer.packets()
    peer.send(auth(b"", ReasonCode.RE_AUTHENTICATE), auth(b"5"))
    assert peer.is_closed
    assert [p.reason_code for p in peer.take(Disconnect)] == [ReasonCode.NOT_AUTHORIZED]


def test_an_exchange_must_end_in_time() -> None:
    world = World(Limits(connect_timeout_s=5), access=SUMS)
    peer = enter(world)
    for _ in range(2):
        world.advance(2)
        peer.send(auth(b"%d" % (2 if _ == 0 else 4)))
    world.advance(2)
    assert peer.is_closed


def test_an_unknown_method() -> None:
    world = World(access=SUMS)
    peer = world.open(V5)
    peer.send(connect_packet("c", V5, authentication_method="magic"))
    assert [p.reason_code for p in peer.take(ConnAck)] == [ReasonCode.BAD_AUTHENTICATION_METHOD]
    assert peer.is_closed


def test_challenges_that_were_never_read_are_let_go() -> None:
    world = World(access=SUMS)
    peer = world.open(V5)
    peer.block()
    peer.send(connect_packet("c", V5, authentication_method="sums"))
    peer.drop()
    assert world.broker.dispatcher.backlog_bytes == 0


# -- what they may do ----------------------------------------------------------------------------------


class Fenced:
    def __init__(self) -> None:
        self.asked = 0

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        self.asked += 1
        return not topic.startswith("secret")

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        return not topic_filter.startswith("secret")


@pytest.mark.parametrize("count", [1, 5], ids=["single", "run"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_publish_that_is_not_allowed(count: int, qos: int, version: int) -> None:
    """5.0 says so in the acknowledgement, 3.1.1 cannot; nobody gets it, and the connection stays."""
    world = World(access=Access(authorizer=Fenced()))
    watching = world.connect("s", V5)
    watching.subscribe("#")
    peer = world.connect("p", version)
    for topic in ("secret/x", "open"):
        peer.send(*(Publish(topic, b"", qos, packet_id=n + 1 if qos else 0) for n in range(count)))
    replies = [p for p in peer.packets() if isinstance(p, PubAck | PubRec)]
    refusal = ReasonCode.NOT_AUTHORIZED if version == V5 else 0
    if qos:
        assert [p.reason_code for p in replies] == [refusal] * count + [0] * count
    else:
        assert replies == []
    assert [p.topic for p in watching.take(Publish)] == ["open"] * count
    assert not peer.is_closed
    if qos == 2:
        assert peer.session.received == set(range(1, count + 1)), "a refused id is free at once"


def test_allowed_and_forbidden_neighbours() -> None:
    world = World(access=Access(authorizer=Fenced()))
    watching = world.connect("s")
    watching.subscribe("#")
    peer = world.connect("p")
    topics = ["open", "secret", "open", "secret", "secret", "open"]
    peer.send(*(Publish(topic, b"%d" % n) for n, topic in enumerate(topics)))
    assert watching.payloads() == [b"0", b"2", b"5"]


def test_permission_is_asked_once_a_topic_and_kept_for_a_bounded_number() -> None:
    fenced = Fenced()
    world = World(access=Access(authorizer=fenced))
    peer = world.connect("p")
    for _ in range(50):
        peer.publish("t", b"")
    assert fenced.asked == 1
    for n in range(3000):
        peer.publish(f"t/{n}", b"")
    assert peer.link.permissions is not None
    assert len(peer.link.permissions) <= 1024


@pytest.mark.parametrize("version", [V311, V5])
def test_a_subscription_that_is_not_allowed(version: int) -> None:
    world = World(access=Access(authorizer=Fenced()))
    peer = world.connect("s", version)
    refusal = ReasonCode.NOT_AUTHORIZED if version == V5 else 0x80
    assert peer.subscribe("secret/#", "open", qos=1) == (refusal, 1)
    assert peer.subscribe("$share/g/secret") == (refusal,)
    assert list(peer.session.subscriptions) == ["open"]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_will_that_is_not_allowed(version: int) -> None:
    world = World(access=Access(authorizer=Fenced()))
    peer = world.open(version)
    peer.send(connect_packet("c", version, will=Will("secret/x", b"")))
    assert [p.reason_code for p in peer.take(ConnAck)] == [ReasonCode.NOT_AUTHORIZED if version == V5 else 5]
    assert peer.is_closed
    assert not world.broker.registry.sessions


def test_a_fault_in_authorization_costs_one_connection() -> None:
    world = World(access=Access(authorizer=Failing()))
    watching = world.connect("w")
    for packet in (
        Publish("t", b""),
        Publish("t", b"", 1, packet_id=1),
        Subscribe(1, (SubscriptionRequest("t"),)),
    ):
        peer = world.connect("p", V5)
        peer.send(packet)
        assert peer.is_closed
        assert peer.take(Disconnect)[0].reason_code == ReasonCode.UNSPECIFIED_ERROR
    assert not watching.is_closed


def test_a_limit_of_subscriptions() -> None:
    world = World(Limits(subscriptions_per_session=2))
    peer = world.connect("s", V5)
    assert peer.subscribe("a", "b", "c") == (0, 0, ReasonCode.QUOTA_EXCEEDED)
    assert peer.subscribe("a", qos=1) == (1,)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (V31, ConnectReturnCode.IDENTIFIER_REJECTED),
        (V311, ConnectReturnCode.IDENTIFIER_REJECTED),
        (V5, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
    ],
)
def test_a_limit_of_client_id_bytes(version: int, code: int) -> None:
    world = World(Limits(client_id_bytes=24))
    for name, expected in (("ä" * 12, 0), ("ä" * 12 + "x", code)):
        peer = world.open(version)
        peer.send(connect_packet(name, version))
        (answer,) = peer.take(ConnAck)
        assert answer.reason_code == expected
        assert peer.is_closed == bool(expected)
        if expected and version == V5:
            assert "25 bytes; at most 24" in str(answer.properties.reason_string)
    assert list(world.broker.registry.sessions) == ["ä" * 12]


@pytest.mark.parametrize("kind", ["publish", "subscribe"])
def test_a_limit_of_topic_bytes(kind: str) -> None:
    world = World(Limits(topic_bytes=100))
    peer = world.connect("p", V5)
    for size in (100, 101):
        topic = "x" * size
        if kind == "publish":
            peer.publish(topic, b"")
            assert peer.is_closed == (size > 100)
        else:
            assert (peer.subscribe(topic)[0] >= 0x80) == (size > 100)


# -- ids and ends --------------------------------------------------------------------------------------


def test_assigned_ids_are_told_and_may_be_forbidden() -> None:
    world = World()
    peer = world.open(V5)
    peer.send(connect_packet("", V5))
    assert peer.take(ConnAck)[0].properties.assigned_client_id == "assigned-1"
    world = World(options=MqttOptions(allow_zero_length_client_id=False))
    peer = world.open(V5)
    peer.send(connect_packet("", V5))
    assert peer.take(ConnAck)[0].reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_nothing_of_a_connection_stays_with_the_broker() -> None:
    world = World()
    for n in range(20):
        for version in (V31, V311, V5):
            peer = world.connect(f"c{n}", version, keep_alive_s=30, will=Will("w", b"", 1))
            peer.subscribe("w", "#", qos=2)
            peer.publish("t", b"1", b"2", qos=2)
            peer.block()
            if n % 2:
                peer.drop()
            else:
                peer.send(Disconnect())
    world.advance(1)
    broker = world.broker
    assert not broker.registry.sessions
    assert broker.subscriptions.count == broker.registry.connected == broker.memory_bytes() == 0
    assert not broker.timers._targets
    assert not broker.awaiting
    assert not broker.dispatcher.dirty
    assert not broker.dispatcher.unfinished


def test_a_commit_that_is_done_after_the_connection_ended() -> None:
    """A durable store calls back later: the acknowledgement of a client that left goes nowhere."""

    class Slow:
        def __init__(self) -> None:
            self.waiting: list[Callable[[], None]] = []

        def commit(self, done: Callable[[], None]) -> None:
            self.waiting.append(done)

    slow = Slow()
    world = World(journal=slow)
    gone, here = world.connect("gone"), world.connect("here")
    for peer in (gone, here):
        peer.publish("t", b"", qos=1)
        assert peer.take(PubAck) == []
    gone.drop()
    for done in slow.waiting:
        done()
    world.settle()
    assert here.take(PubAck) == [PubAck(1)]
    assert here.link.unacknowledged == 0


SECOND_CONNECTS = {
    "unknown version": b"\x10\x0a\0\x04MQTT\x25\x02\0\0",
    "unknown protocol": b"\x10\x0a\0\x04HTTP\x05\x02\0\0",
    "lawful": encode(connect_packet("c", V5), V5),
    "3.1 without id": b"\x10\x0e\0\x06MQIsdp\x03\x02\0\0\0\0",
}


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("name", SECOND_CONNECTS)
def test_a_second_connect_ends_the_connection(name: str, version: int) -> None:
    """[MQTT-3.1.0-2] whatever is wrong with it: codes that only CONNACK has do not fit a DISCONNECT."""
    world = World()
    peer = world.connect("c", version)
    peer.feed(SECOND_CONNECTS[name])
    world.settle()
    assert peer.is_closed
    codes = [p.reason_code for p in peer.packets() if isinstance(p, Disconnect)]
    assert codes == ([ReasonCode.PROTOCOL_ERROR] if version == V5 else [])


@pytest.mark.parametrize(
    "data", [b"\x30\x04\0\x01+\0", b"\x82\x07\0\x01\0\0\x01#\0", b"\x82\x09\0\x01\0\0\x03a#b\0"]
)
def test_any_error_while_authenticating_has_an_answer_that_fits(data: bytes) -> None:
    world = World(access=SUMS)
    peer = enter(world)
    peer.take(Auth)
    peer.feed(data)
    world.settle()
    assert peer.is_closed
    assert all(p.reason_code >= 0x80 for p in peer.take(ConnAck))
