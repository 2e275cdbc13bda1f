import itertools
import os

import pytest

from polybus.errors import UsageError
from polybus.pipeline.sources.events.log_files import MOST_GONE, cut, find_files, new_ranges
from polybus.pipeline.sources.events.source import EventsSource, EventsStreamReader, read_lines

_clock = itertools.count(1_700_000_000)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "events.jsonl"


def write(file, text):
    with file.open("ab") as open_file:
        open_file.write(text.encode())
    os.utime(file, (moment := next(_clock), moment))  # files are read in the order they were written


def take(pattern, known, limit=1 << 40):
    """What a batch would read: its lines, and what is known then."""
    ranges, then = new_ranges(find_files(str(pattern)), known, limit)
    lines = [
        line
        for each in ranges
        for batch in read_lines(each, str(pattern))
        for line in batch["line"].to_pylist()
    ]
    return [line.decode() for line in lines], then


def test_a_file_is_read_as_it_grows(file):
    write(file, "one\ntwo\n")
    lines, known = take(file, {})
    assert lines == ["one", "two"]
    assert take(file, known) == ([], known)
    write(file, "three\n")
    assert take(file, known)[0] == ["three"]


def test_a_line_that_is_being_written_waits(file):
    write(file, "one\ntw")
    lines, known = take(file, {})
    assert lines == ["one"]
    write(file, "o\n")
    assert take(file, known)[0] == ["two"]


def test_a_file_without_a_whole_line_is_nothing_yet(file):
    write(file, "on")
    assert take(file, {}) == ([], {})


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_begin(file):
    write(file, "one\n")
    _, known = take(f"{file}*", {})
    write(file, "two\n")
    file.rename(f"{file}.1")
    write(file, "three\n")
    lines, known = take(f"{file}*", known)
    assert lines == ["two", "three"]
    file.with_name("events.jsonl.1").rename(file.with_name("away"))
    lines, known = take(f"{file}*", known)
    assert lines == []
    file.with_name("away").rename(f"{file}.2")
    assert take(f"{file}*", known)[0] == []  # it was read before


def test_what_is_gone_for_long_is_forgotten(file):
    known = {}
    for number in range(MOST_GONE + 10):
        file.unlink(missing_ok=True)
        write(file, f"line {number}\n")
        lines, known = take(file, known)
        assert lines == [f"line {number}"]
    assert len(known) == MOST_GONE + 1
    file.unlink()
    write(file, f"line {MOST_GONE + 8}\n")
    assert take(file, known)[0] == []


@pytest.mark.parametrize("limit", [1, 5, 10, 14, 1000])
def test_a_limit_cuts_at_lines_and_nothing_is_lost(file, limit):
    expected = [f"line {number}" for number in range(20)]
    write(file, "".join(f"{line}\n" for line in expected))
    found, known = [], {}
    for _ in range(100):
        lines, known = take(file, known, limit)
        assert len("\n".join(lines)) < limit + len("line 19\n")
        found += lines
        if not lines:
            break
    assert found == expected


def test_pieces_for_several_readers_join(file):
    write(file, "".join(f"{'x' * (number % 7)}\n" for number in range(100)))
    (whole,), _ = new_ranges(find_files(str(file)), {}, 1 << 40)
    pieces = cut(whole, 20)
    assert len(pieces) > 5
    assert pieces[0].start == 0
    assert pieces[-1].end == whole.end
    assert all(before.end == after.start for before, after in itertools.pairwise(pieces))
    rows = [row for piece in pieces for batch in read_lines(piece, str(file)) for row in batch.to_pylist()]
    assert [row["line"] for row in rows] == [b"x" * (number % 7) for number in range(100)]
    content = file.read_bytes()
    assert all(content[row["position"] :].startswith(row["line"] + b"\n") for row in rows)


def test_a_batch_that_is_repeated_has_the_same_lines_though_the_file_was_rotated(file):
    write(file, "one\ntwo\n")
    reader = EventsStreamReader(f"{file}*", 1 << 40)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    file.rename(f"{file}.1")
    write(file, "three\n")
    (partition,) = reader.partitions(start, end)
    (batch,) = reader.read(partition)
    assert batch["line"].to_pylist() == [b"one", b"two"]


def test_a_file_that_is_rotated_between_plan_and_read_is_found_again(file):
    """Its name has another file by then, with as many bytes."""
    write(file, "one\ntwo\n")
    reader = EventsStreamReader(str(file), 1 << 40)  # a pattern that does not find what was rotated away
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    (partition,) = reader.partitions({}, end)
    file.rename(f"{file}.1")
    write(file, "red\nsky\n")
    (batch,) = reader.read(partition)
    assert batch["line"].to_pylist() == [b"one", b"two"]
    file.with_name("events.jsonl.1").unlink()
    with pytest.raises(Exception, match="bytes 0 to 8 of an event file are to be read and the file is gone"):
        list(reader.read(partition))


def test_a_copy_beside_it_does_not_turn_back_what_was_read(file):
    write(file, "one\ntwo\n")
    write(file.with_name("events.jsonl.bak"), "one\n")
    lines, known = take(f"{file}*", {})
    assert lines[:2] == ["one", "two"]
    assert take(f"{file}*", known)[0] == []


def test_a_file_that_went_before_it_was_read_is_an_error(file):
    write(file, "one\n")
    reader = EventsStreamReader(str(file), 1 << 40)
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    file.unlink()
    with pytest.raises(Exception, match="the file is gone from"):
        reader.partitions({}, end)


def test_available_now_ends_with_what_was_there(file):
    write(file, "one\n")
    reader = EventsStreamReader(str(file), 1 << 40)
    reader.prepareForTriggerAvailableNow()
    write(file, "two\n")
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert list(end.values()) == [4]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the option path is missing"),
        ({"path": "x", "colour": "red"}, "unknown option colour; there are path, maxBytesPerBatch"),
        ({"path": "x", "maxBytesPerBatch": "many"}, "maxBytesPerBatch is 'many'"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(UsageError, match=said):
        EventsSource(options).streamReader(EventsSource(options).schema())
