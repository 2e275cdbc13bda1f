"""What a protocol costs on the wire (LB-03): total bytes, packets each way, time, overhead.

`runs` says what was tried: one row a scenario, with the capture that belongs to it. A run that failed is in
every result, with its reason; it is left out of means only (PL-04).
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.errors import UsageError
from polybus.pipeline.transforms.frames_rows import TO_SERVER
from polybus.pipeline.transforms.packets import TCP, UDP, fragments, is_fragment, is_packet, wire_bytes

RUNS: Final = (
    "scenario string, protocol string, loss_percent double, payload_bytes bigint, messages bigint, "
    "port int, started timestamp, ended timestamp, capture string, error string"
)
"""The schema of `runs`. `port` is where the server listened; `capture` is a path, or the end of one; `error`
is what went wrong in the run, if anything did; `started` and `ended` may be null."""

OK: Final = "ok"
_ETHERNET_FRAME_BYTES: Final = 1514


def overhead_by_run(packets: DataFrame, runs: DataFrame, read: DataFrame) -> DataFrame:
    """One row a run. `read` is what `frames.conversations` made of the packets.

    Raises UsageError for runs that cannot be told apart, or say no port.
    """
    _check_runs(runs)
    known = runs.withColumn("file_name", _file_name("capture"))
    totals = _matched(_sized_packets(packets), known).groupBy("scenario").agg(*_totals())
    sent = (
        _matched(_sent(read), known)
        .groupBy("scenario")
        .agg(
            F.sum("retransmissions").alias("retransmissions"),
            F.sum("repeats").alias("repeats"),
            F.sum("published_bytes").alias("published_bytes"),
        )
    )
    damage = packets.where(~is_packet()).select("file", F.col("error").alias("damage"))
    damaged = _matched(damage, known, by_port=False).groupBy("scenario").agg(F.min("damage").alias("damage"))
    application = F.col("messages") * F.col("payload_bytes")
    joined = (
        runs.join(totals, "scenario", "left").join(sent, "scenario", "left").join(damaged, "scenario", "left")
    )
    taken_s = F.col("ended").cast("double") - F.col("started").cast("double")
    seen_s = F.col("last_packet_at").cast("double") - F.col("first_packet_at").cast("double")
    return joined.select(
        "scenario",
        "protocol",
        "loss_percent",
        "payload_bytes",
        "messages",
        _status(application).alias("status"),
        application.alias("application_bytes"),
        F.coalesce("published_bytes", F.lit(0)).alias("published_bytes"),
        *(F.coalesce(name, F.lit(0)).alias(name) for name in _COUNTS),
        "largest_packet",
        F.coalesce("oversized_packets", F.lit(0)).alias("oversized_packets"),
        F.coalesce("retransmissions", F.lit(0)).alias("retransmissions"),
        F.coalesce("repeats", F.lit(0)).alias("repeats"),
        F.coalesce(taken_s, seen_s).alias("execution_s"),
        _percent(F.col("total_bytes"), application).alias("overhead_percent"),
    )


def overhead(by_run: DataFrame) -> DataFrame:
    """Per protocol, loss and payload: means over the runs that went well, and how many did not."""
    is_ok = F.col("status") == OK

    def mean(name: str) -> Column:
        return F.avg(F.when(is_ok, F.col(name))).alias(name)

    return (
        by_run.groupBy("protocol", "loss_percent", "payload_bytes")
        .agg(
            F.count("*").alias("runs"),
            F.sum(F.when(is_ok, 0).otherwise(1)).alias("failed"),
            F.min(F.when(~is_ok, F.col("status"))).alias("why"),
            mean("application_bytes"),
            mean("total_bytes"),
            mean("packets_to_server"),
            mean("packets_to_client"),
            mean("retransmissions"),
            mean("repeats"),
            mean("execution_s"),
            mean("overhead_percent"),
            F.min(F.when(is_ok, F.col("overhead_percent"))).alias("least_overhead_percent"),
            F.max(F.when(is_ok, F.col("overhead_percent"))).alias("most_overhead_percent"),
        )
        .orderBy("protocol", "payload_bytes", "loss_percent")
    )


def header_bytes(packets: DataFrame, frames: DataFrame) -> DataFrame:
    """Headers of the packet with a message of one byte, and of the packet that acknowledges it (figure 4-1).

    One row for each protocol and each of the two; the smallest packet of each sort counts, since others may
    carry something else besides.
    """
    by_packet = (
        frames.where(F.col("packet") == F.col("last_packet"))
        .groupBy("file", "packet", "protocol")
        .agg(
            F.sum("frame_bytes").alias("frame_bytes"),
            F.sum("payload_bytes").alias("payload_bytes"),
            F.concat_ws(" ", F.sort_array(F.collect_set("type"))).alias("types"),
        )
    )
    # The acknowledgement's packet holds nothing else; what it acknowledges is told by its type.
    is_acknowledgement = F.col("types").isin("PUBACK", "Basic.Ack")
    message = F.when(F.col("payload_bytes") == 1, "publish").when(is_acknowledgement, "acknowledgement")
    joined = packets.where(is_packet()).join(
        by_packet.withColumn("message", message).where(F.col("message").isNotNull()),
        (packets["file"] == by_packet["file"]) & (packets["number"] == by_packet["packet"]),
    )
    whole = joined.where(F.col("payload_length") == F.col("frame_bytes"))
    parts = whole.select(
        by_packet["protocol"].alias("protocol"),
        "message",
        "types",
        (wire_bytes() - F.col("original_length") + F.col("network_offset")).alias("link_bytes"),
        (F.col("transport_offset") - F.col("network_offset")).alias("network_bytes"),
        (F.col("payload_offset") - F.col("transport_offset")).alias("transport_bytes"),
        (F.col("frame_bytes") - F.col("payload_bytes")).alias("application_bytes"),
    )
    names = ("link_bytes", "network_bytes", "transport_bytes", "application_bytes")
    total = sum((F.col(name) for name in names), F.lit(0)).alias("header_bytes")
    smallest = F.min_by(F.struct("types", *names), F.struct("application_bytes", "transport_bytes", "types"))
    return (
        parts.groupBy("protocol", "message")
        .agg(smallest.alias("smallest"))
        .select("protocol", "message", "smallest.*")
        .select("*", total)
        .orderBy("protocol", F.desc("message"))
    )


_COUNTS: Final = ("total_bytes", "bytes_to_server", "bytes_to_client", "packets_to_server", "packets_to_client")


def _totals() -> list[Column]:
    return [
        F.sum("wire_bytes").alias("total_bytes"),
        F.sum(F.when(F.col("to_server"), F.col("wire_bytes")).otherwise(0)).alias("bytes_to_server"),
        F.sum(F.when(F.col("to_server"), 0).otherwise(F.col("wire_bytes"))).alias("bytes_to_client"),
        F.sum(F.when(F.col("to_server"), 1).otherwise(0)).alias("packets_to_server"),
        F.sum(F.when(F.col("to_server"), 0).otherwise(1)).alias("packets_to_client"),
        F.max("wire_bytes").alias("largest_packet"),
        # Larger than Ethernet's: the capture saw packets before the network card would cut them up.
        F.sum(F.when(F.col("wire_bytes") > _ETHERNET_FRAME_BYTES, 1).otherwise(0)).alias("oversized_packets"),
        F.min("time").alias("first_packet_at"),
        F.max("time").alias("last_packet_at"),
    ]


def _sized_packets(packets: DataFrame) -> DataFrame:
    """Every TCP and UDP packet with its ports, fragments too."""
    columns: list[Column | str] = ["file", "time", "src_port", "dst_port", wire_bytes().alias("wire_bytes")]
    transport = packets.where(is_packet() & F.col("protocol").isin(TCP, UDP))
    # A fragment with an error is in no datagram; it counts where its own header says a port.
    alone = transport.where(~is_fragment() | F.col("error").isNotNull()).select(*columns)
    return alone.unionByName(fragments(transport).select(*columns))


def _sent(read: DataFrame) -> DataFrame:
    """What frames and streams say, with the server's port on both ports so that it can be matched."""
    is_repeat = F.coalesce("is_repeat", F.lit(False))
    is_new = (F.col("direction") == TO_SERVER) & ~is_repeat & (F.col("kind") == "frame")
    return read.where(F.col("kind").isin("frame", "stream")).select(
        "file",
        F.col("server_port").alias("src_port"),
        F.col("server_port").alias("dst_port"),
        "retransmissions",
        F.when(is_repeat, 1).otherwise(0).alias("repeats"),
        F.when(is_new, F.col("payload_bytes")).otherwise(0).alias("published_bytes"),
    )


