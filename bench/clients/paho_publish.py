"""Publishes at QoS 0 through paho-mqtt, then waits until the broker has read all of it. Prints a line of JSON.

As its users do it: a network thread (`loop_start`) and calls of `publish`. What is queued is bounded, for a
publisher that runs ahead of its socket measures its own memory.

    python -m bench.clients.paho_publish PORT TOPIC SIZE SECONDS
"""

import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.clients.results import print_rate

AHEAD = 2000
"""Messages queued in the client before it waits for its socket."""


def main(port: int, topic: str, size: int, seconds: float) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
    client.max_inflight_messages_set(65_535)
    client.connect("127.0.0.1", port)
    client.loop_start()
    while not client.is_connected():
        time.sleep(0.001)
    payload = b"x" * size
    begin = time.perf_counter()
    sent = 0
    while time.perf_counter() - begin < seconds:
        for _ in range(AHEAD - 1):
            client.publish(topic, payload)
        client.publish(topic, payload).wait_for_publish()
        sent += AHEAD
    client.publish(topic, payload, qos=1).wait_for_publish()  # acknowledged behind all before it
    print_rate("messages", sent + 1, time.perf_counter() - begin)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
