"""Requests without a protocol: peers whose frames a test can read as they are, on a broker with a fake clock.

    bus = Bus()
    service, asker = bus.join("service"), bus.join("asker")
    service.serve("sums/#")
    asker.request("sums/a", b"1+1", packet_id=7)
    [asked] = service.take(Asked)
    service.answer(asked, b"2")
    assert asker.ends() == [("ANSWERED", b"2")]

A `Bus` is a `World` too, so MQTT clients can join. Each call lets the broker tick, except within `together`.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from polybus.broker.broker import LaneItem
from polybus.broker.lifecycle import ENDS, RequestState
from polybus.broker.limits import Limits
from polybus.broker.links import EndCause, Link
from polybus.broker.message import Delivery, Message, Run
from polybus.broker.request import Request
from polybus.broker.services import AS_THE_RULE_SAYS
from polybus.broker.sessions import Session, Subscription
from polybus.broker.subscriptions import Plan
from polybus.broker.topics import parse_filter
from tests.broker.books import check_requests
from tests.session.harness import World, check_accounts

ENDS_TOPIC = "ends"


class Frame(msgspec.Struct, frozen=True, tag=True):
    """What a peer is sent. `serial` numbers the requests of a bus."""


class Asked(Frame, frozen=True):
    """To a service: a request."""

    serial: int
    requester: str
    packet_id: int
    topic: str
    payload: bytes
    priority: bool
    left_s: float


class Stop(Frame, frozen=True):
    """To a service: no answer is needed any more."""

    serial: int
    requester: str
    packet_id: int
    topic: str


class End(Frame, frozen=True):
    """To a requester: the answer (`ANSWERED`), or the name of the state its request ended in."""

    serial: int
    packet_id: int
    state: str
    payload: bytes = b""
    reason: str = ""


class Got(Frame, frozen=True):
    """To a subscriber: a message."""

    topic: str
    payload: bytes
    priority: bool
    origin: str


F = TypeVar("F", bound=Frame)
_decode = msgspec.json.Decoder(Asked | Stop | End | Got).decode


class PlainEncoding:
    """A size, the QoS, and JSON; at QoS 1 and 2 a packet id behind it."""

    shared = False

    def __init__(self, peer: "Peer") -> None:
        self._peer = peer

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        message = delivery.message
        frame: Frame
        if message.topic == ENDS_TOPIC:
            frame = msgspec.json.decode(message.payload, type=End)
        else:
            frame = Got(message.topic, message.payload, message.priority, message.origin)
        self._peer.made.append(frame)
        return encode(frame, delivery.qos), b""

    def split(self, run: Run) -> list[Message]:
        raise AssertionError("peers on a plain bus send no runs")


class PlainPort:
    """A transport that takes everything, and remembers it."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written to after it was closed"
        self.sent += data

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Peer(Link):
    """A link, and the client behind it."""

    port: PlainPort

    def __init__(self, bus: "Bus", client_id: str) -> None:
        super().__init__(PlainPort(), PlainEncoding(self))
        self.bus = bus
        self.client_id = client_id
        self.made: list[Frame] = []
        """Everything the broker had this link encode, sent or not."""
        self.inbox: list[Frame] = []
        self.unacknowledged: list[int] = []
        self.takes_bytes = 1 << 30
        """Requests with a larger payload are too much for this service."""
        self.can_be_told = True
        self.ends_qos: int | None = None
        """Ends come as messages at this QoS, as they do in MQTT."""
        self.ended: EndCause | None = None
        self._ids = itertools.count(1)

    @property
    def mine(self) -> Session:
        assert self.session is not None
        return self.session

    @property
    def is_connected(self) -> bool:
        return self.session is not None and self.session.link is self

    # -- what the core asks of a link ----------------------------------------------------------------

    def request_frame(self, request: Request, now: float) -> bytes | None:
        if len(request.message.payload) > self.takes_bytes:
            return None
        message = request.message
        return self._make(
            Asked(
                request.serial,
                request.owner,
                request.packet_id,
                request.topic,
                message.payload,
                message.priority,
                request.deadline - now,
            )
        )

    def cancel_frame(self, request: Request) -> bytes | None:
        return self._make(Stop(request.serial, request.owner, request.packet_id, request.topic))

    def outcome(self, request: Request, now: float) -> bytes | Delivery | None:
        if not self.can_be_told:
            return None
        if request.is_answered:
            assert request.answer is not None
            end = End(request.serial, request.packet_id, "ANSWERED", request.answer)
        else:
            assert request.state in ENDS
            end = End(request.serial, request.packet_id, request.state.name, reason=request.reason)
        if self.ends_qos is None:
            return self._make(end)
        message = Message(
            ENDS_TOPIC, msgspec.json.encode(end), self.ends_qos, priority=request.message.priority
        )
        return Delivery(message, self.ends_qos, False)

    def encode_again(self, packet_id: int, delivery: Delivery | None, now: float) -> bytes | None:
        assert delivery is not None
        parts = self.encoding.frame(delivery, now)
        assert parts is not None
        return parts[0] + packet_id.to_bytes(2)

    def end(self, cause: EndCause, text: str = "") -> None:
        self.ended = cause
        self._close()

    def _make(self, frame: Frame) -> bytes:
        self.made.append(frame)
        return encode(frame)

    # -- what its client does ------------------------------------------------------------------------

    def serve(self, topic_filter: str, at_once: int = AS_THE_RULE_SAYS) -> None:
        self.subscribe(topic_filter, serves=at_once)

    def subscribe(self, topic_filter: str, *, qos: int = 0, serves: int = 0) -> None:
        parsed = parse_filter(topic_filter, 128)
        subscription = Subscription(parsed.path, parsed.group, qos, serves=serves)
        self.bus.broker.subscribe(self.mine, topic_filter, subscription)
        self.bus.go()

    def unsubscribe(self, topic_filter: str) -> bool:
        existed = self.bus.broker.unsubscribe(self.mine, topic_filter)
        self.bus.go()
        return existed

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        priority: bool = False,
        waits_s: float | None = None,
        qos: int = 0,
    ) -> None:
        broker = self.bus.broker
        message = Message(topic, payload, qos, priority=priority, origin=self.client_id)
        if waits_s is not None:
            message.waits = True
            message.expires_at = self.bus.now + waits_s
        broker.publish(broker.subscriptions.route_of(topic), message)
        self.bus.go()

    def request(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        packet_id: int = 0,
        timeout_s: float | None = None,
        may_wait: bool | None = None,
        priority: bool = False,
    ) -> int:
        """As TBus has it: a request with a timeout may wait. Returns the packet id."""
        broker = self.bus.broker
        packet_id = packet_id or next(self._ids)
        message = Message(topic, payload, priority=priority, origin=self.client_id)
        route = broker.subscriptions.route_of(topic)
        waits = timeout_s is not None if may_wait is None else may_wait
        broker.request(route, message, packet_id, timeout_s, may_wait=waits)
        self.bus.go()
        return packet_id

    def answer(self, asked: Asked, payload: bytes = b"") -> bool:
        was_right = self.bus.broker.answer(self.mine, asked.requester, asked.packet_id, payload)
        self.bus.go()
        return was_right

    def fail(self, asked: Asked, text: str) -> bool:
        was_right = self.bus.broker.fail_request(self.mine, asked.requester, asked.packet_id, text)
        self.bus.go()
        return was_right

    def cancel(self, packet_id: int) -> bool:
        was_there = self.bus.broker.cancel_request(self.client_id, packet_id)
        self.bus.go()
        return was_there

    def drop(self) -> None:
        """The network fails."""
        self._close()
        self.bus.go()

    def block(self) -> None:
        self.bus.broker.dispatcher.blocked(self)

    def unblock(self) -> None:
        self.bus.broker.dispatcher.unblocked(self)
        self.bus.go()

    def _close(self) -> None:
        broker = self.bus.broker
        self.flush()
        broker.dispatcher.forget(self)
        broker.close(self, publish_will=True)
        self.port.close()

    # -- what its client gets ------------------------------------------------------------------------

    def frames(self) -> list[Frame]:
        """Everything that was written so far."""
        self._fill()
        frames, self.inbox = self.inbox, []
        return frames

    def take(self, kind: type[F]) -> list[F]:
        """Every frame of this type; the others stay."""
        self._fill()
        found = [f for f in self.inbox if isinstance(f, kind)]
        self.inbox = [f for f in self.inbox if not isinstance(f, kind)]
        return found

    def ends(self) -> list[tuple[str, bytes]]:
        """(state, answer) of each end."""
        return [(end.state, end.payload) for end in self.take(End)]

    def take_ends(self, state: str) -> list[End]:
        """Of these ends all there is to say; nothing else must have come."""
        ends = self.take(End)
        assert {end.state for end in ends} <= {state}
        return ends

    def asked(self) -> list[bytes]:
        """Payloads of the requests it got."""
        return [asked.payload for asked in self.take(Asked)]

    def payloads(self) -> list[bytes]:
        """Of the messages it got."""
        return [got.payload for got in self.take(Got)]

    def acknowledge(self) -> None:
        self._fill()
        for packet_id in self.unacknowledged:
            assert self.bus.broker.dispatcher.acknowledge(self.mine, packet_id)
        self.unacknowledged.clear()
        self.bus.go()

    def _fill(self) -> None:
        sent = self.port.sent
        pos = 0
        while pos < len(sent):
            size, qos = int.from_bytes(sent[pos : pos + 4]), sent[pos + 4]
            pos += 5 + size
            self.inbox.append(_decode(bytes(sent[pos - size : pos])))
            if qos:
                self.unacknowledged.append(int.from_bytes(sent[pos : pos + 2]))
                pos += 2
        sent.clear()


