"""A bus that is killed, as only the kernel can, and started again: what it acknowledged is there (OP-01)."""

from pathlib import Path

import pytest

from tests.e2e.conftest import StartBus
from tests.e2e.paho_peers import connected, kept
from tests.e2e.processes import unique

VERSIONS = pytest.mark.parametrize("version", ["3.1.1", "5"])


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_kept_sessions_and_their_messages(start_bus: StartBus, tmp_path: Path, version: str, qos: int) -> None:
    bus = start_bus(folder=tmp_path)
    client_id, topic = unique("kept"), unique("topic")
    with connected(bus, version, client_id=client_id, **kept(version)) as subscriber:
        subscriber.subscribe(topic, qos)
    with connected(bus, version) as publisher:
        for number in range(50):
            publisher.publish(topic, str(number), qos)
        publisher.publish("last/value", b"kept", 1, retain=True)
    bus.kill()
    bus = start_bus(folder=tmp_path)
    with connected(bus, version, client_id=client_id, **kept(version)) as subscriber:
        assert subscriber.session_present
        assert [subscriber.get().payload for _ in range(50)] == [b"%d" % n for n in range(50)]
        subscriber.subscribe("last/#", 1)
        assert subscriber.get().payload == b"kept"
        assert subscriber.messages.empty()
    bus.check_health()
