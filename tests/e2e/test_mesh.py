"""Brokers in a network, as processes that are killed and started again (TB-15, docs/mesh.md)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.certificates import Certificates
from tests.e2e.conftest import StartBus
from tests.e2e.paho_peers import Paho, connected, kept
from tests.e2e.processes import Served, eventually, polybus, unique
from tests.e2e.tbus_peer import connected as tbus_connected

pytestmark = pytest.mark.timeout(300)
KINDS = ("tcp", "tbus")


@pytest.fixture
def start(start_bus: StartBus) -> Callable[..., Served]:
    """Starts a broker that calls these others."""

    def start(*others: Served, text: str = "") -> Served:
        places = ", ".join(f'"{address(other)}"' for other in others)
        return start_bus(f"[mesh]\nneighbors = [{places}]\n{text}", KINDS)

    return start


def address(served: Served) -> str:
    return f"127.0.0.1:{served.ports['tbus']}"


def linked(served: Served) -> set[str]:
    done = polybus("ctl", "neighbors", "--url", served.url())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{address(served)}, this bus"
    return {line.split(",")[0] for line in lines[1:] if ", linked:" in line}


def wait_linked(*network: Served) -> None:
    everyone = {address(served) for served in network}
    for served in network:
        eventually(
            lambda served=served: linked(served) == everyone - {address(served)}, lambda: log_of(network)
        )


def log_of(network: tuple[Served, ...]) -> str:
    return "\n\n".join(served.log for served in network)


def known(asker: Served, teller: Served) -> None:
    """What clients of `teller` want so far is known to `asker`: it is told in its order."""
    topic = unique("known")
    with tbus_connected(teller.ports["tbus"]) as service, tbus_connected(asker.ports["tbus"]) as peer:
        service.subscribe(topic)
        packet_id = peer.request(topic, b"", timeout_s=30)
        service.answer(service.given(), b"")
        assert peer.end(packet_id)[0] == "answered"


def collect(subscriber: Paho, count: int) -> list[bytes]:
    return [subscriber.get().payload for _ in range(count)]


def test_three_brokers_find_each_other_and_all_clients_are_on_one_bus(start: Callable[..., Served]) -> None:
    first = start()
    second, third = start(first), start(first)
    wait_linked(first, second, third)
    topic = unique("topic")
    with connected(third) as far, connected(first) as near, connected(second, "5") as publisher:
        far.subscribe(topic, 1)
        near.subscribe(f"{topic}/#", 2)
        known(second, third)
        known(second, first)
        publisher.publish(topic, b"1", qos=0)
        publisher.publish(topic, b"2", qos=1)
        publisher.publish(topic, b"3", qos=2)
        assert collect(far, 3) == collect(near, 3) == [b"1", b"2", b"3"]
        publisher.publish(f"{topic}/kept", b"value", retain=True)
    eventually(lambda: retained(third, f"{topic}/kept") == "value")
    for served in (first, second, third):
        served.check_health()


def retained(served: Served, topic: str) -> str:
    done = polybus("sub", "--url", served.url(), "-t", topic, "-C", "1", "-W", "2")
    return done.stdout.strip()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_acknowledged_comes_once_whoever_is_killed(start: Callable[..., Served], qos: int) -> None:
    """The subscriber's broker is killed, then the publisher's, while messages wait for it."""
    here = start()
    there = start(here)
    wait_linked(here, there)
    topic, name = unique("topic"), unique("client")
    with connected(there, client_id=name, **kept("5")) as subscriber:
        subscriber.subscribe(topic, qos)
        known(here, there)
        with connected(here) as publisher:
            publisher.publish(topic, b"0", qos=qos)
        assert subscriber.get().payload == b"0"
    with connected(here) as publisher:
        publisher.publish(topic, b"1", qos=qos)
        there.kill()
        for n in range(2, 40):
            publisher.publish(topic, b"%d" % n, qos=qos)
    here.kill()
    with here:
        with connected(here) as publisher:
            for n in range(40, 50):
                publisher.publish(topic, b"%d" % n, qos=qos)
        with there:
            wait_linked(here, there)
            with connected(there, client_id=name, **kept("5")) as subscriber:
                found = collect(subscriber, 49)
                if qos == 1 and found[0] == b"0":  # the subscriber's acknowledgement went with its broker
                    found = [*found[1:], *collect(subscriber, 1)]
                with connected(here) as publisher:
                    publisher.publish(topic, b"last", qos=qos)
                assert subscriber.get().payload == b"last", "and nothing came twice before it"
            assert sorted(found, key=int) == [b"%d" % n for n in range(1, 50)]
            there.check_health()
        here.check_health()


def test_a_request_whose_broker_is_killed_goes_to_a_service_elsewhere(start: Callable[..., Served]) -> None:
    first = start()
    second, third = start(first), start(first)
    wait_linked(first, second, third)
    topic = unique("topic")
    with tbus_connected(first.ports["tbus"]) as asker:
        with connected(second, "5") as doomed:
            doomed.serve(topic)
            packet_id = asker.request(topic, b"?", timeout_s=60)
            assert doomed.get().payload == b"?"
            second.kill()
        with connected(third, "5") as service:
            service.serve(topic)
            request = service.get()
            assert request.payload == b"?"
            service.answer(request, b"!")
            assert asker.end(packet_id) == ("answered", b"!")
    with second:
        wait_linked(first, second, third)


def test_a_neighbour_that_is_not_there_yet_is_waited_for(start: Callable[..., Served]) -> None:
    first = start()
    first.kill()
    second = start(first)
    eventually(lambda: "neighbor not reached" in second.log, lambda: second.log)
    with connected(second) as client:
        client.subscribe("t")
        client.publish("t", b"served meanwhile")
        assert client.get().payload == b"served meanwhile"
    with first:
        wait_linked(first, second)
        first.check_health()
        assert second.log.count("neighbor not reached") == 1, "people are told once"
    second.check_health()


def test_events_and_figures_name_the_neighbour(start: Callable[..., Served], tmp_path: Path) -> None:
    first = start(text="[mqtt]\nsys_interval_s = 1\n")
    second = start(first)
    wait_linked(first, second)
    eventually(lambda: f"neighbor connected neighbor={address(second)}" in first.log, lambda: first.log)
    eventually(lambda: retained(first, "$SYS/broker/neighbors/linked") == "1")
    second.kill()
    eventually(lambda: f"neighbor lost neighbor={address(second)}" in first.log, lambda: first.log)


def test_a_broker_with_another_token_is_refused_in_plain_words(start: Callable[..., Served]) -> None:
    first = start(text='token = "one"\n')
    second = start(first, text='token = "two"\n')
    eventually(lambda: "the mesh token is wrong" in second.log, lambda: second.log)
    eventually(lambda: "neighbor refused" in first.log, lambda: first.log)
    assert "two" not in first.log.replace("token is", "")
    assert linked(first) == set()


@pytest.mark.parametrize("command", ["serve", "tbus"])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--neighbor-ip", "127.0.0.1"], "--neighbor-port is missing"),
        (["--neighbor-port", "5035"], "--neighbor-ip is missing"),
        (["--neighbor-ip", "example.com", "--neighbor-port", "5035"], "is not an IP address"),
    ],
)
def test_flags_that_are_no_use(command: str, flags: list[str], says: str) -> None:
    done = polybus(command, *flags)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_another_machine_needs_a_token() -> None:
    done = polybus("tbus", "--neighbor-ip", "10.1.2.3", "--neighbor-port", "5035")
    assert done.returncode != 0
    assert "mesh.token" in done.stderr


def test_ctl_shows_the_network_as_json_to_programs(
    start: Callable[..., Served], certificates: Certificates
) -> None:
    first = start()
    with tbus_connected(first.ports["tbus"]) as peer:
        packet_id = peer.request("$neighbors", b"")
        state, payload = peer.end(packet_id)
    assert state == "answered"
    assert json.loads(payload) == {"id": address(first), "neighbors": []}
