"""Runs in another protocol's bytes: the short way gives what the long way gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.dispatch import Dispatcher
from polybus.broker.limits import Limits
from polybus.broker.links import Encoding
from polybus.broker.message import Delivery, Message, Run
from polybus.broker.stats import Stats
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.session.tbus.crossing import neighbor_encoding
from polybus.session.tbus.encoding import TBUS

SOURCES: tuple[Encoding, ...] = (MQTT_311, MQTT_5, TBUS)
TARGETS: tuple[Encoding, ...] = (*SOURCES, neighbor_encoding(1 << 20))


def written(encoding: Encoding, topic: str, payload: bytes) -> bytes:
    parts = encoding.frame(Delivery(Message(topic, payload), 0, False), 0.0)
    assert parts is not None
    return b"".join(parts)


def run_of(encoding: Encoding, messages: list[tuple[str, bytes]]) -> Run:
    return Run(b"".join(written(encoding, *each) for each in messages), len(messages), encoding, "p")


@given(
    source=st.sampled_from(SOURCES),
    target=st.sampled_from(TARGETS),
    topic=st.sampled_from(["t", "a/longer/topic", "ü" * 40]),
    payloads=st.integers(0, 300).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=2, max_size=5)
    ),
)
def test_alike(source: Encoding, target: Encoding, topic: str, payloads: list[bytes]) -> None:
    dispatcher = Dispatcher(Limits(), Stats(), drop_oldest=False, queue_qos0=False)
    run = run_of(source, [(topic, payload) for payload in payloads])
    expected = b"".join(written(target, topic, payload) for payload in payloads)
    assert dispatcher._restack(target, run) == expected


@given(
    source=st.sampled_from(SOURCES),
    messages=st.lists(
        st.tuples(st.sampled_from(["t", "u", "tt"]), st.binary(max_size=3)), min_size=1, max_size=6
    ),
)
def test_what_is_not_alike_is_noticed(source: Encoding, messages: list[tuple[str, bytes]]) -> None:
    found = run_of(source, messages).alike()
    are_alike = len({topic for topic, _ in messages}) == 1 and len({len(p) for _, p in messages}) == 1
    assert (found is not None) == (are_alike and len(messages) > 1)
    if found is not None:
        assert (found.topic, found.payload) == messages[0]


@pytest.mark.parametrize("source", SOURCES)
def test_a_short_one_and_a_long_one_are_not_two_of_the_average(source: Encoding) -> None:
    assert run_of(source, [("t", b"1"), ("t", b"123")]).alike() is None