def _matched(rows: DataFrame, runs: DataFrame, *, by_port: bool = True) -> DataFrame:
    """Rows with the scenario they belong to: the same capture, and the server's port."""
    wanted = F.broadcast(runs.select("scenario", "capture", "port", "file_name"))
    found = rows.withColumn("name", _file_name("file")).join(wanted, F.col("name") == F.col("file_name"))
    found = found.where(
        (F.col("file") == F.col("capture")) | F.endswith("file", F.concat(F.lit("/"), "capture"))
    )
    if not by_port:
        return found
    found = found.where((F.col("src_port") == F.col("port")) | (F.col("dst_port") == F.col("port")))
    return found.withColumn("to_server", F.col("dst_port") == F.col("port"))


def _file_name(column: str) -> Column:
    return F.element_at(F.split(column, "/"), -1)


def _status(application: Column) -> Column:
    published = F.coalesce("published_bytes", F.lit(0))
    return (
        F.when(F.col("error").isNotNull(), F.concat(F.lit("failed: "), F.col("error")))
        .when(
            F.col("total_bytes").isNull(),
            F.format_string("failed: no packets of port %d in %s", "port", "capture"),
        )
        .when(F.col("damage").isNotNull(), F.concat(F.lit("failed: the capture is damaged: "), F.col("damage")))
        .when(
            published < application,
            F.format_string("failed: %d of %d bytes were published", published, application),
        )
        .when(
            published > application,
            F.format_string(
                "failed: %d bytes were published, and the run was to have %d", published, application
            ),
        )
        .otherwise(OK)
    )


def _percent(total: Column, application: Column) -> Column:
    return F.when(application > 0, (total - application) * 100.0 / application)


def _check_runs(runs: DataFrame) -> None:
    """Runs are few: this collects them."""
    seen: dict[tuple[str, int], str] = {}
    for row in runs.select("scenario", "capture", "port").collect():
        if row.port is None or row.capture is None:
            raise UsageError(f"run {row.scenario}: say its capture and the port that its server listened on")
        other = seen.setdefault((row.capture, row.port), row.scenario)
        if other != row.scenario:
            raise UsageError(
                f"runs {other} and {row.scenario} have the same capture and port: nothing tells them apart"
            )
