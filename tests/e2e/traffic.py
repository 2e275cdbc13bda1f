"""Traffic that others may not disturb, and floods that disturb."""

import asyncio
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from polybus.wire.mqtt.codec import encode
from polybus.wire.mqtt.packets import (
    V5,
    V311,
    Connect,
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from tests.e2e.processes import Served, unique
from tests.net.peers import Peer, dial, eventually

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def connected(port: int, client_id: str, version: int = V5, **options: object) -> AsyncIterator[Peer]:
    async with dial(port, **options) as peer:
        answer = await peer.greet(Connect(client_id, version))
        assert answer.reason_code == 0
        yield peer


class Exchange:
    """Runs `tests.e2e.exchange` meanwhile. Leaving it fails if it lost anything."""

    def __init__(self, bus: Served) -> None:
        self._command = [sys.executable, "-m", "tests.e2e.exchange", str(bus.port)]
        self._path = bus.folder / f"{unique('exchange')}.txt"
        self.summary = ""

    async def __aenter__(self) -> Self:
        self._start()
        try:
            await self.goes_on()
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                assert self._process.stdin is not None
                self._process.stdin.close()
                await eventually(lambda: self._process.poll() is not None, "the exchange's end")
                lines = self._path.read_text().splitlines()
                assert self._process.returncode == 0, "\n".join(lines)
                self.summary = lines[-1]
        finally:
            self._kill()

    async def goes_on(self, count: int = 20) -> None:
        """Wait until so many messages more have arrived."""
        wanted = self._received() + count
        await eventually(lambda: self._received() >= wanted or self._process.poll() is not None)
        assert self._process.poll() is None, self._path.read_text()

    def _start(self) -> None:
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
            )

    def _received(self) -> int:
        return self._path.read_bytes().count(b"\n")

    def _kill(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Flood:
    """Numbered QoS 0 messages of one size, as fast as their reader can take them: it must get all."""

    def __init__(self, bus: Served, topic: str, size: int = 1000, window: int = 150) -> None:
        self.topic = topic
        self.sent = self.received = 0
        self._bus = bus
        self._window = window
        self._head = encode(Publish(topic, bytes(size)), V311)[:-size]
        self._size = size

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        async with (
            connected(self._bus.port, unique("flood"), V311) as publisher,
            connected(self._bus.port, unique("reader"), V311) as reader,
        ):
            await reader.subscribe(self.topic)
            until = loop.time() + seconds
            buffer = b""
            step = len(self._head) + self._size
            while loop.time() < until or self.received < self.sent:
                if loop.time() < until and self.sent - self.received < self._window:
                    batch = self._window // 3
                    publisher.write(b"".join(self._packet(self.sent + n) for n in range(batch)))
                    self.sent += batch
                    await publisher.drain()
                if self.received < self.sent:
                    buffer += await reader.some()
                    for at in range(0, len(buffer) - step + 1, step):
                        (number,) = struct.unpack_from(">Q", buffer, at + len(self._head))
                        assert number == self.received
                        self.received += 1
                    buffer = buffer[len(buffer) // step * step :]

    def _packet(self, number: int) -> bytes:
        return self._head + struct.pack(">Q", number) + bytes(self._size - 8)


def subscribe_bytes(topic: str, qos: int, version: int = V311) -> bytes:
    return encode(Subscribe(1, (SubscriptionRequest(topic, qos),)), version)
