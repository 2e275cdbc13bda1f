"""A stream in a folder, served by the broker's own HTTP code, without the rest of a broker."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polybus.broker.access import Access, Credentials, Verdict
from polybus.net.http import HttpServer
from polybus.net.http_streams import StreamPages
from polybus.store.streams.files import Files
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.stream import Stream
from tests.store.streams.records import batch

NAME = "fleet"


class LogServer:
    """`write` appends a batch; `drop` does what retention does."""

    def __init__(
        self, folder: Path, *, partitions: int = 1, password: str | None = None, port: int = 0
    ) -> None:
        self.data_folder = folder
        rule = StreamRule(NAME, ("#",), partitions=partitions, segment_bytes=4096)
        self.stream = Stream(folder / "streams" / NAME, rule, is_synced=False, files=Files())
        self._expected = None if password is None else f"reader:{password}"
        pages = StreamPages({NAME: self.stream}, Access, self._judge)
        self._server = HttpServer("127.0.0.1", port, pages.answer)
        self._server.start()
        self.port = self._server.port
        self.options = {"url": self._server.url, "stream": NAME, "retryTimeout": "10"}
        self.folder_options = {"folder": str(folder), "stream": NAME}

    def write(self, payloads: Sequence[bytes], partition: int = 0, time_us: int = 1_000_000) -> None:
        log = self.stream.partitions[partition]
        log.append(batch(log.next, payloads, time_us))
        log.tend(time_us)

    def drop_oldest(self, partition: int = 0) -> int:
        """Returns the first offset that is left."""
        log = self.stream.partitions[partition]
        log.drop(log.first)
        return log.first

    def close(self) -> None:
        self._server.close()
        self.stream.close()

    def _judge(self, shown: Credentials) -> Verdict:
        told = f"{shown.user_name}:{(shown.password or b'').decode()}"
        is_right = self._expected is None or told == self._expected
        return Verdict(is_right, shown.user_name, reason="" if is_right else "wrong user name or password")


@contextmanager
def serving_log(folder: Path, *, partitions: int = 1, password: str | None = None) -> Iterator[LogServer]:
    server = LogServer(folder, partitions=partitions, password=password)
    try:
        yield server
    finally:
        server.close()
