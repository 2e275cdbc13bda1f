"""All streams of a broker, and the thread that writes them.

The event loop makes batches of what is published, and the thread puts them on the disk. Making them costs less
there than elsewhere: what was just read is still in the processor's cache, and two threads of one interpreter
that both compute take turns, which costs both. The thread waits for the disk, so that nobody else has to, and
packs what would take long.

A batch is made when there is enough for one; when acknowledgements wait for it (`commit`) and the thread has
nothing to do; or when it has gathered for a moment. When it is written the loop is told, releases those
acknowledgements, and wakes those who read along. What belongs to a commit of the state is seen after that
(`mark`).

What waits is bounded: past `MOST_WAITING_BYTES` publishers are stopped. What cannot be written is told
(`refusal`, `on_failed`), counted and logged, and never acknowledged; everything else goes on. The stream
goes on when the disk does and everybody has been told of what failed: else a message could be kept before an
earlier one that its publisher has to send again.
"""

import contextlib
import errno
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from polybus.broker.message import Message, Run
from polybus.broker.topics import matches
from polybus.store.folder import DataFolder, StoreError
from polybus.store.streams.blocks import Block
from polybus.store.streams.columns import build
from polybus.store.streams.files import Files
from polybus.store.streams.format import Encoded, Records, encode_batch
from polybus.store.streams.gathering import BATCH_BYTES, Gathering
from polybus.store.streams.pieces import Packer, Piece, cut, pieces_of
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.stream import Stream

log = logging.getLogger("polybus.streams")

MOST_WAITING_BYTES: Final = 32 * 1024 * 1024
ENOUGH_BYTES: Final = 1024 * 1024
"""Of batches, or of what they will be made of: the thread need not wait for more."""
GATHER_S: Final = 0.02
"""How long records that nobody waits for may gather."""
TEND_S: Final = 1.0
OPEN_KIB: Final = 64
"""What opening a partition may write: notes of its own, and the beginning of a segment."""

Clock: TypeAlias = Callable[[], int]
"""Microseconds since 1970."""


def wall_clock() -> int:
    return time.time_ns() // 1000


class Ready(NamedTuple):
    """What was gathered in a partition, on its way to the disk."""

    stream: Stream
    place: Gathering
    records: Records | None
    """None: the stream could not be written when they were gathered."""
    encoded: Encoded | None
    """None: they have to be encoded yet."""
    rows: int
    held_bytes: int
    commit: int
    publishers: Collection[str]
    """Who wants to hear what became of it."""


class Group(NamedTuple):
    """What is written in one go."""

    ready: Sequence[Ready]
    size_bytes: int
    taken: int
    """With it, so many of what was taken are written."""


class Told(NamedTuple):
    """Behind everything that fails with a stream: say so when it has failed."""

    stream: Stream


class _Wish(Enum):
    """What else the thread is asked for."""

    WAKE = auto()
    """Something has begun to gather: say when it is time."""
    STOP = auto()


class StreamLog:
    """The streams of certain topics, as the core sees them (`broker.journal.Log`)."""

    __slots__ = ("_owner", "is_packed", "streams")

    def __init__(self, owner: "StreamSet", streams: tuple[Stream, ...]) -> None:
        self._owner = owner
        self.streams = streams
        self.is_packed = all(stream.rule.compression == "lz4" for stream in streams)

    @property
    def refusal(self) -> str | None:
        return next((stream.refusal for stream in self.streams if stream.refusal is not None), None)

    def append(self, item: Message | Run, commit: int = 0) -> bool:
        return self._owner.take(self, item, commit)


