"""The tables that are made from capture files: packets as they came, what they say, what it cost."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType

from polybus.pipeline.sources.pcap.fields import COLUMNS
from polybus.pipeline.tables import BOOL, BYTES, DOUBLE, INT, LONG, TEXT, TIME, Table, columns
from polybus.pipeline.transforms.frames_rows import COUNTS, IDENTITY, ITEM_COLUMNS, PLACE

_SPARK_TYPES: Final[Mapping[str, DataType]] = {
    each.simpleString(): each for each in (TEXT, LONG, INT, DOUBLE, BOOL, TIME, BYTES)
}
PACKETS: Final = columns(**{name: _SPARK_TYPES[kind] for name, kind in COLUMNS.items()})
_ITEMS: Final = {
    field.name: field.dataType for field in from_arrow_schema(pa.schema(list(ITEM_COLUMNS.items())))
}
CONVERSATIONS: Final = columns(**{name: kind for name, kind in _ITEMS.items() if name != "kind"}, kind=TEXT)


def _items(*names: str) -> dict[str, DataType]:
    """Columns of `conversations`."""
    return {name: _ITEMS[name] for name in names}


CAPTURE_TABLES: Final[Mapping[str, Table]] = {
    "packets": Table(
        "bronze", "captures", "every packet of capture files, and what is damaged in them", PACKETS
    ),
    "conversations": Table(
        "silver",
        "captures",
        "what was said over TCP and UDP, put together: the next four are views of it",
        CONVERSATIONS,
        ("packets",),
        folders=("kind",),
    ),
    "frames": Table(
        "silver",
        "captures",
        "frames of MQTT, MQTT-SN, TBus, AMQP and others",
        columns(**_items(*IDENTITY, "type", "topic", "packet_id", "is_repeat", *PLACE, "payload_bytes")),
        ("conversations",),
        view_of="conversations",
    ),
    "rejected_frames": Table(
        "silver",
        "captures",
        "bytes, packets and parts of files that are in no frame, and why",
        columns(**_items(*IDENTITY, *PLACE, "reason")),
        ("conversations",),
        view_of="conversations",
    ),
    "frame_gaps": Table(
        "silver",
        "captures",
        "bytes that were sent and are not in the capture",
        columns(**_items(*IDENTITY, "position"), missing_bytes=LONG, reason=TEXT),
        ("conversations",),
        view_of="conversations",
    ),
    "frame_streams": Table(
        "silver",
        "captures",
        "each direction of a conversation: its packets, retransmissions and bytes",
        columns(**_items(*IDENTITY, "time", "completed", "packet", "last_packet", *COUNTS, "ended")),
        ("conversations",),
        view_of="conversations",
    ),
    "capture_traffic": Table(
        "gold",
        "whole",
        "table 2-1 from captures: frames, delivered and protocol bytes by type of traffic",
        columns(
            traffic_type=TEXT, frames=LONG, delivered_bytes=LONG, protocol_bytes=LONG, percent_of_total=DOUBLE
        ),
        ("frames",),
    ),
    "header_bytes": Table(
        "gold",
        "whole",
        "figure 4-1: headers of a message of one byte, and of its acknowledgement",
        columns(
            protocol=TEXT,
            message=TEXT,
            types=TEXT,
            link_bytes=LONG,
            network_bytes=LONG,
            transport_bytes=LONG,
            application_bytes=LONG,
            header_bytes=LONG,
        ),
        ("packets", "frames"),
    ),
    "overhead_by_run": Table(
        "gold",
        "whole",
        "what each run cost on the wire",
        columns(
            scenario=TEXT,
            protocol=TEXT,
            loss_percent=DOUBLE,
            payload_bytes=LONG,
            messages=LONG,
            status=TEXT,
            application_bytes=LONG,
            published_bytes=LONG,
            total_bytes=LONG,
            bytes_to_server=LONG,
            bytes_to_client=LONG,
            packets_to_server=LONG,
            packets_to_client=LONG,
            largest_packet=LONG,
            oversized_packets=LONG,
            retransmissions=LONG,
            repeats=LONG,
            execution_s=DOUBLE,
            overhead_percent=DOUBLE,
        ),
        ("packets", "conversations"),
    ),
    "overhead": Table(
        "gold",
        "whole",
        "what protocols cost, by loss and payload: means of the runs that went well",
        columns(
            protocol=TEXT,
            loss_percent=DOUBLE,
            payload_bytes=LONG,
            runs=LONG,
            failed=LONG,
            why=TEXT,
            application_bytes=DOUBLE,
            total_bytes=DOUBLE,
            packets_to_server=DOUBLE,
            packets_to_client=DOUBLE,
            retransmissions=DOUBLE,
            repeats=DOUBLE,
            execution_s=DOUBLE,
            overhead_percent=DOUBLE,
            least_overhead_percent=DOUBLE,
            most_overhead_percent=DOUBLE,
        ),
        ("overhead_by_run",),
    ),
}
