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

from contextlib import suppress
from enum import Enum, auto
from typing import Final, assert_never

import msgspec

from polybus.client.errors import (
    ClientError,
    ConnectionLost,
    ConnectRefused,
    NotDelivered,
    PublishRefused,
    RequestTimeout,
    SubscribeRefused,
)
from polybus.client.events import (
    Accepted,
    Completed,
    CoreEvent,
    Ended,
    Failed,
    Receipt,
    Received,
    RenewalRefused,
    Requested,
    ReturnAddress,
    Withdrawn,
)
from polybus.client.frames import MAX_FRAME_BYTES, FrameReader
from polybus.client.keep_alive import KeepAlive, Verdict
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_calls import (
    CANCEL,
    MANAGED_ANSWERS,
    SERVICE,
    Call,
    Calls,
    answer_packet,
    answers_topic,
    cancel_packet,
    given,
    request_packet,
    with_wishes,
)
from polybus.client.mqtt_inflight import Inbox, Outbox, Outgoing
from polybus.client.mqtt_limits import ServerLimits
from polybus.client.mqtt_reasons import CONNECT_RETURN_CODES, FINAL_REASONS, describe_reason, is_refusal
from polybus.client.mqtt_settings import MqttSettings
from polybus.client.packet_ids import PacketIds
from polybus.client.service import MAX_CONCURRENCY
from polybus.client.subscribing import Subscribing
from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.codec import decode, encode, next_frame
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
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)

