"""The tables of the state file, and how an older file becomes one of today.

`VERSION` is the file's `user_version`. `MIGRATIONS` has one script for each version, which makes it from the
one before; a new file goes through all of them. Records inside are `polybus.broker.records`.
"""

import sqlite3
from typing import Final

APPLICATION_ID: Final = 0x504C_5942
"""In the file's header: ours, and no other program's ("PLYB")."""

_VERSION_1: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sessions (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE received (session INTEGER PRIMARY KEY, ids BLOB NOT NULL);
CREATE TABLE subscriptions (
    session INTEGER NOT NULL, filter TEXT NOT NULL, record BLOB NOT NULL, PRIMARY KEY (session, filter)
) WITHOUT ROWID;
CREATE TABLE pieces (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE deliveries (
    row INTEGER PRIMARY KEY, session INTEGER NOT NULL, piece INTEGER NOT NULL, first INTEGER NOT NULL,
    count INTEGER NOT NULL, qos INTEGER NOT NULL, packet_id INTEGER NOT NULL, sent INTEGER NOT NULL, extra TEXT
);
CREATE TABLE retained (topic TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE stored (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE requests (serial INTEGER PRIMARY KEY, record BLOB NOT NULL);
"""

MIGRATIONS: Final = (_VERSION_1,)
VERSION: Final = len(MIGRATIONS)


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a file of an older version to `VERSION`, all or nothing."""
    scripts = "".join(MIGRATIONS[version:])
    db.executescript(
        f"BEGIN IMMEDIATE;{scripts}PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={VERSION};COMMIT;"
    )
