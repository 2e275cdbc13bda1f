"""Requests, waiting and priority between real peers: paho, mosquitto and TBus clients over sockets."""

import asyncio
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes

from polybus.wire.tbus.packets import (
    ConnAck,
    Connect,
    ConnectReason,
    Publish,
    ReqAck,
    RequestState,
)
from tests.client.certificates import Certificates
from tests.e2e import paho_peers, tbus_peer
from tests.e2e.conftest import StartBus
from tests.e2e.processes import Program, Served, eventually, polybus, run, unique
from tests.e2e.tbus_peer import TbusPeer
from tests.e2e.traffic import Exchange

BOTH = ("tcp", "tbus")
CROWD = 500
LATE_S = 3.0
"""How much later than its request a service appears."""
NO_SERVICE = b"no service is subscribed to this topic"
FULL = b"the storage is full, and this was deleted to make room"
NO_ROOM = b"there is no room to store it"

needs_mosquitto = pytest.mark.skipif(
    not shutil.which("mosquitto_sub"), reason="mosquitto-clients is not installed"
)


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("bus"), certificates, "", BOTH) as served:
        yield served
        served.check_health()


# -- each protocol asks, each serves ---------------------------------------------------------------------


def test_mqtt_asks_and_tbus_serves(bus: Served) -> None:
    topic = unique()
    with tbus_peer.connected(bus.ports["tbus"]) as service, paho_peers.connected(bus) as asker:
        service.subscribe(topic, concurrency=2)
        first, second = asker.request(topic, "14"), asker.request(topic, "x", "managed, priority")
        requests = [service.given(), service.given()]
        assert [(r.topic, r.payload, r.is_priority) for r in requests] == [
            (topic, b"14", False),
            (topic, b"x", True),
        ]
        assert all(0 < (r.timeout_s or 0) <= 20 for r in requests)
        service.answer(requests[0], b"42")
        assert asker.end(first) == ("answered", b"42")
        service.fail(requests[1], "x is no number")
        assert asker.end(second) == ("error", b"x is no number")
        service.check_quiet()


def test_tbus_asks_and_mqtt_serves(bus: Served) -> None:
    topic = unique()
    with tbus_peer.connected(bus.ports["tbus"]) as asker, paho_peers.connected(bus) as service:
        service.serve(topic)
        packet_id = asker.request(topic, b"14", timeout_s=20)
        request = service.get()
        assert (request.topic, request.payload, request.qos) == (topic, b"14", 0)
        assert dict(request.properties.UserProperty) == {"polybus-request": "managed"}
        service.answer(request, "42")
        assert asker.end(packet_id) == ("answered", b"42")
        packet_id = asker.request(topic, b"x", is_priority=True)
        service.answer(service.get(), "x is no number", polybus_status="error")
        assert asker.end(packet_id) == ("REQACK 13", b"x is no number")
        assert asker.end(asker.request(unique(), b"?")) == ("REQACK 12", NO_SERVICE)
        asker.check_quiet()


def test_requests_in_a_bulk_and_their_answers(bus: Served) -> None:
    topic = unique()
    with (
        tbus_peer.connected(bus.ports["tbus"], bulk_limit=60_000) as asker,
        tbus_peer.connected(bus.ports["tbus"], bulk_limit=60_000) as service,
    ):
        service.subscribe(topic, concurrency=100)
        requests = [asker.new_request(topic, b"%d" % number) for number in range(100)]
        asker.send_bulk(*requests)
        for number in range(100):
            request = service.given()
            assert request.payload == b"%d" % number
            service.answer(request, b"answer %d" % number)
        for number, request in enumerate(requests):
            assert asker.end(request.packet_id or 0) == ("answered", b"answer %d" % number)
        assert service.bulks >= 1


# -- time ------------------------------------------------------------------------------------------------


