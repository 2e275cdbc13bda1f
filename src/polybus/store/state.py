"""The state file: one SQLite database in the data folder.

Everything here blocks, so a broker writes from a thread of its own (`writer`). A batch is one transaction
of one statement for each kind of change (more if there is very much), with all its rows in one argument (JSON,
and one blob for what JSON cannot carry): each statement gives up the interpreter's lock and has to get it back
from a busy event loop, so a statement for each row would be slow when it matters.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from polybus.broker.ledger import Batch
from polybus.broker.restore import Image
from polybus.errors import ConfigError
from polybus.store.folder import Place, room_bytes
from polybus.store.schema import APPLICATION_ID, VERSION, migrate

log = logging.getLogger("polybus.store")

Sync: TypeAlias = Literal["normal", "full"]

STATE_FILE: Final = "state.sqlite"
CHECKPOINT_PAGES: Final = 4096
"""Pages in the write-ahead log past which they are brought into the file, which makes the commit that
does it wait for the disk: 16 MiB."""
START_BYTES: Final = 128 * 1024
"""What SQLite may write beside the file before it is open."""
CACHE_KIB: Final = 16 * 1024
LOOK_S: Final = 0.1
"""After so long a commit looks whether the files are still in their place. To look at four of them after each
would give up the interpreter's lock as often, and slow down small commits."""
ARGUMENT_BYTES: Final = 64 * 1024 * 1024
"""What one statement gets at once. Behind a disk in trouble more may wait than SQLite takes in one value."""

_DELETE: Final = "DELETE FROM {} WHERE {} IN (SELECT value FROM json_each(?1))"
_PUT_RECORDS: Final = (
    "INSERT OR REPLACE INTO {} SELECT json_extract(value, '$[0]'),"
    " substr(?2, json_extract(value, '$[1]'), json_extract(value, '$[2]')) FROM json_each(?1)"
)
_PUT_ROWS: Final = (
    "INSERT OR REPLACE INTO deliveries SELECT "
    + ", ".join(f"json_extract(value, '$[{column}]')" for column in range(9))
    + " FROM json_each(?1)"
)
_SENT: Final = (
    "UPDATE deliveries SET packet_id = json_extract(value, '$[1]'), sent = json_extract(value, '$[2]')"
    " FROM json_each(?1) WHERE row = json_extract(value, '$[0]')"
)
_RELEASED: Final = "UPDATE deliveries SET piece = 0 WHERE row IN (SELECT value FROM json_each(?1))"
_SUBSCRIBE: Final = (
    "INSERT OR REPLACE INTO subscriptions SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " substr(?2, json_extract(value, '$[2]'), json_extract(value, '$[3]')) FROM json_each(?1)"
)
_UNSUBSCRIBE: Final = (
    "DELETE FROM subscriptions WHERE (session, filter) IN"
    " (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1))"
)
_FACT: Final = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
_LOGGED: Final = "logged"

_to_json: Final = msgspec.json.Encoder().encode


