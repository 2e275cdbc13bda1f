"""Protocol frames from packets (PL-03, PL-04): MQTT, TBus, AMQP, MQTT-SN, text over UDP, TLS records.

    read = conversations(packets)        # once; write it, or cache it
    frames(read), rejected(read), gaps(read), streams(read)

Every payload byte of a capture has one fate: it is in a frame, in `rejected` with a reason, or a repetition
of a byte that is. `books` adds them up.
"""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from polybus.pipeline.transforms.frames_items import read_conversation
from polybus.pipeline.transforms.frames_protocols import check_ports
from polybus.pipeline.transforms.frames_rows import (
    COUNTS,
    FRAME,
    GAP,
    IDENTITY,
    INPUT_COLUMNS,
    ITEM_COLUMNS,
    PLACE,
    REJECTED,
    STREAM,
)
from polybus.pipeline.transforms.packets import TCP, UDP, fragments, is_fragment, is_packet


def conversations(
    packets: DataFrame, ports: Mapping[int, str] | None = None, *, across_files: bool = False
) -> DataFrame:
    """Everything that was said over TCP and UDP, in rows of several kinds.

    `ports` (server port -> protocol) overrules what the bytes look like. With `across_files` a conversation
    goes on from one file to the next, as in captures that were rotated. Reads `packets` twice or more: give
    it a stored table. Raises UsageError for a protocol that is not known.
    """
    chosen = dict(ports or {})
    check_ports(chosen)
    sound = packets.where(is_packet() & F.col("error").isNull() & F.col("protocol").isin(TCP, UDP))
    whole = sound.where(~is_fragment()).select(*INPUT_COLUMNS)
    joined = fragments(packets)
    owners = joined.where(F.col("number") == F.col("owner"))
    usable = whole.unionByName(owners.where(F.col("error").isNull()).select(*INPUT_COLUMNS))
    usable = usable.where(F.col("src_port").isNotNull())
    sender = F.concat_ws(" ", "src", "src_port")
    receiver = F.concat_ws(" ", "dst", "dst_port")
    keys = [F.col("protocol"), F.least(sender, receiver).alias("a"), F.greatest(sender, receiver).alias("b")]
    if not across_files:
        keys.append(F.col("file"))
    schema = from_arrow_schema(pa.schema(list(ITEM_COLUMNS.items())))

    def read(table: pa.Table) -> pa.Table:
        return read_conversation(table, chosen)

    found = usable.groupBy(*keys).applyInArrow(read, schema)
    return found.unionByName(_unread(packets, owners), allowMissingColumns=True)


def frames(read: DataFrame) -> DataFrame:
    """One row a frame: when its first byte came and when it was complete, its size and what it carries."""
    return read.where(F.col("kind") == FRAME).select(
        *IDENTITY, "type", "topic", "packet_id", "is_repeat", *PLACE, "payload_bytes"
    )


def rejected(read: DataFrame) -> DataFrame:
    """Bytes that are in no frame, and why."""
    return read.where(F.col("kind") == REJECTED).select(*IDENTITY, *PLACE, "reason")


def gaps(read: DataFrame) -> DataFrame:
    """Bytes that were sent and are not in the capture."""
    return read.where(F.col("kind") == GAP).select(
        *IDENTITY, "position", F.col("frame_bytes").alias("missing_bytes"), "reason"
    )


def streams(read: DataFrame) -> DataFrame:
    """One row for each direction of a conversation: its packets, retransmissions and bytes."""
    return read.where(F.col("kind") == STREAM).select(
        *IDENTITY, "time", "completed", "packet", "last_packet", *COUNTS, "ended"
    )


def books(read: DataFrame) -> DataFrame:
    """For each direction: payload bytes sent = in frames + rejected + sent again. `difference` is 0."""

    def total(kind: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("kind") == kind, F.col("frame_bytes"))), F.lit(0))

    return (
        read.where(F.col("connection").isNotNull())
        .groupBy("connection", "direction")
        .agg(
            F.coalesce(F.sum("sent_bytes"), F.lit(0)).alias("sent_bytes"),
            F.coalesce(F.sum("duplicate_bytes"), F.lit(0)).alias("duplicate_bytes"),
            total(FRAME).alias("frame_bytes"),
            total(REJECTED).alias("rejected_bytes"),
            total(GAP).alias("missing_bytes"),
        )
        .withColumn(
            "difference",
            F.expr("sent_bytes - duplicate_bytes - frame_bytes - rejected_bytes"),
        )
    )


def _unread(packets: DataFrame, owners: DataFrame) -> DataFrame:
    """Packets with broken headers, damage to files, and datagrams that are not whole: rejected as they are."""
    broken = packets.where(F.col("error").isNotNull()).select(
        "file",
        "time",
        F.col("number").alias("packet"),
        F.coalesce("payload_captured", "captured_length").cast("bigint").alias("frame_bytes"),
        F.col("error").alias("reason"),
    )
    cut = owners.where(F.col("error").isNotNull()).select(
        "file",
        "time",
        F.col("number").alias("packet"),
        F.col("payload_captured").cast("bigint").alias("frame_bytes"),
        F.col("error").alias("reason"),
    )
    return broken.unionByName(cut).select(
        F.lit(REJECTED).alias("kind"),
        "*",
        F.col("time").alias("completed"),
        F.col("packet").alias("last_packet"),
    )
