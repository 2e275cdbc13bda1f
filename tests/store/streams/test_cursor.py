"""A replay step by step: what it skips, when it rests, and that it has one batch in memory."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from polybus.broker.dispatch import PARKED
from polybus.errors import UsageError
from polybus.store.streams.cursor import Cursor, Records
from polybus.store.streams.files import Files
from polybus.store.streams.format import scan
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.start import parse_start, parse_subscription, parse_time
from polybus.store.streams.stream import Stream
from tests.store.streams.records import batch

RULE = StreamRule("s", ("#",), segment_bytes=4096)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(tmp_path / "s", RULE, is_synced=False, files=Files())
    yield stream
    stream.close()


def fill(stream: Stream, count: int) -> None:
    partition = stream.partitions[0]
    for _ in range(count):
        partition.append(batch(partition.next, [b"%d" % partition.next]))
        partition.tend(1_000_000)


class Replay:
    """Asks as the dispatcher does, and fetches at once."""

    def __init__(self, stream: Stream, start: str = "first", topics: str = "#") -> None:
        self.wakes = 0
        self.fetches = 0
        asked = parse_subscription(f"$stream/s/{start}/{topics}")
        self.cursor = Cursor(stream, asked, qos=1, identifier=0, fetch=self._fetch, on_wake=self._wake)
        self._pending: list[tuple] = []  # type: ignore[type-arg]

    def _fetch(self, read, done) -> None:  # type: ignore[no-untyped-def]
        self.fetches += 1
        self._pending.append((read, done))

    def _wake(self) -> None:
        self.wakes += 1

    def rest(self) -> list[bytes]:
        """Everything until it is parked with nothing to fetch."""
        found: list[bytes] = []
        while True:
            delivery = next(self.cursor)
            if delivery is PARKED:
                assert self.cursor.is_parked
                if not self._pending:
                    return found
                read, done = self._pending.pop()
                try:
                    result: Records | Exception | None = read()
                except Exception as error:
                    result = error
                done(result)
                assert not self.cursor.is_parked
            elif delivery is not None:
                found.append(delivery.message.payload)


def test_it_rests_until_there_is_more(stream: Stream) -> None:
    fill(stream, 3)
    replay = Replay(stream)
    assert replay.rest() == [b"0", b"1", b"2"]
    assert list(stream.listeners) == [replay.cursor]
    wakes = replay.wakes
    fill(stream, 2)
    replay.cursor.wake()
    assert replay.wakes == wakes + 1
    assert replay.rest() == [b"3", b"4"]


def test_one_batch_at_a_time(stream: Stream) -> None:
    fill(stream, 20)
    replay = Replay(stream)
    assert replay.rest() == [b"%d" % n for n in range(20)]
    assert replay.fetches == 20


def test_nobody_wakes_one_that_is_gone(stream: Stream) -> None:
    replay = Replay(stream)
    assert replay.rest() == []
    assert len(stream.listeners) == 1
    del replay
    gc.collect()  # it and who asks it know each other
    assert len(stream.listeners) == 0


def test_retention_may_overtake_it(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    fill(stream, 12)
    replay = Replay(stream)
    partition = stream.partitions[0]
    partition.drop(partition.facts()[0].first)
    assert replay.rest() == [b"%d" % n for n in range(partition.first, 12)]
    assert "left out records that were dropped by retention" in caplog.text


def test_what_is_damaged_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(tmp_path / "s", RULE, is_synced=False, files=Files())
    fill(stream, 9)
    stream.close()
    path = stream.partitions[0].segments[0].path
    data = bytearray(path.read_bytes())
    victim = scan(bytes(data)).batches[1]
    data[victim.end - 20] ^= 1
    path.write_bytes(data)
    again = Stream(tmp_path / "s", RULE, is_synced=False, files=Files())
    caplog.set_level(logging.WARNING)
    assert Replay(again).rest() == [b"%d" % n for n in range(9) if n != 1]
    assert "left out records that were damaged" in caplog.text
    again.close()


def test_an_error_ends_it_and_nothing_else(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    fill(stream, 1)
    replay = Replay(stream)
    stream.partitions[0].segments[0].path.write_bytes(b"")
    assert replay.rest() == []
    assert "a stream cannot be replayed" in caplog.text


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("2001-09-09T01:46:40.000001+00:00", 1_000_000_000_000_001),
        ("2001-09-09T03:46:40+02:00", 1_000_000_000_000_000),
    ],
)
def test_times(text: str, time: int) -> None:
    assert parse_time(text) == time
    assert parse_start(text).time == time


@pytest.mark.parametrize("text", ["", "last", "-1", "1:", "1:2,", "a:1", "9" * 19, "2030-01-01", "1.5"])
def test_what_is_no_start(text: str) -> None:
    with pytest.raises(UsageError):
        parse_start(text)
