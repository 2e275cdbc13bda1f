"""The books of captures (PL-04): what became of each packet, and of each byte of payload."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.pipeline.transforms import frames
from polybus.pipeline.transforms.frames_rows import REJECTED, STREAM
from polybus.pipeline.transforms.packets import TCP, UDP, fragments, is_fragment, is_packet

FATES: Final = ("read", "fragments", "rejected", "other")
BYTES: Final = ("sent_bytes", "frame_bytes", "rejected_bytes", "duplicate_bytes", "difference")


def packet_fates(packets: DataFrame, read: DataFrame) -> DataFrame:
    """One row with a column for each of `FATES`; they add up to the rows of `packets`.

    `read`: whole, and in a conversation. `fragments`: of datagrams, which were joined and read, or rejected.
    `rejected`: its headers are broken, or it is damage to a file. `other`: neither TCP nor UDP. What was read
    and rejected is counted in what came of the packets, the rest in the packets themselves.
    """
    is_sound = is_packet() & F.col("error").isNull()
    has_ports = F.col("protocol").isin(TCP, UDP) & F.col("src_port").isNotNull()
    is_other = is_sound & ~_is_fragment() & ~F.coalesce(has_ports, F.lit(False))
    came = packets.agg(
        F.count_if(is_sound & _is_fragment()).alias("fragments"), F.count_if(is_other).alias("other")
    )
    datagrams = fragments(packets).where(F.col("number") == F.col("owner"))
    joined = datagrams.agg(
        F.count_if(F.col("error").isNull() & F.col("src_port").isNotNull()).alias("whole"),
        F.count_if(F.col("error").isNotNull()).alias("cut"),
    )
    found = read.agg(
        F.coalesce(F.sum(F.when(F.col("kind") == STREAM, F.col("packets"))), F.lit(0)).alias("said"),
        F.count_if((F.col("kind") == REJECTED) & F.col("connection").isNull()).alias("unread"),
    )
    return (
        came.crossJoin(joined)
        .crossJoin(found)
        .select(
            (F.col("said") - F.col("whole")).alias("read"),
            "fragments",
            (F.col("unread") - F.col("cut")).alias("rejected"),
            "other",
        )
    )


def byte_fates(read: DataFrame) -> DataFrame:
    """One row: payload bytes sent = in frames + rejected + sent again; `difference` is 0."""
    names = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in BYTES]
    return frames.books(read).agg(*names)


def _is_fragment() -> Column:
    """Packets that are not IP say nothing of fragments."""
    return F.coalesce(is_fragment(), F.lit(False))
