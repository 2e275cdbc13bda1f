"""The reading half of a TBus connection: bytes in, messages out, with a short way for the frequent.

Plain messages, with neither flags nor properties, come by the million and are handled here straight from
the bytes: neighbours with the same audience are handed to the broker as one run. Everything else is
decoded by the codec and given to `handle`.

A BULK is entered as soon as its header is there: its messages are handled as if they had come by
themselves, even while the rest of it is still on its way. What is left of it is `_bulk_left` bytes.
"""

from typing import ClassVar, Final

from polybus.broker.broker import Broker
from polybus.broker.links import Port
from polybus.broker.message import Run
from polybus.broker.subscriptions import Plan, Route
from polybus.broker.topics import InvalidTopic
from polybus.errors import PeerError
from polybus.session.alike import alike_until
from polybus.session.intake import GROUP_WORK, MAX_GROUPS, WORK_A_TURN, Refusal, State, whole_size
from polybus.session.stream import StreamLink
from polybus.session.tbus.encoding import TBUS
from polybus.wire.tbus.codec import decode, next_frame
from polybus.wire.tbus.packets import ConnectReason, DisconnectReason, MessageType, Packet

PLAIN_MESSAGE: Final = MessageType.PUBLISH << 4
BULK: Final = MessageType.BULK << 4
NOT_IN_A_BULK: Final = frozenset({MessageType.BULK, MessageType.CONNECT})
MESSAGE_WORK: Final = 16

REFUSAL_CODES: Final = {
    Refusal.LONG_CLIENT_ID: ConnectReason.MALFORMED,
    Refusal.FULL: ConnectReason.CLIENT_LIMIT_REACHED,
    Refusal.NOT_AUTHORIZED: ConnectReason.NOT_AUTHORIZED,
    Refusal.BAD_CREDENTIALS: ConnectReason.NOT_AUTHORIZED,
    Refusal.BUSY: ConnectReason.UNSPECIFIED,
    Refusal.NO_MEMORY: ConnectReason.UNSPECIFIED,
    Refusal.NO_STORE: ConnectReason.UNSPECIFIED,
    Refusal.INTERNAL: ConnectReason.UNSPECIFIED,
}


