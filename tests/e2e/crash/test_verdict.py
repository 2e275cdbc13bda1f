"""The comparison notices what is lost, doubled, out of order or made up, and nothing else."""

import pytest

from tests.e2e.crash.books import Audience, Books, Stream
from tests.e2e.crash.verdict import RETAINED, SESSIONS, Row, compare, disordered


def books_with(
    arrived: list[int], *, qos: int = 2, sub_qos: int = 2, acknowledged: int = 5, sent: int = 5, **options: bool
) -> Books:
    """One publisher, one subscriber, numbers from 1."""
    books = Books()
    books.open(Stream("t", qos))
    books.admit(Audience("s", sub_qos, **options)).due_after["t"] = 0
    for _ in range(sent):
        books.send("t")
    for number in range(1, acknowledged + 1):
        books.acknowledge("t", number)
    for number in arrived:
        books.arrive("s", "t", number)
    return books


def only_row(books: Books) -> Row:
    (row,) = compare(books).rows
    return row


def test_all_is_well_when_everything_came_once_in_order() -> None:
    books = books_with([1, 2, 3, 4, 5])
    row = only_row(books)
    assert (row.kind, row.acknowledged, row.lost, row.duplicated, row.wrong) == ("QoS 2 messages", 5, 0, 0, 0)
    assert compare(books).is_good
    assert books.is_settled()


def test_a_lost_message_is_noticed() -> None:
    books = books_with([1, 2, 4, 5])
    assert not books.is_settled()
    verdict = compare(books)
    assert not verdict.is_good
    assert (verdict.lost, verdict.rows[0].wrong) == (1, 0)
    assert verdict.faults() == ["QoS 2 messages, t → s lost: 3"]


def test_what_was_not_acknowledged_may_come_or_not() -> None:
    for arrived in ([1, 2, 3], [1, 2, 3, 4, 5]):
        assert compare(books_with(arrived, acknowledged=3)).is_good


@pytest.mark.parametrize(("qos", "sub_qos", "is_good"), [(2, 2, False), (1, 2, True), (2, 1, True)])
def test_a_doubled_message_is_noticed_and_forbidden_at_qos_2(qos: int, sub_qos: int, is_good: bool) -> None:
    books = books_with([1, 2, 3, 2, 3, 4, 5], qos=qos, sub_qos=sub_qos)
    row = only_row(books)
    assert (row.duplicated, row.lost, row.wrong) == (2, 0, 0)
    assert compare(books).is_good is is_good
    assert row.kind == f"QoS {min(qos, sub_qos)} messages"


@pytest.mark.parametrize(
    ("arrived", "late"),
    [
        ([1, 2, 3], []),
        ([1, 3, 2], [2]),
        ([1, 2, 1, 2, 3], []),
        ([1, 2, 4, 1, 2, 3, 4], [3]),
        ([5, 1, 2], [1, 2]),
    ],
    ids=["in order", "swapped", "sent again", "one slipped behind", "far ahead"],
)
def test_the_first_arrival_of_each_counts_for_the_order(arrived: list[int], late: list[int]) -> None:
    assert disordered(arrived) == late


def test_disorder_is_wrong_unless_the_audience_shares() -> None:
    assert only_row(books_with([2, 1, 3, 4, 5])).wrong == 1
    assert only_row(books_with([2, 1, 3, 4, 5], is_ordered=False)).wrong == 0


def test_a_message_that_nobody_sent_is_wrong() -> None:
    assert compare(books_with([1, 2, 3, 4, 5, 6])).faults() == ["QoS 2 messages, t → s never sent: 6"]


def test_a_later_subscription_is_due_what_is_sent_after_it() -> None:
    books = books_with([4, 5])
    books.audiences["s"].due_after["t"] = 3
    assert only_row(books).acknowledged == 2
    assert compare(books).is_good
    books.audiences["s"].due_after["t"] = 2
    assert compare(books).faults() == ["QoS 2 messages, t → s lost: 3"]


def test_nothing_may_come_after_the_end_of_a_subscription() -> None:
    books = books_with([1, 2, 3])
    audience = books.audiences["s"]
    del audience.due_after["t"]
    audience.none_after["t"] = 3
    assert compare(books).is_good
    books.arrive("s", "t", 4)
    assert "came after the end of its subscription: 4" in compare(books).faults()[0]


