"""The test list of the Testos Bus document, table 5.7 (TB-19): each of its cases with a pair of Python clients,
a pair of C++ clients, and mixed pairs. In six of its cases they are at different brokers of a network (TB-15).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from polybus.wire.varint import encode_varint
from tests.client.certificates import Certificates
from tests.e2e.conftest import StartBus
from tests.e2e.line_peer import LinePeer, Refused
from tests.e2e.processes import Served, eventually, unique

PYTHON = [sys.executable, "-m", "tests.e2e.python_peer"]
PAIRS = {
    "Python": ("python", "python"),
    "C++": ("c++", "c++"),
    "Python asks C++": ("python", "c++"),
    "C++ asks Python": ("c++", "python"),
}
TIMED_OUT, CANCELED, DELETED = "timeout", "canceled", "deleted"


class Pair:
    """Clients for one test: publishers in one language, subscribers in the other."""

    def __init__(self, commands: tuple[list[str], list[str]], port: int, other_port: int = 0) -> None:
        """`other_port`: of another broker, where the subscribers are."""
        self._publisher, self._subscriber = commands
        self.port = port
        self.other_port = other_port or port
        self._stack = ExitStack()

    def publisher(self, **options: object) -> LinePeer:
        return self._start(self._publisher, self.port, **options)

    def subscriber(self, **options: object) -> LinePeer:
        return self._start(self._subscriber, self.other_port, **options)

    def unconnected(self) -> LinePeer:
        return self._stack.enter_context(LinePeer(self._subscriber))

    def _start(self, command: list[str], port: int, *, client_id: str = "", **options: object) -> LinePeer:
        peer = self._stack.enter_context(LinePeer(command))
        return peer.connect(port, client_id or unique("client"), **options)  # type: ignore[arg-type]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("bus"), certificates, "", ("tbus",)) as served:
        yield served
        served.check_health()


@pytest.fixture(scope="module")
def other_bus(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, bus: Served
) -> Iterator[Served]:
    """A second broker, in a network with the first."""
    neighbor = f'[mesh]\nneighbors = ["127.0.0.1:{bus.ports["tbus"]}"]\n'
    with Served(tmp_path_factory.mktemp("other"), certificates, neighbor, ("tbus",)) as served:
        eventually(lambda: "neighbor connected" in served.log, lambda: served.log)
        yield served
        served.check_health()


MakePair = Callable[..., Pair]

pytestmark = pytest.mark.timeout(900)  # the first test may have to wait for the C++ peer to be compiled


@pytest.fixture(params=PAIRS)
def make_pair(request: pytest.FixtureRequest, cpp_peer: Path) -> Iterator[MakePair]:
    commands = {"python": PYTHON, "c++": [str(cpp_peer)]}
    publisher, subscriber = PAIRS[request.param]
    with ExitStack() as stack:

        def make(port: int, other_port: int = 0) -> Pair:
            pair = Pair((commands[publisher], commands[subscriber]), port, other_port)
            stack.callback(pair.close)
            return pair

        yield make


@pytest.fixture
def pair(make_pair: MakePair, bus: Served) -> Pair:
    return make_pair(bus.ports["tbus"])


@pytest.fixture
def far_pair(make_pair: MakePair, bus: Served, other_bus: Served) -> Pair:
    """Publishers at one broker, subscribers at another."""
    return make_pair(bus.ports["tbus"], other_bus.ports["tbus"])


def string(text: str) -> bytes:
    """As the document's encodeString has it."""
    return encode_varint(len(text.encode())) + text.encode()


# -- messaging ----------------------------------------------------------------------------------------------


def test_happy_path_two_subs(pair: Pair) -> None:
    topic = unique("topic")
    first, second, publisher = pair.subscriber(), pair.subscriber(), pair.publisher()
    first.say("subscribe", topic)
    second.say("subscribe", topic)
    publisher.publish(topic, string("hello"))
    assert first.message() == second.message() == (topic, string("hello"))


def test_happy_path_wildcard_sub(pair: Pair) -> None:
    root = unique("topic")
    subscriber, publisher = pair.subscriber(), pair.publisher()
    subscriber.say("subscribe", f"{root}/#")
    for topic in (f"{root}/a", f"{root}/a/b", f"{root}x", root):
        publisher.publish(topic, b"here")
    assert [subscriber.message()[0] for _ in range(3)] == [f"{root}/a", f"{root}/a/b", root]


