"""One link between two brokers (TB-15): what each message of a neighbour does here, and what it is sent.

Either side may have made the call (`joining`); once both have said who they are the link is the same at both
ends. To the core a neighbour is a session like a client's, whose subscriptions are what its
clients want; see `polybus.mesh`.
"""

import math
from typing import ClassVar, Final, assert_never

from polybus.broker import events
from polybus.broker.broker import Broker
from polybus.broker.events import emit
from polybus.broker.lifecycle import RequestState as Life
from polybus.broker.links import Port
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Delivery, Message
from polybus.broker.request import Request
from polybus.broker.requests import PacketIdInUse
from polybus.broker.sessions import NEIGHBOR_MARK, Session
from polybus.broker.stamps import MAX_STAMP
from polybus.broker.taken import WINDOW
from polybus.broker.topics import InvalidTopic
from polybus.mesh.interest import LOCAL, News, Want
from polybus.mesh.mesh import DESTINATION_MARK, Mesh
from polybus.mesh.offers import Answer
from polybus.session.intake import State
from polybus.session.stream import MAX_ERROR_CHARACTERS
from polybus.session.tbus.bulking import MAX_BULK_BYTES, bulker
from polybus.session.tbus.crossing import (
    message_of,
    neighbor_encoding,
    offer_parts,
    properties_of,
    size_of,
)
from polybus.session.tbus.link import OUTCOMES, TbusLink
from polybus.session.tbus.options import TbusOptions
from polybus.session.tbus.reader import bad_bulk, wrong
from polybus.wire.tbus.codec import encode, encode_answer, encode_request
from polybus.wire.tbus.crossing import (
    REPLAYED,
    BrokerReqAck,
    Crossing,
    Interest,
    Verdict,
    decode_between,
    encode_between,
    encode_interest,
    encode_msgack,
)
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    Disconnect,
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
)

PING: Final = encode(PingReq())
PONG: Final = encode(PingResp())
PONG_S: Final = 5.0
"""How long a PINGRESP may take."""
OVERSLEPT_S: Final = 1.0
ANY_ID: Final = 1
"""Brokers acknowledge no subscriptions to each other, so that their packet ids mean nothing."""
MAX_TIMEOUT_S: Final = 0xFFFF_FFFF
RULE: Final = "TB-15"


