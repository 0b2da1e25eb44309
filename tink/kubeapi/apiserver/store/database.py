"""The file of the state: one SQLite database with a write-ahead log, its tables, and their migrations.

`history` explains the tables. Each row of `states` has a checksum, so that `integrity` finds damaged rows.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import zlib
from pathlib import Path

import orjson

from tink.errors import TinkedgeError

MAX_WAL_BYTES = 64 << 20  # Size of the write-ahead log above which writes wait for a checkpoint
SCHEMA_VERSION = 3
"""`PRAGMA user_version` of this schema. 1: objects with their text, and a history with two texts for each change. 2:
no checksums."""
OWNERS_MARK = b'"ownerReferences":['  # Text in every object with owners, and in few others

GET = (
    "SELECT o.version, s.body FROM objects AS o JOIN states AS s ON s.version = o.version "
    "WHERE o.resource = ? AND o.namespace = ? AND o.name = ?"
)
"""Query for one object by its key."""


class ForeignDatabaseError(TinkedgeError, sqlite3.DatabaseError):
    """A newer release or another program made the file."""


class NewerDatabaseError(ForeignDatabaseError):
    """A newer release made the file."""


def row_checksum(version: int, prior: int, kind: str, resource: str, namespace: str, name: str, body: bytes) -> int:
    """Return the checksum of a row of `states`: CRC-32 of its other columns, separated by blanks, and of its body."""
    return zlib.crc32(body, zlib.crc32(f"{version} {prior} {kind} {resource} {namespace} {name}".encode()))


HEAD = "CAST(version || ' ' || prior || ' ' || type || ' ' || resource || ' ' || namespace || ' ' || name AS BLOB)"
"""The input of `row_checksum` before the body, in SQL, which is faster for many rows."""


def owner_uids(body: bytes) -> set[str]:
    """Return the uids of an object's owners."""
    if OWNERS_MARK not in body:
        return set()
    owners = orjson.loads(body)["metadata"].get("ownerReferences") or ()
    return {owner["uid"] for owner in owners if owner.get("uid")}


def wal_path(path: Path) -> Path:
    """Return the path of the write-ahead log of a state."""
    return path.with_name(f"{path.name}-wal")


def lock(path: Path) -> int:
    """Lock a state for as long as the returned descriptor is open. Raises BlockingIOError if another process has the
    lock, OSError."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for one thread. Raises sqlite3.Error."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
    try:
        # With FULL an answered write survives a power cut; NORMAL does not promise that in write-ahead mode
        # (sqlite.org/pragma.html#pragma_synchronous).
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # see `checkpoint`
        db.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")  # a restarted log is cut to this size
    except BaseException:
        db.close()  # the first pragma reads the file, which may fail
        raise
    return db


def schema_version(db: sqlite3.Connection) -> int:
    """Return the version of a file's schema; 0 if it is empty. Raises sqlite3.Error, also if the file is not ours."""
    layout: int = db.execute("PRAGMA user_version").fetchone()[0]
    if layout > SCHEMA_VERSION:
        raise NewerDatabaseError(
            f"a newer release of tinkedge made it (layout {layout}; this one knows up to {SCHEMA_VERSION}). Start that "
            "release again, or restore the backup that was made before the upgrade: docs/upgrading.md. Nothing was "
            "changed"
        )
    if layout < 0:
        raise ForeignDatabaseError(f"it is a database of another program (layout {layout})")
    if not layout and (found := db.execute("SELECT name FROM sqlite_master LIMIT 1").fetchone()):
        raise ForeignDatabaseError(f"it is a database of another program (with {found[0]})")
    return layout


def newest_version(db: sqlite3.Connection) -> int:
    """Return the newest resourceVersion in a file of this schema. Raises sqlite3.Error."""
    version: int = db.execute("SELECT coalesce(max(version), 0) FROM states").fetchone()[0]
    return version


def checkpoint(db: sqlite3.Connection) -> bool:
    """Move the write-ahead log into the file, as far as no reader needs it. Blocks no reader or writer. Return True if
    all of it was moved; the next write then restarts the log. Raises sqlite3.Error."""
    busy, frames, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return not busy and moved == frames


