"""Queues, windows, packet ids, blocked links, and the memory budget, through the real session code."""

import random

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import OVERHEAD_BYTES, Message
from polybus.broker.sessions import MAX_PACKET_ID
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from tests.session.harness import Peer, World, check_accounts

PAYLOADS = [b"%02d" % n for n in range(20)]


def kept(world: World, version: int = V5, qos: int = 1, client_id: str = "s", **fields: object) -> Peer:
    peer = world.connect(client_id, version, keeps=True, **fields)
    peer.subscribe("t/#", qos=qos)
    return peer


def publish(world: World, payloads: list[bytes], qos: int, *, batch: bool, version: int = V5) -> None:
    publisher = world.connect("p", version)
    if batch:
        publisher.publish("t", *payloads, qos=qos)
    else:
        for payload in payloads:
            publisher.publish("t", payload, qos=qos)


# -- queues --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
@pytest.mark.parametrize("drop_oldest", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 19, 20, 50])
def test_a_queue_holds_as_many_messages_as_it_may(batch: bool, drop_oldest: bool, limit: int) -> None:
    world = World(Limits(queued_messages_per_session=limit), drop_oldest=drop_oldest)
    kept(world).drop()
    publish(world, PAYLOADS, 1, batch=batch)
    check_accounts(world.broker)
    got = [p.payload for p in kept_again(world).receive_all()]
    assert got == (PAYLOADS[-limit:] if drop_oldest else PAYLOADS[:limit])
    assert world.broker.stats.dropped_queue_full == max(0, 20 - limit)
    assert world.broker.dispatcher.holdings.size_bytes == 0


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
def test_a_connected_client_loses_nothing_for_which_there_is_room(batch: bool) -> None:
    """Other versions take runs apart. What can be sent at once needs no room in the queue."""
    world = World(Limits(queued_messages_per_session=5))
    peer = kept(world)
    publish(world, PAYLOADS, 1, batch=batch, version=V311)
    assert [p.payload for p in peer.receive_all()] == PAYLOADS


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
def test_a_small_window_and_a_small_queue(batch: bool) -> None:
    world = World(Limits(queued_messages_per_session=5))
    peer = kept(world, receive_maximum=4)
    publish(world, PAYLOADS, 1, batch=batch)
    assert [p.payload for p in peer.receive_all()] == PAYLOADS[:9]


def test_a_queue_holds_as_many_bytes_as_it_may() -> None:
    limit = 5 * OVERHEAD_BYTES
    world = World(Limits(queued_bytes_per_session=limit))
    kept(world).drop()
    publish(world, [b"%0100d" % n for n in range(5)], 1, batch=False)
    queue = world.broker.registry.sessions["s"].queue
    assert queue is not None
    queued_bytes, count = queue.size_bytes, queue.messages
    assert queued_bytes <= limit
    assert queued_bytes * (count + 1) // count > limit, "one more had no room"
    assert [int(p.payload) for p in kept_again(world).receive_all()] == list(range(count))
    assert world.broker.dispatcher.holdings.size_bytes == 0


def test_a_message_larger_than_the_queue_leaves_no_queue_behind() -> None:
    for drop_oldest in (False, True):
        world = World(Limits(queued_bytes_per_session=1000), drop_oldest=drop_oldest)
        kept(world).drop()
        publish(world, [b"x" * 2000], 1, batch=False)
        check_accounts(world.broker)
        assert not world.broker.dispatcher.queued_sessions


def test_priority_goes_before_regular() -> None:
    world = World()
    kept(world).drop()
    broker = world.broker
    for n, priority in enumerate([False, True, False, True]):
        broker.publish(broker.subscriptions.route_of("t"), Message("t", b"%d" % n, 1, priority=priority))
    world.broker.tick(world.now)
    assert [p.payload for p in kept_again(world).receive_all()] == [b"1", b"3", b"0", b"2"]


