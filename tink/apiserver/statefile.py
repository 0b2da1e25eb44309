"""The file of the state: its tables, what is read from them and written into them. Nothing here knows of threads.

`states` is a log: each write appends one row, the whole object as JSON text, ready to be sent, under its
resourceVersion. `objects` says which row is the newest of an object that exists. A change is thus one row at the end of
one tree and a few bytes in another, and needs no second copy for the history: the history is the rows above `border`,
and each of them names the row that it replaced (`prior`). Watches resume from it, also across a restart, and a list is
shown as of an older version with it. Rows that were replaced below the border are dropped; who asks for what was there
gets 410 Gone and lists again. `owners` finds the dependents of an object, for garbage collection.

Versions are one counter for all objects (Kubernetes: opaque, only compared; ours grow by write).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import orjson

log = logging.getLogger(__name__)

HISTORY_BYTES = 256 << 20
"""Most text that the history holds, whatever the number of changes."""
LOG_BYTES = 64 << 20
"""When the write-ahead log is longer, writes wait for a checkpoint."""
SLACK = 32
"""At most so many changes more than it should hold the history may hold, so that not every write has to drop one."""
PAGE_ROWS = 500
PAGE_BYTES = 1 << 20
"""A page of a list is at most so many objects and, one object more or less, so many bytes: what is sent at once, and
what small requests may have to wait for."""

_LAYOUT = 2
"""`PRAGMA user_version` of this layout. 1: objects with their text, and a history with two texts for each change."""
_BLOCK = 8192
"""Bytes of a page of the file: two or three Hardware objects. With 4096 a second one rarely fits."""
_OWNED = b'"ownerReferences":['
"""Stands in the text of every object that has owners, and in few others."""

_TABLES = (
    """CREATE TABLE states (
      version INTEGER PRIMARY KEY, prior INTEGER NOT NULL, type TEXT NOT NULL,
      resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL
    )""",
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
_FROM_1 = (
    "ALTER TABLE objects RENAME TO objects_1",
    "ALTER TABLE history RENAME TO history_1",
    *_TABLES,
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
)

_MOVE = "UPDATE objects SET version = ? WHERE resource = ? AND namespace = ? AND name = ?"
_REMOVE = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
_DISOWN = "DELETE FROM owners WHERE uid = ? AND resource = ? AND namespace = ? AND name = ?"
_GET = (
    "SELECT o.version, s.body FROM objects AS o JOIN states AS s ON s.version = o.version "
    "WHERE o.resource = ? AND o.namespace = ? AND o.name = ?"
)
# Where a list goes on, in all namespaces or in one.
_RANGES = (
    "{0}resource = :resource AND ({0}namespace, {0}name) > (:namespace, :name)",
    "{0}resource = :resource AND {0}namespace = :namespace AND {0}name > :name",
)
_PAGE_NOW = (
    "SELECT o.namespace, o.name, o.version, s.body FROM objects AS o JOIN states AS s ON s.version = o.version "
    "WHERE {} ORDER BY o.namespace, o.name LIMIT :limit"
)
# As of an older version V: what has not changed since, and for what has, the state before its first change after V.
_PAGE_THEN = """
SELECT k.namespace, k.name, k.version, s.body FROM (
  SELECT namespace, name, version FROM objects WHERE {} AND version <= :version
  UNION ALL
  SELECT namespace, name, prior FROM states WHERE version > :version AND prior BETWEEN 1 AND :version AND {}
  ORDER BY namespace, name LIMIT :limit
) AS k JOIN states AS s ON s.version = k.version ORDER BY k.namespace, k.name
"""
_NOW = tuple(_PAGE_NOW.format(reach.format("o.")) for reach in _RANGES)
_THEN = tuple(_PAGE_THEN.format(reach.format(""), reach.format("+")) for reach in _RANGES)
_COUNT_THEN = (
    "SELECT (SELECT count(*) FROM objects WHERE {} AND version <= :version) + "
    "(SELECT count(*) FROM states WHERE version > :version AND prior BETWEEN 1 AND :version AND {})"
)
_COUNT = tuple(_COUNT_THEN.format(reach.format(""), reach.format("+")) for reach in _RANGES)
_SINCE = """
SELECT s.version, s.namespace, s.name, s.type, s.body, p.body
FROM states AS s LEFT JOIN states AS p ON p.version = s.prior
WHERE s.version > ? AND s.resource = ? AND (? IS NULL OR s.namespace = ?) ORDER BY s.version LIMIT ?
"""
_SIZE = "SELECT count(*), coalesce(sum(length(body)), 0) FROM states WHERE version > ?"


class ExpiredError(Exception):
    """The version asked for is older than the history."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"history begins after {oldest}")
        self.oldest = oldest


