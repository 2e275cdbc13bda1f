"""Finding records: formats, byte orders, ranges, and files that are cut short or damaged (PL-02, PL-04)."""

import bz2
import lzma
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polybus.pipeline.sources.pcap.batches import read_batches
from polybus.pipeline.sources.pcap.walk import cuts
from tests.pipeline.pcap.captures import (
    ETHERNET,
    RAW,
    START_NS,
    Packet,
    block,
    enhanced,
    ethernet,
    interface,
    ipv4,
    obsolete,
    pcap,
    record,
    rows,
    section,
    simple,
    table,
    udp,
)

ORDERS = ["<", ">"]


def some(count: int, size: int = 30) -> list[Packet]:
    return [
        Packet(
            ethernet(ipv4(udp(bytes([65 + i % 26]) * (size + i % 7), sport=1000 + i), 17)),
            START_NS + i * 1_001_001,
        )
        for i in range(count)
    ]


def ports(data: bytes) -> list[int]:
    return [row["src_port"] for row in rows(data) if row["number"] is not None]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("exponent", [6, 9])
def test_classic_files_of_both_orders_and_resolutions(order: str, exponent: int) -> None:
    packets = some(5)
    found = rows(pcap(packets, order=order, exponent=exponent))
    step = 10 ** (9 - exponent)
    assert [row["time_ns"] for row in found] == [p.time_ns // step * step for p in packets]
    assert [row["number"] for row in found] == [1, 2, 3, 4, 5]
    assert [row["src_port"] for row in found] == [1000, 1001, 1002, 1003, 1004]
    assert [row["captured_length"] for row in found] == [len(p.data) for p in packets]
    assert [row["error"] for row in found] == [None] * 5


@pytest.mark.parametrize("order", ORDERS)
def test_every_kind_of_packet_block(order: str) -> None:
    first, second, third = some(3)
    data = section(order) + interface(order=order)
    data += enhanced(first, order=order) + simple(second, order=order) + obsolete(third, order=order)
    found = rows(data)
    assert [row["src_port"] for row in found] == [1000, 1001, 1002]
    assert [row["time_ns"] for row in found] == [
        first.time_ns // 1000 * 1000,
        None,
        third.time_ns // 1000 * 1000,
    ]
    assert [row["error"] for row in found] == [None] * 3


@pytest.mark.parametrize(
    ("resolution", "offset_s", "ticks", "expected_ns"),
    [
        (None, 0, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
        (9, 0, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (3, 0, 1_700_000_000_123, 1_700_000_000_123_000_000),
        (0, 0, 1_700_000_000, 1_700_000_000_000_000_000),
        (12, 0, 1_700_000_000_123_456, 1_700_000_000_123),
        (0x80 | 10, 0, 1_700_000_000 << 10 | 512, 1_700_000_000_500_000_000),
        (0x80 | 32, 0, 1_700_000_000 << 32 | 1 << 31, 1_700_000_000_500_000_000),
        (6, 1_000_000_000, 700_000_000_000_001, 1_700_000_000_000_001_000),
        (6, -50, 60_000_000, 10_000_000_000),
    ],
)
def test_resolutions_and_offsets_of_interfaces(
    resolution: int | None, offset_s: int, ticks: int, expected_ns: int
) -> None:
    (packet,) = some(1)
    data = section() + interface(resolution=resolution, offset_s=offset_s) + enhanced(packet, ticks=ticks)
    assert rows(data)[0]["time_ns"] == expected_ns


def test_a_time_stamp_out_of_range_is_named() -> None:
    (packet,) = some(1)
    (row,) = rows(section() + interface(resolution=0) + enhanced(packet, ticks=1 << 60))
    assert row["time_ns"] is None
    assert row["time"] is None
    assert row["error"] == "the time stamp is out of range"
    assert row["src_port"] == 1000


def test_sections_of_different_orders_and_several_interfaces() -> None:
    a, b, c, d = some(4)
    raw = Packet(ipv4(udp(sport=77), 17), interface=1)
    data = section("<") + interface() + enhanced(a) + interface(RAW) + enhanced(raw)
    data += section(">") + interface(order=">") + enhanced(b, order=">")
    data += section(">") + interface(RAW, order=">") + interface(order=">")
    data += enhanced(Packet(c.data, c.time_ns, None, 1), order=">")
    data += block(0x1234, b"whatever it is", ">") + enhanced(Packet(d.data, d.time_ns, None, 7), order=">")
    found = rows(data)
    assert [row["src_port"] for row in found[:-1]] == [1000, 77, 1001, 1002]
    assert [row["link_type"] for row in found] == [ETHERNET, RAW, ETHERNET, ETHERNET, None]
    assert [row["interface"] for row in found] == [0, 1, 0, 1, 7]
    assert found[-1]["error"] == "no block describes the interface"
    assert found[-1]["payload"] == d.data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"\xd4\xc3\xb2\xa1\x02", "ends inside its header: 5 of 24 bytes"),
        (b"GIF89a and so on", "neither pcap nor pcapng"),
        (b"\x1f\x8b\x08\x00", "compressed with gzip"),
        (lzma.compress(b""), "compressed with xz"),
        (bz2.compress(b""), "compressed with bzip2"),
        (struct.pack("<IHHiIII", 0xA1B2CD34, 2, 4, 0, 0, 65535, 1), "modified kind"),
        (b"\x0a\x0d\x0d\x0a" + bytes(24), "no byte-order magic"),
    ],
)
def test_what_is_no_capture_gives_a_row_that_says_so(data: bytes, reason: str) -> None:
    (row,) = rows(data)
    assert row["number"] is None
    assert reason in row["error"]
    assert row["captured_length"] == len(data)