class StreamSet:
    """Everything but the thread itself belongs to the event loop's thread."""

    def __init__(
        self,
        folder: DataFolder,
        rules: Sequence[StreamRule],
        *,
        is_synced: bool = False,
        files: Files | None = None,
        clock: Clock = wall_clock,
        committed: int | None = None,
    ) -> None:
        """Opens every stream. `committed` is the last commit that the state has, if anyone knows. Raises
        StoreError."""
        self._clock = clock
        self.streams: dict[str, Stream] = {}
        try:
            for rule in rules:
                place = folder.path / "streams" / rule.name
                with _opening(rule, place):
                    folder.folder("streams")
                    self.streams[rule.name] = Stream(
                        place, rule, is_synced=is_synced, files=files or Files(), committed=committed
                    )
        except BaseException:
            self._close_streams()
            raise
        self.on_failed: Callable[[Collection[str], str], None] = lambda origins, why: None
        """Told who published what could not be written and wants to hear of it, before commits are done."""
        self.on_room: Callable[[], None] = lambda: None
        """Told when those whom `append` stopped may go on."""
        self._post: Callable[..., object] = lambda call, *arguments: call(*arguments)
        self._logs: dict[tuple[str, ...], StreamLog] = {}
        self._packer = Packer()
        self._taken = 0
        self._made = 0
        """How many of those the thread was given, with nothing left behind …"""
        self._safe = 0
        """… and how many are written."""
        self._gathered_bytes = 0
        self._ready: list[Ready] = []
        self._ready_bytes = 0
        self._writing_bytes = 0
        self._groups = 0
        """That the thread has."""
        self._is_awake = False
        """The thread will say when it is time."""
        self._has_stopped_some = False
        self._resuming: set[Stream] = set()
        self._commits: deque[tuple[int, Callable[[], None]]] = deque()
        self._work: queue.SimpleQueue[Group | Told | _Wish] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, post: Callable[..., object]) -> None:
        """Begin to write; `post` calls a function with arguments on the event loop's thread."""
        self._post = post
        self._thread = threading.Thread(target=self._run, name="polybus-streams", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write what is left, and no more. Commits that it completes are not told; `committed` still is."""
        if self._thread is not None:
            self._make_all()
            self._submit()
            self._work.put(_Wish.STOP)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        self.finish()
        self._close_streams()

    def _close_streams(self) -> None:
        for stream in self.streams.values():
            stream.close()

    # -- on the event loop --------------------------------------------------------------------

    def log_of(self, topic: str) -> StreamLog | None:
        """Who keeps messages of this topic."""
        names = tuple(
            name
            for name, stream in self.streams.items()
            if any(matches(each, topic) for each in stream.rule.filters)
        )
        if not names:
            return None
        found = self._logs.get(names)
        if found is None:
            found = self._logs[names] = StreamLog(self, tuple(self.streams[name] for name in names))
        return found

    def take(self, streams: StreamLog, item: Message | Run, commit: int) -> bool:
        for piece in self._pieces(streams, item):
            for stream in streams.streams:
                for place, part in stream.divide(piece):
                    if place.commit and commit and commit != place.commit:
                        self._make(stream, place)
                    self._gathered_bytes += place.add(part, commit)
                    if place.is_enough:
                        self._make(stream, place)
        self._taken += 1
        if self._gathered_bytes >= ENOUGH_BYTES:
            self._make_all()
        if self._ready_bytes >= ENOUGH_BYTES:
            self._submit()
        if not self._is_awake and (self._gathered_bytes or self._ready):
            self._is_awake = True
            self._work.put(_Wish.WAKE)
        if self.waiting_bytes() < MOST_WAITING_BYTES:
            return True
        self._has_stopped_some = True
        return False

    def _pieces(self, streams: StreamLog, item: Message | Run) -> Iterable[Piece | Block]:
        now = self._clock()
        if isinstance(item, Run):
            name = len(item.origin)
            if item.count * name > BATCH_BYTES:
                # Each record has the name of its publisher: up to 65 kB for a packet of six bytes.
                return cut(pieces_of(item, now), max(1, BATCH_BYTES // name))
            if streams.is_packed and (packed := self._packer.pack(item, now)) is not None:
                return (packed,)
        return pieces_of(item, now)

    def waiting_bytes(self) -> int:
        return self._gathered_bytes + self._ready_bytes + self._writing_bytes

    def commit(self, done: Callable[[], None]) -> None:
        """`broker.journal.Journal`."""
        if self._safe == self._taken and not self._commits:
            done()
            return
        self._commits.append((self._taken, done))
        self._hurry()

    def _hurry(self) -> None:
        """Somebody waits: what has gathered while the thread was busy is written in one go."""
        if not self._groups:
            self._make_all()
            self._submit()

    def _on_time(self) -> None:
        self._is_awake = False
        self._make_all()
        self._submit()

    def _make_all(self) -> None:
        for stream in self.streams.values():
            for place in stream.gatherings:
                if place.rows:
                    self._make(stream, place)

    def _make(self, stream: Stream, place: Gathering) -> None:
        """A batch of what has gathered here."""
        held, is_quick, offset = place.held_bytes, place.is_quick, place.offset
        pieces, rows, commit = place.empty()
        publishers = {piece.client_id.decode() for piece in pieces if piece.qos}
        records = encoded = None
        if stream.refusal is None:
            try:
                records = build(pieces, offset)
                if is_quick and stream.rule.compression != "zstd":
                    encoded = encode_batch(records, stream.rule.compression, commit)
            except Exception as error:
                self._refuse(stream, error)
                records = None
            else:
                place.left(offset + rows)
        self._gathered_bytes -= held
        self._ready_bytes += held
        self._ready.append(Ready(stream, place, records, encoded, rows, held, commit, publishers))

    def _submit(self) -> None:
        """Give the thread what is ready."""
        if self._ready:
            if not self._gathered_bytes:
                self._made = self._taken
            self._work.put(Group(self._ready, self._ready_bytes, self._made))
            self._groups += 1
            self._writing_bytes += self._ready_bytes
            self._ready, self._ready_bytes = [], 0

    def _try_again(self, stream: Stream) -> None:
        """It can be written again. What was taken before fails all the same: it would come before what its
        publisher sends again."""
        if stream.refusal is not None and stream not in self._resuming:
            self._resuming.add(stream)
            self._make_all()
            self._submit()
            self._work.put(Told(stream))

    def _go_on(self, stream: Stream) -> None:
        self._resuming.discard(stream)
        stream.refusal = None
        fields = {"stream": stream.name, "lost_records": stream.lost}
        log.warning("a stream can be written again", extra={"fields": fields})

    def committed(self, commit: int) -> None:
        """The state has this commit. In the thread that wrote it, before anyone else is told."""
        if touched := [stream for stream in self.streams.values() if stream.committed(commit)]:
            self._post(self._wake, touched)

    def _wake(self, touched: Collection[Stream]) -> None:
        for stream in touched:
            for cursor in list(stream.listeners):
                cursor.wake()

    def _on_written(self, group: Group, failed: Collection[str], why: str) -> None:
        self._groups -= 1
        self._writing_bytes -= group.size_bytes
        self._safe = group.taken
        for ready in group.ready:
            if ready.records is not None:
                ready.place.arrived()
        if failed:
            self.on_failed(failed, why)
        while self._commits and self._commits[0][0] <= self._safe:
            done = self._commits.popleft()[1]
            try:
                done()
            except Exception:  # our own fault: it must not cost those behind it
                log.exception("internal error after a commit")
        if self._commits:
            self._hurry()
        self._wake({ready.stream for ready in group.ready})
        if self._has_stopped_some and self.waiting_bytes() < MOST_WAITING_BYTES // 2:
            self._has_stopped_some = False
            self.on_room()

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        due: float | None = None
        tend_at = 0.0
        while True:
            patience = TEND_S if due is None else max(0.0, due - time.monotonic())
            try:
                wish = self._work.get(timeout=patience)
            except queue.Empty:
                wish = None
            if wish is _Wish.STOP:
                return
            now = time.monotonic()
            if wish is _Wish.WAKE:
                due = now + GATHER_S
            elif due is not None and now >= due:
                due = None
                self._post(self._on_time)
            try:
                if isinstance(wish, Group):
                    self._write(wish)
                elif isinstance(wish, Told):
                    self._post(self._go_on, wish.stream)
                if now >= tend_at:
                    tend_at = now + TEND_S
                    self._tend()
            except Exception:
                log.exception("the writer of streams failed")

    def _write(self, group: Group) -> None:
        failed: set[str] = set()
        for ready in group.ready:
            if not self._is_written(ready):
                ready.stream.lost += ready.rows
                failed.update(ready.publishers)
        refusals = (ready.stream.refusal for ready in group.ready)
        why = next((refusal for refusal in refusals if refusal is not None), "it could not be stored")
        self._post(self._on_written, group, failed, why)

    def _is_written(self, ready: Ready) -> bool:
        stream, partition = ready.stream, ready.place.partition
        if stream.refusal is not None or ready.records is None:
            return False
        try:
            encoded = ready.encoded or encode_batch(ready.records, stream.rule.compression, ready.commit)
            partition.write(*encoded, ready.commit)
        except Exception as error:
            self._refuse(stream, error)
            return False
        try:
            partition.tend(self._clock())
        except Exception as error:  # whatever it is: those who wait for this group have to hear of it
            self._refuse(stream, error)
        return True

    def _refuse(self, stream: Stream, error: Exception) -> None:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "internal error"
        stream.refusal = f"stream {stream.name} cannot be written: {reason}"
        is_ours = not isinstance(error, OSError)
        fields = {"stream": stream.name, "folder": str(stream.folder), "error": reason}
        log.error("a stream cannot be written", extra={"fields": fields}, exc_info=error if is_ours else None)

    def _tend(self) -> None:
        now = self._clock()
        for stream in self.streams.values():
            try:
                if stream.refusal is not None:
                    stream.partitions[0].probe()
                stream.tend(now)
            except OSError as error:
                if stream.refusal is None:
                    self._refuse(stream, error)
                continue
            if stream.refusal is not None:
                self._post(self._try_again, stream)


@contextlib.contextmanager
def _opening(rule: StreamRule, place: Path) -> Iterator[None]:
    """Who starts a bus sees nothing but the error: it says where, and what is needed. Raises StoreError."""
    try:
        yield
    except OSError as error:
        remedy = "see to it that it can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"a start needs some {OPEN_KIB * rule.partitions} kB there: make room"
        raise StoreError(
            f"stream {rule.name} cannot be opened in {place}: {error.strerror or error}; {remedy},"
            " or choose another data folder (--data-dir)"
        ) from error
