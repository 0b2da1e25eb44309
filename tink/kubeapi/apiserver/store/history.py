"""Reads and writes of objects and their history, each on one connection. Nothing here knows of threads.

    states    a log: each write appends one row with the whole object as JSON text, under its resourceVersion
    objects   the newest row of each existing object
    history   the border: changes above it can be watched and listed back to
    owners    the dependents of each object, for garbage collection

A change is one row at the end of one tree and a few bytes in another. The history needs no second copy: it is the rows
above the border, and each names the row that it replaced (`prior`). Replaced rows below the border are deleted; a
client that asks for them gets 410 Gone and lists again. Versions are one counter for all objects (Kubernetes: opaque).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tink.kubeapi.apiserver.store import objects
from tink.kubeapi.apiserver.store.database import GET, OWNERS_MARK, newest_version, owner_uids, row_checksum

MAX_HISTORY_BYTES = 256 << 20  # Maximum size of the history's texts, for any number of changes
SLACK = 32  # Maximum number of changes beyond the limit of the history, so that not every write has to delete one

_MOVE = "UPDATE objects SET version = ? WHERE resource = ? AND namespace = ? AND name = ?"
_REMOVE = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
_DISOWN = "DELETE FROM owners WHERE uid = ? AND resource = ? AND namespace = ? AND name = ?"
_SIZE = "SELECT count(*), coalesce(sum(length(body)), 0) FROM states WHERE version > ?"


class StateWriter:
    """Writes changes and their history of at most `keep` changes."""

    def __init__(self, db: sqlite3.Connection, keep: int) -> None:
        self._db = db
        self._keep = keep
        self._most = keep + min(SLACK, keep // 10)
        self._border = 0
        self._kept = 0
        self._bytes = 0
        self.newest = 0  # The newest version in the file
        self._measure()

    def commit(self, changes: Sequence[objects.Write]) -> list[objects.Event | objects.MismatchError]:
        """Write changes in one transaction. Changes with another expected version are returned as MismatchError. Raises
        sqlite3.Error if nothing was written."""
        db = self._db
        done: list[objects.Event | objects.MismatchError] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for change in changes:
                try:
                    done.append(self._apply(change))
                except objects.MismatchError as error:
                    done.append(error)
            self._trim([event for event in done if isinstance(event, objects.Event)])
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._measure()
            raise
        self.newest = max((event.version for event in done if isinstance(event, objects.Event)), default=self.newest)
        return done

    def _apply(self, change: objects.Write) -> objects.Event:
        db, key = self._db, change.key
        actual, prior = db.execute(GET, key).fetchone() or (0, None)
        if actual != change.expected:
            raise objects.MismatchError(actual)
        if change.delete:
            kind = "DELETED"
            db.execute(_REMOVE, key)
        elif actual:
            kind = "MODIFIED"
            db.execute(_MOVE, (change.version, *key))
        else:
            kind = "ADDED"
            db.execute("INSERT INTO objects VALUES (?, ?, ?, ?)", (*key, change.version))
        row = (change.version, actual, kind, *key)
        db.execute(
            "INSERT INTO states VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, row_checksum(*row, change.body), change.body)
        )
        if OWNERS_MARK in change.body or (prior is not None and OWNERS_MARK in prior):
            before = owner_uids(prior) if prior is not None else set()
            owners = set() if change.delete else owner_uids(change.body)
            db.executemany(_DISOWN, [(uid, *key) for uid in before - owners])
            added = [(uid, *key) for uid in owners - before]
            db.executemany("INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)", added)
        return objects.Event(change.version, key, kind, change.body, prior, change.origin)

    def _trim(self, events: Sequence[objects.Event]) -> None:
        """Delete the oldest changes if there are too many or they are too large, and the states that only they
        needed."""
        self._kept += len(events)
        self._bytes += sum(len(event.body) for event in events)
        if self._kept <= self._most and self._bytes <= MAX_HISTORY_BYTES:
            return
        needless = []
        oldest = self._db.execute(
            "SELECT version, prior, type, length(body) FROM states WHERE version > ? ORDER BY version", (self._border,)
        )
        for version, prior, kind, size in oldest:
            enough = self._kept <= self._keep and self._bytes <= MAX_HISTORY_BYTES
            if enough or self._kept == 1:  # the newest stays: after a restart versions continue from it
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
        self.newest = newest_version(db)


MAX_PAGE_ROWS = 500
MAX_PAGE_BYTES = 1 << 20
"""Maximum number of objects and, plus or minus one object, of bytes in a page of a list. Small requests may have to
wait for one page."""

# The continuation of a list, in all namespaces or in one.
_RANGES = (
    "{0}resource = :resource AND ({0}namespace, {0}name) > (:namespace, :name)",
    "{0}resource = :resource AND {0}namespace = :namespace AND {0}name > :name",
)
_PAGE_NOW = (
    "SELECT o.namespace, o.name, o.version, s.body FROM objects AS o JOIN states AS s ON s.version = o.version "
    "WHERE {} ORDER BY o.namespace, o.name LIMIT :limit"
)
# As of an older version V: objects unchanged since, and of changed ones the state before the first change after V.
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


class StateReader:
    """Reads, each as of one moment. Raises sqlite3.Error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("PRAGMA query_only = ON")
        newest_version(db)  # opens all files

    def switch_to(self, db: sqlite3.Connection) -> None:
        """Use another connection from now on, if it works."""
        before = self._db
        try:
            db.execute("PRAGMA query_only = ON")
            newest_version(db)
        except sqlite3.Error:
            db.close()
            raise
        self._db = db
        before.close()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def get(self, key: objects.Key) -> objects.StoredObject | None:
        """Read one object."""
        row = self._db.execute(GET, key).fetchone()
        return objects.StoredObject(key.namespace, key.name, *row) if row else None

    def newest(self) -> int:
        """Return the newest version."""
        return newest_version(self._db)

    def page(
        self, resource: str, namespace: str | None, after: tuple[str, str], limit: int, version: int | None
    ) -> objects.Page:
        """Read objects in the order of namespace and name, as of `version` (None: now). Raises ExpiredError."""
        with self._snapshot():
            newest = self.newest()
            version = newest if version is None else version
            self._check_history(version)
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
            items: list[objects.StoredObject] = []
            size = 0
            more = False
            for row in map(objects.StoredObject._make, cursor):
                if len(items) == limit or size >= MAX_PAGE_BYTES:
                    more = True
                    break
                items.append(row)
                size += len(row.body)
            cursor.close()
        return objects.Page(items, version, more)

    def count(self, resource: str, namespace: str | None, after: tuple[str, str], version: int) -> int:
        """Count the objects after one of them in a list as of `version`. Raises ExpiredError."""
        with self._snapshot():
            self._check_history(version)
            where = {
                "resource": resource,
                "namespace": after[0] if namespace is None else namespace,
                "name": after[1],
                "version": version,
            }
            number: int = self._db.execute(_COUNT[namespace is not None], where).fetchone()[0]
        return number

    def since(self, resource: str, namespace: str | None, version: int, limit: int) -> list[objects.Event]:
        """Read changes after `version`, the oldest first. Raises ExpiredError."""
        with self._snapshot():
            self._check_history(version)
            cursor = self._db.execute(_SINCE, (version, resource, namespace, namespace, limit))
            events: list[objects.Event] = []
            size = 0
            for number, space, name, kind, body, prior in cursor:
                events.append(objects.Event(number, objects.Key(resource, space, name), kind, body, prior))
                size += len(body) + len(prior or b"")
                if size >= MAX_PAGE_BYTES:
                    break
            cursor.close()
        return events

    def dependents(self, uid: str) -> list[objects.Key]:
        """Return the objects with this owner."""
        cursor = self._db.execute(
            "SELECT resource, namespace, name FROM owners WHERE uid = ? ORDER BY resource, namespace, name", (uid,)
        )
        return [objects.Key._make(row) for row in cursor]

    def namesakes(self, resource: str, name: str, uid: str, limit: int) -> list[objects.StoredObject]:
        """Return the objects of this name, in all existing namespaces, whose text contains `uid`."""
        cursor = self._db.execute(
            "SELECT o.namespace, o.name, o.version, s.body FROM objects AS n "
            "CROSS JOIN objects AS o ON o.resource = ? AND o.namespace = n.name AND o.name = ? "
            "JOIN states AS s ON s.version = o.version "
            "WHERE n.resource = '/namespaces' AND n.namespace = '' AND instr(s.body, ?) LIMIT ?",
            (resource, name, uid.encode("utf-8", "replace"), limit),
        )
        return [objects.StoredObject._make(row) for row in cursor]

    def owned(self, after: objects.OwnedObject | None, limit: int) -> list[objects.OwnedObject]:
        """Return objects with owners."""
        cursor = self._db.execute(
            "SELECT uid, resource, namespace, name FROM owners WHERE (uid, resource, namespace, name) > (?, ?, ?, ?) "
            "ORDER BY uid, resource, namespace, name LIMIT ?",
            (*(after or ("", "", "", "")), limit),
        )
        return [objects.OwnedObject._make(row) for row in cursor]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let all reads inside see the file as of one moment."""
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # SQLite ends the transaction itself after some errors
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _check_history(self, version: int) -> None:
        border: int = self._db.execute("SELECT border FROM history").fetchone()[0]
        if version < border:
            raise objects.ExpiredError(border)
