"""A TBus client's side of a connection, without I/O and without a clock.

Theory of operation. The core outlives connections:

    IDLE --connect()--> CONNECTING --CONNACK--> CONNECTED --disconnect(), Ended--> IDLE
                            \\------- refusal: Ended -------------------------------/

Subscriptions and requests may be made in any state: they wait for a connection. With each CONNACK the
core asks again for its subscriptions, which ended with the last connection, and sends unfinished requests
again under the same PacketId, by which the broker knows them again. Only the first connection is clean.

Messages are not acknowledged. What the broker does not take it answers with a DISCONNECT, so a message or
request that may be too large is followed by a ping (`tbus_output`), and one that ends connections is not
tried for ever.
"""

import math
from enum import Enum, auto
from typing import Final, assert_never

from polybus.broker.topics import InvalidTopic, check_topic_name
from polybus.client.errors import (
    ClientError,
    ConnectionLost,
    ConnectRefused,
    NotDelivered,
    PublishRefused,
    RequestTimeout,
)
from polybus.client.events import (
    Accepted,
    Completed,
    CoreEvent,
    Ended,
    Failed,
    Receipt,
    Received,
    Requested,
    ReturnAddress,
    Withdrawn,
)
from polybus.client.frames import FrameReader
from polybus.client.keep_alive import KeepAlive, Verdict
from polybus.client.message import Message, SubscribeOptions
from polybus.client.packet_ids import PacketIds
from polybus.client.subscribing import Subscribing
from polybus.client.tbus_output import Output
from polybus.client.tbus_reasons import FINAL_REASONS, describe_reason, parse_server_reference
from polybus.client.tbus_requests import GRACE_S, Pending, Requests
from polybus.client.tbus_settings import TbusSettings
from polybus.errors import PeerError, UsageError
from polybus.wire.tbus.codec import (
    decode,
    encode,
    encode_answer,
    encode_publish,
    encode_request,
    frames,
    next_frame,
)
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    MessageType,
    MsgAck,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)

LARGE_BYTES: Final = 64 * 1024
"""A message of this size is followed by a ping: the broker may not take it."""
MAX_LEVELS: Final = 0xFFFF
MAX_CACHED_TOPICS: Final = 4096
MAX_TIMEOUT_S: Final = 0xFFFF_FFFF
MAX_REASON_CHARACTERS: Final = 4096
"""Of what a service says of its failure; the broker passes on no more."""
STRIKES: Final = 2
WORDLESS_STRIKES: Final = 3
"""A connection may break by chance as well."""
_BULK: Final = MessageType.BULK << 4


class State(Enum):
    IDLE = auto()
    CONNECTING = auto()
    CONNECTED = auto()