def test_a_request_that_nobody_answers_times_out(bus: Served, tmp_path: Path) -> None:
    topic = unique()
    with (
        Program([sys.executable, "-m", "tests.e2e.tbus_peer", str(bus.ports["tbus"]), topic], tmp_path) as lazy,
        paho_peers.connected(bus) as paho,
        tbus_peer.connected(bus.ports["tbus"]) as tbus,
    ):
        lazy.wait_for("ready")
        packet_id = tbus.request(topic, b"of TBus", timeout_s=1)
        correlation_data = paho.request(topic, "of MQTT", timeout_s=1)
        assert paho.end(correlation_data) == ("timed-out", b"no answer in time")
        assert tbus.end(packet_id) == ("REQACK 11", b"no answer in time")
        lazy.wait_for("of MQTT")
        lazy.wait_for("of TBus")


def test_a_service_that_appears_later_is_waited_for(bus: Served) -> None:
    topic = unique()
    with (
        paho_peers.connected(bus) as paho,
        tbus_peer.connected(bus.ports["tbus"]) as asker,
        tbus_peer.connected(bus.ports["tbus"]) as service,
    ):
        correlation_data = paho.request(topic, "of MQTT", "managed, waiting", timeout_s=30)
        packet_id = asker.request(topic, b"of TBus", timeout_s=30)
        asker.check_quiet()
        time.sleep(LATE_S)  # what is shown is that it may be so long
        service.subscribe(topic)
        for _ in range(2):
            request = service.given()
            service.answer(request, b"late: " + request.payload)
        assert paho.end(correlation_data) == ("answered", b"late: of MQTT")
        assert asker.end(packet_id) == ("answered", b"late: of TBus")


def test_the_answer_waits_for_a_requester_that_is_away(bus: Served) -> None:
    topic, client_id = unique(), unique("asker")
    with tbus_peer.connected(bus.ports["tbus"]) as service:
        service.subscribe(topic)
        with tbus_peer.connected(bus.ports["tbus"], client_id) as asker:
            packet_id = asker.request(topic, b"?", timeout_s=30)
            request = service.given()
        service.check_quiet()
        service.answer(request, b"!")
        service.check_quiet()
        with tbus_peer.connected(bus.ports["tbus"], client_id) as asker:
            assert asker.end(packet_id) == ("answered", b"!")


# -- canceling ---------------------------------------------------------------------------------------------


def test_tbus_cancels_and_mqtt_stops(bus: Served) -> None:
    topic = unique()
    with tbus_peer.connected(bus.ports["tbus"]) as asker, paho_peers.connected(bus) as service:
        codes: list[int] = []
        service.client.on_publish = lambda _c, _u, _mid, code, _properties: codes.append(code.value)
        service.serve(topic)
        packet_id = asker.request(topic, b"14", timeout_s=20)
        request = service.get()
        asker.cancel(packet_id)
        stop = service.get()
        assert (stop.topic, stop.payload) == (topic, b"")
        assert dict(stop.properties.UserProperty) == {"polybus-request": "cancel"}
        assert stop.properties.ResponseTopic == request.properties.ResponseTopic
        assert asker.end(packet_id) == ("REQACK 6", b"canceled by its requester")
        service.answer(request, "too late")
        assert codes == [0x87]
        asker.check_quiet()


def test_mqtt_cancels_and_tbus_stops(bus: Served) -> None:
    topic = unique()
    with paho_peers.connected(bus) as asker, tbus_peer.connected(bus.ports["tbus"]) as service:
        service.subscribe(topic)
        correlation_data = asker.request(topic, "14")
        request = service.given()
        said = paho_peers.properties(
            PacketTypes.PUBLISH, CorrelationData=correlation_data, UserProperty=("polybus-request", "cancel")
        )
        asker.publish(topic, "", properties=said)
        assert request.packet_id is not None
        stop = ReqAck(request.packet_id, RequestState.CANCELED, request.response_destination, topic)
        assert service.receive() == stop
        assert asker.end(correlation_data) == ("canceled", b"canceled by its requester")
        service.answer(request, b"too late")
        refused = service.receive()
        assert isinstance(refused, ReqAck)
        assert refused.state is RequestState.UNKNOWN


# -- messages ------------------------------------------------------------------------------------------------


