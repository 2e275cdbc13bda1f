"""The rows that conversations are made into, and the packets that they are made from."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from polybus.pipeline.transforms import tcp
from polybus.pipeline.transforms.frames_cutting import Span
from polybus.pipeline.transforms.frames_protocols import TCP_PORTS, UDP_PORTS
from polybus.pipeline.transforms.frames_types import Frame

_TIME: Final = pa.timestamp("us", tz="UTC")

ITEM_COLUMNS: Final[dict[str, pa.DataType]] = {
    "file": pa.string(),
    "connection": pa.string(),
    "transport": pa.string(),
    "client": pa.string(),
    "server": pa.string(),
    "server_port": pa.int32(),
    "direction": pa.string(),
    "protocol": pa.string(),
    "kind": pa.string(),
    "type": pa.string(),
    "topic": pa.string(),
    "packet_id": pa.int64(),
    "is_repeat": pa.bool_(),
    "time": _TIME,
    "completed": _TIME,
    "packet": pa.int64(),
    "last_packet": pa.int64(),
    "position": pa.int64(),
    "frame_bytes": pa.int64(),
    "payload_bytes": pa.int64(),
    "reason": pa.string(),
    "packets": pa.int64(),
    "data_packets": pa.int64(),
    "retransmissions": pa.int64(),
    "out_of_order": pa.int64(),
    "keep_alives": pa.int64(),
    "sent_bytes": pa.int64(),
    "duplicate_bytes": pa.int64(),
    "conflict_bytes": pa.int64(),
    "missing_bytes": pa.int64(),
    "ended": pa.string(),
}

INPUT_COLUMNS: Final = (
    "file", "number", "time", "src", "dst", "protocol", "src_port", "dst_port", "tcp_seq", "tcp_flags",
    "payload_length", "payload",
)  # fmt: skip

IDENTITY: Final = (
    "file", "connection", "transport", "client", "server", "server_port", "direction", "protocol",
)  # fmt: skip
PLACE: Final = ("time", "completed", "packet", "last_packet", "position", "frame_bytes")
FRAME, REJECTED, GAP, STREAM = "frame", "rejected", "gap", "stream"
TO_SERVER, TO_CLIENT = "to_server", "to_client"
COUNTS: Final = (
    "packets", "data_packets", "retransmissions", "out_of_order", "keep_alives", "sent_bytes",
    "duplicate_bytes", "conflict_bytes", "missing_bytes",
)  # fmt: skip
"""What the row of a direction counts."""

Row = dict[str, Any]


class Packets:
    """The columns of a conversation; `is_forward` is the side that sent the first packet."""

    def __init__(self, table: pa.Table) -> None:
        self.file: list[str] = table["file"].to_pylist()
        self.number: list[int] = table["number"].to_pylist()
        # As integers: making objects of them would take longer than all the rest.
        self.time: list[int | None] = table["time"].cast(pa.int64()).to_pylist()
        self.payload: list[bytes] = [value or b"" for value in table["payload"].to_pylist()]
        self.length = np.asarray(table["payload_length"].to_numpy(), np.int64)
        self.is_tcp = table["protocol"][0].as_py() == 6
        self.seq = np.asarray(table["tcp_seq"].fill_null(0).to_numpy(), np.int64)
        self.flags = np.asarray(table["tcp_flags"].fill_null(0).to_numpy(), np.int64)
        sources = list(zip(table["src"].to_pylist(), table["src_port"].to_pylist(), strict=True))
        self.source: tuple[str, int] = sources[0]
        self.target: tuple[str, int] = (table["dst"][0].as_py(), table["dst_port"][0].as_py())
        self.is_forward = np.array([source == self.source for source in sources], np.bool_)

    def is_to_server(self, rows: Sequence[int], ports: Mapping[int, str]) -> bool:
        """Whether the side that sent the first packet is the client, as far as these rows tell."""
        for row in rows:
            if self.is_tcp and self.flags[row] & tcp.SYN:
                is_reply = bool(self.flags[row] & tcp.ACK)
                return bool(self.is_forward[row]) != is_reply
        source, target = self.source[1], self.target[1]
        for known in (ports, TCP_PORTS if self.is_tcp else UDP_PORTS):
            if (source in known) != (target in known):
                return target in known
        # Servers listen on low ports, clients get high ones; for datagrams, the client speaks first.
        return target <= source if self.is_tcp else True


class Rows:
    """Rows of one connection, or of the datagrams between two ports."""

    def __init__(self, packets: Packets, transport: str, *, is_forward_up: bool, number: int) -> None:
        self.packets = packets
        ends = (packets.source, packets.target)
        client, server = ends if is_forward_up else ends[::-1]
        self.server_port = server[1]
        self.made: list[Row] = []
        self.common: Row = {
            "connection": f"{transport} {_place(client)} > {_place(server)} #{number}",
            "transport": transport,
            "client": _place(client),
            "server": _place(server),
            "server_port": server[1],
        }

    def add(self, kind: str, to_server: bool, carriers: tuple[int, int] | None, **values: Any) -> None:
        """A row of that kind; `carriers` are the first and the last packet that it is about."""
        row = self.common | {"kind": kind, "direction": TO_SERVER if to_server else TO_CLIENT}
        if carriers is not None:
            packets, (first, last) = self.packets, carriers
            row["file"] = packets.file[first]
            row["time"], row["completed"] = packets.time[first], packets.time[last]
            row["packet"], row["last_packet"] = packets.number[first], packets.number[last]
        row.update(values)
        self.made.append(row)

    def add_frame(self, to_server: bool, carriers: tuple[int, int], at: int, frame: Frame) -> None:
        self.add(
            FRAME,
            to_server,
            carriers,
            position=at,
            frame_bytes=frame.size,
            payload_bytes=frame.payload_bytes,
            type=frame.type,
            topic=frame.topic,
            packet_id=frame.packet_id,
            is_repeat=frame.is_repeat,
        )

    def add_rejected(self, to_server: bool, carriers: tuple[int, int], span: Span) -> None:
        self.add(
            REJECTED,
            to_server,
            carriers,
            position=span.start,
            frame_bytes=len(span.data),
            reason=span.reason,
        )

    def add_books(self, to_server: bool, rows: Sequence[int], **counts: int | str) -> None:
        """What one side sent altogether. What is not said is 0."""
        zeros = dict.fromkeys(COUNTS, 0)
        data_packets = int((self.packets.length[list(rows)] > 0).sum())
        known = {"packets": len(rows), "data_packets": data_packets}
        self.add(STREAM, to_server, (rows[0], rows[-1]), **(zeros | known | counts))


def _place(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
