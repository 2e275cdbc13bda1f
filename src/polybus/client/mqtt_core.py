"""An MQTT client's side of a connection, 3.1.1 and 5.0, without I/O and without a clock.

Theory of operation. The core lives as long as the session it keeps, over any number of
connections:

    IDLE --connect()--> CONNECTING --CONNACK--> CONNECTED --disconnect(), Ended--> IDLE
                            \\------- refusal: Ended -------------------------------/

`receive` decodes all there is and returns events; bytes to write gather until `take_output`.
Publishes of QoS 1 and 2 and (un)subscribe requests may be made in any state: they wait for a
connection and for the broker's receive maximum. With each CONNACK the core sends what the session
still owes, in this order: subscriptions that the broker forgot, PUBRELs, publishes that were not
acknowledged, and then what has waited.

The peer's errors end the connection with the reason the standard prescribes and an `Ended` event;
they are never raised. Our caller's errors are raised where they are made.
"""

from enum import Enum, auto
from typing import assert_never

import msgspec

from polybus.client.errors import ClientError, ConnectionLost, ConnectRefused, PublishRefused
from polybus.client.events import Accepted, Completed, CoreEvent, Ended, Failed, Receipt, Received
from polybus.client.keep_alive import KeepAlive, Verdict
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_frames import MAX_FRAME_BYTES, FrameReader
from polybus.client.mqtt_inflight import Inbox, Outbox, Outgoing, PacketIds
from polybus.client.mqtt_limits import ServerLimits
from polybus.client.mqtt_reasons import CONNECT_RETURN_CODES, FINAL_REASONS, describe_reason, is_refusal
from polybus.client.mqtt_requests import Requests, subscribe_packet
from polybus.client.mqtt_settings import MqttSettings
from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.codec import decode, encode
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)


class State(Enum):
    IDLE = auto()
    CONNECTING = auto()
    CONNECTED = auto()


