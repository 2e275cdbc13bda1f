"""A stream: its partitions, what it has come to, and who waits for more."""

import json
import logging
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet
from zlib import crc32

from polybus.store.folder import StoreError
from polybus.store.streams.blocks import Block, divided
from polybus.store.streams.files import Files
from polybus.store.streams.gathering import Gathering
from polybus.store.streams.partition import Partition, Shape, numbered_folders
from polybus.store.streams.pieces import Piece
from polybus.store.streams.retention import Retention, expired
from polybus.store.streams.rule import StreamRule

if TYPE_CHECKING:
    from polybus.store.streams.cursor import Cursor

log = logging.getLogger("polybus.streams")

STREAM_FILE: Final = "stream.json"
ID_BYTES: Final = 8
MOST_TOPICS: Final = 100_000
"""Remembered with their partition."""
LONG_TOPIC_BYTES: Final = 256
"""Not remembered: they would take gigabytes, and looking them up costs as much as finding their partition."""


class Stream:
    def __init__(
        self, folder: Path, rule: StreamRule, *, is_synced: bool, files: Files, committed: int | None = None
    ) -> None:
        """Opens what is there, or begins. For `committed` see `Partition`. Raises StoreError or OSError."""
        self.rule = rule
        self.folder = folder
        self.refusal: str | None = None
        """Why nothing can be written. Set where it shows, cleared by the event loop, read by everyone."""
        self.lost = 0
        """Records that could not be written."""
        self.listeners: WeakSet[Cursor] = WeakSet()
        files.make_folder(folder)
        self.id = known_id(folder) or secrets.token_hex(ID_BYTES)
        """Its own for ever: one that was deleted and begins anew under the same name has another."""
        there = _partitions_there(folder)
        if there > rule.partitions:
            fields = {"stream": rule.name, "was": there, "is": rule.partitions}
            log.warning("fewer partitions than before: the others stay readable", extra={"fields": fields})
        elif 0 < there < rule.partitions:
            fields = {"stream": rule.name, "was": there, "is": rule.partitions}
            log.warning("more partitions: topics may move to another one", extra={"fields": fields})
        shape = Shape(rule.segment_bytes, rule.segment_age_s, rule.compression, is_synced)
        self.partitions: list[Partition] = []
        try:
            for number in range(max(rule.partitions, there)):
                self.partitions.append(Partition(folder / str(number), number, shape, files, committed))
            files.replace(folder / STREAM_FILE, _describe(rule, self.id))
        except BaseException:
            self.close()
            raise
        self.gatherings = [Gathering(partition) for partition in self.partitions]
        self._places: dict[bytes, Gathering] = {}

    @property
    def name(self) -> str:
        return self.rule.name

    def place(self, topic: bytes) -> Gathering:
        """Where records of this topic gather. For the event loop."""
        place = self._places.get(topic)
        if place is None:
            if len(topic) >= LONG_TOPIC_BYTES:
                return self.gatherings[partition_of(topic, self.rule.partitions)]
            if len(self._places) >= MOST_TOPICS:
                self._places.clear()
            place = self._places[topic] = self.gatherings[partition_of(topic, self.rule.partitions)]
        return place

    def divide(self, piece: Piece | Block) -> Iterable[tuple[Gathering, Piece | Block]]:
        """Its records, by where they gather. For the event loop."""
        if self.rule.partitions == 1:
            return ((self.gatherings[0], piece),)
        if isinstance(piece, Block):
            return divided(piece, self.place)
        return ((self.place(piece.topic), piece),)

    def committed(self, commit: int) -> bool:
        """What belongs to this commit is there for good. False: there was nothing. In any thread."""
        found = [partition.mark.committed(commit) for partition in self.partitions]
        return any(found)

    def tend(self, now_us: int) -> None:
        """Begin new segments and drop old ones, where it is time. Raises OSError. For the writer."""
        for partition in self.partitions:
            partition.tend(now_us)
        facts = [each for partition in self.partitions for each in partition.facts()]
        for each in expired(facts, Retention(self.rule.max_age_s, self.rule.max_bytes), now_us):
            self.partitions[each.partition].drop(each.first)
            fields = {"stream": self.name, "partition": each.partition, "first_offset": each.first}
            log.info("segment dropped", extra={"fields": fields})

    def close(self) -> None:
        for partition in self.partitions:
            partition.close()


def partition_of(topic: bytes, partitions: int) -> int:
    """The same for the same topic on every machine, for ever."""
    return crc32(topic) % partitions


def _describe(rule: StreamRule, identity: str) -> bytes:
    """For those who read the folder without the configuration."""
    told = {"format": 1, "name": rule.name, "id": identity, "filters": rule.filters}
    return json.dumps(told, indent=1).encode() + b"\n"


def known_id(folder: Path) -> str | None:
    """None: it has none yet. Raises StoreError."""
    path = folder / STREAM_FILE
    try:
        found = json.loads(path.read_text()).get("id")
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); move it away, and the stream gets a new id: readers will take it"
            " for another one"
        ) from error
    return str(found) if found else None


def _partitions_there(folder: Path) -> int:
    numbers = [int(path.name) for path in numbered_folders(folder)]
    if numbers and numbers != list(range(len(numbers))):
        raise StoreError(f"{folder} lacks a partition: there are only {numbers}; give back what was moved away")
    return len(numbers)
