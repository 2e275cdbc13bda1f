"""What mutations start from: lawful packets of every type and version, and the shared vectors."""

from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings

from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import V5, V31, V311, Packet, PacketType
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