class TbusReader(StreamLink):
    __slots__ = ("_bulk_left", "is_greeted")

    opening = range(MessageType.CONNECT << 4, (MessageType.CONNECT << 4) + 16)
    keep_alive_factor = 1.0
    reason_codes: ClassVar = REFUSAL_CODES

    def __init__(
        self, broker: Broker, port: Port, *, peer: str, certificate_name: str | None, now: float
    ) -> None:
        super().__init__(broker, port, TBUS, peer=peer, certificate_name=certificate_name, now=now)
        self.is_greeted = False
        """A CONNECT has begun, right or wrong."""
        self._bulk_left = 0

    def decode(self, first_byte: int, body: bytes) -> Packet:
        """Raises PeerError."""
        return decode(first_byte, body)

    def handle(self, packet: Packet) -> None:
        """Do what a decoded message asks for. Raises PeerError."""
        raise NotImplementedError

    def not_opened(self) -> PeerError:
        return wrong("the first message must be CONNECT", "TB-03")

    def handle_packets(self, data: bytes, pos: int) -> int:
        self.is_greeted = True
        end = len(data)
        max_size = self.agreed.packet_size_bytes
        # A client with a publish rate is counted message by message.
        makes_runs = not self.broker.limits.publish_rate_per_client
        turn = WORK_A_TURN
        bulk_end = pos + self._bulk_left
        while pos < end and self.is_reading:
            is_in_bulk = pos < bulk_end
            first_byte = data[pos]
            if is_in_bulk:
                if first_byte >> 4 in NOT_IN_A_BULK:
                    raise bad_bulk(f"it holds a {MessageType(first_byte >> 4).name}")
            elif first_byte == BULK and self.state == State.CONNECTED:
                size = whole_size(data, pos)
                if size > 2:
                    next_frame(data, pos, max_size)  # raises for one that is too large
                    bulk_end = pos + size
                    pos = _body_start(data, pos)
                    continue
            frame = next_frame(data, pos, max_size)
            if frame is None:
                if is_in_bulk:
                    _check_bulk(data, pos, bulk_end)
                break
            _, start, stop = frame
            if is_in_bulk and stop > bulk_end:
                raise bad_bulk("it ends inside a message")
            if first_byte == PLAIN_MESSAGE and makes_runs and self.state == State.CONNECTED:
                limit = bulk_end if is_in_bulk and bulk_end < end else end
                taken = self._publish_run(data, pos, start, stop, limit)
                if taken:
                    pos = taken
                    turn -= GROUP_WORK * self.groups
                    if turn <= 0:
                        self.wait_turn()
                    continue
            pos = stop
            self.handle(self.decode(first_byte, data[start:stop]))
            turn -= MESSAGE_WORK
            if turn <= 0:
                self.wait_turn()
        self._bulk_left = max(0, bulk_end - pos)
        return pos

    def _publish_run(self, data: bytes, pos: int, start: int, stop: int, end: int) -> int:
        """Publish neighbours that have one audience together.

        [pos, stop) is the first message, its body begins at `start`. The result is where the run ends; 0
        leaves the first message to the codec.
        """
        broker = self.broker
        max_size = self.agreed.packet_size_bytes
        routes = broker.subscriptions.routes
        route: Route | None = None
        plan: Plan | None = None
        count = 0
        counts: list[tuple[Route, int]] = []
        run_start = pos
        while stop <= end and stop - start >= 2:
            topic_size = data[start]
            topic_end = start + 1 + topic_size
            # One byte that says: no properties. A topic of 128 bytes or more has a longer length.
            if topic_size >= 0x80 or topic_end >= stop or data[topic_end]:
                break
            name = data[start + 1 : topic_end]
            if route is None:
                route = routes.get(name) or self._new_route(name)
                if route is None or route.is_reserved:
                    return 0
                if self.permissions is not None and not self.may_publish(route.topic):
                    return 0
                plan = route.plan or broker.subscriptions.plan(route)
            else:
                following = routes.get(name)
                if following is not route:
                    if (
                        following is None
                        or following.plan is not plan
                        or following.is_reserved
                        or self.permissions is not None
                    ):
                        break
                    route = following
            size = stop - pos
            prefix = data[pos : topic_end + 1]
            if data.startswith(prefix, stop, end):
                stop = alike_until(data, prefix, stop, size, end)
            found = (stop - pos) // size
            count += found
            counts.append((route, found))
            pos = stop
            if stop + 4 > end or data[stop] != PLAIN_MESSAGE or len(counts) == MAX_GROUPS:
                break
            length = data[stop + 1]
            start = stop + 2
            if length >= 0x80:
                second = data[start]
                if not 0 < second < 0x80:
                    break
                length += (second - 1) << 7
                start += 1
            stop = start + length
            if stop - pos > max_size:
                break
        if not count:
            return 0
        assert plan is not None
        wire = data[run_start:pos]
        alike = len(wire) // count if len(counts) == 1 else 0
        broker.publish_run(plan, Run(wire, count, TBUS, self.client_id, size=alike))
        for route, found in counts:
            route.messages += found
        self.messages_in += count
        self.groups = len(counts)
        return pos

    def _new_route(self, name: bytes) -> Route | None:
        """None: this is no topic name; the codec will say why."""
        try:
            return self.broker.subscriptions.route(name)
        except (InvalidTopic, UnicodeDecodeError):
            return None


def wrong(text: str, rule: str) -> PeerError:
    return PeerError(DisconnectReason.UNSPECIFIED, text, rule)


def bad_bulk(text: str) -> PeerError:
    return wrong(f"BULK: {text}", "TB-12")


def _check_bulk(data: bytes, pos: int, bulk_end: int) -> None:
    """Raises PeerError if the message at `pos`, which is not whole yet, cannot end within its BULK."""
    size = whole_size(data, pos)
    if pos + size > bulk_end or (not size and len(data) >= bulk_end):
        raise bad_bulk("it ends inside a message")


def _body_start(data: bytes, pos: int) -> int:
    at = pos + 1
    while data[at] >= 0x80:
        at += 1
    return at + 1