def test_multiple_subs_on_client(pair: Pair) -> None:
    first, second = unique("topic"), unique("topic")
    subscriber, publisher = pair.subscriber(), pair.publisher()
    subscriber.say("subscribe", first)
    subscriber.say("subscribe", second)
    publisher.publish(first, b"1")
    publisher.publish(second, b"")
    assert {subscriber.message(), subscriber.message()} == {(first, b"1"), (second, b"")}


# -- subscriptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["subscribe", "unsubscribe"])
def test_invalid_filter(pair: Pair, verb: str) -> None:
    subscriber, publisher = pair.subscriber(), pair.publisher()
    with pytest.raises(Refused) as refused:
        subscriber.say(verb, "a/#/b")
    assert refused.value.kind == "refused"
    assert refused.value.text.startswith("143 ")
    subscriber.say("subscribe", "a/b/c")  # and nothing else has happened to it
    publisher.publish("a/b/c", b"!")
    assert subscriber.message() == ("a/b/c", b"!")


def test_sub_twice(pair: Pair) -> None:
    topic = unique("topic")
    subscriber, publisher = pair.subscriber(), pair.publisher()
    subscriber.say("subscribe", topic)
    subscriber.say("subscribe", topic)
    publisher.publish(topic, b"once")
    assert subscriber.message() == (topic, b"once")
    assert_quiet(subscriber, publisher)


def test_sub_unsub_happy_path(pair: Pair) -> None:
    topic = unique("topic")
    subscriber, publisher = pair.subscriber(), pair.publisher()
    subscriber.say("subscribe", topic)
    publisher.publish(topic, b"before")
    assert subscriber.message() == (topic, b"before")
    subscriber.say("unsubscribe", topic)
    publisher.publish(topic, b"after")
    assert_quiet(subscriber, publisher)


def test_unsub_without_previous_sub(pair: Pair) -> None:
    with pytest.raises(Refused) as refused:
        pair.subscriber().say("unsubscribe", unique("topic"))
    assert refused.value.kind == "refused"
    assert refused.value.text.startswith("17 ")


# -- requests -----------------------------------------------------------------------------------------------


def test_request_happy_path(pair: Pair) -> None:
    topic = unique("topic")
    service, asker = pair.subscriber(), pair.publisher()
    service.serve(topic, "triple")
    request = asker.request(topic, string("14"))
    assert service.given() == (topic, string("14"), False)
    assert asker.answer(request) == string("42")


def test_request_wildcard_sub(pair: Pair) -> None:
    root = unique("topic")
    service, asker = pair.subscriber(), pair.publisher()
    service.serve(f"{root}/#", "echo")
    assert asker.answer(asker.request(f"{root}/deep/down", b"hello")) == b"hello"
    assert service.given() == (f"{root}/deep/down", b"hello", False)


def test_request_timeout(pair: Pair) -> None:
    topic = unique("topic")
    service, asker = pair.subscriber(), pair.publisher()
    service.serve(topic, "hang")
    assert end_of(asker, asker.request(topic, b"?", timeout_s=1)) == TIMED_OUT


def test_request_cancel(pair: Pair) -> None:
    topic = unique("topic")
    service, asker = pair.subscriber(), pair.publisher()
    service.serve(topic, "hang")
    request = asker.request(topic, b"?")
    assert service.given() == (topic, b"?", False)
    asker.say("cancel", request)
    assert end_of(asker, request) == CANCELED
    assert service.news() == f"canceled {topic}"


def test_request_priority(pair: Pair) -> None:
    """While the service is busy, what has priority passes what has not."""
    topic = unique("topic")
    service, asker = pair.subscriber(), pair.publisher()
    service.serve(topic, "hang")
    held = asker.request(topic, b"first")
    assert service.given() == (topic, b"first", False)
    asker.request(topic, b"regular")
    asker.request(topic, b"urgent", priority=True)
    asker.answer(asker.request(own_service(asker, pair), b""))  # both have come to the broker by now
    asker.say("cancel", held)
    assert service.news() == f"canceled {topic}"
    assert service.given() == (topic, b"urgent", True)


