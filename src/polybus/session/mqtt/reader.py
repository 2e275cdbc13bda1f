"""The reading half of an MQTT connection: bytes in, packets out, with a short way for the frequent.

Two kinds of packets come by the million and are handled here straight from the bytes: PUBLISH without
properties, and acknowledgements without reason. Everything else is decoded by the codec and given to
`handle`.

A run: neighbouring publishes with the same audience are handed to the broker as one piece, so that
their cost is that of the bytes rather than of the packets. Packets alike in size and topic are found
by comparing bytes; for others the header is read and the topic looked up.
"""

import struct
from collections.abc import Sequence
from typing import ClassVar, Final

from polybus.broker.broker import Broker
from polybus.broker.links import Port
from polybus.broker.message import Run
from polybus.broker.sessions import Session
from polybus.broker.subscriptions import Plan, Route
from polybus.broker.topics import InvalidTopic
from polybus.errors import PeerError
from polybus.session.alike import alike_until
from polybus.session.intake import GROUP_WORK, MAX_GROUPS, WORK_A_TURN, Refusal, State
from polybus.session.mqtt import requests
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.session.stream import StreamLink
from polybus.wire.mqtt.codec import connect_version, decode, next_frame
from polybus.wire.mqtt.packets import V5, V311, Packet, ReasonCode

CONNECT: Final = 0x10
PUBLISH_QOS_0: Final = 0x30
PUBLISH_QOS_1: Final = 0x32
PUBLISH_QOS_2: Final = 0x34
ANSWERS: Final = requests.ANSWERS.encode()
RUN_PUBLISHES: Final = frozenset({PUBLISH_QOS_0, PUBLISH_QOS_1, PUBLISH_QOS_2})
"""Neither repeated nor retained."""
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SHORT_ACKNOWLEDGEMENTS: Final = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP})
PUBACK_HEADER: Final = b"\x40\x02"
PUBREC_HEADER: Final = b"\x50\x02"
TRACKED_RUN_BYTES: Final = 8192
"""A run stays in memory until its last message is acknowledged, so it must not be long. A larger
packet travels by itself, and its subscribers share its payload."""
SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2
FILTER_PACKETS: Final = frozenset({SUBSCRIBE, UNSUBSCRIBE})
MAX_FILTERS_BYTES: Final = 128 * 1024
"""Of a SUBSCRIBE or UNSUBSCRIBE: every filter in it costs many times what its bytes do."""
PACKET_WORK: Final = 16

REFUSAL_CODES: Final = {
    Refusal.LONG_CLIENT_ID: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Refusal.FULL: ReasonCode.QUOTA_EXCEEDED,
    Refusal.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
    Refusal.BAD_CREDENTIALS: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Refusal.BUSY: ReasonCode.SERVER_BUSY,
    Refusal.NO_MEMORY: ReasonCode.QUOTA_EXCEEDED,
    Refusal.NO_STORE: ReasonCode.QUOTA_EXCEEDED,
    Refusal.INTERNAL: ReasonCode.UNSPECIFIED_ERROR,
}


