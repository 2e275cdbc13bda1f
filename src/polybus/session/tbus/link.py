"""One TBus connection: what each message does, and what is said when it ends.

TBus acknowledges no messages; a request ends at its requester with an answer or a REQACK, which the core
asks this link to write (`outcome`). Everything a message may do wrong raises `PeerError`: before the
client is connected that is a CONNACK, later a DISCONNECT, and then the close.
"""

import math
from typing import Final, Protocol, assert_never

from polybus.broker import events
from polybus.broker.access import Verdict
from polybus.broker.broker import Broker
from polybus.broker.events import emit
from polybus.broker.lifecycle import RequestState as Life
from polybus.broker.links import EndCause, Port
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Message
from polybus.broker.request import Request
from polybus.broker.requests import PacketIdInUse
from polybus.broker.services import AS_THE_RULE_SAYS
from polybus.broker.sessions import Session, Subscription
from polybus.broker.subscriptions import STREAMS, Route
from polybus.broker.topics import SHARE_PREFIX, InvalidTopic, parse_filter
from polybus.errors import PeerError
from polybus.mesh.mesh import DESTINATION_MARK
from polybus.session.intake import State
from polybus.session.stream import END_TEXTS, MAX_ERROR_CHARACTERS, OWNER_MARKS
from polybus.session.tbus.bulking import Bulker, bulker
from polybus.session.tbus.options import TbusOptions
from polybus.session.tbus.reader import TbusReader, bad_bulk, wrong
from polybus.wire.tbus.codec import encode, encode_answer, encode_request
from polybus.wire.tbus.crossing import decode_between
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    MsgAck,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
    SubscribeReason,
    UnsubAck,
    Unsubscribe,
    UnsubscribeReason,
)

BROKER_CONNECT: Final = 0x12
"""The first byte of a CONNECT with the flag BrokerConnect, whatever else is set."""
NO_NEIGHBORS: Final = "this broker takes no neighbours"
WELCOME: Final = encode(ConnAck())
PINGRESP: Final = encode(PingResp())
MAX_TIMEOUT_S: Final = 0xFFFF_FFFF
NEVER_REPLAY: Final = 2
"""Retained messages do not cross to TBus: a subscription gets what is published from now on."""

END_REASONS: Final = {
    EndCause.TAKEN_OVER: DisconnectReason.UNSPECIFIED,
    EndCause.SHUTTING_DOWN: DisconnectReason.UNSPECIFIED,
    EndCause.KEEP_ALIVE_TIMEOUT: DisconnectReason.KEEP_ALIVE_TIMEOUT,
}

OUTCOMES: Final = {
    Life.ANSWER_NOT_DELIVERED: RequestState.NOT_DELIVERED,
    Life.NOT_DELIVERED: RequestState.NOT_DELIVERED,
    Life.CANCELED: RequestState.CANCELED,
    Life.TIMED_OUT: RequestState.TIMED_OUT,
    Life.ERROR: RequestState.ERROR,
    Life.DELETED: RequestState.DELETED,
}
"""How a request that ended without an answer is told to its requester."""


class BrokerGate(Protocol):
    """Where brokers come in that connect as neighbours (TB-15)."""

    def enter(self, link: "TbusLink", connect: Connect) -> None:
        """Take over the connection of a broker, from this link. Raises PeerError if it may not come in."""