@pytest.mark.parametrize("bulk", ["adaptive", "fixed", "off"])
def test_bulking(pair: Pair, bulk: str) -> None:
    """A burst, which clients that bulk send as BULKs: all are answered, and in their order."""
    topic = unique("topic")
    service, asker = pair.subscriber(bulk=bulk), pair.publisher(bulk=bulk)
    service.serve(topic, "echo", concurrency=200)
    requests = [asker.request(topic, str(n).encode()) for n in range(100)]
    assert [asker.answer(request) for request in requests] == [str(n).encode() for n in range(100)]
    assert sorted(int(service.given()[1]) for _ in range(100)) == list(range(100))


def test_a_service_that_fails_is_told_to_its_requester(pair: Pair) -> None:
    """Beyond the table: how a callback that raises ends."""
    topic = unique("topic")
    service, asker = pair.subscriber(), pair.publisher()
    service.serve(topic, "fail")
    with pytest.raises(Refused) as refused:
        asker.answer(asker.request(topic, b"?"))
    assert (refused.value.kind, refused.value.text) == ("service", "cannot do it")


# -- what waits ---------------------------------------------------------------------------------------------


def test_store_request(pair: Pair) -> None:
    topic = unique("topic")
    asker = pair.publisher()
    request = asker.request(topic, string("5"))
    service = pair.subscriber()
    service.serve(topic, "triple")
    assert asker.answer(request) == string("15")


def test_store_response(pair: Pair) -> None:
    """The requester goes away, and finds the answer when it is back under the same name."""
    topic, name = unique("topic"), unique("client")
    service, watcher = pair.subscriber(), pair.subscriber()
    service.serve(topic, "slow", 300)
    watcher.say("subscribe", f"{topic}/done")
    asker = pair.publisher(client_id=name)
    request = asker.request(topic, b"later")
    assert service.given() == (topic, b"later", False)
    asker.say("disconnect", 0)
    asker.connect(pair.port, name, clean=False)
    assert asker.answer(request) == b"later"


def test_store_message(pair: Pair) -> None:
    """Beyond the table: a message that may wait for its subscriber."""
    topic = unique("topic")
    publisher = pair.publisher()
    publisher.publish(topic, b"waited", timeout_s=20)
    publisher.answer(publisher.request(own_service(publisher, pair), b""))
    subscriber = pair.subscriber()
    subscriber.say("subscribe", topic)
    assert subscriber.message() == (topic, b"waited")


# -- clients at different brokers ---------------------------------------------------------------------------


def test_subs_on_different_nodes(make_pair: MakePair, bus: Served, other_bus: Served) -> None:
    topic = unique("topic")
    ports = bus.ports["tbus"], other_bus.ports["tbus"]
    here, there = make_pair(ports[0]), make_pair(*ports)
    near, far, publisher = here.subscriber(), there.subscriber(), there.publisher()
    near.say("subscribe", topic)
    far.say("subscribe", topic)
    meet(publisher, there)
    publisher.publish(topic, string("hello"))
    assert near.message() == far.message() == (topic, string("hello"))


def test_wildcard_sub_different_node(far_pair: Pair) -> None:
    root = unique("topic")
    subscriber, publisher = far_pair.subscriber(), far_pair.publisher()
    subscriber.say("subscribe", f"{root}/#")
    meet(publisher, far_pair)
    for topic in (f"{root}/a", f"{root}/a/b", f"{root}x", root):
        publisher.publish(topic, b"here")
    assert [subscriber.message()[0] for _ in range(3)] == [f"{root}/a", f"{root}/a/b", root]


def test_request_happy_path_sub_on_different_node(far_pair: Pair) -> None:
    topic = unique("topic")
    service, asker = far_pair.subscriber(), far_pair.publisher()
    service.serve(topic, "triple")
    request = asker.request(topic, string("14"))
    assert service.given() == (topic, string("14"), False)
    assert asker.answer(request) == string("42")


def test_request_wildcard_sub_on_different_node(far_pair: Pair) -> None:
    root = unique("topic")
    service, asker = far_pair.subscriber(), far_pair.publisher()
    service.serve(f"{root}/#", "echo")
    assert asker.answer(asker.request(f"{root}/deep/down", b"hello")) == b"hello"
    assert service.given() == (f"{root}/deep/down", b"hello", False)


def test_store_request_sub_on_different_node(far_pair: Pair) -> None:
    topic = unique("topic")
    asker = far_pair.publisher()
    request = asker.request(topic, string("5"))
    service = far_pair.subscriber()
    service.serve(topic, "triple")
    assert asker.answer(request) == string("15")


