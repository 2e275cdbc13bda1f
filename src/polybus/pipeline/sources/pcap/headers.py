"""Link, network and transport headers of many packets at once.

Each step is a few numpy operations over all packets of a batch; what differs between packets is a mask,
not a branch. A position that lies outside a packet is never read: it is replaced by 0, and the mask says
that the value means nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from polybus.pipeline.sources.pcap.fields import Wrong
from polybus.pipeline.sources.pcap.records import Bytes, Ints, Records

Mask: TypeAlias = npt.NDArray[np.bool_]

ETHERNET: Final = 1
LINK_NULL: Final = 0
LINK_LOOP: Final = 108
LINUX_COOKED: Final = 113
LINUX_COOKED_2: Final = 276
RAW: Final = frozenset({12, 14, 101, 228, 229})

IPV4: Final = 0x0800
IPV6: Final = 0x86DD
VLAN_TAGS: Final = (0x8100, 0x88A8, 0x9100)
_MOST_TAGS: Final = 8
_NO_ETHER_TYPE: Final = -1

TCP: Final = 6
UDP: Final = 17

# IPv6 extension headers, RFC 8200 section 4 and the IANA registry.
_FRAGMENT: Final = 44
_AUTHENTICATION: Final = 51
_EXTENSIONS: Final = (0, 43, 60, 135, 139, 140, _FRAGMENT, _AUTHENTICATION)
_MOST_EXTENSIONS: Final = 32

_FAMILIES_6: Final = (10, 23, 24, 28, 30)
"""AF_INET6 as Linux, Windows, NetBSD, FreeBSD and macOS number it; AF_INET is 2 everywhere."""


@dataclass
class Headers:
    """One value a packet; where a mask `has_...` is false the values it covers mean nothing."""

    wrong: npt.NDArray[np.uint8]
    network: Ints
    """Where in the file the network header begins; the other positions are in the file too."""
    transport: Ints
    payload: Ints
    payload_end: Ints
    """Where the payload ends by what the headers say, which may be past what was captured."""
    ether_type: Ints
    mac: Ints
    """Where the six bytes of the destination's address are; the source's follow."""
    has_dst_mac: Mask
    has_src_mac: Mask
    src_mac: Ints
    vlan: Ints
    inner_vlan: Ints
    is_v4: Mask
    is_v6: Mask
    protocol: Ints
    ttl: Ints
    fragment_id: Ints
    fragment_offset: Ints
    more_fragments: Mask
    dont_fragment: Mask
    is_fragment: Mask
    is_tcp: Mask
    is_udp: Mask
    has_ports: Mask
    numbers: dict[str, Ints] = field(default_factory=dict)
    """TCP's and UDP's own fields, by the names of their columns."""


def read_headers(data: Bytes, records: Records) -> Headers:
    """The headers of those records."""
    h = _blank(records)
    _read_link(data, records, h)
    _read_ipv4(data, records, h)
    if h.is_v6.any():
        _read_ipv6(data, records, h)
    _bound_payload(records, h)
    _read_transport(data, records, h)
    return h


def _blank(records: Records) -> Headers:
    count = records.start.size

    def no() -> Mask:
        return np.zeros(count, np.bool_)

    def zero() -> Ints:
        return np.zeros(count, np.int64)

    wire_end = records.start + np.maximum(records.original_length, records.end - records.start)
    return Headers(
        wrong=records.wrong.copy(),
        network=records.start.copy(),
        transport=records.start.copy(),
        payload=records.start.copy(),
        payload_end=wire_end,
        ether_type=np.full(count, _NO_ETHER_TYPE, np.int64),
        mac=records.start,
        has_dst_mac=no(),
        has_src_mac=no(),
        src_mac=zero(),
        vlan=np.full(count, -1, np.int64),
        inner_vlan=np.full(count, -1, np.int64),
        is_v4=no(),
        is_v6=no(),
        protocol=zero(),
        ttl=zero(),
        fragment_id=zero(),
        fragment_offset=zero(),
        more_fragments=no(),
        dont_fragment=no(),
        is_fragment=no(),
        is_tcp=no(),
        is_udp=no(),
        has_ports=no(),
    )


def _blame(h: Headers, where: Mask, wrong: Wrong) -> None:
    """The first thing that is wrong is what a packet is blamed for."""
    h.wrong[where & (h.wrong == Wrong.NOTHING)] = wrong


# --- link ---------------------------------------------------------------------------------------------


def _read_link(data: Bytes, records: Records, h: Headers) -> None:
    for link_type in np.unique(records.link_type):
        chosen = records.link_type == link_type
        reader = _LINKS.get(int(link_type))
        if reader is None:
            _blame(h, chosen, Wrong.LINK_UNKNOWN)
        else:
            reader(data, records, h, chosen)
    _read_tags(data, records, h)
    h.transport[:] = h.network
    h.payload[:] = h.network


def _reach(records: Records, h: Headers, chosen: Mask, pos: Ints, size: int | Ints, wrong: Wrong) -> Mask:
    """Which of the chosen have `size` captured bytes at `pos`; the others are blamed."""
    there = chosen & (pos + size <= records.end)
    _blame(h, chosen & ~there, wrong)
    return there


def _read_ethernet(data: Bytes, records: Records, h: Headers, chosen: Mask) -> None:
    start = records.start
    there = _reach(records, h, chosen, start, 14, Wrong.LINK_SHORT)
    h.has_dst_mac |= there
    h.has_src_mac |= there
    h.src_mac = np.where(there, start + 6, h.src_mac)
    _set_network(data, h, there, start + 12, start + 14)


def _read_cooked(data: Bytes, records: Records, h: Headers, chosen: Mask) -> None:
    start = records.start
    there = _reach(records, h, chosen, start, 16, Wrong.LINK_SHORT)
    length = data.at(">u2", np.where(there, start + 4, 0))
    _set_cooked_source(h, there & (length == 6), start + 6)
    _set_network(data, h, there, start + 14, start + 16)


def _read_cooked_2(data: Bytes, records: Records, h: Headers, chosen: Mask) -> None:
    start = records.start
    there = _reach(records, h, chosen, start, 20, Wrong.LINK_SHORT)
    length = data.at("u1", np.where(there, start + 11, 0))
    _set_cooked_source(h, there & (length == 6), start + 12)
    _set_network(data, h, there, start, start + 20)


def _set_cooked_source(h: Headers, where: Mask, pos: Ints) -> None:
    h.has_src_mac |= where
    h.src_mac = np.where(where, pos, h.src_mac)


def _set_network(data: Bytes, h: Headers, where: Mask, type_at: Ints, network: Ints) -> None:
    h.ether_type = np.where(where, data.at(">u2", np.where(where, type_at, 0)), h.ether_type)
    h.network = np.where(where, network, h.network)


def _read_raw(data: Bytes, records: Records, h: Headers, chosen: Mask) -> None:
    there = _reach(records, h, chosen, records.start, 1, Wrong.IP_SHORT)
    version = data.at("u1", np.where(there, records.start, 0)) >> 4
    h.ether_type[there & (version == 4)] = IPV4
    h.ether_type[there & (version == 6)] = IPV6
    _blame(h, there & (version != 4) & (version != 6), Wrong.IP_VERSION)


def _read_null(data: Bytes, records: Records, h: Headers, chosen: Mask) -> None:
    """A protocol family in the byte order of the machine that captured, whichever that was."""
    there = _reach(records, h, chosen, records.start, 4, Wrong.LINK_SHORT)
    family = data.at("<u4", np.where(there, records.start, 0))
    swapped = data.at(">u4", np.where(there, records.start, 0))
    family = np.minimum(family, swapped)  # families are small: the right order gives the smaller number
    h.ether_type[there & (family == 2)] = IPV4
    h.ether_type[there & np.isin(family, _FAMILIES_6)] = IPV6
    h.network = np.where(there, records.start + 4, h.network)


_LINKS: Final[dict[int, Callable[[Bytes, Records, Headers, Mask], None]]] = {
    ETHERNET: _read_ethernet,
    LINK_NULL: _read_null,
    LINK_LOOP: _read_null,
    LINUX_COOKED: _read_cooked,
    LINUX_COOKED_2: _read_cooked_2,
    **dict.fromkeys(RAW, _read_raw),
}


def _read_tags(data: Bytes, records: Records, h: Headers) -> None:
    for depth in range(_MOST_TAGS):
        tagged = np.isin(h.ether_type, VLAN_TAGS)
        if not tagged.any():
            return
        tagged = _reach(records, h, tagged, h.network, 4, Wrong.LINK_SHORT)
        tag = data.at(">u2", np.where(tagged, h.network, 0)) & 0x0FFF
        if depth == 0:
            h.vlan = np.where(tagged, tag, h.vlan)
        elif depth == 1:
            h.inner_vlan = np.where(tagged, tag, h.inner_vlan)
        inner = np.where(tagged, data.at(">u2", np.where(tagged, h.network + 2, 0)), h.ether_type)
        # One that is cut off keeps its tag as its type, and must not be looked at again.
        stuck = np.isin(h.ether_type, VLAN_TAGS) & ~tagged
        h.ether_type = np.where(stuck, _NO_ETHER_TYPE, inner)
        h.network = np.where(tagged, h.network + 4, h.network)


# --- network ------------------------------------------------------------------------------------------


def _read_ipv4(data: Bytes, records: Records, h: Headers) -> None:
    """Marks IPv6 packets too, for those to be read afterwards."""
    start = h.network
    is_ip = (h.ether_type == IPV4) | (h.ether_type == IPV6)
    first = data.at("u1", np.where(is_ip & (start < records.end), start, 0))
    named = np.where(h.ether_type == IPV4, 4, 6)
    matches = first >> 4 == named
    _blame(h, is_ip & (start < records.end) & ~matches, Wrong.IP_VERSION)
    is_ip &= matches | (start >= records.end)
    h.is_v6 = _reach(records, h, is_ip & (h.ether_type == IPV6), start, 40, Wrong.IP_SHORT)
    there = _reach(records, h, is_ip & (h.ether_type == IPV4), start, 20, Wrong.IP_SHORT)
    header = (first & 0x0F) * 4
    _blame(h, there & (header < 20), Wrong.IP_HEADER_LENGTH)
    there &= header >= 20
    h.is_v4 = there
    at = np.where(there, start, 0)
    total = data.at(">u2", at + 2)
    # With segmentation offload the kernel shows packets whose length does not fit: it writes 0 then.
    end = np.where(there & (total > 0), start + total, h.payload_end)
    _blame(h, there & (end < start + header), Wrong.IP_LENGTH)
    _blame(h, there & (end > h.payload_end), Wrong.IP_TOO_LONG)
    bits = data.at(">u2", at + 6)
    h.payload_end = np.where(there, np.clip(end, start, h.payload_end), h.payload_end)
    h.transport = np.where(there, np.minimum(start + header, h.payload_end), h.transport)
    h.fragment_id = np.where(there, data.at(">u2", at + 4), 0)
    h.fragment_offset = np.where(there, (bits & 0x1FFF) * 8, 0)
    h.more_fragments = there & (bits & 0x2000 != 0)
    h.dont_fragment = there & (bits & 0x4000 != 0)
    h.is_fragment = h.more_fragments | (h.fragment_offset > 0)
    h.ttl = np.where(there, data.at("u1", at + 8), 0)
    h.protocol = np.where(there, data.at("u1", at + 9), 0)
    short = there & (start + header > records.end)
    _blame(h, short, Wrong.IP_SHORT)


def _read_ipv6(data: Bytes, records: Records, h: Headers) -> None:
    there = h.is_v6
    at = np.where(there, h.network, 0)
    length = data.at(">u2", at + 4)
    # 0 stands for a jumbogram (RFC 2675), and for what offloading shows.
    end = np.where(there & (length > 0), h.network + 40 + length, h.payload_end)
    _blame(h, there & (end > h.payload_end), Wrong.IP_TOO_LONG)
    h.payload_end = np.where(there, np.minimum(end, h.payload_end), h.payload_end)
    h.ttl = np.where(there, data.at("u1", at + 7), h.ttl)
    following = np.where(there, data.at("u1", at + 6), h.protocol)
    pos = np.where(there, h.network + 40, h.transport)
    open_ = there & np.isin(following, _EXTENSIONS)
    for _ in range(_MOST_EXTENSIONS):
        if not open_.any():
            break
        open_ = _reach(records, h, open_, pos, 8, Wrong.EXTENSION_SHORT)
        at = np.where(open_, pos, 0)
        size = data.at("u1", at + 1)
        is_fragment = open_ & (following == _FRAGMENT)
        bits = data.at(">u2", at + 2)
        h.fragment_offset = np.where(is_fragment, bits & 0xFFF8, h.fragment_offset)
        h.more_fragments |= is_fragment & (bits & 1 != 0)
        h.is_fragment |= is_fragment
        h.fragment_id = np.where(is_fragment, data.at(">u4", at + 4), h.fragment_id)
        units = np.where(following == _AUTHENTICATION, (size + 2) * 4, (size + 1) * 8)
        units = np.where(following == _FRAGMENT, 8, units)
        following = np.where(open_, data.at("u1", at), following)
        pos = np.where(open_, pos + units, pos)
        # What follows the header of a later fragment is the middle of something, not a header.
        open_ &= np.isin(following, _EXTENSIONS) & ~(is_fragment & (h.fragment_offset > 0))
    _blame(h, open_, Wrong.EXTENSION_SHORT)
    h.protocol = np.where(there, following, h.protocol)
    h.transport = np.where(there, np.minimum(pos, h.payload_end), h.transport)


def _bound_payload(records: Records, h: Headers) -> None:
    h.payload = np.where(h.is_v4 | h.is_v6, h.transport, h.network)
    h.payload = np.minimum(h.payload, h.payload_end)


# --- transport ----------------------------------------------------------------------------------------


def _read_transport(data: Bytes, records: Records, h: Headers) -> None:
    sound = (h.is_v4 | h.is_v6) & ~(
        (h.wrong > 0) & (h.wrong <= Wrong.EXTENSION_SHORT) & (h.wrong != Wrong.IP_TOO_LONG)
    )
    has_header = sound & (h.fragment_offset == 0)
    tcp, udp = has_header & (h.protocol == TCP), has_header & (h.protocol == UDP)
    at = h.transport
    h.has_ports = _reach(records, h, tcp | udp, at, 4, Wrong.TRANSPORT_SHORT)
    ports = data.at(">u4", np.where(h.has_ports, at, 0))
    h.numbers["src_port"], h.numbers["dst_port"] = ports >> 16, ports & 0xFFFF

    h.is_tcp = _reach(records, h, tcp, at, 20, Wrong.TRANSPORT_SHORT)
    pos = np.where(h.is_tcp, at, 0)
    h.numbers["tcp_seq"] = data.at(">u4", pos + 4)
    h.numbers["tcp_ack"] = data.at(">u4", pos + 8)
    bits = data.at(">u2", pos + 12)
    h.numbers["tcp_flags"] = bits & 0x01FF
    h.numbers["tcp_window"] = data.at(">u2", pos + 14)
    header = (bits >> 12) * 4
    fits = (header >= 20) & (at + header <= h.payload_end)
    _blame(h, h.is_tcp & ~fits, Wrong.TCP_OFFSET)
    h.payload = np.where(h.is_tcp & fits, at + header, h.payload)

    h.is_udp = _reach(records, h, udp, at, 8, Wrong.TRANSPORT_SHORT)
    length = data.at(">u2", np.where(h.is_udp, at + 4, 0))
    h.numbers["udp_length"] = length
    end = np.where(length > 0, at + length, h.payload_end)
    fits = (end >= at + 8) & ((end <= h.payload_end) | h.more_fragments)
    _blame(h, h.is_udp & ~fits, Wrong.UDP_LENGTH)
    good = h.is_udp & fits
    h.payload = np.where(good, at + 8, h.payload)
    h.payload_end = np.where(good & ~h.more_fragments, end, h.payload_end)
