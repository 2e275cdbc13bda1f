"""Columns of packets: links, tags, IPv4 and IPv6, TCP, UDP; and dpkt as a second opinion."""

import io
import random
import socket
import struct
from typing import Any

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.pipeline.sources.pcap.batches import SCHEMA
from tests.pipeline.pcap.captures import (
    COOKED,
    COOKED_2,
    ETHERNET,
    LOOP,
    NULL,
    RAW,
    Packet,
    ethernet,
    ipv4,
    ipv6,
    pcap,
    rows,
    table,
    tcp,
    udp,
)


def one(data: bytes, link: int = ETHERNET, original: int | None = None) -> dict[str, Any]:
    (row,) = rows(pcap([Packet(data, original=original)], link=link))
    return row


def test_every_field_of_a_tcp_packet() -> None:
    segment = tcp(
        b"hello", sport=40000, dport=1883, seq=0xFFFFFFF0, ack=77, flags=0x118, window=65000, options=bytes(12)
    )
    row = one(ethernet(ipv4(segment, 6, ident=4711, flags=0b010, options=bytes(8)) + b"\0\0"))
    del row["time"], row["time_ns"]
    assert row == {
        "file": "t.pcap",
        "number": 1,
        "file_offset": 24,
        "captured_length": 14 + 28 + 32 + 5 + 2,
        "original_length": 14 + 28 + 32 + 5 + 2,
        "interface": 0,
        "link_type": 1,
        "src_mac": "02:00:00:00:00:01",
        "dst_mac": "02:00:00:00:00:02",
        "ether_type": 0x0800,
        "vlan": None,
        "inner_vlan": None,
        "ip_version": 4,
        "src": "10.0.0.1",
        "dst": "10.0.0.2",
        "protocol": 6,
        "ttl": 64,
        "fragment_id": 4711,
        "fragment_offset": 0,
        "more_fragments": False,
        "dont_fragment": True,
        "src_port": 40000,
        "dst_port": 1883,
        "tcp_seq": 0xFFFFFFF0,
        "tcp_ack": 77,
        "tcp_flags": 0x118,
        "tcp_window": 65000,
        "udp_length": None,
        "network_offset": 14,
        "transport_offset": 42,
        "payload_offset": 74,
        "payload_length": 5,
        "payload_captured": 5,
        "payload": b"hello",  # and not the two bytes of padding
        "error": None,
    }


COOKED_HEAD = struct.pack(">HHH8sH", 0, 1, 6, bytes.fromhex("0200000000010000"), 0x0800)
COOKED_2_HEAD = struct.pack(">HHIHBB8s", 0x0800, 0, 3, 1, 0, 6, bytes.fromhex("0200000000010000"))


@pytest.mark.parametrize(
    ("link", "head", "src_mac"),
    [
        (ETHERNET, ethernet(b""), "02:00:00:00:00:01"),
        (RAW, b"", None),
        (12, b"", None),
        (228, b"", None),
        (NULL, struct.pack("<I", 2), None),
        (NULL, struct.pack(">I", 2), None),
        (LOOP, struct.pack(">I", 2), None),
        (COOKED, COOKED_HEAD, "02:00:00:00:00:01"),
        (COOKED_2, COOKED_2_HEAD, "02:00:00:00:00:01"),
    ],
)
def test_link_types(link: int, head: bytes, src_mac: str | None) -> None:
    row = one(head + ipv4(udp(b"x", sport=5, dport=6), 17), link)
    assert (row["src"], row["src_port"], row["payload"], row["error"]) == ("10.0.0.1", 5, b"x", None)
    assert row["network_offset"] == len(head)
    assert row["src_mac"] == src_mac


@pytest.mark.parametrize("family", [10, 24, 28, 30])
def test_ipv6_families_of_null_links(family: int) -> None:
    row = one(struct.pack("<I", family) + ipv6(udp(b"x"), 17), NULL)
    assert (row["ip_version"], row["src"], row["payload"]) == (6, "2001:db8::1", b"x")


def test_an_unknown_link_type_keeps_its_bytes() -> None:
    row = one(b"whatever", link=147)
    assert row["error"] == "the link type is not one that is read"
    assert row["payload"] == b"whatever"
    assert row["link_type"] == 147


def test_tags() -> None:
    body = ipv4(udp(b"x"), 17)
    single = one(ethernet(body, tags=[(0x8100, 0x6005)]))
    assert (single["vlan"], single["inner_vlan"], single["payload"]) == (5, None, b"x")
    assert single["ether_type"] == 0x0800
    triple = one(ethernet(body, tags=[(0x88A8, 7), (0x8100, 8), (0x9100, 9)]))
    assert (triple["vlan"], triple["inner_vlan"], triple["payload"]) == (7, 8, b"x")
    cut = one(ethernet(b"", kind=0x8100) + b"\0")
    assert cut["error"] == "the link header is cut short"


