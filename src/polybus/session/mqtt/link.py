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
from polybus.broker.links import EndCause, Port
from polybus.broker.message import Delivery, Message
from polybus.broker.request import Request
from polybus.broker.requests import NOT_STORED
from polybus.broker.sessions import Session, Subscription
from polybus.broker.subscriptions import STREAMS, Route
from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.errors import PeerError, UsageError
from polybus.session.intake import Refusal, State
from polybus.session.mqtt import requests
from polybus.session.mqtt.connecting import RETURN_CODES, agree
from polybus.session.mqtt.encoding import MQTT_5, PrivateEncoding, encode_duplicate, message_properties
from polybus.session.mqtt.options import MqttOptions
from polybus.session.mqtt.reader import MqttReader
from polybus.session.mqtt.requests import Unwelcome
from polybus.session.stream import MAX_ERROR_CHARACTERS
from polybus.wire.mqtt.checks import REASON_CODES
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    SUBACK_FAILURE_V311,
    V5,
    V31,
    Auth,
    ConnAck,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Packet,
    PacketType,
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

END_REASONS: Final = {
    EndCause.TAKEN_OVER: ReasonCode.SESSION_TAKEN_OVER,
    EndCause.SHUTTING_DOWN: ReasonCode.SERVER_SHUTTING_DOWN,
    EndCause.KEEP_ALIVE_TIMEOUT: ReasonCode.KEEP_ALIVE_TIMEOUT,
}

PINGRESP: Final = encode(PingResp(), V5)


