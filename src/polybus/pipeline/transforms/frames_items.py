"""All packets between two ports, read: frames, what was rejected, gaps, and the books of each direction.

A pure function over an Arrow table, called once a conversation. One table holds all four kinds of rows, so
that the packets are read once; `frames` takes them apart.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from polybus.pipeline.transforms import tcp
from polybus.pipeline.transforms.frames_cutting import Cutting, Span, cut_stream
from polybus.pipeline.transforms.frames_protocols import (
    DECODERS,
    OVER_TCP,
    TCP_PORTS,
    UDP_PORTS,
    UNKNOWN,
    by_beginning,
    by_datagrams,
)
from polybus.pipeline.transforms.frames_types import Decoder, Unreadable

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

FRAME, REJECTED, GAP, STREAM = "frame", "rejected", "gap", "stream"
TO_SERVER, TO_CLIENT = "to_server", "to_client"

Row = dict[str, Any]


@dataclass
class _Side:
    """What one side of a conversation sent."""

    to_server: bool
    rows: list[int]
    stream: tcp.Stream = field(default_factory=tcp.Stream)
    runs: list[tuple[int, bytes]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Of the stream's pieces."""


def read_conversation(table: pa.Table, ports: Mapping[int, str] | None = None) -> pa.Table:
    """Everything that two ports said to each other. `ports` says which protocols are spoken where."""
    table = table.select(list(INPUT_COLUMNS))
    by = [("file", "ascending"), ("number", "ascending")]
    if len(table["file"].unique()) > 1:
        by = [("time", "ascending"), *by]
    table = table.sort_by(by).combine_chunks()
    packets = _Packets(table)
    rows = _read_tcp(packets, ports or {}) if packets.is_tcp else _read_udp(packets, ports or {})
    return pa.Table.from_pylist(rows, pa.schema(list(ITEM_COLUMNS.items())))


class _Packets:
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


def _server_is_target(packets: _Packets, rows: Sequence[int], ports: Mapping[int, str]) -> bool:
    """Whether the side that did not send the conversation's first packet is the server."""
    for row in rows:
        if packets.flags[row] & tcp.SYN and packets.is_tcp:
            is_reply = bool(packets.flags[row] & tcp.ACK)
            return bool(packets.is_forward[row]) != is_reply
    source, target = packets.source[1], packets.target[1]
    for known in (ports, TCP_PORTS if packets.is_tcp else UDP_PORTS):
        if (source in known) != (target in known):
            return target in known
    # Servers listen on low ports, clients get high ones; for datagrams, the client speaks first.
    return target <= source if packets.is_tcp else True


def _read_tcp(packets: _Packets, ports: Mapping[int, str]) -> list[Row]:
    which = tcp.split_connections(packets.seq, packets.flags, packets.is_forward)
    found: list[Row] = []
    for number in range(int(which.max()) + 1):
        rows = np.flatnonzero(which == number)
        forward = [int(row) for row in rows if packets.is_forward[row]]
        backward = [int(row) for row in rows if not packets.is_forward[row]]
        to_target = _server_is_target(packets, [int(row) for row in rows], ports)
        sides = [_side(packets, forward, to_target), _side(packets, backward, not to_target)]
        sides.sort(key=lambda side: not side.to_server)
        found += _Conversation(packets, "tcp", to_target, number + 1, ports).read_tcp(sides)
    return found


def _side(packets: _Packets, rows: list[int], to_server: bool) -> _Side:
    side = _Side(to_server, rows)
    index = np.array(rows, np.int64)
    payload = [packets.payload[row] for row in rows]
    segments = tcp.Segments(packets.seq[index], packets.flags[index], packets.length[index], payload)
    side.stream = tcp.reassemble(segments)
    side.runs = tcp.contiguous(side.stream, payload)
    side.starts = [piece.start for piece in side.stream.pieces]
    return side


def _read_udp(packets: _Packets, ports: Mapping[int, str]) -> list[Row]:
    to_target = _server_is_target(packets, range(len(packets.number)), ports)
    return _Conversation(packets, "udp", to_target, 1, ports).read_udp()


