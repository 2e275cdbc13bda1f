"""Positions → geofence events, with what is known of each truck in Spark's state store."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from polybus.pipeline.geography import Map
from polybus.pipeline.jobs.intake import Trigger
from polybus.pipeline.lake import Lake
from polybus.pipeline.transforms.fleet import Fate, of_kind
from polybus.pipeline.transforms.positions_geofences import geofence_events

JOB: Final = "geofences"
TABLE: Final = "geofence_events"
MAX_FILES: Final = 200
KIND: Final = "position"


def start_geofences(lake: Lake, map: Map, settle_s: float, trigger: Trigger) -> StreamingQuery:
    checkpoint = lake.files.at("checkpoints", JOB)
    if not lake.files.exists(checkpoint):
        # It follows from the positions alone: without its state it is made anew, from the first one on.
        lake.drop(TABLE)

    def take(rows: DataFrame, batch: int) -> None:
        """Runs on the driver, once per batch, and again for one that did not come to its end."""
        with lake.batch_of(JOB):
            if batch in lake.books(JOB):
                return
            lake.append(TABLE, batch, rows)
            events = (
                lake.read_batches(TABLE, [batch]).groupBy("event").agg(F.count("*").alias("rows")).collect()
            )
            fates = {row["event"]: row["rows"] for row in events}
            lake.write_book(JOB, batch, {"rows": sum(fates.values()), "fates": fates})

    records = lake.stream("records", max_files=MAX_FILES, fate=Fate.KEPT, kind=KIND)
    events = geofence_events(of_kind(records, KIND), map.geofences, settle_s)
    writer = events.writeStream.queryName(JOB).option("checkpointLocation", checkpoint).outputMode("append")
    return trigger(writer.foreachBatch(take)).start()
