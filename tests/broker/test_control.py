"""The broker told things by messages and requests: `$memoryLimit` (TB-13)."""

import json

import pytest

from polybus.broker.limits import Limits
from polybus.broker.message import OVERHEAD_BYTES
from tests.broker.bus import Bus


@pytest.mark.parametrize("payload", [b"7", b"\x017", b"007", b"\x0300" + b"7"])
@pytest.mark.parametrize("topic", ["$memoryLimit", "$memoryLimit/bytes"])
@pytest.mark.parametrize("as_request", [False, True])
def test_memory_limit(payload: bytes, topic: str, as_request: bool) -> None:
    bus = Bus(Limits(stored_messages=500, stored_bytes=1000))
    asker = bus.join("a")
    storage = bus.broker.storage
    if as_request:
        asker.request(topic, payload)
    else:
        asker.publish(topic, payload)
    expected = (7, 1000) if topic == "$memoryLimit" else (500, 7)
    assert (storage.max_messages, storage.max_bytes) == expected
    if as_request:
        [(state, answer)] = asker.ends()
        assert state == "ANSWERED"
        assert json.loads(answer) == {
            "messages": {"limit": expected[0], "used": 0},
            "bytes": {"limit": expected[1], "used": 0},
        }
    assert asker.frames() == []
    bus.check_empty()


@pytest.mark.parametrize("topic", ["$memoryLimit", "$memoryLimit/bytes"])
def test_asking_for_the_limit_changes_nothing(topic: str) -> None:
    bus = Bus(Limits(stored_messages=5, stored_bytes=1000))
    asker = bus.join("a")
    asker.request("t", b"x" * 10, timeout_s=100)
    asker.request(topic, b"", timeout_s=100)
    [(_, answer)] = asker.ends()
    used = OVERHEAD_BYTES + 11
    assert json.loads(answer) == {"messages": {"limit": 5, "used": 1}, "bytes": {"limit": 1000, "used": used}}


BAD = [
    b"x",
    b"-1",
    b"1.5",
    b" 7",
    b"7\n",
    b"\x00",
    b"\x027",
    b"\x01x",
    b"9" * 14,
    b"2000000000000",
    "७".encode(),
]


@pytest.mark.parametrize("payload", BAD)
@pytest.mark.parametrize("as_request", [False, True])
def test_a_limit_that_is_none(payload: bytes, as_request: bool) -> None:
    bus = Bus(Limits(stored_messages=5))
    asker = bus.join("a")
    if as_request:
        asker.request("$memoryLimit", payload)
        [end] = asker.take_ends("ERROR")
        assert "whole number" in end.reason
    else:
        asker.publish("$memoryLimit", payload)
    assert bus.broker.storage.max_messages == 5
    assert asker.frames() == []
    bus.check_empty()


def test_the_largest_limit() -> None:
    bus = Bus()
    bus.join("a").publish("$memoryLimit/bytes", b"%d" % (1 << 40))
    assert bus.broker.storage.max_bytes == 1 << 40


def test_the_limit_takes_effect_at_once_and_nobody_hears_of_it() -> None:
    bus = Bus()
    asker, watcher = bus.join("a"), bus.service("w", "$memoryLimit")
    for n in range(3):
        asker.request("t", b"%d" % n, timeout_s=100)
    asker.publish("$memoryLimit", b"1")
    assert len(asker.take_ends("DELETED")) == 2
    assert watcher.frames() == []
    asker.publish("$memoryLimit", b"0", waits_s=10)
    assert len(asker.take_ends("DELETED")) == 1
    bus.check_empty()


def test_the_answer_about_the_limit_waits_like_any() -> None:
    bus = Bus()
    asker = bus.join("a")
    asker.block()
    asker.request("$memoryLimit", b"7", timeout_s=10)
    asker.request("$memoryLimit", b"no", timeout_s=10)
    bus.check()
    asker.unblock()
    assert sorted(state for state, _ in asker.ends()) == ["ANSWERED", "ERROR"]
    bus.check_empty()
