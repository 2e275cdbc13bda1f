"""What the first bytes of a capture say, for pcap and pcapng.

A `State` is all one needs to know to read on from some record: the format, the byte order and the
interfaces described so far. It is small and is sent to executors with every range.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

Order: TypeAlias = Literal["<", ">"]
Buffer: TypeAlias = bytes | memoryview

CLASSIC: Final = "pcap"
NG: Final = "pcapng"

CLASSIC_HEADER_BYTES: Final = 24
RECORD_HEADER_BYTES: Final = 16
LARGEST_PACKET: Final = 262_144
"""What libpcap and Wireshark take as the largest snap length of a sane file."""

SECTION_HEADER: Final = 0x0A0D0D0A  # reads the same in both byte orders
INTERFACE_DESCRIPTION: Final = 1
OBSOLETE_PACKET: Final = 2
SIMPLE_PACKET: Final = 3
ENHANCED_PACKET: Final = 6
KNOWN_BLOCKS: Final = frozenset({SECTION_HEADER, 1, 2, 3, 4, 5, 6, 9, 10, 0xBAD, 0x40000BAD})
LARGEST_BLOCK: Final = 1 << 28
_BYTE_ORDER_MAGIC: Final = 0x1A2B3C4D

_CLASSIC_MAGIC: Final[dict[bytes, tuple[Order, int]]] = {
    b"\xd4\xc3\xb2\xa1": ("<", 6),
    b"\xa1\xb2\xc3\xd4": (">", 6),
    b"\x4d\x3c\xb2\xa1": ("<", 9),
    b"\xa1\xb2\x3c\x4d": (">", 9),
}
"""First four bytes -> byte order, and the decimals of a second that time stamps have."""

_OTHERS: Final[dict[bytes, str]] = {
    b"\x1f\x8b": "it is compressed with gzip: decompress it first",
    b"\xfd7zX": "it is compressed with xz: decompress it first",
    b"BZh": "it is compressed with bzip2: decompress it first",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd: decompress it first",
    b"\x04\x22\x4d\x18": "it is compressed with lz4: decompress it first",
    b"\x34\xcd\xb2\xa1": "it is a pcap of the modified kind (magic a1b2cd34), which is not read",
    b"\xa1\xb2\xcd\x34": "it is a pcap of the modified kind (magic a1b2cd34), which is not read",
}

_OPTION_END: Final = 0
_OPTION_TSRESOL: Final = 9
_OPTION_TSOFFSET: Final = 14


@dataclass(frozen=True)
class Interface:
    """Where packets were captured, and how their time stamps count.

    A tick is 10^-`exponent` or 2^-`exponent` seconds; `offset_s` is added to every time stamp.
    """

    link_type: int
    snap_length: int
    exponent: int = 6
    is_binary: bool = False
    offset_s: int = 0


@dataclass(frozen=True)
class State:
    format: str
    order: Order
    interfaces: tuple[Interface, ...] = ()

    def with_interface(self, interface: Interface) -> "State":
        return replace(self, interfaces=(*self.interfaces, interface))

    @property
    def largest_packet(self) -> int:
        """The longest captured length that a classic file can sanely have."""
        return max(LARGEST_PACKET, *(i.snap_length for i in self.interfaces if i.snap_length < 1 << 24))


class NotACapture(Exception):
    """The file, or what follows in it, is nothing that this package reads. The text says why."""


def opening(data: Buffer, size: int) -> tuple[State, int]:
    """The state at the first record or block, and where that is. Raises NotACapture."""
    first = bytes(data[:4])
    if not size:
        raise NotACapture("the file is empty")
    if first in _CLASSIC_MAGIC:
        if size < CLASSIC_HEADER_BYTES:
            raise NotACapture(f"the file ends inside its header: {size} of {CLASSIC_HEADER_BYTES} bytes")
        order, exponent = _CLASSIC_MAGIC[first]
        snap_length, network = struct.unpack_from(f"{order}II", data, 16)
        # The upper bits of `network` say whether frames end in a check sequence, and how long it is.
        interface = Interface(network & 0x03FF_FFFF, snap_length or LARGEST_PACKET, exponent)
        return State(CLASSIC, order, (interface,)), CLASSIC_HEADER_BYTES
    if first == b"\x0a\x0d\x0d\x0a":
        order = section_order(data, 0, size)
        return State(NG, order), 0
    for start, reason in _OTHERS.items():
        if first.startswith(start):
            raise NotACapture(reason)
    raise NotACapture(f"it begins with {first.hex()}, which is neither pcap nor pcapng")


def section_order(data: Buffer, pos: int, size: int) -> Order:
    """The byte order that the section header at `pos` announces. Raises NotACapture."""
    if pos + 12 > size:
        raise NotACapture("the file ends inside a section header")
    for order in ("<", ">"):
        if struct.unpack_from(f"{order}I", data, pos + 8) == (_BYTE_ORDER_MAGIC,):
            return order
    raise NotACapture(f"the section header at byte {pos} has no byte-order magic")


def interface_description(data: Buffer, order: Order, pos: int, length: int) -> Interface:
    """The interface that the block at `pos` describes. Raises NotACapture for one that cannot be."""
    if length < 20:
        raise NotACapture(f"an interface description has at least 20 bytes, this one {length}")
    link_type, _, snap_length = struct.unpack_from(f"{order}HHI", data, pos + 8)
    interface = Interface(link_type, snap_length or LARGEST_PACKET)
    at, end = pos + 16, pos + length - 4
    while at + 4 <= end:
        code, size = struct.unpack_from(f"{order}HH", data, at)
        value = bytes(data[at + 4 : at + 4 + size])
        if code == _OPTION_END or at + 4 + size > end:
            break
        if code == _OPTION_TSRESOL and size == 1:
            interface = replace(interface, exponent=value[0] & 0x7F, is_binary=bool(value[0] & 0x80))
        elif code == _OPTION_TSOFFSET and size == 8:
            interface = replace(interface, offset_s=struct.unpack(f"{order}q", value)[0])
        at += 4 + size + (-size % 4)
    return interface
