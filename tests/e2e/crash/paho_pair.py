"""A second opinion: paho-mqtt with its own idea of sessions, beside our clients.

As a publisher at QoS 2 it is not to be trusted. paho-mqtt 2.1 goes through its unfinished messages at each
attempt to connect. The first makes "PUBCOMP is missing" into "send PUBREL again", and the next, if that attempt
failed, makes this into "send PUBLISH again", without DUP: a new message for every broker [MQTT-4.3.3-1].
"""

import threading
import time
from pathlib import Path

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.e2e.crash.books import Audience, Stream
from tests.e2e.crash.mqtt import SESSION_EXPIRY_S
from tests.e2e.crash.roles import parse, payload_of
from tests.e2e.crash.world import World, eventually

WINDOW = 20
RECONNECT_S = 1
"""The least that paho waits; it takes whole seconds only."""


class PahoPair:
    """A publisher at QoS 1 and 2, and a subscriber of everything; both live in threads of their own."""

    def __init__(self, world: World, log: Path) -> None:
        self.world = world
        self._log = log.open("w")
        self.streams = [
            Stream("crash/paho/1", 1),
            Stream("crash/paho/2", 2, kind="QoS 2 sent by paho", is_doubtful=True),
        ]
        for stream in self.streams:
            world.books.open(stream)
        self.audience = world.books.admit(Audience("paho", 2))
        self._lock = threading.Lock()
        self._unacknowledged: dict[int, tuple[str, int]] = {}
        self._acknowledged: set[int] = set()
        self._is_subscribed = threading.Event()
        self._subscriber = self._client("paho-sub", MQTTv5)
        self._publisher = self._client("paho-pub", MQTTv311)
        self._subscriber.on_message = self._arrived
        self._subscriber.on_subscribe = lambda *_: self._is_subscribed.set()
        self._publisher.on_publish = self._published
        self._publisher.max_inflight_messages_set(WINDOW)

    def _client(self, client_id: str, version: int) -> Client:
        own = {"clean_session": False} if version == MQTTv311 else {}
        client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, **own)  # type: ignore[arg-type]
        client.reconnect_delay_set(RECONNECT_S, RECONNECT_S)
        client.on_log = lambda _client, _data, _level, line: self._note_line(client_id, line)
        return client

    async def begin(self) -> None:
        expiry = Properties(PacketTypes.CONNECT)
        expiry.SessionExpiryInterval = SESSION_EXPIRY_S
        self._subscriber.connect("127.0.0.1", self.world.mqtt_port, clean_start=False, properties=expiry)
        self._subscriber.loop_start()
        self._subscriber.subscribe("crash/+/+", 2)
        assert await eventually(self._is_subscribed.is_set, 10.0), "paho got no SUBACK"
        for name in self.world.books.streams:
            if name.startswith("crash/"):
                self.audience.due_after[name] = self.world.books.sent[name]
        self._publisher.connect("127.0.0.1", self.world.mqtt_port)
        self._publisher.loop_start()

    def publish(self, stream: Stream) -> None:
        """Unless enough is under way.

        paho calls on_publish while it holds the lock that its publish() wants, so ours is not held meanwhile.
        """
        if len(self._unacknowledged) >= WINDOW:
            return
        number = self.world.books.send(stream.name)
        mid = self._publisher.publish(stream.name, payload_of(stream.name, number), stream.qos).mid
        with self._lock:
            self._unacknowledged[mid] = stream.name, number
            if mid in self._acknowledged:
                self._note(mid)

    @property
    def is_done(self) -> bool:
        return not self._unacknowledged

    def close(self) -> None:
        for client in (self._publisher, self._subscriber):
            client.disconnect()
            client.loop_stop()
        self._log.close()

    def _note_line(self, client_id: str, line: str) -> None:
        """What paho says it did, for whoever has to find out who did what wrong."""
        self._log.write(f"{time.time():.6f} {client_id} {line}\n")

    def _published(self, _client: Client, _data: object, mid: int, *_: object) -> None:
        with self._lock:
            self._acknowledged.add(mid)
            if mid in self._unacknowledged:
                self._note(mid)

    def _note(self, mid: int) -> None:
        self._acknowledged.discard(mid)
        self.world.books.acknowledge(*self._unacknowledged.pop(mid))

    def _arrived(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.world.books.arrive(self.audience.name, *parse(message.payload))