def test_store_response_sub_on_different_node(far_pair: Pair) -> None:
    """The requester goes away, and finds the answer at its own broker when it is back."""
    topic, name = unique("topic"), unique("client")
    service = far_pair.subscriber()
    service.serve(topic, "slow", 300)
    asker = far_pair.publisher(client_id=name)
    request = asker.request(topic, b"later")
    assert service.given() == (topic, b"later", False)
    asker.say("disconnect", 0)
    asker.connect(far_pair.port, name, clean=False)
    assert asker.answer(request) == b"later"


def test_cancel_and_errors_with_the_service_on_a_different_node(far_pair: Pair) -> None:
    """Beyond the table."""
    topic = unique("topic")
    service, asker = far_pair.subscriber(), far_pair.publisher()
    service.serve(topic, "hang")
    request = asker.request(topic, b"?")
    assert service.given() == (topic, b"?", False)
    asker.say("cancel", request)
    assert end_of(asker, request) == CANCELED
    assert service.news() == f"canceled {topic}"
    service.serve(f"{topic}/fails", "fail")
    with pytest.raises(Refused) as refused:
        asker.answer(asker.request(f"{topic}/fails", b"?"))
    assert (refused.value.kind, refused.value.text) == ("service", "cannot do it")


# -- limits -------------------------------------------------------------------------------------------------


def test_limit_of_connected_clients(make_pair: MakePair, start_bus: StartBus) -> None:
    bus = start_bus("[limits]\nconnections = 2\n", ("tbus",))
    pair = make_pair(bus.ports["tbus"])
    first, _ = pair.subscriber(), pair.publisher()
    third = pair.unconnected()
    with pytest.raises(Refused) as refused:
        third.connect(pair.port, "third")
    assert refused.value.kind == "refused"
    assert refused.value.text.startswith("131 ")
    first.say("disconnect", 0)
    eventually(lambda: "client disconnected" in bus.log, lambda: bus.log)
    third.connect(pair.port, "third")


def test_a_client_that_finds_no_room_goes_to_a_neighbour(make_pair: MakePair, start_bus: StartBus) -> None:
    """Beyond the table (TB-14): the refusal names the neighbours, and the clients try them."""
    full = start_bus("[limits]\nconnections = 1\n", ("tbus",))
    port = full.ports["tbus"]
    other = start_bus(f'[mesh]\nneighbors = ["127.0.0.1:{port}"]\n', ("tbus",))
    eventually(lambda: "neighbor connected" in full.log, lambda: full.log)
    pair = make_pair(port)
    pair.publisher()
    name = unique("second")
    pair.unconnected().connect(port, name)
    eventually(lambda: f"client_id={name}" in other.log, lambda: other.log)
    eventually(lambda: "client limit" in full.log or "no more connections" in full.log, lambda: full.log)


def test_storage_capacity(make_pair: MakePair, start_bus: StartBus) -> None:
    """The limit is changed at run time; the oldest request has to go, and its publisher is told."""
    bus = start_bus("", ("tbus",))
    pair = make_pair(bus.ports["tbus"])
    asker = pair.publisher()
    asker.publish("$memoryLimit", string("2"))
    topic = unique("topic")
    first, second, third = (asker.request(topic, str(n).encode()) for n in range(3))
    assert end_of(asker, first) == DELETED
    service = pair.subscriber()
    service.serve(topic, "echo")
    assert [asker.answer(second), asker.answer(third)] == [b"1", b"2"]


# -- helpers ------------------------------------------------------------------------------------------------


def end_of(asker: LinePeer, request: int) -> str:
    """How a request ended that has no answer."""
    with pytest.raises(Refused) as refused:
        asker.answer(request)
    return refused.value.kind


def own_service(asker: LinePeer, pair: Pair) -> str:
    """A topic at which another client of this pair answers at once: its answer comes behind all before it."""
    topic = unique("topic")
    pair.subscriber().serve(topic, "echo")
    return topic


def meet(publisher: LinePeer, pair: Pair) -> None:
    """What subscribers of this pair want so far is known where the publisher is: it is told in its order."""
    publisher.answer(publisher.request(own_service(publisher, pair), b""))


def assert_quiet(subscriber: LinePeer, publisher: LinePeer) -> None:
    """Nothing is on its way to the subscriber: something sent later arrives, and nothing before it."""
    topic = unique("topic")
    subscriber.say("subscribe", topic)
    publisher.publish(topic, b"last")
    assert subscriber.message() == (topic, b"last")
