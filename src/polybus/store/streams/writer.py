"""All streams of a broker, and the thread that writes them.

The event loop only notes what was published (`StreamLog.append`). The thread turns what has gathered
into one batch per partition and writes it; then the loop is told, releases the acknowledgements that
waited for it (`commit`), and wakes those who read along. While acknowledgements wait, a group is
written as soon as the one before it is done; otherwise it may gather for a moment. What belongs to a
commit of the state is seen after that (`mark`).

What waits is bounded: past `MOST_WAITING_BYTES` publishers are stopped. What cannot be written is told
(`refusal`, `on_failed`), counted and logged, and never acknowledged; everything else goes on.
"""

import contextlib
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from polybus.broker.message import Message, Run
from polybus.broker.topics import matches
from polybus.store.folder import DataFolder, StoreError
from polybus.store.streams.blocks import Block
from polybus.store.streams.columns import Piece, build, pieces_of
from polybus.store.streams.files import Files
from polybus.store.streams.rule import StreamRule
from polybus.store.streams.stream import Gathering, Stream

log = logging.getLogger("polybus.streams")

MOST_WAITING_BYTES: Final = 32 * 1024 * 1024
ENOUGH_BYTES: Final = 1024 * 1024
"""Waiting for the writer: it need not wait for more."""
GATHER_S: Final = 0.02
"""How long records that nobody waits for may gather."""
BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 4 * 1024 * 1024
TEND_S: Final = 1.0
OPEN_KIB: Final = 64
"""What opening a partition may write: notes of its own, and the beginning of a segment."""
ITEM_BYTES: Final = 200
"""What a noted message costs beside its bytes."""

Clock: TypeAlias = Callable[[], int]
"""Microseconds since 1970."""


def wall_clock() -> int:
    return time.time_ns() // 1000


