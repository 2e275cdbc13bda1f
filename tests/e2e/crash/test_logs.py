"""A log that lost, repeated or mixed up something is found out."""

from tests.e2e.crash.books import Books, Stream
from tests.e2e.crash.logs import KIND, Record, expect, note
from tests.e2e.crash.roles import payload_of
from tests.e2e.crash.verdict import compare

ONE, TWO = "crash/a/1", "crash/b/2"


def books_with(*records: Record, acknowledged: int = 2) -> Books:
    books = Books()
    for stream in (Stream(ONE, 1), Stream(TWO, 2), Stream("later/1", 1)):
        books.open(stream)
    for number in range(1, acknowledged + 1):
        books.send(ONE)
        books.acknowledge(ONE, number)
    expect(books)
    note(books, records)
    return books


def record(offset: int, number: int, topic: str = ONE, partition: int = 0) -> Record:
    return Record(partition, offset, topic, payload_of(topic, number))


def test_a_whole_log_is_good() -> None:
    verdict = compare(books_with(record(0, 1), record(1, 2)))
    assert verdict.is_good, verdict.faults()
    assert verdict.row(KIND).acknowledged == 2


def test_what_was_sent_again_may_be_there_twice() -> None:
    row = compare(books_with(record(0, 1), record(1, 1), record(2, 2))).row(KIND)
    assert (row.is_good, row.duplicated) == (True, 1)


def test_a_missing_record_is_lost() -> None:
    assert compare(books_with(record(0, 1))).lost == 1


def test_a_gap_and_a_repeated_offset_are_strange() -> None:
    assert "offset 2 instead of 1" in books_with(record(0, 1), record(2, 2)).strange[0]
    assert "offset 0 instead of 1" in books_with(record(0, 1), record(0, 2)).strange[0]


def test_a_topic_has_one_partition_and_its_own_messages() -> None:
    books = books_with(record(0, 1), record(0, 2, partition=1))
    assert books.strange == [f"{ONE} is in partitions 0 and 1"]
    foreign = Record(0, 0, TWO, payload_of(ONE, 1))
    assert books_with(foreign).strange == [f"{TWO} has a message of {ONE}"]


def test_other_topics_are_not_expected() -> None:
    assert set(books_with().audiences["the stream"].due_after) == {ONE, TWO}
