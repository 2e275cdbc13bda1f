"""The segment file as bytes: cut anywhere, flipped anywhere, read by pyarrow alone."""

import io

import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.store.streams.format import (
    END_OF_STREAM,
    SCHEMA_BYTES,
    Batch,
    NotASegment,
    check_schema,
    decode_index,
    encode_index,
    find,
    scan,
)
from tests.store.streams.records import batch, message, segment


def test_pyarrow_alone_reads_a_segment() -> None:
    table = pyarrow.ipc.open_stream(io.BytesIO(segment(3, 2))).read_all()
    assert table.column("offset").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("payload").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_scan_finds_every_batch_with_its_facts() -> None:
    data = segment(3, 2, 1, first=40)
    found = scan(data)
    assert [(b.first, b.rows, b.min_time, b.max_time) for b in found.batches] == [
        (40, 3, 1_000_040, 1_000_040),
        (43, 2, 1_000_043, 1_000_043),
        (45, 1, 1_000_045, 1_000_045),
    ]
    assert found.end == len(data)
    assert not found.damages
    assert not found.is_cut
    assert not found.is_sealed


def test_a_segment_cut_at_every_byte_of_its_last_batch_keeps_those_before() -> None:
    data = segment(3, 2, 4)
    whole = scan(data)
    for size in range(whole.batches[1].end + 1, len(data)):
        found = scan(data[:size])
        assert found.batches == whole.batches[:2], size
        assert found.end == whole.batches[1].end, size
        assert found.is_cut, size
        assert not found.damages, size
    assert scan(data[: whole.batches[1].end]) == whole._replace(
        batches=whole.batches[:2], end=whole.batches[1].end
    )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_flipped_bit_is_reported_and_its_batch_never_found(which: int) -> None:
    data = segment(2, 1, 2)
    whole = scan(data)
    victim = whole.batches[which]
    others = tuple(b for b in whole.batches if b is not victim)
    for at in range(victim.at, victim.end):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            found = scan(bytes(flipped))
            assert found.batches == others, (at, bit)
            assert [(d.at, d.end) for d in found.damages] == [(victim.at, victim.end)], (at, bit)
            assert not found.is_cut, (at, bit)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"precious notes",
        b"\xff\xff\xff\xff",
        SCHEMA_BYTES[:-1],
        bytes(4096),
        pa.schema([("offset", pa.int64())]).serialize().to_pybytes(),
    ],
)
def test_what_is_not_ours_is_refused(data: bytes) -> None:
    with pytest.raises(NotASegment):
        check_schema(data)


def test_offsets_that_go_back_are_damage() -> None:
    data = SCHEMA_BYTES + message(0, [b"a", b"b"]) + message(1, [b"again"])
    found = scan(data)
    assert [b.first for b in found.batches] == [0]
    assert "offsets" in found.damages[0].reason


def test_a_full_segment_carries_its_index_and_stays_readable() -> None:
    data = segment(3, 2)
    batches = scan(data).batches
    full = data + encode_index(batches)
    assert scan(full) == scan(data)._replace(is_sealed=True)
    assert decode_index(full) == batches
    assert pyarrow.ipc.open_stream(io.BytesIO(full)).read_all().num_rows == 5
    for at in range(len(data) + len(END_OF_STREAM), len(full)):
        flipped = bytearray(full)
        flipped[at] ^= 1
        assert decode_index(bytes(flipped)) != batches or at >= len(full) - 16, at


@pytest.mark.parametrize(("offset", "expected"), [(0, 0), (9, 0), (10, 1), (14, 1), (15, 2), (20, 2), (25, 3)])
def test_the_batch_of_an_offset_or_the_next_one(offset: int, expected: int) -> None:
    batches = [Batch(0, 0, 1, 10, 0, 0), Batch(10, 1, 1, 5, 0, 0), Batch(20, 2, 1, 5, 0, 0)]
    assert find(batches, offset) == expected


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=5), st.data())
def test_whatever_is_written_is_found_however_it_is_cut(groups: list[list[bytes]], data: st.DataObject) -> None:
    written = SCHEMA_BYTES
    first = 0
    ends = [len(written)]
    for group in groups:
        written += message(first, group)
        first += len(group)
        ends.append(len(written))
    size = data.draw(st.integers(len(SCHEMA_BYTES), len(written)))
    found = scan(written[:size])
    assert found.end == max(end for end in ends if end <= size)
    assert found.is_cut == (size not in ends)
    kept = [group for group, end in zip(groups, ends[1:], strict=True) if end <= size]
    table = pyarrow.ipc.open_stream(io.BytesIO(written[: found.end])).read_all()
    assert table.column("payload").to_pylist() == [payload for group in kept for payload in group]


@given(st.binary(max_size=300))
def test_garbage_behind_good_batches_costs_nothing_of_them(garbage: bytes) -> None:
    data = segment(2, 1)
    assert scan(data + garbage).batches[:2] == scan(data).batches


def test_a_batch_of_every_compression_can_be_read() -> None:
    from polybus.store.streams.format import encode_batch

    for compression in ("none", "lz4", "zstd"):
        data = SCHEMA_BYTES + b"".join(encode_batch(batch(7, [b"x" * 500] * 30), compression)[1])  # type: ignore[arg-type]
        assert scan(data).batches[0].next == 37
        assert (
            pyarrow.ipc.open_stream(io.BytesIO(data)).read_all().column("payload").to_pylist()
            == [b"x" * 500] * 30
        )