def ng(packets: list[Packet], order: str = "<") -> bytes:
    return section(order) + interface(order=order) + b"".join(enhanced(p, order=order) for p in packets)


@pytest.mark.parametrize("make", [pcap, ng])
def test_a_file_cut_at_any_byte_gives_what_is_whole_and_says_what_is_not(make) -> None:  # type: ignore[no-untyped-def]
    packets = some(4, 10)
    data = make(packets)
    ends = [len(make(packets[:count])) for count in range(5)]
    for size in range(ends[0], len(data)):
        found = rows(data[:size])
        whole = sum(end <= size for end in ends) - 1
        numbered = [row for row in found if row["number"] is not None]
        assert [row["src_port"] for row in numbered] == [1000 + i for i in range(whole)], size
        damage = [row for row in found if row["number"] is None]
        if size in ends:
            assert not damage
        else:
            assert len(damage) == 1
            assert damage[0]["file_offset"] == ends[whole]
            assert damage[0]["captured_length"] == size - ends[whole]
            assert "the file ends inside" in damage[0]["error"]


@pytest.mark.parametrize("order", ORDERS)
def test_after_a_damaged_header_reading_goes_on(order: str) -> None:
    packets = some(20)
    data = bytearray(pcap(packets, order=order))
    at = len(pcap(packets[:7], order=order))
    data[at : at + 16] = b"\xff" * 16
    found = rows(bytes(data))
    assert [row["src_port"] for row in found] == [*range(1000, 1007), None, *range(1008, 1020)]
    assert [row["number"] for row in found] == [*range(1, 8), None, *range(8, 20)]
    damage = found[7]
    assert damage["file_offset"] == at
    assert damage["file_offset"] + damage["captured_length"] == len(pcap(packets[:8], order=order))
    assert "4294967295 of 4294967295 bytes were captured" in damage["error"]


def test_a_length_that_leads_astray_is_found_out() -> None:
    packets = some(30)
    data = bytearray(pcap(packets))
    at = len(pcap(packets[:7]))
    struct.pack_into("<I", data, at + 8, 500)  # beyond its original length, into the middle of another packet
    found = rows(bytes(data))
    numbered = [row["src_port"] for row in found if row["number"] is not None]
    assert numbered == [*range(1000, 1007), *range(1008, 1030)]
    (damage,) = [row for row in found if row["number"] is None]
    assert damage["file_offset"] == at


def test_holes_of_zeros_are_damage_and_not_empty_packets() -> None:
    packets = some(12)
    data = pcap(packets[:5]) + bytes(100_000) + b"".join(record(p) for p in packets[5:])
    found = rows(data)
    assert [row["src_port"] for row in found] == [*range(1000, 1005), None, *range(1005, 1012)]
    assert found[5]["captured_length"] == 100_000


def test_a_damaged_block_costs_no_other() -> None:
    packets = some(12)
    data = bytearray(ng(packets))
    at = len(ng(packets[:5]))
    data[at + 4 : at + 8] = b"\xff\xff\xff\x7f"
    found = rows(bytes(data))
    assert [row["src_port"] for row in found] == [*range(1000, 1005), None, *range(1006, 1012)]
    data = bytearray(ng(packets))
    data[at - 2] ^= 0x55  # the length at the end of a block
    found = rows(bytes(data))
    assert [row["src_port"] for row in found] == [*range(1000, 1004), None, *range(1005, 1012)]
    assert "by its beginning" in found[4]["error"]


def test_a_captured_length_that_does_not_fit_its_block_is_named() -> None:
    (packet,) = some(1)
    data = bytearray(ng([packet]))
    struct.pack_into("<I", data, len(data) - len(enhanced(packet)) + 20, 5000)
    (row,) = rows(bytes(data))
    assert row["error"] == "the captured length does not fit into its block"


@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=60),
    split=st.integers(1, 3000),
    order=st.sampled_from(ORDERS),
    is_ng=st.booleans(),
    damage=st.none() | st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=40)),
)
@example(sizes=[0, 54, 0, 0, 0, 0], split=1, order="<", is_ng=False, damage=(0.5, b"\x02"))
def test_ranges_give_the_same_rows_as_the_whole(
    sizes: list[int], split: int, order: str, is_ng: bool, damage: tuple[float, bytes] | None
) -> None:
    packets = [Packet(bytes([i % 256]) * max(size, 1), START_NS + i) for i, size in enumerate(sizes)]
    data = bytearray(ng(packets, order) if is_ng else pcap(packets, order=order))
    if damage is not None:
        where, what = damage
        at = 60 + int(where * (len(data) - 60))
        data[at : at + len(what)] = what[: max(len(data) - at, 0)]
    whole = table(bytes(data))
    view = np.frombuffer(bytes(data), np.uint8)
    parts: list[dict[str, object]] = []
    for cut, stop in cuts(view.data, view.size, split):
        for batch in read_batches(view, "t.pcap", cut=cut, stop=stop, rows=7):
            parts += batch.to_pylist()
    assert parts == whole.to_pylist()


@given(
    data=st.binary(max_size=400),
    start=st.sampled_from([pcap([]), pcap([], order=">"), section() + interface()]),
)
def test_every_byte_of_any_file_is_in_one_row(data: bytes, start: bytes) -> None:
    found = rows(start + data)
    at = len(start)
    for row in found:
        if start[:4] != b"\x0a\x0d\x0d\x0a":
            assert row["file_offset"] == at
        head = 16 if row["number"] is not None else 0
        at = row["file_offset"] + head + row["captured_length"]
    if start[:4] != b"\x0a\x0d\x0d\x0a":
        assert at == len(start + data)
