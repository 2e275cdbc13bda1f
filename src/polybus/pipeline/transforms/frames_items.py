"""All packets between two ports, read: frames, what was rejected, gaps, and the books of each direction.

A pure function over an Arrow table, called once a conversation. One table holds all four kinds of rows, so
that the packets are read once; `frames` takes them apart.
"""

from collections.abc import Mapping

import pyarrow as pa

from polybus.pipeline.transforms.frames_over_tcp import read_tcp
from polybus.pipeline.transforms.frames_over_udp import read_udp
from polybus.pipeline.transforms.frames_rows import INPUT_COLUMNS, ITEM_COLUMNS, Packets


def read_conversation(table: pa.Table, ports: Mapping[int, str] | None = None) -> pa.Table:
    """Everything that two ports said to each other. `ports` says which protocols are spoken where."""
    table = table.select(list(INPUT_COLUMNS))
    by = [("file", "ascending"), ("number", "ascending")]
    if len(table["file"].unique()) > 1:
        by = [("time", "ascending"), *by]
    packets = Packets(table.sort_by(by).combine_chunks())
    rows = (read_tcp if packets.is_tcp else read_udp)(packets, ports or {})
    return pa.Table.from_pylist(rows, pa.schema(list(ITEM_COLUMNS.items())))