class MqttReader(StreamLink):
    __slots__ = ("is_greeted", "unacknowledged", "version")

    opening = frozenset({CONNECT})
    keep_alive_factor = 1.5  # [MQTT-3.1.2-22]
    reason_codes: ClassVar = REFUSAL_CODES

    def __init__(
        self, broker: Broker, port: Port, *, peer: str, certificate_name: str | None, now: float
    ) -> None:
        super().__init__(broker, port, MQTT_311, peer=peer, certificate_name=certificate_name, now=now)
        self.version = V311
        self.unacknowledged = 0
        """QoS 1 publishes whose PUBACK waits for the commit."""
        self.is_greeted = False
        """A CONNECT of a known version has come, right or wrong."""

    def handle(self, packet: Packet) -> None:
        """Do what a decoded packet asks for. Raises PeerError."""
        raise NotImplementedError

    def not_opened(self) -> PeerError:
        return PeerError(ReasonCode.PROTOCOL_ERROR, "the first packet must be CONNECT", "MQTT-3.1.0-1")

    def handle_packets(self, data: bytes, pos: int) -> int:
        end = len(data)
        max_size = self.agreed.packet_size_bytes
        # A client with a publish rate is counted message by message.
        one_by_one_until = end if self.broker.limits.publish_rate_per_client else 0
        turn = WORK_A_TURN
        while end - pos >= 2 and self.is_reading:
            first_byte = data[pos]
            size = data[pos + 1]
            if size < 0x80:
                start = pos + 2
                stop = start + size
                if stop > end:
                    return pos
            else:
                frame = next_frame(data, pos, max_size)
                if frame is None:
                    return pos
                _, start, stop = frame
            if self.state == State.CONNECTED:
                if first_byte in RUN_PUBLISHES and pos >= one_by_one_until:
                    taken = self._publish_run(data, pos, start, stop, end)
                    if taken > 0:
                        pos = taken
                        turn -= GROUP_WORK * self.groups
                        if turn <= 0:
                            self.wait_turn()
                        continue
                    one_by_one_until = max(one_by_one_until, -taken)
                elif size == 2 and first_byte in SHORT_ACKNOWLEDGEMENTS and pos >= one_by_one_until:
                    taken = self._acknowledge_run(first_byte, data, pos, end)
                    if taken > 0:
                        pos = taken
                        continue
                    one_by_one_until = -taken
            if stop - start > MAX_FILTERS_BYTES and first_byte in FILTER_PACKETS:
                raise PeerError(ReasonCode.PACKET_TOO_LARGE, "too many topic filters in one packet")
            body = data[start:stop]
            if self.state == State.NEW and first_byte == CONNECT:
                self.version, _ = connect_version(body)  # so that even a bad CONNECT gets its answer
                self.is_greeted = True
            self.handle(decode(first_byte, body, self.version))
            pos = stop
            turn -= PACKET_WORK if first_byte not in FILTER_PACKETS else PACKET_WORK + stop - start
            if turn <= 0:
                self.wait_turn()
        return pos

    def _publish_run(self, data: bytes, pos: int, start: int, stop: int, end: int) -> int:
        """Publish neighbours that have one audience together.

        [pos, stop) is the first packet, its body begins at `start`. The result is where the run ends; 0
        leaves the first packet to the codec, and a negative result everything up to there.
        """
        broker = self.broker
        first_byte = data[pos]
        is_tracked = first_byte != PUBLISH_QOS_0
        if is_tracked and broker.ledger.trouble:
            return -end  # each has to be looked at
        has_properties = self.version == V5
        if is_tracked:
            end = min(end, pos + TRACKED_RUN_BYTES)
        max_size = self.agreed.packet_size_bytes
        routes = broker.subscriptions.routes
        route: Route | None = None
        plan: Plan | None = None
        count = 0
        counts: list[tuple[Route, int]] = []
        ids_at: list[range] = []
        run_start = pos
        while stop <= end and stop - start >= 2:
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            id_end = topic_end + 2 if is_tracked else topic_end
            if has_properties:
                # One byte that says: no properties. An empty topic would be an alias.
                if id_end >= stop or data[id_end] or topic_end == start + 2:
                    break
            elif id_end > stop:
                break
            name = data[start + 2 : topic_end]
            if route is None:
                route = routes.get(name) or self._new_route(name)
                if route is None or route.is_reserved:
                    return 0
                if self.permissions is not None and not self.may_publish(route.topic):
                    return 0
                plan = route.plan or broker.subscriptions.plan(route)
                if is_tracked and plan.log is not None and plan.log.refusal is not None:
                    return 0
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
            prefix = data[pos:topic_end] if is_tracked or not has_properties else data[pos : topic_end + 1]
            if data.startswith(prefix, stop, end):
                zero_at = id_end - pos if is_tracked and has_properties else 0
                stop = alike_until(data, prefix, stop, size, end, zero_at)
            if is_tracked:
                ids_at.append(range(topic_end - run_start, stop - run_start, size))
            found = (stop - pos) // size
            count += found
            counts.append((route, found))
            # What comes next: as the main loop does, but only for more of the same.
            pos = stop
            if stop + 4 > end or data[stop] != first_byte or len(counts) == MAX_GROUPS:
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
        encoding = MQTT_5 if has_properties else MQTT_311
        if is_tracked:
            qos = 1 if first_byte == PUBLISH_QOS_1 else 2
            positions = ids_at[0] if len(ids_at) == 1 else [at for group in ids_at for at in group]
            reply = self._take(qos, wire, positions)
            if reply is None:
                return -pos
            broker.publish_run(plan, Run(wire, count, encoding, self.client_id, qos, positions))
            broker.hold(self, reply)
        else:
            alike = len(wire) // count if len(counts) == 1 else 0
            broker.publish_run(plan, Run(wire, count, encoding, self.client_id, size=alike))
        for route, found in counts:
            route.messages += found
        self.messages_in += count
        self.groups = len(counts)
        return pos

    def _take(self, qos: int, wire: bytes, ids_at: Sequence[int]) -> bytes | None:
        """Note the packet ids of a run as taken; their acknowledgement, or None: one needs a closer look."""
        session = self.session
        assert session is not None
        count = len(ids_at)
        received = session.received
        if self.version == V5:
            under_way = self.unacknowledged + (len(received) if received is not None else 0)
            if under_way + count > self.agreed.receive_maximum:
                return None
        packet_ids: tuple[int, ...]
        reply: bytes | bytearray
        if count == 1:
            at = ids_at[0]
            reply = (PUBACK_HEADER if qos == 1 else PUBREC_HEADER) + wire[at : at + 2]
            packet_ids = (wire[at] << 8 | wire[at + 1],)
        else:
            reply = bytearray((PUBACK_HEADER if qos == 1 else PUBREC_HEADER) + b"\0\0") * count
            if isinstance(ids_at, range):
                reply[2::4] = wire[ids_at.start :: ids_at.step]
                reply[3::4] = wire[ids_at.start + 1 :: ids_at.step]
            else:
                reply[2::4] = bytes([wire[at] for at in ids_at])
                reply[3::4] = bytes([wire[at + 1] for at in ids_at])
            packet_ids = struct.unpack(f">{2 * count}H", reply)[1::2]
        if 0 in packet_ids:
            return None
        if qos == 1:
            self.unacknowledged += count
        else:
            if received is None:
                received = session.received = set()
            if not received.isdisjoint(packet_ids) or len(set(packet_ids)) != count:
                return None
            received.update(packet_ids)
            if session.kept:
                self.broker.ledger.received_changed(session)
        return bytes(reply)

    def _acknowledge_run(self, first_byte: int, data: bytes, pos: int, end: int) -> int:
        """Take as many acknowledgements of one kind as there are, to where the result says; negative:
        leave them up to there to the codec."""
        session = self.session
        assert session is not None
        stop = pos + 4
        if first_byte == PUBACK and stop == end:
            packet_id = data[pos + 2] << 8 | data[pos + 3]
            if packet_id:
                self.broker.dispatcher.acknowledge(session, packet_id)
            return stop if packet_id else -stop
        header = data[pos : pos + 2]
        while data.startswith(header, stop):
            stop += 4
        if stop > end:
            stop -= 4
        count = (stop - pos) >> 2
        packet_ids = struct.unpack_from(f">{2 * count}H", data, pos)[1::2]
        if 0 in packet_ids:
            return -stop
        dispatcher = self.broker.dispatcher
        if first_byte == PUBACK:
            dispatcher.acknowledge_all(session, packet_ids)
        elif first_byte == PUBCOMP:
            dispatcher.complete_all(session, packet_ids)
        elif first_byte == PUBREC:
            if not dispatcher.receive_all(session, packet_ids):
                return -stop
            self._release(session, _with_first_bytes(PUBREL, data[pos:stop], count))
        else:
            received = session.received
            if received is None or not received.issuperset(packet_ids) or len(set(packet_ids)) != count:
                return -stop
            received.difference_update(packet_ids)
            if session.kept:
                self.broker.ledger.received_changed(session)
            self.broker.hold(self, _with_first_bytes(PUBCOMP, data[pos:stop], count))
        return stop

    def _release(self, session: Session, pubrels: bytes) -> None:
        """A kept session's release must not leave before it is safe that the message was received: after a
        crash it would be sent a second time."""
        if session.kept:
            self.broker.hold(self, pubrels)
        else:
            self.reply(pubrels)

    def _new_route(self, name: bytes) -> Route | None:
        """None: not for the cache; the codec will say why."""
        if name.startswith(ANSWERS):
            return None
        try:
            return self.broker.subscriptions.route(name)
        except (InvalidTopic, UnicodeDecodeError):
            return None

    def withhold(self, acknowledgements: list[bytes], why: str) -> None:
        session = self.session
        if session is not None and session.received is not None:
            # The same ids will come again, with messages that were not kept.
            for block in acknowledgements:
                if block[0] == PUBREC:
                    at = range(2, len(block), 4) if block[1] == 2 else (2,)
                    session.received.difference_update(block[i] << 8 | block[i + 1] for i in at)
            if session.kept:
                self.broker.ledger.received_changed(session)
        super().withhold(acknowledgements, why)

    def released(self, acknowledgements: list[bytes]) -> None:
        if self.unacknowledged:
            # The PUBACKs of a run are one piece, of four bytes each.
            pubacks = sum(len(a) >> 2 if a[1] == 2 else 1 for a in acknowledgements if a[0] == PUBACK)
            self.unacknowledged = max(0, self.unacknowledged - pubacks)
        super().released(acknowledgements)


def _with_first_bytes(first_byte: int, acknowledgements: bytes, count: int) -> bytes:
    """The same packet ids under another packet type."""
    changed = bytearray(acknowledgements)
    changed[::4] = bytes((first_byte,)) * count
    return bytes(changed)
