"""What an MQTT client is told: acknowledgements, refusals, last words, each no longer than it takes."""

from typing import Final

import msgspec

from polybus.broker.broker import Broker
from polybus.broker.links import EndCause, Port
from polybus.broker.message import Delivery
from polybus.errors import PeerError
from polybus.session.mqtt.connecting import RETURN_CODES
from polybus.session.mqtt.encoding import encode_duplicate
from polybus.session.mqtt.options import MqttOptions
from polybus.session.mqtt.reader import MqttReader
from polybus.wire.mqtt.checks import REASON_CODES
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    ConnAck,
    ConnectReturnCode,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    PubAck,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
)

END_REASONS: Final = {
    EndCause.TAKEN_OVER: ReasonCode.SESSION_TAKEN_OVER,
    EndCause.SHUTTING_DOWN: ReasonCode.SERVER_SHUTTING_DOWN,
    EndCause.KEEP_ALIVE_TIMEOUT: ReasonCode.KEEP_ALIVE_TIMEOUT,
}


class MqttReplies(MqttReader):
    __slots__ = ("_max_packet_size", "_options", "_says_why")

    def __init__(
        self,
        broker: Broker,
        port: Port,
        options: MqttOptions,
        *,
        peer: str = "",
        certificate_name: str | None = None,
        now: float,
    ) -> None:
        super().__init__(broker, port, peer=peer, certificate_name=certificate_name, now=now)
        self._options = options
        self._max_packet_size: int | None = None
        self._says_why = True
        """The client wants reason strings (Request Problem Information)."""

    def _acknowledge(self, packet: Packet) -> None:
        """Reply once everything that came before is safe."""
        self.broker.hold(self, self._frame(packet))

    def _reply(self, packet: Packet) -> None:
        self.reply(self._frame(packet))

    def _frame(self, packet: Packet) -> bytes:
        frame = encode(packet, self.version)
        limit = self._max_packet_size
        if limit is None or len(frame) <= limit:
            return frame
        if isinstance(packet, PubAck | PubRec | SubAck) and packet.properties is not NO_PROPERTIES:
            return self._frame(msgspec.structs.replace(packet, properties=NO_PROPERTIES))  # [MQTT-3.4.2-2]
        raise PeerError(
            ReasonCode.PACKET_TOO_LARGE, "the answer is larger than the client takes", "MQTT-3.1.2-24"
        )

    def encode_again(self, packet_id: int, delivery: Delivery | None, now: float) -> bytes | None:
        if delivery is None:
            return encode(PubRel(packet_id), self.version)
        return encode_duplicate(delivery, packet_id, self.version, self._max_packet_size, now)

    def say_ended(self, cause: EndCause) -> None:
        if self.version == V5:
            reference = self._options.server_reference if cause is EndCause.SHUTTING_DOWN else ""
            self._last_word(Disconnect(END_REASONS[cause], Properties(server_reference=reference or None)))

    def say_failed(self, error: PeerError) -> None:
        if self.version == V5:
            self._last_word(Disconnect(error.reason_code, Properties(reason_string=self._why(error))))

    def refuse(self, error: PeerError) -> None:
        """A CONNECT that is not accepted. Before one could be read there is nobody to answer."""
        code = error.reason_code
        if not self.is_greeted and code != ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            return
        if self.version == V5:
            reference = self._options.server_reference if code == ReasonCode.QUOTA_EXCEEDED else ""
            properties = Properties(reason_string=self._why(error), server_reference=reference or None)
            self._last_word(ConnAck(code, False, properties))
        elif (return_code := RETURN_CODES.get(ReasonCode(code))) is not None:
            self._last_word(ConnAck(ConnectReturnCode(return_code)))

    def _why(self, error: PeerError) -> str | None:
        return error.text if self._says_why else None

    def _last_word(self, packet: ConnAck | Disconnect) -> None:
        limit = self._max_packet_size
        kind = PacketType.CONNACK if isinstance(packet, ConnAck) else PacketType.DISCONNECT
        if self.version == V5 and packet.reason_code not in REASON_CODES[kind]:
            packet = msgspec.structs.replace(packet, reason_code=ReasonCode.PROTOCOL_ERROR)
        frame = encode(packet, self.version)
        if limit is not None and len(frame) > limit:
            frame = encode(msgspec.structs.replace(packet, properties=NO_PROPERTIES), self.version)
            if len(frame) > limit:
                return
        self.say_last(frame)
