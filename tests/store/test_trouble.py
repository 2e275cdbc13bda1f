"""A store that cannot write: what is refused meanwhile, what goes on, and how it ends (OP-01)."""

import queue
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from polybus.broker.ledger import Ledger
from polybus.broker.message import Message
from polybus.store.state import STATE_FILE, StateFile
from polybus.store.writer import StateWriter
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Properties,
    PubAck,
    Publish,
    PubRec,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.e2e.processes import PATIENCE_S
from tests.session.harness import Peer, connect_packet
from tests.store.lasting import LastingWorld

QUOTA = ReasonCode.QUOTA_EXCEEDED


class Loop:
    """Where the writer calls back: on the test's own thread, when it looks."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.calls.get(timeout=PATIENCE_S)()


class FaultyDisk:
    """What a disk does to the end of each transaction, until it is mended."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.attempts = 0

    def __call__(self) -> None:
        self.attempts += 1
        if self.error is not None:
            raise sqlite3.OperationalError(self.error)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def file(tmp_path: Path, disk: FaultyDisk) -> StateFile:
    return StateFile(tmp_path / STATE_FILE, before_commit=disk)


class TestWriter:
    @pytest.mark.parametrize("error", ["database or disk is full", "disk I/O error"])
    def test_it_tries_again_until_it_works(
        self, file: StateFile, disk: FaultyDisk, error: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop, ledger, troubles, done = Loop(), Ledger(is_durable=True), [], []
        writer = StateWriter(file, ledger, loop.calls.put, on_trouble=troubles.append, retry_s=0.001)
        disk.error = error
        ledger.retained_changed("t", Message("t", b"1", origin="p"))
        writer.commit(lambda: done.append(1))
        loop.run_until(lambda: disk.attempts > 3 or bool(done))  # it tries and tries
        assert (troubles, done) == ([error], [])
        ledger.retained_changed("t", Message("t", b"2", origin="p"))
        writer.commit(lambda: done.append(2))
        disk.error = None
        loop.run_until(lambda: bool(done))
        assert (troubles, done) == ([error, ""], [1])
        writer.commit(lambda: done.append(3))
        loop.run_until(lambda: len(done) == 3)
        assert done == [1, 2, 3]
        writer.close()
        told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert told == [
            "durable state cannot be written, new durable work is refused",
            "durable state can be written again",
        ]

    def test_closing_writes_what_could_not_be_written_before(self, file: StateFile, disk: FaultyDisk) -> None:
        loop, ledger, troubles = Loop(), Ledger(is_durable=True), []
        writer = StateWriter(file, ledger, loop.calls.put, on_trouble=troubles.append, retry_s=60.0)
        disk.error = "disk I/O error"
        for number in (1, 2):
            ledger.retained_changed(f"t{number}", Message(f"t{number}", b"x", origin="p"))
            writer.commit(lambda: None)
        loop.run_until(lambda: bool(troubles))
        disk.error = None
        writer.close()
        again = StateFile(file.path)
        assert len(list(again.begin(0.0).retained)) == 2
        again.close()

    def test_closing_says_that_it_could_not(self, file: StateFile, disk: FaultyDisk) -> None:
        ledger = Ledger(is_durable=True)
        writer = StateWriter(file, ledger, Loop().calls.put)
        ledger.retained_changed("t", Message("t", b"x", origin="p"))
        disk.error = "database or disk is full"
        with pytest.raises(sqlite3.OperationalError, match="full"):
            writer.close()

    def test_commits_that_wait_become_one(self, file: StateFile) -> None:
        loop, ledger, done = Loop(), Ledger(is_durable=True), []
        writer = StateWriter(file, ledger, loop.calls.put)
        for number in range(10):
            ledger.retained_changed("t", Message("t", b"%d" % number, origin="p"))
            writer.commit(lambda n=number: done.append(n))  # type: ignore[misc]
        loop.run_until(lambda: bool(done))
        assert done == [0]
        writer.commit(lambda: done.append(10))
        loop.run_until(lambda: len(done) > 1)
        assert done == list(range(11))
        writer.close()


# -- what clients see of it -------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> LastingWorld:
    world = LastingWorld(tmp_path)
    world.connect("kept", V5, keeps=True).subscribe("kept", qos=2)
    world.connect("plain", V5).subscribe("plain", qos=2)
    return world


def begin_trouble(world: LastingWorld) -> None:
    """As the writer does: a batch does not get through, and nothing behind it."""
    world.disk.is_slow = True
    world.stamp()
    world.advance(1)
    assert world.disk.is_writing
    world.broker.set_trouble("disk full")
    world.stamp()


def end_trouble(world: LastingWorld) -> None:
    world.broker.set_trouble("")
    world.disk.is_slow = False
    world.disk.write()
    world.settle()
    world.flush()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_would_have_to_be_kept_is_refused_at_once(world: LastingWorld, qos: int) -> None:
    publisher = world.connect("p", V5)
    begin_trouble(world)
    publisher.send(*(Publish("kept", b"no", qos, packet_id=n) for n in (1, 2)))
    kind: type[PubAck] | type[PubRec] = PubAck if qos == 1 else PubRec
    acks = publisher.take(kind)
    assert [(a.packet_id, a.reason_code) for a in acks] == [(1, QUOTA), (2, QUOTA)]
    assert acks[0].properties.reason_string == "the broker cannot store anything just now"
    publisher.send(Publish("retained", b"no", qos, retain=True, packet_id=3))
    assert [a.reason_code for a in publisher.take(kind)] == [QUOTA]
    end_trouble(world)
    publisher.publish("kept", b"yes", qos=qos)
    world = world.kill()
    back = world.connect("kept", V5, clean_start=False, keeps=True)
    assert [p.payload for p in back.receive_all()] == [b"yes"]
    assert world.restored.retained == 0


class Logged:
    """A log that would take anything."""

    refusal = None

    def append(self, item: object) -> bool:
        return True


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_stream_would_keep_is_refused_too(world: LastingWorld, qos: int) -> None:
    """Its acknowledgement could not wait for the log: nothing is committed just now."""
    log = Logged()
    world.broker.subscriptions.log_of = lambda topic: log if topic == "logged" else None
    publisher = world.connect("p", V5)
    begin_trouble(world)
    publisher.send(Publish("logged", b"no", qos, packet_id=1))
    kind: type[PubAck] | type[PubRec] = PubAck if qos == 1 else PubRec
    assert [a.reason_code for a in publisher.take(kind)] == [QUOTA]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_would_wait_is_refused_too(world: LastingWorld, qos: int) -> None:
    publisher = world.connect("p", V5)
    begin_trouble(world)
    waiting = Properties(message_expiry_s=60, user_properties=(("polybus-message", "waiting"),))
    publisher.send(Publish("nobody/there", b"no", qos, packet_id=1, properties=waiting))
    kind: type[PubAck] | type[PubRec] = PubAck if qos == 1 else PubRec
    assert [a.reason_code for a in publisher.take(kind)] == [QUOTA]
    end_trouble(world)
    world = world.kill()
    assert world.restored.stored == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_3_1_1_has_no_words_for_it_so_the_connection_ends(world: LastingWorld, qos: int) -> None:
    publisher = world.connect("p", V311)
    begin_trouble(world)
    publisher.send(Publish("kept", b"no", qos, packet_id=1))
    assert publisher.packets() == []
    assert publisher.is_closed


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("keeps", [False, True])
def test_everything_else_goes_on(world: LastingWorld, version: int, keeps: bool) -> None:
    subscriber = world.connect("s", version)
    publisher = world.connect("p", version, keeps=keeps)
    begin_trouble(world)
    assert subscriber.subscribe("else", qos=2) == (2,)
    publisher.publish("else", b"0", qos=0)
    publisher.publish("else", b"1", b"1", qos=1)
    assert len(publisher.take(PubAck)) == 2
    if not keeps:
        publisher.publish("else", b"2", qos=2)
        assert len(publisher.receive_all()) == 0
    payloads = [p.payload for p in subscriber.receive_all()]
    assert payloads == [b"0", b"1", b"1"] + ([] if keeps else [b"2"])
    publisher.publish("kept", b"0", qos=0)
    assert not publisher.is_closed


@pytest.mark.parametrize("keeps", [False, True])
def test_everything_else_goes_on_for_those_who_come_meanwhile(world: LastingWorld, keeps: bool) -> None:
    begin_trouble(world)
    publisher = world.connect("kept", V5, clean_start=not keeps, keeps=keeps)
    publisher.publish("plain", b"1", qos=1)
    assert len(publisher.take(PubAck)) == 1


def test_a_kept_session_gets_no_new_subscription(world: LastingWorld) -> None:
    kept, old = world.connect("k", V5, keeps=True), world.connect("o", V311, keeps=True)
    begin_trouble(world)
    assert refusal_of(kept) == ((QUOTA,), "the broker cannot store anything just now")
    assert refusal_of(old) == ((0x80,), None)
    end_trouble(world)
    assert kept.subscribe("new", qos=1) == (1,)


def refusal_of(peer: Peer) -> tuple[tuple[int, ...], str | None]:
    peer.send(Subscribe(peer.new_id(), (SubscriptionRequest("new", 1),)))
    [suback] = peer.take(SubAck)
    return suback.reason_codes, suback.properties.reason_string


def test_clients_may_come_and_go(world: LastingWorld) -> None:
    begin_trouble(world)
    for version in (V311, V5):
        world.connect(f"new{version}", version, keeps=True).drop()
    assert world.connect("kept", V5, clean_start=False, keeps=True).session.subscriptions
    end_trouble(world)
    world = world.kill()
    assert world.restored.sessions == 3


def test_whoever_waits_for_its_connack_is_let_in(world: LastingWorld) -> None:
    world.disk.is_slow = True
    peer = world.open(V5)
    peer.send(connect_packet("new", V5, keeps=True))
    assert peer.take(ConnAck) == []
    world.broker.set_trouble("disk full")
    world.settle()
    assert len(peer.take(ConnAck)) == 1


def test_requests_that_may_wait(world: LastingWorld) -> None:
    asker, service = world.join("asker"), world.service("service", "sums")
    begin_trouble(world)
    asker.request("sums", b"1+1", timeout_s=10)
    assert asker.ends() == [("NOT_DELIVERED", b"")]
    asker.request("sums", b"1+1")
    assert service.asked() == [b"1+1"]
    end_trouble(world)
    assert world.kill().restored.requests == 0


def test_acknowledgements_keep_their_order(world: LastingWorld) -> None:
    """One was held before the trouble began; those behind it wait with it."""
    publisher = world.connect("p", V5)
    world.disk.is_slow = True
    publisher.publish("kept", b"1", qos=1)
    assert publisher.take(PubAck) == []
    world.broker.set_trouble("disk full")
    publisher.publish("plain", b"2", qos=1)
    publisher.publish("kept", b"3", qos=1)
    assert publisher.take(PubAck) == []
    end_trouble(world)
    assert [(a.packet_id, a.reason_code) for a in publisher.take(PubAck)] == [(1, 0), (2, 0), (3, QUOTA)]
