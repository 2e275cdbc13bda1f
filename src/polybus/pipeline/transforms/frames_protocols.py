"""Which protocol a conversation speaks: what one was told, what it begins with, or what it can be read as."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from polybus.errors import PeerError, UsageError
from polybus.pipeline.transforms import frames_mqttsn, frames_textudp
from polybus.pipeline.transforms.frames_amqp import AmqpDecoder
from polybus.pipeline.transforms.frames_mqtt import MqttDecoder
from polybus.pipeline.transforms.frames_mqttsn import MqttSnDecoder
from polybus.pipeline.transforms.frames_tbus import TBusDecoder
from polybus.pipeline.transforms.frames_textudp import TextUdpDecoder
from polybus.pipeline.transforms.frames_tls import TlsDecoder
from polybus.pipeline.transforms.frames_types import Decoder, Unreadable
from polybus.wire.tbus import codec as tbus
from polybus.wire.tbus.packets import Connect

UNKNOWN: Final = "unknown"

DECODERS: Final[Mapping[str, Callable[[], Decoder]]] = {
    "mqtt": MqttDecoder,
    "tbus": TBusDecoder,
    "amqp": AmqpDecoder,
    "tls": TlsDecoder,
    "mqtt-sn": MqttSnDecoder,
    "text-udp": TextUdpDecoder,
}
OVER_TCP: Final = ("amqp", "mqtt", "tbus", "tls")
OVER_UDP: Final = ("text-udp", "mqtt-sn")

TCP_PORTS: Final[Mapping[int, str]] = {1883: "mqtt", 5035: "tbus", 5672: "amqp", 5671: "tls", 8883: "tls"}
UDP_PORTS: Final[Mapping[int, str]] = {50000: "text-udp"}
"""What usually listens where, for conversations whose beginning is not in the capture."""

_LEAST_READABLE: Final = 0.9
_MOST_LOOKED_AT: Final = 200


def check_ports(ports: Mapping[int, str]) -> None:
    """Raises UsageError for a protocol that there is no decoder for."""
    for port, protocol in ports.items():
        if protocol not in DECODERS and protocol != UNKNOWN:
            raise UsageError(
                f"port {port}: nothing reads {protocol!r}; there are {', '.join(DECODERS)}, and {UNKNOWN}"
            )


def by_beginning(data: bytes) -> str | None:
    """The protocol that a client's first bytes belong to."""
    if data.startswith(b"AMQP"):
        return "amqp"
    if len(data) > 2 and data[0] == 0x16 and data[1] == 3 and data[2] <= 4:
        return "tls"
    if data[:1] == b"\x10" and (b"\x00\x04MQTT" in data[2:12] or b"\x00\x06MQIsdp" in data[2:14]):
        return "mqtt"
    try:
        frame = tbus.next_frame(data, 0, 1 << 20)
        if frame is not None and isinstance(tbus.decode(frame[0], data[frame[1] : frame[2]]), Connect):
            return "tbus"
    except PeerError:
        pass
    return None


def by_datagrams(datagrams: Sequence[bytes]) -> str | None:
    """The protocol that nearly all datagrams of a conversation can be read as."""
    looked_at = datagrams[:_MOST_LOOKED_AT]
    if not looked_at:
        return None
    for protocol in OVER_UDP:
        readable = sum(_is_message(protocol, datagram) for datagram in looked_at)
        if readable >= _LEAST_READABLE * len(looked_at):
            return protocol
    return None


def _is_message(protocol: str, datagram: bytes) -> bool:
    if protocol == "text-udp":
        return datagram[:3] in frames_textudp.TYPES and datagram[3:8] == b"MQTT|"
    try:
        _, name, size = frames_mqttsn.header(datagram)
    except Unreadable:
        return False
    return size == len(datagram) or name == "ENCAPSULATED"
