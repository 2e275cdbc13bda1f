"""paho-mqtt clients for tests: connected, with what they are sent in a queue."""

import queue
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.e2e.processes import PATIENCE_S, Served, eventually, unique

VERSIONS = {"3.1.1": MQTTv311, "5": MQTTv5}


class Paho:
    """A connected client; what it is sent waits in `messages`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self.connack: Properties | None = None
        self.session_present = False
        self.ends_topic = unique("ends")
        self.is_asking = False

    def get(self) -> MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def subscribe(self, topic: str, qos: int = 0, **options: object) -> None:
        acknowledged: list[int] = []
        self.client.on_subscribe = lambda _c, _u, mid, _codes, _properties: acknowledged.append(mid)
        _, mid = self.client.subscribe(topic, qos, **options)  # type: ignore[arg-type]
        eventually(lambda: mid in acknowledged)

    def serve(self, topic: str, takes: str = "1") -> None:
        """Take requests there, as docs/requests.md says."""
        offer = properties(PacketTypes.SUBSCRIBE, UserProperty=("polybus-service", takes))
        self.subscribe(topic, properties=offer)

    def answer(self, request: MQTTMessage, payload: bytes | str, **user_properties: str) -> None:
        said = properties(PacketTypes.PUBLISH, CorrelationData=request.properties.CorrelationData)
        if user_properties:
            said.UserProperty = [(name.replace("_", "-"), value) for name, value in user_properties.items()]
        self.publish(request.properties.ResponseTopic, payload, properties=said)

    def request(self, topic: str, payload: bytes | str, how: str = "managed", timeout_s: int = 20) -> bytes:
        """Ask, and do not wait; returns the correlation data."""
        if not self.is_asking:
            self.is_asking = True
            self.subscribe(self.ends_topic, 1)
        correlation_data = uuid.uuid4().bytes
        said = properties(
            PacketTypes.PUBLISH,
            ResponseTopic=self.ends_topic,
            CorrelationData=correlation_data,
            MessageExpiryInterval=timeout_s,
            UserProperty=("polybus-request", how),
        )
        self.publish(topic, payload, properties=said)
        return correlation_data

    def end(self, correlation_data: bytes) -> tuple[str, bytes]:
        """The next message, which is how this request ended."""
        message = self.get()
        assert message.topic == self.ends_topic
        assert message.properties.CorrelationData == correlation_data
        return dict(message.properties.UserProperty)["polybus-status"], message.payload

    def ask(
        self, topic: str, payload: bytes | str, how: str = "managed", timeout_s: int = 20
    ) -> tuple[str, bytes]:
        return self.end(self.request(topic, payload, how, timeout_s))

    def publish(self, topic: str, payload: bytes | str, qos: int = 1, **options: object) -> None:
        self.client.publish(topic, payload, qos, **options).wait_for_publish(PATIENCE_S)  # type: ignore[arg-type]


@contextmanager
def connected(
    bus: Served,
    version: str = "5",
    kind: str = "tcp",
    client_id: str = "",
    *,
    prepare: Callable[[Client], None] = lambda client: None,
    disconnect: bool = True,
    **options: object,
) -> Iterator[Paho]:
    transport = "websockets" if kind in ("websocket", "wss") else "tcp"
    own = {name: options.pop(name) for name in ("clean_session",) if name in options}
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id or unique("paho"),
        protocol=VERSIONS[version],
        transport=transport,
        **own,  # type: ignore[arg-type]
    )
    paho = Paho(client)
    codes: list[int] = []

    def on_connect(_client: object, _data: object, flags: object, code: object, properties: Properties) -> None:
        paho.connack = properties
        paho.session_present = flags.session_present  # type: ignore[attr-defined]
        codes.append(code.value)  # type: ignore[attr-defined]

    client.on_connect = on_connect
    client.on_message = lambda _client, _data, message: paho.messages.put(message)
    if kind in ("tls", "wss"):
        client.tls_set(bus.authority)
    prepare(client)
    client.connect("127.0.0.1", bus.ports[kind], **options)  # type: ignore[arg-type]
    client.loop_start()
    try:
        eventually(lambda: bool(codes))
        assert codes == [0]
        yield paho
        if disconnect:
            client.disconnect()
    finally:
        client.loop_stop()


def properties(packet_type: int, **values: object) -> Properties:
    made = Properties(packet_type)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def kept(version: str, expiry_s: int = 3600) -> dict[str, object]:
    """Options of `connected` for a session that outlives its connection."""
    if version != "5":
        return {"clean_session": False}
    expiry = properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
    return {"clean_start": False, "properties": expiry}
