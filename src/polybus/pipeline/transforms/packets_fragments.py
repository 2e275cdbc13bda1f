"""IP fragments: which datagram each belongs to, and the datagram's payload.

Pure functions over Arrow. A group is all fragments with the same addresses, protocol and identification;
an identification is used again after a while, so a group may hold several datagrams, one after the other.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

FRAGMENT_COLUMNS: Final = {
    "file": pa.string(),
    "number": pa.int64(),
    "time": pa.timestamp("us", tz="UTC"),
    "src": pa.string(),
    "dst": pa.string(),
    "protocol": pa.int32(),
    "src_port": pa.int32(),
    "dst_port": pa.int32(),
    "tcp_seq": pa.int64(),
    "tcp_flags": pa.int32(),
    "payload_length": pa.int32(),
    "payload_captured": pa.int32(),
    "payload": pa.binary(),
    "original_length": pa.int64(),
    "network_offset": pa.int32(),
    "link_type": pa.int32(),
    "owner": pa.int64(),
    "error": pa.string(),
}
"""Of the result: a packet's, and `owner`, the number of the fragment that stands for the datagram.

The owner has the whole payload, or an `error` that says why there is none; the others have no payload."""

INPUT_COLUMNS: Final = (
    "file", "number", "time", "src", "dst", "protocol", "src_port", "dst_port", "tcp_seq", "tcp_flags",
    "fragment_offset", "more_fragments", "transport_offset", "payload_offset", "payload_length",
    "payload_captured", "payload", "original_length", "network_offset", "link_type",
)  # fmt: skip

_PATIENCE_S: Final = 60
"""How long a receiver waits for the rest of a datagram (RFC 1122, section 3.3.2, says 60 to 120 s)."""

Row = dict[str, Any]


@dataclass
class _Datagram:
    parts: list[Row] = field(default_factory=list)
    offsets: set[int] = field(default_factory=set)

    def takes(self, row: Row) -> bool:
        if not self.parts:
            return True
        waited = (
            (row["time"] - self.parts[0]["time"]).total_seconds()
            if row["time"] and self.parts[0]["time"]
            else 0
        )
        return row["fragment_offset"] not in self.offsets and abs(waited) < _PATIENCE_S

    def add(self, row: Row) -> None:
        self.parts.append(row)
        self.offsets.add(row["fragment_offset"])

    def missing(self) -> str:
        """Why it is not whole, or nothing."""
        at = 0
        parts = sorted(self.parts, key=lambda row: int(row["fragment_offset"]))
        for row in parts:
            if row["fragment_offset"] != at:
                return f"a fragment is missing: byte {row['fragment_offset']} follows byte {at}"
            at += row["payload_offset"] - row["transport_offset"] + row["payload_length"]
        if parts[-1]["more_fragments"]:
            return f"the last fragment is missing: there are {at} bytes"
        if any(row["payload_captured"] < row["payload_length"] for row in parts):
            return "a fragment is cut off by the snap length"
        return ""

    def rows(self) -> list[Row]:
        """One row a fragment; the first of the datagram, or else of the capture, is the owner."""
        parts = sorted(self.parts, key=lambda row: int(row["fragment_offset"]))
        owner, why = parts[0], self.missing()
        result: list[Row] = []
        for row in parts:
            is_owner = row is owner
            made: Row = {name: row.get(name) for name in FRAGMENT_COLUMNS}
            made |= {name: owner[name] for name in ("src_port", "dst_port")}
            made |= {"owner": owner["number"], "error": None, "payload": None}
            if is_owner and not why:
                made["payload"] = b"".join(row["payload"] for row in parts)
                made["payload_length"] = made["payload_captured"] = len(made["payload"])
            elif is_owner:
                made["payload_captured"] = sum(row["payload_captured"] for row in parts)
                made["error"] = why
            result.append(made)
        return result


def join_fragments(table: pa.Table) -> pa.Table:
    """The fragments of one group in capture order, with ports for all and the payload for one each."""
    rows: list[Row] = table.select(list(INPUT_COLUMNS)).to_pylist()
    rows.sort(key=lambda row: (row["file"], row["number"]))
    done: list[Row] = []
    current = _Datagram()
    for row in rows:
        if not current.takes(row):
            done += current.rows()
            current = _Datagram()
        current.add(row)
        if not current.missing():
            done += current.rows()
            current = _Datagram()
    if current.parts:
        done += current.rows()
    return pa.Table.from_pylist(done, pa.schema(list(FRAGMENT_COLUMNS.items())))
