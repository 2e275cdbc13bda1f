"""The columns of a packet, and the texts of what can be wrong with one: the tables behind everything else."""

from enum import IntEnum
from typing import Final

COLUMNS: Final[dict[str, str]] = {
    "file": "string",
    "number": "bigint",
    "file_offset": "bigint",
    "time": "timestamp",
    "time_ns": "bigint",
    "captured_length": "bigint",
    "original_length": "bigint",
    "interface": "int",
    "link_type": "int",
    "src_mac": "string",
    "dst_mac": "string",
    "ether_type": "int",
    "vlan": "int",
    "inner_vlan": "int",
    "ip_version": "int",
    "src": "string",
    "dst": "string",
    "protocol": "int",
    "ttl": "int",
    "fragment_id": "bigint",
    "fragment_offset": "int",
    "more_fragments": "boolean",
    "dont_fragment": "boolean",
    "src_port": "int",
    "dst_port": "int",
    "tcp_seq": "bigint",
    "tcp_ack": "bigint",
    "tcp_flags": "int",
    "tcp_window": "int",
    "udp_length": "int",
    "network_offset": "int",
    "transport_offset": "int",
    "payload_offset": "int",
    "payload_length": "int",
    "payload_captured": "int",
    "payload": "binary",
    "error": "string",
}
"""Name -> Spark type, in the order of the table. What each means is in docs/pipeline-pcap.md."""


class Wrong(IntEnum):
    """What is wrong with a packet that is whole in the file."""

    NOTHING = 0
    LINK_UNKNOWN = 1
    LINK_SHORT = 2
    IP_SHORT = 3
    IP_VERSION = 4
    IP_HEADER_LENGTH = 5
    IP_LENGTH = 6
    IP_TOO_LONG = 7
    EXTENSION_SHORT = 8
    TRANSPORT_SHORT = 9
    TCP_OFFSET = 10
    UDP_LENGTH = 11
    TIME = 12
    INTERFACE = 13
    RECORD_LENGTH = 14


TEXTS: Final[dict[int, str]] = {
    Wrong.LINK_UNKNOWN: "the link type is not one that is read",
    Wrong.LINK_SHORT: "the link header is cut short",
    Wrong.IP_SHORT: "the IP header is cut short",
    Wrong.IP_VERSION: "the IP version is not the one that the link header names",
    Wrong.IP_HEADER_LENGTH: "the IP header says it has fewer than 20 bytes",
    Wrong.IP_LENGTH: "the IP packet says it is shorter than its header",
    Wrong.IP_TOO_LONG: "the IP packet says it is longer than what was on the wire",
    Wrong.EXTENSION_SHORT: "the IPv6 extension headers are cut short",
    Wrong.TRANSPORT_SHORT: "the TCP or UDP header is cut short",
    Wrong.TCP_OFFSET: "the TCP header does not fit into its packet",
    Wrong.UDP_LENGTH: "the UDP length does not fit into its packet",
    Wrong.TIME: "the time stamp is out of range",
    Wrong.INTERFACE: "no block describes the interface",
    Wrong.RECORD_LENGTH: "the captured length does not fit into its block",
}
