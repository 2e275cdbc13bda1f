"""The reader of `format("polybus")` without Spark: its calls as Spark makes them, real segments, real HTTP."""

import json
import logging
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from polybus.pipeline.sources.options import OptionError
from polybus.pipeline.sources.polybus.offsets import DataLoss, Offset, positions_of
from polybus.pipeline.sources.polybus.places import StreamRefused, Unreachable
from polybus.pipeline.sources.polybus.schema import ARROW_SCHEMA
from polybus.pipeline.sources.polybus.source import PolybusSource, PolybusStreamReader
from tests.pipeline.sources.log_server import LogServer, serving_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogServer]:
    with serving_log(tmp_path) as server:
        yield server


@pytest.fixture(params=["url", "folder"])
def options(request: pytest.FixtureRequest, log: LogServer) -> dict[str, str]:
    return log.options if request.param == "url" else log.folder_options


def stream_reader(options: dict[str, str], **more: object) -> PolybusStreamReader:
    given = {**options, **{name: str(value) for name, value in more.items()}}
    source = PolybusSource(given)
    return pickle.loads(pickle.dumps(source)).streamReader(source.schema())  # type: ignore[no-any-return]


def rows(reader: PolybusStreamReader, start: Offset, end: Offset) -> list[tuple[int, int, bytes]]:
    """As Spark reads a batch: each task in a process of its own, from a pickled reader and partition."""
    found: list[tuple[int, int, bytes]] = []
    for partition in reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
        task, piece = pickle.loads(pickle.dumps((reader, partition)))
        for batch in task.read(piece):
            assert batch.schema.equals(ARROW_SCHEMA)
            found += zip(*(batch.column(i).to_pylist() for i in (0, 1, 4)), strict=True)
    return found


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_all_of_it(log: LogServer, options: dict[str, str]) -> None:
    log.write(numbers(10))
    log.write(numbers(5, 10))
    reader = stream_reader(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (positions_of(start), positions_of(end)) == ({0: 0}, {0: 15})
    assert rows(reader, start, end) == [(0, n, b"%d" % n) for n in range(15)]
    assert reader.partitions(end, end) == []


def test_batches_are_cut_to_the_record(log: LogServer, options: dict[str, str]) -> None:
    """The log gives whole batches of 7; micro-batches of 5 begin and end anywhere in them, and replay alike."""
    for first in range(0, 70, 7):
        log.write(numbers(7, first))
    reader = stream_reader(options, maxRowsPerBatch=5)
    limit = reader.getDefaultReadLimit()
    offset = reader.initialOffset()
    read: list[bytes] = []
    while (end := reader.latestOffset(offset, limit)) != offset:
        once, again = rows(reader, offset, end), rows(stream_reader(options), offset, end)
        assert once == again
        assert len(once) <= 5
        read += [payload for _, _, payload in once]
        offset = end
    assert read == numbers(70)


def test_many_tasks_read_what_one_would(log: LogServer, options: dict[str, str]) -> None:
    for first in range(0, 1000, 100):
        log.write(numbers(100, first))
    reader = stream_reader(options, rowsPerTask=33)
    assert len(reader.partitions({"0": 3}, {"0": 998})) == 31
    assert [payload for _, _, payload in rows(reader, {"0": 3}, {"0": 998})] == numbers(995, 3)


def test_available_now_stops_where_the_stream_was(log: LogServer, options: dict[str, str]) -> None:
    log.write(numbers(10))
    reader = stream_reader(options, maxRowsPerBatch=6)
    reader.prepareForTriggerAvailableNow()
    log.write(numbers(10, 10))
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(6))
    second = reader.latestOffset(first, ReadMaxRows(6))
    assert (positions_of(first), positions_of(second)) == ({0: 6}, {0: 10})
    assert reader.latestOffset(second, ReadMaxRows(6)) == second
    assert reader.reportLatestOffset() == {"0": 20}


def test_starting_offsets(log: LogServer, options: dict[str, str]) -> None:
    log.write(numbers(4), time_us=1_000_000)
    log.write(numbers(4, 4), time_us=2_000_000)
    for text, expected in (
        ("earliest", 0),
        ("latest", 8),
        ('{"0": 3}', 3),
        ("timestamp:1970-01-01T00:00:01.5Z", 4),
        ("timestamp:1970-01-01T00:00:00Z", 0),
        ("timestamp:1960-01-01T00:00:00Z", 0),
        ("timestamp:2999-01-01T00:00:00+02:00", 8),
    ):
        begin = stream_reader(options, startingOffsets=text).initialOffset()
        assert positions_of(begin) == {0: expected}, text


def test_a_clock_that_was_years_off_loses_no_record(log: LogServer, options: dict[str, str]) -> None:
    """Time says where a query begins and never what it leaves out."""
    for first, time_us in ((0, 4_000_000_000_000_000), (2, 1_000_000), (4, 3_000_000)):
        log.write(numbers(2, first), time_us=time_us)
    reader = stream_reader(options)
    assert [payload for _, _, payload in rows(reader, {"0": 0}, {"0": 6})] == numbers(6)
    begin = stream_reader(options, startingOffsets="timestamp:1970-01-01T00:00:02Z").initialOffset()
    assert positions_of(begin) == {0: 0}


