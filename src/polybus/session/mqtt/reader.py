"""The reading half of an MQTT connection: bytes in, packets out, with a short way for the frequent.

Three packet types come by the million and are handled here straight from the bytes: QoS 0 and QoS 1
PUBLISH without properties, and PUBACK. Everything else is decoded by the codec and given to `handle`.

A run: neighbouring QoS 0 publishes of one topic are found by comparing bytes and handed to the broker
as one piece, so that their cost is that of the bytes, not of the packets.
"""

import logging
import struct
from enum import IntEnum
from typing import Final

from polybus.broker.broker import Broker
from polybus.broker.links import Link, Port
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Message, Run
from polybus.broker.subscriptions import Route
from polybus.broker.topics import InvalidTopic
from polybus.errors import PeerError
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.wire.mqtt.codec import connect_version, decode, next_frame
from polybus.wire.mqtt.packets import V5, V311, Packet, ReasonCode

log = logging.getLogger("polybus.mqtt")

CONNECT: Final = 0x10
PUBLISH_QOS_0: Final = 0x30
PUBLISH_QOS_1: Final = 0x32
PUBLISH_QOS_2: Final = 0x34
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SHORT_ACKNOWLEDGEMENTS: Final = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP})
PUBACK_PREFIX: Final = b"\x40\x02"
PUBACK_TEMPLATE: Final = b"\x40\x02\0\0"
PUBREC_TEMPLATE: Final = b"\x50\x02\0\0"
TRACKED_RUN_BYTES: Final = 8192
"""A run stays in memory until its last message is acknowledged, so it must not be long."""
MAX_CACHED_PERMISSIONS: Final = 1024


class State(IntEnum):
    NEW = 0
    AUTHENTICATING = 1
    CONNECTED = 2
    CLOSED = 3