class NeighborLink(TbusLink):
    __slots__ = ("_awaits_pong", "_mesh", "_ping_timer", "_pong_due", "neighbor")

    calls: ClassVar[bool]

    def __init__(
        self, broker: Broker, port: Port, options: TbusOptions, mesh: Mesh, *, peer: str = "", now: float
    ) -> None:
        super().__init__(broker, port, options, peer=peer, now=now)
        self._mesh = mesh
        self.neighbor = ""
        """The id of the broker at the other end."""
        self._awaits_pong = False
        self._ping_timer = 0
        self._pong_due = 0.0

    def decode(self, first_byte: int, body: bytes) -> Packet:
        return decode_between(first_byte, body)

    def name_owner(self) -> str:
        return f"{self.neighbor}{DESTINATION_MARK}"

    def _begin(self, neighbor: str, packet_limit: int | None, keep_alive_s: int) -> Session:
        self.neighbor = neighbor
        self.client_id = NEIGHBOR_MARK + neighbor
        self.encoding = neighbor_encoding(packet_limit or self.agreed.packet_size_bytes)
        session, _ = self.enter(
            keep_alive_s=keep_alive_s, clean_start=False, expiry_s=self._mesh.options.keep_s, window=WINDOW
        )
        return session

    def _introduce(self, session: Session) -> None:
        """Both have said who they are: now what they want."""
        self._bulker = bulker(self._options.bulk, MAX_BULK_BYTES)
        way = "called it" if self.calls else "called by it"
        emit(events.NEIGHBOR_CONNECTED, neighbor=self.neighbor, peer=self.peer, reason=way)
        self._mesh.link_up(session, self)

    def handle(self, packet: Packet) -> None:
        session = self.session
        if session is None:
            self.greet(packet)
            return
        match packet:
            case Publish():
                self._on_publish(packet, session)
            case MsgAck():
                self._on_msgack(packet, session)
            case ReqAck():
                self._on_reqack(packet, session)
            case Subscribe():
                self._on_subscribe(packet, session)
            case Unsubscribe():
                self._on_unsubscribe(packet, session)
            case SubAck():
                why = packet.reason_string or f"reason {packet.reason}"
                emit(events.NOT_SUBSCRIBED, client_id=self.client_id, reason=f"by the neighbour: {why}")
            case PingReq():
                self.reply(PONG)
            case PingResp():
                self._awaits_pong = False
            case Disconnect():
                self.close(packet.reason_string or "it said goodbye", publish_will=False)
            case Connect() | ConnAck() | UnsubAck():
                raise wrong(f"{type(packet).__name__} has no place on a link of brokers", RULE)
            case Bulk():
                raise bad_bulk("it is not read as one")
            case _:
                assert_never(packet)

    def greet(self, packet: Packet) -> None:
        """The first message of the other end. Raises PeerError."""
        raise NotImplementedError

    # -- interest -----------------------------------------------------------------------------------

    def announce(self, news: News) -> None:
        for topic_filter, want in news:
            if want is None:
                frame = encode(Unsubscribe(ANY_ID, topic_filter))
            else:
                frame = encode_interest(ANY_ID, topic_filter, want.concurrency, want.qos)
            self.broker.reply(self, frame)

    def announced_all(self) -> None:
        self.broker.reply(self, encode(Unsubscribe(ANY_ID, "")))

    def _on_subscribe(self, packet: Subscribe, session: Session) -> None:
        topic_filter = packet.topic_filter
        qos = packet.qos if isinstance(packet, Interest) and packet.qos is not None else 0
        limits = self.broker.limits
        reason, why = SubscribeReason.SUCCESS, ""
        if topic_filter not in session.subscriptions and (
            len(session.subscriptions) >= limits.subscriptions_per_session or self.broker.dispatcher.over_budget
        ):
            reason, why = SubscribeReason.TOO_MANY_SUBSCRIPTIONS, "no room for more"
        elif qos > 2 or topic_filter.startswith(LOCAL):
            reason, why = (
                SubscribeReason.INVALID_FILTER,
                "QoS is at most 2, and topics of a broker's own stay there",
            )
        if not why:
            try:
                self._mesh.wanted(session, topic_filter, Want(qos, packet.concurrency or 0))
            except InvalidTopic as error:
                reason, why = SubscribeReason.INVALID_FILTER, str(error)
        if why:
            emit(events.NOT_SUBSCRIBED, client_id=self.client_id, topic=topic_filter, reason=why)
            self._reply(SubAck(packet.packet_id, reason, why))

    def _on_unsubscribe(self, packet: Unsubscribe, session: Session) -> None:
        if packet.topic_filter:
            self._mesh.unwanted(session, packet.topic_filter)
        else:
            self._mesh.named_all(session)

    # -- messages -----------------------------------------------------------------------------------

    def _on_publish(self, packet: Publish, session: Session) -> None:
        self.messages_in += 1
        if packet.is_response:
            self._on_answer(packet, session)
            return
        assert packet.topic is not None
        route = self._route(packet.topic)
        if route.is_reserved:
            raise wrong(f"{route.topic[:80]!r} is a topic of each broker's own", RULE)
        if packet.is_request:
            self._on_request(packet, session)
            return
        message = message_of(packet, self.client_id, self.broker.now)
        if message.stamp > MAX_STAMP:
            raise wrong(f"Stamp is at most {MAX_STAMP}, not {message.stamp}", RULE)
        shares = packet.shares or () if isinstance(packet, Crossing) else ()
        is_tracked = packet.packet_id is not None and not packet.timeout_s
        self.broker.stats.crossed_in += 1
        if isinstance(packet, Crossing) and packet.retain == REPLAYED:
            self.broker.drain()  # it may have come as a message just before
            retained = self.broker.retained
            if not message.payload and retained.get(message.topic) is None:
                retained.store(message, self.broker.now)  # nobody here knew a value: only note that it is gone
            elif retained.is_news(message):
                self.broker.publish(route, message)
            return
        if is_tracked and self.broker.ledger.trouble:
            raise wrong("the store is in trouble: send it again later", RULE)
        if packet.packet_id is not None and packet.timeout_s:
            self._on_offer(packet, session, message, shares)
            return
        is_known = bool(is_tracked and message.stamp)
        if is_known and not self._mesh.is_new(session, message):
            self._acknowledge(packet, is_taken=True, missed=self._mesh.missed_before(session, message))
            return
        is_taken = not shares or "" in shares
        missed: tuple[str, ...] = ()
        if is_taken:
            self.broker.publish(route, message)
        if shares:
            self.broker.dispatcher.now = self.broker.now
            missed = self._deliver_shares(message, shares)
            is_taken |= len(missed) < len(shares) - ("" in shares)
        if missed and is_known:
            self._mesh.missed(session, message, missed, is_taken=is_taken)
        if packet.packet_id is not None:
            self._acknowledge(packet, is_taken=is_taken, missed=missed)

    def _deliver_shares(self, message: Message, shares: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return self._mesh.deliver_shares(message, shares)
        except InvalidTopic as error:
            raise wrong(f"Shares: {error}", RULE) from error

    def _on_msgack(self, packet: MsgAck, session: Session) -> None:
        verdict = packet if isinstance(packet, Verdict) else None
        if verdict is None or not verdict.is_undelivered:
            self._mesh.acknowledged(session, packet.message_id, Answer.TAKEN)
        else:
            answer = Answer.BUSY if verdict.is_busy else Answer.NOBODY
            self._mesh.acknowledged(session, packet.message_id, answer, verdict.shares or ())

    def _acknowledge(self, packet: Publish, *, is_taken: bool, missed: tuple[str, ...] = ()) -> None:
        """A promise, of what is tracked: that leaves when it is safe."""
        assert packet.packet_id is not None
        assert packet.topic is not None
        if is_taken and not missed:
            frame = encode_msgack(packet.packet_id, packet.topic)
        else:
            shares = missed if is_taken else None
            frame = encode_between(Verdict(packet.packet_id, packet.topic, is_undelivered=1, shares=shares))
        self.broker.hold(self, frame)

    def _on_offer(self, packet: Publish, session: Session, message: Message, shares: tuple[str, ...]) -> None:
        assert packet.packet_id is not None
        assert packet.topic is not None
        try:
            answer = self._mesh.take_offer(session, self._route(packet.topic), message, shares)
        except InvalidTopic as error:
            raise wrong(f"Shares: {error}", RULE) from error
        if answer is Answer.TAKEN:
            self._acknowledge(packet, is_taken=True)
        else:
            is_busy = 1 if answer is Answer.BUSY else None
            refusal = Verdict(packet.packet_id, packet.topic, is_undelivered=1, is_busy=is_busy)
            self.reply(encode_between(refusal))

    def offer_frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        return offer_parts(self.encoding, delivery, now)

    def encode_again(self, packet_id: int, delivery: Delivery | None, now: float) -> bytes | None:
        parts = self.encoding.frame(delivery, now) if delivery is not None else None
        return None if parts is None else parts[0] + packet_id.to_bytes(2) + parts[1]

    # -- requests of the neighbour's clients ----------------------------------------------------------

    def _on_request(self, packet: Publish, session: Session) -> None:
        broker = self.broker
        owner, packet_id = packet.response_destination or "", packet.packet_id
        assert packet.topic is not None
        assert packet_id is not None
        if not owner.startswith(self.owner):
            raise wrong(
                f"a request of your clients has a ResponseDestination that begins with {self.neighbor}", RULE
            )
        broker.stats.requests_in += 1
        broker.drain()  # who is busy is busy with what came before
        route = self._route(packet.topic)
        desk = broker.subscriptions.desk(route).local()
        if desk.pick(None) is None:
            is_busy = desk.has_hope(None)
            if is_busy:
                self._mesh.await_services(session, desk)
            else:
                self._mesh.doubt_services(packet.topic)
            self._refuse_request(
                packet_id, owner, "all services are busy" if is_busy else "no service", is_busy
            )
            return
        message = message_of(packet, self.client_id, broker.now)
        message.expires_at = None
        try:
            broker.request(route, message, packet_id, packet.timeout_s or None, may_wait=False, owner=owner)
        except PacketIdInUse:
            self._mesh.await_services(session, desk)  # it will not ask before it is told
            self._refuse_request(packet_id, owner, "there is another request with this PacketId", False)
            return
        broker.drain()
        request = (broker.requests.under_way.get(owner) or {}).get(packet_id)
        if request is not None and request.state is Life.DELIVERED:
            self._reply(ReqAck(packet_id, RequestState.DELIVERED, owner, packet.topic))

    def _refuse_request(self, packet_id: int, owner: str, why: str, is_busy: bool) -> None:
        state = RequestState.NOT_DELIVERED
        refusal = BrokerReqAck(packet_id, state, owner, reason_string=why, is_busy=1 if is_busy else None)
        self.reply(encode_between(refusal))

    def outcome(self, request: Request, now: float) -> bytes | None:
        owner, packet_id = request.owner, request.packet_id
        if not request.is_answered:
            if request.state is Life.NOT_DELIVERED and self.session is not None:
                # It asks no more until it is told that there is room.
                desk = self.broker.subscriptions.desk(self._route(request.topic)).local()
                self._mesh.await_services(self.session, desk)
            return encode(ReqAck(packet_id, OUTCOMES[request.state], owner, None, request.reason or None))
        said = request.answer_properties
        if said is NO_MESSAGE_PROPERTIES:
            parts = encode_answer(request.answer or b"", request.message.priority, owner, packet_id)
            frame = b"".join(parts)
        else:
            crossing = Crossing(
                None, request.answer or b"", is_response=True, is_priority=request.message.priority,
                response_destination=owner, packet_id=packet_id, **properties_of(said),
            )  # fmt: skip
            frame = encode_between(crossing)
        return frame if len(frame) <= size_of(self.encoding) else self._too_large(request)

    def _too_large(self, request: Request) -> bytes:
        why = "the answer is larger than the broker of its requester takes"
        return encode(ReqAck(request.packet_id, RequestState.ERROR, request.owner, None, why))

    # -- requests of our clients, with services there ---------------------------------------------------

    def request_frame(self, request: Request, now: float) -> bytes | None:
        message = request.message
        left_s = min(max(1, math.ceil(request.deadline - now)), MAX_TIMEOUT_S)
        destination, packet_id = self._mesh.prefix + request.owner, request.packet_id
        topic, payload, priority = message.topic, message.payload, message.priority
        if message.properties is NO_MESSAGE_PROPERTIES:
            frame = b"".join(encode_request(topic, payload, priority, left_s, destination, packet_id))
        else:
            crossing = Crossing(
                topic, payload, is_request=True, is_priority=priority, timeout_s=left_s,
                response_destination=destination, packet_id=packet_id, **properties_of(message.properties),
            )  # fmt: skip
            frame = encode_between(crossing)
        if len(frame) > size_of(self.encoding):
            return None
        self.broker.stats.requests_out += 1
        return frame

    def cancel_frame(self, request: Request) -> bytes | None:
        destination = self._mesh.prefix + request.owner
        return encode(ReqAck(request.packet_id, RequestState.CANCELED, destination, request.topic))

    def _on_answer(self, packet: Publish, session: Session) -> None:
        assert packet.packet_id is not None
        owner = self._ours(packet.response_destination)
        said = message_of(packet, self.client_id, self.broker.now).properties
        self.broker.answer(session, owner, packet.packet_id, packet.payload, said)

    def _ours(self, destination: str | None) -> str:
        """The requester here that a ResponseDestination names."""
        if destination is None or not destination.startswith(self._mesh.prefix):
            raise wrong(f"a ResponseDestination for clients here begins with {self._mesh.options.own_id}", RULE)
        return destination.removeprefix(self._mesh.prefix)

    def _on_reqack(self, packet: ReqAck, session: Session) -> None:
        broker = self.broker
        packet_id, destination = packet.packet_id, packet.response_destination or ""
        if packet.state is RequestState.CANCELED and destination.startswith(self.owner):
            broker.cancel_request(destination, packet_id)
            return
        owner = self._ours(packet.response_destination)
        broker.dispatcher.now = broker.now
        broker.drain()
        why = (packet.reason_string or "")[:MAX_ERROR_CHARACTERS]
        match packet.state:
            case RequestState.ERROR:
                broker.fail_request(session, owner, packet_id, why or "the service failed")
            case RequestState.TIMED_OUT:
                broker.requests.expire(session, owner, packet_id)
            case RequestState.NOT_DELIVERED | RequestState.DELETED | RequestState.UNKNOWN:
                is_busy = isinstance(packet, BrokerReqAck) and bool(packet.is_busy)
                broker.requests.give_back(session, owner, packet_id, why, is_busy=is_busy)
            case RequestState.DELIVERED | RequestState.CANCELED:
                pass  # it is in the hands of the neighbour already, or in nobody's any more
            case _:
                assert_never(packet.state)

    def check_backlog(self) -> None:
        """A neighbour is read whatever it has not read yet: if both waited for the other, both would for ever.
        What it can make us say is bounded by its window, its requests in hand and our filters."""

    # -- silence, and the end -----------------------------------------------------------------------------

    def probe(self) -> None:
        if not self._awaits_pong:
            self._awaits_pong = True
            self.broker.reply(self, PING)
            self.broker.timers.cancel(self._ping_timer)
            self._pong_due = self.broker.now + PONG_S
            self._ping_timer = self.broker.timers.schedule(self._pong_due, Ping(self))
            self.broker.stir()

    def on_ping(self, now: float) -> None:
        """Time to ask whether the other end is there, or to have heard so."""
        self._ping_timer = 0
        if self.state != State.CONNECTED:
            return
        if self._awaits_pong and now > self._pong_due + OVERSLEPT_S:
            # It was us who did not look: the answer may be there already.
            self._pong_due = now + PONG_S
            self._ping_timer = self.broker.timers.schedule(self._pong_due, Ping(self))
            return
        if self._awaits_pong and self.last_seen + PONG_S <= now:
            self.fail(wrong("no PINGRESP in time", "TB-06"))
            return
        self._awaits_pong = False
        if self.calls:
            self._ping_timer = self.broker.timers.schedule(
                now + self._mesh.options.keep_alive_s / 2, Probe(self)
            )

    def tell_gone(self, why: str, lasted_s: float) -> None:
        emit(events.NEIGHBOR_LOST, neighbor=self.neighbor, peer=self.peer, reason=why, duration_s=lasted_s)

    def close(self, why: str, *, publish_will: bool) -> None:
        if self.state == State.CLOSED:
            return
        self.broker.timers.cancel(self._ping_timer)
        if self.session is not None:
            self._mesh.link_down(self.session)
        super().close(why, publish_will=False)


class Ping:
    __slots__ = ("_link",)

    def __init__(self, link: NeighborLink) -> None:
        self._link = link

    def on_timer(self, now: float) -> None:
        self._link.on_ping(now)


class Probe(Ping):
    __slots__ = ()

    def on_timer(self, now: float) -> None:
        self._link.probe()