def one(peer: Peer) -> Asked:
    """The one request that a service has just got."""
    [asked] = peer.take(Asked)
    return asked


def encode(frame: Frame, qos: int = 0) -> bytes:
    body = msgspec.json.encode(frame)
    return len(body).to_bytes(4) + bytes([qos]) + body


class Bus(World):
    def __init__(self, limits: Limits | None = None, **settings: Any) -> None:
        super().__init__(limits, **settings)
        self.is_held = False
        """The tick waits until this is over."""
        self.errors: list[Exception] = []
        self._route = self.broker._deliver
        self.broker._deliver = self._deliver  # type: ignore[method-assign]

    def _deliver(self, plan: Plan | None, item: LaneItem) -> None:
        """A broker that runs into an error of its own goes on; a test does not."""
        try:
            self._route(plan, item)
        except Exception as error:
            self.errors.append(error)
            raise

    def join(self, client_id: str, *, clean_start: bool = False, keeps_s: float = 0.0) -> Peer:
        """A client connects. `keeps_s`: how long its session outlives the connection."""
        peer = Peer(self, client_id)
        session, _ = self.broker.open(peer, client_id, clean_start=clean_start, expiry_s=keeps_s)
        self.broker.greeted(session)
        self.go()
        return peer

    def service(self, client_id: str, *topic_filters: str, at_once: int = AS_THE_RULE_SAYS) -> Peer:
        peer = self.join(client_id)
        for topic_filter in topic_filters:
            peer.serve(topic_filter, at_once)
        return peer

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done within comes in one read: the tick is at its end."""
        self.is_held = True
        yield
        self.is_held = False
        self.go()

    def go(self) -> None:
        if not self.is_held:
            self.broker.stir()
            self.settle()

    def settle(self) -> None:
        super().settle()
        if self.errors:
            raise self.errors[0]

    def under_way(self) -> list[Request]:
        return [r for mine in self.broker.requests.under_way.values() for r in mine.values()]

    def state(self, client_id: str, packet_id: int) -> RequestState:
        return self.broker.requests.under_way[client_id][packet_id].state

    def check(self) -> None:
        check_accounts(self.broker)
        check_requests(self.broker)

    def check_empty(self) -> None:
        """No request, nothing stored and no timer is left."""
        self.check()
        requests = self.broker.requests
        assert requests.under_way == {}
        assert requests.count == requests.size_bytes == 0
        assert self.broker.storage.count == requests.ends.count == 0
        assert self.broker.timers.deadline() is None
