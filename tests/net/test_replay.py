"""A replay is held back by the session's window, packet by packet."""

from pathlib import Path

from polybus.net.server import Server
from polybus.ops.config import Config
from polybus.ops.listeners import Listener
from polybus.ops.streams import Http, Store
from polybus.store.streams.rule import StreamRule
from polybus.wire.mqtt.packets import V5, Connect, PingReq, PingResp, Properties, PubAck, Publish
from tests.net.peers import client, serving_config, stream


def config(folder: Path) -> Config:
    rule = StreamRule("all", ("a/#",))
    return Config(listeners=(Listener(port=0),), store=Store(folder), streams=(rule,), http=Http(enabled=False))


async def fill(server: Server, count: int) -> None:
    async with client(server, "publisher") as peer:
        for number in range(count):
            assert await peer.publish("a/b", b"%d" % number) == 0


async def test_no_more_than_the_window_is_under_way(tmp_path: Path) -> None:
    async with serving_config(config(tmp_path)) as server:
        await fill(server, 50)
        async with stream(server) as peer:
            await peer.greet(Connect("reader", V5, properties=Properties(receive_maximum=3)))
            await peer.subscribe("$stream/all/first/#", qos=1)
            seen: list[bytes] = []
            while len(seen) < 48:
                group: list[Publish] = []
                while len(group) < 3:
                    packet = await peer.receive()
                    assert isinstance(packet, Publish)
                    group.append(packet)
                peer.send(PingReq())
                assert isinstance(await peer.receive(), PingResp), "a fourth came before an acknowledgement"
                seen += [packet.payload for packet in group]
                peer.send(*(PubAck(packet.packet_id) for packet in group))
            assert seen == [b"%d" % n for n in range(48)]


async def test_others_are_served_meanwhile(tmp_path: Path) -> None:
    async with serving_config(config(tmp_path)) as server:
        await fill(server, 10)
        async with stream(server) as slow, client(server, "other") as other:
            await slow.greet(Connect("reader", V5, properties=Properties(receive_maximum=1)))
            await slow.subscribe("$stream/all/first/#", "a/#", qos=1)
            await other.subscribe("$stream/all/first/#", qos=1)
            for number in range(10):
                packet = await other.receive()
                assert isinstance(packet, Publish)
                assert packet.payload == b"%d" % number
                other.send(PubAck(packet.packet_id))