class MismatchError(Exception):
    """The object is not at the version that the writer expected; `actual` is 0 when it does not exist."""

    def __init__(self, actual: int) -> None:
        super().__init__(f"object is at version {actual}")
        self.actual = actual


class Key(NamedTuple):
    """Where an object is: `resource` is "group/plural"; namespace is "" for cluster-scoped objects."""

    resource: str
    namespace: str
    name: str


class Stored(NamedTuple):
    """An object as it is kept."""

    namespace: str
    name: str
    version: int
    body: bytes


@dataclass(frozen=True)
class Event:
    """One change that is on the disk: type ADDED, MODIFIED or DELETED. `prior` is the state before."""

    version: int
    key: Key
    type: str
    body: bytes
    prior: bytes | None

    @cached_property
    def object(self) -> dict[str, Any]:
        """The object after the change (for DELETED: its last state). Shared: do not change it."""
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed

    @cached_property
    def before(self) -> dict[str, Any] | None:
        """The object before the change. Shared: do not change it."""
        return None if self.prior is None else orjson.loads(self.prior)


@dataclass(frozen=True, slots=True)
class Write:
    """A change to make: `expected` is the version that the object must be at, 0 when it must not exist."""

    key: Key
    version: int
    body: bytes
    expected: int
    delete: bool = False