ANSWERS: Final = -1
"""The token of the subscription to our answers, which nobody waits for."""


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
        self._subscribing = Subscribing(packet_ids)
        self._inbox = Inbox(settings.tolerated_unacknowledged)
        self._last_token = 0
        self._frames = FrameReader(next_frame, settings.maximum_packet_size or MAX_FRAME_BYTES)
        self._output: list[bytes] = []
        self.pending_output = 0
        self._aliases: dict[int, str] = {}
        self._calls = Calls(settings.run)
        self._answers_topic = ""
        self._response_information: str | None = None
        self._goodbye = Disconnect()
        self.prepare_goodbye(0, "")
        self._keep_alive = KeepAlive.mqtt(0, now=0)

    @property
    def protocol(self) -> str:
        return "MQTT 5.0" if self._version >= V5 else "MQTT 3.1.1"

    @property
    def has_requests(self) -> bool:
        return self._version >= V5

    @property
    def has_properties(self) -> bool:
        return self._version >= V5

    # --- connection -------------------------------------------------------------------------------

    def connect(self, *, now: float) -> None:
        self.connection_lost()
        self.state = State.CONNECTING
        self._keep_alive = KeepAlive.mqtt(0, now=now)
        self._send(self._settings.connect_packet(self._client_id, clean_start=self._wants_clean_start()), now)

    def connection_lost(self) -> None:
        self.state = State.IDLE
        self._frames.clear()
        self._output.clear()
        self.pending_output = 0
        self._aliases.clear()
        self._inbox.pause()
        self._outbox.pause()
        self._subscribing.pause()

    def disconnect(self, *, now: float) -> None:
        """Say goodbye. The will is not published; the session ends unless a time for it was set."""
        if self.state is State.CONNECTED:
            self._send(self._goodbye, now)
        self.state = State.IDLE
        self._inbox.pause()

    def deadline(self) -> float | None:
        deadlines = [self._calls.next_deadline()]
        if self.state is State.CONNECTED:
            deadlines.append(self._keep_alive.deadline())
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, *, now: float, is_reading: bool = True) -> list[CoreEvent]:
        events: list[CoreEvent] = []
        for call in self._calls.due(now):
            text = f"no answer within {call.timeout_s:g} s"
            if not call.was_sent:
                text += "; it was not sent, for there was no connection"
            events.append(Failed(call.token, RequestTimeout(call.message.topic, text)))
            self._cancel(call, now)
        if self.state is not State.CONNECTED:
            return events
        match self._keep_alive.check(now, is_reading=is_reading):
            case Verdict.PING:
                self.ping(now=now)
            case Verdict.DEAD:
                events.append(self._end(ConnectionLost("the broker does not answer pings")))
            case Verdict.FINE:
                pass
        return events

    def ping(self, *, now: float) -> None:
        self._send(PingReq(), now)
        self._keep_alive.pinged(now)

    def take_output(self, *, now: float) -> bytes:
        data = b"".join(self._output)
        self._output.clear()
        self.pending_output = 0
        return data

    # --- operations -------------------------------------------------------------------------------

    def publish(self, message: Message, wait_s: int = 0, *, now: float) -> int:
        """QoS 0 needs a connection; QoS 1 and 2 wait for one. Raises `PublishRefused`, `UsageError`."""
        properties = with_wishes(message, wait_s) if message.priority or wait_s else message.properties
        publish = Publish(message.topic, message.payload, message.qos, message.retain, False, 0, properties)
        if message.qos == 0:
            if self.state is not State.CONNECTED:
                raise UsageError("QoS 0 can only be published while connected")
            frame = encode(publish, self._version)
            self.limits.check_publish(message, len(frame))
            self._write(frame, now)
            return 0
        # Encoded for its errors only: the packet id comes when the broker has room for it.
        trial = msgspec.structs.replace(publish, packet_id=1)
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
        self._subscribing.subscribe(token, options)
        self._send_waiting([], now)
        return token

    def unsubscribe(self, topic_filter: str, *, now: float) -> int:
        token = self._next_token()
        self._subscribing.unsubscribe(token, topic_filter)
        self._send_waiting([], now)
        return token

    def abandon(self, token: int, *, now: float) -> bool:
        call = self._calls.get(token)
        if call is not None:
            return not self._cancel(call, now)
        return self._outbox.withdraw(token) or self._subscribing.withdraw(token)

    def acknowledge(self, receipt: Receipt, *, now: float) -> None:
        answer = self._inbox.handled(receipt)
        if answer is not None and self.state is State.CONNECTED:
            self._send(answer, now)

    # --- requests ---------------------------------------------------------------------------------

    @property
    def takes_requests(self) -> bool:
        return True

    def request(self, message: Message, timeout_s: float, may_wait: bool, *, now: float) -> int:
        """Raises `NotDelivered` for what the broker announced it does not take, `UsageError`."""
        token = self._next_token()
        call = self._calls.add(token, message, timeout_s, may_wait, now)
        try:
            size = len(encode(msgspec.structs.replace(self._request_packet(call, now), packet_id=1), V5))
            if self.state is State.CONNECTED:
                self.limits.check_publish(message, size)
        except (UsageError, PublishRefused) as error:
            self._calls.remove(call)
            if isinstance(error, PublishRefused):
                raise NotDelivered(message.topic, error.reason) from error
            raise
        if self.state is State.CONNECTED:
            self._send_call(call, now)
            self._send_waiting([], now)
        return token

    def request_id(self, token: int) -> int:
        return token

    def answer(self, to: ReturnAddress, request: Message, payload: bytes, *, now: float) -> None:
        packet = answer_packet(to, request, payload, is_error=False)
        limit = self.limits.maximum_packet_size
        if limit is not None and len(payload) >= limit // 2 and _size(packet) > limit:
            self.fail(
                to, request, f"the answer is larger than the {limit} bytes that the broker takes", now=now
            )
        else:
            self._publish_quietly(packet, now)

    def fail(self, to: ReturnAddress, request: Message, reason: str, *, now: float) -> None:
        self._publish_quietly(answer_packet(to, request, reason.encode(errors="replace"), is_error=True), now)

    def _request_packet(self, call: Call, now: float) -> Publish:
        return request_packet(call, self._answers_topic or "unknown yet", now)

    def _send_call(self, call: Call, now: float) -> None:
        """The first one subscribes to the answers; the broker reads that first."""
        if not self._answers_topic:
            run = self._settings.run if self._settings.clean_start else ""
            self._answers_topic = answers_topic(self._client_id, run, self._response_information)
            self._subscribing.subscribe(ANSWERS, SubscribeOptions(self._answers_topic, 1))
        call.was_sent = True
        call.is_acknowledged = False
        self._outbox.submit(call.token, self._request_packet(call, now))

    def _cancel(self, call: Call, now: float) -> bool:
        """True if the broker has to do with it."""
        self._calls.remove(call)
        if not call.was_sent or self._outbox.withdraw(call.token):
            return False
        self._outbox.submit(self._next_token(), cancel_packet(call, self._answers_topic))
        self._send_waiting([], now)
        return True

    def _publish_quietly(self, publish: Publish, now: float) -> None:
        """Nobody waits for what becomes of it. A requester may have named a topic that is none."""
        with suppress(UsageError, PublishRefused):
            if publish.qos:
                _size(publish)
                self._outbox.submit(self._next_token(), publish)
                self._send_waiting([], now)
            elif self.state is State.CONNECTED:
                self._send(publish, now)

    def _call_result(self, call: Call, result: Completed | Failed, packet: PubAck) -> CoreEvent | None:
        """The broker acknowledged a request: that is not its end, unless it was refused."""
        call.is_acknowledged = True
        if isinstance(result, Failed):
            assert isinstance(result.error, PublishRefused)
            self._calls.remove(call)
            return Failed(call.token, NotDelivered(call.message.topic, result.error.reason))
        if packet.reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS and not call.may_wait:
            self._calls.remove(call)
            return Failed(call.token, NotDelivered(call.message.topic, "nobody is subscribed to this topic"))
        return None

    # --- the end ----------------------------------------------------------------------------------

    def prepare_goodbye(self, reason_code: int, reason: str) -> None:
        if self._version < V5 and (reason_code or reason):
            raise UsageError("MQTT 3.1.1 says goodbye without a reason: leave it out, or use MQTT 5.0")
        expiry_s = 0 if self._settings.gives_up_session else None
        properties = Properties(session_expiry_s=expiry_s, reason_string=reason or None)
        self._goodbye = Disconnect(reason_code, properties if self._version >= V5 else NO_PROPERTIES)
        encode(self._goodbye, self._version)  # for its errors only

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
                    result: CoreEvent | None = _publish_result(outgoing, packet)
                    call = self._calls.get(outgoing.token)
                    if call is not None and isinstance(packet, PubAck):
                        assert isinstance(result, Completed | Failed)
                        result = self._call_result(call, result, packet)
                    if result is not None:
                        events.append(result)
                    self._send_waiting(events, now)
            case PubRel():
                answer = self._inbox.released(packet.packet_id)
                self._send(answer, now)
            case SubAck() | UnsubAck():
                event = self._on_suback(packet)
                events.append(event)
                if isinstance(event, Failed | RenewalRefused) and self._are_answers(event.error):
                    self._fail_calls(event, events)
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

    def _on_suback(self, packet: SubAck | UnsubAck) -> CoreEvent:
        # Before 5.0 an UNSUBACK holds no reason codes.
        code = packet.reason_codes[0] if packet.reason_codes else 0
        refusal = (code, describe_reason(code, packet.properties)) if is_refusal(code) else None
        is_suback = isinstance(packet, SubAck)
        event = self._subscribing.answered(packet.packet_id, is_suback=is_suback, refusal=refusal)
        if event is None:
            raise PeerError(ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__} answers nothing we asked")
        return event

    def _are_answers(self, error: ClientError) -> bool:
        return isinstance(error, SubscribeRefused) and error.topic_filter == self._answers_topic

    def _fail_calls(self, refused: Failed | RenewalRefused, events: list[CoreEvent]) -> None:
        """No answers will come: the broker does not let us have them."""
        self._answers_topic = ""
        for call in self._calls:
            self._calls.remove(call)
            events.append(Failed(call.token, NotDelivered(call.message.topic, str(refused.error))))

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
        self._response_information = properties.response_information
        keep_alive_s = properties.server_keep_alive_s
        self._keep_alive = KeepAlive.mqtt(
            self._settings.keep_alive_s if keep_alive_s is None else keep_alive_s, now=now
        )
        self._resume(packet.session_present, events, now)

    def _resume(self, session_present: bool, events: list[CoreEvent], now: float) -> None:
        self._has_session = True
        self._inbox.resume(session_present=session_present)
        releases, complete, resent = self._outbox.resume(
            self.limits.receive_maximum, session_present=session_present
        )
        renewed = () if session_present else self._subscribing.renew()
        again = sum(call.was_sent and not call.is_acknowledged for call in self._calls)
        publishes = resent + len(releases) - again
        for call in self._calls:
            if not call.was_sent or (call.is_acknowledged and not session_present):
                again += call.was_sent
                self._send_call(call, now)
        renewed = tuple(name for name in renewed if name != self._answers_topic)
        events.append(Accepted(session_present, self._client_id, publishes, renewed, again))
        events.extend(Completed(token) for token in complete)
        self._send_waiting_wishes(now)
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
        if topic == self._answers_topic and topic:
            self._take(receipt, self._calls.ended(publish), events, now)
            return
        identifiers = properties.subscription_identifiers
        if identifiers or properties.topic_alias is not None:
            # Of this connection only; the rest is the publisher's.
            properties = msgspec.structs.replace(properties, subscription_identifiers=(), topic_alias=None)
        message = Message(topic, publish.payload, publish.qos, publish.retain, properties)
        response_topic = properties.response_topic
        if response_topic is not None and (word := given(publish)) is not None:
            answer_to = ReturnAddress(response_topic, properties.correlation_data)
            if word == CANCEL:
                self._take(receipt, Withdrawn(answer_to), events, now)
                return
            if response_topic.startswith(MANAGED_ANSWERS):
                self._take(receipt, Requested(message, answer_to, identifiers), events, now)
                return
        events.append(Received(message, receipt, identifiers))

    def _take(
        self, receipt: Receipt | None, event: CoreEvent | None, events: list[CoreEvent], now: float
    ) -> None:
        """What is no message for a subscription is acknowledged here."""
        if receipt is not None:
            self.acknowledge(receipt, now=now)
        if event is not None:
            events.append(event)

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
        self._send_waiting_wishes(now)
        while (outgoing := self._outbox.next_to_send()) is not None:
            publish = outgoing.publish
            frame = encode(publish, self._version)
            try:
                self.limits.check_publish(_as_message(publish), len(frame))
            except PublishRefused as error:
                # Accepted before this connection told its limits.
                events.append(self._not_sent(self._outbox.drop(outgoing).token, error))
            else:
                self._write(frame, now)

    def _not_sent(self, token: int, error: PublishRefused) -> Failed:
        call = self._calls.get(token)
        if call is None:
            return Failed(token, error)
        self._calls.remove(call)
        return Failed(token, NotDelivered(call.message.topic, error.reason))

    def _send_waiting_wishes(self, now: float) -> None:
        with_identifiers = self._version >= V5 and self.limits.subscription_identifiers_available
        while (wanted := self._subscribing.next_to_send()) is not None:
            packet_id, wish = wanted
            if wish.options is None:
                self._send(Unsubscribe(packet_id, (wish.topic_filter,)), now)
            else:
                self._send(subscribe_packet(packet_id, wish.options, with_identifier=with_identifiers), now)

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


