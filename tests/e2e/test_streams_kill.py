"""`kill -9` at any moment: what was acknowledged is in the stream, once, and offsets go on."""

import itertools
import os
import random
import signal
import threading
from pathlib import Path

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5

from tests.e2e.conftest import StartBus
from tests.e2e.paho_peers import connected
from tests.e2e.processes import eventually
from tests.store.streams.records import read_files

CONFIG = """
[http]
enabled = false
[[stream]]
name = "all"
filters = ["#"]
partitions = 2
segment_bytes = 20000
"""
SEED = int(os.environ.get("POLYBUS_SEED", random.SystemRandom().randrange(1 << 32)))


class Publisher:
    """Publishes numbers at QoS 1 as fast as they are acknowledged, and notes which were."""

    def __init__(self, port: int, numbers: range) -> None:
        self.acknowledged: list[int] = []
        self._numbers = iter(numbers)
        self._sent: dict[int, int] = {}
        self._lock = threading.Lock()
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for _ in range(20):
            self._publish()

    def _publish(self) -> None:
        number = next(self._numbers, None)
        if number is not None:
            with self._lock:
                mid = self._client.publish(f"kill/{number % 7}", str(number), qos=1).mid
                self._sent[mid] = number

    def _on_publish(self, _client: object, _data: object, mid: int, *_rest: object) -> None:
        with self._lock:
            number = self._sent.pop(mid, None)
        if number is not None:
            self.acknowledged.append(number)
        self._publish()

    def stop(self) -> None:
        self._client.loop_stop()


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_what_was_acknowledged_survives(start_bus: StartBus, tmp_path: Path, sync: str) -> None:
    print(f"POLYBUS_SEED={SEED}")
    chance = random.Random(SEED)
    config = f'[store]\nsync = "{sync}"\n{CONFIG}'
    acknowledged: list[int] = []
    seen: dict[tuple[str, int], object] = {}
    for round_number in range(4):
        bus = start_bus(config, folder=tmp_path)
        publisher = Publisher(bus.port, range(round_number * 1_000_000, (round_number + 1) * 1_000_000))
        goal = chance.randrange(50, 600)
        eventually(lambda: len(publisher.acknowledged) >= goal, lambda: bus.log)  # noqa: B023 (called at once)
        bus.signal(signal.SIGKILL)
        bus.process.wait()
        publisher.stop()
        acknowledged += publisher.acknowledged
        for partition in ("0", "1"):
            for record in _whole_records(tmp_path / "data/streams/all" / partition):
                key = (partition, record["offset"])
                # An offset that was seen once means the same for ever.
                assert seen.setdefault(key, record["payload"]) == record["payload"]
    bus = start_bus(config, folder=tmp_path)
    with connected(bus) as peer:
        peer.publish("kill/last", b"-1")
    bus.__exit__()
    records = read_files(tmp_path / "data/streams/all")
    numbers = [int(record["payload"]) for record in records]  # type: ignore[call-overload]
    assert set(acknowledged) <= set(numbers)
    assert len(set(numbers)) == len(numbers)
    assert -1 in numbers
    for partition in ("0", "1"):
        offsets = [r["offset"] for r in read_files(tmp_path / "data/streams/all" / partition)]
        # Those of what was not committed when it was killed are left out.
        assert all(one < other for one, other in itertools.pairwise(offsets))  # type: ignore[operator]
        assert {offset for place, offset in seen if place == partition} <= set(offsets)
        by_topic: dict[object, list[int]] = {}
        for record in read_files(tmp_path / "data/streams/all" / partition):
            by_topic.setdefault(record["topic"], []).append(int(record["payload"]))  # type: ignore[call-overload]
        for in_order in by_topic.values():
            assert in_order == sorted(in_order) or in_order[-1] == -1


def _whole_records(folder: Path) -> list[dict[str, object]]:
    from polybus.store.streams.partition import load_segments
    from polybus.store.streams.segment import read_batch

    return [
        record
        for segment in load_segments(folder)
        for batch in segment.index()
        for record in read_batch(segment.path, batch).to_pylist()
    ]