class MqttCore:
    def __init__(self, settings: MqttSettings) -> None:
        self.state = State.IDLE
        self.limits = ServerLimits()
        self._settings = settings
        self._version = settings.version
        self._client_id = settings.client_id
        self._has_session = False  # one that we began ourselves
        packet_ids = PacketIds()
        self._outbox = Outbox(packet_ids)
        self._requests = Requests(packet_ids)
        self._inbox = Inbox(settings.tolerated_unacknowledged)
        self._last_token = 0
        self._frames = FrameReader(settings.maximum_packet_size or MAX_FRAME_BYTES)
        self._output: list[bytes] = []
        self.pending_output = 0
        self._aliases: dict[int, str] = {}
        self._keep_alive = KeepAlive(0, now=0)

    @property
    def has_properties(self) -> bool:
        return self._version >= V5

    # --- connection -------------------------------------------------------------------------------

    def connect(self, *, now: float) -> None:
        self.connection_lost()
        self.state = State.CONNECTING
        self._keep_alive = KeepAlive(0, now=now)
        self._send(self._settings.connect_packet(self._client_id, clean_start=self._wants_clean_start()), now)

    def connection_lost(self) -> None:
        self.state = State.IDLE
        self._frames.clear()
        self._output.clear()
        self.pending_output = 0
        self._aliases.clear()
        self._inbox.pause()
        self._outbox.pause()
        self._requests.pause()

    def disconnect(self, *, now: float) -> None:
        """Say goodbye. The will is not published; the session ends unless a time for it was set."""
        if self.state is State.CONNECTED:
            gives_up = self._settings.gives_up_session
            properties = Properties(session_expiry_s=0) if gives_up else NO_PROPERTIES
            self._send(Disconnect(properties=properties), now)
        self.state = State.IDLE
        self._inbox.pause()

    def deadline(self) -> float | None:
        return self._keep_alive.deadline() if self.state is State.CONNECTED else None

    def tick(self, *, now: float, is_reading: bool = True) -> list[CoreEvent]:
        if self.state is not State.CONNECTED:
            return []
        match self._keep_alive.check(now, is_reading=is_reading):
            case Verdict.PING:
                self.ping(now=now)
            case Verdict.DEAD:
                return [self._end(ConnectionLost("the broker does not answer pings"))]
            case Verdict.FINE:
                pass
        return []

    def ping(self, *, now: float) -> None:
        self._send(PingReq(), now)
        self._keep_alive.pinged(now)

    def take_output(self) -> bytes:
        data = b"".join(self._output)
        self._output.clear()
        self.pending_output = 0
        return data

    # --- operations -------------------------------------------------------------------------------

    def publish(self, message: Message, *, now: float) -> int:
        """QoS 0 needs a connection; QoS 1 and 2 wait for one. Raises `PublishRefused`, `UsageError`."""
        publish = Publish(
            message.topic, message.payload, message.qos, message.retain, False, 0, message.properties
        )
        if message.qos == 0:
            if self.state is not State.CONNECTED:
                raise UsageError("QoS 0 can only be published while connected")
            frame = encode(publish, self._version)
            self.limits.check_publish(message, len(frame))
            self._write(frame, now)
            return 0
        # Encoded for its errors only: the packet id comes when the broker has room for it.
        trial = Publish(
            message.topic, message.payload, message.qos, message.retain, False, 1, message.properties
        )
        size = len(encode(trial, self._version))
        if self.state is State.CONNECTED:
            self.limits.check_publish(message, size)
        token = self._next_token()
        self._outbox.submit(token, publish)
        self._send_waiting([], now)
        return token

    def subscribe(self, options: SubscribeOptions, *, now: float) -> int:
        """Raises `SubscribeRefused`, `UsageError`."""
        encode(subscribe_packet(1, options, with_identifier=False), self._version)  # for its errors only
        if self.state is State.CONNECTED:
            self.limits.check_subscribe(options)
        token = self._next_token()
        self._requests.subscribe(token, options)
        self._send_waiting([], now)
        return token

    def unsubscribe(self, topic_filter: str, *, now: float) -> int:
        token = self._next_token()
        self._requests.unsubscribe(token, topic_filter)
        self._send_waiting([], now)
        return token

    def abandon(self, token: int) -> bool:
        return self._outbox.withdraw(token) or self._requests.withdraw(token)

    def acknowledge(self, receipt: Receipt, *, now: float) -> None:
        answer = self._inbox.handled(receipt)
        if answer is not None and self.state is State.CONNECTED:
            self._send(answer, now)

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes, *, now: float) -> list[CoreEvent]:
        events: list[CoreEvent] = []
        if self.state is State.IDLE:
            return events
        self._keep_alive.received(now)
        try:
            for first_byte, body in self._frames.feed(data):
                self._handle(decode(first_byte, body, self._version), events, now)
                if self._is_over():
                    break
        except PeerError as error:
            events.append(self._blame_peer(error, now))
        return events

    def _handle(self, packet: Packet, events: list[CoreEvent], now: float) -> None:
        if isinstance(packet, ConnAck):
            self._handle_connack(packet, events, now)
            return
        if self.state is State.CONNECTING:
            # [MQTT-3.2.0-1] the first packet from the server is CONNACK
            raise PeerError(
                ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__} before CONNACK", "MQTT-3.2.0-1"
            )
        match packet:
            case Publish():
                self._handle_publish(packet, events, now)
            case PubAck() | PubRec() | PubComp():
                outgoing, release = self._outbox.acknowledged(packet)
                if release is not None:
                    self._send(release, now)
                if outgoing is not None:
                    events.append(_publish_result(outgoing, packet))
                    self._send_waiting(events, now)
            case PubRel():
                answer = self._inbox.released(packet.packet_id)
                self._send(answer, now)
            case SubAck() | UnsubAck():
                events.append(self._requests.answered(packet))
                self._send_waiting(events, now)
            case PingResp():
                pass
            case Disconnect():
                if self._version < V5:
                    raise PeerError(ReasonCode.PROTOCOL_ERROR, "DISCONNECT from a server", "MQTT-3.14.0-1")
                reason = describe_reason(packet.reason_code, packet.properties)
                events.append(
                    self._end(
                        ConnectionLost(reason, packet.reason_code), packet.reason_code not in FINAL_REASONS
                    )
                )
            case Auth():
                raise PeerError(
                    ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method", "MQTT-4.12.0-6"
                )
            case Connect() | Subscribe() | Unsubscribe() | PingReq():
                raise PeerError(ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__} from a server")
            case _:
                assert_never(packet)

    def _handle_connack(self, packet: ConnAck, events: list[CoreEvent], now: float) -> None:
        if self.state is not State.CONNECTING:
            raise PeerError(ReasonCode.PROTOCOL_ERROR, "a second CONNACK", "MQTT-3.2.0-2")
        properties = packet.properties
        if packet.reason_code:
            code = packet.reason_code
            code = code if self._version >= V5 else CONNECT_RETURN_CODES.get(code, ReasonCode.UNSPECIFIED_ERROR)
            error = ConnectRefused(code, describe_reason(code, properties))
            events.append(self._end(error, code not in FINAL_REASONS))
            return
        if packet.session_present and self._wants_clean_start():
            raise PeerError(ReasonCode.PROTOCOL_ERROR, "a session after a clean start", "MQTT-3.2.2-4")
        self.state = State.CONNECTED
        self.limits = ServerLimits.announced(properties)
        self._client_id = properties.assigned_client_id or self._client_id
        keep_alive_s = properties.server_keep_alive_s
        self._keep_alive = KeepAlive(
            self._settings.keep_alive_s if keep_alive_s is None else keep_alive_s, now=now
        )
        self._resume(packet.session_present, events, now)

    def _resume(self, session_present: bool, events: list[CoreEvent], now: float) -> None:
        self._has_session = True
        self._inbox.resume(session_present=session_present)
        releases, complete, resent = self._outbox.resume(
            self.limits.receive_maximum, session_present=session_present
        )
        renewed = () if session_present else self._requests.renew()
        events.append(Accepted(session_present, self._client_id, resent + len(releases), renewed))
        events.extend(Completed(token) for token in complete)
        self._send_waiting_requests(now)
        for release in releases:
            self._send(release, now)
        self._send_waiting(events, now)

    def _handle_publish(self, publish: Publish, events: list[CoreEvent], now: float) -> None:
        topic = publish.topic
        properties = publish.properties
        if properties.topic_alias is not None:
            topic = self._resolve_alias(topic, properties.topic_alias)
        receipt = None
        if publish.qos:
            receipt, answer = self._inbox.received(publish)
            if answer is not None:
                self._send(answer, now)
            if receipt is None:
                return
        identifiers = properties.subscription_identifiers
        if identifiers or properties.topic_alias is not None:
            # Of this connection only; the rest is the publisher's.
            properties = msgspec.structs.replace(properties, subscription_identifiers=(), topic_alias=None)
        message = Message(topic, publish.payload, publish.qos, publish.retain, properties)
        events.append(Received(message, receipt, identifiers))

    def _resolve_alias(self, topic: str, alias: int) -> str:
        if not 0 < alias <= self._settings.topic_alias_maximum:
            raise PeerError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}", "MQTT-3.3.2-9")
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise PeerError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias} was never set")
        return known

    # --- helpers ----------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return self.state is State.IDLE

    def _wants_clean_start(self) -> bool:
        return self._settings.wants_clean_start(has_session=self._has_session)

    def _next_token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _send_waiting(self, events: list[CoreEvent], now: float) -> None:
        if self.state is not State.CONNECTED:
            return
        self._send_waiting_requests(now)
        while (outgoing := self._outbox.next_to_send()) is not None:
            publish = outgoing.publish
            frame = encode(publish, self._version)
            try:
                self.limits.check_publish(_as_message(publish), len(frame))
            except PublishRefused as error:
                # Accepted before this connection told its limits.
                events.append(Failed(self._outbox.drop(outgoing).token, error))
            else:
                self._write(frame, now)

    def _send_waiting_requests(self, now: float) -> None:
        with_identifiers = self._version >= V5 and self.limits.subscription_identifiers_available
        while (request := self._requests.next_to_send(with_identifiers=with_identifiers)) is not None:
            self._send(request, now)

    def _send(self, packet: Packet, now: float) -> None:
        self._write(encode(packet, self._version), now)

    def _write(self, frame: bytes, now: float) -> None:
        self._output.append(frame)
        self.pending_output += len(frame)
        self._keep_alive.sent(now)

    def _blame_peer(self, error: PeerError, now: float) -> Ended:
        if self.state is State.CONNECTED and self._version >= V5:
            self._send(Disconnect(error.reason_code), now)
        return self._end(ConnectionLost(f"the broker broke the protocol, {error}", error.reason_code))

    def _end(self, error: ClientError, may_retry: bool = True) -> Ended:
        self.state = State.IDLE
        self._inbox.pause()
        return Ended(error, may_retry)


def _publish_result(outgoing: Outgoing, packet: PubAck | PubRec | PubComp) -> Completed | Failed:
    if not is_refusal(packet.reason_code) or isinstance(packet, PubComp):
        return Completed(outgoing.token)
    reason = describe_reason(packet.reason_code, packet.properties)
    return Failed(outgoing.token, PublishRefused(outgoing.publish.topic, packet.reason_code, reason))


def _as_message(publish: Publish) -> Message:
    return Message(publish.topic, publish.payload, publish.qos, publish.retain, publish.properties)
