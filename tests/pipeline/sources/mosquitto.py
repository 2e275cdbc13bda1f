"""Mosquitto as a process that keeps its state and can be killed, and a publisher that notes what was taken."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5
from paho.mqtt.properties import Properties

from tests.e2e.processes import eventually
from tests.ports import own_port


class Mosquitto:
    """Queues without limit, and writes its state down when it is told to stop."""

    def __init__(self, folder: Path) -> None:
        self.port = own_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._config = folder / "mosquitto.conf"
        user = "user root\n" if os.geteuid() == 0 else ""
        self._config.write_text(
            f"{user}allow_anonymous true\nlistener {self.port} 127.0.0.1\npersistence true\n"
            f"persistence_location {folder}/\nmax_queued_messages 0\nmax_inflight_messages 1000\n"
        )
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "Debian's mosquitto is not installed"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(self._config)], stdout=log, stderr=log)
        eventually(self._listens, self._log.read_text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def running_mosquitto(folder: Path) -> Iterator[Mosquitto]:
    folder.mkdir(parents=True, exist_ok=True)
    mosquitto = Mosquitto(folder)
    try:
        mosquitto.start()
        yield mosquitto
    finally:
        mosquitto.stop(signal.SIGKILL)


class Publisher:
    """Sends at QoS 1 or 2, and again after a break; 65,535 messages at most, for packet ids tell them apart."""

    def __init__(self, port: int, *, user: str | None = None, password: str | None = None) -> None:
        self._sent: list[tuple[int, bytes]] = []
        self._taken: set[int] = set()
        self._client = Client(CallbackAPIVersion.VERSION2, f"pub{port}", protocol=MQTTv5)
        self._client.max_queued_messages_set(0)
        self._client.max_inflight_messages_set(100)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = lambda _client, _data, mid, *_rest: self._taken.add(mid)
        if user is not None:
            self._client.username_pw_set(user, password)
        self._client.connect("127.0.0.1", port, clean_start=False)
        self._client.loop_start()

    def send(
        self,
        topic: str,
        payloads: Iterable[bytes],
        qos: int = 1,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        for payload in payloads:
            self._sent.append((self._client.publish(topic, payload, qos, retain, properties).mid, payload))

    @property
    def acknowledged(self) -> list[bytes]:
        """What the broker took."""
        return [payload for mid, payload in self._sent if mid in self._taken]

    def wait(self) -> None:
        """Until all that was sent is acknowledged."""
        eventually(
            lambda: len(self._taken) == len(self._sent),
            lambda: f"{len(self._sent) - len(self.acknowledged)} are not acknowledged",
        )

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def publishing(port: int, *, user: str | None = None, password: str | None = None) -> Iterator[Publisher]:
    publisher = Publisher(port, user=user, password=password)
    try:
        yield publisher
    finally:
        publisher.close()