class MqttReader(Link):
    __slots__ = (
        "_parts",
        "_parts_bytes",
        "_parts_needed",
        "_tokens",
        "_tokens_at",
        "broker",
        "client_id",
        "is_greeted",
        "is_reading",
        "last_seen",
        "permissions",
        "state",
        "unacknowledged",
        "user",
        "version",
    )

    def __init__(self, broker: Broker, port: Port, *, now: float) -> None:
        super().__init__(port, MQTT_311)
        self.broker = broker
        self.state = State.NEW
        self.version = V311
        self.client_id = ""
        self.user: str | None = None
        self.last_seen = now
        self.unacknowledged = 0
        """QoS 1 publishes whose PUBACK waits for the commit."""
        self.is_greeted = False
        """A CONNECT of a known version has come, right or wrong."""
        self.is_reading = True
        self._parts: list[bytes] | None = None
        self._parts_bytes = 0
        self._parts_needed = 0
        self.permissions: dict[str, bool] | None = None
        self._tokens = 0.0
        self._tokens_at = now

    def handle(self, packet: Packet) -> None:
        """Do what a decoded packet asks for. Raises PeerError."""
        raise NotImplementedError

    def fail(self, error: PeerError) -> None:
        """Answer a violation as the standard says, and close."""
        raise NotImplementedError

    # -- bytes in ---------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes as they come: any number of packets, whole or in pieces."""
        if self.state == State.CLOSED:
            return
        broker = self.broker
        broker.now = now
        self.last_seen = now
        self.bytes_in += len(data)
        broker.stats.bytes_received += len(data)
        parts = self._parts
        if parts is not None:
            parts.append(data)
            self._parts_bytes += len(data)
            if self._parts_bytes < self._parts_needed:
                return
            data = b"".join(parts)
            self._parts = None
        self._consume(data)
        broker.stir()

    def _consume(self, data: bytes) -> None:
        """Handle every whole packet in `data` and keep the rest."""
        pos = 0
        try:
            pos = self._handle_packets(data)
        except PeerError as error:
            self.fail(error)
        except UnicodeDecodeError:
            self.fail(PeerError(ReasonCode.MALFORMED_PACKET, "a topic name is not UTF-8", "MQTT-1.5.4-1"))
        except Exception:
            # Our own fault: it costs this connection, and must not cost any other.
            log.exception("internal error", extra={"fields": {"client_id": self.client_id}})
            self.fail(PeerError(ReasonCode.UNSPECIFIED_ERROR, "internal error"))
        if self.state != State.CLOSED and pos < len(data):
            rest = data[pos:] if pos else data
            self._parts = [rest]
            self._parts_bytes = len(rest)
            self._parts_needed = self._whole_size(rest)

    def _whole_size(self, rest: bytes) -> int:
        """How many bytes the packet that `rest` begins will have; enough to look again if unknown."""
        shift = size = 0
        for at, byte in enumerate(rest[1:5], start=2):
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return at + size
        return 0

    def _handle_packets(self, data: bytes) -> int:
        end = len(data)
        pos = 0
        max_size = self.broker.limits.packet_size_bytes
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
                if first_byte == PUBLISH_QOS_0:
                    taken = self._publish_run(data, pos, start, stop, end)
                    if taken:
                        pos = taken
                        continue
                elif first_byte == PUBLISH_QOS_1 or first_byte == PUBLISH_QOS_2:
                    taken = self._publish_tracked_run(data, pos, start, stop, end)
                    if taken:
                        pos = taken
                        continue
                    if first_byte == PUBLISH_QOS_1 and self._publish_qos_1(data, start, stop):
                        pos = stop
                        continue
                elif size == 2 and first_byte in SHORT_ACKNOWLEDGEMENTS:
                    taken = self._acknowledge_run(first_byte, data, pos, end)
                    if taken:
                        pos = taken
                        continue
            body = data[start:stop]
            if self.state == State.NEW and first_byte == CONNECT:
                self.version, _ = connect_version(body)  # so that even a bad CONNECT gets its answer
                self.is_greeted = True
            self.handle(decode(first_byte, body, self.version))
            pos = stop
        return pos

    def _publish_run(self, data: bytes, pos: int, start: int, stop: int, end: int) -> int:
        """Publish as many neighbours of one topic as there are; 0: leave it to the codec."""
        topic_end = start + 2 + (data[start] << 8 | data[start + 1]) if stop - start >= 2 else end + 1
        field_end = topic_end
        if self.version == V5:
            field_end += 1  # the byte that says: no properties
            if field_end > stop or data[topic_end] or topic_end == start + 2:
                return 0
        elif topic_end > stop:
            return 0
        name = data[start + 2 : topic_end]
        route = self.broker.routes.get(name) or self.new_route(name)
        field = data[start:field_end]
        prefix = data[pos:field_end]
        size = stop - pos
        count = 1
        max_size = self.broker.limits.packet_size_bytes
        while True:
            while data.startswith(prefix, stop):
                stop += size
                count += 1
            if stop > end:  # the last one is not whole yet
                stop -= size
                count -= 1
                break
            # The next packet may be one of the same topic with another size.
            if stop + 2 > end or data[stop] != PUBLISH_QOS_0:
                break
            frame = next_frame(data, stop, max_size)
            if frame is None:
                break
            _, next_start, next_stop = frame
            if next_stop - next_start < len(field) or not data.startswith(field, next_start):
                break
            prefix = data[stop : next_start + len(field)]
            size = next_stop - stop
            stop = next_stop
            count += 1
        self.messages_in += count
        if self.may_publish(route.topic):
            wire = data if stop - pos == end else data[pos:stop]
            encoding = MQTT_5 if self.version == V5 else MQTT_311
            self.broker.publish_run(route, Run(route.topic, wire, count, encoding, self.client_id))
        self.spend(count)
        return stop

    def _publish_tracked_run(self, data: bytes, pos: int, start: int, stop: int, end: int) -> int:
        """Publish QoS 1 or 2 neighbours of one topic and size together; 0: there are none."""
        if stop - start < 2:
            return 0
        topic_end = start + 2 + (data[start] << 8 | data[start + 1])
        size = stop - pos
        prefix = data[pos:topic_end]
        limit = min(end, pos + TRACKED_RUN_BYTES) - size
        count = 1
        while stop <= limit and data.startswith(prefix, stop):
            stop += size
            count += 1
        id_at = topic_end - pos
        if count == 1 or id_at + (3 if self.version == V5 else 2) > size or topic_end == start + 2:
            return 0
        wire = data[pos:stop]
        if self.version == V5 and any(wire[id_at + 2 :: size]):
            return 0  # properties
        qos = 1 if data[pos] == PUBLISH_QOS_1 else 2
        reply = bytearray((PUBACK_TEMPLATE if qos == 1 else PUBREC_TEMPLATE) * count)
        reply[2::4] = wire[id_at::size]
        reply[3::4] = wire[id_at + 1 :: size]
        name = data[start + 2 : topic_end]
        broker = self.broker
        route = broker.routes.get(name) or self.new_route(name)
        if self.permissions is not None and not self.may_publish(route.topic):
            return 0
        if not self._takes(qos, count, struct.unpack(f">{2 * count}H", reply)[1::2]):
            return 0
        encoding = MQTT_5 if self.version == V5 else MQTT_311
        broker.publish_run(route, Run(route.topic, wire, count, encoding, self.client_id, qos, size, id_at))
        self.messages_in += count
        broker.hold(self, bytes(reply))
        self.spend(count)
        return stop

    def _takes(self, qos: int, count: int, packet_ids: tuple[int, ...]) -> bool:
        """Note the packet ids of a run as taken; False: one of them needs a closer look."""
        session = self.session
        assert session is not None
        received = session.received
        if self.version == V5:
            under_way = self.unacknowledged + (len(received) if received is not None else 0)
            if under_way + count > self.broker.limits.receive_maximum:
                return False
        if 0 in packet_ids:
            return False
        if qos == 1:
            self.unacknowledged += count
            return True
        if received is None:
            received = session.received = set()
        if not received.isdisjoint(packet_ids) or len(set(packet_ids)) != count:
            return False
        received.update(packet_ids)
        return True

    def _acknowledge_run(self, first_byte: int, data: bytes, pos: int, end: int) -> int:
        """Take as many acknowledgements of one kind as there are; 0: leave them to the codec."""
        session = self.session
        assert session is not None
        header = data[pos : pos + 2]
        stop = pos + 4
        while data.startswith(header, stop):
            stop += 4
        if stop > end:
            stop -= 4
        count = (stop - pos) >> 2
        packet_ids = struct.unpack_from(f">{2 * count}H", data, pos)[1::2]
        if 0 in packet_ids:
            return 0
        dispatcher = self.broker.dispatcher
        if first_byte == PUBACK:
            dispatcher.acknowledge_all(session, packet_ids)
        elif first_byte == PUBCOMP:
            dispatcher.complete_all(session, packet_ids)
        elif first_byte == PUBREC:
            if not dispatcher.receive_all(session, packet_ids):
                return 0
            dispatcher.push(self, _with_first_bytes(PUBREL, data[pos:stop], count))
        else:
            if session.received is None or not session.received.issuperset(packet_ids):
                return 0
            session.received.difference_update(packet_ids)
            self.broker.hold(self, _with_first_bytes(PUBCOMP, data[pos:stop], count))
        return stop

    def _publish_qos_1(self, data: bytes, start: int, stop: int) -> bool:
        """Publish a QoS 1 message without properties; False: leave it to the codec."""
        if stop - start < 2:
            return False
        broker = self.broker
        topic_end = start + 2 + (data[start] << 8 | data[start + 1])
        payload_start = topic_end + 2
        if self.version == V5:
            payload_start += 1
            if payload_start > stop or data[payload_start - 1] or topic_end == start + 2:
                return False
            if self.unacknowledged >= broker.limits.receive_maximum:
                return False
        elif payload_start > stop:
            return False
        packet_id = data[topic_end : topic_end + 2]
        if packet_id == b"\0\0":
            return False
        name = data[start + 2 : topic_end]
        route = broker.routes.get(name) or self.new_route(name)
        if self.permissions is not None and not self.may_publish(route.topic):
            return False
        message = Message(
            route.topic, data[payload_start:stop], 1, False, False, None, NO_MESSAGE_PROPERTIES, self.client_id
        )
        broker.publish(route, message)
        self.unacknowledged += 1
        self.messages_in += 1
        held = self.held
        if not held:
            broker.awaiting.append(self)
        held.append(PUBACK_PREFIX + packet_id)
        if broker.limits.publish_rate_per_client:
            self.spend(1)
        return True

    def new_route(self, name: bytes) -> Route:
        try:
            return self.broker.subscriptions.route(name)
        except InvalidTopic as error:
            raise PeerError(ReasonCode.TOPIC_NAME_INVALID, str(error), "MQTT-3.3.2-2") from error

    # -- permission and rate --------------------------------------------------------------------

    def may_publish(self, topic: str) -> bool:
        permissions = self.permissions
        if permissions is None:
            return True
        allowed = permissions.get(topic)
        if allowed is None:
            authorizer = self.broker.access.authorizer
            allowed = authorizer is None or authorizer.may_publish(self.user, self.client_id, topic)
            if len(permissions) >= MAX_CACHED_PERMISSIONS:
                permissions.clear()
            permissions[topic] = allowed
            if not allowed:
                fields = {"client_id": self.client_id, "topic": topic}
                log.warning("publish not authorized", extra={"fields": fields})
        return allowed

    def spend(self, count: int) -> None:
        """Take from the publish allowance; a client that is over it is read later."""
        rate = self.broker.limits.publish_rate_per_client
        if not rate:
            return
        now = self.last_seen
        self._tokens = min(2 * rate, self._tokens + (now - self._tokens_at) * rate) - count
        self._tokens_at = now
        if self._tokens < 0 and self.is_reading:
            self.pause()
            self.broker.timers.schedule(now - self._tokens / rate, _Resume(self))

    def forget_parts(self) -> None:
        self._parts = None

    def pause(self) -> None:
        """Read nothing more; what has been read waits."""
        self.is_reading = False
        self.port.pause_reading()

    def resume(self, now: float) -> None:
        """Go on, first with what was read before the pause."""
        if self.is_reading or self.is_closed():
            return
        self.is_reading = True
        self.last_seen = now
        parts, self._parts = self._parts, None
        if parts is not None:
            self._consume(b"".join(parts))
        if self.is_reading and not self.is_closed():
            self.port.resume_reading()
        self.broker.stir()

    def is_closed(self) -> bool:
        return self.state == State.CLOSED


def _with_first_bytes(first_byte: int, acknowledgements: bytes, count: int) -> bytes:
    """The same packet ids under another packet type."""
    changed = bytearray(acknowledgements)
    changed[::4] = bytes((first_byte,)) * count
    return bytes(changed)


class _Resume:
    __slots__ = ("_reader",)

    def __init__(self, reader: MqttReader) -> None:
        self._reader = reader

    def on_timer(self, now: float) -> None:
        self._reader.resume(now)
