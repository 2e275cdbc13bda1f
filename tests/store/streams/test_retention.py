"""What goes and what stays, decided on facts."""

from hypothesis import given
from hypothesis import strategies as st

from polybus.store.streams.retention import Retention, SegmentFacts, expired, must_roll

SECOND = 1_000_000


def facts(*times_s: int, partition: int = 0, size: int = 100) -> list[SegmentFacts]:
    return [SegmentFacts(partition, 10 * n, size, t * SECOND) for n, t in enumerate(times_s)]


def test_nothing_goes_without_limits() -> None:
    assert expired(facts(1, 2, 3), Retention(), 10**9 * SECOND) == []


def test_by_age_whole_segments_go_when_their_last_record_is_too_old() -> None:
    row = facts(10, 20, 30)
    assert expired(row, Retention(max_age_s=15), 35 * SECOND) == row[:1]
    assert expired(row, Retention(max_age_s=15), 35 * SECOND + 1) == row[:2]


def test_by_size_the_oldest_of_all_partitions_go_first() -> None:
    one, other = facts(10, 30), facts(20, 40, partition=1)
    assert expired(one + other, Retention(max_bytes=250), 0) == [one[0], other[0]]
    assert expired(one + other, Retention(max_bytes=400), 0) == []
    assert expired(one + other, Retention(max_bytes=0, max_age_s=0), 0) == []


def test_a_clock_that_was_set_back_leaves_no_hole_and_nothing_for_ever() -> None:
    row = facts(9_000_000, 10, 20)  # the first was written when the clock was wrong
    assert expired(row, Retention(max_age_s=5), 100 * SECOND) == row
    assert expired(row, Retention(max_bytes=200), 0) == row[:1]


segment_facts = st.builds(
    SegmentFacts, st.integers(0, 2), st.integers(0, 1000), st.integers(1, 50), st.integers(0, 100 * SECOND)
)


@given(
    st.lists(segment_facts, unique_by=lambda f: (f.partition, f.first)),
    st.builds(Retention, st.sampled_from([0.0, 10.0, 50.0]), st.sampled_from([0, 60, 200])),
    st.integers(0, 200 * SECOND),
)
def test_what_goes_is_the_oldest_of_its_partition_and_enough(
    segments: list[SegmentFacts], retention: Retention, now: int
) -> None:
    gone = expired(segments, retention, now)
    assert len(set(gone)) == len(gone)
    kept = [each for each in segments if each not in gone]
    for each in kept:
        assert all(other.first < each.first for other in gone if other.partition == each.partition)
    if retention.max_bytes:
        assert sum(each.size_bytes for each in kept) <= retention.max_bytes


def test_when_a_segment_is_full() -> None:
    def rolls(size: int = 0, batches: int = 1, age: float = 0.0, segment_age: float = 60.0) -> bool:
        return must_roll(size, batches, age, segment_bytes=1000, segment_age_s=segment_age, max_batches=50)

    assert not rolls(999, 49, 59.9)
    assert rolls(1000)
    assert rolls(batches=50)
    assert rolls(age=60.0)
    assert not rolls(age=1e9, segment_age=0.0)
    assert not rolls(5000, 0, 1e9), "an empty one has nothing to give up"
