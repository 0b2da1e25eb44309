"""The file of the state: one SQLite database with a write-ahead log. How it is opened, and what its rows are made of.

The tables stand in `migrations`, which creates them and brings older ones to today's schema; `writer` explains them.
Each row of `states` has a checksum: what a disk has garbled is found when the file is opened (`integrity`), and served
to nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import zlib
from pathlib import Path

import orjson

WAL_BYTES = 64 << 20
"""When the write-ahead log is longer, writes wait for a checkpoint."""
SCHEMA_VERSION = 3
"""`PRAGMA user_version` of this schema. 1: objects with their text, and a history with two texts for each change. 2: no
checksums."""
OWNERS_MARK = b'"ownerReferences":['
"""Stands in the text of every object that has owners, and in few others."""

GET = (
    "SELECT o.version, s.body FROM objects AS o JOIN states AS s ON s.version = o.version "
    "WHERE o.resource = ? AND o.namespace = ? AND o.name = ?"
)
"""One object, by its key."""


class ForeignDatabaseError(sqlite3.DatabaseError):
    """A newer release made the file, or another program."""


class NewerDatabaseError(ForeignDatabaseError):
    """A newer release made the file."""


def row_checksum(version: int, prior: int, kind: str, resource: str, namespace: str, name: str, body: bytes) -> int:
    """Give the checksum of a row of `states`: CRC-32 of its other columns, blanks in between, and of its body."""
    return zlib.crc32(body, zlib.crc32(f"{version} {prior} {kind} {resource} {namespace} {name}".encode()))


HEAD = "CAST(version || ' ' || prior || ' ' || type || ' ' || resource || ' ' || namespace || ' ' || name AS BLOB)"
"""What `row_checksum` takes before the body, in SQL: for a hundred thousand rows that is quicker."""


def owner_uids(body: bytes) -> set[str]:
    """Give the uids of an object's owners."""
    if OWNERS_MARK not in body:
        return set()
    owners = orjson.loads(body)["metadata"].get("ownerReferences") or ()
    return {owner["uid"] for owner in owners if owner.get("uid")}


def wal_path(path: Path) -> Path:
    """Give the place of the write-ahead log of a state."""
    return path.with_name(f"{path.name}-wal")


def create_file(path: Path) -> None:
    """Make an empty file for the owner alone, unless there is one: SQLite gives its log and its index the same mode.

    Raises OSError.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def lock(path: Path) -> int:
    """Take the lock of a state, for as long as the descriptor that this gives is open.

    Raises BlockingIOError when another process has it, OSError.
    """
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
    """Open the file for what one thread does with it. Raises sqlite3.Error."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
    try:
        _set_up(db)
    except BaseException:
        db.close()  # the first pragma reads the file, and its disk may refuse that
        raise
    return db


def _set_up(db: sqlite3.Connection) -> None:
    # With FULL an answered write survives a power cut; NORMAL does not promise that in write-ahead mode
    # (sqlite.org/pragma.html#pragma_synchronous).
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 0")  # see `checkpoint`
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")  # a log that begins anew is cut to this


def schema_version(db: sqlite3.Connection) -> int:
    """Give the version of a file's schema; 0: it is empty. Raises sqlite3.Error, also when it is none of ours."""
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
    """Give the newest resourceVersion in a file of this schema. Raises sqlite3.Error."""
    version: int = db.execute("SELECT coalesce(max(version), 0) FROM states").fetchone()[0]
    return version


def checkpoint(db: sqlite3.Connection) -> bool:
    """Move what the write-ahead log holds into the file, as far as no reader needs it. Holds no reader or writer up.

    True: all of it could be moved, and the next write begins the log anew. Raises sqlite3.Error.
    """
    busy, frames, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return not busy and moved == frames


def wal_is_long(path: Path) -> bool:
    """Say whether the log grows because no checkpoint has got to its end for a long time."""
    return wal_path(path).stat().st_size > WAL_BYTES
