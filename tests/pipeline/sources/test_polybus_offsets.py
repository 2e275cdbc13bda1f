"""What a batch reads and where it ends, without Spark and without a broker."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.pipeline.sources.options import OptionError
from polybus.pipeline.sources.polybus.offsets import (
    Facts,
    Held,
    Offset,
    Piece,
    as_offset,
    parse_positions,
    pieces,
    plan,
    share,
)

HELD = {0: Held(0, 100), 1: Held(0, 50)}
FACTS = Facts(HELD)


def one(first: int, next: int, id: str = "") -> Facts:
    return Facts({0: Held(first, next)}, id)


def test_an_offset_has_one_text() -> None:
    """Spark compares offsets as text: another order would be another offset."""
    assert json.dumps(as_offset({10: 1, 2: 3})) == json.dumps(as_offset({2: 3, 10: 1})) == '{"2": 3, "10": 1}'


def test_a_batch_goes_to_the_end() -> None:
    assert plan({"0": 10, "1": 0}, FACTS) == ({"0": 100, "1": 50}, ())


def test_nothing_new_is_the_same_offset() -> None:
    start = {"0": 100, "1": 50}
    assert json.dumps(plan(start, FACTS).offset) == json.dumps(start)


def test_a_limit_is_shared_by_what_there_is() -> None:
    assert plan({"0": 0, "1": 0}, FACTS, max_rows=30).offset == {"0": 20, "1": 10}


def test_a_target_is_not_passed() -> None:
    """AvailableNow: what comes later belongs to the next run, and so does a partition that comes later."""
    facts = Facts({**HELD, 2: Held(0, 7)})
    assert plan({"0": 10, "1": 0}, facts, until={"0": 60, "1": 50}).offset == {"0": 60, "1": 50, "2": 0}


def test_a_new_partition_begins_at_its_first_record() -> None:
    planned = plan({"0": 100}, FACTS)
    assert planned == ({"0": 100, "1": 50}, ())
    assert pieces({"0": 100}, planned.offset, FACTS) == ([Piece(1, 0, 50)], ())


def test_what_retention_dropped_is_told_and_counted() -> None:
    facts = one(40, 100)
    planned = plan({"0": 10, "skipped": 5}, facts)
    assert planned.offset == {"0": 100, "skipped": 35}
    assert planned.lost == ("offsets 10 to 39 of partition 0 were dropped by retention",)
    found, lost = pieces({"0": 10}, planned.offset, facts)
    assert found == [Piece(0, 40, 100)]
    assert "10 to 39" in lost[0]


def test_a_stream_that_was_begun_anew_is_told() -> None:
    planned = plan({"0": 500}, one(0, 20))
    assert planned.offset == {"0": 20}
    assert "begun anew" in planned.lost[0]
    assert pieces({"0": 500}, planned.offset, one(0, 20)) == ([Piece(0, 0, 20)], ())


def test_a_batch_of_the_checkpoint_that_is_not_there_is_told() -> None:
    found, lost = pieces({"0": 5}, {"0": 30}, one(0, 20))
    assert found == [Piece(0, 5, 20)]
    assert "offsets 20 to 29 of partition 0" in lost[0]


def test_a_partition_that_is_gone_is_told() -> None:
    assert "partition 1" in plan({"0": 5, "1": 5}, one(0, 20)).lost[0]
    found, lost = pieces({"0": 5, "1": 5}, {"0": 9, "1": 9}, one(0, 20))
    assert found == [Piece(0, 5, 9)]
    assert "partition 1" in lost[0]


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 1000), min_size=1), st.integers(1, 3000))
def test_a_share_is_never_too_much_and_never_nothing(available: dict[int, int], max_rows: int) -> None:
    taken = share(available, max_rows)
    assert sum(taken.values()) == min(sum(available.values()), max_rows)
    assert all(0 <= taken[each] <= available[each] for each in available)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.integers(1, 50), st.integers())
def test_batches_follow_one_another_without_gap_or_overlap(sizes: list[int], max_rows: int, seed: int) -> None:
    """However a stream grows meanwhile, the pieces of all batches are the stream."""
    chance = random.Random(seed)
    held = {partition: Held(0, 0) for partition in range(len(sizes))}
    offset = as_offset(dict.fromkeys(held, 0))
    read: dict[int, list[int]] = {partition: [] for partition in held}
    goal = sum(sizes)
    while sum(map(len, read.values())) < goal:
        held = {p: Held(0, min(each.next + chance.randrange(60), sizes[p])) for p, each in held.items()}
        end = plan(offset, Facts(held), max_rows=max_rows).offset
        for piece in pieces(offset, end, Facts(held))[0]:
            read[piece.partition] += range(piece.start, piece.end)
        offset = json.loads(json.dumps(end))
    assert read == {partition: list(range(size)) for partition, size in enumerate(sizes)}


def test_explicit_offsets() -> None:
    text = '{"0": 7, "1": "latest"}'
    assert parse_positions("startingOffsets", text, HELD) == {0: 7, 1: 50}
    assert parse_positions("startingOffsets", '{"0": "earliest", "1": 0}', HELD) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "earliest, latest"),
        ("[1]", "earliest, latest"),
        ('{"0": 1}', "every partition"),
        ('{"0": 1, "1": 1, "2": 1}', "every partition"),
        ('{"0": -1, "1": 1}', "partition 0"),
        ('{"0": 1, "1": true}', "partition 1"),
        ('{"0": 1, "1": "soon"}', "partition 1"),
    ],
)
def test_wrong_offsets_are_named(text: str, said: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets") as caught:
        parse_positions("startingOffsets", text, HELD)
    assert said in str(caught.value)


def test_a_stream_that_was_begun_anew_and_is_longer_by_now_is_told() -> None:
    """Its offsets go on where the old one's ended; its id is another."""
    new = one(0, 15, "new")
    start = plan({"0": 0}, one(0, 10, "old")).offset
    assert start == {"0": 10, "id": "old"}
    planned = plan(start, new)
    assert len(planned.lost) == 1
    assert "partition 0, which this query has read to offset 10, was deleted" in planned.lost[0]
    assert planned.offset == {"0": 15, "id": "new"}
    assert pieces(start, planned.offset, new) == ([Piece(0, 0, 15)], ())  # going on without what is lost
    assert plan(planned.offset, one(0, 20, "new")).lost == ()


