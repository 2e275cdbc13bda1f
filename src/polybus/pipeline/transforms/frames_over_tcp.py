"""Frames of the TCP connections between two ports."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

import numpy as np

from polybus.pipeline.transforms import tcp
from polybus.pipeline.transforms.frames_cutting import Cutting, Span, cut_stream
from polybus.pipeline.transforms.frames_protocols import DECODERS, OVER_TCP, TCP_PORTS, UNKNOWN, by_beginning
from polybus.pipeline.transforms.frames_rows import GAP, Packets, Row, Rows
from polybus.pipeline.transforms.frames_types import Decoder, Frame, Unreadable

_AGAIN: Final = (tcp.Kind.PARTLY_AGAIN, tcp.Kind.RETRANSMISSION)
_MOST_GUESSED_FROM: Final = 1 << 16
"""Bytes of each side that are looked at to find out what they are."""


def read_tcp(packets: Packets, ports: Mapping[int, str]) -> list[Row]:
    """The rows of every connection between two ports, one after the other."""
    which = tcp.split_connections(packets.seq, packets.flags, packets.is_forward)
    found: list[Row] = []
    for number in range(int(which.max()) + 1):
        numbers = [int(row) for row in np.flatnonzero(which == number)]
        is_forward_up = packets.is_to_server(numbers, ports)
        rows = Rows(packets, "tcp", is_forward_up=is_forward_up, number=number + 1)
        upward = [row for row in numbers if bool(packets.is_forward[row]) == is_forward_up]
        downward = [row for row in numbers if bool(packets.is_forward[row]) != is_forward_up]
        _read_connection(rows, _Side(packets, upward, True), _Side(packets, downward, False), ports)
        found += rows.made
    return found


class _Side:
    """What one side of a connection sent."""

    def __init__(self, packets: Packets, rows: list[int], to_server: bool) -> None:
        index = np.array(rows, np.int64)
        payload = [packets.payload[row] for row in rows]
        segments = tcp.Segments(packets.seq[index], packets.flags[index], packets.length[index], payload)
        self.to_server = to_server
        self.rows = rows
        self.stream = tcp.reassemble(segments)
        self.runs = tcp.contiguous(self.stream, payload)
        self.starts = [piece.start for piece in self.stream.pieces]

    def cut(self, decoder: Decoder, most: int | None = None) -> Cutting:
        """Its frames; with `most`, of so many bytes only."""
        runs = self.runs if most is None else [(start, data[:most]) for start, data in self.runs[:1]]
        return cut_stream(runs, decoder, self.to_server, self.starts, self.stream.has_start)

    def carriers(self, span: Span) -> tuple[int, int]:
        """The packets that brought the first byte of a span, and the last one that was missing."""
        pieces = self.stream.pieces
        first = bisect_right(self.starts, span.start) - 1
        row = self.rows[pieces[first].packet]
        if pieces[first].stop >= span.stop:
            return row, row
        stop = bisect_left(self.starts, span.stop)
        return row, max(self.rows[pieces[at].packet] for at in range(first, stop))


def _read_connection(rows: Rows, client: _Side, server: _Side, ports: Mapping[int, str]) -> None:
    protocol = ports.get(rows.server_port) or _guess(rows.server_port, client, server)
    rows.common["protocol"] = protocol
    if protocol == UNKNOWN:
        for side in (client, server):
            for start, data in side.runs:
                carriers = side.carriers(Span(start, data))
                rows.add_frame(side.to_server, carriers, start, Frame("bytes", len(data)))
    else:
        _read_frames(rows, DECODERS[protocol](), client, server)
    for side in (client, server):
        _finish(rows, side)


def _guess(port: int, client: _Side, server: _Side) -> str:
    if client.stream.has_start and client.runs and client.runs[0][0] == 0:
        return by_beginning(client.runs[0][1]) or TCP_PORTS.get(port, UNKNOWN)
    if port in TCP_PORTS:
        return TCP_PORTS[port]
    # The protocol that most of the bytes can be read as; at least half of them must.
    total = sum(min(len(data), _MOST_GUESSED_FROM) for side in (client, server) for _, data in side.runs[:1])
    best, least = UNKNOWN, total / 2
    for protocol in OVER_TCP:
        cuttings = [side.cut(DECODERS[protocol](), _MOST_GUESSED_FROM) for side in (client, server)]
        rejected = sum(cutting.rejected_bytes for cutting in cuttings)
        if total and rejected < least:
            best, least = protocol, rejected
    return best


def _read_frames(rows: Rows, decoder: Decoder, client: _Side, server: _Side) -> None:
    """Both sides' frames in the order in which they were complete, since one side refers to the other."""
    todo: list[tuple[tuple[int, int], Span, _Side]] = []
    for side in (client, server):
        cutting = side.cut(decoder)
        for span in cutting.rejected:
            rows.add_rejected(side.to_server, side.carriers(span), span)
        todo += [(side.carriers(span), span, side) for span in cutting.frames]
    todo.sort(key=lambda entry: (entry[0][1], entry[1].start))
    decoder.prepare([(span.data, side.to_server) for _, span, side in todo])
    for carriers, span, side in todo:
        try:
            frames = decoder.read(span.data, side.to_server)
        except Unreadable as error:
            rows.add_rejected(side.to_server, carriers, Span(span.start, span.data, str(error)))
            continue
        at = span.start
        for frame in frames:
            part = Span(at, span.data[at - span.start : at - span.start + frame.size])
            within = carriers if len(frames) == 1 else side.carriers(part)
            rows.add_frame(side.to_server, within, at, frame)
            at += frame.size


def _finish(rows: Rows, side: _Side) -> None:
    """What is no part of the stream, what never came, and the books of the direction."""
    stream, packets = side.stream, rows.packets
    if not side.rows:
        return
    for index, reason in stream.ignored:
        row = side.rows[index]
        rows.add_rejected(side.to_server, (row, row), Span(0, packets.payload[row], reason))
        rows.made[-1]["position"] = None
    for gap in stream.gaps:
        rows.add(
            GAP,
            side.to_server,
            None,
            file=packets.file[side.rows[0]],
            position=gap.start,
            frame_bytes=gap.stop - gap.start,
            reason=gap.reason,
        )
    kinds = stream.kinds
    rows.add_books(
        side.to_server,
        side.rows,
        retransmissions=int(np.isin(kinds, _AGAIN).sum()),
        out_of_order=int((kinds == tcp.Kind.OUT_OF_ORDER).sum()),
        keep_alives=int((kinds == tcp.Kind.KEEP_ALIVE).sum()),
        sent_bytes=stream.sent_bytes,
        duplicate_bytes=stream.duplicate_bytes,
        conflict_bytes=stream.conflict_bytes,
        missing_bytes=sum(gap.stop - gap.start for gap in stream.gaps),
        ended="reset" if stream.was_reset else "closed" if stream.has_end else "open",
    )