class _Conversation:
    """Makes the rows of one connection, or of the datagrams between two ports."""

    def __init__(
        self, packets: _Packets, transport: str, to_target: bool, number: int, ports: Mapping[int, str]
    ) -> None:
        self._packets = packets
        client, server = (packets.source, packets.target) if to_target else (packets.target, packets.source)
        self._to_target = to_target
        self._ports = ports
        self._server_port = server[1]
        self._rows: list[Row] = []
        self._common: Row = {
            "connection": f"{transport} {_place(client)} > {_place(server)} #{number}",
            "transport": transport,
            "client": _place(client),
            "server": _place(server),
            "server_port": server[1],
        }

    # TCP

    def read_tcp(self, sides: list[_Side]) -> list[Row]:
        protocol = self._tcp_protocol(sides)
        self._common["protocol"] = protocol
        if protocol == UNKNOWN:
            for side in sides:
                for start, data in side.runs:
                    self._add(FRAME, side, Span(start, data), type="bytes")
        else:
            decoder = DECODERS[protocol]()
            cuttings = [self._cut(side, decoder) for side in sides]
            self._read_frames(decoder, sides, cuttings)
        for side in sides:
            self._finish(side)
        return self._rows

    def _tcp_protocol(self, sides: list[_Side]) -> str:
        if self._server_port in self._ports:
            return self._ports[self._server_port]
        client = sides[0]
        if client.stream.has_start and client.runs and client.runs[0][0] == 0:
            found = by_beginning(client.runs[0][1])
            return found or TCP_PORTS.get(self._server_port, UNKNOWN)
        if self._server_port in TCP_PORTS:
            return TCP_PORTS[self._server_port]
        return self._tcp_protocol_by_reading(sides)

    def _tcp_protocol_by_reading(self, sides: list[_Side]) -> str:
        """The protocol that most of the bytes can be read as; at least half of them must."""
        total = sum(len(data) for side in sides for _, data in side.runs)
        best, least = UNKNOWN, total / 2
        for protocol in OVER_TCP:
            rejected = sum(self._cut(side, DECODERS[protocol]()).rejected_bytes for side in sides)
            if total and rejected < least:
                best, least = protocol, rejected
        return best

    def _cut(self, side: _Side, decoder: Decoder) -> Cutting:
        return cut_stream(side.runs, decoder, side.to_server, side.starts, side.stream.has_start)

    def _read_frames(self, decoder: Decoder, sides: list[_Side], cuttings: list[Cutting]) -> None:
        """Both sides' frames in the order in which they were complete, since one side refers to the other."""
        todo: list[tuple[int, int, _Side, Span]] = []
        for side, cutting in zip(sides, cuttings, strict=True):
            for span in cutting.rejected:
                self._add(REJECTED, side, span)
            todo += ((self._carriers(side, span)[1], span.start, side, span) for span in cutting.frames)
        todo.sort(key=lambda entry: entry[:2])
        decoder.prepare([(span.data, side.to_server) for _, _, side, span in todo])
        for _, _, side, span in todo:
            self._read_frame(decoder, side, span)

    def _read_frame(self, decoder: Decoder, side: _Side, span: Span) -> None:
        try:
            frames = decoder.read(span.data, side.to_server)
        except Unreadable as error:
            self._add(REJECTED, side, Span(span.start, span.data, str(error)))
            return
        at = 0
        for frame in frames:
            self._add(
                FRAME,
                side,
                Span(span.start + at, span.data[at : at + frame.size]),
                type=frame.type,
                topic=frame.topic,
                packet_id=frame.packet_id,
                is_repeat=frame.is_repeat,
                payload_bytes=frame.payload_bytes,
            )
            at += frame.size

    def _carriers(self, side: _Side, span: Span) -> tuple[int, int]:
        """The rows of the packets that brought a span's first byte, and its last missing one."""
        pieces = side.stream.pieces
        first = bisect_right(side.starts, span.start) - 1
        if pieces[first].stop >= span.stop:
            return (row := side.rows[pieces[first].index]), row
        stop = bisect_left(side.starts, span.stop)
        return side.rows[pieces[first].index], max(side.rows[pieces[i].index] for i in range(first, stop))

    def _add(self, kind: str, side: _Side, span: Span, **more: Any) -> None:
        first, last = self._carriers(side, span)
        self._row(kind, side.to_server, first, last, span, more)

    def _row(
        self, kind: str, to_server: bool, first: int, last: int, span: Span, more: Mapping[str, Any]
    ) -> None:
        packets = self._packets
        row: Row = {
            "file": packets.file[first],
            "direction": TO_SERVER if to_server else TO_CLIENT,
            "kind": kind,
            "time": packets.time[first],
            "completed": packets.time[last],
            "packet": packets.number[first],
            "last_packet": packets.number[last],
            "position": span.start,
            "frame_bytes": len(span.data),
            "payload_bytes": 0,
            "is_repeat": False,
            "reason": span.reason or None,
        }
        self._rows.append(self._common | row | dict(more))

    def _finish(self, side: _Side) -> None:
        """What never came, and the books of the direction."""
        stream = side.stream
        if not side.rows:
            return
        packets, common = self._packets, self._common
        direction = TO_SERVER if side.to_server else TO_CLIENT
        for index, reason in stream.ignored:
            row = side.rows[index]
            self._row(REJECTED, side.to_server, row, row, Span(0, packets.payload[row], reason), {})
            self._rows[-1]["position"] = None
        for gap in stream.gaps:
            size = gap.stop - gap.start
            self._rows.append(
                common
                | {
                    "file": packets.file[side.rows[0]],
                    "direction": direction,
                    "kind": GAP,
                    "position": gap.start,
                }
                | {"frame_bytes": size, "payload_bytes": 0, "reason": gap.reason}
            )
        kinds = stream.kinds
        first, last = side.rows[0], side.rows[-1]
        self._rows.append(
            common
            | {
                "file": packets.file[first],
                "direction": direction,
                "kind": STREAM,
                "time": packets.time[first],
                "completed": packets.time[last],
                "packet": packets.number[first],
                "last_packet": packets.number[last],
                "packets": len(side.rows),
                "data_packets": int((packets.length[side.rows] > 0).sum()),
                "retransmissions": int(np.isin(kinds, _AGAIN).sum()),
                "out_of_order": int((kinds == tcp.Kind.OUT_OF_ORDER).sum()),
                "keep_alives": int((kinds == tcp.Kind.KEEP_ALIVE).sum()),
                "sent_bytes": stream.sent_bytes,
                "duplicate_bytes": stream.duplicate_bytes,
                "conflict_bytes": stream.conflict_bytes,
                "missing_bytes": sum(gap.stop - gap.start for gap in stream.gaps),
                "ended": "reset" if stream.was_reset else "closed" if stream.has_end else "open",
            }
        )

    # UDP

    def read_udp(self) -> list[Row]:
        packets = self._packets
        protocol = self._ports.get(self._server_port) or by_datagrams(packets.payload)
        protocol = protocol or UDP_PORTS.get(self._server_port, UNKNOWN)
        self._common["protocol"] = protocol
        decoder = DECODERS[protocol]() if protocol != UNKNOWN else None
        positions = {True: 0, False: 0}
        for row, data in enumerate(packets.payload):
            to_server = bool(packets.is_forward[row]) == self._to_target
            self._read_datagram(decoder, row, to_server, positions[to_server], data)
            positions[to_server] += len(data)
        for to_server in (True, False):
            rows = [
                r
                for r in range(len(packets.number))
                if (bool(packets.is_forward[r]) == self._to_target) == to_server
            ]
            self._finish_udp(rows, to_server)
        return self._rows

    def _read_datagram(self, decoder: Decoder | None, row: int, to_server: bool, at: int, data: bytes) -> None:
        missing = int(self._packets.length[row]) - len(data)
        if missing > 0:
            self._row(REJECTED, to_server, row, row, Span(at, data, tcp.SNAPPED), {})
            self._rows.append(self._rows[-1] | {"kind": GAP, "frame_bytes": missing})
            return
        if decoder is None:
            self._row(FRAME, to_server, row, row, Span(at, data), {"type": "bytes"})
            return
        try:
            frames = decoder.read(data, to_server)
        except Unreadable as error:
            self._row(REJECTED, to_server, row, row, Span(at, data, str(error)), {})
            return
        for frame in frames:
            more = {
                "type": frame.type,
                "topic": frame.topic,
                "packet_id": frame.packet_id,
                "is_repeat": frame.is_repeat,
                "payload_bytes": frame.payload_bytes,
                "frame_bytes": frame.size,
            }
            self._row(FRAME, to_server, row, row, Span(at, b""), more)
            at += frame.size

    def _finish_udp(self, rows: list[int], to_server: bool) -> None:
        if not rows:
            return
        packets = self._packets
        first, last = rows[0], rows[-1]
        sent = sum(len(packets.payload[row]) for row in rows)
        books = {
            "packets": len(rows),
            "data_packets": int((packets.length[rows] > 0).sum()),
            "retransmissions": 0,
            "out_of_order": 0,
            "keep_alives": 0,
            "sent_bytes": sent,
            "duplicate_bytes": 0,
            "conflict_bytes": 0,
            "missing_bytes": int(packets.length[rows].sum()) - sent,
            "frame_bytes": None,
            "payload_bytes": None,
            "is_repeat": None,
            "position": None,
        }
        self._row(STREAM, to_server, first, last, Span(0, b""), books)


_AGAIN: Final = (tcp.Kind.PARTLY_AGAIN, tcp.Kind.RETRANSMISSION)


def _place(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