@needs_mosquitto
def test_messages_cross_to_mosquitto_and_back(bus: Served, tmp_path: Path) -> None:
    topic = unique()
    address = ["-h", "127.0.0.1", "-p", str(bus.port), "-V", "mqttv311", "-t", topic]
    command = ["stdbuf", "-oL", "mosquitto_sub", *address, "-d", "-F", ">%t %q %r %p"]
    with Program(command, tmp_path) as sub, tbus_peer.connected(bus.ports["tbus"]) as tbus:
        sub.wait_for("Subscribed")
        tbus.send(Publish(topic, b"from TBus"), Publish(topic, b"with priority", is_priority=True))
        sub.wait_for(f">{topic} 0 0 from TBus\n")
        sub.wait_for(f">{topic} 0 0 with priority\n")
        tbus.subscribe(topic)
        for qos in "012":
            done = run("mosquitto_pub", *address, "-m", f"from mosquitto {qos}", "-q", qos)
            assert (done.returncode, done.stderr) == (0, "")
        received = [tbus.receive() for _ in range(3)]
        assert received == [Publish(topic, b"from mosquitto %d" % qos) for qos in range(3)]


@needs_mosquitto
def test_a_message_of_tbus_waits_for_mosquitto(bus: Served) -> None:
    topic = unique()
    with tbus_peer.connected(bus.ports["tbus"]) as tbus:
        tbus.send(Publish(topic, b"later", timeout_s=30), Publish(topic, b"lost"))
        tbus.send(Publish(topic, b"first", timeout_s=30, is_priority=True))
        tbus.check_quiet()
    address = ["-h", "127.0.0.1", "-p", str(bus.port), "-V", "mqttv311", "-t", topic]
    assert run("mosquitto_sub", *address, "-C", "2").stdout == "first\nlater\n"


# -- what the storage holds ------------------------------------------------------------------------------------


