"""A stream on its way to an MQTT subscriber: an iterator that the dispatcher asks when the session's window
has room.

Everything comes from the log, also what was published a moment ago, so that there is neither a gap nor
another order between what was there and what follows. One batch is in memory at a time; the next is
fetched in a thread. While there is nothing, the cursor is parked and costs nothing.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from polybus.broker.dispatch import PARKED
from polybus.broker.message import Delivery, Message, MessageProperties
from polybus.broker.topics import matches
from polybus.errors import UsageError
from polybus.store.folder import StoreError
from polybus.store.streams.partition import Damaged, Gone, Partition
from polybus.store.streams.segment import read_batch
from polybus.store.streams.start import Asked, Start, Where, format_time
from polybus.store.streams.stream import Stream

log = logging.getLogger("polybus.streams")

OFFSET_PROPERTY: Final = "polybus-offset"
TIME_PROPERTY: Final = "polybus-time"
CLIENT_PROPERTY: Final = "polybus-client"

Fetch = Callable[[Callable[[], list[Delivery]], Callable[[list[Delivery] | Exception], None]], None]
"""Run the first in a thread, and give what it returns or raises to the second on the event loop's."""


class Cursor(Iterator[Delivery | None]):
    def __init__(
        self,
        stream: Stream,
        positions: dict[int, int],
        asked: Asked,
        *,
        qos: int,
        identifier: int,
        fetch: Fetch,
        on_wake: Callable[[], None],
    ) -> None:
        self.is_parked = False
        self._stream = stream
        self._positions = positions
        self._asked = asked
        self._qos = qos
        self._identifiers = (identifier,) if identifier else ()
        self._fetch = fetch
        self._on_wake = on_wake
        self._ready: Iterator[Delivery] = iter(())
        self._is_fetching = False

    def __next__(self) -> Delivery | None:
        delivery = next(self._ready, None)
        if delivery is not None:
            return delivery
        if not self._is_fetching:
            partition = self._behind()
            if partition is not None:
                self._is_fetching = True
                self._fetch(lambda: self._read(partition), self._fetched)
            else:
                self._stream.listeners.add(self)
        self.is_parked = not self._may_go_on()
        return PARKED if self.is_parked else None

    def wake(self) -> None:
        """There may be more now."""
        if self.is_parked and not self._is_fetching:
            self._stream.listeners.discard(self)
            self.is_parked = False
            self._on_wake()

    def _may_go_on(self) -> bool:
        """Whatever was fetched came at once, or came while this cursor was about to be parked."""
        return not self._is_fetching and self not in self._stream.listeners

    def _behind(self) -> Partition | None:
        """A partition with records to come; each in its turn."""
        for number in list(self._positions):
            position = self._positions.pop(number)
            self._positions[number] = position
            partition = self._stream.partitions[number]
            if position < partition.next:
                return partition
        return None

    def _fetched(self, result: list[Delivery] | Exception) -> None:
        self._is_fetching = False
        if isinstance(result, Exception):
            fields = {"stream": self._stream.name, "error": str(result)}
            log.error("a stream cannot be replayed", extra={"fields": fields})
            self._positions = {}
        else:
            self._ready = iter(result)
        self.wake()

    # -- in a thread -----------------------------------------------------------------------------

    def _read(self, partition: Partition) -> list[Delivery]:
        """The next batch of a partition, and the position behind it."""
        number = partition.number
        position = self._positions[number]
        try:
            extents = partition.span(position, position + 1)
        except Gone as gone:
            self._skip(number, position, gone.first, "dropped by retention")
            return []
        except Damaged as damaged:
            self._skip(number, position, damaged.end, "damaged")
            return []
        if not extents:  # offsets that were never used
            later = [segment.first for segment in partition.segments if segment.first > position]
            self._positions[number] = min(later, default=partition.next)
            return []
        segment, batches = extents[0]
        try:
            records = read_batch(segment.path, batches[0])
        except FileNotFoundError:  # dropped since
            return []
        self._positions[number] = batches[0].next
        return self._deliveries(number, records, position)

    def _skip(self, number: int, position: int, to: int, why: str) -> None:
        fields = {"stream": self._stream.name, "partition": number, "from": position, "to": to}
        log.warning(f"a replay left out records that were {why}", extra={"fields": fields})
        self._positions[number] = to

    def _deliveries(self, number: int, records: pa.RecordBatch, position: int) -> list[Delivery]:
        asked, qos = self._asked, self._qos
        columns = (records.column(i).to_pylist() for i in (0, 2, 3, 6, 7))
        times = records.column(1).cast(pa.int64()).to_pylist()
        found = []
        for offset, topic, payload, client_id, pairs, time in zip(*columns, times, strict=True):
            if offset < position or not (asked.filter == "#" or matches(asked.filter, topic)):
                continue
            said = (
                (OFFSET_PROPERTY, f"{number}:{offset}"),
                (TIME_PROPERTY, format_time(time)),
                (CLIENT_PROPERTY, client_id),
                *((pair["name"], pair["value"]) for pair in pairs),
            )
            properties = MessageProperties(user_properties=said)
            message = Message(asked.prefix + topic, payload, qos, properties=properties, origin=client_id)
            found.append(Delivery(message, qos, False, self._identifiers))
        return found


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


__all__ = ["Cursor", "StoreError", "positions_of"]