@pytest.mark.parametrize("payload", [b"", bytes(range(256)), b"\xff\xfe", b"x" * 10_000_000])
def test_payloads_come_as_they_were(log: LogServer, options: dict[str, str], payload: bytes) -> None:
    log.write([b"before", payload, b"after"])
    found = rows(stream_reader(options), {"0": 0}, {"0": 3})
    assert [each for _, _, each in found] == [b"before", payload, b"after"]


# --- what is not there any more -------------------------------------------------------------------


def drop_some(log: LogServer) -> int:
    for first in range(0, 1000, 100):
        log.write([b"%050d" % n for n in range(first, first + 100)])
    return log.drop_oldest()


def test_what_retention_dropped_fails_the_query(log: LogServer, options: dict[str, str]) -> None:
    first = drop_some(log)
    assert first > 0
    reader = stream_reader(options)
    with pytest.raises(DataLoss, match=rf"offsets 0 to {first - 1} of partition 0 .*failOnDataLoss"):
        reader.latestOffset({"0": 0}, ReadAllAvailable())
    with pytest.raises(DataLoss, match=f"offsets 0 to {first - 1}"):
        reader.partitions({"0": 0}, {"0": 500})


def test_or_is_skipped_and_counted(
    log: LogServer, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    first = drop_some(log)
    reader = stream_reader(options, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = reader.latestOffset({"0": 0}, ReadAllAvailable())
    assert end == {"0": 1000, "skipped": first, "id": log.stream.id}
    assert f"offsets 0 to {first - 1} of partition 0 were dropped by retention" in caplog.text
    assert [offset for _, offset, _ in rows(reader, {"0": 0}, end)] == list(range(first, 1000))
    assert reader.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize("fails", ["true", "false"])
def test_retention_that_is_quicker_than_the_plan(log: LogServer, options: dict[str, str], fails: str) -> None:
    for first in range(0, 1000, 100):
        log.write([b"%050d" % n for n in range(first, first + 100)])
    reader = stream_reader(options, failOnDataLoss=fails)
    (task,) = reader.partitions({"0": 10}, {"0": 1000})
    first = log.drop_oldest()
    if fails == "true":
        with pytest.raises(DataLoss, match=f"offsets 10 to {first - 1}"):
            list(reader.read(task))
    else:
        found = [offset for batch in reader.read(task) for offset in batch.column("offset").to_pylist()]
        assert found == list(range(first, 1000))


def test_damage_is_never_read_as_records(log: LogServer, options: dict[str, str], tmp_path: Path) -> None:
    for first in range(0, 40, 10):
        log.write(numbers(10, first))
    path = next((tmp_path / "streams").rglob("*.arrow"))
    data = bytearray(path.read_bytes())
    data[data.index(b"1011121314") + 3] ^= 1
    path.write_bytes(data)
    reader = stream_reader({**options, "retryTimeout": "0.2"} if "url" in options else options)
    with pytest.raises((DataLoss, Unreachable), match=r"damaged"):
        rows(reader, {"0": 0}, {"0": 40})


# --- the broker goes away -------------------------------------------------------------------------


def test_a_broker_that_is_back_in_a_moment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Away when a task begins, and cut off in the middle of an answer: no record twice, none missing."""
    log = LogServer(tmp_path)
    for first in range(0, 3000, 10):
        log.write([b"%020000d" % n for n in range(first, first + 10)])
    reader = stream_reader(log.options)
    (task,) = reader.partitions({"0": 5}, {"0": 2995})
    batches = reader.read(task)
    found = next(batches).column("offset").to_pylist()
    log.close()
    back: list[LogServer] = []

    def come_back() -> None:
        while "trying again" not in caplog.text and not is_done.is_set():
            time.sleep(0.01)
        back.append(LogServer(tmp_path, port=log.port))

    is_done = threading.Event()
    returning = threading.Thread(target=come_back)
    returning.start()
    try:
        for batch in batches:
            found += batch.column("offset").to_pylist()
    finally:
        is_done.set()
        returning.join()
        back[0].close()
    assert found == list(range(5, 2995))
    assert "trying again" in caplog.text


def test_a_broker_that_stays_away(tmp_path: Path) -> None:
    log = LogServer(tmp_path)
    log.close()
    reader = stream_reader({**log.options, "retryTimeout": "0.3"})
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1.*tried for 0\.3 s"):
        reader.initialOffset()


def test_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving_log(tmp_path, password="open sesame") as log, caplog.at_level(logging.DEBUG):
        log.write(numbers(3))
        secret = tmp_path / "secret"
        secret.write_text("open sesame\n")
        for right in ({"password": "open sesame"}, {"passwordFile": str(secret)}):
            reader = stream_reader(log.options, user="reader", **right)
            assert len(rows(reader, {"0": 0}, {"0": 3})) == 3
            assert "sesame" not in repr(reader.partitions({"0": 0}, {"0": 3}))
            assert "sesame" not in repr(reader.__dict__)
        for wrong in ({}, {"user": "reader", "password": "sesame"}):
            with pytest.raises(StreamRefused, match="user and password") as caught:
                stream_reader(log.options, **wrong).initialOffset()
            assert "sesame" not in str(caught.value)
    assert "sesame" not in caplog.text


# --- what cannot be right -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "stream is missing"),
        ({"stream": "a/b"}, "name of a stream"),
        ({"stream": "a"}, "one of the options url"),
        ({"stream": "a", "url": "http://h:1", "folder": "/x"}, "one of the options url"),
        ({"stream": "a", "url": "mqtt://h:1"}, "http://127.0.0.1:8035"),
        ({"stream": "a", "url": "http://h:99999999"}, "http://127.0.0.1:8035"),
        ({"stream": "a", "url": "http://u:p@h:1"}, "options user and password"),
        ({"stream": "a", "url": "http://h", "password": "x"}, "needs the option user"),
        ({"stream": "a", "folder": "/x", "user": "u"}, "needs no user"),
        ({"stream": "a", "url": "http://h", "passwordFile": "/none", "user": "u"}, "/none"),
        ({"stream": "a", "url": "http://h", "startingOffsets": "soon"}, "earliest, latest"),
        ({"stream": "a", "url": "http://h", "startingOffsets": "timestamp:yesterday"}, "zone"),
        ({"stream": "a", "url": "http://h", "startingOffsets": "timestamp:2030-01-01T00:00:00"}, "zone"),
        ({"stream": "a", "url": "http://h", "maxRowsPerBatch": "0"}, "from 1"),
        ({"stream": "a", "url": "http://h", "maxRowsPerBatch": "many"}, "maxRowsPerBatch"),
        ({"stream": "a", "url": "http://h", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"stream": "a", "url": "http://h", "retryTimeout": "-1"}, "seconds"),
        ({"stream": "a", "url": "http://h", "strem": "b"}, "unknown option strem"),
        ({"stream": "a", "url": "http://h", "endingOffsets": "earliest"}, "for spark.read"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    source = PolybusSource(given)
    with pytest.raises(OptionError, match="polybus: ") as caught:
        source.streamReader(source.schema())
    assert said in str(caught.value)


def test_a_stream_that_is_not_there(log: LogServer, tmp_path: Path) -> None:
    with pytest.raises(StreamRefused, match="no stream 'other'"):
        stream_reader({**log.options, "stream": "other"}).initialOffset()
    with pytest.raises(Exception, match=r"no stream in .*there are fleet"):
        stream_reader({**log.folder_options, "stream": "other"}).initialOffset()


# --- batch ----------------------------------------------------------------------------------------


def test_a_range_as_a_batch(log: LogServer, options: dict[str, str]) -> None:
    log.write(numbers(20))
    source = PolybusSource({**options, "startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 12}'})
    reader = source.reader(source.schema())
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    found = [
        payload for task in tasks for batch in reader.read(task) for payload in batch["payload"].to_pylist()
    ]
    assert found == numbers(7, 5)


def test_an_empty_stream_as_a_batch(log: LogServer, options: dict[str, str]) -> None:
    source = PolybusSource(options)
    reader = source.reader(source.schema())
    assert [list(reader.read(task)) for task in reader.partitions()] == [[]]


@pytest.mark.parametrize(
    ("start", "end", "said"), [(0, 21, "not reached yet"), (9, 8, "behind"), (10**18, 5, "behind")]
)
def test_a_range_that_cannot_be(log: LogServer, start: int, end: int, said: str) -> None:
    log.write(numbers(20))
    given = {"startingOffsets": json.dumps({"0": start}), "endingOffsets": json.dumps({"0": end})}
    source = PolybusSource({**log.options, **given})
    with pytest.raises(OptionError, match=said.replace(" ", r"\s")):
        source.reader(source.schema()).partitions()


def test_a_stream_that_was_deleted_and_begun_anew_is_told(tmp_path: Path) -> None:
    """Though it is longer than the old one was, so that offsets alone would fit."""
    with serving_log(tmp_path / "old") as log:
        log.write(numbers(10), time_us=1_000_000)
        reader = stream_reader(log.options)
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with serving_log(tmp_path / "new") as log:
        log.write(numbers(15), time_us=500_000)  # the clock was set back, too
        for options in (log.options, log.folder_options):
            with pytest.raises(DataLoss, match=r"partition 0, which .* was deleted.*begun anew"):
                stream_reader(options).latestOffset(end, ReadAllAvailable())
            lenient = stream_reader(options, failOnDataLoss="false")
            then = lenient.latestOffset(end, ReadAllAvailable())
            assert [offset for _, offset, _ in rows(lenient, end, then)] == list(range(15))