def test_extension_headers() -> None:
    hop = struct.pack(">BB6x", 60, 0)
    options = struct.pack(">BB14x", 43, 1)
    routing = struct.pack(">BB6x", 51, 0)
    authentication = struct.pack(">BB10x", 17, 1)
    row = one(ethernet(ipv6(hop + options + routing + authentication + udp(b"deep"), 0), 0x86DD))
    assert (row["protocol"], row["payload"], row["ttl"], row["error"]) == (17, b"deep", 61, None)
    assert row["transport_offset"] == 14 + 40 + 8 + 16 + 8 + 12


def test_fragments_of_ipv6() -> None:
    first = one(ethernet(ipv6(struct.pack(">BBHI", 17, 0, 1, 99) + udp(b"a" * 40, length=2000), 44), 0x86DD))
    assert (first["fragment_id"], first["fragment_offset"], first["more_fragments"]) == (99, 0, True)
    assert (first["src_port"], first["payload_length"], first["error"]) == (40001, 40, None)
    later = one(ethernet(ipv6(struct.pack(">BBHI", 17, 0, 48, 99) + b"b" * 16, 44), 0x86DD))
    assert (later["fragment_offset"], later["more_fragments"], later["src_port"]) == (48, False, None)
    assert later["payload"] == b"b" * 16


def test_fragments_of_ipv4() -> None:
    first = one(ethernet(ipv4(udp(b"a" * 16, length=40), 17, flags=0b001)))
    assert (first["more_fragments"], first["payload"], first["udp_length"], first["error"]) == (
        True,
        b"a" * 16,
        40,
        None,
    )
    later = one(ethernet(ipv4(b"b" * 16, 17, offset=24)))
    assert (later["fragment_offset"], later["src_port"], later["payload"], later["udp_length"]) == (
        24,
        None,
        b"b" * 16,
        None,
    )


def test_what_is_neither_tcp_nor_udp_is_kept() -> None:
    arp = one(ethernet(b"arp!" * 7, 0x0806))
    assert (arp["ether_type"], arp["payload"], arp["error"], arp["ip_version"]) == (
        0x0806,
        b"arp!" * 7,
        None,
        None,
    )
    icmp = one(ethernet(ipv4(b"\x08\x00ping", 1)))
    assert (icmp["protocol"], icmp["payload"], icmp["src_port"], icmp["error"]) == (
        1,
        b"\x08\x00ping",
        None,
        None,
    )


def test_the_snap_length_is_no_error() -> None:
    whole = ethernet(ipv4(tcp(b"a" * 100), 6))
    row = one(whole[:80], original=len(whole))
    assert (row["payload_length"], row["payload_captured"], row["payload"]) == (100, 26, b"a" * 26)
    assert row["error"] is None


def test_a_packet_too_large_for_its_own_length_is_read_to_its_end() -> None:
    """Segmentation offload shows packets above 64 KiB, with 0 as their length."""
    row = one(ethernet(ipv4(tcp(b"a" * 70_000), 6, total=0)))
    assert (row["payload_length"], row["error"]) == (70_000, None)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\0" * 13, "the link header is cut short"),
        (ethernet(b"\x45" + bytes(18)), "the IP header is cut short"),
        (ethernet(b""), "the IP header is cut short"),
        (ethernet(b"\x65" + bytes(39)), "the IP version is not the one that the link header names"),
        (ethernet(b"\x44" + bytes(39)), "the IP header says it has fewer than 20 bytes"),
        (ethernet(ipv4(udp(), 17, total=10)), "the IP packet says it is shorter than its header"),
        (
            ethernet(ipv4(udp(b"abc"), 17, total=900)),
            "the IP packet says it is longer than what was on the wire",
        ),
        (ethernet(ipv6(b"", 60), 0x86DD), "the IPv6 extension headers are cut short"),
        (ethernet(ipv4(tcp()[:12], 6)), "the TCP or UDP header is cut short"),
        (ethernet(ipv4(udp()[:6], 17)), "the TCP or UDP header is cut short"),
        (ethernet(ipv4(tcp()[:12] + b"\x10" + tcp()[13:], 6)), "the TCP header does not fit into its packet"),
        (ethernet(ipv4(tcp()[:12] + b"\xf0" + tcp()[13:], 6)), "the TCP header does not fit into its packet"),
        (ethernet(ipv4(udp(b"abc", length=5), 17)), "the UDP length does not fit into its packet"),
        (ethernet(ipv4(udp(b"abc", length=50), 17)), "the UDP length does not fit into its packet"),
    ],
)
def test_broken_headers_are_named(data: bytes, error: str) -> None:
    row = one(data)
    assert row["error"] == error
    assert row["captured_length"] == len(data)


