"""A script language for conformance cases: clients that send packets and expect packets.

    subscriber = bus.connect("s")
    subscriber.subscribe("a/+", qos=1)
    bus.connect("p").publish("a/b", b"x", qos=2)
    got = subscriber.expect(Publish, topic="a/b", qos=1)
    subscriber.send(PubAck(got.packet_id))
    subscriber.expect_nothing()

A case is the same in memory and over a socket. In memory everything that a packet causes has happened
when `send` returns; over a socket `expect` waits, and `expect_nothing` first lets every client ping.
"""

import time
from collections import deque
from typing import Any, Final, Self, TypeVar

import msgspec
import pytest

from polybus.broker.access import Access
from polybus.broker.journal import Journal
from polybus.broker.limits import Limits
from polybus.session.mqtt import MqttOptions
from polybus.wire.mqtt.codec import decode, encode, next_frame
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
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
    Will,
)

from .servers import Connection, Server, Setup, start

TIMEOUT_S: Final = 5.0
NO_LIMIT: Final = 1 << 30

P = TypeVar("P", bound=Packet)


class Client:
    """One connection. Packets that arrived wait in `inbox` until they are expected, in their order."""

    def __init__(self, bus: "Bus", connection: Connection) -> None:
        self.bus = bus
        self.version = bus.version
        self.connection = connection
        self.connack = ConnAck(reason_code=0xFF)
        """The answer to CONNECT, once there is one."""
        self.inbox: deque[tuple[Packet, bytes]] = deque()
        self.last_frame = b""
        """The bytes of the packet that was expected last."""
        self._buffer = b""
        self._next_id = 0

    # -- sending ------------------------------------------------------------------------------

    def send(self, *packets: Packet) -> Self:
        """All in one piece."""
        self.connection.send(b"".join(encode(packet, self.version) for packet in packets))
        return self

    def send_raw(self, *data: bytes | str) -> Self:
        """Bytes as they are; text is hex. Each argument is a piece of its own on the network."""
        for piece in data:
            self.connection.send(bytes.fromhex(piece) if isinstance(piece, str) else piece)
        return self

    def drop(self) -> None:
        self.connection.drop()
        self.bus.forget(self)

    def disconnect(self, reason_code: int = 0, properties: Properties = NO_PROPERTIES) -> None:
        self.send(Disconnect(reason_code, properties))
        self.expect_closed_silently()

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # -- expecting ----------------------------------------------------------------------------

    def expect(self, expected: type[P] | P, **fields: Any) -> P:
        """The next packet: equal to `expected`, or of that type with these fields.

        Properties that `expected` does not name are not looked at.
        """
        packet, self.last_frame = self._next(expected)
        _compare(packet, expected, fields)
        return packet  # type: ignore[return-value]  # _compare has seen its type

    def expect_all(self, *expected: Packet) -> None:
        """These packets next, in any order."""
        rest = list(expected)
        for _ in expected:
            packet, _frame = self._next(rest)
            found = next((e for e in rest if _matches(packet, e, {})), None)
            if found is None:
                pytest.fail(f"got {show(packet)}, expected one of {[show(e) for e in rest]}")
            rest.remove(found)

    def take(self, expected: type[P], **fields: Any) -> P:
        """The first packet of this type; what came before it stays in the inbox."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for index, (packet, frame) in enumerate(self.inbox):
                if isinstance(packet, expected):
                    del self.inbox[index]
                    self.last_frame = frame
                    _compare(packet, expected, fields)
                    return packet
            if not self._wait(deadline):
                seen = [show(packet) for packet, _ in self.inbox]
                pytest.fail(f"expected {expected.__name__}, got {seen}, {self._state()}")

    def peek(self) -> type[Packet] | None:
        """The type of the packet that comes next, once all is quiet."""
        if not self.inbox:
            self._fill()
        return type(self.inbox[0][0]) if self.inbox else None

    def expect_nothing(self) -> None:
        """Nothing has arrived, the connection is open, and nothing is on its way."""
        self.bus.settle()
        self._fill()
        assert [show(packet) for packet, _ in self.inbox] == []
        assert not self.connection.is_closed

    def expect_closed(self, *codes: int) -> None:
        """The server closes an established connection.

        5.0: after a DISCONNECT with one of `codes` if there are any. Before: without a word.
        """
        packets = self._until_closed()
        if self.version < V5:
            assert [show(p) for p in packets] == []
        elif codes:
            assert [type(p) for p in packets] == [Disconnect], [show(p) for p in packets]
            assert packets[0].reason_code in codes  # type: ignore[union-attr]  # a Disconnect
        else:
            assert all(isinstance(p, Disconnect) and p.reason_code >= 0x80 for p in packets), packets

    def expect_closed_silently(self) -> None:
        assert [show(p) for p in self._until_closed()] == []

    def expect_refused(self, *codes: int) -> None:
        """The server refuses the connection: it closes, at most after a CONNACK with one of `codes`."""
        packets = self._until_closed()
        assert [type(p) for p in packets] in ([], [ConnAck]), packets
        for packet in packets:
            assert isinstance(packet, ConnAck)
            assert packet.reason_code in codes
            assert not packet.session_present

    def expect_malformed_connect(self) -> None:
        """The answer to a CONNECT that cannot be understood.

        5.0: at most a CONNACK that says so. Before: no CONNACK [MQTT-3.1.4-1].
        """
        if self.version < V5:
            self.expect_closed_silently()
        else:
            self.expect_refused(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)

    def expect_closed_after(self) -> str:
        """The server closes; the bytes it sent before, as hex. For answers in no known version."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._buffer += self.connection.receive()
            if self.connection.is_closed:
                return self._buffer.hex()
            if not self.bus.waits or time.monotonic() > deadline:
                pytest.fail(f"the connection is still open; got {self._buffer.hex()}")

    def largest_frame(self) -> int:
        """The size of the largest packet that has come in and was not expected yet, once all is quiet."""
        self.bus.settle()
        self._fill()
        return max((len(frame) for _, frame in self.inbox), default=0)

    def received(self) -> list[Packet]:
        """Everything that has come in and was not expected yet, once all is quiet."""
        self.bus.settle()
        self._fill()
        packets = [packet for packet, _ in self.inbox]
        self.inbox.clear()
        return packets

    def ping(self) -> None:
        """Everything sent so far was processed when this returns; nothing leaves the inbox."""
        self.send(PingReq())
        self.take(PingResp)

    # -- exchanges that most cases begin with ------------------------------------------------------

    def subscribe(self, *filters: str, qos: int = 0, identifier: int = 0, **options: Any) -> tuple[int, ...]:
        requests = tuple(SubscriptionRequest(f, qos, **options) for f in filters)
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
        packet_id = self.new_id()
        self.send(Subscribe(packet_id, requests, properties))
        return self.take(SubAck, packet_id=packet_id).reason_codes

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        packet_id = self.new_id()
        self.send(Unsubscribe(packet_id, filters))
        return self.take(UnsubAck, packet_id=packet_id).reason_codes

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> None:
        """With the whole exchange that its QoS asks for."""
        packet_id = self.new_id() if qos else 0
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **fields))
        match qos:
            case 0:
                self.bus.settle()
            case 1:
                assert self.take(PubAck, packet_id=packet_id).reason_code < 0x80
            case _:
                assert self.take(PubRec, packet_id=packet_id).reason_code < 0x80
                self.send(PubRel(packet_id))
                self.take(PubComp, packet_id=packet_id, reason_code=0)

    def acknowledge(self, publish: Publish) -> None:
        """The receiver's part of a delivery, to its end."""
        if publish.qos == 1:
            self.send(PubAck(publish.packet_id))
        elif publish.qos == 2:
            self.send(PubRec(publish.packet_id))
            self.take(PubRel, packet_id=publish.packet_id)
            self.send(PubComp(publish.packet_id))

    # -- below ----------------------------------------------------------------------------------

    def _next(self, wanted: object) -> tuple[Packet, bytes]:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.inbox:
            if not self._wait(deadline):
                pytest.fail(f"expected {wanted}, got nothing, {self._state()}")
        return self.inbox.popleft()

    def _until_closed(self) -> list[Packet]:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.connection.is_closed:
            if not self._wait(deadline) and not self.connection.is_closed:
                pytest.fail(f"the connection is still open; got {[show(p) for p, _ in self.inbox]}")
        self._fill()
        self.bus.forget(self)
        packets = [packet for packet, _ in self.inbox]
        self.inbox.clear()
        assert self._buffer == b"", "the server stopped within a packet"
        return packets

    def _wait(self, deadline: float) -> bool:
        """Take in more; False: there is no more to come."""
        before = len(self.inbox)
        self._fill()
        if len(self.inbox) > before:
            return True
        return self.bus.waits and not self.connection.is_closed and time.monotonic() < deadline

    def _fill(self) -> None:
        self._buffer += self.connection.receive()
        pos = 0
        while (found := next_frame(self._buffer, pos, NO_LIMIT)) is not None:
            first_byte, start, end = found
            packet = decode(first_byte, self._buffer[start:end], self.version)
            self.inbox.append((packet, self._buffer[pos:end]))
            pos = end
        self._buffer = self._buffer[pos:]

    def _state(self) -> str:
        return "and the connection is closed" if self.connection.is_closed else "and the connection is open"


