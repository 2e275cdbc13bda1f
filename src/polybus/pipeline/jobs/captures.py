"""Capture files: bronze as packets, silver as what was said in them (PL-02, PL-03).

A file is taken once, whole, when nobody has written to it for a while; it is known by its path. What a batch is
to have is noted before it is written, so that a batch that did not come to its end is finished from bronze.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from polybus.errors import PolybusError
from polybus.pipeline.books import Book
from polybus.pipeline.lake import Lake
from polybus.pipeline.settings import Captures
from polybus.pipeline.sources.pcap.options import matching_files
from polybus.pipeline.transforms.frames import conversations
from polybus.pipeline.transforms.packets_fates import FATES, byte_fates, packet_fates

logger = logging.getLogger("polybus.pipeline")

JOB: Final = "captures"
MOST_FILES: Final = 1000
"""Of a batch."""
MOST_CLOCK_ERROR_S: Final = 60.0
"""Of who writes the files against the driver; above this it is worth a word."""


class Found(NamedTuple):
    """A file as it was: what tells whether it changed."""

    size_bytes: int
    modified_ns: int


class CaptureIntake:
    """Runs on the driver, in the thread that runs the pipeline."""

    def __init__(self, lake: Lake, settings: Captures) -> None:
        self._lake = lake
        self._settings = settings
        self._ports = settings.protocols()
        self._told: dict[str, Found] = {}
        """Changed files that were spoken of."""

    def prepare(self) -> None:
        """Finish what an earlier life began."""
        for batch in self._lake.batches("packets"):
            if batch not in self._lake.books(JOB):
                self._finish(batch)

    def take(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """All that is there and at rest, in batches, for as long as it is wanted."""
        for planned in self._batches(self._new_files(look(self._settings.path))):
            if not is_wanted():
                return
            there = look(self._settings.path)  # the batches before took their time
            files = {path: found for path, found in planned.items() if there.get(path) == found}
            if not files:
                continue
            batch = max([*self._lake.books(JOB), *self._lake.batches("packets")], default=-1) + 1
            self._lake.files.write_text(self._note(batch), json.dumps(files))
            self._lake.append("packets", batch, read_packets(self._lake, list(files)))
            self._finish(batch)

    def wait_at_rest(self) -> None:
        """For as long as a file that was written just now may have to wait."""
        known = self._known()
        fresh = [found for path, found in look(self._settings.path).items() if path not in known]
        rest_s = max((self._settings.settle_s - _age_s(found) for found in fresh), default=0.0)
        time.sleep(min(max(rest_s, 0.0), self._settings.settle_s))

    def _new_files(self, there: Mapping[str, Found]) -> dict[str, Found]:
        known = self._known()
        new: dict[str, Found] = {}
        for path, found in there.items():
            if path in known:
                self._note_change(path, known[path], found)
            elif found.size_bytes:
                hindrance = obstacle(path, found)
                if hindrance:
                    self._tell(path, found, hindrance)
                elif _age_s(found) >= self._settings.settle_s:
                    new[path] = found
        return new

    def _note_change(self, path: str, before: Found, now: Found) -> None:
        if before != now:
            batch = next(batch for batch, book in self._lake.books(JOB).items() if path in book["files"])
            self._tell(
                path,
                now,
                f"has changed since it was taken in as part of batch {batch}: what is new in it is not taken. "
                "To have it taken, copy it to another name",
            )

    def _tell(self, path: str, found: Found, text: str) -> None:
        if self._told.get(path) != found:
            self._told[path] = found
            logger.warning("captures: %s %s", path, text)

    def _known(self) -> dict[str, Found]:
        books = self._lake.books(JOB).values()
        return {path: Found(*found) for book in books for path, found in book["files"].items()}

    def _batches(self, files: Mapping[str, Found]) -> Iterator[dict[str, Found]]:
        batch: dict[str, Found] = {}
        size = 0
        for path, found in sorted(files.items(), key=lambda each: (each[1].modified_ns, each[0])):
            is_full = size + found.size_bytes > self._settings.max_bytes_per_batch or len(batch) >= MOST_FILES
            if batch and is_full:
                yield batch
                batch, size = {}, 0
            batch[path] = found
            size += found.size_bytes
        if batch:
            yield batch

    def _finish(self, batch: int) -> None:
        packets = self._lake.read_batches("packets", [batch])
        self._lake.append("conversations", batch, conversations(packets, self._ports))
        read = self._lake.read_batches("conversations", [batch])
        self._lake.write_book(JOB, batch, self._book(batch, packets, read))

    def _book(self, batch: int, packets: DataFrame, read: DataFrame) -> Book:
        """Raises `PolybusError` if a byte has no fate, or two."""
        fates, sizes = packet_fates(packets, read).collect()[0], byte_fates(read).collect()[0]
        if sizes["difference"]:
            raise PolybusError(
                f"the books of {JOB}, batch {batch}, do not balance: {sizes['sent_bytes']} bytes were sent, "
                f"{sizes['sent_bytes'] - sizes['difference']} have a fate"
            )
        return {
            "rows": packets.count(),
            "tables": {"conversations": read.count()},
            "fates": {fate: fates[fate] for fate in FATES},
            "bytes": sizes.asDict(),
            "files": self._files_of(batch, packets),
        }

    def _files_of(self, batch: int, packets: DataFrame) -> dict[str, Found]:
        note = self._note(batch)
        if self._lake.files.exists(note):
            return {path: Found(*found) for path, found in json.loads(self._lake.files.read_text(note)).items()}
        # Somebody has deleted the checkpoints meanwhile.
        names = [row["file"] for row in packets.select("file").distinct().collect()]
        return {name: look(name).get(name, Found(0, 0)) for name in names}

    def _note(self, batch: int) -> str:
        return self._lake.files.at("checkpoints", JOB, f"{batch:010d}.json")


def look(path: str) -> dict[str, Found]:
    """The files there are, each as it is now. None is no error: captures come when they come."""
    found = {}
    for each in matching_files(path):
        try:
            status = os.stat(each)
        except FileNotFoundError:
            continue
        found[each] = Found(status.st_size, status.st_mtime_ns)
    return found


def read_packets(lake: Lake, files: list[str]) -> DataFrame:
    return lake.spark.read.format("pcap").load(",".join(files))


def obstacle(path: str, found: Found) -> str | None:
    """Why it is not taken, at rest or not. Spark fails as a whole at one file that it cannot name or open."""
    if "," in path:
        return "has a comma in its name, which separates files: give it another name"
    if path != path.rstrip():
        return "has a space at the end of its name: give it another name"
    if path.encode(errors="ignore").decode() != path:
        return "has a name that is not UTF-8: give it another name"
    if _age_s(found) < -MOST_CLOCK_ERROR_S:
        return "was written in the future, by its time, and waits until then: set the clock right, or touch it"
    try:
        with open(path, "rb"):
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _age_s(found: Found) -> float:
    return (time.time_ns() - found.modified_ns) / 1e9