class TbusLink(TbusReader):
    __slots__ = ("_bulk_timer", "_bulker", "_connect", "_gate", "_options")

    def __init__(
        self,
        broker: Broker,
        port: Port,
        options: TbusOptions,
        *,
        peer: str = "",
        certificate_name: str | None = None,
        gate: "BrokerGate | None" = None,
        now: float,
    ) -> None:
        """`gate`: where other brokers come in; None: they do not."""
        super().__init__(broker, port, peer=peer, certificate_name=certificate_name, now=now)
        self._options = options
        self._gate = gate
        self._connect: Connect | None = None
        self._bulker: Bulker | None = None
        self._bulk_timer = 0

    def handle(self, packet: Packet) -> None:
        session = self.session
        if session is None:
            if not isinstance(packet, Connect):
                raise self.not_opened()
            self._on_connect(packet)
            return
        match packet:
            case Publish():
                self._on_publish(packet, session)
            case ReqAck():
                self._on_reqack(packet, session)
            case Subscribe():
                self._on_subscribe(packet, session)
            case Unsubscribe():
                self._on_unsubscribe(packet, session)
            case PingReq():
                self.reply(PINGRESP)
            case Disconnect():
                self.close("said goodbye", publish_will=False)
            case Connect():
                raise wrong("a second CONNECT", "TB-03")
            case ConnAck() | MsgAck() | SubAck() | UnsubAck() | PingResp():
                raise wrong(f"{type(packet).__name__.upper()} is sent by brokers only", "TB-02")
            case Bulk():
                raise bad_bulk("it is not read as one")
            case _:
                assert_never(packet)

    # -- connecting -----------------------------------------------------------------------------

    def _on_connect(self, connect: Connect) -> None:
        if connect.is_broker:
            if self._gate is None:
                raise PeerError(ConnectReason.UNSPECIFIED, NO_NEIGHBORS, "TB-15")
            self._gate.enter(self, connect)
            return
        if connect.client_id[0] in OWNER_MARKS or DESTINATION_MARK in connect.client_id:
            text = "a client id begins with no U+0001 or U+0002, and holds no U+0003"
            raise PeerError(ConnectReason.MALFORMED, text, "TB-03")
        self._connect = connect
        self.introduce(connect.client_id)
        token = connect.token
        self.authenticate(connect.user_name, None if token is None else token.encode())

    def decode(self, first_byte: int, body: bytes) -> Packet:
        if self.session is None and first_byte & BROKER_CONNECT == BROKER_CONNECT:
            return decode_between(first_byte, body)
        return super().decode(first_byte, body)

    def leave_to(self) -> Port:
        """Someone else has this connection from now on: its port."""
        self.state = State.CLOSED
        self.stop_reading()
        self.broker.timers.cancel(self._timer)
        return self.port

    def accept(self, verdict: Verdict) -> None:
        broker = self.broker
        connect = self._connect
        assert connect is not None
        self._connect = None  # it may hold a token
        known = broker.registry.sessions.get(self.client_id)
        if known is not None:
            whose = "a connection with this client id exists"
            if known.link is None:
                whose = "this client id belongs to an MQTT session that is kept"
            raise PeerError(ConnectReason.CLIENT_ID_IN_USE, whose, "TB-03")
        session, _ = self.enter(keep_alive_s=connect.keep_alive_s, clean_start=connect.clean_start)
        self.reply(WELCOME)
        self.flush()  # by itself, whatever waits for this client
        self._bulker = bulker(self._options.bulk, connect.bulk_limit)
        broker.greeted(session)
        emit(events.CLIENT_CONNECTED, client_id=self.client_id, peer=self.peer, protocol="tbus")

    def name_owner(self) -> str:
        """What services see as ResponseDestination."""
        return self.client_id if self.user is None else f"\x01{self.user}\x01{self.client_id}"

    # -- messages, requests, answers ----------------------------------------------------------------

    def _on_publish(self, packet: Publish, session: Session) -> None:
        self.messages_in += 1
        self.spend(1)
        if packet.is_response:
            self._on_answer(packet, session)
            return
        assert packet.topic is not None
        route = self._route(packet.topic)
        may_publish = self.may_publish(route.topic)
        # A Timeout of 0 is none: nothing can wait for so long.
        timeout_s = packet.timeout_s or None
        if packet.is_request:
            assert packet.packet_id is not None
            message = Message(route.topic, packet.payload, priority=packet.is_priority, origin=self.client_id)
            self._request(route, message, packet.packet_id, timeout_s, may_publish=may_publish)
        elif may_publish:
            expires_at = None if timeout_s is None else self.broker.now + timeout_s
            self.broker.publish(
                route,
                Message(
                    route.topic, packet.payload, 0, False, packet.is_priority, expires_at,
                    NO_MESSAGE_PROPERTIES, self.client_id, timeout_s is not None,
                ),
            )  # fmt: skip

    def _request(
        self, route: Route, message: Message, packet_id: int, timeout_s: float | None, *, may_publish: bool
    ) -> None:
        broker = self.broker
        if not may_publish:
            if packet_id in broker.requests.under_way.get(self.owner, ()):
                raise wrong(f"PacketId {packet_id} belongs to a request that is not finished", "TB-08")
            self._reply(ReqAck(packet_id, RequestState.NOT_DELIVERED, reason_string="not authorized"))
            return
        try:
            broker.request(route, message, packet_id, timeout_s, may_wait=timeout_s is not None)
        except PacketIdInUse as error:
            raise wrong(str(error), "TB-08") from error

    def _on_answer(self, packet: Publish, session: Session) -> None:
        requester, packet_id = packet.response_destination, packet.packet_id
        assert requester is not None
        assert packet_id is not None
        if not self.broker.answer(session, requester, packet_id, packet.payload):
            self._reply_unknown(packet_id, requester, "this answer belongs to no request that you have")

    def _on_reqack(self, packet: ReqAck, session: Session) -> None:
        packet_id, requester = packet.packet_id, packet.response_destination
        if packet.state is RequestState.CANCELED:
            if not self.broker.cancel_request(self.owner, packet_id):
                self._reply_unknown(packet_id, None, "there is nothing to cancel")
        elif packet.state is RequestState.ERROR:
            if requester is None:
                raise wrong("REQACK: ResponseDestination is missing", "TB-07")
            why = (packet.reason_string or "the service failed")[:MAX_ERROR_CHARACTERS]
            if not self.broker.fail_request(session, requester, packet_id, why):
                self._reply_unknown(packet_id, requester, "you have no such request")
        else:
            raise wrong(f"REQACK: RequestState {packet.state} is sent by brokers only", "TB-07")

    def _reply_unknown(self, packet_id: int, requester: str | None, why: str) -> None:
        self._reply(ReqAck(packet_id, RequestState.UNKNOWN, requester, reason_string=why))

    def _route(self, topic: str) -> Route:
        name = topic.encode()
        subscriptions = self.broker.subscriptions
        try:
            return subscriptions.routes.get(name) or subscriptions.route(name)
        except InvalidTopic as error:
            raise wrong(str(error), "TB-04") from error

    # -- what the core asks for -----------------------------------------------------------------------

    def request_frame(self, request: Request, now: float) -> bytes | None:
        message = request.message
        left_s = min(max(1, math.ceil(request.deadline - now)), MAX_TIMEOUT_S)
        return b"".join(
            encode_request(
                message.topic, message.payload, message.priority, left_s, request.owner, request.packet_id
            )
        )

    def cancel_frame(self, request: Request) -> bytes | None:
        return encode(ReqAck(request.packet_id, RequestState.CANCELED, request.owner, request.topic))

    def outcome(self, request: Request, now: float) -> bytes | None:
        if request.is_answered:
            priority = request.message.priority
            parts = encode_answer(request.answer or b"", priority, request.client_id, request.packet_id)
            return b"".join(parts)
        state = OUTCOMES[request.state]
        return encode(ReqAck(request.packet_id, state, reason_string=request.reason or None))

    # -- subscribing ------------------------------------------------------------------------------------

    def _on_subscribe(self, packet: Subscribe, session: Session) -> None:
        topic_filter = packet.topic_filter
        reason, why = self._check_subscribe(topic_filter, session)
        # Acknowledged first: what waited for the subscription comes behind it.
        self._reply(SubAck(packet.packet_id, reason, why or None))
        if reason is not SubscribeReason.SUCCESS:
            if reason is not SubscribeReason.NOT_AUTHORIZED:
                emit(events.NOT_SUBSCRIBED, client_id=self.client_id, topic=topic_filter, reason=why)
            return
        serves = AS_THE_RULE_SAYS if packet.concurrency is None else packet.concurrency
        subscription = Subscription(topic_filter, None, 0, serves=serves)
        self.broker.subscribe(session, topic_filter, subscription, retain_handling=NEVER_REPLAY)
        emit(events.SUBSCRIBED, client_id=self.client_id, topic=topic_filter)

    def _check_subscribe(self, topic_filter: str, session: Session) -> tuple[SubscribeReason, str]:
        broker = self.broker
        try:
            self._check_filter(topic_filter)
        except InvalidTopic as error:
            return SubscribeReason.INVALID_FILTER, str(error)
        if not self.may_subscribe(topic_filter, topic_filter):
            return SubscribeReason.NOT_AUTHORIZED, "not authorized"
        is_new = topic_filter not in session.subscriptions
        if is_new and (
            len(session.subscriptions) >= broker.limits.subscriptions_per_session
            or broker.dispatcher.over_budget
        ):
            return SubscribeReason.TOO_MANY_SUBSCRIPTIONS, "no room for more"
        return SubscribeReason.SUCCESS, ""

    def _check_filter(self, topic_filter: str) -> None:
        """Raises InvalidTopic."""
        if topic_filter.startswith(SHARE_PREFIX):
            raise InvalidTopic(f"TBus has no shared subscriptions: {topic_filter[:80]!r}")
        if topic_filter.startswith(STREAMS):
            raise InvalidTopic("streams are replayed to MQTT clients only")
        limits = self.broker.limits
        parse_filter(topic_filter, limits.topic_levels, limits.topic_bytes)

    def _on_unsubscribe(self, packet: Unsubscribe, session: Session) -> None:
        topic_filter = packet.topic_filter
        reason, why = UnsubscribeReason.SUCCESS, ""
        try:
            self._check_filter(topic_filter)
        except InvalidTopic as error:
            reason, why = UnsubscribeReason.INVALID_FILTER, str(error)
        else:
            if not self.broker.unsubscribe(session, topic_filter):
                reason, why = UnsubscribeReason.NO_SUBSCRIPTION_EXISTED, "no subscription existed"
        event = events.UNSUBSCRIBED if reason is UnsubscribeReason.SUCCESS else events.NOT_UNSUBSCRIBED
        emit(event, client_id=self.client_id, topic=topic_filter, reason=why or None)
        self._reply(UnsubAck(packet.packet_id, reason, why or None))

    def _reply(self, packet: Packet) -> None:
        self.reply(encode(packet))

    # -- bytes out ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        bulker = self._bulker
        if bulker is not None and not (self.blocked or self.gated):
            self.outbox = bulker.pass_on(self.outbox, self.broker.now)
            if bulker.deadline is not None and not self._bulk_timer:
                self._bulk_timer = self.broker.timers.schedule(bulker.deadline, _BulkDue(self))
        super().flush()

    def on_bulk_due(self) -> None:
        self._bulk_timer = 0
        self.flush()

    def on_blocked(self) -> None:
        self._take_back()
        super().on_blocked()

    def _take_back(self) -> None:
        """What is being gathered waits in the outbox, where it is counted."""
        if self._bulker is not None:
            self.outbox[:0] = self._bulker.take_back()

    # -- ends ---------------------------------------------------------------------------------------------

    def refuse(self, error: PeerError) -> None:
        """A CONNECT that is not accepted. To what was none there is no answer."""
        if not self.is_greeted:
            return
        reason = ConnectReason(error.reason_code)
        reference = ""
        if reason is ConnectReason.CLIENT_LIMIT_REACHED:
            reference = self._options.server_reference or self.broker.mesh.references()
        self.say_last(encode(ConnAck(reason, error.text, reference or None)))

    def say_failed(self, error: PeerError) -> None:
        self.say_last(encode(Disconnect(DisconnectReason.UNSPECIFIED, error.text)))

    def say_ended(self, cause: EndCause) -> None:
        self.say_last(encode(Disconnect(END_REASONS[cause], END_TEXTS[cause])))

    def close(self, why: str, *, publish_will: bool) -> None:
        self._connect = None
        self._take_back()
        self._bulker = None
        self.broker.timers.cancel(self._bulk_timer)
        super().close(why, publish_will=publish_will)


class _BulkDue:
    __slots__ = ("_link",)

    def __init__(self, link: TbusLink) -> None:
        self._link = link

    def on_timer(self, now: float) -> None:
        self._link.on_bulk_due()
