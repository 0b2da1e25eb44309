"""The state of the API server: objects and their history, in one SQLite file.

One thread owns the connection and does everything in the order in which it was asked. That makes every question about
consistency easy: a read sees every write that was asked for before it. Writes that wait together share one transaction
(group commit), so `synchronous=FULL` costs one disk flush for many writers; with it an answered write is on the disk
even when the power fails, which `NORMAL` does not promise in WAL mode (sqlite.org/pragma.html#pragma_synchronous).

`objects` holds the newest state of each object as JSON text, ready to be sent. `history` holds the last changes, each
with the state before it: watches resume from it, also across a restart, and lists read it backwards to show a page as
of an older resourceVersion. What is older is dropped; who asks for it gets 410 Gone and lists again.

Resource versions are one counter for all objects (Kubernetes: opaque, only compared for equality; ours grow by write).
They are given out on the event loop, in the order of the queue, so that the text can be made before the write.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import orjson

from tink.apiserver.errors import ApiServerError

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 256
"""Most writes in one transaction."""
HISTORY_BYTES = 256 << 20
"""Most text that the history holds, whatever the number of changes."""
_SIZES = "SELECT version, length(body) + coalesce(length(prior), 0) FROM history ORDER BY version"
_TOTALS = """
SELECT min(version), max(version), count(*), coalesce(sum(length(body) + coalesce(length(prior), 0)), 0) FROM history
"""
PAGE_ROWS = 500
PAGE_BYTES = 4 << 20
"""A page of a list is at most so many objects and, one object more or less, so many bytes."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
  resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (
  version INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  type TEXT NOT NULL, body BLOB NOT NULL, prior BLOB
);
CREATE INDEX IF NOT EXISTS history_by_object ON history (resource, namespace, name, version);
"""
_LAYOUT = 1
"""`PRAGMA user_version` of this layout."""

_IN_ALL = "resource = :resource AND (namespace, name) > (:namespace, :name)"
_IN_ONE = "resource = :resource AND namespace = :namespace AND name > :name"

_PAGE_NOW = "SELECT namespace, name, version, body FROM objects WHERE {range} ORDER BY namespace, name"
# A page as of an older version V: what has not changed since, and for each object that has, the state before the first
# change after V.
_PAGE_THEN = """
SELECT namespace, name, version, body FROM objects WHERE {range} AND version <= :version
UNION ALL
SELECT namespace, name, 0, prior FROM history AS h
WHERE {range} AND version > :version AND prior IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM history AS e WHERE e.resource = h.resource AND e.namespace = h.namespace AND e.name = h.name
      AND e.version > :version AND e.version < h.version)
