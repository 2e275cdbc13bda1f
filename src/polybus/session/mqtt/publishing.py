"""What an MQTT client publishes: messages, requests, answers (MQ-05), and how the exchanges of QoS 2 go on."""

from polybus.broker.message import Delivery, Message
from polybus.broker.request import Request
from polybus.broker.requests import NOT_STORED
from polybus.broker.sessions import Session
from polybus.broker.subscriptions import Route
from polybus.broker.topics import InvalidTopic
from polybus.errors import PeerError
from polybus.session.intake import Refusal
from polybus.session.mqtt import requests
from polybus.session.mqtt.encoding import MQTT_5, message_properties
from polybus.session.mqtt.replies import MqttReplies
from polybus.session.mqtt.requests import Unwelcome
from polybus.session.stream import MAX_ERROR_CHARACTERS
from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
)


class MqttPublishing(MqttReplies):
    __slots__ = ("_aliases",)

    _aliases: dict[int, Route] | None

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
