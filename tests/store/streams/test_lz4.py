"""What is written by hand, Arrow's own LZ4 reads."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.store.streams import lz4

codec = pa.Codec("lz4")


def unpacked(*blocks: lz4.Block) -> bytes:
    size = sum(block.size for block in blocks)
    return codec.decompress(b"".join(lz4.frame(blocks)), size).to_pybytes() if size else b""


@given(st.lists(st.binary(min_size=1, max_size=300) | st.builds(lambda n: b"x" * n, st.integers(1, 100_000))))
def test_a_frame_of_blocks_that_were_packed_one_by_one(pieces: list[bytes]) -> None:
    assert unpacked(*(lz4.pack(piece) for piece in pieces)) == b"".join(pieces)


@given(
    st.integers(1, 40).flatmap(
        lambda width: st.lists(
            st.tuples(st.binary(min_size=width, max_size=width), st.integers(1, 400)), min_size=1, max_size=8
        )
    )
)
def test_values_that_repeat(row: list[tuple[bytes, int]]) -> None:
    values, counts = zip(*row, strict=True)
    block = lz4.repeated(values, counts)
    if block is not None:
        assert unpacked(block) == b"".join(value * count for value, count in row)


@pytest.mark.parametrize("counts", [[5, 100], [100, 13], [30, 5, 30]])
def test_several_values_are_written_down_if_each_repeats_enough(counts: list[int]) -> None:
    values = [b"a", b"b", b"c"][: len(counts)]
    block = lz4.repeated(values, counts)
    assert block is not None
    assert unpacked(block) == b"".join(value * count for value, count in zip(values, counts, strict=True))


@pytest.mark.parametrize("width", [4, 8, 14, 15, 16, 269, 270, 271, 65_535])
@pytest.mark.parametrize("count", [20, 21, 64])
def test_lengths_that_need_more_bytes(width: int, count: int) -> None:
    value = bytes(n % 251 for n in range(width))
    block = lz4.repeated([value], [count])
    assert block is not None
    assert unpacked(block) == value * count
    assert len(block.data) < width + width * count // 200 + 20


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([b""], [100]),
        ([b"a"], [12]),
        ([b"x" * 65_535], [65]),
        ([b"x" * 65_536], [3]),
        ([b"ab", b"abc"], [50, 50]),
        ([b"ab", b"abc", b"cd"], [50, 50, 50]),
        ([b"ab", b"cd"], [1, 50]),
        ([b"a", b"b"], [4, 100]),  # a copy has at least four bytes
        ([b"a" * 11, b"b" * 11], [10, 2]),  # its last copy would begin less than twelve bytes before the end
        ([b"a", b"b"], [100, 12]),
    ],
)
def test_what_is_better_looked_for(values: list[bytes], counts: list[int]) -> None:
    assert lz4.repeated(values, counts) is None


def test_more_than_a_block_may_have() -> None:
    data = bytes(lz4.MOST_BYTES) + b"the end"
    blocks = [*lz4.pack_all(data)]
    assert [block.size for block in blocks] == [lz4.MOST_BYTES, 7]
    assert unpacked(*blocks) == data


def test_what_cannot_be_packed_is_kept_as_it_is() -> None:
    """Packed it would be larger, and a block of the largest size then larger than a frame may have."""
    noise = random.Random(5).randbytes(lz4.MOST_BYTES)
    block = lz4.pack(noise)
    assert (block.size, bytes(block.data), block.is_packed) == (len(noise), noise, False)
    assert unpacked(block) == noise
