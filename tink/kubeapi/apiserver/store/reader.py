"""Reads, each as of one moment: single objects, pages of lists, the changes since a version (tables: `writer`).

Watches resume from the history, also across a restart, and a list is shown as of an older version with it. Nothing
here knows of threads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tink.kubeapi.apiserver.store.database import GET, newest_version
from tink.kubeapi.apiserver.store.objects import Event, ExpiredError, Key, Owned, Page, Stored

PAGE_ROWS = 500
PAGE_BYTES = 1 << 20
"""A page of a list is at most so many objects and, one object more or less, so many bytes: what is sent at once, and
what small requests may have to wait for."""

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


class Reader:
    """Questions, each answered as of one moment. Raises sqlite3.Error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("PRAGMA query_only = ON")
        newest_version(db)  # opens all its files

    def switch_to(self, db: sqlite3.Connection) -> None:
        """Read by way of this connection from now on, if that works."""
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
        """Close the file."""
        self._db.close()

    def get(self, key: Key) -> Stored | None:
        """Read one object."""
        row = self._db.execute(GET, key).fetchone()
        return Stored(key.namespace, key.name, *row) if row else None

    def newest(self) -> int:
        """Give the newest version."""
        return newest_version(self._db)

    def page(
        self, resource: str, namespace: str | None, after: tuple[str, str], limit: int, version: int | None
    ) -> Page:
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
        return Page(items, version, more)

    def count(self, resource: str, namespace: str | None, after: tuple[str, str], version: int) -> int:
        """Count the objects that a list as of `version` has after one of them. Raises ExpiredError."""
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

    def since(self, resource: str, namespace: str | None, version: int, limit: int) -> list[Event]:
        """Read changes after `version`, the oldest first. Raises ExpiredError."""
        with self._snapshot():
            self._check_history(version)
            cursor = self._db.execute(_SINCE, (version, resource, namespace, namespace, limit))
            events: list[Event] = []
            size = 0
            for number, space, name, kind, body, prior in cursor:
                events.append(Event(number, Key(resource, space, name), kind, body, prior))
                size += len(body) + len(prior or b"")
                if size >= PAGE_BYTES:
                    break
            cursor.close()
        return events

    def dependents(self, uid: str) -> list[Key]:
        """Give the objects that name an owner."""
        cursor = self._db.execute(
            "SELECT resource, namespace, name FROM owners WHERE uid = ? ORDER BY resource, namespace, name", (uid,)
        )
        return [Key._make(row) for row in cursor]

    def namesakes(self, resource: str, name: str, uid: str, limit: int) -> list[Stored]:
        """Return the objects of this name, in all namespaces that exist, whose text contains `uid`."""
        cursor = self._db.execute(
            "SELECT o.namespace, o.name, o.version, s.body FROM objects AS n "
            "CROSS JOIN objects AS o ON o.resource = ? AND o.namespace = n.name AND o.name = ? "
            "JOIN states AS s ON s.version = o.version "
            "WHERE n.resource = '/namespaces' AND n.namespace = '' AND instr(s.body, ?) LIMIT ?",
            (resource, name, uid.encode("utf-8", "replace"), limit),
        )
        return [Stored._make(row) for row in cursor]

    def owned(self, after: Owned | None, limit: int) -> list[Owned]:
        """Give what has owners."""
        cursor = self._db.execute(
            "SELECT uid, resource, namespace, name FROM owners WHERE (uid, resource, namespace, name) > (?, ?, ?, ?) "
            "ORDER BY uid, resource, namespace, name LIMIT ?",
            (*(after or ("", "", "", "")), limit),
        )
        return [Owned._make(row) for row in cursor]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let all that is read see the file as of one moment."""
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # of some errors SQLite has ended it by itself
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _check_history(self, version: int) -> None:
        border: int = self._db.execute("SELECT border FROM history").fetchone()[0]
        if version < border:
            raise ExpiredError(border)