LINKS = st.sampled_from([ETHERNET, RAW, NULL, LOOP, COOKED, COOKED_2, 228, 999])


@given(packets=st.lists(st.binary(max_size=120), min_size=1, max_size=8), link=LINKS)
def test_any_bytes_give_a_row_each(packets: list[bytes], link: int) -> None:
    found = rows(pcap([Packet(data, original=len(data) or 1) for data in packets], link=link))
    assert [row["number"] for row in found] == list(range(1, len(packets) + 1))
    for row, data in zip(found, packets, strict=True):
        at = row["payload_offset"]
        assert row["payload"] == data[at : at + row["payload_captured"]]


@given(
    body=st.binary(max_size=90),
    protocol=st.sampled_from([6, 17, 1, 0, 43, 44, 51, 60]),
    version=st.sampled_from([4, 6]),
    cut=st.integers(0, 200),
)
def test_cut_and_strange_packets_stay_within_their_bytes(
    body: bytes, protocol: int, version: int, cut: int
) -> None:
    packet = ipv4(body, protocol) if version == 4 else ipv6(body, protocol)
    frame = ethernet(packet, 0x0800 if version == 4 else 0x86DD)[:cut]
    row = one(frame, original=max(cut, len(frame), 1))
    assert row["payload"] == frame[row["payload_offset"] : row["payload_offset"] + row["payload_captured"]]


def random_packet(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice([0, 0, 1, 50, 1400]))
    ports = {"sport": rng.randrange(65536), "dport": rng.randrange(65536)}
    if rng.random() < 0.5:
        kind, body = (
            6,
            tcp(
                payload,
                seq=rng.randrange(1 << 32),
                ack=rng.randrange(1 << 32),
                flags=rng.randrange(256),
                options=bytes(rng.choice([0, 12])),
                **ports,
            ),
        )
    else:
        kind, body = 17, udp(payload, **ports)
    if rng.random() < 0.7:
        return ethernet(
            ipv4(body, kind, src=f"10.{rng.randrange(256)}.0.1", dst="192.168.0.9", ident=rng.randrange(65536))
        )
    return ethernet(ipv6(body, kind, src=f"2001:db8::{rng.randrange(65536):x}"), 0x86DD)


def test_dpkt_reads_the_same() -> None:
    rng = random.Random(4)
    data = pcap([Packet(random_packet(rng)) for _ in range(2000)], exponent=9)
    found = rows(data)
    for row, (time, frame) in zip(found, dpkt.pcap.Reader(io.BytesIO(data)), strict=True):
        assert abs(row["time_ns"] - int(time * 10**9)) < 1000  # dpkt's times are floating-point numbers
        ip = dpkt.ethernet.Ethernet(frame).data
        family = socket.AF_INET if row["ip_version"] == 4 else socket.AF_INET6
        assert socket.inet_pton(family, row["src"]) == ip.src
        assert socket.inet_pton(family, row["dst"]) == ip.dst
        segment = ip.data
        assert (row["src_port"], row["dst_port"], row["payload"]) == (
            segment.sport,
            segment.dport,
            bytes(segment.data),
        )
        if row["protocol"] == 6:
            assert (row["tcp_seq"], row["tcp_ack"], row["tcp_flags"]) == (
                segment.seq,
                segment.ack,
                segment.flags,
            )
        assert row["error"] is None


def test_columns_can_be_chosen() -> None:
    found = table(pcap([Packet(random_packet(random.Random(1)))] * 3), columns=("dst_port", "number"))
    assert found.schema.names == ["dst_port", "number"]
    assert found.schema.field("dst_port") == SCHEMA.field("dst_port")
    assert found.num_rows == 3


def test_batches_are_bounded_in_rows_and_in_bytes() -> None:
    import numpy as np

    from polybus.pipeline.sources.pcap.batches import read_batches

    data = pcap([Packet(b"x" * 60)] * 25)
    assert [b.num_rows for b in read_batches(np.frombuffer(data, np.uint8), "f", rows=10)] == [10, 10, 5]
    large = pcap([Packet(b"x" * 200_000)] * 700)
    sizes = [b.num_rows for b in read_batches(np.frombuffer(large, np.uint8), "f")]
    assert sum(sizes) == 700
    assert len(sizes) > 1