log = logging.getLogger(__name__)
_PAGE_BYTES = 8192
"""Size of a page of the file: two or three Hardware objects. With 4096 bytes a second one rarely fits."""
_STATES = """CREATE TABLE states (
  version INTEGER PRIMARY KEY, prior INTEGER NOT NULL, type TEXT NOT NULL,
  resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, sum INTEGER NOT NULL, body BLOB NOT NULL
)"""
_TABLES = (
    _STATES,
    """CREATE TABLE objects (
      resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
      PRIMARY KEY (resource, namespace, name)
    ) WITHOUT ROWID""",
    """CREATE TABLE owners (
      uid TEXT NOT NULL, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
      PRIMARY KEY (uid, resource, namespace, name)
    ) WITHOUT ROWID""",
    "CREATE TABLE history (border INTEGER NOT NULL)",
    "INSERT INTO history VALUES (0)",
)
_FROM_2 = (
    "ALTER TABLE states RENAME TO states_2",
    _STATES,
    """INSERT INTO states SELECT version, prior, type, resource, namespace, name,
      row_checksum(version, prior, type, resource, namespace, name, body), body FROM states_2 ORDER BY version""",
    "DROP TABLE states_2",
)
_FROM_1 = (
    "ALTER TABLE objects RENAME TO objects_1",
    "ALTER TABLE history RENAME TO history_1",
    *(statement.replace(" sum INTEGER NOT NULL,", "") for statement in _TABLES),
    "UPDATE history SET border = (SELECT coalesce(min(version), 1) - 1 FROM history_1)",
    "INSERT INTO objects SELECT resource, namespace, name, version FROM objects_1",
    # The version that the first recorded change of an object replaced is only in the object's text.
    """INSERT INTO states
      SELECT h.version, CASE WHEN h.prior IS NULL THEN 0 ELSE coalesce(
        (SELECT max(e.version) FROM history_1 AS e WHERE e.resource = h.resource AND e.namespace = h.namespace
          AND e.name = h.name AND e.version < h.version),
        CAST(json_extract(CAST(h.prior AS TEXT), '$.metadata.resourceVersion') AS INTEGER)) END,
        h.type, h.resource, h.namespace, h.name, h.body
      FROM history_1 AS h ORDER BY h.version""",
    """INSERT OR IGNORE INTO states
      SELECT s.prior, 0, 'ADDED', s.resource, s.namespace, s.name, h.prior
      FROM states AS s JOIN history_1 AS h ON h.version = s.version WHERE s.prior > 0""",
    "INSERT OR IGNORE INTO states SELECT version, 0, 'ADDED', resource, namespace, name, body FROM objects_1",
    "DROP TABLE objects_1",
    "DROP TABLE history_1",
    *_FROM_2,
)


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate those of an older schema. Raises sqlite3.Error, also if the file can't be
    written."""
    layout = schema_version(db)
    if layout == 0:
        db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        if layout < SCHEMA_VERSION:
            db.create_function("row_checksum", 7, row_checksum, deterministic=True)
            for statement in {0: _TABLES, 1: _FROM_1, 2: _FROM_2}[layout]:
                db.execute(statement)
            if layout == 1:
                _index_owners(db)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    if 0 < layout < SCHEMA_VERSION:
        log.info("state %s: migrated from layout %d to %d", path, layout, SCHEMA_VERSION)
        _vacuum(db, path)


def _index_owners(db: sqlite3.Connection) -> None:
    for resource, namespace, name, body in db.execute(
        "SELECT resource, namespace, name, body FROM objects JOIN states USING (version, resource, namespace, name) "
        "WHERE instr(body, ?)",
        (OWNERS_MARK,),
    ).fetchall():
        rows = [(uid, resource, namespace, name) for uid in owner_uids(body)]
        db.executemany("INSERT INTO owners VALUES (?, ?, ?, ?)", rows)


def _vacuum(db: sqlite3.Connection, path: Path) -> None:
    """Free the space of the older schema, with today's page size. The file works without it, too."""
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        db.execute("VACUUM")
    except sqlite3.Error as error:
        log.warning("state %s: the file could not be compacted: %s", path, error)
    db.execute("PRAGMA journal_mode = WAL")
