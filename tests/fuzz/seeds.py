"""What mutations start from: lawful packets of every type and version, the shared vectors, and requests."""

from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings

from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V31,
    V311,
    Packet,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from tests.wire.mqtt import vectors
from tests.wire.mqtt.strategies import kinds, packets_of

CLIENT_KINDS = frozenset(PacketType) - {
    PacketType.CONNACK,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.PINGRESP,
}


@cache
def corpus(version: int, each: int = 20) -> tuple[bytes, ...]:
    """Encoded packets, those that clients send more often than others."""
    found: list[bytes] = []
    for kind in kinds(version):
        found += _examples(kind, version, each if kind in CLIENT_KINDS else 3)
    found += [case.data for case, at in vectors.packet_cases() + vectors.error_cases() if at == version]
    found += [encode(packet, version) for packet in REQUESTS if version == V5] * 4
    return tuple(found)


def _examples(kind: PacketType, version: int, count: int) -> list[bytes]:
    found: list[bytes] = []

    # The same every time: a failure is to be found again from its seed alone.
    @seed(version * 100 + kind)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(packets_of(kind, version))
    def collect(packet: Packet) -> None:
        found.append(encode(packet, version))

    collect()
    return found


VERSIONS = (V31, V311, V5)

JOBS = "fuzz/jobs"
ENDS = "fuzz/ends"


def request(
    how: str,
    payload: bytes = b"?",
    *,
    topic: str = JOBS,
    qos: int = 1,
    ends: str = ENDS,
    correlation: bytes = b"c",
) -> Publish:
    pairs = (("polybus-request", how),)
    said = Properties(
        response_topic=ends, correlation_data=correlation, message_expiry_s=10, user_properties=pairs
    )
    return Publish(topic, payload, qos, packet_id=9 if qos else 0, properties=said)


def message(how: str, **more: int) -> Publish:
    return Publish(
        "fuzz/later", b"x", properties=Properties(user_properties=(("polybus-message", how),), **more)
    )


def service(takes: str) -> Subscribe:
    offer = Properties(user_properties=(("polybus-service", takes),))
    return Subscribe(8, (SubscriptionRequest(JOBS, 1), SubscriptionRequest("fuzz/+/#")), offer)


def answer(topic: str, qos: int = 1, status: str = "") -> Publish:
    said = Properties(user_properties=(("polybus-status", status),)) if status else Properties()
    return Publish(topic, b"!", qos, packet_id=7 if qos else 0, properties=said)


REQUESTS: tuple[Packet, ...] = (
    *(request(how, qos=qos) for how in ("managed", "managed, waiting, priority") for qos in (0, 1, 2)),
    request("managed, waiting", topic="fuzz/nobody"),
    request("cancel", b""),
    request("urgent"),
    *(request("managed", limit, topic="$memoryLimit") for limit in (b"", b"5", b"\x0220", b"many")),
    *(message(how) for how in ("waiting", "priority", "waiting, priority")),
    message("waiting", message_expiry_s=5),
    *(service(takes) for takes in ("1", "3", "yes", "none")),
    Subscribe(6, (SubscriptionRequest(ENDS, 2), SubscriptionRequest(JOBS))),
    *(answer(f"$polybus/answers/{n}", qos) for n, qos in ((1, 0), (2, 1), (3, 2), ("what", 1))),
    answer("$polybus/answers/1", 2, "error"),
)
"""What requesters and services say (docs/requests.md)."""
