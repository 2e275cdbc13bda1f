"""Captures of our own making, so that what is in them is known."""

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from polybus.pipeline.sources.pcap.batches import read_batches
from polybus.pipeline.sources.pcap.fields import COLUMNS

ETHERNET, NULL, LOOP, RAW, COOKED, COOKED_2 = 1, 0, 108, 101, 113, 276
MAC_A, MAC_B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
START_NS = 1_700_000_000_123_456_789
MAGIC = {("<", 6): 0xA1B2C3D4, (">", 6): 0xA1B2C3D4, ("<", 9): 0xA1B23C4D, (">", 9): 0xA1B23C4D}


@dataclass(frozen=True)
class Packet:
    data: bytes
    time_ns: int = START_NS
    original: int | None = None
    interface: int = 0

    @property
    def original_length(self) -> int:
        return len(self.data) if self.original is None else self.original


def pcap(
    packets: Iterable[Packet], *, order: str = "<", exponent: int = 6, link: int = ETHERNET, snap: int = 262_144
) -> bytes:
    parts = [struct.pack(f"{order}IHHiIII", MAGIC[order, exponent], 2, 4, 0, 0, snap, link)]
    parts += (record(packet, order=order, exponent=exponent) for packet in packets)
    return b"".join(parts)


def record(packet: Packet, *, order: str = "<", exponent: int = 6) -> bytes:
    seconds, rest = divmod(packet.time_ns, 10**9)
    fraction = rest // 10 ** (9 - exponent)
    header = struct.pack(f"{order}IIII", seconds, fraction, len(packet.data), packet.original_length)
    return header + packet.data


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(
    link: int = ETHERNET, *, order: str = "<", resolution: int | None = None, offset_s: int = 0
) -> bytes:
    options = b""
    if resolution is not None:
        options += struct.pack(f"{order}HHB3x", 9, 1, resolution)
    if offset_s:
        options += struct.pack(f"{order}HHq", 14, 8, offset_s)
    if options:
        options += bytes(4)
    return block(1, struct.pack(f"{order}HHI", link, 0, 262_144) + options, order)


def enhanced(packet: Packet, *, order: str = "<", ticks: int | None = None, options: bytes = b"") -> bytes:
    ticks = packet.time_ns // 1000 if ticks is None else ticks
    head = struct.pack(
        f"{order}IIIII",
        packet.interface,
        ticks >> 32,
        ticks & 0xFFFFFFFF,
        len(packet.data),
        packet.original_length,
    )
    return block(6, head + packet.data + bytes(-len(packet.data) % 4) + options, order)


def simple(packet: Packet, *, order: str = "<") -> bytes:
    return block(3, struct.pack(f"{order}I", packet.original_length) + packet.data, order)


def obsolete(packet: Packet, *, order: str = "<") -> bytes:
    ticks = packet.time_ns // 1000
    head = struct.pack(
        f"{order}HHIIII",
        packet.interface,
        0,
        ticks >> 32,
        ticks & 0xFFFFFFFF,
        len(packet.data),
        packet.original_length,
    )
    return block(2, head + packet.data, order)


def ethernet(body: bytes, kind: int = 0x0800, tags: Sequence[tuple[int, int]] = ()) -> bytes:
    head = MAC_B + MAC_A
    for tag_kind, tag in tags:
        head += struct.pack(">HH", tag_kind, tag)
    return head + struct.pack(">H", kind) + body


def ipv4(
    body: bytes,
    protocol: int,
    *,
    src: str = "10.0.0.1",
    dst: str = "10.0.0.2",
    ident: int = 7,
    flags: int = 0,
    offset: int = 0,
    options: bytes = b"",
    total: int | None = None,
) -> bytes:
    length = 20 + len(options) + len(body) if total is None else total
    return (
        struct.pack(
            ">BBHHHBBH4s4s",
            0x45 + len(options) // 4,
            0,
            length,
            ident,
            flags << 13 | offset // 8,
            64,
            protocol,
            0,
            ipaddress.IPv4Address(src).packed,
            ipaddress.IPv4Address(dst).packed,
        )
        + options
        + body
    )


def ipv6(
    body: bytes,
    following: int,
    *,
    src: str = "2001:db8::1",
    dst: str = "2001:db8::2",
    length: int | None = None,
) -> bytes:
    return (
        struct.pack(">IHBB", 6 << 28, len(body) if length is None else length, following, 61)
        + ipaddress.IPv6Address(src).packed
        + ipaddress.IPv6Address(dst).packed
        + body
    )


def tcp(
    payload: bytes = b"",
    *,
    sport: int = 40000,
    dport: int = 1883,
    seq: int = 1,
    ack: int = 0,
    flags: int = 0x18,
    window: int = 501,
    options: bytes = b"",
) -> bytes:
    head = struct.pack(
        ">HHIIHHHH", sport, dport, seq & 0xFFFFFFFF, ack, (5 + len(options) // 4) << 12 | flags, window, 0, 0
    )
    return head + options + payload


def udp(payload: bytes = b"", *, sport: int = 40001, dport: int = 1884, length: int | None = None) -> bytes:
    return struct.pack(">HHHH", sport, dport, 8 + len(payload) if length is None else length, 0) + payload


def table(
    data: bytes, *, file: str = "t.pcap", columns: Sequence[str] = tuple(COLUMNS), **options: Any
) -> pa.Table:
    """Everything that reading those bytes gives."""
    batches = list(read_batches(np.frombuffer(data, np.uint8), file, columns=columns, **options))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in columns})


def rows(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return table(data, **options).to_pylist()


class Talk:
    """Packets of a TCP connection, as both sides would send them, with whatever happens on the way."""

    def __init__(
        self, *, client_seq: int = 1000, server_seq: int = 9000, port: int = 1883, sport: int = 40000
    ) -> None:
        self.packets: list[Packet] = []
        self._seq = {True: client_seq, False: server_seq}
        self._ports = (sport, port)
        self._time = START_NS

    def segment(
        self, to_server: bool, payload: bytes = b"", *, seq: int | None = None, flags: int = 0x18
    ) -> Packet:
        """A packet with that sequence number; without one, where its side is, which then moves on."""
        at = self._seq[to_server] if seq is None else seq
        if seq is None:
            self._seq[to_server] += len(payload) + bool(flags & 0x03)
        sport, dport = self._ports if to_server else self._ports[::-1]
        src, dst = ("10.0.0.1", "10.0.0.2") if to_server else ("10.0.0.2", "10.0.0.1")
        self._time += 1_000_000
        body = tcp(payload, sport=sport, dport=dport, seq=at, flags=flags)
        return Packet(ethernet(ipv4(body, 6, src=src, dst=dst)), self._time)

    def add(self, to_server: bool, payload: bytes = b"", *, seq: int | None = None, flags: int = 0x18) -> None:
        self.packets.append(self.segment(to_server, payload, seq=seq, flags=flags))

    def open(self) -> None:
        self.add(True, flags=0x02)
        self.add(False, flags=0x12)
        self.add(True, flags=0x10)

    def close(self) -> None:
        self.add(True, flags=0x11)
        self.add(False, flags=0x11)
        self.add(True, flags=0x10)

    def place(self, to_server: bool) -> int:
        return self._seq[to_server]