def test_the_priority_lane_is_drained_first() -> None:
    world = World()
    peer = kept(world, qos=0)
    broker = world.broker
    for n, priority in enumerate([False, False, True]):
        broker.publish(broker.subscriptions.route_of("t"), Message("t", b"%d" % n, priority=priority))
    broker.tick(world.now)
    assert peer.payloads() == [b"2", b"0", b"1"]


@pytest.mark.parametrize("queues", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_qos_0_waits_only_if_the_operator_says_so(queues: bool, batch: bool) -> None:
    world = World(queue_qos0=queues)
    kept(world).drop()
    publish(world, PAYLOADS, 0, batch=batch)
    assert [p.payload for p in kept_again(world).receive_all()] == (PAYLOADS if queues else [])
    check_accounts(world.broker)


def test_what_expired_in_the_queue_is_not_sent() -> None:
    world = World()
    kept(world).drop()
    publisher = world.connect("p", V5)
    for n, expiry in enumerate([10, 100, None]):
        properties = Properties(message_expiry_s=expiry)
        publisher.publish("t", b"%d" % n, qos=1, properties=properties)
    world.advance(50)
    got = kept_again(world).receive_all()
    assert [(p.payload, p.properties.message_expiry_s) for p in got] == [(b"1", 50), (b"2", None)]
    assert world.broker.stats.dropped_expired == 1


@pytest.mark.parametrize("end", ["expire", "clean_start", "drain", "drop_oldest"])
def test_accounts_return_to_zero(end: str) -> None:
    world = World(Limits(queued_messages_per_session=30), drop_oldest=True)
    kept(world).drop()
    for n in range(10 if end == "drop_oldest" else 1):
        publish(world, [b"%03d" % (n * 20 + i) for i in range(20)], 2, batch=n % 2 == 0)
    check_accounts(world.broker)
    if end == "expire":
        world.advance(10_000)
    elif end == "clean_start":
        world.connect("s", V5)
    else:
        kept_again(world).receive_all()
    check_accounts(world.broker)
    assert world.broker.memory_bytes() == world.broker.subscriptions.size_bytes
    assert not world.broker.dispatcher.queued_sessions


# -- windows and packet ids ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("window", [1, 3, 20, 100])
@pytest.mark.parametrize("version", [V311, V5])
def test_never_more_in_flight_than_the_client_takes(batch: bool, qos: int, window: int, version: int) -> None:
    world = World()
    peer = kept(world, qos=qos, receive_maximum=window)
    publish(world, PAYLOADS, qos, batch=batch, version=version)
    received: list[bytes] = []
    while got := peer.take(Publish):
        assert len(peer.session.inflight) <= window
        check_accounts(world.broker)
        received += [p.payload for p in got]
        first = got[0].packet_id
        for packet in got:
            if qos == 1:
                peer.send(PubAck(packet.packet_id))
            else:
                peer.send(PubRec(packet.packet_id))
                assert [r.packet_id for r in peer.take(PubRel)] == [packet.packet_id]
                peer.send(PubComp(packet.packet_id))
        assert first
    assert received == PAYLOADS
    assert not peer.session.inflight
    assert world.broker.memory_bytes() == world.broker.subscriptions.size_bytes


def test_the_operator_limits_the_window_too() -> None:
    world = World(Limits(inflight_per_session=5))
    peer = kept(world)
    publish(world, PAYLOADS, 1, batch=True)
    assert len(peer.take(Publish)) == 5


@pytest.mark.parametrize("start", [65_500, 65_530, 65_534, 65_535])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
def test_ids_wrap_around_and_pass_over_those_in_flight(start: int, batch: bool) -> None:
    world = World()
    peer = kept(world)
    publish(world, PAYLOADS[:3], 1, batch=False)  # 1, 2, 3 stay in flight
    old = [p.packet_id for p in peer.take(Publish)]
    peer.session.next_id = start
    publish(world, PAYLOADS * 3, 1, batch=batch)
    got = peer.take(Publish)
    ids = [p.packet_id for p in got]
    assert [p.payload for p in got] == PAYLOADS * 3
    assert len(set(ids + old)) == 63
    assert all(1 <= i <= MAX_PACKET_ID for i in ids)
    peer.send(*(PubAck(i) for i in old + ids))
    assert not peer.session.inflight
    check_accounts(world.broker)


def test_ids_stay_unique_over_many_rounds_of_runs_and_singles() -> None:
    """Three times around the id space, acknowledged in any order and never all at once."""
    dice = random.Random(7)
    world = World()
    peer = kept(world, version=V311)
    publisher = world.connect("p", V311)
    sent = received = 0
    pending: list[int] = []
    while sent < 3 * 65_535:
        count = dice.choice([1, 2, 50, 400])
        publisher.publish("t", *[b"x"] * count, qos=1)
        publisher.packets()
        sent += count
        new = [p.packet_id for p in peer.take(Publish)]
        received += len(new)
        assert not set(new) & set(pending)
        pending += new
        dice.shuffle(pending)
        cut = len(pending) if len(pending) < 3 else dice.randrange(len(pending) // 2, len(pending))
        peer.send(*(PubAck(i) for i in pending[:cut]))
        pending = pending[cut:]
    new_ids = [p.packet_id for p in peer.take(Publish)]
    received += len(new_ids)
    peer.send(*(PubAck(i) for i in pending + new_ids))
    received += len(peer.receive_all())
    assert received == sent
    check_accounts(world.broker)


# -- coming back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
@pytest.mark.parametrize("version", [V311, V5])
def test_what_was_in_flight_is_sent_again_in_order_with_dup(batch: bool, version: int) -> None:
    world = World()
    peer = kept(world, version=version, qos=2)
    publish(world, PAYLOADS[:10], 2, batch=batch, version=version)
    first = peer.take(Publish)
    peer.send(PubRec(first[2].packet_id))
    assert peer.take(PubRel)
    peer.send(PubRec(first[4].packet_id), PubRec(first[5].packet_id))
    peer.take(PubRel)
    peer.send(PubComp(first[4].packet_id))
    peer.drop()
    publish(world, PAYLOADS[10:12], 2, batch=batch, version=version)
    back = kept_again(world, version=version)
    packets = [p for p in back.packets() if isinstance(p, Publish | PubRel)]
    again = [p for p in packets if isinstance(p, Publish) and p.dup]
    assert [(p.packet_id, p.payload) for p in again] == [
        (p.packet_id, p.payload) for n, p in enumerate(first) if n not in (2, 4, 5)
    ]
    assert [p.packet_id for p in packets if isinstance(p, PubRel)] == [first[2].packet_id, first[5].packet_id]
    fresh = [p for p in packets if isinstance(p, Publish) and not p.dup]
    assert [p.payload for p in fresh] == PAYLOADS[10:12]
    assert packets[-2:] == fresh, "what is new comes after what is repeated"
    check_accounts(world.broker)


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_smaller_window_after_reconnect(batch: bool, window: int) -> None:
    world = World()
    peer = kept(world)
    publish(world, PAYLOADS[:10], 1, batch=batch)
    assert len(peer.take(Publish)) == 10
    peer.drop()
    publish(world, PAYLOADS[10:], 1, batch=batch)
    back = world.connect("s", V5, keeps=True, clean_start=False, receive_maximum=window)
    got: list[bytes] = []
    while new := back.take(Publish):
        assert len(new) <= window
        check_accounts(world.broker)
        got += [p.payload for p in new]
        back.send(*(PubAck(p.packet_id) for p in new))
    assert got == PAYLOADS
    assert back.session.resend is None


def test_a_smaller_packet_size_after_reconnect() -> None:
    world = World()
    peer = kept(world)
    publish(world, [b"small", b"x" * 500, b"little"], 1, batch=False)
    peer.drop()
    back = world.connect("s", V5, keeps=True, clean_start=False, maximum_packet_size=100)
    assert [p.payload for p in back.receive_all()] == [b"small", b"little"]
    assert not back.session.inflight
    assert world.broker.stats.dropped_too_large == 1


def test_acknowledgements_for_nothing_change_nothing() -> None:
    world = World()
    peer = kept(world, qos=2)
    publish(world, PAYLOADS[:3], 1, batch=False)
    publish(world, PAYLOADS[3:6], 2, batch=False)
    peer.take(Publish)
    before = dict(peer.session.inflight)
    for packet in (
        PubAck(4),
        PubRec(1),
        PubComp(1),
        PubComp(4),
        PubAck(99),
        PubComp(99),
        PubRec(99),
        PubRec(98, 0x80),
    ):
        peer.send(packet)
        peer.send(packet, packet)
    assert peer.session.inflight == before
    check_accounts(world.broker)
    assert not peer.is_closed


def test_a_refused_qos_2_message_is_over() -> None:
    world = World()
    peer = kept(world, qos=2)
    publish(world, PAYLOADS[:2], 2, batch=True)
    first = peer.take(Publish)[0]
    peer.send(PubRec(first.packet_id, 0x97))
    assert peer.take(PubRel) == []
    assert len(peer.session.inflight) == 1
    check_accounts(world.broker)


# -- links that do not read ----------------------------------------------------------------------------


def test_a_blocked_link_loses_qos_0_past_its_limit_and_others_do_not_notice() -> None:
    world = World(Limits(outbox_bytes_per_connection=1000))
    slow, quick = (kept(world, qos=0, client_id=name) for name in "ab")
    slow.block()
    payloads = [b"%050d" % n for n in range(100)]
    publish(world, payloads, 0, batch=False)
    assert quick.payloads() == payloads
    assert slow.port.sent == b""
    assert slow.link.backlog_bytes == world.broker.dispatcher.backlog_bytes <= 1000
    slow.unblock()
    got = slow.payloads()
    assert got == payloads[: len(got)]
    assert len(got) + slow.link.messages_dropped == 100
    assert world.broker.stats.dropped_slow == slow.link.messages_dropped
    assert world.broker.dispatcher.backlog_bytes == 0


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_blocked_link_gets_everything_later(batch: bool, qos: int) -> None:
    world = World()
    peer = kept(world, qos=qos)
    peer.block()
    publish(world, PAYLOADS, qos, batch=batch)
    check_accounts(world.broker)
    assert peer.session.queued() == 20
    peer.unblock()
    assert [p.payload for p in peer.receive_all()] == PAYLOADS
    assert world.broker.memory_bytes() == world.broker.subscriptions.size_bytes


def test_a_link_that_blocks_in_the_middle_of_a_write() -> None:
    world = World()
    peer = kept(world)
    peer.port.capacity = 50
    for n in range(50):
        publish(world, [b"%010d" % n], 1, batch=False)
        check_accounts(world.broker)
    assert peer.link.blocked
    got = []
    while peer.link.blocked:
        new = peer.take(Publish)
        got += [int(p.payload) for p in new]
        peer.send(*(PubAck(p.packet_id) for p in new))
        peer.unblock()
    got += [int(p.payload) for p in peer.receive_all()]
    assert got == list(range(50))
    check_accounts(world.broker)


@pytest.mark.parametrize("end", ["drop", "takeover", "fail"])
def test_the_backlog_of_a_blocked_link_goes_with_it(end: str) -> None:
    world = World()
    peer = kept(world, qos=0)
    peer.block()
    publish(world, PAYLOADS, 0, batch=True)
    assert world.broker.dispatcher.backlog_bytes > 0
    if end == "drop":
        peer.drop()
    elif end == "takeover":
        kept_again(world)
    else:
        peer.feed(b"\xf0\0")
    world.settle()
    assert world.broker.dispatcher.backlog_bytes == 0
    check_accounts(world.broker)


# -- the memory budget ---------------------------------------------------------------------------------


def test_the_longest_queue_gives_first_and_its_oldest_regular_messages() -> None:
    world = World()
    for name in ("long", "short"):
        peer = kept(world, client_id=name)
        peer.subscribe(f"only/{name}", qos=1)
        peer.drop()
    broker = world.broker
    for name, count in (("long", 4), ("short", 3)):
        route = broker.subscriptions.route_of(f"only/{name}")
        for priority in (True, *[False] * count):
            broker.publish(route, Message(route.topic, b"x", 1, priority=priority))
    broker.tick(world.now)
    dispatcher = broker.dispatcher
    sessions = broker.registry.sessions
    one = OVERHEAD_BYTES + len("only/long") + 1
    dispatcher.relieve(1)
    assert (sessions["long"].queued(), sessions["short"].queued()) == (4, 4)
    dispatcher.relieve(4 * one)
    assert (sessions["long"].queued(), sessions["short"].queued()) == (2, 2)
    for _ in range(2):
        dispatcher.relieve(1)
    queues = [sessions[name].queue for name in ("long", "short")]
    assert [q is not None and [i.is_priority for i in q.items()] for q in queues] == [[True], [True]]
    dispatcher.relieve(10 * one)
    assert dispatcher.holdings.size_bytes == 0
    assert not dispatcher.queued_sessions
    assert broker.stats.dropped_memory == 9


@pytest.mark.parametrize("batch", [False, True], ids=["single", "run"])
def test_what_many_wait_for_is_counted_once(batch: bool) -> None:
    world = World(Limits(memory_bytes=1_000_000))
    peers = [kept(world, client_id=f"s{n}") for n in range(100)]
    for peer in peers[:50]:
        peer.drop()
    payloads = [b"%0200000d" % n for n in range(3)]
    publish(world, payloads, 1, batch=batch)
    sessions = [world.broker.registry.sessions[f"s{n}"] for n in range(100)]
    assert 600_000 < world.broker.memory_bytes() < 1_000_000
    assert all(session.load() == 3 for session in sessions)
    for peer in peers[50:]:
        assert [p.payload for p in peer.receive_all()] == payloads
    for session in sessions[:50]:
        again = kept_again(world, client_id=session.client_id)
        assert [p.payload for p in again.receive_all()] == payloads
    assert world.broker.dispatcher.holdings.size_bytes == 0
    assert world.broker.stats.dropped_memory == 0


def test_those_who_share_what_is_given_up_lose_the_same() -> None:
    world = World()
    for n in range(20):
        kept(world, client_id=f"s{n}").drop()
    payloads = [b"%010000d" % n for n in range(10)]
    publish(world, payloads, 1, batch=False)
    world.broker.dispatcher.relieve(25_000)
    check_accounts(world.broker)
    for n in range(20):
        again = kept_again(world, client_id=f"s{n}")
        assert [p.payload for p in again.receive_all()][-7:] == payloads[3:]


def test_past_the_budget_queues_shrink_and_qos_0_is_not_kept() -> None:
    world = World(Limits(memory_bytes=20_000))
    kept(world, client_id="a").drop()
    slow = kept(world, qos=0, client_id="b")
    slow.block()
    publisher = world.connect("p", V5)
    for n in range(200):
        publisher.publish("t", b"%0200d" % n, qos=1)
        assert world.broker.memory_bytes() <= 20_000 + 1000
        check_accounts(world.broker)
    back = world.connect("a", V5, keeps=True, clean_start=False)
    got = [int(p.payload) for p in back.receive_all()]
    assert got == list(range(200 - len(got), 200)), "the oldest went first"
    slow.unblock()
    stats = world.broker.stats
    assert stats.dropped_memory + stats.dropped_slow == 400 - len(got) - len(slow.payloads())


# -- helpers -------------------------------------------------------------------------------------------


def kept_again(world: World, version: int = V5, client_id: str = "s") -> Peer:
    return world.connect(client_id, version, keeps=True, clean_start=False)
