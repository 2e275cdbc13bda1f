"""Positions → geofence events, with what is known of each truck in Spark's state store.

Spark reads the table of records here file by file, and notes in the checkpoint which it has seen. So folders
may become one (`compaction`) when it is done with their files, and not before.
"""

import json
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from polybus.pipeline.folders import Folder
from polybus.pipeline.geography import Map
from polybus.pipeline.jobs.intake import BASE_FILE, Trigger
from polybus.pipeline.lake import Lake
from polybus.pipeline.transforms.fleet import Fate, of_kind
from polybus.pipeline.transforms.positions_geofences import geofence_events

JOB: Final = "geofences"
TABLE: Final = "geofence_events"
SOURCE: Final = "records"
MAX_FILES: Final = 200
KIND: Final = "position"
FOLDERS: Final = {"fate": Fate.KEPT.value, "kind": KIND}


def start_geofences(lake: Lake, map: Map, settle_s: float, trigger: Trigger) -> StreamingQuery:
    checkpoint = _checkpoint(lake)
    if not lake.files.exists(checkpoint):
        # It follows from the positions alone: without its state it is made anew, from the first one on.
        lake.drop(TABLE)
        merged = [folder.name for folder in lake.folders(SOURCE)[0] if folder.level]
        lake.files.write_text(f"{checkpoint}/{BASE_FILE}", json.dumps({"merged": merged}))

    def take(rows: DataFrame, batch: int) -> None:
        """Runs on the driver, once per batch, and again for one that did not come to its end."""
        with lake.turns.batch_of(JOB):
            if batch in lake.books(JOB) or lake.has_batch(TABLE, batch):
                # The rows are there, but the state that follows from them is not: it comes of making them.
                rows.write.format("noop").mode("overwrite").save()
            if batch in lake.books(JOB):
                return
            lake.append(TABLE, batch, rows)
            events = (
                lake.read_batches(TABLE, [batch]).groupBy("event").agg(F.count("*").alias("rows")).collect()
            )
            fates = {row["event"]: row["rows"] for row in events}
            lake.write_book(JOB, batch, {"rows": sum(fates.values()), "fates": fates})

    records = lake.stream(SOURCE, max_files=MAX_FILES, merged=_merged_before(lake), **FOLDERS)
    events = geofence_events(of_kind(records, KIND), map.geofences, settle_s)
    writer = events.writeStream.queryName(JOB).option("checkpointLocation", checkpoint).outputMode("append")
    return trigger(writer.foreachBatch(take)).start()


def unread_by_geofences(lake: Lake, name: str) -> Callable[[Folder], bool]:
    """Whether this job still has to read files of a folder of that table."""
    if name != SOURCE or not lake.files.exists(_checkpoint(lake)):
        return lambda _: False
    read, before = files_read(lake, _checkpoint(lake)), _merged_before(lake)
    inner = "/".join(f"{column}={value}" for column, value in FOLDERS.items())

    def is_unread(folder: Folder) -> bool:
        if folder.level and folder.name not in before:
            return False  # it was made of what had been read
        path = f"{lake.path(SOURCE)}/{folder.name}"
        return not {_name(file) for file in lake.files.files_below(f"{path}/{inner}")} <= read

    return is_unread


def files_read(lake: Lake, checkpoint: str) -> set[str]:
    """Names of the files that batches that are done have read, by Spark's own notes: `commits/7` says that
    batch 7 was done, `offsets/7` that it ended with entry 12 of the source; `sources/0` has the entries."""
    done = max(_numbers(lake, f"{checkpoint}/commits"), default=-1)
    if done < 0:
        return set()
    offset = json.loads(lake.files.read_text(f"{checkpoint}/offsets/{done}").splitlines()[-1])["logOffset"]
    found: set[str] = set()
    for log in lake.files.names(f"{checkpoint}/sources/0"):
        if log.removesuffix(".compact").isdigit():
            for line in lake.files.read_text(f"{checkpoint}/sources/0/{log}").splitlines()[1:]:
                entry = json.loads(line)
                if entry["batchId"] <= offset:
                    found.add(_name(entry["path"]))
    return found


def _checkpoint(lake: Lake) -> str:
    return lake.files.at("checkpoints", JOB)


def _merged_before(lake: Lake) -> list[str]:
    """Folders that were merged when this job began: it reads those too. What is merged later it has read."""
    file = f"{_checkpoint(lake)}/{BASE_FILE}"
    return list(json.loads(lake.files.read_text(file))["merged"]) if lake.files.exists(file) else []


def _numbers(lake: Lake, path: str) -> list[int]:
    return [int(name) for name in lake.files.names(path) if name.isdigit()]


def _name(path: str) -> str:
    """Spark gives every file that it writes a name of its own."""
    return path.rpartition("/")[2]