def test_a_publisher_that_is_not_to_be_trusted_may_repeat_at_qos_2() -> None:
    books = books_with([1, 2, 2, 3, 4, 5])
    assert not compare(books).is_good
    books.open(Stream("t", 2, kind="QoS 2 sent by someone", is_doubtful=True))
    assert (compare(books).is_good, only_row(books).duplicated) == (True, 1)


def test_kinds_of_their_own_have_their_own_line() -> None:
    books = books_with([1, 2, 3, 4, 5])
    books.open(Stream("t", 1, kind="stored messages"))
    assert only_row(books).kind == "stored messages"


# Values 1 to 4 were sent, and 3 was a deletion.
@pytest.mark.parametrize(
    ("seen", "acknowledged", "expected"),
    [
        (4, 4, "good"),
        (4, 2, "good"),
        (None, 2, "good"),
        (None, 3, "good"),
        (None, 0, "good"),
        (1, 0, "good"),
        (None, 4, "lost"),
        (2, 4, "lost"),
        (1, 2, "lost"),
        (3, 3, "wrong"),
        (5, 4, "wrong"),
    ],
)
def test_a_retained_value_is_the_last_acknowledged_or_newer(
    seen: int | None, acknowledged: int, expected: str
) -> None:
    books = Books()
    for number in range(1, 5):
        assert books.set_value("t", is_deletion=number == 3) == number
    books.see_value("t", seen, acknowledged)
    row = compare(books).row(RETAINED)
    found = {(0, 0): "good", (1, 0): "lost", (0, 1): "wrong"}[row.lost, row.wrong]
    assert found == expected
    assert row.is_good is (expected == "good")


ANSWERED, TIMED_OUT = ("answered", b"42"), ("timed-out", b"")


@pytest.mark.parametrize(
    ("qos", "ends", "figures", "is_good"),
    [
        (1, [ANSWERED], (0, 0, 0), True),
        (2, [], (1, 0, 0), False),
        (None, [], (1, 0, 0), False),
        (2, [ANSWERED, ANSWERED], (0, 1, 0), False),
        (1, [ANSWERED, ANSWERED], (0, 1, 0), True),
        (None, [ANSWERED, ANSWERED], (0, 1, 0), True),
        (1, [ANSWERED, TIMED_OUT], (0, 1, 1), False),
        (1, [TIMED_OUT], (0, 0, 1), False),
    ],
)
def test_a_request_ends_once(
    qos: int | None, ends: list[tuple[str, bytes]], figures: tuple[int, int, int], is_good: bool
) -> None:
    books = Books()
    books.ask("r", qos, ANSWERED)
    if qos is not None:
        books.acknowledge_request("r")
    for status, payload in ends:
        books.end("r", status, payload)
    row = only_row(books)
    assert (row.lost, row.duplicated, row.wrong) == figures
    assert row.acknowledged == 1
    assert row.is_good is is_good
    assert books.is_settled() is bool(ends)


def test_a_request_that_was_not_acknowledged_need_not_end() -> None:
    books = Books()
    books.ask("r", 1, ANSWERED)
    assert (only_row(books).acknowledged, compare(books).is_good, books.is_settled()) == (0, True, True)


def test_the_end_of_no_request_is_strange() -> None:
    books = Books()
    books.end("nobody", *ANSWERED)
    assert not compare(books).is_good
    assert "nobody" in compare(books).faults()[0]


def test_a_forgotten_session_is_a_loss() -> None:
    books = Books()
    books.resume("a", is_present=True)
    books.resume("a", is_present=False)
    row = compare(books).row(SESSIONS)
    assert (row.acknowledged, row.lost) == (2, 1)
    assert row.faults() == ["sessions, forgotten: a"]


def test_the_table_has_all_figures() -> None:
    verdict = compare(books_with([1, 2, 2, 4], qos=1))
    assert verdict.text().splitlines()[1].split() == ["QoS", "1", "messages", "5", "2", "1", "0", "BAD"]
    assert verdict.table("x").row_count == 1


def test_only_the_first_faults_of_many_are_shown() -> None:
    books = books_with([], sent=20, acknowledged=20)
    for number in range(15):
        books.admit(Audience(f"s{number}", 2)).due_after["t"] = 0
    faults = compare(books).faults()
    assert faults[-1] == "and 6 more of this kind"
    assert faults[0].endswith("1, 2, 3, 4, 5, 6, 7, 8 and 12 more")