def subscribe_packet(packet_id: int, options: SubscribeOptions, *, with_identifier: bool) -> Subscribe:
    wanted = SubscriptionRequest(
        options.topic_filter,
        options.qos,
        options.no_local,
        options.retain_as_published,
        options.retain_handling,
    )
    identifiers = (options.identifier,) if with_identifier and options.identifier else ()
    service = ((SERVICE, str(min(options.concurrency, MAX_CONCURRENCY))),) if options.concurrency else ()
    if not identifiers and not service:
        return Subscribe(packet_id, (wanted,), NO_PROPERTIES)
    return Subscribe(
        packet_id, (wanted,), Properties(subscription_identifiers=identifiers, user_properties=service)
    )


def _publish_result(outgoing: Outgoing, packet: PubAck | PubRec | PubComp) -> Completed | Failed:
    if not is_refusal(packet.reason_code) or isinstance(packet, PubComp):
        return Completed(outgoing.token)
    reason = describe_reason(packet.reason_code, packet.properties)
    return Failed(outgoing.token, PublishRefused(outgoing.publish.topic, packet.reason_code, reason))


def _size(publish: Publish) -> int:
    return len(encode(msgspec.structs.replace(publish, packet_id=1 if publish.qos else 0), V5))


def _as_message(publish: Publish) -> Message:
    return Message(publish.topic, publish.payload, publish.qos, publish.retain, publish.properties)
