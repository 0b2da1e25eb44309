"""Writes: changes of objects, the history that they leave, and the index of owners. Nothing here knows of threads.

`states` is a log: each write appends one row, the whole object as JSON text, ready to be sent, under its
resourceVersion. `objects` says which row is the newest of an object that exists. A change is thus one row at the end of
one tree and a few bytes in another, and needs no second copy for the history: the history is the rows above `border`,
and each of them names the row that it replaced (`prior`). Rows that were replaced below the border are dropped; who
asks for what was there gets 410 Gone and lists again. `owners` finds the dependents of an object, for garbage
collection.

Versions are one counter for all objects (Kubernetes: opaque, only compared; ours grow by write).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from tink.kubeapi.apiserver.store.database import GET, OWNERS_MARK, newest_version, owner_uids, row_checksum
from tink.kubeapi.apiserver.store.objects import Event, MismatchError, Write

HISTORY_BYTES = 256 << 20
"""Most text that the history holds, whatever the number of changes."""
SLACK = 32
"""At most so many changes more than it should hold the history may hold, so that not every write has to drop one."""

_MOVE = "UPDATE objects SET version = ? WHERE resource = ? AND namespace = ? AND name = ?"
_REMOVE = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
_DISOWN = "DELETE FROM owners WHERE uid = ? AND resource = ? AND namespace = ? AND name = ?"
_SIZE = "SELECT count(*), coalesce(sum(length(body)), 0) FROM states WHERE version > ?"


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
        actual, prior = db.execute(GET, key).fetchone() or (0, None)
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
        row = (change.version, actual, kind, *key)
        db.execute(
            "INSERT INTO states VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, row_checksum(*row, change.body), change.body)
        )
        if OWNERS_MARK in change.body or (prior is not None and OWNERS_MARK in prior):
            self._own(change, prior)
        return Event(change.version, key, kind, change.body, prior, change.origin)

    def _own(self, change: Write, prior: bytes | None) -> None:
        before = owner_uids(prior) if prior is not None else set()
        owners = set() if change.delete else owner_uids(change.body)
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
        self.newest = newest_version(db)