class Bus:
    """A broker of its own for each case, and the clients of one version that talk to it."""

    def __init__(self, version: int, transport: str) -> None:
        self.version = version
        self.transport = transport
        self.waits = transport in ("tcp", "websocket")
        self._setup = Setup()
        self._server: Server | None = None
        self._clients: list[Client] = []

    def configure(
        self,
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        options: MqttOptions | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Before the first connection."""
        assert self._server is None
        old = self._setup
        self._setup = Setup(
            limits or old.limits, access or old.access, options or old.options, journal or old.journal
        )

    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = start(self.transport, self._setup)
        return self._server

    def open(self) -> Client:
        """A connection on which nothing was sent yet."""
        return Client(self, self.server.open())

    def connect(
        self,
        client_id: str = "client",
        *,
        keeps: bool = False,
        clean: bool | None = None,
        keep_alive_s: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Client:
        """A client that the server has accepted; `connack` is the answer.

        `keeps`: its session outlives the connection, and one that there is is resumed unless `clean`.
        """
        client = self.open()
        client.send(
            self.connect_packet(
                client_id,
                keeps=keeps,
                clean=clean,
                keep_alive_s=keep_alive_s,
                will=will,
                user_name=user_name,
                password=password,
                **properties,
            )
        )
        client.connack = client.expect(ConnAck, reason_code=0)
        self._clients.append(client)
        return client

    def connect_packet(
        self, client_id: str, *, keeps: bool = False, clean: bool | None = None, **fields: Any
    ) -> Connect:
        own = {name: fields.pop(name) for name in list(fields) if name in Connect.__struct_fields__}
        if keeps and self.version >= V5:
            fields.setdefault("session_expiry_s", 3600)
        properties = Properties(**fields) if fields else NO_PROPERTIES
        clean_start = not keeps if clean is None else clean
        return Connect(client_id, self.version, clean_start, properties=properties, **own)

    def advance(self, seconds: float) -> None:
        self.server.advance(seconds)

    def settle(self) -> None:
        """Everything that clients have sent so far has taken effect."""
        self.server.settle()
        if self.waits:
            for client in [*self._clients, *self._clients]:
                if not client.connection.is_closed:
                    client.ping()

    def forget(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def _matches(packet: Packet, expected: Any, fields: dict[str, Any]) -> bool:
    if isinstance(expected, type):
        return isinstance(packet, expected) and all(getattr(packet, k) == v for k, v in fields.items())
    if type(packet) is not type(expected):
        return False
    names = expected.__struct_fields__
    return all(
        getattr(packet, name) == getattr(expected, name)
        for name in names
        if name != "properties" or getattr(expected, name) != NO_PROPERTIES
    )


def _compare(packet: Packet, expected: Any, fields: dict[str, Any]) -> None:
    if not _matches(packet, expected, fields):
        wanted = f"{expected.__name__} with {fields}" if isinstance(expected, type) else show(expected)
        pytest.fail(f"got {show(packet)}\nexpected {wanted}")


def show(packet: Packet) -> str:
    """A packet without what it does not say."""
    fields = {name: getattr(packet, name) for name in packet.__struct_fields__ if name != "properties"}
    properties = msgspec.to_builtins(getattr(packet, "properties", NO_PROPERTIES), builtin_types=(bytes,))
    said = {**fields, **properties}
    return f"{type(packet).__name__}({', '.join(f'{name}={value!r}' for name, value in said.items())})"