class Owned(NamedTuple):
    """An object that names an owner, whose `uid` is the first field."""

    uid: str
    resource: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """Where the object is that has this owner."""
        return Key(self.resource, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, as of `version`; `more` when objects follow after the last of it."""

    items: list[Stored]
    version: int
    more: bool


# --- opening -------------------------------------------------------------------------------------------------------


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for what one thread does with it. Raises sqlite3.Error."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
    # With FULL an answered write survives a power cut; NORMAL does not promise that in write-ahead mode
    # (sqlite.org/pragma.html#pragma_synchronous).
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 0")  # see `checkpoint`
    db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")  # a log that begins anew is cut to this
    return db


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or bring those of an older layout to this one. Raises sqlite3.Error."""
    layout = db.execute("PRAGMA user_version").fetchone()[0]
    if layout not in (0, 1, _LAYOUT):
        raise sqlite3.DatabaseError(f"it has layout {layout}, made by a newer version; this one knows {_LAYOUT}")
    if layout == 0:
        db.execute(f"PRAGMA page_size = {_BLOCK}")
    db.execute("PRAGMA journal_mode = WAL")
    if layout < _LAYOUT:
        db.execute("BEGIN IMMEDIATE")
        for statement in _FROM_1 if layout == 1 else _TABLES:
            db.execute(statement)
        _index_owners(db)
        db.execute(f"PRAGMA user_version = {_LAYOUT}")
        db.execute("COMMIT")
    if layout == 1:
        log.info("state %s: brought from layout 1 to %d", path, _LAYOUT)
        _vacuum(db, path)


def _index_owners(db: sqlite3.Connection) -> None:
    for resource, namespace, name, body in db.execute(
        "SELECT resource, namespace, name, body FROM objects JOIN states USING (version, resource, namespace, name) "
        "WHERE instr(body, ?)",
        (_OWNED,),
    ).fetchall():
        rows = [(uid, resource, namespace, name) for uid in _owner_uids(body)]
        db.executemany("INSERT INTO owners VALUES (?, ?, ?, ?)", rows)


def _vacuum(db: sqlite3.Connection, path: Path) -> None:
    """Give the room of the older layout back, with pages of this layout's size. The file works without it, too."""
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA page_size = {_BLOCK}")
        db.execute("VACUUM")
    except sqlite3.Error as error:
        log.warning("state %s: it stays larger than it need be: %s", path, error)
    db.execute("PRAGMA journal_mode = WAL")


def checkpoint(db: sqlite3.Connection) -> None:
    """Move what the write-ahead log holds into the file, as far as no reader needs it. Holds no reader or writer up.

    When all of it could be moved, the next write begins the log anew.
    """
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def log_is_long(path: Path) -> bool:
    """Say whether the log grows because no checkpoint has got to its end for a long time."""
    return path.with_name(path.name + "-wal").stat().st_size > LOG_BYTES


# --- writing -------------------------------------------------------------------------------------------------------


class Writer:
    """Changes, and the history that they leave: at most `keep` changes."""

    def __init__(self, db: sqlite3.Connection, keep: int) -> None:
        self._db = db
        self._keep = keep
        self._most = keep + min(SLACK, keep // 10)
        self._border = 0
        self._kept = 0
        self._bytes = 0
        self.newest = 0
        """The newest version that is in the file."""
        self._measure()

    def commit(self, changes: Sequence[Write]) -> list[Event | MismatchError]:
        """Make changes in one transaction: all that were as expected are on the disk afterwards, or none.

        Raises sqlite3.Error when it is none.
        """
        db = self._db
        done: list[Event | MismatchError] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for change in changes:
                try:
                    done.append(self._apply(change))
                except MismatchError as error:
                    done.append(error)
            self._trim([event for event in done if isinstance(event, Event)])
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._measure()
            raise
        self.newest = max((event.version for event in done if isinstance(event, Event)), default=self.newest)
        return done

    def _apply(self, change: Write) -> Event:
        db, key = self._db, change.key
        actual, prior = db.execute(_GET, key).fetchone() or (0, None)
        if actual != change.expected:
            raise MismatchError(actual)
        if change.delete:
            kind = "DELETED"
            db.execute(_REMOVE, key)
        elif actual:
            kind = "MODIFIED"
            db.execute(_MOVE, (change.version, *key))
        else:
            kind = "ADDED"
            db.execute("INSERT INTO objects VALUES (?, ?, ?, ?)", (*key, change.version))
        db.execute("INSERT INTO states VALUES (?, ?, ?, ?, ?, ?, ?)", (change.version, actual, kind, *key, change.body))
        if _OWNED in change.body or (prior is not None and _OWNED in prior):
            self._own(change, prior)
        return Event(change.version, key, kind, change.body, prior)

    def _own(self, change: Write, prior: bytes | None) -> None:
        before = _owner_uids(prior) if prior is not None else set()
        owners = set() if change.delete else _owner_uids(change.body)
        gone = [(uid, *change.key) for uid in before - owners]
        self._db.executemany(_DISOWN, gone)
        come = [(uid, *change.key) for uid in owners - before]
        self._db.executemany("INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)", come)

    def _trim(self, events: Sequence[Event]) -> None:
        """Drop the oldest changes when they are too many or too big, and the states that nobody needs then."""
        self._kept += len(events)
        self._bytes += sum(len(event.body) for event in events)
        if self._kept <= self._most and self._bytes <= HISTORY_BYTES:
            return
        needless = []
        oldest = self._db.execute(
            "SELECT version, prior, type, length(body) FROM states WHERE version > ? ORDER BY version", (self._border,)
        )
        for version, prior, kind, size in oldest:
            enough = self._kept <= self._keep and self._bytes <= HISTORY_BYTES
            if enough or self._kept == 1:  # the newest stays: after a restart versions are counted on from it
                break
            if prior:
                needless.append((prior,))
            if kind == "DELETED":
                needless.append((version,))
            self._border = version
            self._kept -= 1
            self._bytes -= size
        oldest.close()
        self._db.executemany("DELETE FROM states WHERE version = ?", needless)
        self._db.execute("UPDATE history SET border = ?", (self._border,))

    def _measure(self) -> None:
        db = self._db
        self._border = db.execute("SELECT border FROM history").fetchone()[0]
        self._kept, self._bytes = db.execute(_SIZE, (self._border,)).fetchone()
        self.newest = db.execute("SELECT coalesce(max(version), 0) FROM states").fetchone()[0]


# --- reading -------------------------------------------------------------------------------------------------------


class Reader:
    """Questions, each answered as of one moment. Raises sqlite3.Error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def get(self, key: Key) -> Stored | None:
        """Read one object."""
        row = self._db.execute(_GET, key).fetchone()
        return Stored(key.namespace, key.name, *row) if row else None

    def newest(self) -> int:
        """Give the newest version."""
        found: int = self._db.execute("SELECT coalesce(max(version), 0) FROM states").fetchone()[0]
        return found

    def page(
        self, resource: str, namespace: str | None, after: tuple[str, str], limit: int, version: int | None
    ) -> Page:
        """Read objects in the order of namespace and name, as of `version` (None: now). Raises ExpiredError."""
        self._db.execute("BEGIN")
        try:
            newest = self.newest()
            version = newest if version is None else version
            self._reach(version)
            query = _NOW if version >= newest else _THEN
            cursor = self._db.execute(
                query[namespace is not None],
                {
                    "resource": resource,
                    "namespace": after[0] if namespace is None else namespace,
                    "name": after[1],
                    "version": version,
                    "limit": limit + 1,
                },
            )
            items: list[Stored] = []
            size = 0
            more = False
            for row in map(Stored._make, cursor):
                if len(items) == limit or size >= PAGE_BYTES:
                    more = True
                    break
                items.append(row)
                size += len(row.body)
            cursor.close()
        finally:
            self._db.execute("COMMIT")
        return Page(items, version, more)

    def count(self, resource: str, namespace: str | None, after: tuple[str, str], version: int) -> int:
        """Count the objects that a list as of `version` has after one of them. Raises ExpiredError."""
        self._db.execute("BEGIN")
        try:
            self._reach(version)
            where = {
                "resource": resource,
                "namespace": after[0] if namespace is None else namespace,
                "name": after[1],
                "version": version,
            }
            number: int = self._db.execute(_COUNT[namespace is not None], where).fetchone()[0]
        finally:
            self._db.execute("COMMIT")
        return number

    def since(self, resource: str, namespace: str | None, version: int, limit: int) -> list[Event]:
        """Read changes after `version`, the oldest first. Raises ExpiredError."""
        self._db.execute("BEGIN")
        try:
            self._reach(version)
            cursor = self._db.execute(_SINCE, (version, resource, namespace, namespace, limit))
            events: list[Event] = []
            size = 0
            for number, space, name, kind, body, prior in cursor:
                events.append(Event(number, Key(resource, space, name), kind, body, prior))
                size += len(body) + len(prior or b"")
                if size >= PAGE_BYTES:
                    break
            cursor.close()
        finally:
            self._db.execute("COMMIT")
        return events

    def dependents(self, uid: str) -> list[Key]:
        """Give the objects that name an owner."""
        cursor = self._db.execute(
            "SELECT resource, namespace, name FROM owners WHERE uid = ? ORDER BY resource, namespace, name", (uid,)
        )
        return [Key._make(row) for row in cursor]

    def owned(self, after: Owned | None, limit: int) -> list[Owned]:
        """Give what has owners."""
        cursor = self._db.execute(
            "SELECT uid, resource, namespace, name FROM owners WHERE (uid, resource, namespace, name) > (?, ?, ?, ?) "
            "ORDER BY uid, resource, namespace, name LIMIT ?",
            (*(after or ("", "", "", "")), limit),
        )
        return [Owned._make(row) for row in cursor]

    def _reach(self, version: int) -> None:
        border: int = self._db.execute("SELECT border FROM history").fetchone()[0]
        if version < border:
            raise ExpiredError(border)


def _owner_uids(body: bytes) -> set[str]:
    if _OWNED not in body:
        return set()
    owners = orjson.loads(body)["metadata"].get("ownerReferences") or ()
    return {owner["uid"] for owner in owners if owner.get("uid")}