def stored(bus: Served, *arguments: str) -> str:
    """What `polybus ctl memory-limit` says of messages: "used of limit"."""
    done = polybus("ctl", "memory-limit", *arguments, "--url", bus.url())
    assert done.returncode == 0, done.stderr
    found = re.search(r"^messages: (.*)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return found[1]


def test_the_storage_is_full(start_bus: StartBus) -> None:
    bus = start_bus(kinds=BOTH)
    with (
        tbus_peer.connected(bus.ports["tbus"]) as tbus,
        tbus_peer.connected(bus.ports["tbus"]) as reader,
        paho_peers.connected(bus) as paho,
    ):
        tbus.send(Publish("$memoryLimit", b"\x013"))  # an encoded string: its length, then the text
        for number in range(3):
            tbus.send(Publish(f"message/{number}", b"%d" % number, timeout_s=60))
        tbus.check_quiet()
        assert stored(bus) == "3 of 3"
        urgent = tbus.request("jobs/urgent", b"u", timeout_s=60, is_priority=True)
        tbus.check_quiet()
        reader.subscribe("message/0")
        reader.check_quiet()  # the oldest message was pushed out
        assert stored(bus) == "3 of 3"
        regular = paho.request("jobs/regular", "r", "managed, waiting", timeout_s=60)
        reader.subscribe("message/1")
        reader.check_quiet()
        old = tbus.request("jobs/old", b"o", timeout_s=60)
        tbus.check_quiet()
        assert stored(bus) == "3 of 3"
        assert stored(bus, "2") == "2 of 2"
        assert paho.end(regular) == ("deleted", FULL)
        tbus.check_quiet()
        more = tbus.request("jobs/more", b"m", timeout_s=60, is_priority=True)
        assert tbus.end(old) == ("REQACK 10", FULL)
        assert tbus.end(tbus.request("jobs/regular", b"r", timeout_s=60)) == ("REQACK 10", NO_ROOM)
        assert stored(bus, "0") == "0 of 0"
        assert {tbus.end(urgent), tbus.end(more)} == {("REQACK 10", FULL)}
        reader.subscribe("#")
        reader.check_quiet()
    bus.check_health()


def test_a_reload_changes_how_much_is_stored(start_bus: StartBus) -> None:
    bus = start_bus("[limits]\nstored_messages = 4\n", BOTH)
    with tbus_peer.connected(bus.ports["tbus"]) as tbus:
        for number in range(4):
            tbus.send(Publish("t", b"%d" % number, timeout_s=60))
        tbus.check_quiet()
        assert stored(bus) == "4 of 4"
        bus.write_config("[limits]\nstored_messages = 2\n")
        bus.reload()
        assert stored(bus) == "2 of 2"
        tbus.subscribe("t")
        payloads = [tbus.receive(), tbus.receive()]
        assert [p.payload for p in payloads if isinstance(p, Publish)] == [b"2", b"3"]
        tbus.check_quiet()


# -- losses and crowds -------------------------------------------------------------------------------------


def test_a_service_that_is_killed(bus: Served, tmp_path: Path) -> None:
    topic = unique()
    command = [sys.executable, "-m", "tests.e2e.tbus_peer", str(bus.ports["tbus"]), topic]
    with (
        Program(command, tmp_path) as dying,
        tbus_peer.connected(bus.ports["tbus"]) as other,
        tbus_peer.connected(bus.ports["tbus"]) as asker,
        paho_peers.connected(bus) as paho,
    ):
        dying.wait_for("ready")
        other.subscribe(topic, concurrency=9)
        packet_id = asker.request(topic, b"of TBus")
        correlation_data = paho.request(topic, "of MQTT")
        dying.wait_for("of TBus")
        dying.wait_for("of MQTT")
        dying.process.kill()
        for _ in range(2):
            request = other.given()
            other.answer(request, request.payload + b", answered by the other")
        assert asker.end(packet_id) == ("answered", b"of TBus, answered by the other")
        assert paho.end(correlation_data) == ("answered", b"of MQTT, answered by the other")
        asker.check_quiet()
        other.check_quiet()
        assert paho.messages.empty()


def test_one_client_too_many_is_told_where_to_go(start_bus: StartBus) -> None:
    others = "192.0.2.1:5035;192.0.2.2:5036"
    bus = start_bus(f'[limits]\nconnections = 2\n[tbus]\nserver_reference = "{others}"\n', BOTH)
    port = bus.ports["tbus"]
    with tbus_peer.connected(port) as first, paho_peers.connected(bus):
        refused = TbusPeer(port, "third")
        answer = refused.connect()
        refused.close()
        assert (answer.reason, answer.server_reference) == (ConnectReason.CLIENT_LIMIT_REACHED, others)
        assert answer.reason_string
        first.check_quiet()
    bus.check_health()


async def test_many_that_connect_at_once_cost_nobody_anything(bus: Served) -> None:
    """TB-20: the flaw the author of TBus saw. Only losses are counted here."""
    topic, name = unique(), unique("crowd")
    port = bus.ports["tbus"]
    async with Exchange(bus) as exchange:
        with ExitStack() as stack:
            asking = stack.enter_context(Asking(port))
            peers = [TbusPeer(port, f"{name}-{number}") for number in range(CROWD)]
            for peer in peers:
                stack.callback(peer.close)
            for peer in peers:
                peer.send(Connect(peer.client_id))
            answers = await asyncio.to_thread(lambda: [peer.receive() for peer in peers])
            assert answers == [ConnAck()] * CROWD
            await asyncio.to_thread(lambda: [peer.subscribe(topic) for peer in peers])
            peers[0].send(Publish(topic, b"to all"))
            received = await asyncio.to_thread(lambda: [peer.receive() for peer in peers])
            assert received == [Publish(topic, b"to all")] * CROWD
            await exchange.goes_on()
        print(f"{CROWD} at once: {exchange.summary} {asking.answered} requests")


class Asking:
    """Requests from one TBus client to another meanwhile. Leaving it fails unless each got its answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._topic = unique("asking")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> "Asking":
        self._thread.start()
        eventually(lambda: self.answered > 0 or self.failure is not None)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with tbus_peer.connected(self._port) as asker, tbus_peer.connected(self._port) as service:
                service.subscribe(self._topic)
                while not self._is_over.is_set():
                    payload = b"%d" % self.answered
                    packet_id = asker.request(self._topic, payload)
                    service.answer(service.given(), payload)
                    assert asker.end(packet_id) == ("answered", payload)
                    self.answered += 1
                asker.check_quiet()
                service.check_quiet()
        except BaseException as error:
            self.failure = error