class MqttLink(MqttReader):
    __slots__ = (
        "_aliases",
        "_connect",
        "_exchange",
        "_max_packet_size",
        "_method",
        "_new_client_id",
        "_options",
        "_says_why",
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
        super().__init__(broker, port, peer=peer, certificate_name=certificate_name, now=now)
        self._options = options
        self._new_client_id = new_client_id
        self._connect: Connect | None = None
        self._exchange: Exchange | None = None
        self._method: str | None = None
        """The authentication method both sides are bound to."""
        self._max_packet_size: int | None = None
        self._says_why = True
        """The client wants reason strings (Request Problem Information)."""
        self._aliases: dict[int, Route] | None = None

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
        self.client_id = self._checked_client_id(connect)
        self.check_room()
        method = properties.authentication_method
        if method is not None:
            self._begin_exchange(method, properties.authentication_data)
        else:
            self.authenticate(connect.user_name, connect.password)

    def _checked_client_id(self, connect: Connect) -> str:
        if connect.client_id:
            return connect.client_id
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

    # -- publishing ---------------------------------------------------------------------------------

    def _on_publish(self, packet: Publish, session: Session) -> None:
        if packet.properties.subscription_identifiers:
            raise PeerError(
                ReasonCode.PROTOCOL_ERROR, "a client must not send subscription identifiers", "MQTT-3.3.4-6"
            )
        self.messages_in += 1
        self.spend(1)
        route = self._route_of(packet)
        if packet.qos == 2 and session.received is not None and packet.packet_id in session.received:
            self._acknowledge(PubRec(packet.packet_id))  # [MQTT-4.3.3-10] again, but not published again
            return
        if packet.qos:
            self._check_quota(session)
        try:
            if packet.qos and self.broker.ledger.trouble:
                self._check_store(packet, route, session)
            if packet.qos == 2:
                self._publish_once(packet, route, session)
            else:
                self._publish(packet, route, session)
        except Unwelcome as error:
            self._refuse_publish(packet, error)
            return
        if packet.qos == 1:
            self.unacknowledged += 1
            is_promise = not self.broker.ledger.trouble  # else it would not have been taken
            self.broker.hold(self, self._frame(PubAck(packet.packet_id)), is_promise=is_promise)
        elif packet.qos == 2:
            self._acknowledge(PubRec(packet.packet_id))

    def _publish_once(self, packet: Publish, route: Route, session: Session) -> None:
        """That it was received is noted before: publishing may end in a tick, whose commit must have both or
        neither (OP-01). Raises what `_publish` does."""
        if session.received is None:
            session.received = set()
        received = session.received
        received.add(packet.packet_id)
        if session.kept:
            self.broker.ledger.received_changed(session)
        try:
            self._publish(packet, route, session)
        except BaseException:
            received.discard(packet.packet_id)
            raise

    def _check_store(self, packet: Publish, route: Route, session: Session) -> None:
        """Nothing can be written down: what would have to be is refused (OP-01). Raises Unwelcome."""
        plan = self.broker.subscriptions.plan(route)
        is_remembered = packet.qos == 2 and session.kept
        if is_remembered or packet.retain or plan.log is not None or plan.keeps(packet.qos):
            self._refuse_to_store()

    def _refuse_to_store(self) -> None:
        """5.0 is told why; 3.1.1 has no way to say so but the end. Raises Unwelcome, PeerError."""
        if self.version != V5:
            raise PeerError(ReasonCode.QUOTA_EXCEEDED, NOT_STORED, "OP-01")
        raise Unwelcome(ReasonCode.QUOTA_EXCEEDED, NOT_STORED)

    def _publish(self, packet: Publish, route: Route, session: Session) -> None:
        """Raises Unwelcome for what is not published, but costs nobody the connection."""
        if route.is_reserved and route.topic.startswith(requests.ANSWERS):
            self._answer(packet, route.topic, session)
            return
        if not self.may_publish(route.topic):
            raise Unwelcome(ReasonCode.NOT_AUTHORIZED)
        said = packet.properties
        broker = self.broker
        message = Message(route.topic, packet.payload, packet.qos, packet.retain, origin=self.client_id)
        expiry_s = said.message_expiry_s
        if said is not NO_PROPERTIES:
            message.properties = message_properties(said)
            if expiry_s is not None:
                message.expires_at = broker.now + expiry_s
            wishes = requests.wishes(said) if said.user_properties else requests.NONE
            if wishes is not requests.NONE:
                message.priority = wishes.priority
                message.waits = wishes.waiting and not wishes.managed
                if message.waits and packet.qos and broker.ledger.trouble:
                    self._refuse_to_store()
                if wishes.managed:
                    self._request(route, message, wishes.waiting, expiry_s)
                    return
                if wishes.cancel:
                    self._cancel(message)
                    return
        if packet.qos:
            self._check_log(route)
        broker.publish(route, message)

    def _check_log(self, route: Route) -> None:
        """What cannot be kept is not acknowledged. 3.1.1 has no way to say so but the end."""
        log = (route.plan or self.broker.subscriptions.plan(route)).log
        why = log.refusal if log is not None else None
        if why is not None:
            if self.version != V5:
                raise self.refusal(Refusal.NO_STORE, why)
            raise Unwelcome(ReasonCode.QUOTA_EXCEEDED, why)

    def _check_quota(self, session: Session) -> None:
        if self.version != V5:
            return
        received = len(session.received) if session.received is not None else 0
        if self.unacknowledged + received >= self.agreed.receive_maximum:
            raise PeerError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged publishes than allowed",
                "MQTT-3.3.4-7",
            )  # fmt: skip

    def _route_of(self, packet: Publish) -> Route:
        alias = packet.properties.topic_alias
        if alias is None:
            return self._route(packet.topic)
        if alias > self.agreed.topic_alias_maximum:
            raise PeerError(ReasonCode.TOPIC_ALIAS_INVALID, "topic alias too high", "MQTT-3.3.2-9")
        if self._aliases is None:
            self._aliases = {}
        if packet.topic:
            route = self._aliases[alias] = self._route(packet.topic)
            return route
        known = self._aliases.get(alias)
        if known is None:
            raise PeerError(ReasonCode.PROTOCOL_ERROR, f"topic alias {alias} was never set", "MQTT-3.3.2-7")
        # The route may have left the cache since: look it up again by its name.
        return self.broker.subscriptions.route_of(known.topic)

    def _route(self, topic: str) -> Route:
        if topic.startswith(requests.ANSWERS):  # each is used once: not for the cache
            return Route(topic)
        name = topic.encode()
        subscriptions = self.broker.subscriptions
        try:
            return subscriptions.routes.get(name) or subscriptions.route(name)
        except InvalidTopic as error:
            raise PeerError(ReasonCode.TOPIC_NAME_INVALID, str(error), "MQTT-3.3.2-2") from error

    def _refuse_publish(self, packet: Publish, error: Unwelcome) -> None:
        """5.0 says why; 3.1.1 has no way to, and acknowledges what it throws away [MQTT-3.3.5-2]."""
        if not packet.qos:
            if error.ends_qos_0:
                raise PeerError(error.reason_code, error.text)
            return
        code, properties = ReasonCode.SUCCESS, NO_PROPERTIES
        if self.version == V5:
            code = error.reason_code
            if error.text and self._says_why:
                properties = Properties(reason_string=error.text)
        refusal: PubAck | PubRec
        if packet.qos == 1:
            self.unacknowledged += 1
            refusal = PubAck(packet.packet_id, code, properties)
        else:
            refusal = PubRec(packet.packet_id, code, properties)
        self.broker.hold(self, self._frame(refusal), is_promise=False)

    def _on_pubrel(self, packet: PubRel, session: Session) -> None:
        known = session.received is not None and packet.packet_id in session.received
        if known:
            assert session.received is not None
            session.received.discard(packet.packet_id)
            if session.kept:
                self.broker.ledger.received_changed(session)
        code = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self._acknowledge(PubComp(packet.packet_id, code))

    def _on_pubrec(self, packet: PubRec, session: Session) -> None:
        dispatcher = self.broker.dispatcher
        if packet.reason_code >= 0x80:
            dispatcher.refuse(session, packet.packet_id)
        elif dispatcher.receive(session, packet.packet_id):
            self._release(session, encode(PubRel(packet.packet_id), self.version))
        else:
            self._reply(PubRel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))

    # -- requests (MQ-05) -----------------------------------------------------------------------------

    def _request(self, route: Route, message: Message, may_wait: bool, expiry_s: int | None) -> None:
        assert message.properties.response_topic is not None
        self._route(message.properties.response_topic)  # raises for one that nobody could subscribe to
        packet_id = self.broker.requests.new_packet_id(self.owner)
        if not packet_id:
            raise Unwelcome(ReasonCode.QUOTA_EXCEEDED, "too many requests are under way")
        message.retain = False
        message.expires_at = None
        self.broker.request(route, message, packet_id, expiry_s, may_wait=may_wait)

    def _cancel(self, message: Message) -> None:
        correlation = message.properties.correlation_data
        found = self.broker.requests.find(self.owner, message.topic, correlation)
        if found is None or not self.broker.cancel_request(self.owner, found.packet_id):
            raise Unwelcome(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "there is no such request to cancel")

    def _answer(self, packet: Publish, topic: str, session: Session) -> None:
        broker = self.broker
        request = requests.answered(topic, session)
        properties = message_properties(packet.properties)
        if request is None:
            broker.requests.reject(session, "no such request", topic=topic)
            is_taken = False
        elif requests.is_error(properties):
            text = packet.payload.decode(errors="replace")[:MAX_ERROR_CHARACTERS]
            is_taken = broker.fail_request(session, request.owner, request.packet_id, text)
        else:
            is_taken = broker.answer(session, request.owner, request.packet_id, packet.payload, properties)
        if not is_taken:
            raise Unwelcome(ReasonCode.NOT_AUTHORIZED, "you have no such request to answer")

    def request_frame(self, request: Request, now: float) -> bytes | None:
        return self._whole_frame(requests.to_service(request), now)

    def cancel_frame(self, request: Request) -> bytes | None:
        return self._whole_frame(requests.cancel_to_service(request), self.broker.now)

    def _whole_frame(self, message: Message, now: float) -> bytes | None:
        parts = self.encoding.frame(Delivery(message, 0, False), now)
        return parts[0] + parts[1] if parts is not None else None

    def outcome(self, request: Request, now: float) -> Delivery | None:
        topic = request.message.properties.response_topic
        session = self.session
        if topic is None or session is None or self.version != V5:
            return None
        subscriptions = self.broker.subscriptions
        cohort = subscriptions.plan(subscriptions.route_of(topic)).cohort_of(session)
        if cohort is None:
            return None
        message = requests.to_requester(request, topic)
        delivery = Delivery(message, min(message.qos, cohort.qos), False, cohort.identifiers)
        if self._max_packet_size is not None:
            parts = MQTT_5.frame(delivery, now)  # its own encoding would introduce an alias
            assert parts is not None
            if len(parts[0]) + len(parts[1]) + 2 > self._max_packet_size:
                delivery.message = requests.too_large(message)
        return delivery

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

    # -- replies -----------------------------------------------------------------------------------------

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

    def close(self, why: str, *, publish_will: bool) -> None:
        self._connect = None
        self._exchange = None
        super().close(why, publish_will=publish_will)  # [MQTT-3.1.4-6] nothing behind it is looked at
