"""An MQTT client on a raw socket that comes back whenever the broker does.

It acknowledges when the dice say so: what a broker sent, and what it heard back of it, differ at most moments.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

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
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.e2e.crash.session import Accepted, Arrived, ClientSession, Completed, Strange
from tests.e2e.crash.world import POLL_S, RETRY_S, World, until

READ_BYTES = 1 << 18
LARGEST = 1 << 28
SESSION_EXPIRY_S = 3600
EVENTS = {"PubAck", "PubRec", "PubComp", "PubRel", "Publish", "ConnAck", "SubAck", "UnsubAck"}


@dataclass(frozen=True)
class Lateness:
    """How a client acknowledges: a share of what it reads at once, the rest some time later."""

    prompt_share: float
    longest_s: float


NOW_AND_THEN = Lateness(0.6, 0.06)
SLUGGISH = Lateness(0.05, 1.5)


class Lost(Exception):
    """The connection is gone."""


class MqttClient:
    def __init__(
        self,
        world: World,
        client_id: str,
        version: int = V5,
        *,
        is_kept: bool = True,
        expiry_s: int = SESSION_EXPIRY_S,
        receive_maximum: int | None = None,
        lateness: Lateness = NOW_AND_THEN,
        will: Will | None = None,
    ) -> None:
        self.world = world
        self.client_id = client_id
        self.version = version
        self.session = ClientSession(version)
        self.on_arrival: Callable[[Publish], None] = lambda message: None
        self.on_accepted: Callable[[Accepted], None] = lambda accepted: None
        self.on_progress: Callable[[], None] = lambda: None
        """After anything was acknowledged."""
        self.is_kept = is_kept
        self.is_connected = False
        self.is_away = False
        """Stays away until this is False again."""
        self.filters: dict[str, tuple[SubscriptionRequest, Properties]] = {}
        """Subscriptions that were acknowledged: made again only if the broker forgot the session."""
        self.was_present: bool | None = None
        """What the last CONNACK said of the session."""
        self._expiry_s = expiry_s
        self._receive_maximum = receive_maximum
        self._lateness = lateness
        self._starts_clean = not is_kept
        self._will = will
        self._is_promised = False
        """Something was acknowledged in this session, so it may not be forgotten."""
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Packet]] = {}
        self._pings: list[asyncio.Future[Packet]] = []
        self._replies: list[bytes] = []
        self._reply_later: asyncio.TimerHandle | None = None

    # -- for whoever uses it --------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        while True:
            if self.is_away:
                await asyncio.sleep(POLL_S)
                continue
            with contextlib.suppress(OSError, Lost):
                await self.visit()
            await asyncio.sleep(RETRY_S)

    async def visit(self) -> None:
        """One connection, to its end. Raises Lost or OSError."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.world.mqtt_port)
        self._writer = writer
        try:
            await self._converse(reader)
        finally:
            self._forget_connection()
            writer.transport.abort()

    def publish(self, message: Publish, token: object = None) -> None:
        packet = self.session.publish(message, token)
        if self.is_connected:
            self._send(packet)

    async def room(self, window: int) -> None:
        """Until fewer than so many are unacknowledged, and there is a connection."""
        await until(lambda: len(self.session.outgoing) < window and self.is_connected)

    async def subscribe(self, topic_filter: str, qos: int, properties: Properties = NO_PROPERTIES) -> None:
        """Until it is acknowledged, by whichever life of the broker."""
        request = SubscriptionRequest(topic_filter, qos)
        answer = await self._ask(lambda packet_id: Subscribe(packet_id, (request,), properties))
        assert isinstance(answer, SubAck)
        if answer.reason_codes != (qos,):
            self.world.books.strange.append(
                f"{self.client_id}: SUBACK {answer.reason_codes} for {topic_filter}"
            )
        self.filters[topic_filter] = request, properties

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._ask(lambda packet_id: Unsubscribe(packet_id, (topic_filter,)))
        del self.filters[topic_filter]

    async def ping(self) -> None:
        """Raises Lost if the connection ends before the answer."""
        if not self.is_connected:
            raise Lost
        pong: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._pings.append(pong)
        self._send(PingReq())
        await pong

    def start_anew(self) -> None:
        """The next connection throws the session away."""
        self._starts_clean = True
        self._is_promised = False
        self.session = ClientSession(self.version)
        self.filters.clear()

    def forget_promise(self) -> None:
        """Nothing is expected of the broker any more: the session is over."""
        self._is_promised = False

    def drop(self) -> None:
        """End the connection without a word."""
        if self._writer is not None:
            self._writer.transport.abort()

    # -- the connection -------------------------------------------------------------------------

    async def _converse(self, reader: asyncio.StreamReader) -> None:
        properties = NO_PROPERTIES
        if self.version == V5:
            expiry_s = self._expiry_s if self.is_kept else None
            properties = Properties(session_expiry_s=expiry_s, receive_maximum=self._receive_maximum)
        self._send(
            Connect(
                self.client_id,
                self.version,
                clean_start=self._starts_clean,
                will=self._will,
                properties=properties,
            )
        )
        buffer = b""
        while True:
            data = await reader.read(READ_BYTES)
            if not data:
                raise Lost
            buffer += data
            pos = 0
            while (frame := next_frame(buffer, pos, LARGEST)) is not None:
                first_byte, start, pos = frame
                self._receive(decode(first_byte, buffer[start:pos], self.version))
            buffer = buffer[pos:]

    def _receive(self, packet: Packet) -> None:
        name = type(packet).__name__
        match packet:
            case ConnAck():
                self._welcome(packet)
            case SubAck() | UnsubAck():
                self._is_promised = True
                if (asked := self._asked.pop(packet.packet_id, None)) is not None and not asked.done():
                    asked.set_result(packet)
            case PingResp():
                self._pings.pop(0).set_result(packet)
            case Disconnect():
                self.world.books.strange.append(
                    f"{self.client_id}: DISCONNECT 0x{packet.reason_code:02X} {packet.properties.reason_string}"
                )
            case _:
                self._advance(packet)
        if name in EVENTS:
            self.world.happened(name.lower())

    def _welcome(self, packet: ConnAck) -> None:
        if packet.reason_code:
            self.world.books.strange.append(f"{self.client_id}: CONNACK {packet.reason_code}")
            raise Lost
        if self._is_promised and self.is_kept:
            self.world.books.resume(self.client_id, is_present=packet.session_present)
        if packet.session_present and self._starts_clean:
            self.world.books.strange.append(f"{self.client_id}: a session is present after a clean start")
        self._starts_clean = not self.is_kept
        self.was_present = packet.session_present
        self.is_connected = True
        for again in self.session.resume(is_present=packet.session_present):
            self._send(again)
        if not packet.session_present:
            for request, properties in self.filters.values():
                self._send(Subscribe(self._free_id(), (request,), properties))

    def _advance(self, packet: Packet) -> None:
        events, replies = self.session.receive(packet)
        self._reply(replies)
        for event in events:
            match event:
                case Arrived(message):
                    self.on_arrival(message)
                case Accepted():
                    self._is_promised = True
                    self.on_accepted(event)
                case Strange(what):
                    self.world.books.strange.append(f"{self.client_id}: {what}")
            if isinstance(event, Accepted | Completed):
                self.on_progress()

    def _reply(self, packets: list[Packet]) -> None:
        """Now or a little later, but always in order [MQTT-4.6.0-2]."""
        self._replies += [encode(packet, self.version) for packet in packets]
        if not self._replies:
            return
        lateness, dice = self._lateness, self.world.dice
        if self.world.is_draining or (self._reply_later is None and dice.random() < lateness.prompt_share):
            self._flush_replies()
        elif self._reply_later is None:
            pause_s = self.world.pause_s(lateness.longest_s)
            self._reply_later = asyncio.get_running_loop().call_later(pause_s, self._flush_replies)

    def _flush_replies(self) -> None:
        if self._reply_later is not None:
            self._reply_later.cancel()
            self._reply_later = None
        self._write(b"".join(self._replies))
        self._replies.clear()

    def _send(self, packet: Packet) -> None:
        self._write(encode(packet, self.version))

    def _write(self, data: bytes) -> None:
        # What is written to a broker that has just died is lost; `_forget_connection` comes soon.
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(data)

    async def _ask(self, make: Callable[[int], Packet]) -> Packet:
        while True:
            await until(lambda: self.is_connected)
            packet_id = self._free_id()
            asked: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
            self._asked[packet_id] = asked
            self._send(make(packet_id))
            with contextlib.suppress(Lost):
                return await asked

    def _free_id(self) -> int:
        while (packet_id := self.session.next_id()) in self._asked:
            pass
        return packet_id

    def _forget_connection(self) -> None:
        self.is_connected = False
        self._writer = None
        self._replies.clear()  # the broker sends again what they acknowledge
        if self._reply_later is not None:
            self._reply_later.cancel()
            self._reply_later = None
        for waiting in (*self._asked.values(), *self._pings):
            if not waiting.done():
                waiting.set_exception(Lost())
        self._asked.clear()
        self._pings.clear()
