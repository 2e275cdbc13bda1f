"""One MQTT connection: what each packet does, and what is said when it ends.

Everything a packet may do wrong raises `PeerError`, for which `refuse` and `say_failed` find the answer the
standard prescribes. Acknowledgements that promise safety go through `broker.hold`, which sends
them after the tick's commit; everything else goes to the outbox at once.
"""

from collections.abc import Callable
from typing import Final, assert_never

import msgspec

from polybus.broker import events
from polybus.broker.access import Challenge, Exchange, Verdict
from polybus.broker.broker import Broker
from polybus.broker.events import emit
from polybus.broker.links import Port
from polybus.broker.requests import NOT_STORED
from polybus.broker.sessions import Session, Subscription
from polybus.broker.subscriptions import STREAMS
from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.errors import PeerError, UsageError
from polybus.session.intake import Refusal, State
from polybus.session.mqtt import requests
from polybus.session.mqtt.connecting import agree
from polybus.session.mqtt.encoding import MQTT_5, PrivateEncoding
from polybus.session.mqtt.options import MqttOptions
from polybus.session.mqtt.publishing import MqttPublishing
from polybus.session.mqtt.requests import Unwelcome
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    SUBACK_FAILURE_V311,
    V5,
    V31,
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

PINGRESP: Final = encode(PingResp(), V5)


