"""A running exchange, in a process of its own so that nothing but the broker can hold it up.

``python -m tests.e2e.exchange PORT`` sends numbered QoS 1 messages from one client to another, one
every few milliseconds, until its standard input ends. It prints how many have arrived, and at the
end the longest time between two of them. It fails if one was lost, repeated or out of order.
"""

import asyncio
import sys

from polybus.wire.mqtt.packets import PubAck, Publish
from tests.e2e.processes import unique
from tests.e2e.traffic import connected
from tests.net.peers import Peer

PACE_S = 0.002


async def main(port: int) -> None:
    topic = unique("exchange")
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, over.set)
    async with (
        connected(port, unique("publisher")) as publisher,
        connected(port, unique("subscriber")) as reader,
    ):
        await reader.subscribe(topic, qos=1)
        await asyncio.gather(publish(publisher, topic, over), receive(reader))


async def publish(publisher: Peer, topic: str, over: asyncio.Event) -> None:
    number = 0
    while not over.is_set():
        number += 1
        assert await publisher.publish(topic, b"%d" % number) == 0
        await asyncio.sleep(PACE_S)
    assert await publisher.publish(topic, b"end") == 0


async def receive(reader: Peer) -> None:
    loop = asyncio.get_running_loop()
    received, worst_s, last = 0, 0.0, loop.time()
    while (message := await reader.receive()) and isinstance(message, Publish):
        now = loop.time()
        worst_s, last = max(worst_s, now - last), now
        reader.send(PubAck(message.packet_id))
        if message.payload == b"end":
            break
        received += 1
        assert int(message.payload) == received
        print(received, flush=True)
    print(f"{received} messages, worst gap {worst_s * 1000:.0f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
