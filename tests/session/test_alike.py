"""Columns find what looking at each packet would."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polybus.session.alike import FEW, MOST_COLUMNS, alike_until

few_bytes = st.sampled_from(b"ab\0").map(lambda byte: bytes([byte]))


def one_by_one(data: bytes, prefix: bytes, at: int, size: int, end: int, zero_at: int = 0) -> int:
    while at + size <= end and data.startswith(prefix, at) and not (zero_at and data[at + zero_at]):
        at += size
    return at


@given(
    head=st.lists(few_bytes, min_size=1, max_size=4).map(b"".join),
    tail=st.integers(0, 5),
    packets=st.integers(0, 20 * FEW),
    zero=st.booleans(),
    spoilt=st.lists(st.tuples(st.integers(0, 500), few_bytes), max_size=2),
    rest=st.binary(max_size=6),
    cut=st.integers(0, 12),
)
@example(head=b"a", tail=0, packets=3 * FEW, zero=False, spoilt=[], rest=b"", cut=0)
def test_any_packets(
    head: bytes, tail: int, packets: int, zero: bool, spoilt: list[tuple[int, bytes]], rest: bytes, cut: int
) -> None:
    size = len(head) + tail
    zero_at = size - 1 if zero and tail else 0
    data = bytearray()
    for number in range(packets):
        packet = bytearray(head + bytes(number % 3 for _ in range(tail)))
        if zero_at:
            packet[zero_at] = 0
        data += packet
    for at, byte in spoilt:
        if at < len(data):
            data[at] = byte[0]
    whole = bytes(data) + rest
    end = max(0, len(whole) - cut)
    assert alike_until(whole, head, 0, size, end, zero_at) == one_by_one(whole, head, 0, size, end, zero_at)


@pytest.mark.parametrize("bad", range(12 * FEW))
@pytest.mark.parametrize("column", range(3))
def test_the_first_that_differs_is_found_wherever_it_is(bad: int, column: int) -> None:
    data = bytearray(b"abc-" * (12 * FEW))
    data[4 * bad + column] ^= 1
    assert alike_until(bytes(data), b"abc", 0, 4, len(data)) == 4 * bad


class Watched(bytes):
    """Counts what is cut out of it."""

    cuts = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        self.cuts += 1
        return super().__getitem__(key)


@pytest.mark.parametrize(("prefix", "packets"), [(60_000, 4 * FEW), (MOST_COLUMNS + 1, 8000), (20, 4 * FEW)])
def test_a_long_prefix_or_few_packets_do_not_take_a_step_for_each_byte(prefix: int, packets: int) -> None:
    data = Watched((b"p" * prefix + b"x") * packets)
    assert alike_until(data, b"p" * prefix, 0, prefix + 1, len(data)) == len(data)
    assert data.cuts == 0


def test_many_packets_take_fewer_steps_than_there_are() -> None:
    data = Watched((b"p" * 20 + b"x") * 8000)
    assert alike_until(data, b"p" * 20, 0, 21, len(data)) == len(data)
    assert 0 < data.cuts < 400


@pytest.mark.parametrize("bad", range(4 * FEW))
def test_the_first_without_its_zero_is_found_wherever_it_is(bad: int) -> None:
    data = bytearray(b"--" + b"ab\0-" * (4 * FEW))
    data[2 + 4 * bad + 2] = 1
    assert alike_until(bytes(data), b"ab", 2, 4, len(data), 2) == 2 + 4 * bad
    assert alike_until(bytes(data), b"ab", 2, 4, len(data)) == len(data), "if nobody asks, it need not be there"