ORDER BY namespace, name
"""


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


class StorageError(Exception):
    """SQLite could not do it: disk full, input/output error."""


@dataclass(frozen=True, slots=True)
class Key:
    """Where an object is: `resource` is "group/plural"; namespace is "" for cluster-scoped objects."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
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


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, as of `version`; `more` when objects follow after the last of it."""

    items: list[Stored]
    version: int
    more: bool


@dataclass(slots=True)
class _Job:
    future: asyncio.Future[Any]
    write: Write | None = None
    read: Callable[[], Any] | None = None


@dataclass(slots=True)
class _Outcome:
    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None
    event: Event | None = field(default=None)


class Store:
    """Objects and their history. All methods are to be called on the event loop that opened it.

    `on_commit` is called on the event loop for every change that is on the disk, in the order of versions, before the
    writer gets its answer.
    """

    def __init__(self, path: Path, on_commit: Callable[[Event], None], *, history: int = 10_000) -> None:
        self._path = path
        self._on_commit = on_commit
        self._keep = history
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False
        # Below: only touched by the thread once it runs.
        self._db: sqlite3.Connection | None = None
        self._committed = 0
        self._oldest = 0
        self._kept = 0
        self._bytes = 0
        self._next = 0
        self._lock: int | None = None

    async def open(self) -> None:
        """Open or create the file. Raises ApiServerError when it cannot be used, or another process uses it."""
        self._lock_file()
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="apiserver-storage", daemon=True)
        self._thread.start()
        try:
            await opened
        except (sqlite3.Error, OSError) as error:
            self._unlock_file()
            raise ApiServerError(
                f"{self._path}: cannot be used as state: {error}; move it away to begin anew"
            ) from error
        self._next = self._committed

    async def close(self) -> None:
        """Finish what was asked for, then close the file. Nothing may be asked afterwards."""
        if self._thread is None or self._closing:
            return
        self._closing = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        self._unlock_file()

    def next_version(self) -> int:
        """Give the resourceVersion for a write. The write must be handed over without awaiting in between."""
        self._next += 1
        return self._next

    async def get(self, key: Key) -> Stored | None:
        """Read one object."""
        return await self._read(lambda: self._get(key))

    async def write(self, change: Write) -> Event:
        """Make a change and wait until it is on the disk. Raises MismatchError, StorageError."""
        future: asyncio.Future[Event] = self._loop.create_future()
        self._submit(_Job(future, write=change))
        return await future

    async def page(
        self,
        resource: str,
        namespace: str | None,
        *,
        after: tuple[str, str] = ("", ""),
        limit: int = PAGE_ROWS,
        version: int | None = None,
    ) -> Page:
        """Read objects in the order of namespace and name, as of `version` (None: now). Raises ExpiredError."""
        return await self._read(lambda: self._page(resource, namespace, after, limit, version))

    async def since(self, resource: str, namespace: str | None, version: int, limit: int = PAGE_ROWS) -> list[Event]:
        """Read the changes after `version`, the oldest first, at most `limit`; none when there are no more.

        Raises ExpiredError when the history does not reach back so far.
        """
        return await self._read(lambda: self._since(resource, namespace, version, limit))

    async def current(self) -> int:
        """Give the newest version that is on the disk."""
        return await self._read(lambda: self._committed)

    # --- event loop side ---

    async def _read(self, job: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(_Job(future, read=job))
        return await future

    def _submit(self, job: _Job) -> None:
        if self._closing:
            raise StorageError("the API server is stopping")
        self._jobs.put(job)

    def _deliver(self, outcomes: Sequence[_Outcome]) -> None:
        for outcome in outcomes:
            if outcome.event is not None:
                self._on_commit(outcome.event)
            if outcome.future.done():  # the client has gone away; what it asked for is done all the same
                continue
            if outcome.error is not None:
                outcome.future.set_exception(outcome.error)
            else:
                outcome.future.set_result(outcome.value)

    def _lock_file(self) -> None:
        path = self._path.with_suffix(".lock")
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock_file()
            raise ApiServerError(f"{self._path}: another API server is using it; stop that one first") from error
        except OSError as error:
            raise ApiServerError(f"{path}: cannot be written: {error.strerror}") from error

    def _unlock_file(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- the thread ---

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            self._connect()
        except (sqlite3.Error, OSError) as error:
            self._loop.call_soon_threadsafe(opened.set_exception, error)
            return
        self._loop.call_soon_threadsafe(opened.set_result, None)
        stopping = False
        while not stopping:
            batch, stopping = self._take()
            outcomes: list[_Outcome] = []
            while batch:
                writes = 0
                while writes < len(batch) and batch[writes].write is not None:
                    writes += 1
                if writes:
                    outcomes += self._commit(batch[:writes])
                else:
                    outcomes.append(self._answer(batch[0]))
                batch = batch[max(writes, 1) :]
            if outcomes:
                self._loop.call_soon_threadsafe(self._deliver, outcomes)
        self._connection.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StorageError("the state is not open")
        return self._db

    def _take(self) -> tuple[list[_Job], bool]:
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            # A read may be long: its answer should not wait for what was asked after it.
            if job.write is None or len(jobs) == BATCH or self._jobs.empty():
                return jobs, False
            job = self._jobs.get()
        return jobs, True

    def _connect(self) -> None:
        self._db = db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=True)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        layout = db.execute("PRAGMA user_version").fetchone()[0]
        if layout not in (0, _LAYOUT):
            raise sqlite3.DatabaseError(f"it has layout {layout}, made by a newer version; this one knows {_LAYOUT}")
        db.executescript(_SCHEMA)
        db.execute(f"PRAGMA user_version = {_LAYOUT}")
        self._measure(db)

    def _commit(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        db = self._connection
        outcomes: list[_Outcome] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                if job.write is None:
                    continue
                try:
                    event = self._apply(db, job.write)
                    outcomes.append(_Outcome(job.future, value=event, event=event))
                except MismatchError as error:
                    outcomes.append(_Outcome(job.future, error=error))
            self._trim(db, [outcome.event for outcome in outcomes if outcome.event is not None])
            db.execute("COMMIT")
        except sqlite3.Error as error:
            log.error("state %s: %d writes failed: %s", self._path, len(jobs), error)
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._measure(db)
            return [_Outcome(job.future, error=StorageError(str(error))) for job in jobs]
        for outcome in outcomes:
            if outcome.event is not None:
                self._committed = outcome.event.version
        return outcomes

    def _apply(self, db: sqlite3.Connection, change: Write) -> Event:
        key = change.key
        where = (key.resource, key.namespace, key.name)
        row = db.execute(
            "SELECT version, body FROM objects WHERE resource = ? AND namespace = ? AND name = ?", where
        ).fetchone()
        actual, prior = row or (0, None)
        if actual != change.expected:
            raise MismatchError(actual)
        if change.delete:
            kind = "DELETED"
            db.execute("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", where)
        else:
            kind = "MODIFIED" if actual else "ADDED"
            db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (*where, change.version, change.body))
        db.execute(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", (change.version, *where, kind, change.body, prior)
        )
        return Event(change.version, key, kind, change.body, prior)

    def _trim(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        """Drop the oldest changes, a tenth of the history at a time, when there are too many or they are too big."""
        self._kept += len(events)
        self._bytes += sum(len(event.body) + len(event.prior or b"") for event in events)
        if self._kept <= self._keep and self._bytes <= HISTORY_BYTES:
            return
        border = 0
        for version, size in db.execute(_SIZES):
            if self._kept <= self._keep * 9 // 10 and self._bytes <= HISTORY_BYTES * 9 // 10:
                break
            border = version
            self._kept -= 1
            self._bytes -= size
        db.execute("DELETE FROM history WHERE version <= ?", (border,))
        self._oldest = border

    def _measure(self, db: sqlite3.Connection) -> None:
        oldest, newest, self._kept, self._bytes = db.execute(_TOTALS).fetchone()
        self._committed = newest or 0
        self._oldest = (oldest or 1) - 1

    def _answer(self, job: _Job) -> _Outcome:
        if job.read is None:
            raise StorageError("a job must read or write")
        try:
            return _Outcome(job.future, value=job.read())
        except (ExpiredError, StorageError) as error:
            return _Outcome(job.future, error=error)
        except sqlite3.Error as error:
            log.error("state %s: a read failed: %s", self._path, error)
            return _Outcome(job.future, error=StorageError(str(error)))

    def _get(self, key: Key) -> Stored | None:
        row = self._connection.execute(
            "SELECT namespace, name, version, body FROM objects WHERE resource = ? AND namespace = ? AND name = ?",
            (key.resource, key.namespace, key.name),
        ).fetchone()
        return Stored(*row) if row else None

    def _page(
        self, resource: str, namespace: str | None, after: tuple[str, str], limit: int, version: int | None
    ) -> Page:
        version = self._committed if version is None else version
        if version < self._oldest:
            raise ExpiredError(self._oldest)
        query = _PAGE_NOW if version >= self._committed else _PAGE_THEN
        cursor = self._connection.execute(
            query.format(range=_IN_ALL if namespace is None else _IN_ONE),
            {
                "resource": resource,
                "namespace": after[0] if namespace is None else namespace,
                "name": after[1],
                "version": version,
            },
        )
        items: list[Stored] = []
        size = 0
        more = False
        for row in cursor:
            if len(items) == limit or size >= PAGE_BYTES:
                more = True
                break
            items.append(Stored(*row))
            size += len(row[3])
        cursor.close()
        return Page(items, version, more)

    def _since(self, resource: str, namespace: str | None, version: int, limit: int) -> list[Event]:
        if version < self._oldest:
            raise ExpiredError(self._oldest)
        cursor = self._connection.execute(
            "SELECT version, namespace, name, type, body, prior FROM history WHERE version > ? AND resource = ? "
            "AND (? IS NULL OR namespace = ?) ORDER BY version",
            (version, resource, namespace, namespace),
        )
        events: list[Event] = []
        size = 0
        for number, space, name, kind, body, prior in cursor:
            events.append(Event(number, Key(resource, space, name), kind, body, prior))
            size += len(body) + len(prior or b"")
            if len(events) == limit or size >= PAGE_BYTES:
                break
        cursor.close()
        return events
