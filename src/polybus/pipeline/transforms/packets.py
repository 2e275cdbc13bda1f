"""Packets as the transforms want them: what they cost on the wire, and fragments joined."""

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from polybus.pipeline.transforms.packets_fragments import FRAGMENT_COLUMNS, INPUT_COLUMNS, join_fragments

ETHERNET_HEADER_BYTES: Final = 14
_ETHERNET: Final = 1
TCP: Final = 6
UDP: Final = 17


def is_packet() -> Column:
    """Rows without a number are about damage to a file, not packets."""
    return F.col("number").isNotNull()


def is_fragment() -> Column:
    return F.col("more_fragments") | (F.col("fragment_offset") > 0)


def wire_bytes() -> Column:
    """What a packet takes on an Ethernet, as the document counts it: 14 bytes of header and no check sequence.

    Captures of loopback and "any" devices have other headers, or none; those are replaced.
    """
    as_ethernet = F.col("original_length") - F.col("network_offset") + ETHERNET_HEADER_BYTES
    return F.when(F.col("link_type") == _ETHERNET, F.col("original_length")).otherwise(as_ethernet)


def fragments(packets: DataFrame) -> DataFrame:
    """One row a fragment, with the ports of its datagram; `owner` rows have the payload or an error."""
    some = packets.where(is_packet() & F.col("error").isNull() & is_fragment()).select(
        *INPUT_COLUMNS, "ip_version", "fragment_id"
    )
    schema = from_arrow_schema(pa.schema(list(FRAGMENT_COLUMNS.items())))
    return some.groupBy("file", "ip_version", "src", "dst", "protocol", "fragment_id").applyInArrow(
        join_fragments, schema
    )
