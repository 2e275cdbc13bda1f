"""The network below (sections 4.2, 6 and 7): byte streams, WebSocket frames, clients that are not ours."""

import queue

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    ConnAck,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)

from .harness import Bus
from .rules import rules
from .servers import NetworkServer, WebSocketConnection

# -- a byte stream --------------------------------------------------------------------------------


def _conversation(bus: Bus) -> list[Packet]:
    return [
        bus.connect_packet("c"),
        Subscribe(1, (SubscriptionRequest("t", 0),)),
        Publish("t", b"x" * 300),
        PingReq(),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@rules(v311="MQTT-7.1.1-1", v5="MQTT-4.2-1", wire=True)
def test_how_the_stream_is_cut_does_not_matter(bus: Bus, size: int) -> None:
    data = b"".join(encode(packet, bus.version) for packet in _conversation(bus))
    client = bus.open()
    client.send_raw(*(data[at : at + size] for at in range(0, len(data), size)))
    client.expect(ConnAck, reason_code=0)
    client.expect_all(SubAck(1, (0,)), Publish("t", b"x" * 300), PingResp())


@rules(v311="MQTT-7.1.1-1", v5="MQTT-4.2-1", on=["tcp"])
def test_a_long_stream_arrives_whole_and_in_order(bus: Bus) -> None:
    client = bus.connect("s")
    client.subscribe("t")
    publisher = bus.connect("p")
    payloads = [b"%d" % number * (number % 500) for number in range(3000)]
    for payload in payloads:
        publisher.send(Publish("t", payload))
    assert [client.expect(Publish, topic="t").payload for _ in payloads] == payloads


@rules(v311="MQTT-7.0.0-2", v5="MQTT-4.2-1", on=["tcp"])
def test_a_stock_client_needs_nothing_special(bus: Bus) -> None:
    """paho-mqtt with its defaults: connect, subscribe, publish and receive at every QoS, leave."""
    assert isinstance(bus.server, NetworkServer)
    client = paho.Client(CallbackAPIVersion.VERSION2, "stock", protocol=MQTTProtocolVersion(bus.version))
    events: queue.Queue[tuple[object, ...]] = queue.Queue()
    client.on_connect = lambda c, data, flags, reason, properties: events.put(("up", reason.is_failure))
    client.on_subscribe = lambda c, data, mid, reasons, properties: events.put(("granted", len(reasons)))
    client.on_message = lambda c, data, message: events.put((message.payload, message.qos))
    client.on_disconnect = lambda c, data, flags, reason, properties: events.put(("down",))
    client.connect(*bus.server.address)
    client.loop_start()
    assert events.get(timeout=5) == ("up", False)
    client.subscribe([("t/+", 2), ("u", 0)])
    assert events.get(timeout=5) == ("granted", 2)
    for qos in range(3):
        client.publish("t/x", b"%d" % qos, qos).wait_for_publish(timeout=5)
        assert events.get(timeout=5) == (b"%d" % qos, qos)
    client.disconnect()
    assert events.get(timeout=5) == ("down",)
    client.loop_stop()
    assert events.empty()


# -- WebSocket ------------------------------------------------------------------------------------


def _websocket(connection: object) -> WebSocketConnection:
    assert isinstance(connection, WebSocketConnection)
    return connection


@rules(v311="MQTT-6.0.0-1", v5="MQTT-6.0.0-1", on=["websocket"])
def test_packets_travel_in_binary_frames(bus: Bus) -> None:
    client = bus.connect("c")
    client.subscribe("t", qos=1)
    client.publish("t", b"text", qos=1)
    client.acknowledge(client.take(Publish))
    client.ping()
    frames = _websocket(client.connection).frames
    assert len(frames) >= 4
    assert all(isinstance(frame, bytes) for frame in frames)


@pytest.mark.parametrize("text", ["", "c0", "\u00c0\u0000"])
@rules(v311="MQTT-6.0.0-1", v5="MQTT-6.0.0-1", on=["websocket"])
def test_a_text_frame_ends_the_connection(bus: Bus, text: str) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("will")
    client = bus.connect("c", will=Will("will", b"gone"))
    _websocket(client.connection).websocket.send(text)
    client.expect_closed()
    watcher.expect(Publish("will", b"gone"))


@rules(v311="MQTT-6.0.0-1", v5="MQTT-6.0.0-1", on=["websocket"])
def test_a_text_message_in_fragments_is_no_packet_either(bus: Bus) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("#")
    client = bus.connect("c")
    fragments = [
        Frame(Opcode.TEXT, b"", fin=False),
        Frame(Opcode.CONT, encode(Publish("t", b"x"), bus.version)),
    ]
    data = b"".join(fragment.serialize(mask=True) for fragment in fragments)
    _websocket(client.connection).websocket.socket.sendall(data)  # at once, so that both are read together
    client.expect_closed()
    watcher.expect_nothing()


@rules(v311="MQTT-6.0.0-2", v5="MQTT-6.0.0-2", on=["websocket"])
def test_many_packets_fit_in_a_frame(bus: Bus) -> None:
    client = bus.open()
    client.send(*_conversation(bus))
    client.expect(ConnAck, reason_code=0)
    client.expect_all(SubAck(1, (0,)), Publish("t", b"x" * 300), PingResp())


@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize("size", [1, 5, 200])
@rules(v311="MQTT-6.0.0-2", v5="MQTT-6.0.0-2", on=["websocket"])
def test_a_packet_may_span_frames_and_fragments(bus: Bus, size: int, fragments: bool) -> None:
    data = b"".join(encode(packet, bus.version) for packet in _conversation(bus))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    client = bus.open()
    if fragments:
        _websocket(client.connection).websocket.send(pieces)
    else:
        client.send_raw(*pieces)
    client.expect(ConnAck, reason_code=0)
    client.expect_all(SubAck(1, (0,)), Publish("t", b"x" * 300), PingResp())


@pytest.mark.parametrize("offered", [["mqtt"], ["chat", "mqtt"], ["mqttv3.1", "mqtt"], ["mqtt", "soap"]])
@rules(v311="MQTT-6.0.0-4", v5="MQTT-6.0.0-4", on=["websocket"])
def test_the_server_selects_mqtt(bus: Bus, offered: list[str]) -> None:
    assert isinstance(bus.server, NetworkServer)
    with connect_websocket(bus.server.url, subprotocols=[Subprotocol(name) for name in offered]) as websocket:
        assert websocket.subprotocol == "mqtt"


@pytest.mark.parametrize("offered", [["chat"], ["MQTT"], None])
@rules(v311="MQTT-6.0.0-4", v5="MQTT-6.0.0-4", on=["websocket"])
def test_a_client_that_does_not_offer_mqtt_is_refused(bus: Bus, offered: list[str] | None) -> None:
    assert isinstance(bus.server, NetworkServer)
    names = None if offered is None else [Subprotocol(name) for name in offered]
    with pytest.raises(InvalidHandshake), connect_websocket(bus.server.url, subprotocols=names):
        pass