class StreamLog:
    """The streams of certain topics, as the core sees them (`broker.journal.Log`)."""

    __slots__ = ("_streams", "streams")

    def __init__(self, owner: "StreamSet", streams: tuple[Stream, ...]) -> None:
        self._streams = owner
        self.streams = streams

    @property
    def refusal(self) -> str | None:
        return next((stream.refusal for stream in self.streams if stream.refusal is not None), None)

    def append(self, item: Message | Run, commit: int = 0) -> bool:
        return self._streams.take(self, item, commit)


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
        self._noted: deque[tuple[int, StreamLog, Message | Run, int]] = deque()
        self._taken = 0
        self._bytes_taken = 0
        self._safe = 0
        self._has_stopped_some = False
        self._commits: deque[tuple[int, Callable[[], None]]] = deque()
        # The writer's own:
        self._written = 0
        self._bytes_written = 0
        self._tend_at = 0.0
        self._work = threading.Event()
        self._urgent = threading.Event()
        self._is_awake = False
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def start(self, post: Callable[..., object]) -> None:
        """Begin to write; `post` calls a function with arguments on the event loop's thread."""
        self._post = post
        self._thread = threading.Thread(target=self._run, name="polybus-streams", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write what is left, and no more. Commits that it completes are not told; `committed` still is."""
        if self._thread is not None:
            self._is_stopping = True
            self._urgent.set()
            self._work.set()
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
        self._noted.append((self._clock(), streams, item, commit))
        self._taken += 1
        self._bytes_taken += _cost(item)
        if not self._is_awake:
            self._is_awake = True
            self._work.set()
        waiting = self._bytes_taken - self._bytes_written
        if waiting < ENOUGH_BYTES:
            return True
        self._urgent.set()
        if waiting < MOST_WAITING_BYTES:
            return True
        self._has_stopped_some = True
        return False

    def waiting_bytes(self) -> int:
        return self._bytes_taken - self._bytes_written

    def commit(self, done: Callable[[], None]) -> None:
        """`broker.journal.Journal`."""
        if self._safe == self._taken and not self._commits:
            done()
            return
        self._commits.append((self._taken, done))
        self._urgent.set()
        self._work.set()

    def committed(self, commit: int) -> None:
        """The state has this commit. In the thread that wrote it, before anyone else is told."""
        if touched := [stream for stream in self.streams.values() if stream.committed(commit)]:
            self._post(self._wake, touched)

    def _wake(self, touched: Collection[Stream]) -> None:
        for stream in touched:
            for cursor in list(stream.listeners):
                cursor.wake()

    def _on_written(self, written: int, touched: Collection[Stream], failed: Collection[str], why: str) -> None:
        self._safe = written
        if failed:
            self.on_failed(failed, why)
        while self._commits and self._commits[0][0] <= written:
            done = self._commits.popleft()[1]
            try:
                done()
            except Exception:  # our own fault: it must not cost those behind it
                log.exception("internal error after a commit")
        self._wake(touched)
        if self._has_stopped_some and self.waiting_bytes() < MOST_WAITING_BYTES // 2:
            self._has_stopped_some = False
            self.on_room()

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            if self._work.wait(TEND_S) and not self._urgent.is_set():
                self._urgent.wait(GATHER_S)
            self._work.clear()
            self._urgent.clear()
            self._is_awake = False
            stops = self._is_stopping
            try:
                self._write_group()
                if time.monotonic() >= self._tend_at:
                    self._tend_at = time.monotonic() + TEND_S
                    self._tend()
            except Exception:
                log.exception("the writer of streams failed")
            if stops and not self._noted:
                return

    def _write_group(self) -> None:
        noted = self._noted
        count = len(noted)
        if not count:
            return
        failed: set[str] = set()
        touched: set[Stream] = set()
        size = 0
        for _ in range(count):
            at, streams, item, commit = noted.popleft()
            size += _cost(item)
            touched.update(streams.streams)
            for piece in pieces_of(item, at):
                for stream in streams.streams:
                    if isinstance(piece, Block):
                        for place, part in stream.divide(piece):
                            self._gather(stream, place, part, part.size_bytes, commit, failed)
                    else:
                        place = stream.place(piece.topic)
                        self._gather(stream, place, piece, piece.count * piece.width, commit, failed)
        for stream in touched:
            for place in stream.gatherings:
                if place.pieces:
                    self._flush(stream, place, failed)
        why = next((s.refusal for s in touched if s.refusal is not None), None) or "it could not be stored"
        self._written += count
        self._bytes_written += size
        self._post(self._on_written, self._written, touched, failed, why)

    def _gather(
        self,
        stream: Stream,
        place: Gathering,
        piece: Piece | Block,
        size_bytes: int,
        commit: int,
        failed: set[str],
    ) -> None:
        if commit != place.commit and commit:
            if place.commit:
                self._flush(stream, place, failed)
            place.commit = commit
        place.pieces.append(piece)
        place.rows += piece.count
        place.size_bytes += size_bytes
        if place.rows >= BATCH_ROWS or place.size_bytes >= BATCH_BYTES:
            self._flush(stream, place, failed)

    def _flush(self, stream: Stream, place: Gathering, failed: set[str]) -> None:
        pieces, rows, commit = place.pieces, place.rows, place.commit
        place.pieces, place.rows, place.size_bytes, place.commit = [], 0, 0, 0
        if stream.refusal is None:
            try:
                place.partition.append(build(pieces, place.partition.written), commit)
            except Exception as error:
                self._refuse(stream, error)
            else:
                try:
                    place.partition.tend(self._clock())
                except OSError as error:
                    self._refuse(stream, error)
                return
        stream.lost += rows
        failed.update(piece.client_id.decode() for piece in pieces if piece.qos)

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
                stream.refusal = None
                fields = {"stream": stream.name, "lost_records": stream.lost}
                log.warning("a stream can be written again", extra={"fields": fields})


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


def _cost(item: Message | Run) -> int:
    size = len(item.wire) if isinstance(item, Run) else len(item.payload) + len(item.topic)
    return size + ITEM_BYTES