class MqttLink(MqttPublishing):
    __slots__ = (
        "_connect",
        "_exchange",
        "_method",
        "_new_client_id",
    )

    def __init__(
        self,
        broker: Broker,
        port: Port,
        options: MqttOptions,
        new_client_id: Callable[[], str],
        *,
        peer: str = "",
        certificate_name: str | None = None,
        now: float,
    ) -> None:
        super().__init__(broker, port, options, peer=peer, certificate_name=certificate_name, now=now)
        self._aliases = None
        self._new_client_id = new_client_id
        self._connect: Connect | None = None
        self._exchange: Exchange | None = None
        self._method: str | None = None
        """The authentication method both sides are bound to."""

    def handle(self, packet: Packet) -> None:
        if self.state == State.NEW:
            if not isinstance(packet, Connect):
                raise self.not_opened()
            self._on_connect(packet)
        elif self.state == State.AUTHENTICATING:
            self._on_packet_while_authenticating(packet)
        else:
            assert self.session is not None
            self._on_packet(packet, self.session)

    def _on_packet(self, packet: Packet, session: Session) -> None:
        match packet:
            case Publish():
                self._on_publish(packet, session)
            case PubAck():
                self.broker.dispatcher.acknowledge(session, packet.packet_id)
            case PubRec():
                self._on_pubrec(packet, session)
            case PubRel():
                self._on_pubrel(packet, session)
            case PubComp():
                self.broker.dispatcher.complete(session, packet.packet_id)
            case Subscribe():
                self._on_subscribe(packet, session)
            case Unsubscribe():
                self._on_unsubscribe(packet, session)
            case PingReq():
                self.reply(PINGRESP)
            case Disconnect():
                self._on_disconnect(packet, session)
            case Auth():
                self._on_reauthenticate(packet)
            case Connect():
                raise PeerError(ReasonCode.PROTOCOL_ERROR, "a second CONNECT", "MQTT-3.1.0-2")
            case ConnAck() | SubAck() | UnsubAck() | PingResp():
                raise PeerError(ReasonCode.PROTOCOL_ERROR, "a packet only servers send")
            case _:
                assert_never(packet)

    # -- connecting -------------------------------------------------------------------------

    def _on_connect(self, connect: Connect) -> None:
        self._connect = connect
        self.version = connect.version
        properties = connect.properties
        self._max_packet_size = properties.maximum_packet_size
        self._says_why = properties.request_problem_information != 0
        self.introduce(connect.client_id or self._assigned_client_id(connect))
        method = properties.authentication_method
        if method is not None:
            self._begin_exchange(method, properties.authentication_data)
        else:
            self.authenticate(connect.user_name, connect.password)

    def _assigned_client_id(self, connect: Connect) -> str:
        if not self._options.allow_zero_length_client_id or connect.version == V31:
            raise PeerError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a client id is required here", "MQTT-3.1.3-8"
            )
        if connect.version < V5 and not connect.clean_start:
            raise PeerError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a kept session needs a client id", "MQTT-3.1.3-8"
            )
        return self._new_client_id()

    def accept(self, verdict: Verdict) -> None:
        connect = self._connect
        assert connect is not None
        self._connect = None  # it may hold a password
        agreement = agree(connect, self.client_id, self.agreed, self._options)
        will = agreement.will
        if will is not None and not self.may_publish(will.message.topic):
            raise self.refusal(Refusal.NOT_AUTHORIZED, "the will's topic is not allowed")
        if connect.version == V5:
            private = agreement.max_aliases or agreement.max_packet_size
            self.encoding = (
                PrivateEncoding(self, agreement.max_aliases, agreement.max_packet_size) if private else MQTT_5
            )
        properties = agreement.properties
        if self._method is not None:
            properties = msgspec.structs.replace(
                properties, authentication_method=self._method, authentication_data=verdict.data
            )
        if self._max_packet_size is not None:
            self._frame(ConnAck(0, False, properties))  # raises if the client cannot take it
        session, present = self.enter(
            keep_alive_s=agreement.keep_alive_s,
            clean_start=connect.clean_start,
            expiry_s=agreement.expiry_s,
            will=will,
            window=agreement.window,
        )
        self._reply(ConnAck(0, present, properties))  # [MQTT-3.2.0-1] before anything that waited
        self.broker.greeted(session)
        emit(
            events.CLIENT_CONNECTED,
            client_id=self.client_id, peer=self.peer, protocol="mqtt", version=self.version,
        )  # fmt: skip

    def name_owner(self) -> str:
        return f"\x02{self.user or ''}\x01{self.client_id}"

    # -- enhanced authentication (5.0 section 4.12) -------------------------------------------------

    def _begin_exchange(self, method: str, data: bytes | None) -> None:
        known = self.broker.access.methods.get(method)
        if known is None:
            raise PeerError(
                ReasonCode.BAD_AUTHENTICATION_METHOD, f"unknown authentication method {method[:80]!r}",
                "MQTT-4.12.0-1",
            )  # fmt: skip
        self._exchange = known.begin(self.client_id)
        self.state = State.AUTHENTICATING
        self._step(method, data)

    def _on_packet_while_authenticating(self, packet: Packet) -> None:
        match packet:
            case Auth(reason_code=ReasonCode.CONTINUE_AUTHENTICATION) if self._connect is not None:
                self._check_method(packet, self._connect.properties.authentication_method)
                self._step(packet.properties.authentication_method or "", packet.properties.authentication_data)
            case Disconnect():
                self.close("disconnected while authenticating", publish_will=False)
            case _:
                raise PeerError(
                    ReasonCode.PROTOCOL_ERROR, "only AUTH or DISCONNECT may follow now", "MQTT-3.1.2-30"
                )

    def _step(self, method: str, data: bytes | None) -> None:
        assert self._exchange is not None
        answer = self._exchange.step(data)
        if isinstance(answer, Challenge):
            properties = Properties(authentication_method=method, authentication_data=answer.data)
            self._reply(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
            return
        self._exchange = None
        if self.state == State.AUTHENTICATING:
            self._method = method
            self.judge(answer)
        elif answer.allowed:
            properties = Properties(authentication_method=method, authentication_data=answer.data)
            self._reply(Auth(ReasonCode.SUCCESS, properties))
        else:
            raise self.refusal(Refusal.NOT_AUTHORIZED, answer.reason or "not authorized")

    def _on_reauthenticate(self, packet: Auth) -> None:
        if self._method is None:
            raise PeerError(
                ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT", "MQTT-4.12.1-1"
            )
        self._check_method(packet, self._method)
        if packet.reason_code == ReasonCode.RE_AUTHENTICATE:
            self._exchange = self.broker.access.methods[self._method].begin(self.client_id)
        elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or self._exchange is None:
            raise PeerError(ReasonCode.PROTOCOL_ERROR, "no authentication is under way")
        self._step(self._method, packet.properties.authentication_data)

    def _check_method(self, packet: Auth, method: str | None) -> None:
        if packet.properties.authentication_method != method:
            raise PeerError(ReasonCode.PROTOCOL_ERROR, "the authentication method changed", "MQTT-4.12.0-5")

    # -- subscribing ----------------------------------------------------------------------------------

    def _on_subscribe(self, packet: Subscribe, session: Session) -> None:
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        try:
            serves = requests.concurrency(packet.properties)
        except Unwelcome as error:
            properties = Properties(reason_string=error.text if self._says_why else None)
            self._acknowledge(SubAck(packet.packet_id, (error.reason_code,) * len(packet.requests), properties))
            return
        reasons: list[str] = []
        codes = [self._subscribe(session, request, identifier, serves, reasons) for request in packet.requests]
        if self.version != V5:
            codes = [code if code < 0x80 else SUBACK_FAILURE_V311 for code in codes]
        is_promise = any(code < 0x80 for code in codes)
        if session.kept and self.broker.ledger.trouble and ReasonCode.QUOTA_EXCEEDED in codes:
            reasons.append(NOT_STORED)
        properties = NO_PROPERTIES
        if reasons and self._says_why:
            properties = Properties(reason_string="; ".join(reasons))
        frame = self._frame(SubAck(packet.packet_id, tuple(codes), properties))
        self.broker.hold(self, frame, is_promise=is_promise)

    def _subscribe(
        self, session: Session, request: SubscriptionRequest, identifier: int, serves: int, reasons: list[str]
    ) -> int:
        """The code of the answer; `reasons` gets what there is to say about it."""
        broker = self.broker
        topic_filter = request.topic_filter
        try:
            path, group = parse_filter(topic_filter, broker.limits.topic_levels, broker.limits.topic_bytes)
        except InvalidTopic as error:
            if self.version != V5:  # 3.1.1 section 3.8.3.1: a filter that breaks the rules ends it
                raise PeerError(ReasonCode.TOPIC_FILTER_INVALID, str(error), "MQTT-4.7.1-1") from error
            return self._no_subscription(topic_filter, ReasonCode.TOPIC_FILTER_INVALID, str(error))
        if not self.may_subscribe(topic_filter, path):
            return ReasonCode.NOT_AUTHORIZED
        is_new = topic_filter not in session.subscriptions
        if is_new and (
            len(session.subscriptions) >= broker.limits.subscriptions_per_session
            or broker.dispatcher.over_budget
        ):
            return self._no_subscription(topic_filter, ReasonCode.QUOTA_EXCEEDED, "no room for more")
        if session.kept and broker.ledger.trouble:
            return self._no_subscription(topic_filter, ReasonCode.QUOTA_EXCEEDED, NOT_STORED)
        subscription = Subscription(
            path, group, request.qos, request.no_local, request.retain_as_published, identifier, serves
        )
        if path.startswith(STREAMS):
            try:
                broker.replay(session, topic_filter, subscription)
            except UsageError as error:
                reasons.append(str(error))
                return self._no_subscription(topic_filter, ReasonCode.TOPIC_FILTER_INVALID, str(error))
        else:
            broker.subscribe(session, topic_filter, subscription, retain_handling=request.retain_handling)
        emit(events.SUBSCRIBED, client_id=self.client_id, topic=topic_filter)
        return request.qos

    def _no_subscription(self, topic_filter: str, code: ReasonCode, why: str) -> int:
        emit(events.NOT_SUBSCRIBED, client_id=self.client_id, topic=topic_filter, reason=why)
        return code

    def _on_unsubscribe(self, packet: Unsubscribe, session: Session) -> None:
        codes = [self._unsubscribe(session, topic_filter) for topic_filter in packet.topic_filters]
        self._acknowledge(UnsubAck(packet.packet_id, tuple(codes) if self.version == V5 else ()))

    def _unsubscribe(self, session: Session, topic_filter: str) -> ReasonCode:
        if self.broker.unsubscribe(session, topic_filter):
            emit(events.UNSUBSCRIBED, client_id=self.client_id, topic=topic_filter)
            return ReasonCode.SUCCESS
        why = "no subscription existed"
        emit(events.NOT_UNSUBSCRIBED, client_id=self.client_id, topic=topic_filter, reason=why)
        return ReasonCode.NO_SUBSCRIPTION_EXISTED

    # -- ends ------------------------------------------------------------------------------------------------

    def _on_disconnect(self, packet: Disconnect, session: Session) -> None:
        wanted_s = packet.properties.session_expiry_s
        if wanted_s is not None:
            if not session.expiry_s and wanted_s:
                raise PeerError(
                    ReasonCode.PROTOCOL_ERROR, "a session expiry of 0 cannot be changed", "MQTT-3.14.2-2"
                )
            session.expiry_s = float(min(wanted_s, self.broker.limits.session_expiry_s))
        self.close("said goodbye", publish_will=packet.reason_code != ReasonCode.SUCCESS)

    def close(self, why: str, *, publish_will: bool) -> None:
        self._connect = None
        self._exchange = None
        super().close(why, publish_will=publish_will)  # [MQTT-3.1.4-6] nothing behind it is looked at
