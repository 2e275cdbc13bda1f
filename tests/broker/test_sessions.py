"""Queues and packet ids by themselves."""

from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.message import Delivery, Message, Run
from polybus.broker.sessions import MAX_PACKET_ID, Queue, Session
from polybus.session.mqtt.encoding import MQTT_311
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V311, Publish
from tests.wire.mqtt.strategies import so_many


def one(payload: str, *, priority: bool = False) -> Delivery:
    return Delivery(Message("t", payload.encode(), 1, priority=priority), 1, False)


def run_of(payloads: list[str], qos: int = 1) -> Run:
    packets = [
        encode(Publish("t", p.encode(), qos, packet_id=n + 1 if qos else 0), V311)
        for n, p in enumerate(payloads)
    ]
    wire = b"".join(packets)
    return Run(wire, len(packets), MQTT_311, "p", qos, range(5, len(wire), len(packets[0])))


def texts(item: Delivery | Run) -> list[str]:
    messages = item.messages() if isinstance(item, Run) else [item.message]
    return [m.payload.decode() for m in messages]


def check(queue: Queue) -> None:
    items = list(queue.items())
    assert queue.messages == sum(i.count for i in items)
    assert queue.size_bytes == sum(i.size_bytes() for i in items)


steps = st.lists(
    st.tuples(st.sampled_from(["one", "priority", "run", "pop", "drop", "break"]), st.integers(2, 4)),
    max_size=30,
)


@so_many(200)
@given(steps)
def test_a_queue_is_two_lists_of_messages(sequence: list[tuple[str, int]]) -> None:
    """Whatever is done to it: order, counts and bytes are those of a plain model."""
    queue = Queue()
    first: list[list[str]] = []
    rest: list[list[str]] = []
    for number, (step, size) in enumerate(sequence):
        lane = first or rest
        if step == "one":
            queue.push(one(f"{number}"))
            rest.append([f"{number}"])
        elif step == "priority":
            queue.push(one(f"{number}", priority=True))
            first.append([f"{number}"])
        elif step == "run":
            payloads = [f"{number:03}-{n}" for n in range(size)]
            queue.push(run_of(payloads))
            rest.append(payloads)
        elif step == "pop" and lane:
            assert texts(queue.pop()) == lane.pop(0)
        elif step == "drop" and lane:
            victims = rest or first
            assert texts(queue.drop_oldest()) == victims.pop(0)
        elif step == "break" and lane:
            item = queue.first()
            assert texts(item) == lane[0]
            if isinstance(item, Run):
                queue.break_up(item)
                rest[:1] = [[payload] for payload in rest[0]]
        check(queue)
        assert [texts(i) for i in queue.items()] == first + rest
    while queue.messages:
        queue.pop()
    assert (queue.messages, queue.size_bytes) == (0, 0)


@so_many(100)
@given(st.sets(st.integers(1, 40)), st.integers(1, 40), st.integers(1, 30))
def test_ids_in_flight_are_passed_over(taken: set[int], start: int, count: int) -> None:
    session = Session("s")
    session.inflight = dict.fromkeys(taken)
    session.next_id = start
    for _ in range(count):
        packet_id = session.allocate_id()
        assert packet_id not in session.inflight
        assert 1 <= packet_id <= MAX_PACKET_ID
        session.inflight[packet_id] = None


def test_ids_wrap_around_past_zero() -> None:
    session = Session("s")
    session.next_id = MAX_PACKET_ID
    session.inflight = {1: None, 2: None}
    assert [session.allocate_id() for _ in range(3)] == [MAX_PACKET_ID, 3, 4]
