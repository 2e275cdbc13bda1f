"""The `mqtt` source beside its ceiling: rows out of the spool into Spark, and messages from Mosquitto into
the spool."""

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from rich.console import Console
from rich.table import Table

from bench.pipeline.ceiling import PAYLOAD_BYTES, noop, parquet, prepare, session
from bench.pipeline.measure import shares_of, side_by_side
from polybus.client.message import Message
from polybus.pipeline.sources.mqtt.options import MqttOptions
from polybus.pipeline.sources.mqtt.receiver import ROWS_PER_FRAME, Receiver
from polybus.pipeline.sources.mqtt.schema import Arrival, to_batch, with_offsets
from polybus.pipeline.sources.mqtt.source import SpoolRange
from polybus.pipeline.sources.mqtt.spool import SpoolWriter

ROWS, QUICK_ROWS = 3_000_000, 200_000
MESSAGES, QUICK_MESSAGES = 60_000, 10_000
TASKS: Final = 2


def run(console: Console, quick: bool) -> None:
    with tempfile.TemporaryDirectory() as name, mosquitto(Path(name)) as port:
        folder = Path(name)
        _from_the_broker(console, folder, port, QUICK_MESSAGES if quick else MESSAGES)
        _into_spark(console, folder, port, QUICK_ROWS if quick else ROWS, 2 if quick else 3)


def options(folder: Path, port: int, name: str) -> dict[str, str]:
    return {
        "url": f"mqtt://127.0.0.1:{port}",
        "clientId": f"bench-{name}",
        "topics": f"{name}/#",
        "spool": str(folder / name),
        "spoolLimit": "20g",
        "quiet": "0",
    }


def _from_the_broker(console: Console, folder: Path, port: int, count: int) -> None:
    """QoS 1 from Mosquitto's queue: each group is on the disk before it is acknowledged."""
    given = MqttOptions.parse(options(folder, port, "arriving"))
    _receive(given, 0)  # makes the session, which then keeps what is published
    _publish(port, "arriving/x", count)
    taken = _receive(given, count)
    console.print(
        f"mqtt: {count / taken:,.0f} messages/s from Mosquitto into the spool, QoS 1, {PAYLOAD_BYTES} B"
    )


def _receive(given: MqttOptions, count: int) -> float:
    """Seconds until so many are in the spool."""
    with SpoolWriter(given.spool, limit_bytes=given.spool_limit_bytes) as spool:
        receiver = Receiver(given, spool)
        began = time.perf_counter()
        receiver.start()
        while spool.next < count:
            receiver.check()
            time.sleep(0.001)
        taken = time.perf_counter() - began
        receiver.stop()
    return taken


def _publish(port: int, topic: str, count: int) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(1000)
    left, is_done = [count], threading.Event()

    def on_publish(*_about: object) -> None:
        left[0] -= 1
        if not left[0]:
            is_done.set()

    client.on_publish = on_publish
    client.connect("127.0.0.1", port)
    client.loop_start()
    for number in range(count):
        client.publish(topic, b"%0*d" % (PAYLOAD_BYTES, number), 1)
    is_done.wait()
    client.disconnect()
    client.loop_stop()


def _into_spark(console: Console, folder: Path, port: int, rows: int, runs: int) -> None:
    messages = [
        Message(f"trucks/{n % 1000}/position", b"%0*d" % (PAYLOAD_BYTES, n), 1) for n in range(ROWS_PER_FRAME)
    ]
    frame = to_batch([Arrival(1_700_000_000_000_000 + n, message) for n, message in enumerate(messages)])
    given = options(folder, port, "spooled")
    with SpoolWriter(Path(given["spool"]), limit_bytes=20 << 30) as spool:
        while spool.next < rows:
            spool.append([frame] * 10)
        _without_spark(console, spool)
    prepare(with_offsets(frame, 0), folder / "batch.arrow")
    spark = session()
    try:
        ceiling = spark.read.format("ceiling").options(
            rows=str(rows), tasks=str(TASKS), batch=str(folder / "batch.arrow")
        )
        source = spark.read.format("mqtt").options(**given, rowsPerTask=str(rows // TASKS + 1))
        frames = {"ceiling": ceiling.load(), "mqtt": source.load()}
        for each in frames.values():
            noop(each)  # starts the processes that the others use again
        table = Table("mqtt, rows/s", "rows", "ceiling", "from the spool", "of ceiling", "by CPU")
        to_noop = {key: lambda f=each: noop(f) for key, each in frames.items()}
        to_parquet = {
            key: lambda f=each, k=key: parquet(f, folder / f"out-{k}") for key, each in frames.items()
        }
        for label, works in (("to noop", to_noop), ("to Parquet", to_parquet)):
            taken = side_by_side(works, runs)
            cells = [f"{rows / taken[key].wall_s:,.0f}" for key in ("ceiling", "mqtt")]
            shares = shares_of(taken["ceiling"], taken["mqtt"])
            table.add_row(label, f"{rows:,}", *cells, *shares)
        console.print(table)
    finally:
        spark.stop()


def _without_spark(console: Console, spool: SpoolWriter) -> None:
    """What the reader itself costs, by this process's CPU: a busy machine does not change it."""
    began = time.process_time()
    task = SpoolRange(spool.folder, spool.identity.id, 0, spool.next)
    rows = sum(map(len, task.read()))
    console.print(f"mqtt: the reader alone {rows / (time.process_time() - began):,.0f} rows per CPU second")


@contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    config = folder / "mosquitto.conf"
    config.write_text(
        f"allow_anonymous true\nlistener {port} 127.0.0.1\nmax_queued_messages 0\nmax_inflight_messages 1000\n"
    )
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        raise RuntimeError("Mosquitto is not installed: scripts/system-packages mosquitto")
    process = subprocess.Popen(
        [program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()
