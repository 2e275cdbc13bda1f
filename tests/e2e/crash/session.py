"""What an MQTT client remembers of its session: packet ids, what is not acknowledged, QoS 2 both ways. Pure.

Like a client that never dies. The broker does, so this outlives connections, and `resume` says what the
standard wants to be sent again, in which order, and with which flags.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from polybus.wire.mqtt.packets import (
    V5,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
)

FAILED = ReasonCode.UNSPECIFIED_ERROR
"""Reason codes from here on refuse."""


@dataclass(frozen=True)
class Accepted:
    """The broker has taken responsibility: PUBACK, or PUBREC. `token` is what `publish` was given."""

    token: object
    reason_code: int = 0
    reason: str | None = None

    @property
    def is_refused(self) -> bool:
        return self.reason_code >= FAILED


@dataclass(frozen=True)
class Completed:
    """PUBCOMP."""

    token: object


@dataclass(frozen=True)
class Arrived:
    """A message for the application, which gets a QoS 2 message once however often it is sent."""

    message: Publish


@dataclass(frozen=True)
class Strange:
    """What the broker may not do."""

    what: str


Event = Accepted | Completed | Arrived | Strange


@dataclass
class Outgoing:
    packet: Publish
    token: object
    is_released: bool = False


@dataclass
class ClientSession:
    version: int = V5
    outgoing: dict[int, Outgoing] = field(default_factory=dict)
    """In the order of the first sending, which is the order of sending again [MQTT-4.6.0-1]."""
    incoming: dict[int, bytes] = field(default_factory=dict)
    """QoS 2: ids whose message was handed over and whose PUBREL has not come -> its payload."""
    _last_id: int = 0

    def next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 0xFFFF + 1
            if self._last_id not in self.outgoing:
                return self._last_id

    def publish(self, message: Publish, token: object) -> Publish:
        """The packet to send; at QoS 1 and 2 it is remembered until it is acknowledged."""
        if message.qos == 0:
            return message
        packet = replace(message, packet_id=self.next_id())
        self.outgoing[packet.packet_id] = Outgoing(packet, token)
        return packet

    def resume(self, *, is_present: bool) -> list[Packet]:
        """What to send after CONNACK."""
        if is_present:
            return [
                PubRel(packet_id) if out.is_released else replace(out.packet, dup=True)
                for packet_id, out in self.outgoing.items()
            ]
        # [MQTT-4.1.0-1] with the session goes its state. What the broker never took the application sends anew;
        # of what it had taken (PUBREC) the application knows no more than that.
        self.incoming.clear()
        self.outgoing = {key: out for key, out in self.outgoing.items() if not out.is_released}
        return [out.packet for out in self.outgoing.values()]

    def receive(self, packet: Packet) -> tuple[list[Event], list[Packet]]:
        """What it means, and what to reply."""
        match packet:
            case Publish():
                return self._arrive(packet)
            case PubRel():
                self.incoming.pop(packet.packet_id, None)
                return [], [PubComp(packet.packet_id)]
            case PubAck() | PubRec() | PubComp():
                return self._acknowledged(packet)
            case _:
                return [], []

    def _arrive(self, packet: Publish) -> tuple[list[Event], list[Packet]]:
        if packet.qos == 0:
            return [Arrived(packet)], []
        if packet.qos == 1:
            return [Arrived(packet)], [PubAck(packet.packet_id)]
        reply: list[Packet] = [PubRec(packet.packet_id)]
        known = self.incoming.get(packet.packet_id)
        if known is None:
            self.incoming[packet.packet_id] = packet.payload
            return [Arrived(packet)], reply
        if known != packet.payload:
            # A client that follows the standard takes it for the old message, and the new one is lost.
            return [
                Strange(
                    f"QoS 2 id {packet.packet_id} is in use for {known!r}, and came with {packet.payload!r}"
                )
            ], reply
        return [], reply

    def _acknowledged(self, packet: PubAck | PubRec | PubComp) -> tuple[list[Event], list[Packet]]:
        packet_id, code = packet.packet_id, packet.reason_code
        out = self.outgoing.get(packet_id)
        name = type(packet).__name__.upper()
        if out is None:
            strange: list[Event] = [Strange(f"{name} for id {packet_id}, which is not in use")]
            return strange, [PubRel(packet_id)] if isinstance(packet, PubRec) else []
        if isinstance(packet, PubComp):
            if not out.is_released:
                return [Strange(f"PUBCOMP for id {packet_id} before its PUBREC")], []
            del self.outgoing[packet_id]
            return [Completed(out.token)], []
        if (out.packet.qos == 1) is not isinstance(packet, PubAck):
            return [Strange(f"{name} for id {packet_id}, which is of QoS {out.packet.qos}")], []
        accepted = Accepted(out.token, code, packet.properties.reason_string)
        if isinstance(packet, PubAck) or accepted.is_refused:
            del self.outgoing[packet_id]
            return [accepted], []
        was_released, out.is_released = out.is_released, True
        return [] if was_released else [accepted], [PubRel(packet_id)]
