"""A log that lost, repeated or mixed up something is found out."""

from tests.e2e.crash.books import Books, Stream
from tests.e2e.crash.logs import BY_PAHO, KIND, Record, expect, note
from tests.e2e.crash.roles import payload_of
from tests.e2e.crash.verdict import compare

ONE, TWO, PAHO = "crash/a/1", "crash/b/2", "crash/paho/2"


def books_with(*records: Record, acknowledged: int = 2) -> Books:
    books = Books()
    for stream in (Stream(ONE, 1), Stream(TWO, 2), Stream(PAHO, 2, is_doubtful=True), Stream("later/1", 1)):
        books.open(stream)
    for number in range(1, acknowledged + 1):
        books.send(ONE)
        books.acknowledge(ONE, number)
    books.send(TWO)
    books.send(PAHO)
    expect(books)
    note(books, records)
    return books


def record(offset: int, number: int, topic: str = ONE, partition: int = 0) -> Record:
    return Record(partition, offset, topic, payload_of(topic, number))


def test_a_whole_log_is_good() -> None:
    verdict = compare(books_with(record(0, 1), record(1, 2)))
    assert verdict.is_good, verdict.faults()
    assert verdict.row(KIND.format(1)).acknowledged == 2


def test_at_qos_1_what_was_sent_again_may_be_there_twice() -> None:
    row = compare(books_with(record(0, 1), record(1, 1), record(2, 2))).row(KIND.format(1))
    assert (row.is_good, row.duplicated) == (True, 1)


def test_at_qos_2_nothing_is_there_twice_acknowledged_or_not() -> None:
    whole = (record(0, 1), record(1, 2))
    row = compare(books_with(*whole, record(2, 1, TWO))).row(KIND.format(2))
    assert (row.is_good, row.duplicated) == (True, 0)
    row = compare(books_with(*whole, record(2, 1, TWO), record(3, 1, TWO))).row(KIND.format(2))
    assert (row.is_good, row.duplicated) == (False, 1)


def test_paho_may_send_a_message_anew() -> None:
    row = compare(books_with(record(0, 1, PAHO), record(1, 1, PAHO))).row(BY_PAHO)
    assert (row.is_good, row.duplicated) == (True, 1)


def test_a_missing_record_is_lost() -> None:
    assert compare(books_with(record(0, 1))).lost == 1


def test_a_repeated_offset_is_strange_and_a_gap_is_not() -> None:
    assert not books_with(record(0, 1), record(2, 2)).strange
    assert "offset 0 behind 0" in books_with(record(0, 1), record(0, 2)).strange[0]


def test_a_topic_has_one_partition_and_its_own_messages() -> None:
    books = books_with(record(0, 1), record(0, 2, partition=1))
    assert books.strange == [f"{ONE} is in partitions 0 and 1"]
    foreign = Record(0, 0, TWO, payload_of(ONE, 1))
    assert books_with(foreign).strange == [f"{TWO} has a message of {ONE}"]


def test_other_topics_are_not_expected() -> None:
    due = [audience.due_after for audience in books_with().audiences.values()]
    assert due == [{ONE: 0}, {TWO: 0}, {PAHO: 0}]
