"""A stream on its way to an MQTT subscriber: an iterator that the dispatcher asks when the session's window
has room.

Everything comes from the log, also what was published a moment ago, so that there is neither a gap nor
another order between what was there and what follows. One batch is in memory at a time; the next is
fetched in a thread. While there is nothing, the cursor is parked and costs nothing.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from polybus.broker.dispatch import PARKED
from polybus.broker.message import Delivery, Message, MessageProperties
from polybus.broker.topics import matches
from polybus.errors import UsageError
from polybus.store.streams.partition import Damaged, Gone, Partition
from polybus.store.streams.segment import read_batch
from polybus.store.streams.start import Asked, Start, Where, format_time
from polybus.store.streams.stream import Stream

log = logging.getLogger("polybus.streams")

OFFSET_PROPERTY: Final = "polybus-offset"
TIME_PROPERTY: Final = "polybus-time"
CLIENT_PROPERTY: Final = "polybus-client"

ROWS_A_STEP: Final = 128
"""Records made into messages at a time: as objects they take many times the room."""

Records: TypeAlias = tuple[int, int, pa.RecordBatch]
"""Of a partition, from an offset on."""
Fetch: TypeAlias = Callable[[Callable[[], Records | None], Callable[[Records | Exception | None], None]], None]
"""Run the first in a thread, and give what it returns or raises to the second on the event loop's."""


class Cursor(Iterator[Delivery | None]):
    """Of the event loop's thread, but for what is below."""

    def __init__(
        self,
        stream: Stream,
        asked: Asked,
        *,
        qos: int,
        identifier: int,
        fetch: Fetch,
        on_wake: Callable[[], None],
    ) -> None:
        """Raises UsageError for a start that cannot be."""
        self.is_parked = False
        self._stream = stream
        self._asked = asked
        self._qos = qos
        self._identifiers = (identifier,) if identifier else ()
        self._fetch = fetch
        self._on_wake = on_wake
        self._ready: Iterator[Delivery] = iter(())
        self._is_fetching = False
        self._has_failed = False
        # Times are looked for in files, so that has to wait for a thread.
        self._positions = None if asked.start.time is not None else positions_of(stream, asked.start)

    def __next__(self) -> Delivery | None:
        delivery = next(self._ready, None)
        if delivery is not None:
            return delivery
        if not self._is_fetching and not self._has_failed:
            if self._positions is None:
                self._is_fetching = True
                self._fetch(self._find_positions, self._fetched)
            elif (partition := self._behind(self._positions)) is not None:
                self._is_fetching = True
                self._fetch(partial(self._read, partition, self._positions), self._fetched)
            else:
                self._stream.listeners.add(self)
        self.is_parked = True
        return PARKED

    def wake(self) -> None:
        """There may be more now."""
        if self.is_parked and not self._is_fetching:
            self._stream.listeners.discard(self)
            self.is_parked = False
            self._on_wake()

    def _behind(self, positions: dict[int, int]) -> Partition | None:
        """A partition with records to come; each in its turn."""
        for number in list(positions):
            position = positions[number] = positions.pop(number)
            partition = self._stream.partitions[number]
            if position < partition.next:
                return partition
        return None

    def _fetched(self, result: Records | Exception | None) -> None:
        self._is_fetching = False
        if isinstance(result, Exception):
            fields = {"stream": self._stream.name, "error": str(result)}
            log.error("a stream cannot be replayed", extra={"fields": fields})
            self._has_failed = True
        elif result is not None:
            self._ready = self._deliveries(*result)
        self.wake()

    def _deliveries(self, number: int, position: int, records: pa.RecordBatch) -> Iterator[Delivery]:
        asked, qos = self._asked, self._qos
        for at in range(0, len(records), ROWS_A_STEP):
            step = records.slice(at, ROWS_A_STEP)
            columns = (step.column(name).to_pylist() for name in ("offset", "topic", "payload", "client_id"))
            times = step.column("time").cast(pa.int64()).to_pylist()
            said = step.column("user_properties").to_pylist()
            for offset, topic, payload, client_id, time, pairs in zip(*columns, times, said, strict=True):
                if offset < position or not (asked.filter == "#" or matches(asked.filter, topic)):
                    continue
                properties = MessageProperties(
                    user_properties=(
                        (OFFSET_PROPERTY, f"{number}:{offset}"),
                        (TIME_PROPERTY, format_time(time)),
                        (CLIENT_PROPERTY, client_id),
                        *((pair["name"], pair["value"]) for pair in pairs),
                    )
                )
                message = Message(asked.prefix + topic, payload, qos, properties=properties, origin=client_id)
                yield Delivery(message, qos, False, self._identifiers)

    # -- in a thread, while the cursor waits for it ---------------------------------------------------

    def _find_positions(self) -> None:
        self._positions = positions_of(self._stream, self._asked.start)

    def _read(self, partition: Partition, positions: dict[int, int]) -> Records | None:
        """The next batch of a partition; its position goes behind that."""
        number = partition.number
        position = positions[number]
        try:
            extents = partition.span(position, position + 1)
        except Gone as gone:
            positions[number] = self._skip(number, position, gone.first, "dropped by retention")
            return None
        except Damaged as damaged:
            positions[number] = self._skip(number, position, damaged.end, "damaged")
            return None
        if not extents:  # offsets that were never used
            later = [segment.first for segment in partition.segments if segment.first > position]
            positions[number] = min(later, default=partition.next)
            return None
        segment, batches = extents[0]
        try:
            records = read_batch(segment.path, batches[0])
        except FileNotFoundError:  # dropped since
            return None
        positions[number] = batches[0].next
        return number, position, records

    def _skip(self, number: int, position: int, to: int, why: str) -> int:
        fields = {"stream": self._stream.name, "partition": number, "from": position, "to": to}
        log.warning(f"a replay left out records that were {why}", extra={"fields": fields})
        return to


def positions_of(stream: Stream, start: Start) -> dict[int, int]:
    """Where to begin, by partition. Raises UsageError. Times are looked for in files: not on the event loop."""
    partitions = stream.partitions
    if start.time is not None:
        return {each.number: each.offset_at(start.time) for each in partitions}
    if start.everywhere is not None:
        if isinstance(start.everywhere, int) and len(partitions) > 1:
            raise UsageError(
                f"stream {stream.name} has {len(partitions)} partitions with offsets of their own;"
                " name them: 0:<offset>,1:<offset>,…"
            )
        return {each.number: _position(stream, each, start.everywhere) for each in partitions}
    for number, _ in start.partitions:
        if number >= len(partitions):
            raise UsageError(f"stream {stream.name} has no partition {number}, only 0 to {len(partitions) - 1}")
    return {number: _position(stream, partitions[number], where) for number, where in start.partitions}


def _position(stream: Stream, partition: Partition, where: Where) -> int:
    if where == "first":
        return partition.first
    if where == "next":
        return partition.next
    assert isinstance(where, int)
    if where > partition.next:
        raise UsageError(
            f"stream {stream.name} partition {partition.number} has not reached {where} yet: next is"
            f" {partition.next}"
        )
    if where < partition.first:
        raise UsageError(str(Gone(where, partition.first)))
    return where