class StateFile:
    """Raises ConfigError for a file that is not ours, newer than we know, or damaged; it stays as it is."""

    def __init__(
        self,
        path: Path,
        sync: Sync = "normal",
        before_commit: Callable[[], None] = lambda: None,
        *,
        beside: Iterable[Place] = (),
        look_s: float = LOOK_S,
    ) -> None:
        """`before_commit` may raise what a disk may do to the end of a transaction. `beside`: other files that
        must stay in their place."""
        self.path = path
        self._places = list(beside)
        self._is_moved = False
        self._look_s = look_s
        self._look_at = 0.0
        self.is_synced = sync == "full"
        self._before_commit = before_commit
        is_new = not path.exists() or not path.stat().st_size
        try:
            if is_new:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=64
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot open {path}: {error}; choose another data folder") from error
        try:
            self._prepare(is_new, sync)
            # The log and its index are there from the first transaction to the end.
            for suffix in ("", "-wal", "-shm"):
                self._places.append(Place.of(path.with_name(path.name + suffix)))
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, is_new: bool, sync: Sync) -> None:
        db = self._db
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
            if not is_new and not version and not application:
                # A first start that was broken off leaves an empty database. Another program's has tables.
                is_new = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
            if not is_new and application != APPLICATION_ID:
                raise ConfigError(
                    f"{self.path} is an SQLite database of another program; it is left as it is:"
                    " choose another data folder, or move the file away"
                )
            if version > VERSION:
                raise ConfigError(
                    f"{self.path} was written by a newer Polybus (schema {version}, this one knows {VERSION});"
                    " it is left as it is: use the newer version, or choose another data folder"
                )
            if not is_new:
                self._check()
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if sync == 'full' else 'NORMAL'}")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if version < VERSION:
                migrate(db, version)
        except sqlite3.DatabaseError as error:
            folder = self.path.parent
            left = room_bytes(folder)
            if left < START_BYTES:  # SQLite says "I/O error" for this, too
                raise ConfigError(
                    f"{self.path} cannot be opened: {error}; {folder} has {left // 1024} kB left, and a start"
                    f" needs some {START_BYTES // 1024} kB: make room, or choose another folder (--data-dir)"
                ) from error
            if is_new:
                raise ConfigError(
                    f"{self.path} cannot be written: {error}; make room, or choose another data folder"
                ) from error
            raise ConfigError(
                f"{self.path} cannot be read: {error}; it is left as it is:"
                " restore it from a backup, or move it away to begin anew"
            ) from error

    def _check(self) -> None:
        problem = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise damaged(self.path, problem)

    def close(self) -> None:
        self._db.close()

    # -- reading ------------------------------------------------------------------------------------

    def begin(self, now: float) -> Image:
        """Note another start, and give what there is. `now`: the wall clock, if nothing better is known."""
        facts = dict(self._db.execute("SELECT name, value FROM facts"))
        starts = int(facts.get("starts", 0)) + 1
        self._db.execute(_FACT, ("starts", starts))
        if _LOGGED not in facts:  # from here on, what a log has beyond this was not committed
            self._db.execute(_FACT, (_LOGGED, 0))
        rows = "SELECT row, session, piece, first, count, qos, packet_id, sent, extra FROM deliveries"
        return Image(
            starts,
            float(facts.get("alive_at", now)),
            self._select("SELECT number, record FROM sessions ORDER BY number"),
            self._select("SELECT session, ids FROM received"),
            self._select("SELECT session, filter, record FROM subscriptions"),
            self._select("SELECT number, record FROM pieces"),
            self._select(f"{rows} WHERE sent = 0 ORDER BY row"),
            self._select(f"{rows} WHERE sent > 0 ORDER BY sent"),
            (record for (record,) in self._select("SELECT record FROM retained")),
            self._select("SELECT number, record FROM stored ORDER BY number"),
            self._select("SELECT serial, record FROM requests ORDER BY serial"),
        )

    def logged(self) -> int | None:
        """The last commit that logs waited for; None: there was none yet."""
        found = self._db.execute("SELECT value FROM facts WHERE name = ?", (_LOGGED,)).fetchone()
        return None if found is None else int(found[0])

    def _select(self, query: str) -> Iterator[Any]:
        return self._db.execute(query)

    # -- writing ------------------------------------------------------------------------------------

    def check_places(self) -> None:
        """Raises FileMoved if what is written would not be found."""
        self._look_at = time.monotonic() + self._look_s
        self._is_moved = True
        for place in self._places:
            place.check()
        self._is_moved = False

    def apply(self, batch: Batch) -> None:
        """All of it or nothing; it may be applied again. Raises sqlite3.Error, FileMoved."""
        if self._is_moved:
            self.check_places()  # the folder may be somebody else's by now
        self._apply(batch)
        if time.monotonic() >= self._look_at:
            self.check_places()  # else it is safe in a file that nobody will open

    def _apply(self, batch: Batch) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            self._write(batch)
            self._before_commit()
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _write(self, batch: Batch) -> None:
        for statement, gone in (
            (_GONE_ROWS, batch.gone_rows),
            (_GONE_PIECES, batch.gone_pieces),
            (_GONE_SESSIONS, batch.gone_sessions),
            (_GONE_RECEIVED, batch.gone_sessions),
            (_GONE_STORED, batch.gone_stored),
            (_GONE_REQUESTS, batch.gone_requests),
            (_RELEASED, batch.released),
        ):
            if gone:
                self._run(statement, gone)
        for statement, records in (
            (_PUT_PIECES, batch.pieces),
            (_PUT_SESSIONS, batch.sessions),
            (_PUT_STORED, batch.stored),
            (_PUT_REQUESTS, batch.requests),
        ):
            if records:
                self._put(statement, records)
        if batch.rows:
            self._run(_PUT_ROWS, batch.rows)
        if batch.sent:
            self._run(_SENT, batch.sent)
        if batch.received:
            self._replace(_PUT_RECEIVED, _GONE_RECEIVED, [(n, ids or None) for n, ids in batch.received])
        if batch.retained:
            self._replace(_PUT_RETAINED, _GONE_RETAINED, batch.retained)
        if batch.subscriptions:
            self._subscriptions(batch)
        if batch.alive_at is not None:
            self._db.execute(_FACT, ("alive_at", batch.alive_at))
        if batch.logged:
            self._db.execute(_FACT, (_LOGGED, batch.logged))

    def _run(self, statement: str, values: list[Any]) -> None:
        text = _to_json(values)
        if self._is_too_long(len(text), values):
            for half in _halves(values):
                self._run(statement, half)
        else:
            self._db.execute(statement, (text.decode(),))

    def _put(self, statement: str, records: list[Any]) -> None:
        """Keys and the place of each record in one long blob; SQL counts from 1."""
        places, at = [], 1
        for *keys, record in records:
            places.append((*keys, at, len(record)))
            at += len(record)
        text = _to_json(places)
        if self._is_too_long(max(at, len(text)), records):
            for half in _halves(records):
                self._put(statement, half)
        else:
            blob = b"".join([record[-1] for record in records])
            self._db.execute(statement, (text.decode(), blob))

    def _is_too_long(self, size_bytes: int, values: list[Any]) -> bool:
        """For one argument. A single record always fits: no packet is as large as what SQLite takes (1 GB)."""
        limit = self._db.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) // 2
        return size_bytes > min(ARGUMENT_BYTES, limit) and len(values) > 1

    def _replace(self, put: str, delete: str, records: list[Any]) -> None:
        """Those without a record are deleted."""
        there = [record for record in records if record[-1] is not None]
        gone = [record[0] for record in records if record[-1] is None]
        if gone:
            self._run(delete, gone)
        if there:
            self._put(put, there)

    def _subscriptions(self, batch: Batch) -> None:
        there = [each for each in batch.subscriptions if each[2] is not None]
        gone = [each[:2] for each in batch.subscriptions if each[2] is None]
        if gone:
            self._run(_UNSUBSCRIBE, gone)
        if there:
            self._put(_SUBSCRIBE, there)


def _halves(values: list[Any]) -> tuple[list[Any], list[Any]]:
    middle = len(values) // 2
    return values[:middle], values[middle:]


def damaged(path: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"{path} is damaged ({problem}); it is left as it is:"
        " restore it from a backup, or move it away to begin anew"
    )


_GONE_ROWS: Final = _DELETE.format("deliveries", "row")
_GONE_PIECES: Final = _DELETE.format("pieces", "number")
_GONE_SESSIONS: Final = _DELETE.format("sessions", "number")
_GONE_RECEIVED: Final = _DELETE.format("received", "session")
_GONE_STORED: Final = _DELETE.format("stored", "number")
_GONE_REQUESTS: Final = _DELETE.format("requests", "serial")
_GONE_RETAINED: Final = _DELETE.format("retained", "topic")
_PUT_PIECES: Final = _PUT_RECORDS.format("pieces")
_PUT_SESSIONS: Final = _PUT_RECORDS.format("sessions")
_PUT_STORED: Final = _PUT_RECORDS.format("stored")
_PUT_REQUESTS: Final = _PUT_RECORDS.format("requests")
_PUT_RECEIVED: Final = _PUT_RECORDS.format("received")
_PUT_RETAINED: Final = _PUT_RECORDS.format("retained")
