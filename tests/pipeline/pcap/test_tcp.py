"""Reassembly: what was said, whatever happened to the packets on the way."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.pipeline.transforms.tcp import (
    ACK,
    FIN,
    IN_RESET,
    LOST,
    OUTSIDE,
    RST,
    SNAPPED,
    SYN,
    Coverage,
    Gap,
    Kind,
    Segments,
    Stream,
    contiguous,
    reassemble,
    split_connections,
)

Segment = tuple[int, int, bytes]
"""Sequence number, flags, payload."""


def read(segments: list[Segment], lengths: list[int] | None = None) -> tuple[Stream, list[tuple[int, bytes]]]:
    payload = [data for _, _, data in segments]
    stream = reassemble(
        Segments(
            np.array([seq % (1 << 32) for seq, _, _ in segments], np.int64),
            np.array([flags for _, flags, _ in segments], np.int64),
            np.array(lengths or [len(data) for data in payload], np.int64),
            payload,
        )
    )
    return stream, contiguous(stream, payload)


def test_in_order() -> None:
    stream, runs = read(
        [(99, SYN, b""), (100, ACK, b"abc"), (103, ACK, b""), (103, ACK, b"de"), (105, FIN | ACK, b"")]
    )
    assert runs == [(0, b"abcde")]
    assert (stream.has_start, stream.has_end, stream.was_reset) == (True, True, False)
    assert list(stream.kinds) == [Kind.EMPTY, Kind.NEW, Kind.EMPTY, Kind.NEW, Kind.EMPTY]
    assert (stream.sent_bytes, stream.duplicate_bytes, stream.gaps) == (5, 0, [])


def test_out_of_order_again_and_overlapping() -> None:
    stream, runs = read(
        [
            (99, SYN, b""),
            (103, 0, b"def"),
            (100, 0, b"abc"),
            (100, 0, b"abc"),
            (102, 0, b"cdefgh"),
            (101, 0, b"bc"),
        ]
    )
    assert runs == [(0, b"abcdefgh")]
    assert list(stream.kinds[1:]) == [
        Kind.NEW,
        Kind.OUT_OF_ORDER,
        Kind.RETRANSMISSION,
        Kind.PARTLY_AGAIN,
        Kind.RETRANSMISSION,
    ]
    assert stream.sent_bytes == 3 + 3 + 3 + 6 + 2
    assert stream.duplicate_bytes == 3 + 4 + 2
    assert stream.conflict_bytes == 0


def test_what_comes_first_counts_and_what_differs_is_counted() -> None:
    stream, runs = read([(99, SYN, b""), (100, 0, b"abcd"), (102, 0, b"XdYZ")])
    assert runs == [(0, b"abcdYZ")]
    assert (stream.duplicate_bytes, stream.conflict_bytes) == (2, 1)


def test_a_retransmission_that_fills_several_holes() -> None:
    stream, runs = read([(99, SYN, b""), (101, 0, b"b"), (103, 0, b"d"), (100, 0, b"abcde")])
    assert runs == [(0, b"abcde")]
    assert stream.kinds[3] == Kind.PARTLY_AGAIN
    assert stream.duplicate_bytes == 2


def test_missing_bytes_are_gaps() -> None:
    stream, runs = read([(99, SYN, b""), (103, 0, b"de"), (110, 0, b"k")])
    assert runs == [(3, b"de"), (10, b"k")]
    assert stream.gaps == [Gap(0, 3, LOST), Gap(5, 10, LOST)]


def test_the_snap_length_leaves_gaps_of_its_own() -> None:
    stream, runs = read([(99, SYN, b""), (100, 0, b"ab"), (104, 0, b"ef"), (110, 0, b"")], [0, 4, 4, 5])
    assert runs == [(0, b"ab"), (4, b"ef")]
    assert stream.gaps == [Gap(2, 4, SNAPPED), Gap(6, 8, SNAPPED), Gap(8, 10, LOST), Gap(10, 15, SNAPPED)]
    assert list(stream.kinds) == [Kind.EMPTY, Kind.NEW, Kind.NEW, Kind.NEW]


def test_retransmissions_are_known_even_without_payload() -> None:
    stream, _ = read([(100, 0, b""), (104, 0, b""), (100, 0, b"")], [4, 4, 4])
    assert list(stream.kinds) == [Kind.NEW, Kind.NEW, Kind.RETRANSMISSION]


def test_a_capture_that_begins_later_counts_from_its_first_byte() -> None:
    stream, runs = read([(5000, ACK, b"cd"), (4998, ACK, b"ab"), (5002, ACK, b"ef")])
    assert not stream.has_start
    assert runs == [(0, b"abcdef")]


def test_sequence_numbers_wrap() -> None:
    top = 1 << 32
    stream, runs = read(
        [(top - 4, SYN, b""), (top - 3, 0, b"abc"), (top + 2, 0, b"fg"), (top, 0, b"de"), (top - 3, 0, b"abcd")]
    )
    assert runs == [(0, b"abcdefg")]
    assert list(stream.kinds[1:]) == [Kind.NEW, Kind.NEW, Kind.OUT_OF_ORDER, Kind.RETRANSMISSION]


def test_keep_alives_are_no_retransmissions() -> None:
    stream, runs = read([(99, SYN, b""), (100, 0, b"abc"), (102, ACK, b""), (102, ACK, b"\0"), (103, 0, b"d")])
    assert runs == [(0, b"abcd")]
    assert list(stream.kinds[2:]) == [Kind.KEEP_ALIVE, Kind.KEEP_ALIVE, Kind.NEW]


def test_data_in_a_syn_follows_it() -> None:
    _, runs = read([(99, SYN, b"abc"), (103, 0, b"d")])
    assert runs == [(0, b"abcd")]


def test_a_syn_sent_again_changes_nothing() -> None:
    stream, runs = read(
        [(99, SYN, b""), (99, SYN, b""), (100, 0, b"ab"), (102, FIN, b""), (102, FIN, b""), (103, ACK, b"")]
    )
    assert runs == [(0, b"ab")]
    assert [kind == Kind.RETRANSMISSION for kind in stream.kinds] == [False, True, False, False, True, False]


def test_a_reset_ends_the_stream_whatever_its_number() -> None:
    stream, runs = read([(99, SYN, b""), (100, 0, b"abc"), (0, RST, b""), (103, 0, b"d"), (7, RST, b"bye")])
    assert stream.was_reset
    assert runs == [(0, b"abcd")]
    assert stream.ignored == [(4, IN_RESET)]


def test_bytes_from_another_time_are_left_out() -> None:
    stream, runs = read([(99, SYN, b""), (100, 0, b"abc"), (100 + (1 << 30) + 500, 0, b"old"), (103, 0, b"d")])
    assert runs == [(0, b"abcd")]
    assert stream.ignored == [(2, OUTSIDE)]
    assert stream.gaps == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30))
def test_coverage_equals_a_set(parts: list[tuple[int, int]]) -> None:
    coverage, seen = Coverage(), set[int]()
    for start, length in parts:
        positions = set(range(start, start + length))
        fresh = {at for a, b in coverage.add(start, start + length) for at in range(a, b)}
        assert fresh == positions - seen
        seen |= positions
        intervals = coverage.intervals()
        assert {at for a, b in intervals for at in range(a, b)} == seen
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(intervals))


@given(
    data=st.binary(min_size=1, max_size=400),
    isn=st.integers(0, (1 << 32) - 1) | st.integers((1 << 32) - 300, (1 << 32) - 1),
    seed=st.integers(0, 10_000),
    loss=st.sampled_from([0.0, 0.0, 0.3]),
)
def test_a_terrible_network_changes_nothing_but_what_it_loses(
    data: bytes, isn: int, seed: int, loss: float
) -> None:
    """Cut, sent again in other cuts, reordered, duplicated, lost: every byte that came is where it was."""
    rng = random.Random(seed)
    segments: list[Segment] = []
    for _ in range(2):
        at = 0
        while at < len(data):
            size = rng.randint(1, 60)
            if rng.random() >= loss:
                segments.append((isn + 1 + at, ACK, data[at : at + size]))
            at += size
    rng.shuffle(segments)
    stream, runs = read([(isn, SYN, b""), *segments])
    came = {at - isn - 1 + i for at, _, payload in segments for i in range(len(payload))}
    assert {start + i: byte for start, run in runs for i, byte in enumerate(run)} == {
        at: data[at] for at in came
    }
    last = max(came, default=-1) + 1
    missing = {at for gap in stream.gaps for at in range(gap.start, gap.stop)}
    assert missing == set(range(last)) - came
    assert stream.sent_bytes == sum(len(payload) for _, _, payload in segments)
    assert stream.sent_bytes - stream.duplicate_bytes == len(came)
    assert stream.conflict_bytes == 0


def split(packets: list[tuple[bool, int, int]]) -> list[int]:
    """(from the first side?, flags, sequence number) of each packet -> connection of each."""
    return list(
        split_connections(
            np.array([seq for _, _, seq in packets], np.int64),
            np.array([flags for _, flags, _ in packets], np.int64),
            np.array([forward for forward, _, _ in packets], np.bool_),
        )
    )


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        ([(True, SYN, 5), (False, SYN | ACK, 9), (True, ACK, 6)], [0, 0, 0]),
        ([(True, SYN, 5), (True, SYN, 5), (False, SYN | ACK, 9), (False, SYN | ACK, 9)], [0, 0, 0, 0]),
        (
            [(True, SYN, 5), (False, SYN | ACK, 9), (True, FIN, 6), (True, SYN, 70), (False, SYN | ACK, 80)],
            [0, 0, 0, 1, 1],
        ),
        # the capture began in the middle
        ([(True, ACK, 5), (False, ACK, 9), (True, SYN, 70), (False, SYN | ACK, 80)], [0, 0, 1, 1]),
        # the SYN itself is not in the capture
        ([(False, SYN | ACK, 9), (True, ACK, 6)], [0, 0]),
        # both open at once
        ([(True, SYN, 5), (False, SYN, 9), (True, SYN | ACK, 5), (False, SYN | ACK, 9)], [0, 0, 0, 0]),
        # the other side opens next
        ([(True, SYN, 5), (False, SYN | ACK, 9), (False, SYN, 70), (True, SYN | ACK, 80)], [0, 0, 1, 1]),
    ],
)
def test_ports_that_are_used_again(packets: list[tuple[bool, int, int]], expected: list[int]) -> None:
    assert split(packets) == expected