def test_one_with_the_same_offsets_is_another_if_its_id_is() -> None:
    start = plan({"0": 0}, one(0, 10, "old")).offset
    planned = plan(start, one(0, 10, "new"))
    assert planned.lost
    assert planned.offset == {"0": 10, "id": "new"}


def test_retention_makes_no_new_stream() -> None:
    start = plan({"0": 0}, one(0, 10, "it")).offset
    assert plan(start, one(5, 20, "it")).lost == ()
    assert plan(start, one(5, 10, "it")).offset == start  # nothing new: the same text


def test_a_batch_of_a_stream_that_is_not_there_any_more_is_not_read_from_the_new_one() -> None:
    """It was planned, and the stream was begun anew before it was read."""
    found, lost = pieces({"0": 5, "id": "old"}, {"0": 10, "id": "old"}, one(0, 20, "new"))
    assert found == []
    assert lost == ("offsets 5 to 9 of partition 0 are not there any more",)


@pytest.mark.parametrize("before", [{"0": 10}, {"0": 10, "began": "0:0@1000"}])
def test_a_checkpoint_of_before_goes_on_and_knows_the_id_then(before: Offset) -> None:
    planned = plan(before, one(0, 15, "it"))
    assert planned == ({"0": 15, "id": "it"}, ())
    assert pieces(before, planned.offset, one(0, 15, "it")) == ([Piece(0, 10, 15)], ())
    assert plan({"0": 10, "id": "it"}, one(0, 15)).lost == ()  # an earlier bus
