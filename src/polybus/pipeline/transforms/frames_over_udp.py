"""Frames of the datagrams between two ports."""

from collections.abc import Mapping

from polybus.pipeline.transforms.frames_cutting import Span
from polybus.pipeline.transforms.frames_protocols import DECODERS, UDP_PORTS, UNKNOWN, by_datagrams
from polybus.pipeline.transforms.frames_rows import GAP, Packets, Row, Rows
from polybus.pipeline.transforms.frames_types import Decoder, Frame, Unreadable
from polybus.pipeline.transforms.tcp import SNAPPED


def read_udp(packets: Packets, ports: Mapping[int, str]) -> list[Row]:
    """The rows of a conversation in datagrams."""
    count = len(packets.number)
    is_forward_up = packets.is_to_server(range(count), ports)
    rows = Rows(packets, "udp", is_forward_up=is_forward_up, number=1)
    protocol = ports.get(rows.server_port) or by_datagrams(packets.payload)
    protocol = protocol or UDP_PORTS.get(rows.server_port, UNKNOWN)
    rows.common["protocol"] = protocol
    decoder = DECODERS[protocol]() if protocol != UNKNOWN else None
    sides: dict[bool, list[int]] = {True: [], False: []}
    sent = {True: 0, False: 0}
    for row, data in enumerate(packets.payload):
        to_server = bool(packets.is_forward[row]) == is_forward_up
        _read_datagram(rows, decoder, row, to_server, sent[to_server])
        sides[to_server].append(row)
        sent[to_server] += len(data)
    for to_server, numbers in sides.items():
        if numbers:
            missing = int(packets.length[numbers].sum()) - sent[to_server]
            rows.add_books(to_server, numbers, sent_bytes=sent[to_server], missing_bytes=missing)
    return rows.made


def _read_datagram(rows: Rows, decoder: Decoder | None, row: int, to_server: bool, at: int) -> None:
    data, carriers = rows.packets.payload[row], (row, row)
    missing = int(rows.packets.length[row]) - len(data)
    if missing > 0:
        rows.add_rejected(to_server, carriers, Span(at, data, SNAPPED))
        rows.add(GAP, to_server, carriers, position=at, frame_bytes=missing, reason=SNAPPED)
        return
    try:
        frames = [Frame("bytes", len(data))] if decoder is None else decoder.read(data, to_server)
    except Unreadable as error:
        rows.add_rejected(to_server, carriers, Span(at, data, str(error)))
        return
    for frame in frames:
        rows.add_frame(to_server, carriers, at, frame)
        at += frame.size
