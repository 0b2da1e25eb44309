"""The tables of the state: made in a new file, and brought from older schemas to today's.

`writer` explains them; `database` opens the file.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from tink.kubeapi.apiserver.store.database import OWNERS_MARK, SCHEMA_VERSION, owner_uids, row_checksum, schema_version

log = logging.getLogger(__name__)
_PAGE_BYTES = 8192
"""Bytes of a page of the file: two or three Hardware objects. With 4096 a second one rarely fits."""
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
    # The version of what the first kept change of an object replaced stands in its text only.
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
    """Create the tables, or bring those of an older layout to this one. Raises sqlite3.Error, also when no write can be
    made.
    """
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
        log.info("state %s: brought from layout %d to %d", path, layout, SCHEMA_VERSION)
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
    """Give the room of the older layout back, with pages of this layout's size. The file works without it, too."""
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        db.execute("VACUUM")
    except sqlite3.Error as error:
        log.warning("state %s: it stays larger than it need be: %s", path, error)
    db.execute("PRAGMA journal_mode = WAL")