class TbusCore:
    protocol = "TBus"
    has_properties = False
    has_requests = True

    def __init__(self, settings: TbusSettings) -> None:
        self.state = State.IDLE
        self._settings = settings
        self._was_connected = False
        self._requests = Requests(settings.last_id)
        self._subscribing = Subscribing(PacketIds())
        self._frames = FrameReader(next_frame)
        self._output = Output(settings.bulk)
        self._keep_alive = KeepAlive.tbus(0, now=0)
        self._goodbye = encode(Disconnect())
        self._last_token = 0
        self._topics: set[str] = set()  # known to be lawful
        self._large: dict[int, Message | ReturnAddress] = {}  # on their way, by token: messages and answers
        self._unwelcome: dict[ReturnAddress, str] = {}  # whose answers the broker does not take, and why
        self._last_words: str | None = None  # of the broker, if it ended the connection with an error
        self._news: list[CoreEvent] = []  # of what a lost connection means, for the next tick

    # --- connection -------------------------------------------------------------------------------

    def connect(self, *, now: float) -> None:
        self.connection_lost()
        self.state = State.CONNECTING
        clean_start = self._settings.clean_start and not self._was_connected
        self._send(self._settings.connect_packet(clean_start=clean_start))

    def connection_lost(self) -> None:
        self.state = State.IDLE
        self._judge_unconfirmed()
        self._last_words = None
        self._large.clear()
        self._frames.clear()
        self._output.clear()
        self._subscribing.pause()

    def prepare_goodbye(self, reason_code: int, reason: str) -> None:
        try:
            self._goodbye = encode(Disconnect(DisconnectReason(reason_code), reason or None))
        except ValueError:
            known = ", ".join(f"{int(code)} ({code.name.lower()})" for code in DisconnectReason)
            raise UsageError(
                f"TBus has no reason code {reason_code} for a disconnect; it has {known}"
            ) from None

    def disconnect(self, *, now: float) -> None:
        if self.state is State.CONNECTED:
            self._output.stop_bulking()
            self._output.put(self._goodbye)
        self.state = State.IDLE

    def deadline(self) -> float | None:
        if self._news:
            return 0.0
        deadlines = [self._requests.next_deadline()]
        if self.state is State.CONNECTED:
            deadlines += (self._keep_alive.deadline(), self._output.deadline)
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, *, now: float, is_reading: bool = True) -> list[CoreEvent]:
        events, self._news = self._news, []
        for pending in self._requests.due(now):
            text = f"no answer within {pending.timeout_s:g} s"
            if not pending.was_sent:
                text += "; it was not sent, for there was no connection"
            events.append(Failed(pending.token, RequestTimeout(pending.message.topic, text)))
            self._cancel(pending)
        if self.state is State.CONNECTED:
            match self._keep_alive.check(now, is_reading=is_reading):
                case Verdict.PING:
                    self._output.put_ping()
                    self._keep_alive.pinged(now)
                case Verdict.DEAD:
                    # TB-06
                    events.append(self._end(ConnectionLost("the broker does not answer pings")))
                case Verdict.FINE:
                    pass
        return events

    def take_output(self, *, now: float) -> bytes:
        self._keep_alive.sent(now)
        return self._output.take(now)

    @property
    def pending_output(self) -> int:
        return self._output.size

    # --- operations -------------------------------------------------------------------------------

    def publish(self, message: Message, wait_s: int = 0, *, now: float) -> int:
        """A large message is complete when the broker has read it. Raises `UsageError`."""
        if self.state is not State.CONNECTED:
            raise UsageError("messages can only be published while connected")
        topic = message.topic
        if topic not in self._topics:
            self._check_topic(topic)
        if message.qos or message.retain:
            raise UsageError(
                "TBus knows neither qos nor retain: leave them out (wait_s lets a message wait for a"
                " subscriber), or connect with mqtt://"
            )
        if wait_s:
            frame = encode(Publish(topic, message.payload, is_priority=message.priority, timeout_s=wait_s))
        else:
            frame = b"".join(encode_publish(topic, message.payload, message.priority))
        self._output.put(frame, message.priority)
        return self._confirm(message) if len(frame) >= LARGE_BYTES else 0

    def subscribe(self, options: SubscribeOptions, *, now: float) -> int:
        if options.qos:
            raise UsageError("TBus knows no qos: leave it out, or connect with mqtt://")
        token = self._next_token()
        self._subscribing.subscribe(token, options)
        self._send_waiting()
        return token

    def unsubscribe(self, topic_filter: str, *, now: float) -> int:
        token = self._next_token()
        self._subscribing.unsubscribe(token, topic_filter)
        self._send_waiting()
        return token

    def abandon(self, token: int, *, now: float) -> bool:
        pending = self._requests.get(token)
        if pending is not None:
            return not self._cancel(pending)
        return self._subscribing.withdraw(token)

    def acknowledge(self, receipt: Receipt, *, now: float) -> None:
        raise AssertionError("TBus gives no receipts")

    # --- requests ---------------------------------------------------------------------------------

    @property
    def takes_requests(self) -> bool:
        return not self._requests.is_full

    def request(self, message: Message, timeout_s: float, may_wait: bool, *, now: float) -> int:
        if message.topic not in self._topics:
            self._check_topic(message.topic)
        token = self._next_token()
        pending = self._requests.add(token, message, timeout_s, may_wait, now)
        if self.state is State.CONNECTED:
            self._send_request(pending, timeout_s)
        return token

    def request_id(self, token: int) -> int:
        pending = self._requests.get(token)
        return 0 if pending is None else pending.packet_id

    def answer(self, to: ReturnAddress, request: Message, payload: bytes, *, now: float) -> None:
        if self.state is not State.CONNECTED:
            return
        assert isinstance(to.key, int)
        frame = b"".join(encode_answer(payload, request.priority, to.destination, to.key))
        self._output.put(frame, request.priority)
        if len(frame) >= LARGE_BYTES:
            self._confirm(to)

    def fail(self, to: ReturnAddress, request: Message, reason: str, *, now: float) -> None:
        assert isinstance(to.key, int)
        if self.state is State.CONNECTED:
            text = reason[:MAX_REASON_CHARACTERS]
            self._send(ReqAck(to.key, RequestState.ERROR, to.destination, reason_string=text))

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes, *, now: float) -> list[CoreEvent]:
        events: list[CoreEvent] = []
        if self.state is State.IDLE:
            return events
        self._keep_alive.received(now)
        try:
            for first_byte, body in self._frames.feed(data):
                if first_byte == _BULK and self.state is State.CONNECTED:
                    for kind, start, stop in frames(body):
                        self._handle(decode(kind, body[start:stop]), events, now)
                else:
                    self._handle(decode(first_byte, body), events, now)
                if self._is_over():
                    break
        except PeerError as error:
            events.append(self._blame_peer(error))
        return events

    def _handle(self, packet: Packet, events: list[CoreEvent], now: float) -> None:
        if isinstance(packet, Publish) and self.state is State.CONNECTED:
            event = self._on_publish(packet)
            if event is not None:
                events.append(event)
            return
        if isinstance(packet, ConnAck):
            self._on_connack(packet, events, now)
            return
        if self.state is not State.CONNECTED:
            raise PeerError(
                DisconnectReason.UNSPECIFIED, f"{type(packet).__name__.upper()} before CONNACK", "TB-03"
            )
        match packet:
            case ReqAck():
                event = self._on_reqack(packet)
                if event is not None:
                    events.append(event)
            case SubAck() | UnsubAck():
                events.append(self._on_suback(packet))
                self._send_waiting()
            case PingResp():
                self._on_pingresp(events)
            case Disconnect():
                events.append(self._on_disconnect(packet))
            case Publish() | Bulk():
                raise AssertionError("handled before")
            case Connect() | Subscribe() | Unsubscribe() | PingReq() | MsgAck():
                name = type(packet).__name__.upper()
                raise PeerError(DisconnectReason.UNSPECIFIED, f"{name} is not sent to clients", "TB-02")
            case _:
                assert_never(packet)

    def _on_publish(self, packet: Publish) -> CoreEvent | None:
        if packet.is_response:
            assert packet.packet_id is not None
            return self._requests.answered(packet.packet_id, packet.payload, packet.is_priority)
        assert packet.topic is not None
        message = Message(packet.topic, packet.payload, priority=packet.is_priority)
        if not packet.is_request:
            return Received(message, None, ())
        answer_to = ReturnAddress(packet.response_destination or "", packet.packet_id)
        if answer_to in self._unwelcome:
            self.fail(answer_to, message, self._unwelcome.pop(answer_to), now=0)
            return None
        return Requested(message, answer_to)

    def _on_reqack(self, packet: ReqAck) -> CoreEvent | None:
        if packet.response_destination is None:
            return self._requests.ended(packet)
        if packet.state is RequestState.CANCELED:  # TB-10
            return Withdrawn(ReturnAddress(packet.response_destination, packet.packet_id))
        return None  # our answer came too late, or was the second

    def _on_suback(self, packet: SubAck | UnsubAck) -> CoreEvent:
        refusal = None
        if packet.reason:
            refusal = int(packet.reason), describe_reason(packet.reason, packet.reason_string)
        is_suback = isinstance(packet, SubAck)
        event = self._subscribing.answered(packet.packet_id, is_suback=is_suback, refusal=refusal)
        if event is None:
            name = type(packet).__name__.upper()
            raise PeerError(DisconnectReason.UNSPECIFIED, f"{name} answers nothing we asked", "TB-05")
        return event

    def _on_pingresp(self, events: list[CoreEvent]) -> None:
        if not self._output.unanswered:
            return
        token = self._output.unanswered.popleft()
        if isinstance(self._large.pop(token, None), Message):
            events.append(Completed(token))
        elif (pending := self._requests.get(token)) is not None:
            pending.strikes = 0
        if not self._output.unanswered:
            self._output.start_bulking()

    def _on_connack(self, packet: ConnAck, events: list[CoreEvent], now: float) -> None:
        if self.state is not State.CONNECTING:
            raise PeerError(DisconnectReason.UNSPECIFIED, "a second CONNACK", "TB-03")
        code = packet.reason
        if code is not ConnectReason.SUCCESS:
            error = ConnectRefused(code, describe_reason(code, packet.reason_string))
            elsewhere = parse_server_reference(packet.server_reference)
            events.append(self._end(error, code not in FINAL_REASONS, elsewhere))
            return
        self.state = State.CONNECTED
        self._keep_alive = KeepAlive.tbus(self._settings.keep_alive_s, now=now)
        renewed = self._subscribing.renew() if self._was_connected else ()
        self._was_connected = True
        self._send_waiting()
        resent = self._resend(now)
        if not self._has_suspects():  # those go one by one, so that the one that is to blame is found
            self._output.start_bulking()
        events.append(Accepted(False, self._settings.client_id, 0, renewed, resent))

    def _on_disconnect(self, packet: Disconnect) -> Ended:
        reason = describe_reason(packet.reason, packet.reason_string)
        if packet.reason is DisconnectReason.UNSPECIFIED:
            self._last_words = reason
        return self._end(ConnectionLost(reason, packet.reason))

    # --- what the broker may not take -------------------------------------------------------------

    def _confirm(self, large: Message | ReturnAddress) -> int:
        token = self._next_token()
        self._large[token] = large
        self._output.put_ping(token)
        return token

    def _has_suspects(self) -> bool:
        return any(pending.strikes for pending in self._requests)

    def _judge_unconfirmed(self) -> None:
        """The connection is over. Who was being read when it ended, and what follows from that?"""
        unanswered = self._output.unanswered
        words = self._last_words
        first = next((token for token in unanswered if token), None)
        for token, large in self._large.items():
            is_culprit = words is not None and token == first
            if isinstance(large, ReturnAddress):
                if is_culprit:
                    self._unwelcome[large] = f"the broker does not take the answer: {words}"
                continue
            size = len(large.payload)
            error: ClientError = ConnectionLost(f"a message of {size} bytes may not have arrived")
            if is_culprit:
                error = PublishRefused(large.topic, DisconnectReason.UNSPECIFIED, words or "")
            self._news.append(Failed(token, error))
        if words is not None:
            self._output.bulk_less()
        for pending in self._requests:
            if pending.token == first:
                pending.strikes += 1
                if pending.strikes >= (STRIKES if words is not None else WORDLESS_STRIKES):
                    self._give_up(pending, words)
            elif words is not None and pending.was_sent and not pending.strikes:
                pending.strikes = 1

    def _give_up(self, pending: Pending, words: str | None) -> None:
        size = len(pending.message.payload)
        text = words or f"the connection broke each time it was sent; are {size} bytes too large?"
        error = NotDelivered(pending.message.topic, f"the broker does not take it: {text}")
        if not pending.is_canceled:
            self._news.append(Failed(pending.token, error))
        self._requests.remove(pending)

    # --- helpers ----------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return self.state is State.IDLE

    def _next_token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _check_topic(self, topic: str) -> None:
        try:
            check_topic_name(topic, MAX_LEVELS)
            topic.encode()
        except (InvalidTopic, UnicodeEncodeError) as error:
            raise UsageError(str(error)) from error
        if len(self._topics) >= MAX_CACHED_TOPICS:
            self._topics.clear()
        self._topics.add(topic)

    def _send_request(self, pending: Pending, left_s: float) -> None:
        message = pending.message
        timeout_s = min(max(1, math.ceil(left_s)), MAX_TIMEOUT_S) if pending.may_wait else None
        parts = encode_request(
            message.topic, message.payload, message.priority, timeout_s, None, pending.packet_id
        )
        pending.was_sent = True
        frame = b"".join(parts)
        if pending.strikes or len(frame) >= LARGE_BYTES:
            self._output.put(frame)
            self._output.put_ping(pending.token)
        else:
            self._output.put(frame, message.priority)

    def _resend(self, now: float) -> int:
        """Unfinished requests again; those that were canceled meanwhile are canceled again."""
        resent = 0
        for pending in self._requests:
            if pending.is_canceled:
                self._send(ReqAck(pending.packet_id, RequestState.CANCELED))
            else:
                resent += pending.was_sent
                self._send_request(pending, pending.deadline - GRACE_S - now)
        return resent

    def _cancel(self, pending: Pending) -> bool:
        """True if the broker has, or will have, to do with it."""
        is_known = self._requests.cancel(pending)
        if is_known and self.state is State.CONNECTED:
            # Behind the request, in its lane.
            self._output.put(encode(ReqAck(pending.packet_id, RequestState.CANCELED)), pending.message.priority)
        return is_known

    def _send_waiting(self) -> None:
        if self.state is not State.CONNECTED:
            return
        while (wanted := self._subscribing.next_to_send()) is not None:
            packet_id, wish = wanted
            if wish.options is None:
                self._send(Unsubscribe(packet_id, wish.topic_filter))
            else:
                self._send(Subscribe(packet_id, wish.topic_filter, wish.options.concurrency))

    def _send(self, packet: Packet) -> None:
        self._output.put(encode(packet))

    def _blame_peer(self, error: PeerError) -> Ended:
        if self.state is State.CONNECTED:
            self._output.stop_bulking()
            self._send(Disconnect(DisconnectReason.UNSPECIFIED, error.text))
        return self._end(ConnectionLost(f"the broker broke the protocol, {error}", error.reason_code))

    def _end(self, error: ClientError, may_retry: bool = True, elsewhere: tuple[str, ...] = ()) -> Ended:
        self.state = State.IDLE
        return Ended(error, may_retry, elsewhere)
